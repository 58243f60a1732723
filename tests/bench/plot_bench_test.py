#!/usr/bin/env python3
"""scripts/plot_bench.py and plot_ablation.py on made-up times. Exit code 77: no matplotlib here.
Usage: plot_bench_test.py PATH_OF_GCMOE PATH_OF_THE_SCRIPTS [unittest options]"""

import filecmp
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

import bench_fixture as fixture

COMMAND = SCRIPTS = ""
SKIPPED = 77
PNG = b"\x89PNG\r\n\x1a\n"


class PlotBenchTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gcmoe-plots-")
        self.addCleanup(shutil.rmtree, self.folder)

    def plot(self, points, out, script="plot_bench.py"):
        path = os.path.join(self.folder, "points.jsonl")
        fixture.write(path, points)
        return subprocess.run([sys.executable, "-B", os.path.join(SCRIPTS, script), path, "--out",
                               os.path.join(self.folder, out)], capture_output=True, text=True,
                              timeout=240, check=False)

    def test_a_picture_a_model_and_the_same_bytes_twice(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "v4-flash,glm-5.2", "--tokens",
                                             "1,8,256", "--ablation", "combine"))
        self.check_pictures("plot_bench.py", points, ["bench_glm-5.2", "bench_v4-flash"])

    def test_a_picture_an_ablation_and_the_same_bytes_twice(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "v4-flash,glm-5.2", "--tokens",
                                             "1,8,256", "--ablation", "all"))
        names = sorted({f"ablation_{p['ablation']}" for p in points if p["ablation"]})
        self.assertGreaterEqual(len(names), 8)
        folder = self.check_pictures("plot_ablation.py", points, names)
        with open(os.path.join(folder, "ablation_closing.svg"), encoding="utf-8") as file:
            text = file.read()
        for words in ("us more than closing-graph", "V4-Flash", "GLM-5.2", "closing-both"):
            self.assertIn(words, text)
        # The whole set goes into the repository: a picture must stay small.
        for name in os.listdir(folder):
            self.assertLess(os.path.getsize(os.path.join(folder, name)), 60_000, name)

    def check_pictures(self, script, points, wanted):
        for out in ("first", "second"):
            result = self.plot(points, out, script)
            self.assertEqual(result.returncode, 0, result.stderr)
        names = sorted(os.listdir(os.path.join(self.folder, "first")))
        self.assertEqual(names, sorted(f"{name}.{suffix}" for name in wanted
                                       for suffix in ("png", "svg")))
        for name in names:
            first, second = (os.path.join(self.folder, out, name) for out in ("first", "second"))
            self.assertTrue(filecmp.cmp(first, second, shallow=False), name)
            if name.endswith(".svg"):
                self.assertEqual(xml.dom.minidom.parse(first).documentElement.tagName, "svg")
            else:
                with open(first, "rb") as file:
                    self.assertEqual(file.read(len(PNG)), PNG)
        return os.path.join(self.folder, "first")

    def test_an_ablation_needs_what_it_is_compared_with(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "v4-flash", "--tokens", "1,8",
                                             "--ablation", "closing"))
        for variant in ("default", "closing-graph"):
            result = self.plot([p for p in points if p["variant"] != variant], "plots",
                               "plot_ablation.py")
            if variant == "default":  # what adds to another variant needs that one alone
                self.assertEqual(result.returncode, 0, result.stderr)
                continue
            self.assertEqual(result.returncode, 2)
            self.assertIn("ablation 'closing' has no variant 'closing-graph'", result.stderr)
        result = self.plot([p for p in points if p["ablation"] is None], "plots",
                           "plot_ablation.py")
        self.assertEqual(result.returncode, 2)
        self.assertIn("no point belongs to an ablation", result.stderr)
        points[1]["ablation"] = 7
        result = self.plot(points, "plots", "plot_ablation.py")
        self.assertEqual(result.returncode, 2)
        self.assertIn("'ablation' is 7", result.stderr)

    def test_a_point_that_the_base_lacks_is_left_out(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "v4-flash", "--tokens", "1,8",
                                             "--ablation", "placement"))
        points = [p for p in points if (p["variant"], p["tokens"]) != ("default", 8)]
        result = self.plot(points, "plots", "plot_ablation.py")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_what_was_not_measured_is_left_out(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "qwen3-30b", "--tokens", "1,8"))
        for point in points:
            point["copy_us"] = point["sustained_us"] = None
        result = self.plot(points, "plots")  # no peer has this model
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(os.listdir(os.path.join(self.folder, "plots"))), 2)

    def test_bad_files_are_named(self):
        good = fixture.fill(fixture.floors(COMMAND, "--model", "v4-flash", "--tokens", "1",
                                           "--ablation", "launch"))
        for script in ("plot_bench.py", "plot_ablation.py"):
            result = self.plot([{"kind": "layer"}], "plots", script)
            self.assertEqual(result.returncode, 2)
            self.assertIn("points.jsonl, line 1", result.stderr)
            # A file stands where the folder should be.
            result = self.plot(good, "points.jsonl", script)
            self.assertEqual(result.returncode, 2)
            self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    COMMAND, SCRIPTS = sys.argv.pop(1), sys.argv.pop(1)
    if importlib.util.find_spec("matplotlib") is None:
        print("skipped: no matplotlib in this Python")
        sys.exit(SKIPPED)
    unittest.main()
