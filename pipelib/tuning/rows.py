"""The values of a search: its `Work`, a `Row` for each configuration, `Found`, the `Measurer`."""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple, Protocol

import jax


class Work(Protocol):
    """What configurations are searched for: a product, or another kernel's problem."""

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        ...

    @property
    def out(self) -> jax.ShapeDtypeStruct:
        """The result."""
        ...


class Row(NamedTuple):
    """The times of single products of a configuration, or the reason why it does not count."""

    config: Any
    us: tuple[float, ...] = ()
    error: float | None = None
    reason: str = ""

    @property
    def median_us(self) -> float:
        """Infinite if the row does not count."""
        return median(self.us) if self.us and not self.reason else math.inf


class Measurer(Protocol):
    """Measures configurations: on a GPU, or a test's stand-in."""

    def each(self, configs: Sequence[Any]) -> Iterator[Row]:
        """Yields a row for each configuration, in any order."""

    def in_turn(self, configs: Sequence[Any]) -> list[Row]:
        """A row for each configuration, in this order; their samples are taken in turn."""


class Found(NamedTuple):
    """All rows of a search, and the rows of its last round."""

    rows: tuple[Row, ...]
    finals: tuple[Row, ...]

    @property
    def best(self) -> Row | None:
        """The fastest of the last round; None if nothing counted."""
        counted = [row for row in self.finals if row.median_us < math.inf]
        return min(counted, key=lambda row: row.median_us, default=None)
