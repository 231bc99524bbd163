"""The values of a search: its `Work`, a `Row` for each configuration, `Found`, the `Measurer`."""

import dataclasses
import math
from collections.abc import Hashable, Iterator, Sequence
from statistics import median
from typing import Any, ClassVar, NamedTuple, Protocol

import jax


class Config(Protocol):
    """A configuration of a kernel: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __hash__(self) -> int: ...


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


class Row[C: Hashable](NamedTuple):
    """What came of one configuration.

    Attributes:
      config: the configuration.
      us: the times of single products, in microseconds.
      error: the largest error of an element, in root mean squares of the result.
      reason: why the row does not count; empty if it counts.
    """

    config: C
    us: tuple[float, ...] = ()
    error: float | None = None
    reason: str = ""

    @property
    def median_us(self) -> float:
        """Infinite if the row does not count."""
        return median(self.us) if self.us and not self.reason else math.inf


class Measurer[C: Hashable](Protocol):
    """Measures configurations: on a GPU, or a test's stand-in."""

    def each(self, configs: Sequence[C]) -> Iterator[Row[C]]:
        """Yields a row for each configuration, in any order."""
        ...

    def in_turn(self, configs: Sequence[C]) -> list[Row[C]]:
        """A row for each configuration, in this order; their samples are taken in turn."""
        ...


class Found[C: Hashable](NamedTuple):
    """What a search found.

    Attributes:
      rows: a row for each configuration that was measured.
      finals: the rows of its last round, in which the best were measured again.
    """

    rows: tuple[Row[C], ...]
    finals: tuple[Row[C], ...]

    @property
    def best(self) -> Row[C] | None:
        """The fastest of the last round; None if nothing counted."""
        counted = [row for row in self.finals if row.median_us < math.inf]
        return min(counted, key=lambda row: row.median_us, default=None)
