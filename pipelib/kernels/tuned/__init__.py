"""`nearest_config`: the tuned configuration of the recorded product that is most like one.

The rule. Of the table of the GPU at hand, or else of another Hopper GPU, those entries count that
have factors of the same size in bytes, the same transpositions, and a configuration that fits
with the result's dtype. Of these it is the nearest by the logarithms of M, N and K: the least root
of the sum of squares of log2(m / m'), log2(n / n') and log2(k / k'); the first in the table where
several are. One farther off than `FARTHEST` doublings says nothing: a table of large products would
give a small one tiles of which most SMs get none.

A table is `<gpu>.json` beside this module. `table` makes it of the record of the searches: each
entry has a product, the configuration that won, its median time, how many were measured, and where
and by which code it was found.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import jax.numpy as jnp

from pipelib.kernels.device import default_device
from pipelib.kernels.matmul_config import MatmulConfig

FOLDER = pathlib.Path(__file__).parent
FARTHEST = 3.0


class Entry(NamedTuple):
    """A product that was searched for, and the configuration that won."""

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
        """An entry of a table; TypeError if its configuration is of another version."""
        return cls(**fields | dict(config=MatmulConfig(**fields["config"])))

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return self._asdict() | dict(config=dataclasses.asdict(self.config))

    def distance(self, m: int, n: int, k: int) -> float:
        """Doublings between this product and another."""
        return math.dist(map(math.log2, self[:3]), map(math.log2, (m, n, k)))


def nearest_config(
    m: int,
    n: int,
    k: int,
    dtype: Any,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: Any = None,
    operands: Sequence[Any] = (),
    gpu: str | None = None,
) -> MatmulConfig | None:
    """The configuration of the nearest recorded product by the rule above; None if there is none.

    Args:
      m, n, k: the product [m, k] x [k, n].
      dtype: of the factors.
      transpose_a, transpose_b: as `matmul`'s.
      out_dtype: of the result; by default `dtype`, bfloat16 for float8.
      operands: the dtypes of the epilogue's matrices, which take shared memory too.
      gpu: as JAX names it ("NVIDIA H200"); by default the device that JAX uses by default.
    """
    size = jnp.dtype(dtype).itemsize
    out_dtype = out_dtype or (jnp.bfloat16 if size == 1 else dtype)
    for entries in _tables(gpu or default_device().device_kind):
        near = [
            (distance, index, entry.config)
            for index, entry in enumerate(entries)
            if jnp.dtype(entry.dtype).itemsize == size
            and (entry.transpose_a, entry.transpose_b) == (transpose_a, transpose_b)
            and (distance := entry.distance(m, n, k)) <= FARTHEST
            and _fits(entry.config, dtype, out_dtype, operands)
        ]
        if near:
            return min(near, key=lambda found: found[:2])[2]
    return None


def _fits(config: MatmulConfig, dtype: Any, out_dtype: Any, operands: Sequence[Any]) -> bool:
    try:
        config.check(dtype, out_dtype, operands)
    except ValueError:
        return False
    return True


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


def table(record: dict[str, Any]) -> str:
    """The text of the table of a record that `pipelib.kernels.tune` wrote.

    A search in which nothing ran gives no entry.
    """
    entries = []
    for found in record["searches"]:
        finals = [row for row in found["finals"] if row[1] and not row[3]]
        if not finals:
            continue
        values, us, *_ = min(finals, key=lambda row: median(row[1]))
        facts = found["run"]
        run = {key: facts["provenance"][key] for key in ("gpu", "driver", "jax", "utc")}
        run["sources_digest"] = facts["sources_digest"]
        config = MatmulConfig(**dict(zip(found["fields"], values, strict=True)))
        measured = len(found["rows"])
        entries.append(Entry(**found["problem"], config=config, microseconds=round(median(us), 2),
                             measured=measured, run=run))  # fmt: skip
    entries.sort(key=lambda entry: entry[:7])
    lines = ",\n".join(json.dumps(entry.to_json()) for entry in entries)
    return f'{{"entries": [\n{lines}\n]}}\n'
