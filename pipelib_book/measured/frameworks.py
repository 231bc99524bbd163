"""The record of one pipeline in four frameworks, as a table."""

import pathlib
import statistics
from collections.abc import Iterator
from typing import Any

from pipelib_book.measured import results

PALLAS, GLUON, CUTE, CUDA = "Pallas", "Gluon", "CuTe DSL", "CUDA C++"
XLA, COPY = "XLA", "copy, XLA"


def table(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """For each GPU of a record what was measured, the fastest first; or that nothing was."""
    records = results.read("nvidia-*/frameworks.json", folders)
    parts = [part for record in records for group in record["groups"] for part in _of(group)]
    return "\n\n".join(parts) or "The four sources have not been measured on a GPU yet."


def _of(group: dict[str, Any]) -> Iterator[str]:
    """What a problem is, and its table."""
    problem, found = group["problem"], group["contenders"]
    moved = problem["rows"] * problem["length"] * 4
    built = ", ".join(f"{name} {version}" for name, version in group["versions"].items())
    yield (
        f"On an {group['run']['provenance']['gpu']}, {problem['rows']:,} rows of"
        f" {problem['length']:,} numbers in {problem['dtype']}, with {built}:"
    )
    us = {name: each.get("burst_microseconds") for name, each in found.items()}
    middle = {name: statistics.median(times) for name, times in us.items() if times}
    rows = []
    for name in sorted(middle, key=middle.__getitem__):
        low, _, high = statistics.quantiles(us[name], n=4)
        rate, error = moved / middle[name] / 1e6, found[name]["float64"]["relative"]
        spread = (high - low) / middle[name]
        rows.append([name, f"{middle[name]:.1f}", f"{spread:.1%}", f"{rate:.2f}", f"{error:.0e}"])
    head = ["who", "µs, median", "spread", "TB/s", "error beside float64"]
    yield results.table(head, rows)
    for name in found:
        if name not in middle:
            yield f"Not timed: {name}. {found[name]['reason']}"
