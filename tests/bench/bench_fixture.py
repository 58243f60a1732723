"""Results that look measured: what `gcmoe bench --floors-only` writes, with made-up times in it."""

import json
import subprocess


def floors(command, *arguments):
    """The points of a run without a GPU."""
    result = subprocess.run([command, "bench", "--floors-only", "--json", *arguments],
                            capture_output=True, text=True, timeout=120, check=True)
    return json.loads(result.stdout)["points"]


def fill(points, factor=1.5, offset=10.0):
    """Times of factor x floor + offset; the nth variant is n per cent slower."""
    variants = list(dict.fromkeys(point["variant"] for point in points))
    for point in points:
        floor = point["floor_us"] + point["shared_floor_us"]
        slower = 1 + variants.index(point["variant"]) / 100
        point["median_us"] = round((factor * floor + offset) * slower, 3)
        point["copy_us"] = round(1.1 * floor, 3) if floor > 0 else None
        point["sustained_us"] = point["median_us"] + 1
        point.update(gpu="made up", driver="0.0", commit="fixture", date="2026-12-01T00:00:00Z")
    return points


def write(path, points):
    with open(path, "w", encoding="utf-8") as file:
        for point in points:
            file.write(json.dumps(point) + "\n")
