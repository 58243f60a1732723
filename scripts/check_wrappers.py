#!/usr/bin/env python3
"""Every wrapper of src/cuda/ptx is called in tests/cuda_compile, so that ptxas has seen it.

A wrapper is a __device__ function of src/cuda/ptx, or a name that one of that folder's macros
GCMOE_PTX_... makes one of. A call is `ptx::name` in a tests/cuda_compile/*.cu, or the name as the
argument of a macro GCMOE_COMPILE_... there.
"""

import re
import sys

import source_tree

FUNCTION = re.compile(r"__device__\s+__forceinline__\s+(?:static\s+)?[\w:]+[\s*&]+(\w+)\s*\(")
MADE = re.compile(r"^\s*GCMOE_PTX_\w+\(\s*(\w+)\s*,", re.MULTILINE)
CALL = re.compile(r"\bptx::(\w+)|\bGCMOE_COMPILE_\w+\(\s*(\w+)\s*\)")


def blank_macros(code):
    """code without #define and its continuation lines."""
    return re.sub(r"^[ \t]*#[ \t]*define(?:[^\n\\]|\\.|\\\n)*", "", code, flags=re.MULTILINE)


def check(root):
    """One message per wrapper that no compile test calls."""
    wrappers, called = {}, set()
    for path in source_tree.project_files(root):
        place = path.as_posix()
        if place.startswith("src/cuda/ptx/"):
            code = blank_macros(source_tree.without_comments(source_tree.read_text(root, path)))
            for name in FUNCTION.findall(code) + MADE.findall(code):
                wrappers.setdefault(name, path)
        elif place.startswith("tests/cuda_compile/") and path.suffix == ".cu":
            code = source_tree.without_comments(source_tree.read_text(root, path))
            called.update(a or b for a, b in CALL.findall(code))
    messages = [f"{path}: {name} is called by no tests/cuda_compile/*.cu"
                for name, path in sorted(wrappers.items()) if name not in called]
    if root == source_tree.ROOT:
        print(f"wrappers: {len(wrappers)} of src/cuda/ptx, {len(messages)} without a compile test")
        if not wrappers:
            messages.append("src/cuda/ptx: no wrapper found")
    return messages


def self_test():
    header = "__device__ __forceinline__ std::uint32_t {}(const void* p) {{ return 0; }}\n"
    made = ("#define GCMOE_PTX_LOAD(name, bits) \\\n    __device__ __forceinline__ int name() {}\n"
            'GCMOE_PTX_LOAD(load_a, 32)\n')
    ptx, test = "src/cuda/ptx/p.cuh", "tests/cuda_compile/t.cu"
    cases = [
        ("called", {ptx: header.format("f"), test: "void k() { ptx::f(nullptr); }\n"}, None),
        ("not called", {ptx: header.format("f"), test: "void k() { ptx::g(nullptr); }\n"},
         "f is called by no"),
        ("in a comment", {ptx: header.format("f"), test: "// ptx::f(nullptr)\n"}, "f is called by"),
        ("template", {ptx: "template <int kN>\n" + header.format("f"), test: "\n"}, "f is called"),
        ("pointer", {ptx: "__device__ __forceinline__ float* f(int a) { return 0; }\n"},
         "f is called by no"),
        ("made by a macro", {ptx: made, test: "\n"}, "load_a is called by no"),
        ("made and called", {ptx: made, test: "void k() { ptx::load_a(); }\n"}, None),
        ("by a macro", {ptx: header.format("f"), test: "GCMOE_COMPILE_X(f)\n"}, None),
        ("called elsewhere", {ptx: header.format("f"),
                              "src/cuda/gemm/g.cuh": "void k() { ptx::f(nullptr); }\n"},
         "f is called by no"),
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
