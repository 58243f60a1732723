#!/usr/bin/env python3
"""gcmoe tune where there is no GPU, and the tables that plans read.
Usage: tune_command_test.py PATH_OF_GCMOE [unittest options]"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

COMMAND = ""
MODELS = {"v4.1-flash": 48, "v4-flash": 32, "glm-5.2": 32}
HEAD = {"kind": "gcmoe-tuned", "version": 1, "gpu": "made up", "sms": 132, "derived_from": None,
        "driver": "0", "commit": "fixture", "date": "2026-12-01T00:00:00Z", "warm": 10,
        "timed": 30, "flush_mib": 512, "seeds": [0, 1, 2], "threshold_percent": 1.0}
ENTRY = {"kind": "entry", "model": "v4-flash", "hidden": 4096, "inter": 2048, "experts": 32,
         "topk": 6, "shared_inter": 0, "bias": False, "activation_scale": "fp32-k128",
         "from": 5, "to": 8, "tokens": 8,
         "options": {"dispatch_units": 12, "compute_units": 120, "row_block": 16,
                     "ring_blocks": 16, "lead_blocks": 9, "combine": "follow"},
         "launch": "graph", "median_us": 100.0, "default_us": 110.0,
         "candidates": {"generated": 300, "invalid": 0, "duplicate": 0, "dominated": 100,
                        "budget": 0, "measured": 200, "finalists": 6}}


def gcmoe(*arguments):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=120,
                          check=False)


class TuneCommandTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gcmoe-tune-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, *lines):
        with open(self.path(name), "w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")
        return self.path(name)

    def json_of(self, *arguments):
        result = gcmoe(*arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def plan(self, *arguments, tokens="8"):
        """The GPU's plan of V4-Flash's routed layer, one rank."""
        report = self.json_of("info", "--model", "v4-flash", "--experts", "32", "--no-shared",
                              "--ranks", "1", "--max-tokens", tokens, *arguments)
        return report["capability"]["backends"]["cuda"]["plan"]

    def test_candidates_of_every_point(self):
        points = self.json_of("tune", "--candidates-only")["points"]
        self.assertEqual(len(points), 27)
        self.assertEqual({point["model"] for point in points}, set(MODELS))
        for point in points:
            counts = point["candidates"]
            self.assertGreaterEqual(counts["generated"], 200)
            pruned = [counts[name] for name in ("invalid", "duplicate", "dominated", "budget")]
            self.assertEqual(counts["generated"], sum(pruned) + counts["measured"])
            self.assertEqual(len(point["kept"]), counts["measured"])
            self.assertEqual(len(set(point["kept"])), counts["measured"])
        text = gcmoe("tune", "--candidates-only", "--model", "glm-5.2", "--tokens", "8")
        self.assertIn("glm-5.2, 8 tokens: 437 candidates:", text.stdout)

    def test_what_would_be_ignored_is_refused(self):
        path = self.path("out.jsonl")
        result = gcmoe("tune", "--candidates-only", "--out", path)
        self.assertEqual(result.returncode, 2)
        self.assertIn(f"--out {path}: contradicts --candidates-only", result.stderr)
        table = self.write("table.jsonl", HEAD, ENTRY)
        derive = ("tune", "--derive", table, "--sms", "78", "--gpu", "X", "--out", path)
        for option, value in (("--model", "glm-5.2"), ("--tokens", "3"), ("--seeds", "5"),
                              ("--hidden", "256"), ("--budget-s", "10"), ("--shared", "fused")):
            result = gcmoe(*derive, option, value)
            self.assertEqual(result.returncode, 2, option)
            self.assertIn(f"--derive {table}: contradicts {option}: ", result.stderr)
        self.assertEqual(os.listdir(self.folder), ["table.jsonl"])

    def test_a_shape_by_options(self):
        (point,) = self.json_of("tune", "--candidates-only", "--model", "v4-flash", "--hidden",
                                "2048", "--inter", "768", "--experts", "16", "--topk", "4",
                                "--tokens", "16", "--sms", "78")["points"]
        self.assertEqual(point["model"],
                         "v4-flash, hidden 2048, inter 768, 16 experts, top 4")
        self.assertTrue(all("+" in plan and sum(map(int, plan.split(" ")[0].split("+"))) == 78
                            for plan in point["kept"]))

    def test_without_a_gpu_nothing_is_tuned(self):
        path = self.path("out.jsonl")
        result = gcmoe("tune", "--out", path)
        if "needs a GPU" not in result.stderr:
            self.skipTest("there is a GPU")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--candidates-only", result.stderr)
        self.assertEqual(os.listdir(self.folder), [])

    def test_info_says_where_values_come_from(self):
        table = self.write("table.jsonl", HEAD, ENTRY)
        plan = self.plan("--tuned", table)
        self.assertEqual(plan["values"]["dispatch_units"], {"value": "12", "from": "tuned"})
        self.assertEqual(plan["values"]["second_columns"]["from"], "rule")
        self.assertEqual(plan["launch"], "graph")
        self.assertIn("line 2", plan["tuned"])
        for arguments, tokens in ((("--tuned", "none"), "8"), (("--tuned", table), "9")):
            plan = self.plan(*arguments, tokens=tokens)
            self.assertTrue(plan["tuned"].startswith("none: "), plan)
            self.assertEqual({value["from"] for value in plan["values"].values()}, {"rule"})
        result = gcmoe("info", "--model", "v4-flash", "--experts", "32", "--no-shared",
                       "--ranks", "1", "--max-tokens", "8", "--tuned", table)
        self.assertIn("dispatch_units 12 (tuned)", result.stdout)
        self.assertIn("lead_blocks 9 (tuned)", result.stdout)

    def test_bad_tables_are_refused_by_every_command(self):
        bad = dict(ENTRY, options=dict(ENTRY["options"], row_block=20))
        table = self.write("table.jsonl", HEAD, bad)
        layer = ["--model", "v4-flash", "--hidden", "256", "--inter", "128"]
        for arguments in (["run", *layer, "--experts", "8", "--topk", "3", "--ranks", "1",
                           "--tokens", "1"],
                          ["info", "--model", "v4-flash"]):
            result = gcmoe(*arguments, "--tuned", table)
            self.assertEqual(result.returncode, 2, result.stdout)
            for word in ("--tuned", table, "line 2", "row_block = 20", "8..64"):
                self.assertIn(word, result.stderr)
        result = gcmoe("check", "--suite", "routed", "--tuned", table)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("row_block = 20", result.stdout + result.stderr)

    def test_the_library_has_tables(self):
        report = self.json_of("info", "--model", "glm-5.2", "--experts", "32", "--no-shared",
                              "--ranks", "1", "--max-tokens", "1")
        plan = report["capability"]["backends"]["cuda"]["plan"]
        self.assertIn("the library's table", plan["tuned"])

    def test_a_table_can_be_derived(self):
        table = self.write("table.jsonl", HEAD, ENTRY)
        out = self.path("h20.jsonl")
        derive = ["tune", "--derive", table, "--gpu", "NVIDIA H20", "--sms", "78", "--out", out]
        result = gcmoe(*derive)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("derived from made up, 132 SMs, not measured", result.stdout)
        with open(out, encoding="utf-8") as file:
            head, entry = [json.loads(line) for line in file]
        self.assertEqual((head["gpu"], head["sms"], head["derived_from"]),
                         ("NVIDIA H20", 78, "made up, 132 SMs"))
        self.assertEqual(entry["options"], dict(ENTRY["options"], dispatch_units=8,
                                                compute_units=70, lead_blocks=5))
        self.assertIsNone(entry["median_us"])
        self.assertEqual(gcmoe(*derive).returncode, 2)  # is there already
        again = gcmoe("tune", "--derive", out, "--gpu", "x", "--sms", "60", "--out", "y")
        self.assertIn("itself derived", again.stderr)
        self.assertEqual(gcmoe("info", "--model", "v4-flash", "--tuned", out).returncode, 0)


if __name__ == "__main__":
    COMMAND = sys.argv.pop(1)
    unittest.main()
