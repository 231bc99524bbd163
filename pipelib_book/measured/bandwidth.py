"""What the record of `benchmarks/memory_bound.py` says, for the chapter that quotes it.

A record that is not there, or lacks a part, gives no points and a sentence in place of a table.
"""

import pathlib
from typing import Any

from pallascope.bench.timing import Samples
from pipelib_book.measured import results


def record(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> dict[str, Any]:
    """The record's rows and points of the curve; none if there is no record."""
    found = results.read(f"{results.GPU}/memory_bound.json", folders)
    return flat(found[0] if found else {"groups": []})


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """Rows, one for each shape, kernel and variant that was timed; and the points of the curve."""
    rows: list[dict[str, Any]] = []
    curve: list[dict[str, Any]] = []
    for group in record["groups"]:
        problem = group["problem"]
        for name, kept in group["contenders"].items():
            if not problem:
                curve.append(kept)
                continue
            if "reason" in kept:
                continue
            kernel, _, variant = name.partition(", ")
            moved = 2 * problem["rows"] * problem["length"] * _ITEM_BYTES[problem["dtype"]]
            rows.append(dict(problem, bytes=moved, kernel=kernel, variant=variant, **kept))
    return {"rows": rows, "curve": curve}


_ITEM_BYTES = {"bfloat16": 2, "float32": 4}


def rate(row: dict[str, Any], samples: str = "burst_microseconds") -> float:
    """Bytes a second, read and written together, at the median time of some samples."""
    return Samples(tuple(row[samples])).rate(row["bytes"])


def curve(found: dict[str, Any]) -> dict[int, list[tuple[float, float]]]:
    """By the bytes of a step: (bytes of all slots of an SM, bytes a second) for each slot count."""
    series: dict[int, list[tuple[float, float]]] = {}
    for point in found["curve"]:
        slots = point["slots"] * point["step_bytes"] * point["blocks_per_sm"]
        series.setdefault(point["step_bytes"], []).append((slots, rate(point)))
    return series


def table(found: dict[str, Any], rows: int, length: int, dtype: str) -> str:
    """Kernels on one shape: time, rate, and the rate over that of the fastest copy."""
    here = [row for row in found["rows"] if (row["rows"], row["length"]) == (rows, length)]
    here = [row for row in here if row["dtype"] == dtype and _is_plain(row)]
    copies = [rate(row) for row in here if row["kernel"] == "copy"]
    if not copies:
        return results.missing(f"copy of {rows} x {length}")
    lines = []
    for row in here:
        us, width = Samples(tuple(row["burst_microseconds"])).median_us, rate(row)
        name = f"{row['kernel']}, {row['variant']}"
        lines.append([name, f"{us:.1f}", f"{width / 1e12:.2f}", f"{width / max(copies):.1%}"])
    return results.table(("kernel", "µs", "TB/s", "of the fastest copy"), lines)


def shapes(found: dict[str, Any]) -> list[tuple[int, int, str]]:
    """Rows, their length and dtype, of all that was measured."""
    return [*dict.fromkeys((row["rows"], row["length"], row["dtype"]) for row in found["rows"])]


def shapes_table(found: dict[str, Any]) -> str:
    """Each shape, with the times of both kernels and of others' beside ours."""
    columns = [
        (kernel, variant)
        for kernel in ("rms_norm", "softmax")
        for variant in ("pipelib", "XLA", "quack")
        if any((row["kernel"], row["variant"]) == (kernel, variant) for row in found["rows"])
    ]
    us = {
        (row["rows"], row["length"], row["dtype"], row["kernel"], row["variant"]): Samples(
            tuple(row["burst_microseconds"])
        ).median_us
        for row in found["rows"]
    }
    lines = [
        [f"{rows:,} x {length:,} {dtype}"]
        + [
            f"{us[key]:.1f}" if (key := (rows, length, dtype, *column)) in us else ""
            for column in columns
        ]
        for rows, length, dtype in shapes(found)
    ]
    return results.table(["shape", *(", ".join(column) for column in columns)], lines)


def _is_plain(row: dict[str, Any]) -> bool:
    """Whether it is a kernel as it ships, and none of the variants that were tried."""
    return row["kernel"] == "copy" or row["variant"] in ("pipelib", "XLA", "quack")
