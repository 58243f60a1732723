#!/usr/bin/env python3
"""gcmoe_bench_cpu from outside. Usage: bench_cpu_test.py PATH_OF_THE_BENCH [unittest options]"""

import json
import subprocess
import sys
import unittest

BENCH = ""


def bench(*arguments):
    return subprocess.run([BENCH, *arguments], capture_output=True, text=True, timeout=250,
                          check=False)


class BenchCpuTest(unittest.TestCase):
    def test_a_json_line_per_point(self):
        result = bench("--model", "qwen3-30b", "--rows", "1,3", "--timed", "1", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        points = [json.loads(line) for line in result.stdout.splitlines()]
        targets = {point["target"] for point in points}
        self.assertIn("scalar", targets)
        self.assertGreaterEqual(len(targets), 2)
        # Two matrices, two numbers of rows, every target.
        self.assertEqual(len(points), 2 * 2 * len(targets))
        for point in points:
            self.assertGreater(point["gb_per_s"], 0)
            self.assertGreater(point["copy_gb_per_s"], 0)
            if point["target"] == "scalar":
                self.assertEqual(point["times_scalar"], 1)

    def test_bad_options_are_named(self):
        for arguments, words in ((["--rows", "0"], "--rows '0'"), (["--rows", "1,x"], "'x'"),
                                 (["--rows", "65"], "1..64"), (["--timed", "0"], "--timed '0'"),
                                 (["--timed"], "--timed ''"), (["--model", "gpt-9"], "gpt-9"),
                                 (["--fast"], "'--fast'")):
            with self.subTest(arguments=arguments):
                result = bench(*arguments)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(words, result.stderr)
                self.assertEqual(result.stdout, "")

    def test_help(self):
        result = bench("--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("--rows LIST", result.stdout)


if __name__ == "__main__":
    BENCH = sys.argv.pop(1)
    unittest.main()
