"""The record of `ragged_dot`: its rate, and its speed beside JAX's, for each layer."""

import pathlib
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipelib_book.measured import results

OURS, XLA, UPSTREAM = "ragged_dot", "XLA", "ragged_dot_mgpu"
_HEAD = "TFLOP/s", "over JAX's kernel", "over `jax.lax`"


class Layer(NamedTuple):
    """The sizes of a layer of a mixture of experts, and its rows of a table.

    Attributes:
      rows, k, n, groups: the product [rows, K] x [groups, K, N].
      weights: whether it is the gradient of the matrices.
    """

    rows: int
    k: int
    n: int
    groups: int
    weights: bool

    def __str__(self) -> str:
        kind = "gradients of the matrices, " if self.weights else ""
        sizes = f"{self.rows:,} rows, K = {self.k:,}, N = {self.n:,}, {self.groups} groups"
        return (kind + sizes)[0].upper() + (kind + sizes)[1:]


class _Speed(NamedTuple):
    """Operations a second of ours, and its speed over that of others; None: no time."""

    rate: float | None
    over_jax: float | None
    over_lax: float | None


def summary(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """A table of all layers: the geometric means over all distributions, and the least."""
    rows = []
    for layer, found in _layers(folders).items():
        cells = []
        for speeds in zip(*(_speed(layer, group) for group in found)):
            some = [speed for speed in speeds if speed]
            cells.append((statistics.geometric_mean(some), min(some)) if some else None)
        rate, *ratios = cells
        ends = (f"{pair[0]:.2f}x, least {pair[1]:.2f}x" if pair else "-" for pair in ratios)
        rows.append([str(layer), f"{rate[0] / 1e12:.0f}" if rate else "-", *ends])
    return results.table(["layer", *_HEAD], rows) if rows else results.missing("grouped products")


def tables(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> dict[Layer, str]:
    """For each layer a table: a row for each distribution of rows over the groups."""
    return {
        layer: results.table(["rows of groups", *_HEAD], (_row(layer, group) for group in found))
        for layer, found in _layers(folders).items()
    }


def _layers(folders: tuple[pathlib.Path, ...]) -> dict[Layer, list[dict[str, Any]]]:
    """The groups of the record, by layer."""
    found: dict[Layer, list[dict[str, Any]]] = {}
    for record in results.read(f"{results.GPU}/grouped.json", folders):
        for group in record["groups"]:
            layer = Layer(*(group["problem"][name] for name in Layer._fields))
            found.setdefault(layer, []).append(group)
    return found


def _row(layer: Layer, group: dict[str, Any]) -> list[str]:
    """The cells of a distribution."""
    rate, *ratios = _speed(layer, group)
    cells = (f"{ratio:.2f}x" if ratio else "-" for ratio in ratios)
    return [group["problem"]["distribution"], f"{rate / 1e12:.0f}" if rate else "-", *cells]


def _speed(layer: Layer, group: dict[str, Any]) -> _Speed:
    times = dict(_times(group))
    ours = times.get(OURS)

    def over(other: str) -> float | None:
        theirs = [us for name, us in times.items() if name.partition(",")[0] == other]
        return min(theirs) / ours if ours and theirs else None

    flops = 2 * layer.rows * layer.k * layer.n
    return _Speed(flops / ours * 1e6 if ours else None, over(UPSTREAM), over(XLA))


def _times(group: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The median of each contender that was timed, microseconds."""
    for name, contender in group["contenders"].items():
        if samples := contender.get("burst_microseconds"):
            yield name, statistics.median(samples)
