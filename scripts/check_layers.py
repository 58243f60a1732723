#!/usr/bin/env python3
"""Judges every #include line by the layers and fences of HACKING.md.

A room includes itself and rooms of lower layers. The table below is the rule; HACKING.md explains
it.
"""

import re
import sys
from pathlib import Path

import source_tree

LAYERS = {
    "include": 0, "base": 0,
    "numerics": 1, "layout": 1, "trace": 1,
    "protocol": 2, "schedule": 2,
    "plan": 3, "group": 3, "checkpoint": 3, "backend": 3,
    "cpu": 4, "cuda": 4,
    "op": 5,
    "tools": 6, "python": 6,
}
# Within a layer, rooms do not see each other, save for these (room, may include): reason.
SIDEWAYS = {
    ("base", "include"): "checks and helpers speak of the public Status",
    ("plan", "backend"): "a plan is chosen in the form that backends take",
    ("plan", "checkpoint"): "tuned tables are files of strict JSON",
    ("group", "backend"): "the group's book holds its members' backends",
    ("layout", "numerics"): "weight tiles hold the codes and scale windows that numerics defines",
}
# Rooms outside the stack: what each may include. None = anything.
OUTSIDE = {
    "reference": {"include", "base", "numerics", "layout", "reference"},
    "tests": None,
    "bench": None,
}
# Folders of such a room that see more of the stack: (folder, may include): reason.
OUTSIDE_EXTRA = {
    ("reference/cuda/", "src/cuda/device/"): "device memory and CUDA's errors as statuses",
}
# tools links the reference (`gcmoe check`); python is its own world.
EXTRA = {"tools": {"reference"}}

# Order inside src/cuda; ptx sees nothing of it, a role sees ptx and device.
CUDA_ORDER = {"ptx": 0, "device": 1, "dispatch": 2, "gemm": 2, "combine": 2, "weights": 2,
              "measure": 3, "joint": 3, "runtime": 4}

CUDA_PLACES = ("src/cuda/", "reference/cuda/", "tests/cuda/", "tests/cuda_compile/")
# Where .cuh may stand and be included: host C++ with stand-ins for ptx, without CUDA's headers.
CUH_PLACES = CUDA_PLACES + ("tests/host_stub/",)
# Third-party and system headers: pattern -> places that may name them.
FENCES = [
    ("CUDA", re.compile(r"^(cuda|cuda_.*|cuda/.*|cudaTypedefs|cooperative_groups.*|cub/.*|nv/.*"
                        r"|thrust/.*|mma|nvrtc|crt/.*|cublas.*|nccl|device_launch_parameters)"
                        r"(\.h|\.hpp)?$"), CUDA_PLACES),
    ("CUTLASS", re.compile(r"^(cutlass|cute)/"), ()),
    ("torch or Python", re.compile(r"^(torch/|ATen/|c10/|pybind11/|Python\.h$)"), ("python/",)),
    ("CLI11", re.compile(r"^CLI/"), ("tools/",)),
    ("nlohmann-json", re.compile(r"^nlohmann/"), ("tools/", "src/checkpoint/", "tests/", "bench/")),
    ("Highway", re.compile(r"^hwy/"), ("src/cpu/", "tests/", "bench/")),
    ("GoogleTest", re.compile(r"^(gtest|gmock)/"), ("tests/",)),
    ("Google Benchmark", re.compile(r"^benchmark/"), ("bench/",)),
    ("fmt", re.compile(r"^fmt/"), ("src/", "reference/", "tools/", "tests/", "bench/", "python/")),
]
ROLE = re.compile(r"role(\d)")
LAUNCH = re.compile(r"<<<")


def room_of(path):
    """The room of a file: the folder under src, else the top folder; None for files of no room."""
    parts = Path(path).parts
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    return parts[0] if len(parts) > 1 and parts[0] != "src" else None


def judge_rooms(path, target):
    """The sentence that forbids path to include target, or None."""
    room, other = room_of(path), room_of(target)
    if room == other:
        return judge_inside(room, path, target)
    if room in OUTSIDE:
        allowed = OUTSIDE[room]
        if allowed is None or other in allowed:
            return None
        if any(path.as_posix().startswith(folder) and target.as_posix().startswith(place)
               for folder, place in OUTSIDE_EXTRA):
            return None
        return f"{room} may include only {', '.join(sorted(allowed))}; this is {other}"
    if room not in LAYERS:
        return f"room '{room}' is not in the layer table (scripts/check_layers.py, HACKING.md)"
    if other in EXTRA.get(room, ()) or (room, other) in SIDEWAYS:
        return None
    if other not in LAYERS:
        return f"{room} (L{LAYERS[room]}) may not include {other}"
    if LAYERS[other] >= LAYERS[room]:
        return f"{room} (L{LAYERS[room]}) may not include {other} (L{LAYERS[other]})"
    return None


def judge_inside(room, path, target):
    """Fences within a room: roles are strangers, and src/cuda has an order of its own."""
    if room not in ("cpu", "cuda"):
        return None
    role, other_role = ROLE.search(path.name), ROLE.search(target.name)
    if role and other_role and role.group(1) != other_role.group(1):
        return f"role {role.group(1)} may not include role {other_role.group(1)}"
    if room == "cuda" and len(path.parts) > 3 and len(target.parts) > 3:
        part, other = path.parts[2], target.parts[2]
        if part != other and CUDA_ORDER.get(other, 9) >= CUDA_ORDER.get(part, -1):
            return f"src/cuda/{part} may not include src/cuda/{other}"
    return None


def judge_external(path, name):
    """The sentence that forbids path to include the foreign header name, or None."""
    for title, pattern, places in FENCES:
        if pattern.match(name) and not path.as_posix().startswith(places):
            allowed = ", ".join(places) if places else "nowhere"
            return f"<{name}> is {title}, allowed: {allowed}"
    if path.parts[0] == "include" and ("/" in name or name.endswith(".hpp")):
        return f"<{name}>: the public API includes only the standard library and itself"
    return None


def judge_include(root, path, name, is_quoted):
    if name in source_tree.GENERATED_HEADERS:
        if path.suffix != ".cpp":
            return f"{name} is generated: only a .cpp may include it"
        if name == "gcmoe_suites.hpp" and room_of(path) not in ("tools", "tests", "bench"):
            return f"{name} belongs to the command and the tests"
        return None
    target = source_tree.resolve(root, path, name)
    if target is None:
        if is_quoted and not any(pattern.match(name) for _, pattern, _ in FENCES):
            return f'"{name}" names no file of the tree'
        return judge_external(path, name)
    if not is_quoted:
        return f"<{name}> is a file of this tree: write it with quotes"
    if name.startswith((".", "src/", "include/")):
        return f'"{name}": includes start at include/, src/ or the repository root'
    if target.suffix == ".cuh" and not path.as_posix().startswith(CUH_PLACES):
        return f'"{name}" is device code, allowed: {", ".join(CUH_PLACES)}'
    return judge_rooms(path, target)


def check(root):
    """One message per violation in the tree."""
    messages = []
    for path in source_tree.project_files(root):
        text = source_tree.read_text(root, path)
        places = {".cu": CUDA_PLACES, ".cuh": CUH_PLACES}.get(path.suffix)
        if places and not path.as_posix().startswith(places):
            messages.append(f"{path}: device code, allowed: {', '.join(places)}")
        for number, name, is_quoted in source_tree.includes(text):
            sentence = judge_include(root, path, name, is_quoted)
            if sentence:
                messages.append(f"{path}:{number}: {sentence}")
        if path.suffix != ".cu":
            code = source_tree.without_comments(text)
            for number, line in enumerate(code.splitlines(), start=1):
                if LAUNCH.search(line):
                    messages.append(f"{path}:{number}: a launch stands only in a .cu")
    return messages


def self_test():
    header = "#pragma once\n"
    ring, e4m3 = "src/protocol/ring.hpp", "src/numerics/e4m3.hpp"
    cases = [
        ("clean tree", {e4m3: header, ring: '#include "numerics/e4m3.hpp"\n#include <vector>\n'},
         None),
        ("allowed sideways", {e4m3: header, "src/layout/t.hpp": '#include "numerics/e4m3.hpp"\n'},
         None),
        ("tools may use the reference", {"reference/layer.hpp": header,
                                         "tools/gcmoe/a.cpp": '#include "reference/layer.hpp"\n'},
         None),
        ("upwards", {ring: header, e4m3: '#include "protocol/ring.hpp"\n'},
         "numerics (L1) may not include protocol (L2)"),
        ("sideways", {ring: header, "src/schedule/s.hpp": '#include "protocol/ring.hpp"\n'},
         "schedule (L2) may not include protocol (L2)"),
        ("cpu to cuda", {"src/cuda/x.hpp": header, "src/cpu/a.cpp": '#include "cuda/x.hpp"\n'},
         "cpu (L4) may not include cuda (L4)"),
        ("src to tools", {"tools/gcmoe/x.hpp": header,
                          "src/op/a.cpp": '#include "tools/gcmoe/x.hpp"\n'},
         "op (L5) may not include tools"),
        ("src to reference", {"reference/x.hpp": header,
                              "src/op/a.cpp": '#include "reference/x.hpp"\n'},
         "op (L5) may not include reference"),
        ("src to tests", {"tests/x.hpp": header, "src/op/a.cpp": '#include "tests/x.hpp"\n'},
         "op (L5) may not include tests"),
        ("reference to protocol", {ring: header,
                                   "reference/a.cpp": '#include "protocol/ring.hpp"\n'},
         "this is protocol"),
        ("the judge's CUDA half", {"src/cuda/device/b.hpp": header, "reference/cuda/d.cuh":
                                   '#include <cuda_runtime.h>\n#include "cuda/device/b.hpp"\n'},
         None),
        ("the judge to a role", {"src/cuda/gemm/g.hpp": header,
                                 "reference/cuda/d.cu": '#include "cuda/gemm/g.hpp"\n'},
         "this is cuda"),
        ("the host's judge to CUDA", {"src/cuda/device/b.hpp": header,
                                      "reference/a.cpp": '#include "cuda/device/b.hpp"\n'},
         "this is cuda"),
        ("CUDA in the host's judge", {"reference/a.cpp": "#include <cuda_runtime.h>\n"},
         "is CUDA"),
        ("role to role", {"src/cpu/cpu_role1_dispatch.hpp": header,
                          "src/cpu/cpu_role2_gemm.cpp": '#include "cpu/cpu_role1_dispatch.hpp"\n'},
         "role 2 may not include role 1"),
        ("inside cuda", {"src/cuda/gemm/g.cuh": header,
                         "src/cuda/ptx/p.cuh": '#include "cuda/gemm/g.cuh"\n'},
         "src/cuda/ptx may not include src/cuda/gemm"),
        ("CUDA header outside", {"src/op/a.cpp": "#include <cuda_runtime.h>\n"}, "is CUDA"),
        ("cuda folder header outside", {"src/op/a.cpp": "#include <cuda/atomic>\n"}, "is CUDA"),
        ("torch outside python", {"src/op/a.cpp": "#include <torch/torch.h>\n"}, "is torch"),
        ("json in the public API", {"include/gcmoe/a.hpp": "#include <nlohmann/json.hpp>\n"},
         "is nlohmann-json"),
        ("unknown room", {e4m3: header, "src/misc/a.cpp": '#include "numerics/e4m3.hpp"\n'},
         "not in the layer table"),
        ("missing file", {"src/op/a.cpp": '#include "op/gone.hpp"\n'}, "names no file"),
        ("generated in a header", {"src/op/a.hpp": '#include "gcmoe_version.hpp"\n'},
         "only a .cpp"),
        ("device code outside", {"src/op/a.cuh": header}, "device code"),
        ("bodies on the host", {"src/cuda/gemm/g.cuh": header, "tests/host_stub/s.cuh": header,
                                "tests/host_stub/a.cpp": '#include "cuda/gemm/g.cuh"\n'}, None),
        ("CUDA on the host stub's path", {"tests/host_stub/a.cpp": "#include <cuda_runtime.h>\n"},
         "is CUDA"),
        ("kernel in the host stub", {"tests/host_stub/a.cu": header}, "device code"),
        ("launch in a header", {"src/cuda/gemm/g.cuh": "void f() { k<<<1, 2>>>(); }\n"},
         "only in a .cu"),
    ]
    return source_tree.run_self_test(check, cases)


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    messages = check(source_tree.ROOT)
    print("\n".join(messages + [f"layers: {len(messages)} errors"]))
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
