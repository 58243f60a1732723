#!/usr/bin/env python3
"""gcmoe trace, run --trace, scripts/render_trace.py and trace_steps.py from outside.
Usage: trace_test.py PATH_OF_GCMOE PATH_OF_SCRIPTS [unittest options]"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

COMMAND = RENDER = STEPS = ""

TINY = ["--model", "v4.1-flash", "--hidden", "256", "--inter", "128", "--experts", "8",
        "--topk", "3", "--ranks", "2", "--tokens", "16", "--shared", "--row-block", "8",
        "--ring-blocks", "2"]


def call(*arguments):
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)


def gpu_trace(compute_units, launches=1):
    """Two CTAs of role 1 with two warps, role 2 and role 3, as a GPU records them: launch g begins
    at 1000 g us."""
    events, threads = [], {}

    def thread(name):
        if name not in threads:
            threads[name] = len(threads)
            events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": threads[name],
                           "args": {"name": name}})
        return threads[name]

    def add(name, kind, launch, times, **args):
        begin, end = times
        events.append({"name": kind, "cat": "", "ph": "X", "pid": 0, "tid": thread(name),
                       "ts": 1000.0 * launch + begin, "dur": end - begin,
                       "args": {"kind": kind.split(" num")[0].split(" done")[0],
                                "generation": launch, **args}})

    events.append({"name": "process_name", "ph": "M", "pid": 0, "tid": 0,
                   "args": {"name": "rank 0"}})
    for launch in range(1, launches + 1):
        for unit in (0, 1):
            warp = f"role 1 unit {unit} warp 0"
            add(warp, "begin", launch, (unit, 2 + unit))
            if unit == 0:
                add(warp, "count", launch, (2, 3))
                add(warp, "route", launch, (3, 4), task=0)
            add(warp, "receive", launch, (4, 5 + unit))
            if unit == 0:
                add(warp, "route", launch, (5, 6), task=1)
            for number in (0, 1):
                add(f"role 1 unit {unit} warp {number}", "fill", launch, (7 + unit, 9 + unit),
                    block=unit, task=number)
        for unit in range(compute_units):
            name = f"role 2 unit {unit}"
            add(name, "begin", launch, (0.5, 2))
            add(name, "wait num_blocks", launch, (2, 6.5))
            add(name, "first GEMM", launch, (10 + unit / 8, 20), block=0, task=unit)
            add(name, "second GEMM", launch, (20, 30 + unit / 8 + launch), block=0, task=unit)
            add(f"role 3 unit {unit}", "wait done", launch, (40, 41))
            add(f"role 3 unit {unit}", "combine", launch, (41, 43))
    return {"traceEvents": events, "otherData": {"title": "made up", "dropped_events": 0}}


class TraceTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gcmoe-trace-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def trace(self, *arguments, command="trace"):
        """The parsed trace and the command's result."""
        path = self.path("trace.json")
        result = call(COMMAND, command, *TINY, "--trace", path, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(path, encoding="utf-8") as file:
            return json.load(file), result

    def spans(self, trace):
        return [event for event in trace["traceEvents"] if event["ph"] == "X"]

    def test_units_do_one_thing_at_a_time(self):
        for executor in ("threads", "stepper"):
            with self.subTest(executor=executor):
                trace, _ = self.trace("--executor", executor, "--compute-units", "3")
                ends = {}
                for event in self.spans(trace):
                    unit = (event["pid"], event["tid"])
                    # ts and dur are whole nanoseconds in microseconds.
                    begin = round(event["ts"] * 1000)
                    self.assertGreaterEqual(begin, ends.get(unit, 0), event)
                    ends[unit] = begin + round(event["dur"] * 1000)
                self.assertEqual(len(ends), 2 * (1 + 3))

    def test_every_block_appears_once_per_role(self):
        trace, _ = self.trace()
        for rank in (0, 1):
            blocks = {}
            for event in self.spans(trace):
                args = event["args"]
                if event["pid"] == rank and args["kind"] in ("fill", "first GEMM", "second GEMM"):
                    blocks.setdefault(args["kind"], []).append((args["block"], args["task"]))
            self.assertEqual(set(blocks), {"fill", "first GEMM", "second GEMM"})
            fills = {block for block, _ in blocks["fill"]}
            self.assertGreater(len(fills), 2)
            for kind, sites in blocks.items():
                self.assertEqual(len(sites), len(set(sites)), kind)
                self.assertEqual({block for block, _ in sites}, fills, kind)
                self.assertEqual(fills, set(range(len(fills))))

    def test_names_for_the_viewer(self):
        trace, _ = self.trace()
        names = {(event["name"], event["args"]["name"]) for event in trace["traceEvents"]
                 if event["ph"] == "M"}
        for name in (("process_name", "rank 1"), ("thread_name", "role 1 unit 0"),
                     ("thread_name", "roles 2, 3 unit 1")):
            self.assertIn(name, names)

    def test_summary(self):
        trace, result = self.trace("--json")
        summary = json.loads(result.stdout)
        self.assertEqual(summary["events"], len(self.spans(trace)))
        self.assertEqual([role["role"] for role in summary["roles"]], [1, 2, 3])
        for role in summary["roles"]:
            self.assertLessEqual(role["busy"] + role["waiting"], 1.0 + 1e-9)
        self.assertTrue(0 <= summary["overlap"] <= 1)
        lengths = [wait["us"] for wait in summary["longest_waits"]]
        self.assertEqual(lengths, sorted(lengths, reverse=True))
        _, result = self.trace()
        for words in ("role 2 (compute)", "overlap: role 2 worked", "longest waits", "events of"):
            self.assertIn(words, result.stdout)
        self.assertNotIn("NOT fit", result.stdout)

    def test_what_does_not_fit_is_said(self):
        trace, result = self.trace("--trace-events", "4")
        dropped = trace["otherData"]["dropped_events"]
        self.assertGreater(dropped, 0)
        self.assertIn(f"{dropped} events did NOT fit (--trace-events 4)", result.stdout)

    def test_run_writes_one_and_verifies(self):
        trace, result = self.trace("--json", "--launches", "2", command="run")
        report = json.loads(result.stdout)
        self.assertTrue(report["verified"])
        self.assertEqual(report["trace"]["events"], len(self.spans(trace)))
        generations = {event["args"]["generation"] for event in self.spans(trace)}
        self.assertEqual(generations, {1, 2})
        result = call(COMMAND, "run", *TINY, "--json")
        self.assertNotIn("trace", json.loads(result.stdout))
        self.assertEqual(os.listdir(self.folder), ["trace.json"])

    def test_a_stalled_run_leaves_its_trace(self):
        path = self.path("stall.json")
        result = call(COMMAND, "run", *TINY, "--executor", "stepper", "--deadline", "1e-9",
                      "--trace", path)
        self.assertEqual(result.returncode, 3, result.stderr)
        with open(path, encoding="utf-8") as file:
            self.assertIn("traceEvents", json.load(file))

    def test_bad_options_are_named(self):
        for arguments, words in ((["--trace", self.path("no/folder.json")], "--trace"),
                                 (["--trace-events", "0"], "--trace-events 0"),
                                 (["--trace-events", "2000000"], "2000000"),
                                 (["--trace", self.path("a"), "--out", self.path("a")],
                                  "would overwrite --out")):
            with self.subTest(arguments=arguments):
                result = call(COMMAND, "trace", *TINY, *arguments)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(words, result.stderr)

    def test_picture(self):
        trace, _ = self.trace()
        picture = self.path("picture.svg")
        result = call(sys.executable, RENDER, self.path("trace.json"), "--out", picture)
        self.assertEqual(result.returncode, 0, result.stderr)
        rectangles = xml.dom.minidom.parse(picture).getElementsByTagName("rect")
        drawn = [one for one in rectangles if one.getElementsByTagName("title")]
        self.assertEqual(len(drawn), len(self.spans(trace)))
        for one in drawn:
            self.assertGreater(float(one.getAttribute("width")), 0)
            right = float(one.getAttribute("x")) + float(one.getAttribute("width"))
            self.assertLessEqual(right, 1200)

    def save(self, trace, name="gpu.json"):
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(trace, file)
        return path

    def test_dense_picture(self):
        compute_units = 124
        path, picture = self.save(gpu_trace(compute_units)), self.path("dense.svg")
        result = call(sys.executable, RENDER, path, "--out", picture)
        self.assertEqual(result.returncode, 0, result.stderr)
        drawn = xml.dom.minidom.parse(picture)
        self.assertEqual(len(drawn.getElementsByTagName("title")), 0)
        height = float(drawn.documentElement.getAttribute("height"))
        self.assertLess(height, 800)
        boxes = {}
        for shape in drawn.getElementsByTagName("path"):
            parts = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z",
                               shape.getAttribute("d"))
            for x, y, width, tall in (map(float, part) for part in parts):
                self.assertGreater(width, 0)
                self.assertLessEqual(x + width, 1200)
                self.assertLessEqual(y + tall, height)
            name = shape.getAttribute("class")
            boxes[name] = boxes.get(name, 0) + len(parts)
        self.assertEqual(boxes["k2"], compute_units)  # first GEMMs
        self.assertEqual(boxes["k1"], 4)              # fills
        self.assertEqual(boxes["k8"], 2 * compute_units)  # waits
        texts = [text.firstChild.data for text in drawn.getElementsByTagName("text")
                 if text.firstChild is not None]
        for words in ("role 1: 2 units", "role 2: 124 units", "role 3: 124 units", "r0"):
            self.assertIn(words, texts)

    def test_picture_of_one_launch(self):
        path, picture = self.save(gpu_trace(8, launches=3)), self.path("one.svg")
        events = sum(event["ph"] == "X" and event["args"]["generation"] == 3
                     for event in gpu_trace(8, launches=3)["traceEvents"])
        for generation in ("3", "last"):
            result = call(sys.executable, RENDER, path, "--generation", generation, "--out",
                          picture)
            self.assertEqual(result.returncode, 0, result.stderr)
            drawn = xml.dom.minidom.parse(picture)
            self.assertEqual(len(drawn.getElementsByTagName("title")), events)
        result = call(sys.executable, RENDER, path, "--generation", "first")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--generation", result.stderr)

    def test_steps_are_medians_over_launches(self):
        path = self.save(gpu_trace(8, launches=3))
        result = call(sys.executable, STEPS, path, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["launches"], 3)
        steps = {step["step"]: step for step in report["steps"]}
        self.assertEqual(steps["role 1, unit 0: counts published"]["last"], 4)
        self.assertEqual(steps["role 1, unit 0: blocks published"]["first"], 6)
        self.assertEqual([steps["role 1: counts received"][key]
                          for key in ("units", "first", "median", "last")], [2, 5, 5.5, 6])
        self.assertEqual(steps["role 1: first row in the ring"]["first"], 9)
        self.assertEqual(steps["role 2: told the blocks"]["last"], 6.5)
        last = steps["role 2: last second GEMM ended"]
        self.assertEqual((last["units"], last["first"], last["last"]), (8, 32, 32 + 7 / 8))
        self.assertEqual(steps["role 3: sums written"]["last"], 43)
        parts = report["us_a_track"]
        self.assertEqual(parts["role 3"], {"": 0.0, "wait done": 1.0, "combine": 2.0})
        # From 6.5 to 10 + unit / 8.
        self.assertAlmostEqual(parts["role 2"][""], 3.5 + 7 / 16)
        result = call(sys.executable, STEPS, path, "--last", "1", "--json")
        steps = {step["step"]: step for step in json.loads(result.stdout)["steps"]}
        self.assertEqual(steps["role 2: last second GEMM ended"]["first"], 33)
        result = call(sys.executable, STEPS, path)
        self.assertIn("role 2: told the blocks", result.stdout)

    def test_steps_of_no_gpu_are_refused(self):
        self.trace()
        for arguments, words in [([self.path("trace.json")], "no GPU recorded it"),
                                 ([self.path("none")], "cannot be read: No such file"),
                                 ([self.save(gpu_trace(1)), "--rank", "3"], "rank 3 has no events"),
                                 ([self.save({"traceEvents": [3]}, "bad.json")], "no trace of")]:
            result = call(sys.executable, STEPS, *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(words, result.stderr)

    def test_files_that_cannot_be_read_or_written_are_named(self):
        trace = self.path("trace.json")
        self.trace()
        for arguments, words in [([self.path("none")], "cannot be read: No such file"),
                                 ([self.folder], "cannot be read: Is a directory"),
                                 ([trace, "--out", self.path("no/picture")], "No such file"),
                                 ([trace, "--out", "/dev/full"], "No space left"),
                                 ([trace, "--out", trace], "is the trace itself"),
                                 ([trace, "--generation", "99"], "no such launch")]:
            result = call(sys.executable, RENDER, *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(words, result.stderr)

    def test_a_stdout_that_takes_nothing_is_named(self):
        self.trace()
        for target, words in [("/dev/full", "stdout: No space left"), ("&-", "stdout: Bad file")]:
            result = call("/bin/sh", "-c", f'"$0" "$1" "$2" >{target}', sys.executable, RENDER,
                          self.path("trace.json"))
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(words, result.stderr)

    def test_picture_of_no_trace(self):
        for text in ("", "{", "[]", '{"traceEvents": [{"name": "x"}]}',
                     '{"traceEvents": [], "otherData": 3}'):
            with self.subTest(text=text):
                with open(self.path("bad.json"), "w", encoding="utf-8") as file:
                    file.write(text)
                result = call(sys.executable, RENDER, self.path("bad.json"))
                self.assertEqual(result.returncode, 2)
                self.assertIn("bad.json", result.stderr)
                self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    COMMAND, FOLDER = sys.argv.pop(1), sys.argv.pop(1)
    RENDER, STEPS = (os.path.join(FOLDER, name) for name in ("render_trace.py", "trace_steps.py"))
    unittest.main()
