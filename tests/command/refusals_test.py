#!/usr/bin/env python3
"""The command's half of docs/refusals.md: every row is run, and says what the table says.

Usage: refusals_test.py PATH_OF_GCMOE PATH_OF_REFUSALS_MD [--write]
--write puts what the command says now into the table."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile

import safetensors_io as st

BEGIN = "<!-- command: written by tests/command/refusals_test.py -->"
END = "<!-- command: end -->"

# What stands for what in the table; run in a folder that prepare() fills.
WORDS = {
    "LAYER": "--model v4.1-flash --hidden 256 --inter 128 --experts 8 --topk 3 --ranks 2",
    "SYNTH": "--model v4.1-flash --hidden 256 --inter 128 --num-experts 8 --topk 3",
}

SECTIONS = {
    "Words": """
        gcmoe
        gcmoe rnu
        gcmoe run --token 3
        gcmoe run LAYER --ranks=x
        gcmoe run LAYER --ranks 99999999999
        gcmoe run LAYER --seed=-1
        gcmoe run LAYER --factor nan
        gcmoe run LAYER --factor 1e39
        gcmoe run LAYER --deadline inf
        gcmoe run LAYER --out
        gcmoe run LAYER --out --no-verify
        gcmoe run LAYER --out ''
        gcmoe run LAYER --out=
        gcmoe run LAYER --shared --no-shared
        gcmoe run LAYER --backend tpu
        gcmoe run LAYER --backend cuda
        gcmoe run LAYER --executor fibers
        gcmoe run LAYER --index-type int16
        gcmoe run LAYER --launches 0
        gcmoe run LAYER --executor-seed 1
        gcmoe run LAYER --resident-units 1
        gcmoe run LAYER --deadline -1
        gcmoe run LAYER --launch later
        gcmoe run LAYER --shared-experts role5
        gcmoe run LAYER --combine both
        gcmoe run LAYER --placement random
        gcmoe run LAYER --placement in-order
        gcmoe run LAYER --device -1
        """,
    "Layer": """
        gcmoe run --tokens 1
        gcmoe run --model v5
        gcmoe run --model v4-flash --ranks 7
        gcmoe run --model v4-flash --reduced 0
        gcmoe run --model v4-flash --experts 4 --ranks 2
        gcmoe run LAYER --ranks 73 --experts 73
        gcmoe run LAYER --ranks 0
        gcmoe run LAYER --hidden 100
        gcmoe run LAYER --inter 8224
        gcmoe run LAYER --weight-scales odd
        gcmoe run LAYER --weight-scales span_per_k128:40
        gcmoe run LAYER --shared --shared-grid 1x1
        gcmoe run LAYER --shared-grid ue8m0-32x32
        gcmoe run LAYER --shared-inter 128 --no-shared
        gcmoe run --model gpt-oss-20b --reduced 8 --shared
        gcmoe run LAYER --clamp -1
        gcmoe run LAYER --alpha inf
        gcmoe run LAYER --activation-scale fp8
        gcmoe run LAYER --layer 3
        gcmoe run LAYER --gate-up w1-w3
        gcmoe run LAYER --quantize mxfp4
        """,
    "Bench": """
        gcmoe bench
        gcmoe bench --model v5
        gcmoe bench --model v4-flash,v4-flash
        gcmoe bench --model gpt-oss-20b --shared fused
        gcmoe bench --model gpt-oss-20b --ablation shared
        gcmoe bench --reduced 0
        gcmoe bench --tokens 8,x
        gcmoe bench --tokens 0,8
        gcmoe bench --tokens 8,16,8
        gcmoe bench --tokens 65537
        gcmoe bench --shared both
        gcmoe bench --ablation order
        gcmoe bench --placement random
        gcmoe bench --protocol slow
        gcmoe bench --seeds 0
        gcmoe bench --timed 0
        gcmoe bench --warm -1
        gcmoe bench --flush-mib 16385
        gcmoe bench --launch later
        gcmoe bench --device -1
        gcmoe bench --floors-only --verify
        gcmoe bench --loop
        gcmoe bench --loop --verify
        gcmoe bench --loop --floors-only
        gcmoe bench --trace t.json
        gcmoe bench --model v4-flash --tokens 8 --ablation trace --trace t.json
        gcmoe bench --floors-only --trace t.json
        gcmoe bench --loop --trace t.json
        gcmoe bench --loop --ablation all
        gcmoe bench --loop --protocol paper
        gcmoe bench --loop --shared fused
        gcmoe bench --loop --loop-rows 8,40
        gcmoe bench --loop --loop-rows 0
        gcmoe bench --loop --loop-sms 116,116
        gcmoe bench --loop --loop-sms 1025
        gcmoe bench --loop --reduced 8
        gcmoe bench --loop-rows 8
        gcmoe bench --loop-sms 116
        gcmoe bench --floors-only --out points.jsonl
        gcmoe bench --floors-only --out missing/points.jsonl
        """,
    "Tune": """
        gcmoe tune
        gcmoe tune --model v5
        gcmoe tune --tokens 0
        gcmoe tune --shared apart
        gcmoe tune --experts 8
        gcmoe tune --model v4-flash --hidden 100
        gcmoe tune --model v4-flash --topk 33
        gcmoe tune --model v4-flash --experts 4
        gcmoe tune --model v4-flash --experts 0
        gcmoe tune --model v4-flash --inter 8224
        gcmoe tune --budget-s 0.5
        gcmoe tune --threshold 51
        gcmoe tune --sms 78
        gcmoe tune --candidates-only --sms 1
        gcmoe tune --candidates-only --sms 16 --model v4-flash --tokens 1
        gcmoe tune --gpu H20
        gcmoe tune --derive missing.jsonl --gpu H20 --sms 78
        gcmoe tune --derive missing.jsonl --gpu H20 --sms 78 --out derived.jsonl
        gcmoe tune --derive missing.jsonl --sms 78 --out derived.jsonl
        gcmoe tune --derive missing.jsonl --candidates-only
        gcmoe run LAYER --tuned missing.jsonl
        gcmoe info --tuned missing.jsonl
        gcmoe info --model v4-flash --tuned empty
        """,
    "Checkpoints": """
        gcmoe run --checkpoint missing
        gcmoe run --checkpoint empty
        gcmoe run --checkpoint v4.1 --model v4-flash
        gcmoe run --checkpoint v4.1 --reduced 8
        gcmoe run --checkpoint v4.1 --gate-up w2
        gcmoe run --checkpoint v4.1 --layer 2
        gcmoe run --checkpoint v4.1 --ranks 3
        gcmoe run --checkpoint v3 --ranks 2
        gcmoe run --checkpoint v3 --quantize nvfp4
        gcmoe run --checkpoint w13 --ranks 2
        gcmoe run --checkpoint gpt-oss --gate-up w1-w3
        gcmoe run --checkpoint gpt-oss --shared
        gcmoe run --checkpoint some --ranks 2
        gcmoe run --checkpoint cut --ranks 2
        """,
    "Packing and packed files": """
        gcmoe pack --checkpoint v4.1 --ranks 2 --rank 0
        gcmoe pack --checkpoint v4.1 --ranks 2 --out x
        gcmoe pack --checkpoint v4.1 --ranks 2 --rank 2 --out x
        gcmoe pack --checkpoint v4.1 --ranks 2 --rank 0 --out v4.1/x
        gcmoe pack --checkpoint v4.1 --ranks 2 --rank 0 --out x --target sm80
        gcmoe pack --checkpoint v4.1 --ranks 2 --rank 0 --out x --experts 5
        gcmoe pack --checkpoint v4.1 --ranks 2 --rank 0 --out x --experts 9
        gcmoe pack --checkpoint v4.1 --ranks 2 --rank 0 --out x --allow-inexact --verify
        gcmoe run --packed missing.gcmoe
        gcmoe run --packed x.safetensors
        gcmoe run --packed rank0.gcmoe
        gcmoe run --packed rank0.gcmoe rank0.gcmoe
        gcmoe run --packed rank0.gcmoe rank1.gcmoe --ranks 4
        gcmoe run --packed rank0.gcmoe rank1.gcmoe --model v4-flash
        gcmoe run --packed rank0.gcmoe rank1.gcmoe --allow-inexact
        gcmoe run --packed rank0.gcmoe other.gcmoe
        gcmoe run --packed rank0.gcmoe rank1-next.gcmoe
        gcmoe run --packed rank0.gcmoe old.gcmoe
        gcmoe run --packed --spawn
        gcmoe run --packed rank0.gcmoe cut.gcmoe
        gcmoe run --packed rank0.gcmoe damaged.gcmoe
        gcmoe run --packed sm100.gcmoe
        """,
    "Tokens and routing": """
        gcmoe run LAYER --tokens 1,2,3
        gcmoe run LAYER --tokens 1,x
        gcmoe run LAYER --tokens=-4
        gcmoe run LAYER --tokens 300 --capacity 256
        gcmoe run LAYER --routing nearest
        gcmoe run LAYER --routing only_expert:8
        gcmoe run LAYER --routing only_rank:2
        gcmoe run LAYER --routing hot_rank:2:1
        gcmoe run LAYER --routing zipf:-1
        gcmoe run LAYER --topk 1 --routing first_twice
        gcmoe run LAYER --mask 1.5
        gcmoe run LAYER --inputs missing
        gcmoe run LAYER --inputs x.safetensors --tokens 2
        gcmoe run LAYER --inputs id.safetensors
        gcmoe run LAYER --inputs weights.safetensors
        gcmoe run LAYER --inputs f16.safetensors
        gcmoe run LAYER --inputs scales.safetensors
        gcmoe run LAYER --inputs nothing.safetensors
        gcmoe run LAYER --inputs cut.safetensors
        gcmoe run LAYER --inputs x.safetensors --out x.safetensors
        gcmoe run LAYER --out no/such/folder/y
        gcmoe run LAYER --out /dev/null
        """,
    "Plan": """
        gcmoe run LAYER --ring-blocks 12
        gcmoe run LAYER --ring-blocks 2097152
        gcmoe run LAYER --row-block 12
        gcmoe run LAYER --row-block 72
        gcmoe run LAYER --second-columns 100
        gcmoe run LAYER --ring-blocks 2 --lead-blocks 3
        gcmoe run LAYER --compute-units -1
        gcmoe run LAYER --compute-units 1024
        gcmoe run LAYER --tokens 64 --row-block 8 --ring-blocks 2 --no-overlap
        """,
    "Processes": """
        gcmoe run LAYER --rank 0
        gcmoe run LAYER --session s
        gcmoe run LAYER --spawn --rank 0
        gcmoe run LAYER --session s --rank 2
        gcmoe run LAYER --spawn --executor stepper
        gcmoe run LAYER --spawn --trace t.json
        gcmoe run LAYER --session open --rank 0
        gcmoe run LAYER --session x.safetensors --rank 0
        gcmoe run LAYER --session s --rank 0 --deadline 0.1
        gcmoe run LAYER --session s --rank 1 --deadline 0.1
        """,
    "Traces": """
        gcmoe trace LAYER --trace no/folder.json
        gcmoe trace LAYER --trace-events 0
        gcmoe trace LAYER --trace-events 2000000
        gcmoe trace LAYER --trace a --out a
        """,
    "Other subcommands": """
        gcmoe check --suite odd
        gcmoe check --case v4-flash-t5
        gcmoe check --executor fibers
        gcmoe check --size tiny
        gcmoe check --judge me
        gcmoe check --weight-placement never
        gcmoe check --near-wrap --no-overlap
        gcmoe check --tokens -1
        gcmoe check --tokens 2147483647
        gcmoe check --ranks 0
        gcmoe check --row-block 0
        gcmoe check --ring-blocks 0
        gcmoe check --ranks 73
        gcmoe check --expected a --dump-expected b
        gcmoe info --ranks 8
        gcmoe info --model no-such
        gcmoe synth SYNTH
        gcmoe synth --out y
        gcmoe synth --out v4.1 SYNTH
        gcmoe synth --out y SYNTH --experts 0-9
        gcmoe synth --out y SYNTH --experts a
        gcmoe synth --out y SYNTH --layout v5
        gcmoe synth --out y SYNTH --layout w13 --experts 0-3
        gcmoe synth --out y SYNTH --layer -1
        gcmoe synth --out y SYNTH --shard-mib -1
        """,
}

# What rank 1 has beside the words of rank 0.
DIFFERENT = """
    --ring-blocks 2
    --row-block 16
    --capacity 32
    --index-type int32
    --clamp 3
    --shared
    --launches 2
    --ranks 4
    """


def words_of(line):
    for word, text in WORDS.items():
        line = line.replace(word, text)
    return shlex.split(line)[1:]


def prepare(gcmoe):
    """The files that the cases name, in the working folder."""
    def good(line):
        subprocess.run([gcmoe, *words_of("gcmoe " + line)], check=True, stdout=subprocess.DEVNULL)

    def cut(source, target, keep):
        with open(source, "rb") as file:
            content = file.read()
        with open(target, "wb") as file:
            file.write(content[:int(len(content) * keep)])

    os.mkdir("empty")
    os.mkdir("open")
    os.chmod("open", 0o755)
    for layout in ("v4.1", "v3", "w13"):
        good(f"synth --out {layout} --layout {layout} SYNTH")
    good("synth --out gpt-oss --model gpt-oss-20b --hidden 256 --inter 128 --num-experts 8")
    good("synth --out some SYNTH --experts 0-3,6")
    good("synth --out wide SYNTH --hidden 384")
    shutil.copytree("v4.1", "cut")
    cut("v4.1/model.safetensors", "cut/model.safetensors", 0.5)
    for rank in (0, 1):
        good(f"pack --checkpoint v4.1 --ranks 2 --rank {rank} --out rank{rank}.gcmoe")
    good("pack --checkpoint wide --ranks 2 --rank 1 --out other.gcmoe")
    good("synth --out next SYNTH --layer 1")
    good("pack --checkpoint next --layer 1 --ranks 2 --rank 1 --out rank1-next.gcmoe")
    good("pack --checkpoint v4.1 --ranks 1 --rank 0 --target sm100 --out sm100.gcmoe")
    cut("rank1.gcmoe", "cut.gcmoe", 0.5)
    with open("rank1.gcmoe", "rb") as file:
        content = bytearray(file.read())
    content[len(content) // 2] ^= 1
    with open("rank1.gcmoe", "rb") as file:
        old = bytearray(file.read())
    old[8] = 1  # the version
    with open("old.gcmoe", "wb") as file:
        file.write(old)
    with open("damaged.gcmoe", "wb") as file:
        file.write(content)
    good("bench --floors-only --model v4-flash --tokens 1 --out points.jsonl")

    inputs = {"x": ("BF16", [2, 256], st.bf16s([0.5] * 512)),
              "topk_idx": ("I64", [2, 3], st.int64s([0, 1, 2, 3, 4, 5])),
              "topk_weights": ("F32", [2, 3], st.floats([0.5] * 6))}
    st.write("x.safetensors", inputs)
    cut("x.safetensors", "cut.safetensors", 0.5)
    st.write("id.safetensors", {**inputs, "topk_idx": ("I64", [2, 3],
                                                       st.int64s([0, 1, 2, 3, 99, 5]))})
    st.write("weights.safetensors", {**inputs, "topk_weights": ("F32", [2, 2],
                                                                st.floats([1.0] * 4))})
    st.write("f16.safetensors", {**inputs, "x": ("F16", [2, 256], bytes(1024))})
    st.write("scales.safetensors", {**inputs, "x": ("F8_E4M3", [2, 256], bytes(512))})
    st.write("nothing.safetensors", {"y": ("F32", [1], st.floats([1.0]))})


def row_of(gcmoe, line, failures):
    """The table's row of one case: what it says, and the exit code where it is not 2."""
    result = subprocess.run([gcmoe, *words_of(line)], capture_output=True, text=True, timeout=60,
                            check=False)
    if result.returncode not in (2, 3) or result.stdout or result.stderr.count("\n") != 1:
        failures.append(f"{line}: exit code {result.returncode}, stdout {result.stdout!r}, "
                        f"stderr {result.stderr!r}; wants 2 or 3, nothing, one sentence")
    said = result.stderr.strip()
    for subcommand in (line.split() + [""])[1:2]:
        said = said.removeprefix(f"gcmoe {subcommand}: ").removeprefix("gcmoe: ")
    code = " (exit code 3)" if result.returncode == 3 else ""
    said = said.replace("|", "\\|")
    return f"| `{line}` | {said}{code} |"


def row_of_two(gcmoe, extra, failures):
    """The row of two ranks that differ; both must say the same."""
    line = "gcmoe run LAYER --session s --deadline 20 --rank"
    ranks = [subprocess.Popen([gcmoe, *words_of(f"{line} {rank}")], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True)
             for rank in ("0", f"1 {extra}")]
    said = [rank.communicate(timeout=60)[1].strip() for rank in ranks]
    if said[0] != said[1] or [rank.returncode for rank in ranks] != [2, 2]:
        failures.append(f"ranks that differ by {extra}: {said}")
    return f"| `{extra}` | {said[0].removeprefix('gcmoe run: ')} |"


def tables(gcmoe, failures):
    lines = []
    for title, cases in SECTIONS.items():
        lines += [f"### {title}", "", "| command | says |", "|---|---|"]
        lines += [row_of(gcmoe, line.strip(), failures) for line in cases.strip().splitlines()]
        lines.append("")
    lines += ["### Ranks that differ (as processes: all say it)", "", "| rank 1 has | says |",
              "|---|---|"]
    lines += [row_of_two(gcmoe, extra.strip(), failures)
              for extra in DIFFERENT.strip().splitlines()]
    lines.append("")
    return lines


def main(gcmoe, document, *options):
    gcmoe, document = os.path.abspath(gcmoe), os.path.abspath(document)
    with open(document, encoding="ascii") as file:
        lines = file.read().split("\n")
    begin, end = lines.index(BEGIN) + 1, lines.index(END)
    failures = []
    with tempfile.TemporaryDirectory(prefix="gcmoe-refusals-") as folder:
        os.chdir(folder)
        prepare(gcmoe)
        now = tables(gcmoe, failures)
        os.chdir("/")
    if options == ("--write",):
        with open(document, "w", encoding="ascii") as file:
            file.write("\n".join(lines[:begin] + now + lines[end:]))
    else:
        written = lines[begin:end]
        failures += [f"not in the document: {line}" for line in now if line not in written]
        failures += [f"no longer said: {line}" for line in written if line not in now]
        if not failures and written != now:
            failures.append("the rows stand in another order")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
