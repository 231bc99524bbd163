"""What follows from a record of `benchmarks.memory_bound`, and its tables.

    python -m benchmarks.bandwidth RECORD

Ratios are of bandwidths, at the median time: to the fastest copy of as many bytes, which is the one
that counts, and to the fastest of 1 GiB. A floor is what a kernel should take before it is
measured: its bytes at the rate of the fastest copy of 1 GiB, and the time of the fastest launch
that has almost nothing to do.
"""

import collections
import json
import pathlib
import statistics
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.memory_bound import LARGE_BYTES
from pipelib.bench import timing
from pipelib_book.measured.bandwidth import rate


def fastest_copy(record: dict[str, Any], size: int, samples: str = "burst_us") -> float:
    """Bytes a second of the fastest copy of so many bytes, read and written together."""
    found = [r for r in record["rows"] if r["kernel"] == "copy" and r["bytes"] == size]
    return max(rate(row, samples) for row in found if samples in row)


def ratios(record: dict[str, Any], row: dict[str, Any]) -> tuple[float, float]:
    """A row's bandwidth over that of the fastest copies: of as many bytes, of 1 GiB."""
    same, large = (fastest_copy(record, size) for size in (row["bytes"], 2 * LARGE_BYTES))
    return rate(row) / same, rate(row) / large


def floor_us(record: dict[str, Any], row: dict[str, Any]) -> float:
    """The microseconds that a row should take: a launch, and its bytes at the copies' rate."""
    least = min(row["bytes"] for row in record["rows"])
    launch = min(statistics.median(r["burst_us"]) for r in record["rows"] if r["bytes"] == least)
    return launch + row["bytes"] / fastest_copy(record, 2 * LARGE_BYTES) * 1e6


def loads_in_flight(point: dict[str, Any]) -> tuple[int, int]:
    """Bytes of loads in flight on an SM, of a point of the curve: least and most.

    Least while the block computes on a slot that it loads again afterwards; most before that.
    """
    step = point["step_bytes"] * point["blocks_per_sm"]
    return (point["slots"] - 1) * step, point["slots"] * step


def table(record: dict[str, Any]) -> Iterator[str]:
    """The lines of a record's tables."""
    found = collections.defaultdict(list)
    for row in record["rows"]:
        found[row["rows"], row["length"], row["dtype"]].append(row)
    copied = {row["bytes"] for row in record["rows"] if row["kernel"] == "copy"}
    for (count, length, dtype), rows in found.items():
        yield f"{count} x {length}, {dtype}: us (quartiles' distance) | TB/s | ratios | error"
        for row in rows:
            times = timing.Samples(tuple(row["burst_us"]))
            line = f"  {row['kernel']}, {row['variant']}: {times.median_us:.1f}"
            line += f" ({times.spread_us:.1f}) | {rate(row) / 1e12:.2f}"
            if row["bytes"] in copied:
                same, large = ratios(record, row)
                line += f" | {same:.3f}, {large:.3f} | floor {floor_us(record, row):.1f}"
            if "error" in row:
                line += f" | {row['error']['largest_relative']:.1e}"
            if "sustained_us" in row:
                middle = statistics.median(row["sustained_us"])
                line += f" | sustained {middle:.1f} us, {rate(row, 'sustained_us') / 1e12:.2f}"
            yield line
    yield "slots x step bytes: KiB of loads in flight on an SM | TB/s"
    for point in record["curve"]:
        least, most = (size / 1024 for size in loads_in_flight(point))
        yield (
            f"  {point['slots']} x {point['step_bytes']}: {least:g} to {most:g} |"
            f" {rate(point) / 1e12:.2f}"
        )


if __name__ == "__main__":
    print(*table(json.loads(pathlib.Path(sys.argv[1]).read_text("utf-8"))), sep="\n")
