#!/usr/bin/env python3
"""Checkpoints of every layout, from outside. Usage: checkpoint_test.py PATH_OF_GCMOE"""

import os
import sys
import unittest

import command_test
from command_test import CommandTest, gcmoe


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


if __name__ == "__main__":
    command_test.COMMAND = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
