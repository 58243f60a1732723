#!/usr/bin/env python3
"""Writes checkpoints of every layout with `gcmoe synth`, runs them with `gcmoe run`, and recomputes
every rank's output in numpy (oracle.py). Exit codes: 0 all near, 1 a rank is not, 2 the command
failed, 77 numpy or ml_dtypes is missing (a skip for ctest).
"""

import argparse
import os
import subprocess
import sys
import tempfile

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VENV_PYTHON = os.path.join(REPOSITORY, "build", "venv", "bin", "python")
SKIP = 77

try:
    import checkpoint_oracle
    import oracle
except ImportError as missing:
    if os.path.exists(VENV_PYTHON) and os.path.realpath(sys.prefix) != os.path.realpath(
        os.path.dirname(os.path.dirname(VENV_PYTHON))
    ):
        os.execv(VENV_PYTHON, [VENV_PYTHON] + sys.argv)
    print(f"skipped: {missing} (./dev puts numpy and ml_dtypes into build/venv)")
    sys.exit(SKIP)

RANKS = 8
# name, options of `gcmoe synth`, options of `gcmoe run`
CASES = [
    ("routed, V4 layout", ["--model", "v4-flash", "--reduced", "8", "--no-shared"],
     ["--tokens", "5"]),
    ("shared, V4.1 layout, 32x32", ["--model", "v4.1-flash", "--reduced", "8", "--shared"],
     ["--tokens", "6"]),
    ("masked, uneven tokens", ["--model", "v4-flash", "--reduced", "8", "--no-shared"],
     ["--tokens", "3,17,7,1,9,2,4,5", "--mask", "0.4"]),
    ("gpt-oss: clamp, alpha, beta, biases", ["--model", "gpt-oss-120b", "--reduced", "8"],
     ["--tokens", "4"]),
    ("ranks without tokens, FP32 grid",
     ["--model", "v4.1-flash", "--reduced", "8", "--shared", "--shared-grid", "fp32-128x128"],
     ["--tokens", "4,0,4,0,0,12,4,4", "--mask", "0.2"]),
    ("block FP8, quantised",
     ["--model", "glm-5.2", "--reduced", "8", "--shared", "--layout", "v3"],
     ["--tokens", "3", "--quantize", "mxfp4"]),
    ("BF16, quantised", ["--model", "glm-5.2", "--reduced", "8", "--shared", "--layout", "bf16"],
     ["--tokens", "3", "--quantize", "mxfp4"]),
    ("w13, gate first", ["--model", "v4-flash", "--reduced", "8", "--shared", "--layout", "w13"],
     ["--tokens", "3", "--gate-up", "w1-w3"]),
    ("w13, up first", ["--model", "v4-flash", "--reduced", "8", "--shared", "--layout", "w31"],
     ["--tokens", "3", "--gate-up", "w3-w1"]),
]


def call(command):
    """Runs the command; its output only shows if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"failed with {done.returncode}: {' '.join(command)}\n{done.stdout}{done.stderr}")
        sys.exit(2)


def judge(layer, inputs, outputs):
    """Prints a line per failing rank. -> (worst relative L2, least cosine, failed ranks)."""
    worst, least, failed = 0.0, 1.0, 0
    for rank in range(RANKS):
        own = oracle.rank_inputs(inputs, rank)
        seen = outputs[f"rank{rank}.y"]
        wanted = layer.run(own)
        assert seen.shape == wanted.shape, (rank, seen.shape, wanted.shape)
        rel_l2, cosine = oracle.compare(seen, wanted)
        worst, least = max(worst, rel_l2), min(least, cosine)
        if not oracle.is_near(rel_l2, cosine):
            failed += 1
            print(f"  rank {rank}: relative L2 {rel_l2:.3g}, cosine {cosine:.7f}")
        if seen.size > 0 and oracle.is_near(*oracle.compare(seen * 1.02, wanted)):
            failed += 1
            print(f"  rank {rank}: an output 2 % too large passed")
    return worst, least, failed


def run_case(command, folder, case):
    name, synth, run = case
    checkpoint = os.path.join(folder, "checkpoint")
    inputs = os.path.join(folder, "inputs.safetensors")
    outputs = os.path.join(folder, "outputs.safetensors")
    call([command, "synth", "--out", checkpoint] + synth)
    call([command, "run", "--checkpoint", checkpoint, "--ranks", str(RANKS), "--no-verify",
          "--save-inputs", inputs, "--out", outputs] + run)
    layer = oracle.Layer(checkpoint, up_first="w3-w1" in run)
    worst, least, failed = judge(layer, checkpoint_oracle.read_safetensors(inputs),
                                 checkpoint_oracle.read_safetensors(outputs))
    verdict = "ok" if failed == 0 else "FAIL"
    print(f"{name}: {RANKS} ranks, worst relative L2 {worst:.2e}, "
          f"least cosine {least:.9f}: {verdict}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--command", required=True, help="path of gcmoe")
    arguments = parser.parse_args()
    failed = 0
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            failed += run_case(arguments.command, folder, case)
    sys.exit(1 if failed > 0 else 0)


if __name__ == "__main__":
    main()
