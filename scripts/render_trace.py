#!/usr/bin/env python3
"""Draws a trace of `gcmoe trace` as an SVG picture; needs nothing but Python.

  scripts/render_trace.py TRACE.json [--out PICTURE.svg] [--generation N|last] [--width PIXELS]

One row per unit, ranks below each other, time to the right. Waits are pale, work has one colour a
kind. Of more than 48 rows (a GPU's) the picture is dense: warps share their unit's row, rows are as
low as they must be, and nothing says what a rectangle stands for but its colour. Without --out the
picture goes to stdout; without --generation all launches are drawn.
Exit status 2: the file is no trace, or the picture cannot be written, with the reason.
"""

import argparse
import json
import os
import sys
from html import escape

# kind -> (class, fill, what the legend says)
KINDS = {
    "begin": ("k9", "#8d6e63", "a CTA begins"),
    "count": ("k10", "#b39ddb", "role 1: counts its slots"),
    "route": ("k0", "#7a5195", "role 1: accounts"),
    "receive": ("k11", "#e377c2", "role 1: receives counts"),
    "fill": ("k1", "#2f6fb3", "role 1: fills a block"),
    "first GEMM": ("k2", "#2e8b57", "role 2: first GEMM"),
    "requantise": ("k3", "#9ccc65", "role 2: requantise"),
    "second GEMM": ("k4", "#e08214", "role 2: second GEMM"),
    "shared first GEMM": ("k5", "#17859b", "shared expert: first GEMM"),
    "shared second GEMM": ("k6", "#6cc5d3", "shared expert: second GEMM"),
    "combine": ("k7", "#c0392b", "role 3: combine"),
    "wait": ("k8", "#dcdcdc", "waits for a signal"),
}
LEFT, RIGHT, TOP, ROW, GAP, RANK_GAP = 118, 16, 34, 16, 3, 10
LEGEND_ROW, LEGEND_COLUMNS = 16, 3
SMALLEST = 0.5  # pixels: no event disappears
MOST_ROWS = 48  # of a picture that is not dense
# Dense pictures: pixels that the units of a role share, by what their names begin with.
GROUP_HEIGHTS = {"role 1": 110, "role 2": 380}
OTHER_HEIGHT, MOST_ROW, LEAST_ROW, GROUP_GAP = 130, 12.0, 1.0, 6


class NoTrace(Exception):
    """The file is not what `gcmoe trace` writes."""


def load(path, generation):
    """(title, {(pid, tid): (rank name, unit name)}, spans, dropped events)"""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        names, ranks, spans = {}, {}, []
        if generation == "last":
            generation = max((event["args"]["generation"] for event in data["traceEvents"]
                              if event["ph"] == "X"), default=None)
        for event in data["traceEvents"]:
            key = (event["pid"], event["tid"])
            if event["name"] == "process_name":
                ranks[event["pid"]] = event["args"]["name"]
            elif event["name"] == "thread_name":
                names[key] = event["args"]["name"]
            elif generation in (None, event["args"]["generation"]):
                spans.append((key, event["ts"], event["ts"] + event["dur"], event))
        if generation is not None and not spans:
            raise NoTrace(f"--generation {generation}: the trace has no such launch")
        other = data["otherData"]
        units = {key: (ranks[key[0]], name) for key, name in names.items()}
        for key, _, _, event in spans:
            if key not in units:
                raise NoTrace(f"event '{event['name']}' belongs to no named thread: {key}")
            if event["args"]["kind"] not in KINDS:
                raise NoTrace(f"kind '{event['args']['kind']}' is unknown")
        return other["title"], units, spans, other["dropped_events"]
    except OSError as error:
        raise NoTrace(f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise NoTrace(str(error)) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NoTrace(f"no trace of gcmoe: {error!r} is missing or of another type") from error


def rows_of(units):
    """{unit: y of its row}, [(y, rank name)], height of all rows"""
    places, labels, y, last = {}, [], TOP, None
    for key in sorted(units):
        if last is not None:
            y += RANK_GAP if key[0] != last else GAP
        if key[0] != last:
            labels.append((y, units[key][0]))
        places[key], last = y, key[0]
        y += ROW
    return places, labels, y


def group_of(name):
    """(role words, number) of a unit, without its warp."""
    role, _, number = name.partition(" warp ")[0].rpartition(" unit ")
    return role, int(number)


def dense_rows_of(units):
    """The same as rows_of, and {key: height}; tracks of one unit share a row."""
    groups = {}
    for key in sorted(units):
        role, number = group_of(units[key][1])
        groups.setdefault((key[0], role), {}).setdefault(number, []).append(key)
    places, heights, labels, y, last = {}, {}, [], float(TOP), None
    for (rank, role), rows in groups.items():
        if last is not None:
            y += GROUP_GAP if rank == last else RANK_GAP
        name = units[next(iter(rows.values()))[0]][0] if rank != last else ""
        labels.append((y, name, f"{role}: {len(rows)} unit{'s' if len(rows) > 1 else ''}"))
        height = GROUP_HEIGHTS.get(role, OTHER_HEIGHT) / len(rows)
        height = min(MOST_ROW, max(LEAST_ROW, height))
        for number in sorted(rows):
            for key in rows[number]:
                places[key], heights[key] = y, height
            y += height
        y, last = max(y, labels[-1][0] + 12), rank
    return places, heights, labels, y


def dense_shapes(spans, places, heights, origin, scale):
    """One path a kind, waits first."""
    paths = {}
    for key, begin, stop, event in spans:
        kind = event["args"]["kind"]
        x, length = LEFT + (begin - origin) * scale, max((stop - begin) * scale, SMALLEST)
        height = heights[key] * (0.5 if kind == "wait" else 0.9)
        y = places[key] + (heights[key] - height) / 2
        box = f"M{x:.1f} {y:.1f}h{length:.1f}v{height:.1f}h-{length:.1f}z"
        paths.setdefault(kind, []).append(box)
    for kind in sorted(paths, key=lambda kind: kind != "wait"):
        yield f'<path class="{KINDS[kind][0]}" d="{"".join(paths[kind])}"/>'


def tick_step(span_us):
    """A round step that gives 5 to 12 ticks."""
    step = 1.0
    while span_us / step > 12:
        step *= 2.5 if str(step).startswith("2") else 2
    while span_us / step < 5:
        step /= 2
    return step


def axis(origin, end, scale, bottom):
    """Lines of the time axis: the ticks and their labels, in microseconds."""
    step, tick = tick_step(end - origin), 0
    while tick * step <= end - origin:
        x = LEFT + tick * step * scale
        yield f'<path class="t" d="M{x:.1f} {TOP - 4}V{bottom + 2}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick * step:g}</text>'
        tick += 1
    yield f'<text x="{LEFT - 8}" y="{bottom + 14}" text-anchor="end">microseconds</text>'


def tooltip(event):
    args = event["args"]
    parts = [f"{key} {args[key]}" for key in ("block", "expert", "task", "peer") if key in args]
    return f"{event['name']}: {', '.join(parts + [format(event['dur'], '.1f') + ' us'])}"


def legend(kinds, y, width):
    column_width = (width - LEFT - RIGHT) / LEGEND_COLUMNS
    for number, kind in enumerate(kind for kind in KINDS if kind in kinds):
        x = LEFT + number % LEGEND_COLUMNS * column_width
        top = y + number // LEGEND_COLUMNS * LEGEND_ROW
        yield f'<rect class="{KINDS[kind][0]}" x="{x:.0f}" y="{top}" width="10" height="10"/>'
        yield f'<text x="{x + 15:.0f}" y="{top + 9}">{KINDS[kind][2]}</text>'


def style():
    fills = "".join(f".{name}{{fill:{fill}}}" for name, fill, _ in KINDS.values())
    return ("<style>text{font:11px sans-serif;fill:#222}.h{font-weight:bold}"
            f".b{{fill:#f6f6f6}}.t{{stroke:#bbb;stroke-width:.5}}{fills}</style>")


def rows(units, places, labels, width):
    """Background and name of every unit."""
    for key, y in places.items():
        yield f'<rect class="b" x="{LEFT}" y="{y}" width="{width - LEFT - RIGHT}" height="{ROW}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(units[key][1])}</text>'
    for y, name in labels:
        yield f'<text class="h" x="6" y="{y + 12}">{escape(name.replace("rank ", "r"))}</text>'


def dense_rows(places, heights, labels, width):
    """Background and name of every role."""
    ends = [y for y, _, _ in labels[1:]] + [max(y + heights[key] for key, y in places.items())]
    for (y, rank, name), end in zip(labels, ends):
        yield (f'<rect class="b" x="{LEFT}" y="{y:.1f}" width="{width - LEFT - RIGHT}" '
               f'height="{end - y:.1f}"/>')
        yield f'<text x="{LEFT - 8}" y="{y + 10:.1f}" text-anchor="end">{escape(name)}</text>'
        yield f'<text class="h" x="6" y="{y + 10:.1f}">{escape(rank.replace("rank ", "r"))}</text>'


def shapes(spans, places, origin, scale):
    """A rectangle an event. Waits first: a task that is too narrow for its place stays visible."""
    work_last = sorted(spans, key=lambda span: span[3]["args"]["kind"] != "wait")
    for key, begin, stop, event in work_last:
        kind = event["args"]["kind"]
        x, length = LEFT + (begin - origin) * scale, max((stop - begin) * scale, SMALLEST)
        inset = 5 if kind == "wait" else 1
        yield (f'<rect class="{KINDS[kind][0]}" x="{x:.1f}" y="{places[key] + inset}" '
               f'width="{length:.1f}" height="{ROW - 2 * inset}">'
               f"<title>{escape(tooltip(event))}</title></rect>")


def render(title, units, spans, dropped, width):
    """The picture's lines."""
    dense = len(units) > MOST_ROWS
    if dense:
        places, heights, labels, bottom = dense_rows_of(units)
        bottom = round(bottom)
    else:
        places, labels, bottom = rows_of(units)
    origin = min((begin for _, begin, _, _ in spans), default=0.0)
    end = max((stop for _, _, stop, _ in spans), default=1.0)
    end = max(end, origin + 1e-3)
    scale = (width - LEFT - RIGHT) / (end - origin)
    kinds = {event["args"]["kind"] for _, _, _, event in spans}
    legend_rows = -(-len(kinds) // LEGEND_COLUMNS)
    height = bottom + 28 + legend_rows * LEGEND_ROW
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}">')
    yield style()
    yield '<rect width="100%" height="100%" fill="#fff"/>'
    missing = f"; {dropped} events did not fit and are missing" if dropped else ""
    yield f'<text class="h" x="{LEFT}" y="16">{escape(title + missing)}</text>'
    if dense:
        yield from dense_rows(places, heights, labels, width)
        yield from axis(origin, end, scale, bottom)
        yield from dense_shapes(spans, places, heights, origin, scale)
    else:
        yield from rows(units, places, labels, width)
        yield from axis(origin, end, scale, bottom)
        yield from shapes(spans, places, origin, scale)
    yield from legend(kinds, bottom + 24, width)
    yield "</svg>"


def write(picture, out, trace):
    """The exit status; a path of None is stdout."""
    try:
        if out is None:
            # Not through sys.stdout, which would fail once more when Python ends.
            with open(os.dup(1), "w", encoding="utf-8") as file:
                file.write(picture)
            return 0
        if os.path.exists(out) and os.path.samefile(out, trace):
            print(f"render_trace.py: --out {out}: is the trace itself", file=sys.stderr)
            return 2
        with open(out, "w", encoding="utf-8") as file:
            file.write(picture)
    except OSError as error:
        name = "stdout" if out is None else f"--out {out}"
        print(f"render_trace.py: {name}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def generation_of(text):
    return text if text == "last" else int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", help="what `gcmoe trace` or `gcmoe run --trace` wrote")
    parser.add_argument("--out", help="the SVG file (stdout)")
    parser.add_argument("--generation", type=generation_of, help="one launch only: N, or last")
    parser.add_argument("--width", type=int, default=1200, help="pixels (1200)")
    options = parser.parse_args()
    if options.width < 400:
        parser.error(f"--width {options.width}: must be at least 400")
    try:
        title, units, spans, dropped = load(options.trace, options.generation)
    except NoTrace as error:
        print(f"render_trace.py: {options.trace}: {error}", file=sys.stderr)
        return 2
    picture = "\n".join(render(title, units, spans, dropped, options.width)) + "\n"
    return write(picture, options.out, options.trace)


if __name__ == "__main__":
    sys.exit(main())
