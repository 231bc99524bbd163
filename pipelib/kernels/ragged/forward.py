"""The kernel of `ragged_dot`: a chain of tiles, whose rows the sizes of the groups decide.

The model. A block makes one tile of the result after the other, as a "chained" `matmul` does::

    for each (visit, tile of columns) of the block, in a snake order:
      for each step k, in a ring of slots that goes on from tile to tile:
        accumulator += lhs[rows of the visit, k] @ rhs[group, k, columns]
      store the rows that are of the group

Copies begin at a visit's first row, whichever it is, so they see rows and not pieces (`tiles`).
They bring rows behind the group's end, too; those of the result are not stored. What is stored
of a tile that is cut short are pieces of 32, 16, 8, 4, 2 and 1 rows: TMA's sizes are fixed.
Rows of no group are given zeros.
"""

# What it asks of JAX has no types.
# pyright: basic, reportPrivateImportUsage=false

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring, tiles
from pipelib.kernels.chain import run_chain
from pipelib.kernels.front import named
from pipelib.kernels.matmul.config import STAGED_ROWS, MatmulConfig
from pipelib.kernels.matmul.result import this_thread
from pipelib.kernels.ragged.visits import Visits
from pipelib.refs import Accumulator, Int, Ref
from pipelib.specs import ByRows
from pipelib.warp_specialized import (
    AllSteps,
    WarpSpecializedPipeline,
    emit_pipeline_warp_specialized,
)


class Grouped(NamedTuple):
    """Everything about a product of groups but its arrays; hashable.

    Attributes:
      config: how it is divided.
      transpose_rhs: whether the matrices are stored as [N, K].
      out_dtype: the dtype of the result.
      by_rows: whether copies can see rows; not so in JAX's interpreter, which needs no such thing.
    """

    config: MatmulConfig
    transpose_rhs: bool
    out_dtype: Any
    by_rows: bool

    @property
    def stages_pieces(self) -> bool:
        """Whether a staged part is one piece wide; one of float32 is not, and has plain rows."""
        return self.by_rows and self.config.epilogue_n == tiles.piece_columns(self.out_dtype)

    def sizes(self, lhs: Any, rhs: Any) -> tuple[int, int, int]:
        """M, N and K."""
        m, k = lhs.shape
        return m, rhs.shape[1 if self.transpose_rhs else 2], k


class Tile(NamedTuple):
    """A tile of the result: its visit, and its place along the columns."""

    group: Int
    row: Int
    stop: Int
    column: Int


def launch(
    lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, grouped: Grouped, num_sms: int
) -> jax.Array:
    """Makes the products.

    Args:
      lhs, rhs, sizes: as `ragged_dot` takes them, of sizes that copies can address.
      grouped: which products.
      num_sms: the number of SMs of the GPU.

    Returns:
      [M, N] in `grouped.out_dtype`.
    """
    m, n, _ = grouped.sizes(lhs, rhs)
    config = grouped.config
    slots = config.compute_threads, config.staging_slots, STAGED_ROWS, config.epilogue_n
    out = jax.ShapeDtypeStruct((m, n), grouped.out_dtype)
    staging = (
        tiles.by_rows(slots, grouped.out_dtype)
        if grouped.stages_pieces
        else plgpu.SMEM(slots, grouped.out_dtype)
    )
    visits = Visits.of(sizes, m, config.tile_m)
    return plgpu.kernel(
        named("ragged_dot", functools.partial(_block, grouped)),
        out_type=out,
        scratch_types=[staging],
        grid=(num_sms,),
        grid_names=("block",),
        num_threads=config.threads,
        thread_name="thread",
    )(lhs, rhs, *visits)


def _block(grouped: Grouped, lhs: Ref, rhs: Ref, *refs: Ref) -> None:
    """What each thread of a block does; `refs` are `Visits`, the result and the staging slots."""
    *visits, out, staging = refs
    Block(grouped, lhs, rhs, visits, out, tiles.both(staging, grouped.stages_pieces)).run()


class Block(NamedTuple):
    """A block of the kernel.

    Attributes:
      grouped: which products.
      lhs, rhs, out: in GMEM.
      visits: the fields of `Visits`, in GMEM.
      staging: the staging slots, in tiles and by rows.
    """

    grouped: Grouped
    lhs: Ref
    rhs: Ref
    visits: Sequence[Ref]
    out: Ref
    staging: tiles.Both

    def run(self) -> None:
        """Makes the block's tiles, as one chain."""
        config = self.grouped.config
        columns = math.ceil(self.out.shape[1] / config.tile_n)
        number = self.visits[0][0]

        def tile_at(index: jax.Array) -> Tile:
            visit, column = plgpu.planar_snake(index, (number, columns), 0, config.width)
            group, row, stop = (field[visit] for field in self.visits[1:])
            return Tile(group, row, stop, column)

        zero = jnp.int32(0)
        slots, delay = self._steps()[:2]
        run_chain(
            number * columns,
            lambda index, state: self._pipeline(tile_at(index), state),
            self._pipeline(Tile(zero, zero, zero, zero), zero),
            (self.lhs, self.rhs),
            slots - delay,
            has_any=lax.axis_index("block") < number * columns,
        )
        is_compute_thread = this_thread(config) < config.compute_threads
        pl.when(is_compute_thread)(lambda: plgpu.wait_smem_to_gmem(0))

    def _steps(self) -> tuple[int, int, int]:
        """Slots, products in flight when a step ends, and steps, a multiple of the slots."""
        config = self.grouped.config
        needed = math.ceil(self.lhs.shape[1] / config.tile_k)
        slots = min(config.slots, needed)
        return slots, min(config.delay_release, slots - 1), math.ceil(needed / slots) * slots

    def _specs(self, tile: Tile, delay: int) -> list[plgpu.BlockSpec]:
        """What a step loads."""
        grouped, config = self.grouped, self.grouped.config
        size, group = config.tile_k, jnp.minimum(tile.group, self.rhs.shape[0] - 1)
        block, index = (None, size, config.tile_n), lambda k: (group, k, tile.column)
        if grouped.transpose_rhs:
            block, index = (None, config.tile_n, size), lambda k: (group, tile.column, k)
        options: Any = dict(transforms=tiles.tiled(self.lhs.dtype), delay_release=delay)
        plain = plgpu.BlockSpec
        has_pieces = tiles.has_pieces(self.rhs.shape[1:], self.rhs.dtype)
        return [
            (ByRows if grouped.by_rows else plain)(
                (pl.Element(config.tile_m), size), lambda k: (tile.row, k), **options
            ),
            (plain if has_pieces or not grouped.by_rows else ByRows)(block, index, **options),
        ]

    def _pipeline(self, tile: Tile, state: jax.Array) -> WarpSpecializedPipeline:
        """The pipeline that makes and stores a tile; `state` is its place in the chain."""
        config, (slots, delay, count) = self.grouped.config, self._steps()

        def multiply(_: ring.Indices, lhs: Ref, rhs: Ref, acc: Accumulator) -> Accumulator:
            mine = pl.ds(this_thread(config) * config.rows, config.rows)
            right = rhs.transpose((1, 0)) if self.grouped.transpose_rhs else rhs
            plgpu.wgmma(acc, lhs.at[mine], right)
            plgpu.wgmma_wait(delay)
            return acc

        def compute_thread(pipeline: AllSteps) -> None:
            def sums(acc: Accumulator) -> jax.Array:
                pipeline(acc)
                return acc[...]

            shape = config.rows, config.tile_n
            self._store(tile, pl.run_scoped(sums, plgpu.ACC(shape, jnp.float32)))

        return emit_pipeline_warp_specialized(
            multiply, grid=(count,), in_specs=self._specs(tile, delay), max_concurrent_steps=slots,
            memory_registers=config.memory_registers, wg_axis="thread",
            num_compute_wgs=config.compute_threads, compute_context=compute_thread,
            pipeline_state=state, ordinary_reads=False,
        )  # fmt: skip

    def _store(self, tile: Tile, acc: jax.Array) -> None:
        """Starts the stores of this thread's rows of a tile, part by part."""
        config = self.grouped.config
        for part in range(config.parts):
            row, column = divmod(part * config.epilogue_n, config.tile_n)
            row *= STAGED_ROWS
            values = acc[row : row + STAGED_ROWS, column : column + config.epilogue_n]
            first = tile.row + this_thread(config) * config.rows + row
            columns = pl.ds(tile.column * config.tile_n + column, config.epilogue_n)
            plgpu.wait_smem_to_gmem(config.staging_slots - 1, wait_read_only=True)
            left = tile.stop - first
            slot = this_thread(config), part % config.staging_slots
            pl.when(left > 0)(
                functools.partial(self._store_part, tile, values, slot, first, left, columns)
            )
            plgpu.commit_smem_to_gmem_group()  # also if empty: groups count parts

    def _store_part(
        self, tile: Tile, values: jax.Array, slot: Any, first: Int, left: Int, columns: Any
    ) -> None:
        """Writes a part into its slot, and starts the stores of its rows.

        Args:
          tile: its tile.
          values: the part.
          slot, first, left, columns: as `_store_rows` takes them.
        """
        is_of_a_group = tile.group < self.rhs.shape[0]
        values = lax.cond(is_of_a_group, lambda x: x, jnp.zeros_like, values)
        self.staging.tiles.at[slot][...] = values.astype(self.grouped.out_dtype)
        plgpu.commit_smem()
        self._store_rows(slot, first, left, columns)

    def _store_rows(self, slot: Any, first: Int, left: Int, columns: Any) -> None:
        """Starts the stores of the rows of a staging slot that are of the group.

        Args:
          slot: the slot.
          first: its first row in the result.
          left: how many rows from there are of the group, 1 or more.
          columns: its columns in the result.
        """

        def store(offset: Int, size: int) -> None:
            rows = self.staging.rows.at[slot].at[pl.ds(offset, size)]
            there = self.out.at[pl.ds(first + offset, size), columns]
            plgpu.copy_smem_to_gmem(rows, there, commit_group=False)

        pl.when(left >= STAGED_ROWS)(functools.partial(store, 0, STAGED_ROWS))
        rest = jnp.where(left >= STAGED_ROWS, 0, left)
        size = STAGED_ROWS // 2
        while size:
            offset = rest & (-2 * size)
            pl.when((rest & size) != 0)(functools.partial(store, offset, size))
            size //= 2
