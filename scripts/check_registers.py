#!/usr/bin/env python3
"""Registers and spills of every kernel, held to the table above its __global__.

check_registers.py            compares build/cuda's kernels with the tables
check_registers.py --write    rewrites the tables from the kernels (./dev registers --write)
check_registers.py --self-test

The table is the part of the comment above the kernel (above its `template`) that starts with TITLE:

  // Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads
  //   role2_kernel<false, 16>: registers 96, spills 352 / 472

Registers are cuobjdump's REG. Spills are counted in the machine code: the bytes of all STL and LDL,
each instruction once, which is what `ptxas -v` prints as spill stores and loads (equal on three
instances of role 2, nvcc 13.0); a local array would count as well. So the numbers come from the
library alone: no flag, no log, and a compiler cache makes no difference. They are nvcc 13.0's;
another compiler may need other tables.

More of anything than the table says is an error, as are a kernel without a line and a line without
a kernel. Less is a request to lower the numbers, not an error.
"""

import re
import sys
from dataclasses import dataclass

import cuda_objects
import source_tree

TITLE = "// Resources of sm_90a, kept by ./dev registers --write; spills: bytes of stores / loads"
LINE = re.compile(r"^//   (\S.*): registers (\d+), spills (\d+) / (\d+)$")
GLOBAL = re.compile(r"__global__[^;{}]*?\b((?!__)\w+)\s*\(\s*(?:\)|const\s|\w+::|\w+[\s*&])")
WIDTHS = {"64": 8, "128": 16, "U8": 1, "S8": 1, "U16": 2, "S16": 2}


@dataclass(frozen=True)
class Usage:
    registers: int
    stores: int
    loads: int

    def text(self):
        return f"registers {self.registers}, spills {self.stores} / {self.loads}"


def usage_of(kernel):
    sums = {"STL": 0, "LDL": 0}
    for instruction in kernel.code:
        name, *suffixes = instruction.opcode.split(".")
        if name in sums:
            sums[name] += next((WIDTHS[s] for s in suffixes if s in WIDTHS), 4)
    return Usage(kernel.registers, sums["STL"], sums["LDL"])


def find_places(root):
    """kernel name without arguments -> (file, index of the line its comment must end before)."""
    places = {}
    for path in source_tree.project_files(root, {".cu", ".cuh"}):
        if path.parts[:2] != ("src", "cuda"):
            continue
        code = source_tree.without_comments(source_tree.read_text(root, path))
        for match in GLOBAL.finditer(code):
            line = code[:match.start()].count("\n")
            lines = code.split("\n")
            while line > 0 and re.match(r"\s*(template\b|extern\b)", lines[line - 1]):
                line -= 1
            places[match.group(1)] = (path, line)
    return places


def table_above(lines, end):
    """(first, last) of the table in the comment that ends before line `end`, or (end, end)."""
    first = end
    while first > 0 and lines[first - 1].startswith("//"):
        first -= 1
    for index in range(first, end):
        if lines[index] == TITLE:
            last = index + 1
            while last < end and LINE.match(lines[last]):
                last += 1
            return index, last
    return end, end


def read_table(root, path, line):
    """name -> Usage of a kernel's table."""
    lines = source_tree.read_text(root, path).split("\n")
    first, last = table_above(lines, line)
    found = {}
    for match in map(LINE.match, lines[first + 1:last]):
        name, registers, stores, loads = match.groups()
        found[name] = Usage(int(registers), int(stores), int(loads))
    return found


def judge(root, measured):
    """(errors, requests) of the tables against measured: name -> Usage."""
    errors, requests = [], []
    places = find_places(root)
    seen = set()
    for base, (path, line) in sorted(places.items()):
        table = read_table(root, path, line)
        built = {n: u for n, u in measured.items() if n.split("<")[0] == base}
        seen.update(built)
        for name in sorted(set(table) - set(built)):
            errors.append(f"{path}: {name} stands in the table and is not built")
        for name, now in sorted(built.items()):
            held = table.get(name)
            if held is None:
                errors.append(f"{path}: {name} has no line: {now.text()}")
                continue
            pairs = [(now.registers, held.registers), (now.stores, held.stores),
                     (now.loads, held.loads)]
            change = f"{path}: {name}: {now.text()}; the table says {held.text()}"
            if any(a > b for a, b in pairs):
                errors.append(change)
            elif now != held:
                requests.append(change + ": lower it (./dev registers --write)")
    errors += [f"{name}: no __global__ of this name in src/cuda"
               for name in sorted(set(measured) - seen)]
    return errors, requests


def write(root, measured):
    """Rewrites every table; returns the files that changed."""
    by_file = {}
    for base, (path, line) in find_places(root).items():
        by_file.setdefault(path, []).append((line, base))
    changed = []
    for path, kernels in sorted(by_file.items()):
        text = source_tree.read_text(root, path)
        lines = text.split("\n")
        for line, base in sorted(kernels, reverse=True):
            table = [f"//   {name}: {usage.text()}" for name, usage in sorted(measured.items())
                     if name.split("<")[0] == base]
            first, last = table_above(lines, line)
            lines[first:last] = [TITLE, *table] if table else []
        if "\n".join(lines) != text:
            (root / path).write_text("\n".join(lines), encoding="utf-8")
            changed.append(path)
    return changed


def self_test():
    kernel = "template <int kN>\n__global__ void __launch_bounds__(32, 1)\n    k(const int a) {}\n"
    measured = {"k<8>": Usage(96, 8, 16), "k<16>": Usage(96, 0, 0)}

    def tree(*table):
        return {"src/cuda/gemm/k.cuh": "\n".join([TITLE, *table, kernel])}

    def check(root):
        errors, requests = judge(root, measured)
        return errors + requests

    def check_written(root):
        write(root, measured)
        again = write(root, measured)
        return check(root) + [f"{path} changed twice" for path in again]

    eight = "//   k<8>: registers 96, spills 8 / 16"
    sixteen = "//   k<16>: registers 96, spills 0 / 0"
    bad = source_tree.run_self_test(check, [
        ("equal", tree(eight, sixteen), None),
        ("registers", tree("//   k<8>: registers 95, spills 8 / 16", sixteen), "table says"),
        ("stores", tree("//   k<8>: registers 96, spills 4 / 16", sixteen), "table says"),
        ("loads", tree("//   k<8>: registers 96, spills 8 / 12", sixteen), "table says"),
        ("better", tree("//   k<8>: registers 97, spills 8 / 16", sixteen), "lower it"),
        ("no line", tree(eight), "k<16> has no line"),
        ("no table", {"src/cuda/gemm/k.cuh": kernel}, "k<8> has no line"),
        ("line without a kernel", tree(eight, sixteen, "//   k<24>: registers 1, spills 0 / 0"),
         "k<24> stands in the table"),
        ("kernel without a source", {"src/cuda/gemm/k.cuh": "\n"}, "no __global__ of this name"),
    ])
    bad += source_tree.run_self_test(check_written, [
        ("written anew", {"src/cuda/gemm/k.cuh": "// A kernel.\n" + kernel}, None),
        ("written over", tree("//   k<24>: registers 1, spills 0 / 0"), None),
    ])
    usage = cuda_objects.parse_usage("arch = sm_90a\n Function _Z1kv:\n  REG:96 STACK:8 \n"
                                     "arch = sm_100a\n Function _Z1kv:\n  REG:12 STACK:8 \n",
                                     "sm_90a")
    sass = "code for sm_90a\n\tFunction : _Z1kv\n" + "".join(
        f"        /*{16 * i:04x}*/   {text} ;   /* 0x0 */\n" for i, text in enumerate(
            ["STL [R1], R2", "@P0 STL.64 [R1+0x8], R4", "LDL.LU.64 R4, [R1]", "LDL R4, [R1]",
             "LDL.U8 R4, [R1]", "LDS R4, [R1]"]))
    code = cuda_objects.parse_sass(sass, "sm_90a")["_Z1kv"]
    counted = usage_of(cuda_objects.Kernel("_Z1kv", "k", usage["_Z1kv"], code))
    name = cuda_objects.short_name("void a::(anonymous namespace)::k<false, (a::E)1, 16u>(a::P<1>)")
    if counted != Usage(96, 12, 13) or name != "k<false, (a::E)1, 16>":
        print(f"self-test: counted {counted}, named {name}")
        bad += 1
    return 1 if bad else 0


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    kernels, status = cuda_objects.built_kernels("registers")
    if kernels is None:
        return status
    measured = {kernel.name: usage_of(kernel) for kernel in kernels}
    if "--write" in sys.argv[1:]:
        for path in write(source_tree.ROOT, measured):
            print(f"registers: wrote {path}")
    errors, requests = judge(source_tree.ROOT, measured)
    for name, usage in sorted(measured.items()):
        print(f"  {name:<28} {usage.text()}")
    print("\n".join(errors + requests + [
        f"registers: {len(measured)} kernels, {len(errors)} errors, {len(requests)} to lower"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
