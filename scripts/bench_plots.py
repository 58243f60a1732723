"""What the scripts that draw benches share: axes of tokens, lines, files. matplotlib is imported by
`pyplot` alone, so that a machine without it can say so."""

import sys

SKIPPED = 77  # exit status: there is no matplotlib


def pyplot(script):
    """matplotlib's pyplot without a window, or None after a line that says why."""
    try:
        import matplotlib
    except ImportError:
        print(f"{script}: skipped: no matplotlib here (pip install matplotlib)", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "gcmoe"
    from matplotlib import pyplot as plt
    return plt


def draw_tokens(axis, tokens):
    """A logarithmic axis of tokens with the measured numbers as ticks."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(tokens, [str(count) for count in tokens])
    axis.minorticks_off()
    axis.grid(True, lw=0.3)


def draw_line(axis, points, colour, label, **style):
    """points: (tokens, value) pairs; those without a value are left out."""
    there = sorted((x, y) for x, y in points if y is not None)
    if there:
        axis.plot(*zip(*there), color=colour, label=label, **style)


def save(plt, figure, folder, name, dpi=120):
    """PNG and SVG without dates or versions, so that equal pictures are equal files."""
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        path = folder / f"{name.replace('/', '_')}{suffix}"
        figure.savefig(path, dpi=dpi, metadata=metadata)
        print(path)
    plt.close(figure)
