"""The record of `collective_matmul`: how much of a transfer is hidden, and JAX's ways beside it."""

import pathlib
import statistics
from collections.abc import Iterator
from typing import Any

from pipelib_book.measured import results

OURS, UPSTREAM, SEQUENCE = "collective_matmul", "collective_matmul_mgpu", "gather then product"
#: What is timed alone: the product of what was gathered before, and the gather.
PRODUCT, TRANSFER = "product alone", "transfer alone"


def tables(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> Iterator[tuple[str, str]]:
    """For each number of devices a title and a table: a row for each product."""
    groups = [
        group
        for record in results.read(f"{results.GPU}/collective.json", folders)
        for group in record["groups"]
    ]
    head = [
        "M x N x K", "us", "product alone", "transfer alone", "of the longer", "over JAX's kernel",
        "over gather then product",
    ]  # fmt: skip
    for devices in dict.fromkeys(group["problem"]["devices"] for group in groups):
        own = [group for group in groups if group["problem"]["devices"] == devices]
        yield f"Rows gathered on {devices} GPUs", results.table(head, map(_row, own))


def longest(times: dict[str, float]) -> float | None:
    """The longer of what is timed alone, of medians in microseconds; None if one was not."""
    alone = [_fastest(times, name) for name in (PRODUCT, TRANSFER)]
    return None if None in alone else max(time for time in alone if time is not None)


def _row(group: dict[str, Any]) -> list[str]:
    """The cells of a product."""
    problem, times = group["problem"], dict(_times(group))
    ours, bound = times.get(OURS), longest(times)
    alone = [_fastest(times, name) for name in (PRODUCT, TRANSFER)]
    cells = [" x ".join(f"{problem[axis]:,}" for axis in "mnk")]
    cells += [f"{time:.0f}" if time else "-" for time in (ours, *alone)]
    cells.append(f"{bound / ours:.2f}" if ours and bound else "-")
    for other in (UPSTREAM, SEQUENCE):
        theirs = _fastest(times, other)
        cells.append(f"{theirs / ours:.2f}x" if ours and theirs else "-")
    return cells


def _fastest(times: dict[str, float], kind: str) -> float | None:
    """The least time of contenders whose names begin so."""
    return min((us for name, us in times.items() if name.partition(",")[0] == kind), default=None)


def _times(group: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The median of each contender that was timed, microseconds."""
    for name, contender in group["contenders"].items():
        if samples := contender.get("burst_microseconds"):
            yield name, statistics.median(samples)
