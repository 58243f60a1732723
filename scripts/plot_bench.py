#!/usr/bin/env python3
"""Pictures of `gcmoe bench --out`, PNG and SVG; needs matplotlib.

  scripts/plot_bench.py RESULTS.jsonl [--peers FILE] [--out FOLDER]

bench_MODEL: time of the default variant against the floor, the same bytes only copied, and the
peers with MXFP4 weights; below, the multiples of the floor. ablation_NAME_MODEL for each ablation
in the file: times of its variants as multiples of the default's. The same input gives the same
bytes (of one version of matplotlib).
Exit status 2: a file is not what it should be, with the reason; 77: there is no matplotlib.
"""

import argparse
import sys
from pathlib import Path

import bench_data as data

SKIPPED = 77
OWN, FLOOR, COPY = "#c0392b", "#222222", "#888888"
PEER_COLOURS = ("#2f6fb3", "#2e8b57", "#e08214", "#7a5195")
# First words of the variants' names -> the ablation that they belong to.
ABLATIONS = {"dispatch": "partition", "no": "overlap", "serial": "overlap", "combine": "combine",
             "shared": "shared", "eager": "launch", "traced": "trace"}


def new_figure(plt, rows, title):
    figure, axes = plt.subplots(rows, 1, figsize=(7, 3.6 * rows), sharex=True, squeeze=False)
    figure.suptitle(title, fontsize=11)
    return figure, [row[0] for row in axes]


def draw_tokens(axis, tokens):
    """A logarithmic axis of tokens with the measured numbers as ticks."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(tokens, [str(count) for count in tokens])
    axis.minorticks_off()
    axis.grid(True, lw=0.3)


def draw_times(axis, values):
    """A logarithmic axis of microseconds with round numbers as ticks."""
    axis.set_yscale("log")
    ticks = [step * 10 ** power for power in range(1, 5) for step in (1, 2, 5)]
    low, high = min(values) / 1.2, max(values) * 1.2
    inside = [tick for tick in ticks if low <= tick <= high]
    axis.set_yticks(inside, [str(tick) for tick in inside])
    axis.minorticks_off()
    axis.set_ylim(low, high)
    axis.set_ylabel("us a launch")


def draw_line(axis, points, colour, label, **style):
    """points: (tokens, value) pairs; those without a value are left out."""
    there = sorted((x, y) for x, y in points if y is not None)
    if there:
        axis.plot(*zip(*there), color=colour, label=label, **style)


def peer_lines(peers, model, tokens):
    """name -> [(tokens, peer)] of the peers with MXFP4 weights."""
    lines = {}
    for peer in peers:
        if (peer["model"] == model and peer["weights"] == "mxfp4" and peer["tokens"] in tokens):
            lines.setdefault(peer["peer"], []).append((peer["tokens"], peer))
    return lines


def draw_model(plt, model, points, peers):
    own = [point for point in data.layers(points) if point["model"] == model]
    tokens = sorted(point["tokens"] for point in own)
    title = f"{data.title_of(model)}: {data.origin_of(own)}"
    figure, (times, ratios) = new_figure(plt, 2, title)

    def of_own(value):
        return [(point["tokens"], value(point)) for point in own]

    for colour, (name, line) in zip(PEER_COLOURS, sorted(peer_lines(peers, model, tokens).items())):
        label = f"{name} ({line[0][1]['date']})"
        draw_line(times, [(x, peer["us"]) for x, peer in line], colour, label, marker=".", lw=1)
        draw_line(ratios, [(x, peer["us"] / peer["floor_us"]) for x, peer in line], colour, label,
                  marker=".", lw=1)
    draw_line(times, of_own(lambda p: p.get("copy_us")), COPY, "bytes copied only", ls=":")
    draw_line(times, of_own(data.floor_of), FLOOR, "floor: bytes at 4.3 TB/s", ls="--", lw=1)
    draw_line(times, of_own(data.time_of), OWN, "GC-MoE", marker="o", lw=2)
    draw_line(times, of_own(lambda p: p.get("sustained_us")), OWN, "GC-MoE, 2 s back to back",
              ls="-.", lw=1)
    draw_line(ratios, of_own(data.ratio_of), OWN, "GC-MoE", marker="o", lw=2)
    ratios.set_ylabel("multiple of the own floor")
    ratios.set_ylim(bottom=1)
    for axis in (times, ratios):
        draw_tokens(axis, tokens)
        axis.legend(fontsize=7)
    draw_times(times, [y for line in times.get_lines() for y in line.get_ydata()])
    ratios.set_xlabel("tokens of the rank")
    return figure


def variants_of(points, model):
    """ablation -> {variant: [(tokens, share of the default)]} of one model."""
    defaults = {p["tokens"]: p for p in data.layers(points) if p["model"] == model}
    found = {}
    for point in points:
        base = defaults.get(point["tokens"])
        if (point["kind"], point["model"]) != ("layer", model) or base in (None, point):
            continue
        name = ABLATIONS.get(point["variant"].split("-")[0], "other")
        line = found.setdefault(name, {}).setdefault(point["variant"], [])
        line.append((point["tokens"], data.time_of(point) / data.time_of(base)))
    return found


def draw_ablation(plt, model, name, lines, origin):
    figure, (axis,) = new_figure(plt, 1, f"{data.title_of(model)}, {name}: {origin}")
    colours = plt.get_cmap("viridis", max(len(lines), 2))
    for number, (variant, line) in enumerate(lines.items()):
        draw_line(axis, line, colours(number), variant, marker="o", lw=1.5)
    axis.axhline(1, color=FLOOR, lw=1, ls="--", label="default")
    draw_tokens(axis, sorted({x for line in lines.values() for x, _ in line}))
    axis.set_xlabel("tokens of the rank")
    axis.set_ylabel("time, of the default's")
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def save(plt, figure, folder, name):
    """PNG and SVG without dates or versions, so that equal pictures are equal files."""
    figure.tight_layout()
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        path = folder / f"{name.replace('/', '_')}{suffix}"
        figure.savefig(path, dpi=120, metadata=metadata)
        print(path)
    plt.close(figure)


def draw_all(plt, points, peers, folder):
    for model in data.models_of(data.layers(points)):
        save(plt, draw_model(plt, model, points, peers), folder, f"bench_{model}")
        for name, lines in variants_of(points, model).items():
            figure = draw_ablation(plt, model, name, lines, data.origin_of(points))
            save(plt, figure, folder, f"ablation_{name}_{model}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", help="what `gcmoe bench --out` wrote")
    parser.add_argument("--peers", default=data.PEERS, help=f"({data.PEERS.name})")
    parser.add_argument("--out", default="docs/plots", help="folder of the pictures (docs/plots)")
    options = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        print("plot_bench.py: skipped: no matplotlib here (pip install matplotlib)",
              file=sys.stderr)
        return SKIPPED
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "gcmoe"
    from matplotlib import pyplot as plt
    try:
        points, peers = data.read_points(options.results), data.read_peers(options.peers)
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        draw_all(plt, points, peers, folder)
    except (data.BadFile, OSError) as error:
        print(f"plot_bench.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
