#!/usr/bin/env python3
"""Checkpoints of every layout, from outside. Usage: checkpoint_test.py PATH_OF_GCMOE"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
import unittest

import command_test
import safetensors_io as st
from command_test import CommandTest, gcmoe


def no_core_file():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def small_files_only():
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))


class LayoutTest(CommandTest):
    """A checkpoint of each layout, read by run."""

    LAYER = ["--model", "v4-flash", "--hidden", "256", "--inter", "128", "--topk", "3"]
    RUN = ["--ranks", "2", "--tokens", "4"]

    def synth(self, layout, *layer):
        folder = self.path(layout)
        layer = layer or [*self.LAYER, "--num-experts", "8"]
        result = gcmoe("synth", "--out", folder, *layer, "--layout", layout, "--layer", "3")
        self.assertEqual(result.returncode, 0, result.stderr)
        return ["--checkpoint", folder, "--layer", "3"]

    def test_stacked_halves_give_the_bytes_of_the_generator(self):
        generated = self.outputs(*self.LAYER, "--experts", "8", "--shared", *self.RUN)
        for layout, order, other in [("w13", "w1-w3", "w3-w1"), ("w31", "w3-w1", "w1-w3")]:
            layer = self.synth(layout)
            self.assertEqual(self.outputs(*layer, "--gate-up", order, *self.RUN), generated)
            self.assertNotEqual(self.outputs(*layer, "--gate-up", other, *self.RUN), generated)
            self.refused(["run", *layer, *self.RUN], "w13_weight", "--gate-up w1-w3")

    def test_gpt_oss_with_biases_and_padding(self):
        model = ["--model", "gpt-oss-20b", "--hidden", "288", "--inter", "160"]
        layer = self.synth("gpt-oss", *model, "--num-experts", "8")
        generated = self.outputs(*model, "--experts", "8", *self.RUN)
        self.assertEqual(self.outputs(*layer, *self.RUN), generated)
        self.assertIn("biases", gcmoe("run", *layer, *self.RUN).stdout)
        without_limit = self.outputs(*layer, *self.RUN, "--clamp", "off", "--alpha", "1")
        self.assertNotEqual(without_limit, generated)
        self.refused(["run", *layer, *self.RUN, "--gate-up", "w1-w3"], "--gate-up w1-w3", "gpt-oss")

    def test_wide_experts_are_quantised_on_demand(self):
        for layout, word in [("v3", "FP8"), ("bf16", "BF16")]:
            layer = self.synth(layout)
            self.refused(["run", *layer, *self.RUN], "--checkpoint", word, "--quantize mxfp4")
            self.refused(["run", *layer, "--quantize", "nvfp4"], "--quantize nvfp4")
            report = self.verified(*layer, *self.RUN, "--quantize", "mxfp4")
            errors = report["quantised"]
            self.assertLessEqual({"gate", "up", "down"}, errors.keys())
            self.assertEqual("shared_down" in errors, layout == "bf16")
            self.assertEqual(errors["gate"]["matrices"], report["experts_touched"])
            self.assertLess(0.05, errors["down"]["relative_l2"])
            self.assertLess(errors["down"]["relative_l2"], 0.15)
            people = gcmoe("run", *layer, *self.RUN, "--quantize", "mxfp4").stdout
            self.assertIn("to MXFP4: relative L2 0.", people)


class PackTest(CommandTest):
    """gcmoe pack, and run --packed."""

    SYNTH = ["--model", "v4.1-flash", "--hidden", "256", "--inter", "128", "--topk", "3",
             "--num-experts", "8"]
    RANKS = 2

    def synth(self, *arguments):
        folder = self.path("layer")
        result = gcmoe("synth", "--out", folder, *self.SYNTH, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return ["--checkpoint", folder]

    def pack(self, name, *arguments):
        result = gcmoe("pack", *arguments, "--ranks", str(self.RANKS), "--out", self.path(name),
                       "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.json_of(result)

    def pack_all(self, *arguments):
        """One file per rank, last rank first."""
        files = []
        for rank in reversed(range(self.RANKS)):
            self.pack(f"rank{rank}", *arguments, "--rank", str(rank), "--verify")
            files.append(self.path(f"rank{rank}"))
        return files

    def test_packed_files_give_the_bytes_of_the_checkpoint(self):
        for layout, options in [("v4.1", []), ("v3", ["--quantize", "mxfp4"]),
                                ("w31", ["--gate-up", "w3-w1"])]:
            layer = [*self.synth("--layout", layout, "--force"), *options]
            files = self.pack_all(*layer)
            run = ["--tokens", "4"]
            expected = self.outputs(*layer, "--ranks", "2", *run)
            self.assertEqual(self.outputs("--packed", *files, *run), expected, layout)
            blackwell = ["--activation-scale", "ue8m0-k32"]
            files = self.pack_all(*layer, *blackwell)
            expected = self.outputs(*layer, *blackwell, "--ranks", "2", *run)
            self.assertEqual(self.outputs("--packed", *files, *run), expected, layout)

    def test_gpt_oss_keeps_padding_biases_and_activation(self):
        folder = self.path("oss")
        model = ["--model", "gpt-oss-20b", "--hidden", "288", "--inter", "160"]
        result = gcmoe("synth", "--out", folder, *model, "--num-experts", "8")
        self.assertEqual(result.returncode, 0, result.stderr)
        files = self.pack_all("--checkpoint", folder)
        expected = self.outputs("--checkpoint", folder, "--ranks", "2", "--tokens", "5")
        self.assertEqual(self.outputs("--packed", *files, "--tokens", "5"), expected)
        report = self.verified("--packed", *files, "--tokens", "5")
        self.assertEqual(report["model"]["hidden"], 288)

    def test_json_and_report(self):
        layer = self.synth("--layout", "v3")
        report = self.pack("p", *layer, "--rank", "1", "--quantize", "mxfp4", "--verify")
        self.assertEqual([report[key] for key in ("rank", "ranks", "layout", "stored", "experts")],
                         [1, 2, "huggingface", "FP8", 4])
        self.assertEqual(report["file_bytes"], os.path.getsize(self.path("p")))
        self.assertEqual(report["quantised"]["up"]["matrices"], 4)
        self.assertIs(report["read_back"], True)
        again = self.pack("q", *layer, "--rank", "1", "--quantize", "mxfp4")
        self.assertEqual(again["hash"], report["hash"])
        with open(self.path("p"), "rb") as left, open(self.path("q"), "rb") as right:
            self.assertEqual(left.read(), right.read())
        people = gcmoe("pack", *layer, "--quantize", "mxfp4", "--out", self.path("p")).stdout
        for words in ["rank 0 of 1, 8 experts for sm90", "relative L2 0.", "hash"]:
            self.assertIn(words, people)

    def test_some_experts(self):
        layer = self.synth()
        self.pack("rank0", *layer, "--rank", "0")
        report = self.pack("rank1", *layer, "--rank", "1", "--experts", "5,7")
        self.assertEqual(report["experts"], 2)
        run = ["--packed", self.path("rank0"), self.path("rank1")]
        self.verified(*run, "--tokens", "2", "--routing", "only_expert:7")
        self.refused(["run", *run, "--tokens", "2", "--routing", "only_expert:6"],
                     "--packed", "6 of 8 experts", "not expert 6")
        self.refused(["pack", *layer, "--ranks", "2", "--rank", "1", "--experts", "3-5", "--out",
                      self.path("x")], "--experts 3-5", "expert 3 belongs to rank 0", "4..7")

    def test_files_of_two_layers_do_not_run_together(self):
        layer = self.synth()
        first = self.pack("rank0", *layer, "--rank", "0")
        run = ["run", "--tokens", "1", "--packed", self.path("rank0")]
        for name, arguments in [("next", ["--layer", "1"]), ("other", ["--weight-scales",
                                                                       "rows_of_codes:100"])]:
            folder = self.path(name)
            result = gcmoe("synth", "--out", folder, *self.SYNTH, *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.set_weight_scales(folder, "normal")  # as if another model had equal shapes
            layer = [] if name == "other" else arguments
            report = self.pack(name + "1", "--checkpoint", folder, *layer, "--rank", "1")
            self.assertNotEqual(report["fingerprint"], first["fingerprint"])
            self.refused([*run, self.path(name + "1")], "--packed " + self.path(name + "1"),
                         f"is of layer {report['layer']} of", report["fingerprint"],
                         f"{self.path('rank0')} is of layer 0 of", first["fingerprint"])

    @staticmethod
    def set_weight_scales(folder, rule):
        path = os.path.join(folder, "config.json")
        with open(path) as file:
            config = json.load(file)
        config["gcmoe_weight_scales"] = rule
        with open(path, "w") as file:
            json.dump(config, file)

    def test_a_checkpoint_in_other_shards_is_the_same_layer(self):
        self.pack("rank0", *self.synth(), "--rank", "0")
        shards = self.synth("--shard-mib", "1", "--force")
        self.assertTrue(os.path.exists(os.path.join(shards[1], "model.safetensors.index.json")))
        self.pack("rank1", *shards, "--rank", "1")
        self.verified("--packed", self.path("rank0"), self.path("rank1"), "--tokens", "2")

    def test_spawn_takes_the_number_of_ranks_from_the_files(self):
        files = self.pack_all(*self.synth())
        self.verified("--packed", *files, "--tokens", "2", "--spawn")
        self.refused(["run", "--packed", files[0], "--tokens", "2", "--spawn"],
                     "no file is for rank 0")

    def test_sm100_is_a_layout_only(self):
        layer = self.synth()
        report = self.pack("s", *layer, "--rank", "0", "--target", "sm100", "--verify")
        self.assertEqual(report["target"], "sm100")
        self.refused(["run", "--packed", self.path("s")], "--packed", "sm100", "layout only")

    def test_spread_scales_round_only_with_leave(self):
        layer = self.synth("--weight-scales", "span_per_k128:40;span_per_expert:60", "--no-shared")
        pack = ["pack", *layer, "--ranks", "2", "--rank", "0", "--out", self.path("p")]
        self.refused(pack, "octaves", "--allow-inexact")
        self.assertFalse(os.path.exists(self.path("p")))
        self.refused([*pack, "--allow-inexact", "--verify"], "--verify")
        report = self.pack("p", *layer, "--rank", "0", "--allow-inexact")
        self.assertGreater(report["changed_values"], 0)
        exact = self.pack("s", *layer, "--rank", "0", "--target", "sm100", "--verify")
        self.assertEqual(exact["changed_values"], 0)

    def test_bad_options(self):
        layer = self.synth()
        pack = ["pack", *layer, "--ranks", "2"]
        out = ["--out", self.path("p")]
        self.refused([*pack, "--rank", "0"], "--out", "missing")
        self.refused([*pack, *out], "--rank", "which of the 2 ranks")
        self.refused([*pack, *out, "--rank", "2"], "--rank 2", "0..1")
        self.refused([*pack, *out, "--rank", "0", "--target", "sm80"], "--target sm80")
        self.refused([*pack, "--rank", "0", "--out", os.path.join(layer[1], "p")],
                     "checkpoint's folder")
        self.refused(["pack", *layer, *out, "--ranks", "3", "--rank", "0"], "--ranks 3")
        self.refused([*pack, *out, "--rank", "0", "--gate-up", "x"], "--gate-up x")
        self.refused(["pack", *out], "--checkpoint")
        self.assertFalse(os.path.exists(self.path("p")))

    def test_bad_packed_files(self):
        layer = self.synth()
        files = self.pack_all(*layer)
        run = ["run", "--tokens", "1", "--packed"]
        self.refused([*run, files[0]], "no file is for rank 0")
        self.refused([*run, files[0], *files], "is for rank 1, as is")
        self.refused([*run, *files, "--ranks", "4"], "--ranks 4", "are for 2")
        self.refused([*run, *files, "--model", "v4-flash"], "--packed", "--model")
        self.refused([*run, *files, "--clamp", "3"], "--packed", "--clamp")
        self.refused([*run, *files, "--out", files[0]], "--out", "would overwrite --packed")
        self.refused([*run, files[0], os.path.join(layer[1], "config.json")], "no packed file")
        old = self.path("old")
        with open(files[1], "rb") as file:
            content = bytearray(file.read())
        content[8] = 1  # the version
        with open(old, "wb") as file:
            file.write(content)
        self.refused([*run, files[0], old], "--packed " + old, "version = 1, needs 2",
                     "pack the checkpoint again")
        other = self.path("other")
        result = gcmoe("pack", *layer, "--no-shared", "--ranks", "2", "--rank", "0", "--out", other)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.refused([*run, files[0], other], "--packed " + other, "shared_inter = 0")
        with open(files[0], "r+b") as file:
            file.seek(5000)
            byte = file.read(1)
            file.seek(5000)
            file.write(bytes([byte[0] ^ 4]))
        self.refused([*run, *files], files[0], "damaged")
        os.truncate(files[1], 3000)
        self.refused([*run, *files], files[1], "cut off")


class CancellingTest(CommandTest):
    def test_sums_that_cancel_are_judged_by_what_they_may_be_off(self):
        path = self.path("x.safetensors")
        tokens = 4
        st.write(path, {"x": ("F32", [tokens, 256], st.floats([1e10] * 256 * tokens)),
                        "topk_idx": ("I64", [tokens, 3], st.int64s([0, 1, 2, 3, 4, 5] * 2)),
                        "topk_weights": ("F32", [tokens, 3], st.floats([0.5] * 3 * tokens))})
        run = ["--model", "v4.1-flash", "--hidden", "256", "--inter", "128", "--experts", "8",
               "--topk", "3", "--ranks", "2", "--inputs", path]
        self.assertGreater(self.verified(*run, "--clamp", "10")["worst_rel_l2"], 0.01)
        self.assertIn("sums cancel", gcmoe("run", *run, "--clamp", "10").stdout)
        self.assertLess(self.verified(*run, "--clamp", "off")["worst_rel_l2"], 0.001)


class InterruptTest(CommandTest):
    """Signals in the middle of files that are being written."""

    LAYER = ["--model", "v4.1-flash", "--reduced", "4"]
    SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]

    def interrupted(self, number, writes, *arguments):
        """Sends the signal once writes() sees the file."""
        with subprocess.Popen([command_test.COMMAND, *arguments], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True,
                              preexec_fn=no_core_file) as process:
            end = time.monotonic() + 60
            while not writes() and process.poll() is None and time.monotonic() < end:
                time.sleep(0.001)
            self.assertIsNone(process.poll(), "was over before the signal")
            process.send_signal(number)
            error = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, -number, error)
        self.assertNotIn("bug", error)

    def partials(self):
        return [name for _, folders, files in os.walk(self.path(""))
                for name in folders + files if "partial" in name]

    def test_a_limit_of_file_sizes_is_an_error_like_another(self):
        layer = LayoutTest.LAYER
        run = [*layer, "--experts", "8", "--ranks", "1", "--tokens", "300"]
        for command in [["pack", *layer, "--num-experts", "8"],
                        ["synth", *layer, "--num-experts", "8"],
                        ["run", *run]]:
            with self.subTest(command=command[0]):
                result = subprocess.run(
                    [command_test.COMMAND, *command, "--out", self.path("out")], check=False,
                    capture_output=True, text=True, timeout=60, preexec_fn=small_files_only)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("File too large", result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertEqual(os.listdir(self.path("")), [])

    def test_synth_leaves_nothing_and_pack_neither(self):
        folder = self.path("new")
        for number in self.SIGNALS:
            self.interrupted(number, self.partials, "synth", "--out", folder, *self.LAYER)
            self.assertFalse(os.path.exists(folder), number)
        result = gcmoe("synth", "--out", folder, *self.LAYER)
        self.assertEqual(result.returncode, 0, result.stderr)
        out = self.path("packed")
        with open(out, "w", encoding="ascii") as file:
            file.write("what stood there")
        for number in self.SIGNALS:
            self.interrupted(number, self.partials, "pack", "--checkpoint", folder, "--out", out,
                             "--verify")
            self.assertEqual(self.partials(), [], number)
            with open(out, encoding="ascii") as file:
                self.assertEqual(file.read(), "what stood there")

    def test_synth_force_keeps_the_old_checkpoint_until_the_new_one_is_whole(self):
        folder = self.path("layer")
        small = ["--model", "v4.1-flash", "--reduced", "8"]
        result = gcmoe("synth", "--out", folder, *small)
        self.assertEqual(result.returncode, 0, result.stderr)
        before = sorted(os.listdir(folder))
        for number in self.SIGNALS:
            self.interrupted(number, self.partials, "synth", "--out", folder, *self.LAYER,
                             "--force")
            self.assertEqual(sorted(os.listdir(folder)), before)
        self.verified("--checkpoint", folder, "--ranks", "8", "--tokens", "2")


if __name__ == "__main__":
    command_test.COMMAND = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
