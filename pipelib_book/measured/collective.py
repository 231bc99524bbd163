"""The record of `collective_matmul`: how much of a transfer is hidden, and JAX's ways beside it.

The model. A *layer* is a product whose transfer is the shorter part. "The longer" of a product is
the longer of what is timed alone, the product and the transfer: a kernel that hides all of the
shorter part takes as long.
"""

import pathlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pipelib_book.measured import results

OURS, UPSTREAM, SEQUENCE = "collective_matmul", "collective_matmul_mgpu", "gather then product"
#: What is timed alone: the product of what was gathered before, and the gather.
PRODUCT, TRANSFER = "product alone", "transfer alone"
#: Ours with fewer and more blocks that send than its default has for layers, and with short tiles.
TWO, EIGHT = f"{OURS}, 2 send", f"{OURS}, 8 send"
SHORT_TILES = f"{OURS}, tiles of 128 x 128, 29 send"
#: The share of the longer that `collective_matmul` is to reach.
GOAL = 0.95


class Row(NamedTuple):
    """A product on some GPUs: the fastest time of each way, microseconds; None if not timed.

    Attributes:
      name: M x N x K.
      gpus: how many, and of which model: "2 H200s".
      us: of `collective_matmul`, as it divides the work by itself.
      two, eight, short_tiles: of `collective_matmul` as the module's constants say.
      product, transfer: of each alone.
      upstream, sequence: of JAX's kernel; of the gather and then the product.
    """

    name: str
    gpus: str
    us: float | None
    two: float | None
    eight: float | None
    short_tiles: float | None
    product: float | None
    transfer: float | None
    upstream: float | None
    sequence: float | None

    @property
    def longer(self) -> float | None:
        """The longer of what is timed alone."""
        return _longer(self.product, self.transfer)

    @property
    def is_layer(self) -> bool:
        """Whether the product is the longer part."""
        return bool(self.product and self.transfer and self.product >= self.transfer)


def tables(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> Iterator[tuple[str, str]]:
    """The `tables_of` all records."""
    return tables_of(rows(folders))


def tables_of(found: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """For each number of GPUs of a model a title and a table: a row for each product."""
    head = [
        "M x N x K", "us", "of the longer", "over JAX's kernel", "over gather then product",
        "product alone", "transfer alone", "2 blocks send", "8 send", "short tiles, 29 send",
    ]  # fmt: skip
    for gpus in dict.fromkeys(row.gpus for row in found):
        own = [row for row in found if row.gpus == gpus]
        yield f"Rows gathered on {gpus}", results.table(head, map(_cells, own))


def rows(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[Row]:
    """The products of all records, the book's GPU first; none where there is no record."""
    records = results.read("nvidia-*/collective.json", folders)
    return [row for record in records for row in rows_of(record)]


def rows_of(record: dict[str, Any]) -> list[Row]:
    """The products of one record."""
    return [_row(group) for group in record["groups"]]


def summary(found: Sequence[Row]) -> str:
    """What the rows say of the goal and of the other ways, a list in Markdown."""
    lines = list[str]()
    for gpus in dict.fromkeys(row.gpus for row in found):
        own = [row for row in found if row.gpus == gpus]
        layers = [row for row in own if row.is_layer]
        if layers:
            lines.append(f"On {gpus}, {_reached(layers)}; {_ahead(layers)}.")
        lines += (
            f"{row.name} on {gpus}, where the transfer is longer: JAX's kernel takes"
            f" {row.upstream:.0f} us, ours {row.us:.0f} us."
            for row in own
            if row.upstream and not row.is_layer
        )
    return "\n".join(f"- {line}" for line in lines)


def _reached(layers: Sequence[Row]) -> str:
    """How many layers reach the goal, and how near the others come."""
    shares = [_share(row.longer, row.us) or 0 for row in layers]
    below = [share for share in shares if share < GOAL]
    rest = f" (the others reach {min(below):.3f} or more)" if below else ""
    count = len(layers) - len(below)
    return f"{GOAL:.0%} of the longer is reached by {count} of {len(layers)} layers{rest}"


def _ahead(layers: Sequence[Row]) -> str:
    """For how many layers ours is ahead of each of the other ways."""
    jax, sequence = (
        sum((_share(other, row.us) or 0) > 1 for row, other in pairs)
        for pairs in (
            [(row, row.upstream) for row in layers],
            [(row, row.sequence) for row in layers],
        )
    )
    return f"ours is ahead of JAX's kernel for {jax}, of gather then product for {sequence}"


def longest(times: dict[str, float]) -> float | None:
    """The longer of what is timed alone, of medians in microseconds; None if one was not."""
    return _longer(_fastest(times, PRODUCT), _fastest(times, TRANSFER))


def _longer(product: float | None, transfer: float | None) -> float | None:
    """The longer of two times; None if one was not timed."""
    return max(product, transfer) if product and transfer else None


def _row(group: dict[str, Any]) -> Row:
    """The times of a product."""
    problem, times = group["problem"], dict(_times(group))
    ways = (_fastest(times, name) for name in (PRODUCT, TRANSFER, UPSTREAM, SEQUENCE))
    name = " x ".join(f"{problem[axis]:,}" for axis in "mnk")
    _, model, *_ = group["run"]["provenance"]["gpu"].split()  # "NVIDIA H100 80GB HBM3"
    own = map(times.get, (OURS, TWO, EIGHT, SHORT_TILES))
    return Row(name, f"{problem['devices']} {model}s", *own, *ways)


def _cells(row: Row) -> list[str]:
    """The cells of a product."""
    share = _share(row.longer, row.us)
    over = (_share(other, row.us) for other in (row.upstream, row.sequence))
    us, *times = (
        f"{time:.0f}" if time else "-"
        for time in (row.us, row.product, row.transfer, row.two, row.eight, row.short_tiles)
    )
    return [
        row.name,
        us,
        f"{share:.3f}" if share else "-",
        *(f"{ratio:.2f}x" if ratio else "-" for ratio in over),
        *times,
    ]


def _share(time: float | None, ours: float | None) -> float | None:
    """A time over ours; None if one was not timed."""
    return time / ours if time and ours else None


def _fastest(times: dict[str, float], kind: str) -> float | None:
    """The least time of contenders whose names begin so."""
    return min((us for name, us in times.items() if name.partition(",")[0] == kind), default=None)


def _times(group: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The median of each contender that was timed, microseconds."""
    for name, contender in group["contenders"].items():
        if samples := contender.get("burst_microseconds"):
            yield name, statistics.median(samples)
