#!/usr/bin/env python3
"""Each .hpp outside src/cuda must compile alone, with a host compiler and no CUDA on the path.

A header that compiled is remembered by a hash of everything that went in (it, the project headers
it reaches, this script, the compiler), so that a second run costs a second.
"""

import concurrent.futures
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import source_tree

COMPILER = "g++"
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Wpedantic", "-Werror",
         "-x", "c++", "-"]
JOBS = 2
CUDA_HEADER = re.compile(r"/(cuda\w*\.h|crt/\w+\.h|cooperative_groups\.h|cuda/std/.*)$")
CUDA_PLACES = ("src/cuda/", "tests/cuda/")


def headers(root):
    """The headers that must stand alone."""
    return [path for path in source_tree.project_files(root, {".hpp", ".h"})
            if not path.as_posix().startswith(CUDA_PLACES)]


def reachable(root, header):
    """The header and every project file it includes, directly or not."""
    seen, pending = set(), [header]
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        for _, name, is_quoted in source_tree.includes(source_tree.read_text(root, path)):
            target = source_tree.resolve(root, path, name) if is_quoted else None
            if target:
                pending.append(target)
    return sorted(seen)


def fingerprint(root, header, compiler_version):
    digest = hashlib.sha256(compiler_version.encode() + Path(__file__).read_bytes())
    for path in reachable(root, header):
        digest.update(f"\n{path}\n".encode())
        digest.update((root / path).read_bytes())
    return digest.hexdigest()


def compile_alone(root, header):
    """The compiler's complaint about a header, or an empty string."""
    # Through an including file on stdin: GCC warns about '#pragma once' in a main file.
    command = [COMPILER, "-H", "-Iinclude", "-Isrc", "-I.", "-Itests", *FLAGS]
    # The toolkit may be on the path behind our back: by these variables, or in /usr/local/include,
    # where only the list of opened files (-H, lines that start with dots) shows it.
    clean_environment = {key: value for key, value in os.environ.items()
                         if key not in ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH")}
    done = subprocess.run(command, input=f'#include "{header.as_posix()}"\n', text=True, cwd=root,
                          capture_output=True, check=False, env=clean_environment)
    opened, complaints = [], []
    for line in done.stderr.splitlines():
        match = re.match(r"[.!x]+ (/?.*)$", line)
        if match:
            opened.append(match.group(1))
        elif not re.match(r"Multiple include guards|(/\S+|\w\S*\.h\w*)$", line):
            complaints.append(line)
    cuda = [path for path in opened if CUDA_HEADER.search(path)]
    if cuda:
        complaints.append(f"reaches the CUDA header {cuda[0]}")
    return "\n".join(complaints) or ("failed" if done.returncode else "")


def check(root):
    """One message per header that does not compile alone."""
    version = subprocess.run([COMPILER, "--version"], text=True, capture_output=True,
                             check=True).stdout
    passed_dir = root / "build" / "check_headers"
    passed_dir.mkdir(parents=True, exist_ok=True)
    marks = {header: passed_dir / fingerprint(root, header, version) for header in headers(root)}
    todo = [header for header, mark in marks.items() if not mark.exists()]
    messages = []
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for header, complaint in zip(todo, pool.map(lambda h: compile_alone(root, h), todo)):
            if complaint:
                messages.append(f"{header}: does not compile alone\n{complaint}")
            else:
                marks[header].touch()
    for stale in set(passed_dir.iterdir()) - set(marks.values()):
        stale.unlink()
    if root == source_tree.ROOT:
        print(f"headers: {len(marks)} headers, {len(todo)} compiled, {len(messages)} errors")
    return messages


def self_test():
    cases = [
        ("clean", {"src/base/a.hpp": "#pragma once\n#include <vector>\nstd::vector<int> f();\n",
                   "src/op/b.hpp": '#pragma once\n#include "base/a.hpp"\n'}, None),
        ("missing include", {"src/base/a.hpp": "#pragma once\nstd::vector<int> f();\n"},
         "src/base/a.hpp: does not compile alone"),
        ("CUDA needed", {"include/gcmoe/a.hpp": "#pragma once\n#include <cuda_runtime.h>\n"},
         "include/gcmoe/a.hpp: does not compile alone"),
        ("warning", {"src/base/a.hpp": "#pragma once\ninline int f(int unused) { return 1; }\n"},
         "unused"),
        ("src/cuda is left out", {"src/cuda/a.hpp": "#include <cuda_runtime.h>\n"}, None),
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
