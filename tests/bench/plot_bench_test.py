#!/usr/bin/env python3
"""scripts/plot_bench.py on made-up times. Exit code 77: this Python has no matplotlib.
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

    def plot(self, points, out):
        path = os.path.join(self.folder, "points.jsonl")
        fixture.write(path, points)
        return subprocess.run([sys.executable, "-B", os.path.join(SCRIPTS, "plot_bench.py"), path,
                               "--out", os.path.join(self.folder, out)], capture_output=True,
                              text=True, timeout=240, check=False)

    def test_two_pictures_a_model_and_ablation_and_the_same_bytes_twice(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "v4-flash,glm-5.2", "--tokens",
                                             "1,8,256", "--ablation", "combine"))
        for out in ("first", "second"):
            result = self.plot(points, out)
            self.assertEqual(result.returncode, 0, result.stderr)
        names = sorted(os.listdir(os.path.join(self.folder, "first")))
        wanted = [f"{kind}_{model}.{suffix}" for kind in ("ablation_combine", "bench")
                  for model in ("glm-5.2", "v4-flash") for suffix in ("png", "svg")]
        self.assertEqual(names, sorted(wanted))
        for name in names:
            first, second = (os.path.join(self.folder, out, name) for out in ("first", "second"))
            self.assertTrue(filecmp.cmp(first, second, shallow=False), name)
            if name.endswith(".svg"):
                self.assertEqual(xml.dom.minidom.parse(first).documentElement.tagName, "svg")
            else:
                with open(first, "rb") as file:
                    self.assertEqual(file.read(len(PNG)), PNG)

    def test_what_was_not_measured_is_left_out(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "qwen3-30b", "--tokens", "1,8"))
        for point in points:
            point["copy_us"] = point["sustained_us"] = None
        result = self.plot(points, "plots")  # no peer has this model
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(os.listdir(os.path.join(self.folder, "plots"))), 2)

    def test_bad_files_are_named(self):
        result = self.plot([{"kind": "layer"}], "plots")
        self.assertEqual(result.returncode, 2)
        self.assertIn("points.jsonl, line 1", result.stderr)
        good = fixture.fill(fixture.floors(COMMAND, "--model", "v4-flash", "--tokens", "1"))
        result = self.plot(good, "points.jsonl")  # a file stands where the folder should be
        self.assertEqual(result.returncode, 2)
        self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    COMMAND, SCRIPTS = sys.argv.pop(1), sys.argv.pop(1)
    if importlib.util.find_spec("matplotlib") is None:
        print("skipped: no matplotlib in this Python")
        sys.exit(SKIPPED)
    unittest.main()
