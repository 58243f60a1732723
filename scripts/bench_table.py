#!/usr/bin/env python3
"""Results of `gcmoe bench --out` as Markdown: against the floor, the targets and other operators.

  scripts/bench_table.py RESULTS.jsonl [--peers FILE] [--targets FILE]

A row a point of the default variant: time, multiple of the floor, target, the fastest peer with
MXFP4 weights and how many times faster this operator is: in time, and in multiples of the own
floors (peers were measured with other routings, whose touched experts differ a little). Below it
the sums; then the empty launches, and a table of the other variants against the default, if any.
Exit status 2: a file is not what it should be, with the reason.
"""

import argparse
import sys
from statistics import geometric_mean

import bench_data as data

# Of the project's goals, against the fastest peer.
LEAST_SPEEDUP, LEAST_MEAN_SPEEDUP = 1.2, 1.4
MOST_EMPTY_US = 9.0
# What a fused shared expert may add beyond its bytes, up to so many tokens.
MOST_SHARED_US, MOST_SHARED_TOKENS = 5.0, 32


def verdict(met):
    return "met" if met else "missed"


def target_cells(point, target):
    """(what is asked, verdict) of a point; empty without a target or with a shared expert."""
    if target is None or point["shared_floor_us"] > 0:
        return "", ""
    if "most_us" in target:
        return f"{target['most_us']:g} us", verdict(data.time_of(point) <= target["most_us"])
    return f"{target['most_ratio']:.2f}", verdict(data.ratio_of(point) <= target["most_ratio"])


def speedups(point, peer):
    """(in time, in multiples of the own floors) against a peer; None without one."""
    if peer is None or point["shared_floor_us"] > 0:
        return None
    return (peer["us"] / data.time_of(point),
            (peer["us"] / peer["floor_us"]) / data.ratio_of(point))


def optional(value, digits=1):
    return "" if value is None else f"{value:.{digits}f}"


def markdown(header, rows, left=1):
    """Lines of a table without the columns that are empty; all but the first are numbers."""
    rows = list(rows)
    full = [i for i in range(len(header)) if any(row[i] for row in rows)]
    header, rows = [header[i] for i in full], [[row[i] for i in full] for row in rows]
    yield "| " + " | ".join(header) + " |"
    yield "|" + "|".join("---" if i < left else "---:" for i in range(len(header))) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def point_rows(points, peers, targets):
    for point in points:
        peer = data.fastest_peer(peers, point["model"], point["tokens"])
        gain = speedups(point, peer)
        asked, met = target_cells(point, targets.get((point["model"], point["tokens"])))
        yield [data.title_of(point["model"]), str(point["tokens"]), str(point["touched"]),
               f"{data.time_of(point):.1f}", f"{data.ratio_of(point):.2f}", asked, met,
               optional(point.get("copy_us")), optional(point.get("paper_us")),
               optional(point.get("burst_us")), optional(point.get("sustained_us")),
               optional(point.get("tflops")), optional(point.get("working_set_gb_s"), 0),
               "" if gain is None else f"{peer['peer']} {peer['us']:.1f} ({peer['touched']})",
               "" if gain is None else f"{gain[0]:.2f}", "" if gain is None else f"{gain[1]:.2f}"]


POINT_HEADER = ["model", "tokens", "experts", "us", "x floor", "target", "", "copy us", "paper us",
                "burst us", "sustained us", "TFLOPS", "GB/s", "fastest peer, us (experts)",
                "times faster", "by floors"]


def sums(points, peers, targets):
    """Sentences about all points together."""
    verdicts = [target_cells(point, targets.get((point["model"], point["tokens"])))[1]
                for point in points]
    judged = [word for word in verdicts if word]
    if judged:
        yield f"Targets: {judged.count('met')} of {len(judged)} met."
    used = [(point, data.fastest_peer(peers, point["model"], point["tokens"])) for point in points]
    gains = [(speedups(point, peer), point) for point, peer in used if speedups(point, peer)]
    if not gains:
        return
    least, where = min(gains, key=lambda gain: gain[0][0])
    mean = geometric_mean(gain[0][0] for gain in gains)
    by_floors = geometric_mean(gain[0][1] for gain in gains)
    dates = sorted({peer["date"] for point, peer in used if speedups(point, peer)})
    yield (f"Against the fastest peer with MXFP4 weights (measured {', '.join(dates)}), "
           f"{len(gains)} points: least {least[0]:.2f} times faster "
           f"({data.title_of(where['model'])}, {where['tokens']}; every point at least "
           f"{LEAST_SPEEDUP}: {verdict(least[0] >= LEAST_SPEEDUP)}), geometric mean {mean:.2f} "
           f"(at least {LEAST_MEAN_SPEEDUP}: {verdict(mean >= LEAST_MEAN_SPEEDUP)}), by floors "
           f"{by_floors:.2f}.")


# What targets and peers were measured with.
GPU, FLUSH_MIB = "NVIDIA H200", 512


def warnings(points, peers, targets):
    """What makes points no match for the targets and peers beside them."""
    points = [point for point in points
              if target_cells(point, targets.get((point["model"], point["tokens"])))[0]
              or speedups(point, data.fastest_peer(peers, point["model"], point["tokens"]))]
    others = sorted({point["gpu"] for point in points} - {GPU})
    if others:
        yield f"Targets and peers are of one {GPU}, not of: {', '.join(others)}."
    flushes = sorted({point.get("flush_mib", FLUSH_MIB) for point in points} - {FLUSH_MIB})
    if flushes:
        yield (f"Targets and peers have {FLUSH_MIB} MiB written before each launch, not: "
               f"{', '.join(str(mib) for mib in flushes)}.")


def empty_sentence(points):
    empties = [point for point in points if point["kind"] == "empty"]
    if empties:
        times = ", ".join(f"{data.title_of(point['model'])} {data.time_of(point):.1f}"
                          for point in empties)
        met = all(data.time_of(point) <= MOST_EMPTY_US for point in empties)
        yield f"Empty launch, us (at most {MOST_EMPTY_US:g}: {verdict(met)}): {times}."


def shared_sentences(points):
    """What the fused shared expert costs (of `--ablation shared`): over its bytes, and against a
    launch of its own."""
    variants = {name: {(p["model"], p["tokens"]): p for p in data.layers(points, name)}
                for name in ("default", "shared-fused", "shared-apart")}
    fused = variants["shared-fused"]
    extra = [(data.time_of(fused[key]) - data.time_of(base) - fused[key]["shared_floor_us"], key)
             for key, base in variants["default"].items()
             if key in fused and key[1] <= MOST_SHARED_TOKENS]
    if extra:
        most, (model, tokens) = max(extra)
        yield (f"Shared expert fused, up to {MOST_SHARED_TOKENS} tokens: adds at most {most:.1f} "
               f"us to the time of its bytes ({data.title_of(model)}, {tokens}; at most "
               f"{MOST_SHARED_US:g}: {verdict(most <= MOST_SHARED_US)}).")
    both = [data.time_of(fused[key]) < data.time_of(apart)
            for key, apart in variants["shared-apart"].items() if key in fused]
    if both:
        yield (f"Fused is faster than apart at {sum(both)} of {len(both)} points (every: "
               f"{verdict(all(both))}).")


def variant_rows(points):
    """Other variants beside the default of the same run: us, and the share of the default."""
    defaults = {(p["model"], p["tokens"]): p for p in data.layers(points)}
    for point in points:
        base = defaults.get((point["model"], point["tokens"]))
        if point["kind"] != "layer" or point["variant"] == "default" or base is None:
            continue
        yield [data.title_of(point["model"]), str(point["tokens"]), point["variant"],
               f"{data.time_of(point):.1f}", f"{data.time_of(base):.1f}",
               f"{data.time_of(point) / data.time_of(base):.3f}"]


def report(points, peers, targets):
    own = data.layers(points)
    yield f"{data.origin_of(points)}."
    yield ""
    if own:
        yield from markdown(POINT_HEADER, point_rows(own, peers, targets))
        yield ""
    yield from warnings(own, peers, targets)
    yield from sums(own, peers, targets)
    yield from empty_sentence(points)
    yield from shared_sentences(points)
    others = list(variant_rows(points))
    if others:
        yield ""
        yield from markdown(["model", "tokens", "variant", "us", "default us", "of default"],
                            others)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", help="what `gcmoe bench --out` wrote")
    parser.add_argument("--peers", default=data.PEERS, help=f"({data.PEERS.name})")
    parser.add_argument("--targets", default=data.TARGETS, help=f"({data.TARGETS.name})")
    options = parser.parse_args()
    try:
        points = data.read_points(options.results)
        lines = report(points, data.read_peers(options.peers), data.read_targets(options.targets))
        sys.stdout.write("\n".join(lines) + "\n")
    except data.BadFile as error:
        print(f"bench_table.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
