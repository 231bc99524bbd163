"""What of the scores is seen, and so which blocks of them a kernel of attention goes through.

The model. A kernel has *rows*, so many in each compute thread, and goes through *columns* in blocks
of a step each. In the forward kernel and in that of dQ the rows are queries and the columns keys;
in that of dK and dV it is the other way round.

Query i sees key j if i - left <= j <= i + right (None: any; causal is right = 0) and, with
segments, if both have the same. So a row sees the columns from `behind` before it to `ahead` after
it: left and right, or right and left where the rows are keys. The blocks of columns that some row
of a block may see by the first rule are the steps; of these, those that a thread's rows do not
wholly see, and the last one of ragged columns, are masked. Rows beyond the end may have any scores,
since what is made of them is dropped, but where a kernel adds it to that of other rows (`ends`).

A mask compares the numbers of rows and columns. Those of columns are the same in each step, so that
the compiler works them out once and keeps them, in a register for each two rows of scores that a
lane has. A kernel that has none left reads them from SMEM instead (`numbers`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels.attention_config import AttentionConfig, Tiles


class Problem(NamedTuple):
    """What attention is told beside its arrays; hashable, so that JAX compiles each once."""

    left: int | None
    right: int | None
    scale: float
    config: AttentionConfig | None

    def counts(self, columns: int, block: int) -> bool:
        """Whether masks of so many columns compare their numbers."""
        return self.left is not None or self.right is not None or columns % block > 0


class Sizes(NamedTuple):
    """The sizes of a problem, of which `group` query heads share one of K and V."""

    batch: int
    queries: int
    keys: int
    heads: int
    group: int
    head_dim: int

    @classmethod
    def of(cls, q: Any, k: Any) -> "Sizes":
        """Of arrays [batch, seq, heads, head_dim]."""
        batch, queries, heads, head_dim = q.shape
        return cls(batch, queries, k.shape[1], heads, heads // k.shape[2], head_dim)


class Band(NamedTuple):
    """The blocks of `columns` that a block of rows goes through, `steps` of them from `first`.

    `ends` is how many rows there are, if those beyond are masked; `numbers` is 0, 1, ... for the
    columns of a block, int32 in SMEM, if a mask is to read them.
    """

    behind: int | None
    ahead: int | None
    columns: int
    tiles: Tiles
    first: Any
    steps: Any
    ends: int | None = None
    numbers: Any = None

    @classmethod
    def of(cls, behind, ahead, rows: int, columns: int, tiles: Tiles, row: Any) -> "Band":
        """Of a block's rows, from `row`, of `rows` in all; a step at least, maybe all masked."""
        blocks = pl.cdiv(columns, tiles.block)
        first, end = 0, blocks
        if ahead is not None:
            last = jnp.minimum(row + tiles.threads * tiles.rows, rows) - 1 + ahead
            end = jnp.clip(lax.div(last, jnp.int32(tiles.block)) + 1, 1, blocks)
        if behind is not None:
            first = lax.div(jnp.maximum(row - behind, 0), jnp.int32(tiles.block))
            first = jnp.minimum(first, end - 1)
            end = jnp.maximum(end - first, 1)
        return cls(behind, ahead, columns, tiles, first, end)

    def column(self, step: Any) -> Any:
        """The first column of a step."""
        return (self.first + step) * self.tiles.block

    def is_edge(self, step: Any, row: Any) -> Any:
        """Whether a thread's rows, from `row`, see less than the whole block of a step."""
        column, size, edges = self.column(step), self.tiles.block, []
        if self.behind is not None:
            edges.append(column < row + self.tiles.rows - 1 - self.behind)
        if self.ahead is not None:
            edges.append(column + size - 1 > row + self.ahead)
        if self.columns % size:
            edges.append(column + size > self.columns)
        if self._has_rows_beyond:
            edges.append(row + self.tiles.rows > self.ends)
        return functools.reduce(lax.bitwise_or, edges) if edges else False

    @property
    def _has_rows_beyond(self) -> bool:
        """Whether the last block has rows that are masked."""
        return self.ends is not None and self.ends % (self.tiles.rows * self.tiles.threads) > 0

    def mask(self, scores: jax.Array, step: Any, row: Any, segments: tuple) -> jax.Array:
        """The scores of a step with -inf for what is not seen.

        Args:
          scores: a thread's rows x the columns of the step, in the layout of an accumulator.
          step: which one.
          row: the first row.
          segments: none, or the segments of all rows and of all columns, in GMEM.
        """
        column, seen = self.column(step), []
        iota = lambda axis: plgpu.broadcasted_iota(
            jnp.int32, scores.shape, axis, layout=plgpu.Layout.WGMMA
        )
        if self.numbers is None:
            columns = iota(1)
        else:
            columns = plgpu.load(self.numbers, layout=plgpu.Layout.WGMMA.reduce(0))
            columns = spread(columns, scores.shape, 1)
        after = columns - (iota(0) + (row - column))  # by how much a column is after its row
        if self.behind is not None:
            seen.append(after >= -self.behind)
        if self.ahead is not None:
            seen.append(after <= self.ahead)
        if self.columns % self.tiles.block:
            seen.append(columns < self.columns - column)
        if self._has_rows_beyond:
            seen.append(iota(0) < self.ends - row)
        if segments:
            places = (row, self.tiles.rows, 1), (column, self.tiles.block, 0)
            own, others = (
                plgpu.load(
                    ids.at[pl.ds(start, size)], layout=plgpu.Layout.WGMMA.reduce(axis),
                    optimized=False,
                )
                for ids, (start, size, axis) in zip(segments, places)
            )  # fmt: skip
            seen.append(spread(own, scores.shape, 0) == spread(others, scores.shape, 1))
        return jnp.where(functools.reduce(lax.bitwise_and, seen), scores, -jnp.inf)

    def choose(
        self, step: Any, row: Any, segments: tuple, function: Callable, *args: Any
    ) -> Any:
        """`function(mask, *args)`, with a `mask` of scores that does nothing where all is seen.

        The function is there twice. A branch between products and the arithmetic beside them can
        make ptxas wait for the products: then what queues them must be part of the function.
        """
        mask = functools.partial(self.mask, step=step, row=row, segments=segments)
        masked = functools.partial(function, mask)
        whole = functools.partial(function, lambda scores: scores)
        is_edge = True if segments else self.is_edge(step, row)
        if isinstance(is_edge, bool):
            return (masked if is_edge else whole)(*args)
        return lax.cond(is_edge, masked, whole, *args)

    def masked(self, scores: jax.Array, step: Any, row: Any, segments: tuple) -> jax.Array:
        """The scores of a step, all of whose products are done, masked if they must be."""
        return self.choose(step, row, segments, lambda mask, scores: mask(scores), scores)


def spread(vector: jax.Array, shape: tuple[int, ...], axis: int) -> jax.Array:
    """A number for each row (axis 0) or column (axis 1), for all of them."""
    return lax.broadcast_in_dim(vector, shape, (axis,))


def padded(array: jax.Array, multiple: int) -> jax.Array:
    """Zeros added along the last axis: numbers of rows are copied unguarded at their end."""
    missing = -array.shape[-1] % multiple
    return jnp.pad(array, ((0, 0),) * (array.ndim - 1) + ((0, missing),)) if missing else array


def accumulate(in_place: bool, results: tuple, like: tuple, add: Callable) -> tuple:
    """The results plus what `add(*accumulators)` adds to each, and what it returns, as `like`.

    Not in place: to zeros, the only accumulators that JAX's interpreter has.
    """
    count = len(results)
    if not in_place:

        def add_to_zeros(*accs):
            values = add(*accs)
            return tuple(acc[...] for acc in accs), values

        types = [plgpu.ACC(result.shape, jnp.float32) for result in results]
        products, values = pl.run_scoped(add_to_zeros, *types)
        return tuple(result + x for result, x in zip(results, products)), values

    def add_in_place(refs):
        for out, value in zip(refs[count:], add(*refs[:count]), strict=True):
            out[...] = value

    found = pl.run_state(add_in_place)((*map(plgpu.ACC.init, results), *like))
    return tuple(found[:count]), tuple(found[count:])
