"""Which scores of attention are seen, which steps a block therefore takes, and which are masked.

The model. A kernel divides the scores into *rows*, of which each compute thread has a fixed number,
and *columns*, which a block goes through in steps. In the forward kernel and the kernel of dQ, rows
are queries and columns are keys. In the other kernels of the gradients, rows are keys and columns
are queries.

Query i sees key j if i - left <= j <= i + right, and if both have the same segment (if there are
segments). A side of None has no limit; causal is right = 0. So a row sees the columns from `behind`
before it to `ahead` after it: (left, right), or (right, left) if rows are keys.

A block steps through the blocks of columns that some row of it may see by the first rule. A step is
masked if a thread's rows do not see all of its columns, or if it holds the end of ragged columns.
Scores of rows past the end do not matter, except in kernels that accumulate them (`ends`).

A mask compares the numbers of rows and columns. The numbers of columns are the same at each step,
so the compiler computes them once and keeps them, in a register for each two rows of scores that a
lane has. A kernel with no register to spare reads them from SMEM instead (`numbers`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels.attention.config import AttentionConfig, Tiles


class Options(NamedTuple):
    """What `attention` is told beside its arrays; hashable, so that JAX compiles each one once."""

    left: int | None
    right: int | None
    scale: float
    config: AttentionConfig | None

    def counts(self, columns: int, block: int) -> bool:
        """Whether masks compare the numbers of columns, of this many columns in such blocks."""
        return self.left is not None or self.right is not None or columns % block > 0


class Sizes(NamedTuple):
    """The sizes of a problem; `group` query heads share one head of K and V."""

    batch: int
    queries: int
    keys: int
    heads: int
    group: int
    head_dim: int

    @classmethod
    def of(cls, q: Any, k: Any) -> "Sizes":
        """The sizes of q and k, which are [batch, seq, heads, head_dim]."""
        batch, queries, heads, head_dim = q.shape
        return cls(batch, queries, k.shape[1], heads, heads // k.shape[2], head_dim)


class Band(NamedTuple):
    """The steps of a block of rows: `steps` blocks of columns, from the block `first`.

    Attributes:
      behind, ahead: how many columns a row sees before and after its own; None for all.
      columns: how many there are in all.
      tiles: how the kernel divides the scores.
      first, steps: the blocks of columns.
      ends: the number of rows, if rows past the end are masked; else None.
      numbers: 0, 1, ... for the columns of a block, int32 in SMEM, if masks read them.
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
    def of(
        cls, behind: int | None, ahead: int | None, rows: int, columns: int, tiles: Tiles, row: Any
    ) -> "Band":
        """The band of the block whose first row is `row`, of `rows` rows in all.

        It has at least one step, which may be masked as a whole.
        """
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
        """Whether a thread's rows, from `row`, do not see all columns of a step."""
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
        """Whether the last block has rows past the end that are masked."""
        return self.ends is not None and self.ends % (self.tiles.rows * self.tiles.threads) > 0

    def mask(self, scores: jax.Array, step: Any, row: Any, segments: tuple) -> jax.Array:
        """The scores of a step, -inf where they are not seen.

        Args:
          scores: a thread's rows x the columns of the step, in the layout of an accumulator.
          step: the number of the step.
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

    def choose(self, step: Any, row: Any, segments: tuple, function: Callable, *args: Any) -> Any:
        """`function(mask, *args)`, where `mask(scores)` does nothing if all columns are seen.

        The function is compiled twice, with and without a mask. If a branch stands between products
        and the arithmetic that runs beside them, ptxas may wait for the products there. So the
        function must queue such products itself.
        """
        mask = functools.partial(self.mask, step=step, row=row, segments=segments)
        masked = functools.partial(function, mask)
        whole = functools.partial(function, lambda scores: scores)
        is_edge = True if segments else self.is_edge(step, row)
        if isinstance(is_edge, bool):
            return (masked if is_edge else whole)(*args)
        return lax.cond(is_edge, masked, whole, *args)

    def masked(self, scores: jax.Array, step: Any, row: Any, segments: tuple) -> jax.Array:
        """The scores of a step, masked if they must be; the product that makes them is done."""
        return self.choose(step, row, segments, lambda mask, scores: mask(scores), scores)


def spread(vector: jax.Array, shape: tuple[int, ...], axis: int) -> jax.Array:
    """A vector of rows (axis 0) or of columns (axis 1), broadcast to the whole shape."""
    return lax.broadcast_in_dim(vector, shape, (axis,))


def padded(array: jax.Array, multiple: int) -> jax.Array:
    """The array with zeros at the end of its last axis, up to a multiple.

    Numbers of rows need it, because their copies are not cut off at the end.
    """
    missing = -array.shape[-1] % multiple
    return jnp.pad(array, ((0, 0),) * (array.ndim - 1) + ((0, missing),)) if missing else array


def accumulate(in_place: bool, results: tuple, like: tuple, add: Callable) -> tuple:
    """The results after `add(*accumulators)` has added to each; also what it returns, as `like`.

    If not in place, it adds to zeros: JAX's interpreter has no other accumulators.
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
