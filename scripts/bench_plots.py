"""What the scripts that draw benches share: axes of tokens, lines, files. matplotlib is imported by
`pyplot` alone, so that a machine without it can say so."""

import io
import re
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
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["font.sans-serif"] = ["DejaVu Sans"]
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
    """PNG of few colours and SVG of few digits, for they go into the repository; without dates or
    versions, so that equal pictures are equal files."""
    for suffix, contents in ((".png", small_png(figure, dpi)), (".svg", small_svg(figure))):
        path = folder / f"{name.replace('/', '_')}{suffix}"
        path.write_bytes(contents)
        print(path)
    plt.close(figure)


def small_png(figure, dpi):
    from PIL import Image  # matplotlib needs it, too
    whole, small = io.BytesIO(), io.BytesIO()
    figure.savefig(whole, format="png", dpi=dpi)
    Image.open(whole).convert("RGB").quantize(colors=32).save(small, format="png", optimize=True)
    return small.getvalue()


def small_svg(figure):
    """Text as text, coordinates to a hundredth of a point, no comments and no indentation."""
    whole = io.StringIO()
    figure.savefig(whole, format="svg", metadata={"Date": None, "Creator": None})
    text = re.sub(r"<!--.*?-->", "", whole.getvalue(), flags=re.DOTALL)
    text = re.sub(r"(\d+\.\d\d)\d+", r"\1", text)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # nobody refers to groups
    return re.sub(r"\s*\n\s*", "\n", text).encode()
