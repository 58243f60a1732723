#!/usr/bin/env python3
"""Prints what ./dev check did: a line per stage with its time and budget, skips, and the total.

check_summary.py STAGES   STAGES: one stage a line, tab-separated:
                          name, budget in minutes, seconds, pass|fail|skip, JUnit file or '-', note
A stage with a JUnit file counts its tests; any other stage counts as one. A stage that failed
although no test of it did (a build error, a crash of ctest) counts as one failure.
"""

import sys
import tempfile
import xml.etree.ElementTree
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failed_names: list = field(default_factory=list)
    skipped_names: list = field(default_factory=list)


def count_tests(junit_path):
    """The tests of one ctest run."""
    count = Count()
    for case in xml.etree.ElementTree.parse(junit_path).getroot().iter("testcase"):
        status, name = case.get("status"), case.get("name")
        skip = case.find("skipped")
        # A test whose binary is missing is 'notrun' as well: only a test that asked to be skipped,
        # or was switched off in the source, is a skip.
        asked = skip is not None and "SKIP" in skip.get("message", "")
        if status == "run":
            count.passed += 1
        elif status == "disabled" or (status == "notrun" and asked):
            count.skipped += 1
            count.skipped_names.append(name)
        else:
            count.failed += 1
            count.failed_names.append(name)
    return count


def count_stage(verdict, junit):
    """What a stage adds to the total."""
    count = Count()
    if junit != "-" and Path(junit).is_file():
        count = count_tests(junit)
    if verdict == "fail" and count.failed == 0:
        count.failed = 1
    elif verdict == "skip":
        count.skipped += 1
    elif verdict == "pass" and junit == "-":
        count.passed = 1
    return count


def summarise(stages_text):
    """(lines to print, number of failures)"""
    header = f"{'stage':<10}{'result':<8}{'min':>7}{'budget':>8}{'passed':>9}{'failed':>8}"
    lines = [header + f"{'skipped':>9}  note"]
    total, seconds, budget, details = Count(), 0.0, 0.0, []
    for stage_line in stages_text.splitlines():
        name, stage_budget, stage_seconds, verdict, junit, note = stage_line.split("\t")
        count = count_stage(verdict, junit)
        minutes = float(stage_seconds) / 60
        if minutes > float(stage_budget):
            note = ("over budget; " + note).rstrip("; ")
        lines.append(f"{name:<10}{verdict:<8}{minutes:>7.1f}{stage_budget:>8}{count.passed:>9}"
                     f"{count.failed:>8}{count.skipped:>9}  {note}".rstrip())
        total.passed += count.passed
        total.failed += count.failed
        total.skipped += count.skipped
        seconds += float(stage_seconds)
        budget += float(stage_budget)
        details += [f"failed: {name}: {test}" for test in count.failed_names]
        details += [f"skipped: {name}: {test}" for test in count.skipped_names]
    lines.append(f"{'total':<18}{seconds / 60:>7.1f}{budget:>8g}{total.passed:>9}"
                 f"{total.failed:>8}{total.skipped:>9}")
    lines += details
    lines.append(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return lines, total.failed


def self_test():
    junit = ('<testsuite><testcase name="a" status="run"/><testcase name="b" status="fail"/>'
             '<testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"'
             '/></testcase><testcase name="d" status="notrun"><skipped message=""/></testcase>'
             '<testcase name="e" status="disabled"/></testsuite>')
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "junit.xml"
        path.write_text(junit, encoding="ascii")
        lines, failed = summarise(f"gate\t1\t30\tpass\t-\t\nbuild\t1\t90\tfail\t-\t\n"
                                  f"none\t1\t0\tskip\t-\tno nvcc\ntests\t1\t1\tfail\t{path}\t\n")
    good = (lines[-1] == "2 passed, 3 failed, 3 skipped" and failed == 3
            and any("over budget" in line for line in lines) and "failed: tests: d" in lines)
    print(f"self-test: {'1 of 1' if good else lines} planted cases judged right")
    return 0 if good else 1


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    lines, failed = summarise(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print("\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
