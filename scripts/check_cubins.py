#!/usr/bin/env python3
"""The cubins that `gcmoe info --json` lists are those in the command, by `cuobjdump --list-elf`.

check_cubins.py COMMAND       a test of preset cuda (ctest: cubins)
check_cubins.py --self-test

The command must hold no PTX either: whatever runs was compiled and checked ahead of time.
"""

import json
import re
import subprocess
import sys

import cuda_objects

ELF_LINE = re.compile(r"^ELF file\s+\d+: \S*?\.(sm_\w+)\.cubin$")
PTX_LINE = re.compile(r"^PTX file\s+\d+: (\S+)$")


def names(pattern, text):
    return sorted({match.group(1) for match in map(pattern.match, text.splitlines()) if match})


def judge(listed, elf_text, ptx_text):
    """Messages about the names that info lists and cuobjdump's two lists."""
    inside = names(ELF_LINE, elf_text)
    messages = []
    if sorted(listed) != inside:
        messages.append(f"info lists {sorted(listed)}, the command carries {inside}")
    if not inside:
        messages.append("the command carries no cubin")
    for name in names(PTX_LINE, ptx_text):
        messages.append(f"the command carries PTX: {name}")
    return messages


def self_test():
    elf = "ELF file    1: gcmoe.1.sm_90a.cubin\nELF file    2: gcmoe.2.sm_90a.cubin\n"
    more = elf + "ELF file    3: gcmoe.3.sm_100a.cubin\n"
    cases = [
        ("equal", ["sm_90a"], elf, "", None),
        ("two", ["sm_90a", "sm_100a"], more, "", None),
        ("one unlisted", ["sm_90a"], more, "", "the command carries ['sm_100a', 'sm_90a']"),
        ("one missing", ["sm_90a", "sm_103a"], elf, "", "info lists"),
        ("none", [], "", "", "carries no cubin"),
        ("PTX", ["sm_90a"], elf, "PTX file    1: gcmoe.1.sm_90a.ptx\n", "carries PTX"),
    ]
    bad = 0
    for title, listed, elf_text, ptx_text, expected in cases:
        messages = judge(listed, elf_text, ptx_text)
        if bool(messages) != bool(expected) or (expected and expected not in "".join(messages)):
            bad += 1
            print(f"self-test: '{title}' expected {expected!r}, got {messages}")
    print(f"self-test: {len(cases) - bad} of {len(cases)} planted cases judged right")
    return 1 if bad else 0


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    command = sys.argv[1]
    tool = cuda_objects.find_tool()
    if tool is None:
        print("cubins: skipped: no cuobjdump here, and none in build/cuda-tools")
        return cuda_objects.SKIPPED
    info = subprocess.run([command, "info", "--json"], text=True, capture_output=True, check=True)
    listed = json.loads(info.stdout)["cubins"]
    messages = judge(listed, cuda_objects.dump(tool, "-lelf", command),
                     cuda_objects.dump(tool, "-lptx", command))
    print("\n".join(messages + [f"cubins: {', '.join(listed)}: {len(messages)} errors"]))
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
