#!/usr/bin/env python3
"""The gcmoe command from outside. Usage: command_test.py PATH_OF_GCMOE [unittest options]"""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import safetensors_io as st

COMMAND = ""

# A layer that runs in a blink: two ranks of four experts.
TINY = ["--model", "v4.1-flash", "--hidden", "256", "--inter", "128", "--experts", "8",
        "--topk", "3", "--ranks", "2"]
RUN_KEYS = {"verified", "reason", "worst_rel_l2", "tokens", "ranks", "experts_touched", "bytes",
            "seconds"}


def gcmoe(*arguments, timeout=120):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=timeout,
                          check=False)


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gcmoe-command-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def json_of(self, result):
        """The JSON object in the last line; with --json nothing else is on stdout."""
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 1, result.stdout + result.stderr)
        return json.loads(lines[0])

    def verified(self, *arguments):
        """A run that must verify; its JSON."""
        result = gcmoe("run", *arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        report = self.json_of(result)
        self.assertLessEqual(RUN_KEYS, report.keys())
        self.assertIs(report["verified"], True, report)
        self.assertIsNone(report["reason"])
        return report

    def refused(self, arguments, *words):
        """Bad input: exit code 2, and stderr has every word."""
        result = gcmoe(*arguments)
        self.assertEqual(result.returncode, 2, f"{arguments}: {result.stdout}{result.stderr}")
        for word in words:
            self.assertIn(word, result.stderr, arguments)
        self.assertEqual(result.stdout, "", arguments)

    def outputs(self, *arguments):
        """The bytes of --out of a verified run."""
        out = self.path("out.safetensors")
        self.verified(*arguments, "--out", out)
        with open(out, "rb") as file:
            return file.read()


class HelpTest(CommandTest):
    def test_help_of_everything_has_examples(self):
        for words in [[], ["run"], ["check"], ["info"], ["synth"], ["pack"], ["bench"], ["tune"]]:
            result = gcmoe(*words, "--help")
            self.assertEqual(result.returncode, 0, words)
            self.assertIn("Examples:", result.stdout, words)
            self.assertIn("gcmoe " + " ".join(words), result.stdout)

    def test_version(self):
        result = gcmoe("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, r"^gcmoe \d+\.\d+\.\d+ \(\S+\)$")

    def test_unknown_words_suggest_the_nearest(self):
        self.refused(["rnu"], "'rnu'", "gcmoe run")
        self.refused([], "run", "check", "info", "synth")
        self.refused(["run", "--token", "3"], "--token", "--tokens")
        self.refused(["run", *TINY, "--ranks=x"], "--ranks", "x")

    def test_last_of_two_counts(self):
        self.refused(["run", *TINY, "--ranks", "8", "--ranks", "3"], "--ranks 3")
        self.refused(["run", *TINY, "--shared", "--no-shared"], "--shared", "--no-shared")

    def test_parse_error_with_json_still_ends_in_json(self):
        result = gcmoe("run", "--ranks", "x", "--json")
        self.assertEqual(result.returncode, 2)
        report = self.json_of(result)
        self.assertIs(report["verified"], False)
        self.assertIn("--ranks", report["reason"])


class OverwriteTest(CommandTest):
    def test_nothing_that_is_read_is_overwritten(self):
        saved = self.path("in.safetensors")
        self.verified(*TINY, "--ranks", "2", "--tokens", "1", "--save-inputs", saved)
        run = ["run", *TINY, "--ranks", "2"]
        self.refused([*run, "--inputs", saved, "--out", saved], "--out", "--inputs")
        self.refused([*run, "--save-inputs", saved, "--out", saved], "--out", "--save-inputs")
        self.refused([*run, "--out", "/dev/null"], "--out", "/dev/null", "no regular file")

    def test_inputs_with_a_gap_are_refused(self):
        saved = self.path("in.safetensors")
        self.verified(*TINY, "--ranks", "2", "--tokens", "1", "--save-inputs", saved)
        with open(saved, "rb") as file:
            content = file.read()
        with open(saved, "wb") as file:  # names of equal length: the header stays valid
            file.write(content.replace(b"rank1.", b"rank3."))
        self.refused(["run", *TINY, "--inputs", saved], "--inputs", "rank1.x is missing")


class InfoTest(CommandTest):
    def test_json_has_its_keys(self):
        report = self.json_of(gcmoe("info", "--json"))
        for key in ["version", "commit", "backends", "cubins", "cubins_not_run_on_hardware",
                    "devices", "capability"]:
            self.assertIn(key, report)
        self.assertLessEqual(set(report["cubins_not_run_on_hardware"]), set(report["cubins"]))
        cpu = [backend for backend in report["backends"] if backend["name"] == "cpu"]
        self.assertTrue(cpu[0]["available"])
        for backend in report["backends"]:
            if not backend["available"]:
                self.assertTrue(backend["reason"], backend)

    def test_capability_of_a_layer(self):
        report = self.json_of(gcmoe("info", "--model", "v4.1-flash", "--ranks", "8",
                                    "--max-tokens", "64", "--json"))
        capability = report["capability"]
        self.assertTrue(capability["backends"]["cpu"]["can"])
        self.assertEqual(capability["memory_bytes"],
                         sum(region["bytes"] for region in capability["regions"]))
        self.assertIn("combine", [region["name"] for region in capability["regions"]])

    def test_shape_that_no_backend_can(self):
        report = self.json_of(gcmoe("info", "--model", "v4.1-flash", "--inter", "8320", "--json"))
        cpu = report["capability"]["backends"]["cpu"]
        self.assertFalse(cpu["can"])
        self.assertIn("8320", cpu["reason"])

    def test_report_for_people(self):
        result = gcmoe("info", "--model", "gpt-oss-20b", "--max-tokens", "32")
        self.assertEqual(result.returncode, 0, result.stderr)
        for words in ["backend", "processor", "partition", "Memory of one rank", "2944"]:
            self.assertIn(words, result.stdout)

    def test_question_without_a_layer(self):
        self.refused(["info", "--ranks", "8"], "--ranks", "--model")
        self.refused(["info", "--model", "no-such"], "--model", "no-such", "v4.1-flash")

    def test_counts_out_of_range(self):
        info = ["info", "--model", "v4.1-flash"]
        self.refused([*info, "--ranks", "-1", "--max-tokens", "-5"], "--ranks -1")
        self.refused([*info, "--ranks", "0"], "--ranks 0")
        self.refused([*info, "--max-tokens", "-5"], "--max-tokens -5")


class BadInputTest(CommandTest):
    def test_check_looks_at_options_before_it_begins(self):
        missing, file = self.path("missing"), self.path("file")
        with open(file, "w", encoding="ascii"):
            pass
        for option, value in [("--deadline", "-1"), ("--deadline", "2147483648"),
                              ("--dispatch-units", "-1"), ("--compute-units", "-1"),
                              ("--expected", missing), ("--expected", file),
                              ("--dump-expected", file)]:
            with self.subTest(option=option, value=value):
                self.refused(["check", "--case", "v4-flash-t4", option, value],
                             f"{option} {value}" if option != "--deadline" else option)
                result = gcmoe("check", "--case", "v4-flash-t4", option, value)
                self.assertEqual(result.stdout, "")

    def test_the_count_of_experts_has_its_commands_name(self):
        for command in [["pack", "--out", self.path("p")], ["synth", "--out", self.path("s")]]:
            self.refused([*command, "--model", "v4-flash", "--num-experts", "0"],
                         "--num-experts 0")
        self.refused(["run", "--model", "v4-flash", "--experts", "0"], "--experts 0")

    def test_flags_take_no_value(self):
        for flag, value in [("--shared", "false"), ("--shared", "-1"), ("--no-verify", "0"),
                            ("--json", ""), ("--no-overlap", "true"), ("--help", "1")]:
            with self.subTest(flag=flag, value=value):
                self.refused(["run", *TINY, f"{flag}={value}"], f"{flag} {value}".rstrip(),
                             "takes no value")

    def test_layer(self):
        run = ["run"]
        self.refused([*run, "--tokens", "1"], "--model", "--checkpoint")
        self.refused([*run, "--model", "v5"], "--model v5", "v4.1-flash", "glm-5.2")
        self.refused([*run, "--model", "v4-flash", "--ranks", "7"], "--ranks 7", "256")
        self.refused([*run, "--model", "v4-flash", "--reduced", "0"], "--reduced 0")
        self.refused([*run, *TINY, "--hidden", "100"], "--hidden 100", "32")
        self.refused([*run, "--model", "v4-flash", "--experts", "4", "--ranks", "2"], "--topk 6",
                     "4 experts")
        self.refused([*run, *TINY, "--weight-scales", "odd"], "--weight-scales", "odd")
        self.refused([*run, *TINY, "--shared", "--shared-grid", "1x1"], "--shared-grid 1x1",
                     "ue8m0-32x32")
        self.refused([*run, *TINY, "--shared-grid", "ue8m0-32x32"], "--shared-grid", "--shared")
        self.refused([*run, *TINY, "--clamp", "-1"], "--clamp -1", "off")
        self.refused([*run, *TINY, "--activation-scale", "fp8"], "--activation-scale fp8",
                     "ue8m0-k32")
        self.refused([*run, *TINY, "--layer", "3"], "--layer", "--checkpoint")

    def test_checkpoint(self):
        missing = self.path("missing")
        self.refused(["run", "--checkpoint", missing], "--checkpoint", missing)
        self.refused(["run", "--checkpoint", missing, "--model", "v4-flash"], "--checkpoint",
                     "--model")
        self.refused(["run", "--checkpoint", missing, "--reduced", "8"], "--reduced")
        self.refused(["run", "--checkpoint", missing, "--gate-up", "w2"], "--gate-up w2", "w1-w3")

    def test_tokens_and_routing(self):
        run = ["run", *TINY]
        self.refused([*run, "--tokens", "1,2,3"], "--tokens 1,2,3", "3", "2 ranks")
        self.refused([*run, "--tokens", "1,x"], "--tokens 1,x", "'x'")
        self.refused([*run, "--tokens=-4"], "--tokens -4")
        self.refused([*run, "--tokens", "300", "--capacity", "256"], "--tokens 300",
                     "over the capacity of 256")
        self.refused([*run, "--routing", "nearest"], "--routing nearest", "uniform", "zipf:A")
        self.refused([*run, "--routing", "only_expert:8"], "--routing only_expert:8", "0..7")
        self.refused([*run, "--routing", "hot_rank:2:1"], "--routing hot_rank:2:1", "0..1")
        self.refused([*run, "--topk", "1", "--routing", "first_twice"], "first_twice", "--topk")
        self.refused([*run, "--mask", "1.5"], "--mask 1.5", "0..1")

    def test_plan(self):
        run = ["run", *TINY]
        self.refused([*run, "--ring-blocks", "12"], "--ring-blocks", "12", "power of two")
        self.refused([*run, "--row-block", "12"], "--row-block", "12", "multiple of 8")
        self.refused([*run, "--second-columns", "100"], "--second-columns", "100", "128")
        self.refused([*run, "--ring-blocks", "2", "--lead-blocks", "3"], "--lead-blocks", "3")
        self.refused([*run, "--compute-units", "-1"], "--compute-units", "-1")
        self.refused([*run, "--tokens", "64", "--row-block", "8", "--ring-blocks", "2",
                      "--no-overlap"], "--no-overlap", "ring_blocks")
        self.refused([*run, "--ranks", "73", "--experts", "73"], "--ranks", "73", "72")

    def test_words(self):
        run = ["run", *TINY]
        self.refused([*run, "--backend", "tpu"], "--backend tpu", "cpu")
        self.refused([*run, "--backend", "cuda"], "--backend cuda")
        self.refused([*run, "--executor", "fibers"], "--executor fibers", "stepper")
        self.refused([*run, "--index-type", "int16"], "--index-type int16", "int32")
        self.refused([*run, "--launches", "0"], "--launches 0")
        self.refused([*run, "--executor-seed", "1"], "--executor-seed", "--executor stepper")
        self.refused([*run, "--deadline", "-1"], "--deadline -1")
        self.refused([*run, "--deadline", "2147483648"], "--deadline 2147483648")
        self.refused([*run, "--out", self.path("no/such/folder/y")], "--out", "no/such/folder")

    def test_inexact_weights(self):
        # All codes of a K128 fit a window; 28 octaves do not.
        spread = ["--weight-scales", "span_per_k128:40;span_per_expert:40"]
        self.refused(["run", *TINY, *spread], "expert", "--allow-inexact")


class RunTest(CommandTest):
    def test_report_ends_in_verified(self):
        result = gcmoe("run", *TINY, "--tokens", "5")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.split()[-1], "verified")
        self.assertEqual(result.stderr, "")
        for words in ["v4.1-flash", "2 ranks", "5 a rank", "role 1", "role 2", "role 3", "overlap",
                      "laps", "error:"]:
            self.assertIn(words, result.stdout)

    def test_json(self):
        report = self.verified(*TINY, "--tokens", "4,0")
        self.assertEqual(report["tokens"], 4)
        self.assertEqual(report["ranks"], 2)
        self.assertEqual(report["slots"], 12)
        self.assertEqual(sum(report["expert_rows"]), 12)
        touched = sum(1 for rows in report["expert_rows"] if rows > 0)
        self.assertEqual(report["experts_touched"], touched)
        self.assertLess(report["worst_rel_l2"], 1e-2)
        self.assertGreater(report["min_cosine"], 0.99995)

    def test_no_verify_says_so(self):
        result = gcmoe("run", *TINY, "--tokens", "1", "--no-verify", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = self.json_of(result)
        self.assertIs(report["verified"], False)
        self.assertIn("--no-verify", report["reason"])
        self.assertIsNone(report["worst_rel_l2"])

    def test_no_tokens_and_all_masked(self):
        report = self.verified(*TINY, "--tokens", "0")
        self.assertIsNone(report["worst_rel_l2"])
        self.assertEqual(report["experts_touched"], 0)
        out = self.path("y")
        self.verified(*TINY, "--tokens", "2", "--mask", "1", "--out", out)
        dtype, shape, data = st.read(out)["rank1.y"]
        self.assertEqual((dtype, shape), ("BF16", [2, 256]))
        self.assertEqual(data, bytes(2 * 2 * 256))

    def test_routings(self):
        self.verified(*TINY, "--tokens", "9", "--mask", "0.5", "--seed", "3")
        report = self.verified(*TINY, "--tokens", "9", "--routing", "only_expert:5")
        self.assertEqual(report["expert_rows"], [0, 0, 0, 0, 0, 18, 0, 0])
        report = self.verified(*TINY, "--tokens", "9", "--routing", "only_rank:1")
        self.assertEqual(report["expert_rows"][:4], [0, 0, 0, 0])
        self.verified(*TINY, "--tokens", "9", "--routing", "first_twice")
        self.verified(*TINY, "--tokens", "9", "--routing", "zipf:1.2")
        self.verified(*TINY, "--tokens", "9", "--topk", "2", "--routing", "hot_rank:1:1.5")

    def test_forms_of_a_layer(self):
        self.verified(*TINY, "--tokens", "3", "--shared")
        self.verified(*TINY, "--tokens", "3", "--shared-inter", "256", "--shared-grid",
                      "ue8m0-1x32")
        self.verified(*TINY, "--tokens", "3", "--activation-scale", "ue8m0-k32")
        self.verified(*TINY, "--tokens", "3", "--clamp", "off", "--alpha", "1.7", "--beta", "1")
        self.verified(*TINY, "--tokens", "3", "--weight-scales",
                      "span_per_k128:14;span_per_expert:60")

    def test_2880_wide_is_padded(self):
        out = self.path("y")
        report = self.verified("--model", "gpt-oss-20b", "--hidden", "352", "--inter", "160",
                               "--experts", "8", "--ranks", "2", "--tokens", "3", "--out", out)
        self.assertEqual(report["model"]["hidden"], 352)
        dtype, shape, data = st.read(out)["rank0.y"]
        self.assertEqual((dtype, shape, len(data)), ("BF16", [3, 352], 3 * 352 * 2))

    def test_inexact_weights_are_counted(self):
        result = gcmoe("run", *TINY, "--tokens", "2", "--weight-scales",
                       "span_per_k128:40;span_per_expert:40", "--allow-inexact", "--json")
        # Judged against the original: what is rounded lies 27 octaves below a row's largest weight.
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(self.json_of(result)["changed_values"], 0)

    def test_stall_is_described(self):
        # The stepper polls without a pause: a nanosecond is over before the first block is full.
        result = gcmoe("run", *TINY, "--tokens", "64", "--deadline", "1e-9", "--executor",
                       "stepper", "--json")
        self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
        self.assertRegex(result.stderr, r"rank \d, role \d .*expected .*seen")
        report = self.json_of(result)
        self.assertEqual(report["error"], "stalled")
        self.assertIs(report["verified"], False)

    def test_progress_goes_to_stderr(self):
        result = gcmoe("run", "--model", "v4.1-flash", "--reduced", "4", "--tokens", "2",
                       "--progress", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.json_of(result)
        self.assertRegex(result.stderr, r"(?m)^packing experts: 1/\d+$")
        for line in result.stderr.splitlines():
            self.assertRegex(line, r"^[a-z ]+: \d+/\d+")


class SameBytesTest(CommandTest):
    """The bytes of y do not depend on how the launch ran."""

    def test_same_bytes(self):
        layer = ["--model", "v4.1-flash", "--hidden", "256", "--inter", "256", "--experts", "8",
                 "--topk", "2", "--tokens", "20"]
        base = ["--ranks", "2", "--row-block", "8"]
        first = self.outputs(*layer, *base)
        for change in [
            ["--executor", "stepper", "--executor-seed", "1"],
            ["--executor", "stepper", "--executor-seed", "2", "--resident-units", "1"],
            ["--launches", "3"],
            ["--no-overlap"],
            ["--ring-blocks", "2"],
            ["--second-columns", "128", "--lead-blocks", "1"],
            ["--dispatch-units", "2", "--compute-units", "3"],
            ["--index-type", "int32"],
            ["--capacity", "33"],
        ]:
            self.assertEqual(self.outputs(*layer, *base, *change), first, change)
        self.assertEqual(self.outputs(*layer, "--ranks", "2", "--row-block", "32"), first)


class FilesTest(CommandTest):
    def test_saved_inputs_give_the_same_bytes(self):
        for extra in [[], ["--activation-scale", "ue8m0-k32"], ["--index-type", "int32"],
                      ["--hidden", "288"]]:
            saved = self.path("inputs")
            again = self.path("again")
            layer = [*TINY, *extra]
            first = self.outputs(*layer, "--tokens", "3,2", "--mask", "0.3", "--save-inputs", saved)
            second = self.outputs(*layer, "--inputs", saved, "--save-inputs", again)
            self.assertEqual(first, second, extra)
            with open(saved, "rb") as one, open(again, "rb") as two:
                self.assertEqual(one.read(), two.read(), extra)

    def inputs(self, num_tokens, ids, dtype="I64"):
        """Inputs of all ranks together, BF16."""
        pack = st.int64s if dtype == "I64" else st.int32s
        values = [((token * 7 + column * 3) % 16 - 8) / 8 for token in range(num_tokens)
                  for column in range(256)]
        return {
            "topk_idx": (dtype, [num_tokens, 3], pack(ids)),
            "topk_weights": ("F32", [num_tokens, 3], st.floats([0.5] * len(ids))),
            "x": ("BF16", [num_tokens, 256], st.bf16s(values)),
        }

    def test_inputs_without_prefix_are_split(self):
        path = self.path("inputs")
        out = self.path("y")
        ids = [0, 1, 2, 3, 4, 5, 6, 7, -1]
        st.write(path, self.inputs(3, ids))
        report = self.verified(*TINY, "--inputs", path, "--out", out)
        self.assertEqual(report["tokens"], 3)
        self.assertEqual(report["expert_rows"], [1] * 8)
        outputs = st.read(out)
        self.assertEqual(outputs["rank0.y"][1], [2, 256])
        self.assertEqual(outputs["rank1.y"][1], [1, 256])
        one = self.path("one")
        st.write(path, self.inputs(3, ids, "I32"))
        self.verified(*TINY, "--inputs", path, "--ranks", "1", "--out", one)
        self.assertEqual(st.read(one)["rank0.y"][2],
                         outputs["rank0.y"][2] + outputs["rank1.y"][2])

    def test_negative_ids_are_unused_in_both_widths(self):
        path = self.path("inputs")
        st.write(path, self.inputs(1, [-(1 << 40), 5, -7]))
        for index_type in ["int32", "int64"]:
            report = self.verified(*TINY, "--inputs", path, "--index-type", index_type)
            self.assertEqual(report["expert_rows"], [0, 0, 0, 0, 0, 1, 0, 0])

    def test_ranks_come_from_the_file(self):
        path = self.path("inputs")
        self.verified(*TINY, "--ranks", "4", "--tokens", "1", "--save-inputs", path)
        layer = TINY[: TINY.index("--ranks")]
        self.assertEqual(self.verified(*layer, "--inputs", path)["ranks"], 4)
        self.refused(["run", *TINY, "--inputs", path], "--inputs", "4 ranks", "--ranks is 2")

    def test_bad_input_files(self):
        path = self.path("inputs")
        run = ["run", *TINY, "--inputs", path]
        self.refused(run, "--inputs", path)
        good = self.inputs(2, [0, 1, 2, 3, 4, 5])
        self.refused([*run, "--tokens", "2"], "--inputs", "--tokens")
        st.write(path, self.inputs(2, [0, 1, 2, 3, 99, 5]))
        self.refused(run, "--inputs", "token 1", "slot 1", "99", "0..7")
        st.write(path, {**good, "topk_weights": ("F32", [2, 2], st.floats([1.0] * 4))})
        self.refused(run, "topk_weights", "[2, 2]", "[2, 3]")
        st.write(path, {**good, "x": ("F16", [2, 256], bytes(1024))})
        self.refused(run, "'x'", "F16", "BF16")
        st.write(path, {**good, "x": ("F8_E4M3", [2, 256], bytes(512))})
        self.refused(run, "x_scale", "missing")
        scaled = {**good, "x": ("F8_E4M3", [2, 256], bytes(512)),
                  "x_scale": ("F32", [2, 8], st.floats([1.0] * 15 + [0.75]))}
        st.write(path, scaled)
        self.refused([*run, "--activation-scale", "ue8m0-k32"], "x_scale", "0.75", "power of two")
        st.write(path, {**good, "x": ("BF16", [1 << 40, 0], b"")})
        self.refused(run, "'x'", str(1 << 40), "256]")
        st.write(path, {"y": ("F32", [1], st.floats([1.0]))})
        self.refused(run, "rank0.x")
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", 1 << 40))
        self.refused(run, "--inputs", path)

    def test_more_tokens_than_a_rank_may_have(self):
        path = self.path("inputs")
        rows = 1 << 24
        header = json.dumps({"rank0.x": {"dtype": "F8_E4M3", "shape": [rows, 32],
                                         "data_offsets": [0, rows * 32]}}).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + rows * 32)  # a hole, no blocks on the disk
        self.refused(["run", *TINY, "--hidden", "32", "--ranks", "1", "--inputs", path],
                     "rank0.x", str(rows), str(rows - 1))

    def test_float_scales_that_are_powers_of_two(self):
        path = self.path("inputs")
        tensors = self.inputs(2, [0, 1, 2, 3, 4, 5])
        tensors["x"] = ("F8_E4M3", [2, 256], bytes([0x38]) * 512)
        tensors["x_scale"] = ("F32", [2, 8], st.floats([0.5] * 16))
        st.write(path, tensors)
        self.verified(*TINY, "--inputs", path, "--activation-scale", "ue8m0-k32")


class SynthTest(CommandTest):
    LAYER = ["--model", "v4.1-flash", "--hidden", "256", "--inter", "128", "--topk", "3"]

    def synth(self, folder, *arguments):
        result = gcmoe("synth", "--out", folder, *self.LAYER, "--num-experts", "8", *arguments,
                       "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.json_of(result)

    def test_checkpoint_gives_the_bytes_of_the_generator(self):
        run = ["--ranks", "2", "--tokens", "4"]
        generated = self.outputs(*self.LAYER, "--experts", "8", "--shared", *run)
        for arguments in [["--layout", "v4.1"], ["--layout", "v4", "--shard-mib", "1"],
                          ["--layer", "5"]]:
            folder = self.path("layer" + arguments[-1])
            report = self.synth(folder, *arguments)
            self.assertEqual(report["experts"], 8)
            layer = arguments[1] if arguments[0] == "--layer" else "0"
            from_file = ["--checkpoint", folder, "--layer", layer, *run]
            self.assertEqual(self.outputs(*from_file), generated, arguments)
            swapped = self.outputs(*from_file, "--gate-up", "w3-w1")
            self.assertNotEqual(swapped, generated)

    def test_without_shared_expert(self):
        folder = self.path("layer")
        self.assertEqual(self.synth(folder, "--no-shared")["shared_inter"], 0)
        report = self.verified("--checkpoint", folder, "--ranks", "2", "--tokens", "1")
        self.assertEqual(report["model"]["shared_inter"], 0)
        self.refused(["run", "--checkpoint", folder, "--ranks", "2", "--shared"], "--shared")
        self.refused(["run", "--checkpoint", folder, "--layer", "1"], "--checkpoint", "layer 1")

    def test_some_experts(self):
        folder = self.path("layer")
        self.assertEqual(self.synth(folder, "--experts", "0-3,6")["experts"], 5)
        run = ["--checkpoint", folder, "--ranks", "2"]
        self.verified(*run, "--tokens", "3", "--routing", "only_expert:6")
        self.refused(["run", *run, "--tokens", "16"], "--checkpoint", "5 of 8 experts", "--inputs")

    def test_target_that_is_not_empty(self):
        folder = self.path("layer")
        self.synth(folder)
        arguments = ["synth", "--out", folder, *self.LAYER, "--num-experts", "8"]
        self.refused(arguments, "--out", folder, "--force")
        self.synth(folder, "--force", "--shard-mib", "1")
        self.verified("--checkpoint", folder, "--ranks", "1", "--tokens", "1")
        other = self.path("other")
        os.mkdir(other)
        for name in ["config.json", "model.safetensors"]:
            with open(os.path.join(other, name), "w", encoding="ascii") as file:
                file.write("{}")
        self.refused(["synth", "--out", other, *self.LAYER, "--force"], other)
        self.assertEqual(sorted(os.listdir(other)), ["config.json", "model.safetensors"])

    def test_bad_options(self):
        folder = self.path("layer")
        synth = ["synth", "--out", folder, *self.LAYER, "--num-experts", "8"]
        self.refused(["synth", *self.LAYER], "--out")
        self.refused(["synth", "--out", folder], "--model")
        self.refused([*synth, "--experts", "0-9"], "--experts 0-9", "0..7")
        self.refused([*synth, "--experts", "a"], "--experts a")
        self.refused([*synth, "--layout", "v5"], "--layout v5", "v4.1", "gpt-oss")
        self.refused([*synth, "--layout", "w13", "--experts", "0-3"], "--experts 0-3", "w13")
        self.refused([*synth, "--layer", "-1"], "--layer -1")
        self.assertFalse(os.path.exists(folder))


if __name__ == "__main__":
    COMMAND = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
