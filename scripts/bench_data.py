"""What the scripts about benches share: results of `gcmoe bench --out`, peers, targets.

All three are JSON lines. Fields of results: docs/bench.md. A peer is another operator, measured at
the same point: peer, title, weights ("mxfp4" or "fp8"), model, tokens, touched, floor_us, us, date.
A target: model, tokens, and most_us or most_ratio.
"""

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "bench" / "results"
PEERS = RESULTS / "peers-h200.jsonl"
TARGETS = RESULTS / "targets-h200.jsonl"

TITLES = {"v4.1-flash": "V4.1-Flash", "v4-flash": "V4-Flash", "glm-5.2": "GLM-5.2"}

POINT_FIELDS = {"kind": str, "model": str, "variant": str, "tokens": int, "touched": int,
                "floor_us": float, "shared_floor_us": float, "config": dict, "gpu": str,
                "driver": str, "commit": str, "date": str}
TIMES = ("median_us", "min_us", "copy_us", "paper_us", "burst_us", "sustained_us")
PEER_FIELDS = {"peer": str, "title": str, "weights": str, "model": str, "tokens": int,
               "touched": int, "floor_us": float, "us": float, "date": str}
TARGET_FIELDS = {"model": str, "tokens": int}


class BadFile(Exception):
    """A file is not what it should be."""


def is_of(value, kind):
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and not isinstance(value, bool)


def read_lines(path, fields, key):
    """The objects of a JSON-lines file; each has `fields`, and no two the same `key`."""
    found, seen = [], {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: {error}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise BadFile(f"{path}, line {number}: {error}") from error
        if not isinstance(value, dict):
            raise BadFile(f"{path}, line {number}: is no JSON object")
        for name, kind in fields.items():
            if not is_of(value.get(name), kind):
                raise BadFile(f"{path}, line {number}: '{name}' is {value.get(name)!r}, "
                              f"must be {kind.__name__}")
        same = seen.setdefault(key(value), number)
        if same != number:
            raise BadFile(f"{path}, line {number}: the point of line {same} again: {key(value)}")
        found.append(value)
    if not found:
        raise BadFile(f"{path}: has no line")
    return found


def check_point(path, point):
    """Times are positive numbers or null, and a layer has something to read."""
    where = f"{path}: {point['kind']} {point['model']} {point['variant']} {point['tokens']}"
    for name in TIMES:
        time = point.get(name)
        if time is not None and not (is_of(time, float) and 0 < time < float("inf")):
            raise BadFile(f"{where}: '{name}' is {time!r}, must be a time or null")
    if point["kind"] not in ("layer", "empty"):
        raise BadFile(f"{where}: '{point['kind']}' is no kind of point")
    if point["kind"] == "layer" and not point["floor_us"] > 0:
        raise BadFile(f"{where}: floor_us is {point['floor_us']!r}, must be above 0")


def read_points(path):
    """The lines of results that were measured. None is an error: floors are no result."""
    points = read_lines(path, POINT_FIELDS,
                        lambda p: (p["kind"], p["model"], p["variant"], p["tokens"]))
    for point in points:
        check_point(path, point)
    measured = [point for point in points if time_of(point) is not None]
    if not measured:
        raise BadFile(f"{path}: no point has a time (gcmoe bench --floors-only wrote it?)")
    return measured


def read_peers(path=PEERS):
    return read_lines(path, PEER_FIELDS, lambda p: (p["peer"], p["model"], p["tokens"]))


def read_targets(path=TARGETS):
    targets = read_lines(path, TARGET_FIELDS, lambda t: (t["model"], t["tokens"]))
    for target in targets:
        bounds = [name for name in ("most_us", "most_ratio") if is_of(target.get(name), float)]
        if len(bounds) != 1:
            raise BadFile(f"{path}: {target}: needs one of most_us, most_ratio")
    return {(target["model"], target["tokens"]): target for target in targets}


def time_of(point):
    """Microseconds that speak for a point: the decode protocol's, else the paper's; or None."""
    return point.get("median_us") or point.get("paper_us")


def floor_of(point):
    """Microseconds that the point's bytes take, the shared expert's included."""
    return point["floor_us"] + point["shared_floor_us"]


def ratio_of(point):
    return time_of(point) / floor_of(point)


def fastest_peer(peers, model, tokens, weights="mxfp4"):
    """The fastest peer with these weights at a point, or None."""
    those = [peer for peer in peers
             if (peer["model"], peer["tokens"], peer["weights"]) == (model, tokens, weights)]
    return min(those, key=lambda peer: peer["us"], default=None)


def layers(points, variant="default"):
    return [point for point in points
            if point["kind"] == "layer" and point["variant"] == variant]


def models_of(points):
    """Models in the order of the file, each once."""
    return list(dict.fromkeys(point["model"] for point in points))


def title_of(model):
    return TITLES.get(model, model)


def origin_of(points):
    """ "NVIDIA H200, driver 580.159, commit abc, 2026-12-01", every different one. """
    origins = dict.fromkeys(
        f"{p['gpu']}, driver {p['driver']}, commit {p['commit']}, {p['date'][:10]}" for p in points)
    return "; ".join(origins)
