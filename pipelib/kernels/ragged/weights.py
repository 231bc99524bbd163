"""The kernel of the matrices' gradients: lhs^T @ g for each group, whose rows are the steps.

The model. A block makes one tile of the result after the other, [rows of the matrix, columns], in
one pipeline over a ragged grid: a tile has as many steps of 64 rows as its group::

    for each tile of the block:
      for each 64 rows of its group, in a ring of slots that goes on from tile to tile:
        where the rows are not all of the group: lhs[other rows] = 0
        sums = (sums, or zeros at the first step) + lhs[rows, mine]^T @ g[rows, columns]
      store the sums

A copy of pieces begins at a multiple of 8 rows, so the first step begins up to 7 rows before the
group. Rows of other groups count for nothing, since their part of `lhs` is set to zero in SMEM; but
zero times infinity is not a number, so what is infinite in g spreads to the groups beside it.
"""

# Parts of the signatures of JAX's functions have no types.
# pyright: reportUnknownMemberType=false

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import tiles
from pipelib.kernels.attention.band import accumulate
from pipelib.kernels.matmul.config import STAGED_ROWS, MatmulConfig
from pipelib.kernels.matmul.result import this_thread
from pipelib.refs import Accumulator, Int, Ref
from pipelib.warp_specialized import AllSteps, emit_pipeline_warp_specialized


class Weights(NamedTuple):
    """Everything about the gradients but their arrays; hashable.

    Attributes:
      config: how they are divided: `tile_m` of the lhs's columns, `tile_n` of g's, and steps of
        `tile_k` rows.
      out_dtype: the dtype of the result.
      in_place: whether `wgmma` adds to registers; JAX's interpreter adds to zeros.
    """

    config: MatmulConfig
    out_dtype: Any
    in_place: bool


class Tile(NamedTuple):
    """A tile: its group, the group's rows [start, stop), and its place in the matrix."""

    group: Int
    start: Int
    stop: Int
    m: Int
    n: Int

    @property
    def base(self) -> Int:
        """The first row that is loaded."""
        first = jnp.asarray(self.start) & -tiles.PIECE_ROWS
        return pl.multiple_of(first, tiles.PIECE_ROWS)


def launch_weights(
    lhs: jax.Array, g: jax.Array, sizes: jax.Array, weights: Weights, num_sms: int
) -> jax.Array:
    """Makes the gradients.

    Args:
      lhs: [M, K], of pieces.
      g: [M, N], the result's gradient, of pieces.
      sizes: int32 [groups].
      weights: how.
      num_sms: the number of SMs of the GPU.

    Returns:
      [groups, K, N] in `weights.out_dtype`.
    """
    (rows, m), n, config = lhs.shape, g.shape[1], weights.config
    stops = jnp.minimum(jnp.cumsum(jnp.maximum(sizes, 0)), rows).astype(jnp.int32)
    starts = jnp.append(jnp.int32(0), stops[:-1])
    count = len(sizes) * math.prod(config.tiles(m, n))
    blocks = min(num_sms, count)
    slots = config.compute_threads, config.staging_slots, STAGED_ROWS, config.epilogue_n
    staging = plgpu.SMEM(slots, weights.out_dtype, transforms=tiles.tiled(weights.out_dtype))

    def ragged_dot_weights(
        lhs: Ref, g: Ref, starts: Ref, stops: Ref, out: Ref, staging: Ref
    ) -> None:
        Block(weights, lhs, g, starts, stops, out, staging).run(count, blocks)

    return plgpu.kernel(
        ragged_dot_weights, out_type=jax.ShapeDtypeStruct((len(sizes), m, n), weights.out_dtype),
        scratch_types=[staging], grid=(blocks,), grid_names=("block",),
        num_threads=config.threads, thread_name="thread",
    )(lhs, g, starts, stops)  # fmt: skip


class Block(NamedTuple):
    """A block of the kernel; the refs are in GMEM, but for the staging slots."""

    weights: Weights
    lhs: Ref
    g: Ref
    starts: Ref
    stops: Ref
    out: Ref
    staging: Ref

    def _tile(self, visit: Int, blocks: int) -> Tile:
        """The block's tile of this number."""
        config = self.weights.config
        shape = config.tiles(*self.out.shape[1:])
        index = lax.axis_index("block") + visit * blocks
        each = jnp.int32(math.prod(shape))
        group, index = lax.div(index, each), lax.rem(index, each)
        m, n = plgpu.planar_snake(index, shape, 0, config.width)
        return Tile(group, self.starts[group], self.stops[group], m, n)

    def run(self, count: int, blocks: int) -> None:
        """Makes the block's tiles, of `count` of all `blocks`."""
        config = self.weights.config
        own = lax.div(count - 1 - lax.axis_index("block"), blocks) + 1
        tile_at = lambda visit: self._tile(visit, blocks)

        def size(visit: Int) -> Int:
            tile = tile_at(visit)
            return jnp.maximum(1, lax.div(tile.stop - tile.base + config.tile_k - 1, config.tile_k))

        def rows_of(visit: Int, step: Int) -> Int:
            return tile_at(visit).base + step * config.tile_k

        block = lambda columns, at: plgpu.BlockSpec(
            (pl.Element(config.tile_k), columns), at, transforms=tiles.tiled(self.lhs.dtype)
        )
        in_specs = [
            block(config.tile_m, lambda i, s, _: (rows_of(i, s), tile_at(i).m)),
            block(config.tile_n, lambda i, s, _: (rows_of(i, s), tile_at(i).n)),
        ]

        def step(indices: Any, lhs: Ref, g: Ref, sums: jax.Array) -> jax.Array:
            visit, number, steps = indices
            tile = tile_at(visit)
            self._clear(tile, number, lhs)
            sums = lax.cond(number == 0, jnp.zeros_like, lambda x: x, sums)
            sums = self._add(sums, lhs, g)
            pl.when(number == steps - 1)(lambda: self._store(tile, sums))
            return sums

        def compute_thread(pipeline: AllSteps) -> None:
            zeros = jnp.zeros((config.rows, config.tile_n), jnp.float32)
            pipeline(plgpu.layout_cast(zeros, plgpu.Layout.WGMMA))

        emit_pipeline_warp_specialized(
            step, grid=(own, size), in_specs=in_specs, max_concurrent_steps=config.slots,
            memory_registers=config.memory_registers, wg_axis="thread",
            num_compute_wgs=config.compute_threads, compute_context=compute_thread,
            ordinary_reads=False,
        )(self.lhs, self.g)  # fmt: skip
        is_compute_thread = this_thread(config) < config.compute_threads
        pl.when(is_compute_thread)(lambda: plgpu.wait_smem_to_gmem(0))

    def _mine(self) -> Any:
        """This thread's rows of a tile, which are columns of the lhs."""
        config = self.weights.config
        return pl.ds(this_thread(config) * config.rows, config.rows)

    def _clear(self, tile: Tile, number: Int, lhs: Ref) -> None:
        """Sets this thread's columns to zero in rows that are not of the group."""
        size = self.weights.config.tile_k
        first = tile.base + number * size

        @pl.when((first < tile.start) | (first + size > tile.stop))
        def _() -> None:
            part = lhs.at[:, self._mine()]
            values = plgpu.load(part, layout=plgpu.Layout.WGMMA)
            shape = values.shape
            row = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=plgpu.Layout.WGMMA) + first
            is_of_group = (row >= tile.start) & (row < tile.stop)
            part[...] = jnp.where(is_of_group, values, jnp.zeros_like(values))
            plgpu.commit_smem()

    def _add(self, sums: jax.Array, lhs: Ref, g: Ref) -> jax.Array:
        """The sums with a step's product."""

        def add(acc: Accumulator) -> tuple[()]:
            plgpu.wgmma(acc, lhs.at[:, self._mine()].transpose((1, 0)), g)
            return ()

        (sums,), _ = accumulate(self.weights.in_place, (sums,), (), add)
        return sums

    def _store(self, tile: Tile, sums: jax.Array) -> None:
        """Starts the stores of this thread's rows of a tile, part by part."""
        config = self.weights.config
        for part in range(config.parts):
            row, column = divmod(part * config.epilogue_n, config.tile_n)
            row *= STAGED_ROWS
            values = sums[row : row + STAGED_ROWS, column : column + config.epilogue_n]
            plgpu.wait_smem_to_gmem(config.staging_slots - 1, wait_read_only=True)
            slot = self.staging.at[this_thread(config), part % config.staging_slots]
            slot[...] = values.astype(self.weights.out_dtype)
            plgpu.commit_smem()
            first = tile.m * config.tile_m + this_thread(config) * config.rows + row
            columns = pl.ds(tile.n * config.tile_n + column, config.epilogue_n)
            there = self.out.at[tile.group, pl.ds(first, STAGED_ROWS), columns]
            plgpu.copy_smem_to_gmem(slot, there)
