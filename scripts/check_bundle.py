#!/usr/bin/env python3
"""The GPU bundle: everything is there, it is small, and it needs nothing but the C library.

check_bundle.py FOLDER        (./dev bundle calls it)
check_bundle.py --self-test

Needed libraries are the NEEDED entries of bin/*; the driver is opened at run time. The oldest C
library that will do is printed.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import source_tree

MAX_BYTES = 40 * 1024 * 1024
PROGRAMS = ("bin/gcmoe", "bin/test_cuda", "bin/libgcmoe_torch_probe.so", "scripts/gpu/suite",
            "scripts/gpu/bench", "scripts/gpu/profile", "scripts/gpu/sanitize")
FILES = ("scripts/gpu/common.sh", "scripts/torch_capture.py", "scripts/bench_table.py",
         "scripts/bench_data.py", "bench/results/peers-h200.jsonl",
         "bench/results/targets-h200.jsonl", "suites/routed.csv", "suites/shared.csv")
ALLOWED = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0",
           "ld-linux-x86-64.so.2"}


def needed_by(path):
    """(libraries, versions of the C library) that an ELF file asks for."""
    dynamic = subprocess.run(["readelf", "-dW", str(path)], text=True, capture_output=True,
                             check=False).stdout
    versions = subprocess.run(["readelf", "-VW", str(path)], text=True, capture_output=True,
                              check=False).stdout
    return (set(re.findall(r"\(NEEDED\).*\[(.+?)\]", dynamic)),
            {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+(?:\.\d+)+)", versions)})


def check(folder, needed=needed_by, max_bytes=MAX_BYTES):
    """One message per fault of the bundle."""
    messages = []
    for name in PROGRAMS + FILES:
        path = folder / name
        if not path.is_file():
            messages.append(f"{name} is missing")
        elif name in PROGRAMS and not os.access(path, os.X_OK):
            messages.append(f"{name} is not executable")
    links = [path for path in folder.rglob("*") if path.is_symlink()]
    messages += [f"{path.relative_to(folder)} is a link" for path in links]
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if total > max_bytes:
        messages.append(f"{total} bytes, at most {max_bytes}")
    newest = (0,)
    for path in sorted((folder / "bin").glob("*")):
        libraries, versions = needed(path)
        newest = max([newest, *versions])
        if not libraries:
            messages.append(f"bin/{path.name}: no dynamic section: is this a program?")
        messages += [f"bin/{path.name} needs {name}" for name in sorted(libraries - ALLOWED)]
    if needed is needed_by:
        print(f"bundle: {folder}: {total / 2**20:.1f} MiB of {max_bytes / 2**20:.0f}, glibc "
              f"{'.'.join(map(str, newest))} or newer, {len(messages)} errors")
    return messages


def self_test():
    good = {name: "#!/bin/sh\n" for name in PROGRAMS + FILES}

    def check_planted(libraries=frozenset({"libc.so.6"}), executable=PROGRAMS):
        def run(folder):
            for name in executable:
                if (folder / name).is_file():
                    (folder / name).chmod(0o755)
            return check(folder, lambda path: (set(libraries), {(2, 36)}), 1000)
        return run

    def without(name):
        return {key: text for key, text in good.items() if key != name}

    bad = source_tree.run_self_test(check_planted(), [
        ("complete", good, None),
        ("too big", good | {"bin/core": "x" * 1000}, "bytes, at most 1000"),
        ("no suite", without("suites/shared.csv"), "suites/shared.csv is missing"),
        ("no program", without("bin/test_cuda"), "bin/test_cuda is missing"),
        ("no probe", without("bin/libgcmoe_torch_probe.so"), "torch_probe.so is missing"),
    ])
    bad += source_tree.run_self_test(check_planted({"libc.so.6", "libfmt.so.9"}), [
        ("a library that is not there", good, "bin/gcmoe needs libfmt.so.9")])
    bad += source_tree.run_self_test(check_planted(set()), [
        ("no ELF file", good, "no dynamic section")])
    bad += source_tree.run_self_test(check_planted(executable=PROGRAMS[:2]), [
        ("script not executable", good, "scripts/gpu/suite is not executable")])
    libraries, versions = needed_by(sys.executable)
    if "libc.so.6" not in libraries or not versions:
        print(f"self-test: {sys.executable} needs {libraries}, {versions}: readelf was misread")
        bad += 1
    return 1 if bad else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    messages = check(Path(sys.argv[1]))
    if messages:
        print("\n".join(messages))
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
