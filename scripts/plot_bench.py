#!/usr/bin/env python3
"""Pictures of `gcmoe bench --out`, PNG and SVG; needs matplotlib.

  scripts/plot_bench.py RESULTS.jsonl [--peers FILE] [--out FOLDER]

bench_MODEL: time of the default variant against the floor, the same bytes only copied, and the
peers with MXFP4 weights; below, the multiples of the floor. The same input gives the same bytes (of
one version of matplotlib). Ablations: scripts/plot_ablation.py.
Exit status 2: a file is not what it should be, with the reason; 77: there is no matplotlib.
"""

import argparse
import sys
from pathlib import Path

import bench_data as data
import bench_plots as plots

OWN, FLOOR, COPY = "#c0392b", "#222222", "#888888"
PEER_COLOURS = ("#2f6fb3", "#2e8b57", "#e08214", "#7a5195")


def new_figure(plt, rows, title):
    figure, axes = plt.subplots(rows, 1, figsize=(7, 3.6 * rows), sharex=True, squeeze=False)
    figure.suptitle(title, fontsize=11)
    return figure, [row[0] for row in axes]


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
        for axis, unit in ((times, lambda peer: 1), (ratios, lambda peer: peer["floor_us"])):
            plots.draw_line(axis, [(x, peer["us"] / unit(peer)) for x, peer in line], colour,
                            label, marker=".", lw=1)
    plots.draw_line(times, of_own(lambda p: p.get("copy_us")), COPY, "bytes copied only", ls=":")
    plots.draw_line(times, of_own(data.floor_of), FLOOR, "floor: bytes at 4.3 TB/s", ls="--", lw=1)
    plots.draw_line(times, of_own(data.time_of), OWN, "GC-MoE", marker="o", lw=2)
    plots.draw_line(times, of_own(lambda p: p.get("sustained_us")), OWN, "GC-MoE, 2 s back to back",
                    ls="-.", lw=1)
    plots.draw_line(ratios, of_own(data.ratio_of), OWN, "GC-MoE", marker="o", lw=2)
    ratios.set_ylabel("multiple of the own floor")
    ratios.set_ylim(bottom=1)
    for axis in (times, ratios):
        plots.draw_tokens(axis, tokens)
        axis.legend(fontsize=7)
    draw_times(times, [y for line in times.get_lines() for y in line.get_ydata()])
    ratios.set_xlabel("tokens of the rank")
    return figure


def draw_all(plt, points, peers, folder):
    for model in data.models_of(data.layers(points)):
        figure = draw_model(plt, model, points, peers)
        figure.tight_layout()
        plots.save(plt, figure, folder, f"bench_{model}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", help="what `gcmoe bench --out` wrote")
    parser.add_argument("--peers", default=data.PEERS, help=f"({data.PEERS.name})")
    parser.add_argument("--out", default="docs/plots", help="folder of the pictures (docs/plots)")
    options = parser.parse_args()
    plt = plots.pyplot("plot_bench.py")
    if plt is None:
        return plots.SKIPPED
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
