"""`nearest_entry`: what a search found for a product of as many tiles.

The rule. An entry of a table counts if it has factors of the same size in bytes and the same
transpositions; if its configuration fits with the dtypes of the result and of the epilogue; and if
this configuration divides both products into as many tiles and steps, and the entry has not many
more rows, which could be one tile of fewer. Then the GPU does the same, except for a part of the
last tiles, so the measured time holds. The table of the GPU at hand comes
first, then those of other Hopper GPUs. In a table the nearest entry wins, by the distance of
(log2 M, log2 N, log2 K); of equally near ones, the first. For other products, `choosing` has a
formula.

A table is `<gpu>.json` beside this module. `python -m benchmarks.tune` makes it from the
record of its searches.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from pipelib.kernels.choosing import fits
from pipelib.kernels.hopper import default_device
from pipelib.kernels.matmul.config import MatmulConfig

#: Where the tables are.
FOLDER = pathlib.Path(__file__).parent


class Entry(NamedTuple):
    """A product that was searched for, and the configuration that won.

    Attributes:
      m, n, k: the product [m, k] x [k, n].
      dtype, out_dtype: of the factors and of the result, by name.
      transpose_a, transpose_b: as `matmul`'s.
      config: the configuration.
      microseconds: its median time.
      measured: how many configurations the search measured.
      run: where, and by which code, it was found.
    """

    m: int
    n: int
    k: int
    dtype: str
    transpose_a: bool
    transpose_b: bool
    out_dtype: str
    config: MatmulConfig
    microseconds: float
    measured: int
    run: dict[str, Any]

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Entry":
        """An entry of a table.

        Raises:
          TypeError: its fields, or those of its configuration, are of another version.
        """
        values: dict[str, Any] = {**fields, "config": MatmulConfig(**fields["config"])}
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return self._asdict() | dict(config=dataclasses.asdict(self.config))

    def distance(self, m: int, n: int, k: int) -> float:
        """Doublings between this product and another."""
        return math.dist(map(math.log2, self[:3]), map(math.log2, (m, n, k)))

    def divides_alike(self, m: int, n: int, k: int) -> bool:
        """Whether the configuration divides another product, of no fewer rows, equally.

        That is into as many tiles and steps. Of fewer rows, three quarters are enough.
        """
        steps, others = (math.ceil(size / self.config.tile_k) for size in (self.k, k))
        tiles = self.config.tiles(self.m, self.n), self.config.tiles(m, n)
        return 4 * m >= 3 * self.m and steps == others and tiles[0] == tiles[1]


def nearest_entry(
    m: int,
    n: int,
    k: int,
    dtype: DTypeLike,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: DTypeLike | None = None,
    operands: Sequence[DTypeLike] = (),
    gpu: str | None = None,
) -> Entry | None:
    """The nearest recorded product by the rule above; None if none counts.

    Args:
      m, n, k: the product [m, k] x [k, n].
      dtype: of the factors.
      transpose_a, transpose_b: as `matmul`'s.
      out_dtype: of the result; by default `dtype`, bfloat16 for float8.
      operands: the dtypes of the epilogue's matrices, which take shared memory too.
      gpu: as JAX names it ("NVIDIA H200"); by default the device that JAX uses by default.
    """
    size = jnp.dtype(dtype).itemsize
    stored = out_dtype or (jnp.bfloat16 if size == 1 else dtype)
    for entries in _tables(gpu or default_device().device_kind):
        near = [
            (entry.distance(m, n, k), index, entry)
            for index, entry in enumerate(entries)
            if jnp.dtype(entry.dtype).itemsize == size
            and (entry.transpose_a, entry.transpose_b) == (transpose_a, transpose_b)
            and entry.divides_alike(m, n, k)
            and fits(entry.config, dtype, stored, operands)
        ]
        if near:
            return min(near, key=lambda found: found[:2])[2]
    return None


def file_name(gpu: str) -> str:
    """A GPU's name as that of a file or a folder of records: `nvidia-h200`."""
    return gpu.lower().replace(" ", "-")


@functools.cache
def _tables(gpu: str) -> tuple[tuple[Entry, ...], ...]:
    """All tables, the GPU's own first."""
    mine = FOLDER / f"{file_name(gpu)}.json"
    paths = sorted(FOLDER.glob("*.json"), key=lambda path: (path != mine, path.name))
    return tuple(map(read, paths))


def read(path: pathlib.Path) -> tuple[Entry, ...]:
    """The entries of a table."""
    return tuple(map(Entry.from_json, json.loads(path.read_text("utf-8"))["entries"]))
