#!/usr/bin/env python3
"""Pictures of `gcmoe bench --ablation NAME --out`, PNG and SVG; needs matplotlib.

  scripts/plot_ablation.py RESULTS.jsonl [--out FOLDER]

ablation_NAME for each ablation in the file, a panel a model: its variants against the launch that
they change in one thing, at every number of tokens. Most are multiples of that launch's time; what
adds work (closing, shared) is drawn in microseconds more. The same input gives the same bytes (of
one version of matplotlib).
Exit status 2: a file is not what it should be, with the reason; 77: there is no matplotlib.
"""

import argparse
import sys
from pathlib import Path

import bench_data as data
import bench_plots as plots

# Ablations that add work: the variant that they add it to.
ADDS_TO = {"closing": "closing-graph", "shared": "default"}
BASE_COLOUR = "#222222"
PANEL = (2.7, 2.5)  # inches
LEGEND = 2.0
DPI = 75


def ablations_of(path, points):
    """ablation -> {variant: {(model, tokens): microseconds}}, the base first."""
    layers = [point for point in points if point["kind"] == "layer"]
    times = {}
    for point in layers:
        line = times.setdefault(point["variant"], {})
        line[point["model"], point["tokens"]] = data.time_of(point)
    found = {}
    for point in layers:
        name = point.get("ablation")
        if name is None and point["variant"] == "default":
            continue
        if not isinstance(name, str) or not name:
            raise data.BadFile(f"{path}: variant '{point['variant']}': 'ablation' is {name!r}, "
                               "must name one")
        base = ADDS_TO.get(name, "default")
        if base not in times:
            raise data.BadFile(f"{path}: ablation '{name}' has no variant '{base}' to compare with")
        lines = found.setdefault(name, {base: times[base]})
        lines.setdefault(point["variant"], times[point["variant"]])
    if not found:
        raise data.BadFile(f"{path}: no point belongs to an ablation (gcmoe bench --ablation)")
    return found


def line_of(name, lines, variant, model):
    """[(tokens, what is drawn)] of one variant of one model."""
    base = next(iter(lines.values()))
    adds = name in ADDS_TO
    return [(tokens, us - base[model, tokens] if adds else us / base[model, tokens])
            for (own, tokens), us in lines[variant].items()
            if own == model and (own, tokens) in base]


def draw_panel(axis, name, lines, model, colours):
    for number, variant in enumerate(list(lines)[1:]):
        plots.draw_line(axis, line_of(name, lines, variant, model), colours(number), variant,
                        marker=".", lw=1.2)
    axis.axhline(0 if name in ADDS_TO else 1, color=BASE_COLOUR, lw=1, ls="--",
                 label=next(iter(lines)))
    plots.draw_tokens(axis, sorted(tokens for own, tokens in next(iter(lines.values()))
                                   if own == model))
    axis.set_title(data.title_of(model), fontsize=8)
    axis.set_xlabel("tokens of the rank", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.locator_params(axis="y", nbins=5)


def draw_ablation(plt, name, lines, models, origin):
    width = PANEL[0] * len(models) + LEGEND
    figure, axes = plt.subplots(1, len(models), figsize=(width, PANEL[1]), squeeze=False,
                                layout="constrained")
    colours = plt.get_cmap("turbo", max(len(lines) - 1, 2))
    for axis, model in zip(axes[0], models):
        draw_panel(axis, name, lines, model, colours)
    base = next(iter(lines))
    axes[0][0].set_ylabel(f"us more than {base}" if name in ADDS_TO else f"time, of {base}'s",
                          fontsize=8)
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize=7, loc="outside right upper",
                  frameon=False)
    figure.suptitle(f"{name}: {origin}", fontsize=8)
    return figure


def draw_all(plt, path, folder):
    points = data.read_points(path)
    models = data.models_of(points)
    for name, lines in ablations_of(path, points).items():
        figure = draw_ablation(plt, name, lines, models, data.origin_of(points))
        plots.save(plt, figure, folder, f"ablation_{name}", dpi=DPI)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", help="what `gcmoe bench --ablation NAME --out` wrote")
    parser.add_argument("--out", default="docs/plots", help="folder of the pictures (docs/plots)")
    options = parser.parse_args()
    plt = plots.pyplot("plot_ablation.py")
    if plt is None:
        return plots.SKIPPED
    try:
        folder = Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        draw_all(plt, options.results, folder)
    except (data.BadFile, OSError) as error:
        print(f"plot_ablation.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
