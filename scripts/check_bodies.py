#!/usr/bin/env python3
"""Kernel bodies use only ptx:: and device:: names.

A body is a .cuh or .hpp of src/cuda outside ptx, device and runtime. In a body are forbidden:

  asm            inline assembly
  intrinsics     __shfl*, __ballot*, __sync*, __ldg, ..., any other word that starts with __ and is
                 not in WORDS_ALLOWED; atomicAdd and its like, clock, clock64, nanosleep
  coordinates    threadIdx, blockIdx, blockDim, gridDim, warpSize
  runtime        cuda..., cu... functions and types, <<<...>>>, CUDA headers
  storage        __shared__, __constant__, __global__, __launch_bounds__

Two kinds of files are no bodies, but carry their launch:
  entry   a .cuh that only .cu files (or other entries) include and that has a __global__ in it:
          runtime and storage words are allowed there
  launch  a .hpp: may name cudaError_t and cudaStream_t and include cuda_runtime_api.h

tests/host_stub compiles the bodies with g++; this script says in words what is wrong, and also
sees what no instance compiles.
"""

import re
import sys

import source_tree

FREE_ROOMS = ("ptx", "device", "runtime")
WORDS_ALLOWED = {"__device__", "__host__", "__forceinline__", "__align__", "__grid_constant__",
                 "__restrict__", "__FILE__", "__LINE__", "__VA_ARGS__", "__VA_OPT__"}
STORAGE = {"__shared__", "__constant__", "__global__", "__launch_bounds__", "__managed__"}
LAUNCH_NAMES = {"cudaError_t", "cudaStream_t"}

ASM = re.compile(r"\b(asm|__asm__|__asm)\b")
COORDINATE = re.compile(r"\b(threadIdx|blockIdx|blockDim|gridDim|warpSize)\b")
RUNTIME = re.compile(r"\b(cuda[A-Z]\w*|cu[A-Z]\w*|CU[A-Z]?[a-z]\w*)\b")
INTRINSIC = re.compile(r"\b(atomic(Add|Sub|Exch|Min|Max|And|Or|Xor|CAS|Inc|Dec)\w*"
                       r"|clock64|clock(?=\s*\()|globaltimer|nanosleep)\b")
LAUNCH = re.compile(r"<<<")
WORD = re.compile(r"\b__\w+\b")
CUDA_HEADER = re.compile(r"^(cuda|cooperative_groups|cub/|nv/|thrust/|mma\.h|crt/)")


def is_body_place(path):
    parts = path.parts
    return (parts[:2] == ("src", "cuda") and path.suffix in (".cuh", ".hpp")
            and not (len(parts) > 3 and parts[2] in FREE_ROOMS))


def includers(root, paths):
    """path -> files that include it."""
    found = {}
    for path in paths:
        for _, name, is_quoted in source_tree.includes(source_tree.read_text(root, path)):
            target = source_tree.resolve(root, path, name) if is_quoted else None
            if target:
                found.setdefault(target, []).append(path)
    return found


def find_entries(root, paths):
    """The .cuh files with a __global__ that only .cu files or other entries include."""
    by = includers(root, paths)
    kernels = {path for path in paths if path.suffix == ".cuh" and "__global__" in
               source_tree.without_comments(source_tree.read_text(root, path))}
    while True:
        wrong = {path for path in kernels
                 if not by.get(path) or any(user.suffix != ".cu" and user not in kernels
                                            for user in by[path])}
        if not wrong:
            return kernels
        kernels -= wrong


def judge_line(line, kind):
    """The sentences that forbid a line of a file of this kind (body, entry, launch)."""
    sentences = []
    if ASM.search(line):
        sentences.append("inline assembly: wrap the instruction in src/cuda/ptx")
    for match in COORDINATE.finditer(line):
        sentences.append(f"{match.group(0)}: use ptx:: (special.cuh)")
    for match in INTRINSIC.finditer(line):
        sentences.append(f"{match.group(0)}: wrap it in src/cuda/ptx")
    for match in WORD.finditer(line):
        word = match.group(0)
        if word in WORDS_ALLOWED or (kind == "entry" and word in STORAGE):
            continue
        place = "it belongs to the kernel's .cu" if word in STORAGE else "wrap it in src/cuda/ptx"
        sentences.append(f"{word}: {place}")
    if kind != "entry":
        for match in RUNTIME.finditer(line):
            if kind != "launch" or match.group(0) not in LAUNCH_NAMES:
                sentences.append(f"{match.group(0)}: the CUDA runtime belongs to .cu files")
        if LAUNCH.search(line):
            sentences.append("a launch stands only in a .cu")
    return sentences


def check(root):
    """One message per violation in the tree."""
    paths = source_tree.project_files(root)
    entries = find_entries(root, paths)
    messages = []
    counts = {"body": 0, "entry": 0, "launch": 0}
    for path in filter(is_body_place, paths):
        text = source_tree.read_text(root, path)
        kind = "entry" if path in entries else "launch" if path.suffix == ".hpp" else "body"
        counts[kind] += 1
        for number, line in enumerate(source_tree.without_comments(text).splitlines(), start=1):
            if not line.lstrip().startswith("#"):
                messages += [f"{path}:{number}: {s}" for s in judge_line(line, kind)]
        for number, name, is_quoted in source_tree.includes(text):
            allowed = kind == "entry" or (kind == "launch" and name == "cuda_runtime_api.h")
            if not is_quoted and CUDA_HEADER.match(name) and not allowed:
                messages.append(f"{path}:{number}: <{name}> is CUDA's")
    if root == source_tree.ROOT:
        print(f"bodies: {counts['body']} bodies, {counts['entry']} entries, "
              f"{counts['launch']} launch headers, {len(messages)} errors")
        if counts["body"] == 0:
            messages.append("src/cuda: no kernel body found")
    return messages


def self_test():
    def body(line):
        return {"src/cuda/gemm/g.cuh": f"#pragma once\n{line}\n"}

    kernel = "__global__ void __launch_bounds__(1, 1) k() { extern __shared__ int s[]; }\n"
    entry = "#pragma once\n" + kernel + "inline cudaError_t go() { return cudaSuccess; }\n"
    launch = "#pragma once\n#include <cuda_runtime_api.h>\ncudaError_t f(cudaStream_t s);\n"
    cases = [
        ("clean body", body("__device__ __forceinline__ void f() { ptx::cta_barrier(); }"), None),
        ("words in comments", body("// __syncthreads(), asm, threadIdx.x\n"), None),
        ("asm", body('__device__ void f() { asm volatile("nop;"); }'), "inline assembly"),
        ("shuffle", body("int f(int a) { return __shfl_xor_sync(~0U, a, 1); }"), "__shfl_xor_sync"),
        ("barrier", body("void f() { __syncthreads(); }"), "__syncthreads"),
        ("byte perm", body("int f() { return __byte_perm(1, 2, 3); }"), "__byte_perm"),
        ("atomic", body("void f(int* a) { atomicAdd_system(a, 1); }"), "atomicAdd_system"),
        ("clock", body("long long f() { return clock64(); }"), "clock64"),
        ("thread", body("int f() { return threadIdx.x; }"), "threadIdx"),
        ("CTA", body("int f() { return blockIdx.x + gridDim.x; }"), "blockIdx"),
        ("runtime", body("void f() { cudaDeviceSynchronize(); }"), "cudaDeviceSynchronize"),
        ("driver", body("void f() { cuInit(0); }"), "cuInit"),
        ("driver type", body("CUstream_st* f();"), "CUstream_st"),
        ("launch", body("void f() { k<<<1, 2>>>(); }"), "a launch stands"),
        ("shared", body("void f() { __shared__ int a; }"), "__shared__: it belongs"),
        ("header", body("#include <cuda_fp8.h>"), "<cuda_fp8.h> is CUDA's"),
        ("new folder", {"src/cuda/later/g.cuh": "int f() { return threadIdx.x; }\n"}, "threadIdx"),
        ("ptx is free", {"src/cuda/ptx/g.cuh": "int f() { return threadIdx.x; }\n"}, None),
        ("device is free", {"src/cuda/device/g.cuh": "#include <cuda_runtime.h>\n"}, None),
        (".cu is free", {"src/cuda/gemm/g.cu": kernel}, None),
        ("entry", {"src/cuda/gemm/e.cuh": entry,
                   "src/cuda/gemm/g.cu": '#include "cuda/gemm/e.cuh"\n'}, None),
        ("an entry may not shuffle", {"src/cuda/gemm/e.cuh": entry + "int a = __shfl_sync(1);\n",
                                      "src/cuda/gemm/g.cu": '#include "cuda/gemm/e.cuh"\n'},
         "__shfl_sync"),
        ("an entry that a body includes", {
            "src/cuda/gemm/e.cuh": entry, "src/cuda/gemm/g.cu": '#include "cuda/gemm/e.cuh"\n',
            "src/cuda/gemm/b.cuh": '#include "cuda/gemm/e.cuh"\n'}, "__global__: it belongs"),
        ("launch header", {"src/cuda/gemm/l.hpp": launch}, None),
        ("launch header with more", {"src/cuda/gemm/l.hpp": launch + "cudaEvent_t e;\n"},
         "cudaEvent_t"),
    ]
    return source_tree.run_self_test(check, cases)


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    messages = check(source_tree.ROOT)
    if messages:
        print("\n".join(messages))
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
