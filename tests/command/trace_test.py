#!/usr/bin/env python3
"""gcmoe trace, run --trace and scripts/render_trace.py from outside.
Usage: trace_test.py PATH_OF_GCMOE PATH_OF_RENDER_TRACE [unittest options]"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

COMMAND = RENDER = ""

TINY = ["--model", "v4.1-flash", "--hidden", "256", "--inter", "128", "--experts", "8",
        "--topk", "3", "--ranks", "2", "--tokens", "16", "--shared", "--row-block", "8",
        "--ring-blocks", "2"]


def call(*arguments):
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)


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
    COMMAND, RENDER = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
