"""The record of `ragged_dot`: its rate, and its speed beside JAX's, for each layer."""

import pathlib
import statistics
from collections.abc import Iterator
from typing import Any

from pipelib_book.measured import results

OURS, XLA, UPSTREAM = "ragged_dot", "XLA", "ragged_dot_mgpu"


def tables(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> Iterator[tuple[str, str]]:
    """For each layer a title and a table: a row for each distribution of rows over the groups."""
    groups = [
        group
        for record in results.read(f"{results.GPU}/grouped.json", folders)
        for group in record["groups"]
    ]
    layers = dict.fromkeys(map(_layer, groups))
    for layer in layers:
        rows, k, n, count, is_weights = layer
        kind = "gradients of the matrices, " if is_weights else ""
        title = f"{kind}{rows:,} rows, K = {k:,}, N = {n:,}, {count} groups"
        own = [group for group in groups if _layer(group) == layer]
        head = ["rows of groups", "TFLOP/s", "over JAX's kernel", "over `jax.lax`"]
        yield title[0].upper() + title[1:], results.table(head, map(_row, own))


def _layer(group: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(group["problem"][name] for name in ("rows", "k", "n", "groups", "weights"))


def _row(group: dict[str, Any]) -> list[str]:
    """The cells of a distribution."""
    problem, times = group["problem"], dict(_times(group))
    cells = [problem["distribution"]]
    ours = times.get(OURS)
    flops = 2 * problem["rows"] * problem["k"] * problem["n"]
    cells.append(f"{flops / ours / 1e6:.0f}" if ours else "-")
    for other in (UPSTREAM, XLA):
        theirs = [us for name, us in times.items() if name.partition(",")[0] == other]
        cells.append(f"{min(theirs) / ours:.2f}x" if ours and theirs else "-")
    return cells


def _times(group: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The median of each contender that was timed, microseconds."""
    for name, contender in group["contenders"].items():
        if samples := contender.get("burst_microseconds"):
            yield name, statistics.median(samples)
