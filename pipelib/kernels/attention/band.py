"""Which scores of attention are seen, which steps a block therefore takes, and which are masked.

The model. A kernel divides the scores into *rows*, of which each compute thread has a fixed number,
and *columns*, which a block goes through in steps. In the forward kernel and the kernel of dQ, rows
are queries and columns are keys. In the other kernels of the gradients, rows are keys and columns
are queries.

Query i sees key j if i - left <= j <= i + right, and if both have the same segment (if there are
segments). A side of None has no limit; causal is right = 0. So a row sees the columns from `behind`
before it to `ahead` after it: (left, right), or (right, left) if rows are keys.

A block steps through the blocks of columns that some row of it may see. A step is masked if a
thread's rows do not see all of its columns, or if it holds the end of ragged columns. What segments
say of this is in a `span` for each block, which plain JAX makes before the kernel (`spans`): from
the first to the last block of columns that has one of the rows' segments, and the first run of them
that has one segment, the only one of the rows.

Scores of rows past the end do not matter, except in kernels that accumulate them (`ends`).

A mask compares the numbers of rows and columns. The numbers of columns are the same at each step,
so the compiler computes them once and keeps them, in a register for each two rows of scores that a
lane has. A kernel with no register to spare reads them from SMEM instead (`numbers`).
"""

# What it asks of JAX has no types.
# pyright: basic, reportPrivateImportUsage=false

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels.attention.config import AttentionConfig, Tiles
from pipelib.refs import Accumulator, Bool, Int, Ref, Shaped, Tree

#: The kernels work with powers of 2, so logarithms and scales are multiplied by it.
LOG2_E = math.log2(math.e)
#: Some arrays, in registers.
Arrays = tuple[jax.Array, ...]
#: Gives the scores of a step as they are seen: masked, or as they are.
Mask = Callable[[jax.Array], jax.Array]


class Options[C: AttentionConfig | None](NamedTuple):
    """What `attention` is told beside its arrays; hashable, so that JAX compiles each one once.

    A kernel takes `Options[AttentionConfig]`. Before a configuration is picked, it may be None.

    Attributes:
      left, right: how many keys a query sees before its own, and after it; None for all.
      scale: the factor of the scores.
      config: how the kernels divide the work.
      keys: how many keys there are, if k has rows of zeros behind them (`padding`); else None.
      deterministic: whether a configuration that is picked adds up gradients in a fixed order.
      soft_cap: what scaled scores tend to, as they grow; None if they are taken as they are.
    """

    left: int | None
    right: int | None
    scale: float
    config: C
    keys: int | None = None
    deterministic: bool = False
    soft_cap: float | None = None

    def capped(self, scores: jax.Array) -> jax.Array:
        """Scores that `multiplier` makes those that the softmax is of: tanh(.), if capped."""
        if self.soft_cap is None:
            return scores
        return jnp.tanh(scores * (self.scale / self.soft_cap))

    @property
    def multiplier(self) -> float:
        """What `capped` scores are multiplied by."""
        return self.scale if self.soft_cap is None else self.soft_cap

    @property
    def factor(self) -> float:
        """What a kernel multiplies `capped` scores by: its exponentials are powers of 2."""
        return self.multiplier * LOG2_E

    def slopes(self, weights: jax.Array, capped: jax.Array) -> jax.Array:
        """Weights of the gradients of `capped` scores as those of the scaled scores."""
        return weights if self.soft_cap is None else weights * (1.0 - capped * capped)

    def counts(self, columns: int, block: int) -> bool:
        """Whether masks compare the numbers of columns: `columns` in all, `block` in a step."""
        return self.left is not None or self.right is not None or columns % block > 0

    def configured(self, config: AttentionConfig) -> "Options[AttentionConfig]":
        """The same options with this configuration."""
        return cast("Options[AttentionConfig]", self._replace(config=cast(C, config)))


class Sizes(NamedTuple):
    """The sizes of a problem.

    Attributes:
      batch: how many sequences there are of each kind.
      queries, keys: tokens of a sequence.
      heads: heads of the queries.
      group: how many consecutive heads of the queries share one head of K and V.
      head_dim: the size of a head.
      by_rows: the size of a head of v, if copies see the rows of q, k and v; else None, and it is
        that of q and k.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    group: int
    head_dim: int
    by_rows: int | None = None

    @classmethod
    def of(cls, q: Shaped | Ref, k: Shaped | Ref, keys: int | None = None) -> "Sizes":
        """The sizes of q and k, which are [batch, seq, heads, head_dim]; `keys` as in `Options`."""
        batch, queries, heads, head_dim = q.shape
        there = k.shape[1] if keys is None else keys
        return cls(batch, queries, there, heads, heads // k.shape[2], head_dim)

    @property
    def values(self) -> int:
        """The size of a head of v, and of the result."""
        return self.by_rows or self.head_dim


class Band(NamedTuple):
    """The steps of a block of rows: `steps` blocks of columns, from the block `first`.

    Attributes:
      behind, ahead: how many columns a row sees before and after its own; None for all.
      columns: how many there are in all.
      tiles: how the kernel divides the scores.
      first, steps: the blocks of columns.
      ends: the number of rows, if rows past the end are masked; else None.
      numbers: 0, 1, ... for the columns of a block, int32 in SMEM, if masks read them.
      whole: the first block of columns whose segments hide nothing of the rows, and the end of
        those; None if there are no segments.
    """

    behind: int | None
    ahead: int | None
    columns: int
    tiles: Tiles
    first: Int
    steps: Int
    ends: int | None = None
    numbers: Ref | None = None
    whole: tuple[Int, Int] | None = None

    @classmethod
    def of(
        cls,
        behind: int | None,
        ahead: int | None,
        rows: int,
        columns: int,
        tiles: Tiles,
        row: Int | np.ndarray,
    ) -> "Band":
        """The band of the block whose first row is `row`, of `rows` rows in all.

        It has at least one step, which may be masked as a whole. Of a NumPy array of rows, it has
        arrays of the first and of the number of steps, which are known before the kernel runs.

        Args:
          behind, ahead, columns, tiles: as the attributes.
          rows: how many rows there are in all.
          row: the first row of the block.
        """
        known = isinstance(row, np.ndarray)
        numbers, div = cast(Any, (np, np.floor_divide) if known else (jnp, lax.div))
        blocks = pl.cdiv(columns, tiles.block)
        first: Int = 0
        end: Int = blocks
        if ahead is not None:
            last = numbers.minimum(row + tiles.threads * tiles.rows, rows) - 1 + ahead
            end = numbers.clip(div(last, numbers.int32(tiles.block)) + 1, 1, blocks)
        if behind is not None:
            first = div(numbers.maximum(row - behind, 0), numbers.int32(tiles.block))
            first = numbers.minimum(first, end - 1)
            end = numbers.maximum(end - first, 1)
        return cls(behind, ahead, columns, tiles, first, end)

    def within(self, span: tuple[Ref, ...]) -> "Band":
        """The band, less the steps that a block's segments hide: none, or its span, in GMEM."""
        if not span:
            return self
        first, end, whole, rest = (span[0][i] for i in range(4))
        first = lax.max(jnp.int32(self.first), first)
        end = lax.max(lax.min(self.first + self.steps, end), first + 1)
        return self._replace(first=first, steps=end - first, whole=(whole, rest))

    def column(self, step: Int) -> Int:
        """The first column of a step."""
        return (self.first + step) * self.tiles.block

    def is_edge(self, step: Int, row: Int) -> Bool:
        """Whether a thread's rows, from `row`, do not see all columns of a step of one segment."""
        column, size = self.column(step), self.tiles.block
        edges: list[Bool] = []
        if self.behind is not None:
            edges.append(column < row + self.tiles.rows - 1 - self.behind)
        if self.ahead is not None:
            edges.append(column + size - 1 > row + self.ahead)
        if self.columns % size:
            edges.append(column + size > self.columns)
        if self.ends is not None and self._has_rows_beyond:
            edges.append(row + self.tiles.rows > self.ends)
        return functools.reduce(lax.bitwise_or, edges) if edges else False

    @property
    def _has_rows_beyond(self) -> bool:
        """Whether the last block has rows past the end that are masked."""
        return self.ends is not None and self.ends % (self.tiles.rows * self.tiles.threads) > 0

    def mask(self, scores: jax.Array, step: Int, row: Int, segments: tuple[Ref, ...]) -> jax.Array:
        """The scores of a step, -inf where they are not seen.

        Args:
          scores: [a thread's rows, the columns of the step], float32, in the layout of an
            accumulator.
          step: the number of the step.
          row: the first row.
          segments: none, or the segments of all rows and of all columns, in GMEM.
        """
        column, shape = self.column(step), scores.shape
        seen: list[jax.Array] = []
        if self.numbers is None:
            columns = numbers_along(shape, 1)
        else:
            vector = plgpu.load(self.numbers, layout=plgpu.Layout.WGMMA.reduce(0))
            columns = spread(vector, shape, 1)
        # How far a column is after its row.
        after = columns - (numbers_along(shape, 0) + (row - column))
        if self.behind is not None:
            seen.append(after >= -self.behind)
        if self.ahead is not None:
            seen.append(after <= self.ahead)
        if self.columns % self.tiles.block:
            seen.append(columns < self.columns - column)
        if self.ends is not None and self._has_rows_beyond:
            seen.append(numbers_along(shape, 0) < self.ends - row)
        if segments:
            own = _segments(segments[0], row, self.tiles.rows, 0)
            others = _segments(segments[1], column, self.tiles.block, 1)
            seen.append(spread(own, shape, 0) == spread(others, shape, 1))
        return jnp.where(functools.reduce(lax.bitwise_and, seen), scores, -jnp.inf)

    def choose(
        self,
        step: Int,
        row: Int,
        segments: tuple[Ref, ...],
        function: Callable[..., Tree],
        *args: Tree,
    ) -> Tree:
        """Returns `function(mask, *args)`, where `mask` masks the scores of a step if it must.

        The function is compiled twice, with and without a mask, and where there are segments once
        more, with a mask that reads them: only the ends of documents wait for that. If a branch
        stands between products and the arithmetic that runs beside them, ptxas may wait for the
        products there. So the function must queue such products itself.

        Args:
          step, row, segments: as `mask` takes them.
          function: takes a `Mask`, which is `as_they_are` for the copy without one, and `args`.
        """
        mask = functools.partial(self.mask, step=step, row=row, segments=segments)
        masked = functools.partial(function, mask)
        if self.whole is not None:
            block, (first, end), rest = self.first + step, self.whole, self._replace(whole=None)
            within = lambda *args: rest.choose(step, row, (), function, *args)  # pyright: ignore[reportUnknownLambdaType]
            return lax.cond(lax.bitwise_or(block < first, block >= end), masked, within, *args)
        whole = functools.partial(function, as_they_are)
        is_edge = self.is_edge(step, row)
        if isinstance(is_edge, bool):
            return (masked if is_edge else whole)(*args)
        return lax.cond(is_edge, masked, whole, *args)

    def masked(
        self, scores: jax.Array, step: Int, row: Int, segments: tuple[Ref, ...]
    ) -> jax.Array:
        """The scores of a step, masked if they must be; the product that makes them is done."""
        return self.choose(step, row, segments, lambda mask, scores: mask(scores), scores)


def as_they_are(scores: jax.Array) -> jax.Array:
    """The mask of a step whose columns all rows see."""
    return scores


def numbers_along(shape: tuple[int, ...], axis: int) -> jax.Array:
    """The number of each score's row (axis 0) or column (axis 1), within the step."""
    return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA)


def spans(rows: jax.Array, columns: jax.Array, of_rows: int, of_columns: int) -> jax.Array:
    """The span of each block of rows.

    Args:
      rows, columns: their segments, int32 [batch, seq].
      of_rows, of_columns: how many are in a block.

    Returns:
      int32 [batch, blocks of rows, 4]: of the blocks of columns, the first and the end of those
      that may have a segment of the rows; the first and the end of a run of those that have no
      other segment than the rows, which have one.
    """
    (least, most), (low, high) = _ranges(rows, of_rows), _ranges(columns, of_columns)
    seen = (low[:, None] <= most[..., None]) & (high[:, None] >= least[..., None])
    one = (least == most)[..., None] & (low == high)[:, None] & (low[:, None] == least[..., None])
    blocks = jnp.arange(low.shape[1], dtype=jnp.int32)
    run = jnp.argmax(one, -1, keepdims=True)
    ends = jnp.where(~one & (blocks > run), blocks, low.shape[1]).min(-1)
    found = [
        jnp.argmax(seen, -1),
        jnp.where(seen, blocks + 1, 0).max(-1),
        jnp.where(one.any(-1), run[..., 0], low.shape[1]),
        ends,
    ]
    return jnp.stack(found, -1).astype(jnp.int32)


def _ranges(ids: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """The least and the largest segment in each block of this size, [batch, blocks]."""
    whole = jnp.pad(ids, ((0, 0), (0, -ids.shape[1] % size)), mode="edge")
    blocks = whole.reshape(ids.shape[0], -1, size)
    return blocks.min(-1), blocks.max(-1)


def _segments(ids: Ref, start: Int, size: int, axis: int) -> jax.Array:
    """The segments of `size` rows (axis 0) or columns (axis 1) from `start`, in registers."""
    layout = plgpu.Layout.WGMMA.reduce(1 - axis)
    return plgpu.load(ids.at[pl.ds(start, size)], layout=layout, optimized=False)


def spread(vector: jax.Array, shape: tuple[int, ...], axis: int) -> jax.Array:
    """A vector of rows (axis 0) or of columns (axis 1), broadcast to the whole shape."""
    return lax.broadcast_in_dim(vector, shape, (axis,))


def padded(array: jax.Array, multiple: int) -> jax.Array:
    """The array with zeros at the end of its last axis, up to a multiple.

    Arrays of one number for each row need it, because copies do not cut them off at the end.
    """
    missing = -array.shape[-1] % multiple
    return jnp.pad(array, ((0, 0),) * (array.ndim - 1) + ((0, missing),)) if missing else array


def accumulate(
    in_place: bool, results: Arrays, like: Arrays, add: Callable[..., Arrays]
) -> tuple[Arrays, Arrays]:
    """Adds products to results.

    Args:
      in_place: whether `wgmma` adds to the results themselves. If not, it adds to zeros, since
        JAX's interpreter has no other accumulators.
      results: float32 [rows, columns] each.
      like: arrays of the shapes and dtypes of the arrays that `add` returns.
      add: takes an accumulator for each result, adds to it, and returns arrays.

    Returns:
      The results after that, and what `add` returned.
    """
    if in_place:
        return _accumulate_in_place(results, like, add)

    def add_to_zeros(*accs: Accumulator) -> tuple[Arrays, Arrays]:
        values = add(*accs)
        return tuple(acc[...] for acc in accs), values

    shapes = (result.shape for result in results)
    types = [plgpu.ACC((rows, columns), jnp.float32) for rows, columns in shapes]
    products, values = pl.run_scoped(add_to_zeros, *types)
    return tuple(result + x for result, x in zip(results, products)), values


def _accumulate_in_place(
    results: Arrays, like: Arrays, add: Callable[..., Arrays]
) -> tuple[Arrays, Arrays]:
    """`accumulate` where accumulators start at the results."""
    count = len(results)

    def add_in_place(refs: list[Ref]) -> None:
        for out, value in zip(refs[count:], add(*refs[:count]), strict=True):
            out[...] = value

    found = cast(Arrays, pl.run_state(add_in_place)((*map(plgpu.ACC.init, results), *like)))
    return tuple(found[:count]), tuple(found[count:])
