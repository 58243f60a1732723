#!/usr/bin/env python3
"""gcmoe bench where there is no GPU, and scripts/bench_table.py.
Usage: bench_command_test.py PATH_OF_GCMOE PATH_OF_THE_SCRIPTS [unittest options]"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import bench_fixture as fixture

COMMAND = SCRIPTS = ""
FIELDS = ("kind", "model", "variant", "tokens", "num_seeds", "touched", "floor_us", "median_us",
          "min_us", "ratio", "copy_us", "tflops", "working_set_gb_s", "paper_us", "burst_us",
          "sustained_us", "commit", "config", "gpu", "driver", "date", "seeds", "verified")


def bench(*arguments):
    return subprocess.run([COMMAND, "bench", *arguments], capture_output=True, text=True,
                          timeout=120, check=False)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gcmoe-bench-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)


class BenchCommandTest(Folder):
    def floors(self, *arguments):
        """The lines that --out got; stdout is the table."""
        path = self.path("floors.jsonl")
        result = bench("--floors-only", *arguments, "--out", path, "--force")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("floors only", result.stdout)
        with open(path, encoding="utf-8") as file:
            points = [json.loads(line) for line in file]
        self.assertEqual(len(result.stdout.splitlines()), 2 + len(points))
        return points

    def test_floors_are_bytes_at_4_3_tb_per_s(self):
        points = self.floors()
        self.assertEqual(len(points), 3 * (9 + 1))
        for point in points:
            for field in FIELDS:
                self.assertIn(field, point)
            weights = 3 * point["hidden"] * point["inter"]
            wanted = point["touched"] * weights * (0.5 + 1 / 32) / 4.3e6
            self.assertAlmostEqual(point["floor_us"], wanted, places=2)
            self.assertEqual(point["shared_floor_us"], 0)
            self.assertIsNone(point["median_us"])
            self.assertEqual(point["touched"] == 0, point["kind"] == "empty")
            slots = point["tokens"] * point["topk"]
            self.assertLessEqual(point["touched"], min(slots, point["experts"]))
        alone = [p for p in points if p["tokens"] == 1 and p["kind"] == "layer"]
        self.assertEqual([(p["model"], p["experts"], p["touched"]) for p in alone],
                         [("v4.1-flash", 48, 6), ("v4-flash", 32, 6), ("glm-5.2", 32, 8)])

    def test_the_point_is_that_of_the_median_seed(self):
        (point,) = [p for p in self.floors("--model", "v4.1-flash", "--tokens", "4", "--seeds",
                                           "5") if p["kind"] == "layer"]
        touched = sorted(seed["touched"] for seed in point["seeds"])
        self.assertEqual(len(touched), 5)
        self.assertGreater(len(set(touched)), 1)
        self.assertEqual(point["touched"], touched[2])

    def test_seeds_have_the_routing_of_gcmoe_run(self):
        model = ["--model", "v4-flash", "--reduced", "8"]
        (point, _) = self.floors(*model, "--tokens", "3", "--seeds", "2")
        for seed in point["seeds"]:
            result = subprocess.run(
                [COMMAND, "run", *model, "--experts", str(point["experts"]), "--ranks", "1",
                 "--tokens", "3", "--seed", str(seed["seed"]), "--no-verify", "--json"],
                capture_output=True, text=True, timeout=120, check=True)
            self.assertEqual(json.loads(result.stdout)["experts_touched"], seed["touched"])

    def test_the_shared_expert_has_a_floor_of_its_own(self):
        routed = self.floors("--model", "v4-flash", "--tokens", "8")[0]
        for form, kinds in (("fused", ["layer"]), ("apart", ["layer", "empty"])):
            points = self.floors("--model", "v4-flash", "--tokens", "8", "--shared", form)
            self.assertEqual([point["kind"] for point in points], kinds)
            self.assertEqual(points[0]["config"]["shared"], form)
            self.assertEqual(points[0]["floor_us"], routed["floor_us"])
            self.assertAlmostEqual(points[0]["shared_floor_us"], 3 * 4096 * 2048 / 4.3e6, places=3)

    def test_ablations_name_their_variants(self):
        def variants(name):
            points = self.floors("--model", "v4-flash", "--tokens", "8", "--ablation", name)
            self.assertEqual([p["variant"] for p in points if p["kind"] == "empty"], ["default"])
            layers = [p for p in points if p["kind"] == "layer"]
            self.assertIsNone(layers[0]["ablation"])
            if name != "all":
                self.assertEqual({p["ablation"] for p in layers[1:]}, {name})
            return [p["variant"] for p in layers]

        everything = []
        for name in ("partition", "placement", "overlap", "combine", "shared", "launch", "closing",
                     "decode", "trace"):
            some = variants(name)
            self.assertEqual(some[0], "default")
            self.assertGreaterEqual(len(some), 2)
            everything += some[1:]
        self.assertEqual(variants("all")[1:], everything)
        self.assertEqual(len(everything), len(set(everything)))

    def test_json_is_one_object_and_equals_the_file(self):
        path = self.path("points.jsonl")
        result = bench("--floors-only", "--tokens", "1,2", "--json", "--out", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(result.stdout.splitlines()), 1)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(json.loads(result.stdout)["points"],
                             [json.loads(line) for line in file])

    def test_a_file_is_replaced_only_by_force(self):
        path = self.path("points.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.write("precious\n")
        result = bench("--floors-only", "--out", path)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--force", result.stderr)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "precious\n")
        self.assertEqual(bench("--floors-only", "--out", path, "--force").returncode, 0)
        with open(path, encoding="utf-8") as file:
            self.assertNotIn("precious", file.read())
        self.assertEqual(os.listdir(self.folder), ["points.jsonl"])

    def test_times_need_a_gpu(self):
        path = self.path("points.jsonl")
        result = bench("--tokens", "1", "--json", "--out", path)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--floors-only needs none", json.loads(result.stdout)["reason"])
        self.assertEqual(os.listdir(self.folder), [])

    def test_the_largest_capacity_still_counts(self):
        (point, _) = self.floors("--model", "v4-flash", "--reduced", "64", "--tokens", "65536",
                                 "--seeds", "1")
        self.assertEqual(point["touched"], point["experts"])


class BenchTableTest(Folder):
    def table(self, points, *arguments):
        path = self.path("points.jsonl")
        fixture.write(path, points)
        return subprocess.run([sys.executable, "-B", os.path.join(SCRIPTS, "bench_table.py"), path,
                               *arguments], capture_output=True, text=True, timeout=60, check=False)

    def lines(self, points, *arguments):
        result = self.table(points, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.splitlines()

    def test_points_beside_targets_and_peers(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "v4.1-flash", "--tokens", "1,8"))
        lines = self.lines(points)
        self.assertEqual(lines[0], "made up, driver 0.0, commit fixture, 2026-12-01.")
        # One token: 6 experts, 26.233 us; 49.350 is below 50. The fastest peer took 74.1.
        (row,) = [line for line in lines if line.startswith("| V4.1-Flash | 1 |")]
        for cell in ("| 6 |", "| 49.3 |", "| 50 us | met |", "| P411-s 74.1 (6) | 1.50 |"):
            self.assertIn(cell, row)
        (row,) = [line for line in lines if line.startswith("| V4.1-Flash | 8 |")]
        self.assertIn("| 1.25 | missed |", row)
        self.assertIn("| UNF 228.4 (32) |", row)
        self.assertIn("Targets: 1 of 2 met.", lines)
        (summary,) = [line for line in lines if line.startswith("Against the fastest peer")]
        self.assertIn("(measured 2026-11), 2 points: least 1.0", summary)
        self.assertIn("every point at least 1.2: missed", summary)
        self.assertIn("Empty launch, us (at most 9: missed): V4.1-Flash 10.0.", lines)
        self.assertNotIn("paper us", "\n".join(lines))  # no such column without such times

    def test_the_whole_table_has_27_targets_and_peers(self):
        lines = self.lines(fixture.fill(fixture.floors(COMMAND), factor=1.0, offset=0.1))
        self.assertIn("Targets: 27 of 27 met.", lines)
        (summary,) = [line for line in lines if line.startswith("Against the fastest peer")]
        self.assertIn(" 27 points: ", summary)
        self.assertEqual(summary.count(": met"), 2)

    def test_variants_beside_the_default(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "glm-5.2", "--tokens", "8",
                                             "--ablation", "combine"))
        lines = self.lines(points)
        self.assertTrue(any("| combine-compute |" in line and line.endswith("| 1.010 |")
                            for line in lines), lines)

    def test_what_a_shared_expert_costs(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "v4-flash", "--tokens", "8,64",
                                             "--ablation", "shared"))
        layers = {(p["variant"], p["tokens"]): p for p in points if p["kind"] == "layer"}
        for tokens, fused, apart in ((8, 4.9, 30), (64, 20, 30)):
            base = layers["default", tokens]["median_us"]
            shared = layers["shared-fused", tokens]["shared_floor_us"]
            layers["shared-fused", tokens]["median_us"] = base + shared + fused
            layers["shared-apart", tokens]["median_us"] = base + shared + apart
        lines = self.lines(points)
        self.assertIn("Shared expert fused, up to 32 tokens: adds at most 4.9 us to the time of "
                      "its bytes (V4-Flash, 8; at most 5: met).", lines)
        self.assertIn("Fused is faster than apart at 2 of 2 points (every: met).", lines)
        layers["shared-fused", 8]["median_us"] += 0.2
        layers["shared-apart", 64]["median_us"] = layers["shared-fused", 64]["median_us"]
        text = "\n".join(self.lines(points))
        self.assertIn("adds at most 5.1 us to", text)
        self.assertIn("at most 5: missed", text)
        self.assertIn("at 1 of 2 points (every: missed)", text)

    def test_a_shared_expert_is_compared_with_nobody(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "glm-5.2", "--tokens", "8",
                                             "--shared", "fused"))
        text = "\n".join(self.lines(points))
        self.assertNotIn("Against", text)
        self.assertNotIn("Targets", text)

    def test_other_machines_and_flushes_are_named(self):
        points = fixture.fill(fixture.floors(COMMAND, "--model", "glm-5.2", "--tokens", "8"))
        other = "Targets and peers are of one NVIDIA H200, not of: made up."
        flush = "Targets and peers have 512 MiB written before each launch, not: 64."
        self.assertIn(other, self.lines(points))
        points = [point | {"gpu": "NVIDIA H200", "flush_mib": 512} for point in points]
        self.assertNotIn("Targets and peers", "\n".join(self.lines(points)))
        points[0]["flush_mib"] = 64
        self.assertIn(flush, self.lines(points))

    def test_bad_files_are_named(self):
        good = fixture.fill(fixture.floors(COMMAND, "--model", "glm-5.2", "--tokens", "8"))
        cases = [([], "has no line"), (good + good[:1], "again"),
                 ([good[0] | {"tokens": "8"}], "'tokens' is '8'"),
                 ([good[0] | {"median_us": -1}], "'median_us' is -1"),
                 ([good[0] | {"median_us": float("nan")}], "'median_us' is nan"),
                 ([good[0] | {"floor_us": 0}], "floor_us is 0"),
                 ([good[0] | {"kind": "what"}], "no kind of point"), ([3], "no JSON object"),
                 ([good[0] | {"median_us": None}], "no point has a time")]
        for points, words in cases:
            with self.subTest(words=words):
                result = self.table(points)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(words, result.stderr)
                self.assertNotIn("Traceback", result.stderr)
        result = self.table(good, "--targets", self.path("gone.jsonl"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("gone.jsonl", result.stderr)


if __name__ == "__main__":
    COMMAND, SCRIPTS = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
