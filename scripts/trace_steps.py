#!/usr/bin/env python3
"""When the steps of a launch end, from a trace of the GPU: medians over launches.

  scripts/trace_steps.py TRACE.json [--last N] [--rank R] [--json]

Microseconds since the launch's earliest event on the rank. A step that several units take has its
first, median and last unit. Then, for each role, how long a track (a CTA; of role 1 a warp) was
at which event between its first and its last. Without --last all launches of the file count.
Exit status 2: the file is no trace of a GPU, with the reason.
"""

import argparse
import json
import statistics
import sys

# (name, role word of the unit, only unit 0, kind, task, which end)
STEPS = [
    ("role 1, unit 0: knows its launch", "role 1", True, "begin", None, "end"),
    ("role 1, unit 0: own slots counted", "role 1", True, "count", None, "end"),
    ("role 1, unit 0: counts published", "role 1", True, "route", 0, "end"),
    ("role 1, unit 0: counts received", "role 1", True, "receive", None, "end"),
    ("role 1, unit 0: blocks published", "role 1", True, "route", 1, "end"),
    ("role 1: knows its launch", "role 1", False, "begin", None, "end"),
    ("role 1: counts received", "role 1", False, "receive", None, "end"),
    ("role 1: first row's place free", "role 1", False, "fill", None, "first begin"),
    ("role 1: first row in the ring", "role 1", False, "fill", None, "first end"),
    ("role 1: last row in the ring", "role 1", False, "fill", None, "end"),
    ("role 2: knows its launch", "role 2", False, "begin", None, "end"),
    ("role 2: told the blocks", "role 2", False, "wait num_blocks", None, "end"),
    ("role 2: first rows there", "role 2", False, "first GEMM", None, "first begin"),
    ("role 2: first task ended", "role 2", False, "first GEMM", None, "first end"),
    ("role 2: last first GEMM ended", "role 2", False, "first GEMM", None, "end"),
    ("role 2: first second GEMM began", "role 2", False, "second GEMM", None, "first begin"),
    ("role 2: last second GEMM ended", "role 2", False, "second GEMM", None, "end"),
    ("role 3: waits for done", "role 3", False, "wait done", None, "first begin"),
    ("role 3: has done", "role 3", False, "wait done", None, "end"),
    ("role 3: sums written", "role 3", False, "combine", None, "end"),
]


class NoTrace(Exception):
    """The file is not what `gcmoe` writes of a GPU."""


def load(path, rank):
    """({generation: [(unit's role, unit's name, event)]}, events that did not fit)"""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        names, launches = {}, {}
        for event in data["traceEvents"]:
            key = (event["pid"], event["tid"])
            if event["name"] == "thread_name":
                names[key] = event["args"]["name"].split(" warp ")[0]
            elif event["ph"] == "X" and event["pid"] == rank:
                role, unit = names[key].rsplit(" unit ", 1)
                launch = launches.setdefault(event["args"]["generation"], [])
                launch.append((role, int(unit), event))
        if not any(role == "role 2" for launch in launches.values() for role, _, _ in launch):
            raise NoTrace(f"no GPU recorded it, or rank {rank} has no events")
        return launches, data["otherData"]["dropped_events"]
    except OSError as error:
        raise NoTrace(f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise NoTrace(str(error)) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NoTrace(f"no trace of gcmoe: {error!r} is missing or of another type") from error


def step_times(launch, step):
    """{unit: microseconds} of a step of one launch."""
    _, role, only_first, kind, task, which = step
    times = {}
    for event_role, unit, event in launch:
        args = event["args"]
        if event_role != role or (only_first and unit != 0):
            continue
        if kind not in (args["kind"], event["name"]) or task not in (None, args.get("task")):
            continue
        if which == "first begin":
            time, pick = event["ts"], min
        elif which == "first end":
            time, pick = event["ts"] + event["dur"], min
        else:
            time, pick = event["ts"] + event["dur"], max
        times[unit] = pick(times.get(unit, time), time)
    origin = min(event["ts"] for _, _, event in launch)
    return {unit: time - origin for unit, time in times.items()}


def steps_of(launches):
    """[{step, units, first, median, last}]: medians over the launches."""
    rows = []
    for step in STEPS:
        found = [list(times.values()) for times in
                 (step_times(launch, step) for launch in launches) if times]
        if not found:
            continue
        middle = statistics.median
        rows.append({"step": step[0], "units": int(middle(len(times) for times in found)),
                     "first": middle(min(times) for times in found),
                     "median": middle(middle(times) for times in found),
                     "last": middle(max(times) for times in found)})
    return rows


def times_by_event(launches):
    """{role: {event name: microseconds a track}}: from a track's first event to its last, "" = no
    event; medians over the launches."""
    found = {}
    for launch in launches:
        tracks = {}
        for role, _, event in launch:
            tracks.setdefault(role, {}).setdefault(event["tid"], []).append(event)
        for role, of_role in tracks.items():
            sums = {"": 0.0}
            for events in of_role.values():
                begin = min(event["ts"] for event in events)
                end = max(event["ts"] + event["dur"] for event in events)
                sums[""] += end - begin - sum(event["dur"] for event in events)
                for event in events:
                    sums[event["name"]] = sums.get(event["name"], 0.0) + event["dur"]
            for name, time in sums.items():
                found.setdefault(role, {}).setdefault(name, []).append(time / len(of_role))
    return {role: {name: statistics.median(times) for name, times in names.items()}
            for role, names in sorted(found.items())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", help="what `gcmoe trace`, `run --trace` or `bench --trace` wrote")
    parser.add_argument("--last", type=int, help="only so many launches, the last ones")
    parser.add_argument("--rank", type=int, default=0, help="whose units (0)")
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    options = parser.parse_args()
    if options.last is not None and options.last < 1:
        parser.error(f"--last {options.last}: must be at least 1")
    try:
        found, dropped = load(options.trace, options.rank)
    except NoTrace as error:
        print(f"trace_steps.py: {options.trace}: {error}", file=sys.stderr)
        return 2
    launches = [found[generation] for generation in sorted(found)][-(options.last or 0):]
    rows, parts = steps_of(launches), times_by_event(launches)
    if options.json:
        print(json.dumps({"launches": len(launches), "dropped_events": dropped, "steps": rows,
                          "us_a_track": parts}, indent=1))
        return 0
    print(f"{len(launches)} launches, {dropped} events did not fit; us since the first event")
    print(f"{'step':38}{'units':>6}{'first':>8}{'median':>8}{'last':>8}")
    for row in rows:
        print(f"{row['step']:38}{row['units']:6}{row['first']:8.1f}{row['median']:8.1f}"
              f"{row['last']:8.1f}")
    for role, names in parts.items():
        print(f"{role}, us a track:")
        for name, time in sorted(names.items(), key=lambda item: -item[1]):
            print(f"  {name or 'no event':36}{time:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
