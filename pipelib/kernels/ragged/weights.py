"""The kernel of the matrices' gradients: lhs^T @ g for each group, whose rows are the steps.

The model. A block makes one tile of the result after the other, [rows of the matrix, columns]. A
tile has as many steps of 64 rows as its group has on the GPU, none if the group is empty. The steps
of a block are numbered from its first tile to its last, so its ring of S slots goes on from tile to
tile. The memory thread and the compute threads count steps alike::

    memory thread                        each compute thread
    for each tile of the block:          for each tile of the block:
      for each 64 rows of its group:       for each 64 rows of its group:
        wait  until the slot is released     wait     for the rows of both operands
        load  both operands' rows            clear    lhs[rows of other groups] = 0
    wait for the last releases               queue    sums += lhs[rows, mine]^T @ g[rows, columns]
                                             release  the slot of the product before, once done
                                           release  the tile's last slot
                                           store    the sums

What a tile is, its group's rows and its place, is read and divided once for each tile, not for each
step. The memory thread is up to S steps ahead: it loads the next tile while this one is stored.

A copy of pieces begins at a multiple of 8 rows, so the first step begins up to 7 rows before the
group. Rows of other groups count for nothing, since their part of `lhs` is set to zero in SMEM; but
zero times infinity is not a number, so what is infinite in g spreads to the groups beside it.

Why no emitter. The pipelines of a chain have known numbers of steps, all multiples of the slots.
One pipeline over a ragged grid would find its tile anew at each step, and no product could be in
flight when a step ends, since the sums go from step to step as values.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs, tiles
from pipelib.kernels.matmul.config import STAGED_ROWS, MatmulConfig
from pipelib.kernels.matmul.result import this_thread
from pipelib.refs import Accumulator, Allocation, Int, Ref


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

    def steps(self, size: int) -> Int:
        """How many steps of `size` rows it has."""
        count = lax.div(self.stop - self.base + (size - 1), jnp.int32(size))
        return jnp.where(self.stop > self.start, count, 0)


class Ring(NamedTuple):
    """The slots of the steps, and their barriers.

    Attributes:
      lhs, g: [slots, rows of a step, columns of a tile].
      produced: a barrier of each slot, at which the copy of each operand arrives.
      consumed: a barrier of each slot, at which each compute thread arrives.
    """

    lhs: Ref
    g: Ref
    produced: Ref
    consumed: Ref

    @staticmethod
    def allocations(config: MatmulConfig, dtype: Any) -> list[Allocation]:
        """The fields of a ring, for `plgpu.kernel`."""
        slots, transforms = config.slots, tiles.tiled(dtype)
        return [
            plgpu.SMEM((slots, config.tile_k, config.tile_m), dtype, transforms=transforms),
            plgpu.SMEM((slots, config.tile_k, config.tile_n), dtype, transforms=transforms),
            plgpu.Barrier(num_arrivals=2, num_barriers=slots),
            plgpu.Barrier(num_arrivals=config.compute_threads, num_barriers=slots),
        ]


def launch_weights(
    lhs: jax.Array, g: jax.Array, sizes: jax.Array, config: MatmulConfig, num_sms: int
) -> jax.Array:
    """Makes the gradients.

    Args:
      lhs: [M, K], of pieces.
      g: [M, N], the result's gradient, of pieces.
      sizes: int32 [groups].
      config: how they are divided: `tile_m` of the lhs's columns, `tile_n` of g's, and steps of
        `tile_k` rows.
      num_sms: the number of SMs of the GPU.

    Returns:
      [groups, K, N] in lhs's dtype.
    """
    (rows, m), n, dtype = lhs.shape, g.shape[1], lhs.dtype
    stops = jnp.minimum(jnp.cumsum(jnp.maximum(sizes, 0)), rows).astype(jnp.int32)
    starts = jnp.append(jnp.int32(0), stops[:-1])
    slots = config.compute_threads, config.staging_slots, STAGED_ROWS, config.epilogue_n
    staging = plgpu.SMEM(slots, dtype, transforms=tiles.tiled(dtype))

    def ragged_dot_weights(
        lhs: Ref, g: Ref, starts: Ref, stops: Ref, out: Ref, staging: Ref, *ring: Ref
    ) -> None:
        Block(config, lhs, g, starts, stops, out, staging, Ring(*ring)).run()

    return plgpu.kernel(
        ragged_dot_weights,
        out_type=jax.ShapeDtypeStruct((len(sizes), m, n), dtype),
        scratch_types=[staging, *Ring.allocations(config, dtype)],
        grid=(min(num_sms, len(sizes) * math.prod(config.tiles(m, n))),),
        grid_names=("block",),
        num_threads=config.threads,
        thread_name="thread",
    )(lhs, g, starts, stops)


class Block(NamedTuple):
    """A block of the kernel; the refs are in GMEM, but for the staging slots and the ring."""

    config: MatmulConfig
    lhs: Ref
    g: Ref
    starts: Ref
    stops: Ref
    out: Ref
    staging: Ref
    ring: Ring

    def run(self) -> None:
        """Gives each thread its role."""
        config = self.config
        threads = specs.Threads.of("thread", config.compute_threads, None, config.memory_registers)

        def load() -> None:
            plgpu.set_max_registers(threads.memory_registers, action="decrease")
            self._wait_for_the_last_releases(self._for_each_tile(self._load))

        def compute() -> None:
            plgpu.set_max_registers(threads.compute_registers, action="increase")
            self._for_each_tile(self._multiply)
            plgpu.wait_smem_to_gmem(0)

        lax.cond(this_thread(config) == threads.memory_thread, load, compute)

    def _for_each_tile(self, function: Callable[[Tile, Int], None]) -> Int:
        """Calls the function with each tile of the block, and with the number of its first step.

        Returns:
          How many steps the tiles have together.
        """
        config, (groups, m, n) = self.config, self.out.shape
        shape = config.tiles(m, n)
        grid = groups, math.prod(shape)

        def one_tile(info: plgpu.NDLoopInfo, carry: Int) -> Int:
            group, index = info.index
            place = plgpu.planar_snake(index, shape, 0, config.width)
            tile = Tile(group, self.starts[group], self.stops[group], *place)
            function(tile, carry)
            return carry + tile.steps(config.tile_k)

        loop: Any = plgpu.nd_loop(grid, collective_axes="block", init_carry=jnp.int32(0))  # pyright: ignore[reportUnknownVariableType]
        return loop(one_tile)  # pyright: ignore[reportUnknownVariableType]

    def _slot(self, step: Int) -> jax.Array:
        """The slot of a step of the block."""
        return lax.rem(step, jnp.int32(self.config.slots))

    # The memory thread.

    def _load(self, tile: Tile, first: Int) -> None:
        """Loads the steps of a tile as their slots become free."""
        config, (lhs, g, produced, consumed) = self.config, self.ring
        operands = (self.lhs, lhs, tile.m, config.tile_m), (self.g, g, tile.n, config.tile_n)

        def load(number: Int, _: None) -> None:
            slot = self._slot(first + number)
            pl.when(first + number >= config.slots)(lambda: plgpu.barrier_wait(consumed.at[slot]))
            rows = pl.ds(tile.base + number * config.tile_k, config.tile_k)
            for source, slots, column, columns in operands:
                block = source.at[rows, pl.ds(column * columns, columns)]
                plgpu.copy_gmem_to_smem(block, slots.at[slot], produced.at[slot])

        lax.fori_loop(0, tile.steps(config.tile_k), load, None)

    def _wait_for_the_last_releases(self, steps: Int) -> None:
        """Returns once the compute threads have released the slots of all steps."""

        def wait(step: Int, _: None) -> None:
            plgpu.barrier_wait(self.ring.consumed.at[self._slot(step)])

        lax.fori_loop(jnp.maximum(steps - self.config.slots, 0), steps, wait, None)

    # A compute thread.

    def _mine(self) -> Any:
        """This thread's rows of a tile, which are columns of the lhs."""
        return pl.ds(this_thread(self.config) * self.config.rows, self.config.rows)

    def _multiply(self, tile: Tile, first: Int) -> None:
        """Makes this thread's rows of a tile, and starts their stores."""
        shape = self.config.rows, self.config.tile_n
        sums = functools.partial(self._sums, tile, first)
        self._store(tile, pl.run_scoped(sums, plgpu.ACC(shape, jnp.float32)))  # pyright: ignore[reportPrivateImportUsage]

    def _sums(self, tile: Tile, first: Int, acc: Accumulator) -> jax.Array:
        """The sums over the steps of a tile, whose slots are released."""
        config, (lhs, g, produced, consumed) = self.config, self.ring
        delay, count = config.delay_release, tile.steps(config.tile_k)

        def release(number: Int) -> None:
            plgpu.barrier_arrive(consumed.at[self._slot(first + number)])

        def add(number: Int, _: None) -> None:
            slot = self._slot(first + number)
            plgpu.barrier_wait(produced.at[slot])
            self._clear(tile, number, lhs.at[slot])
            mine = lhs.at[slot, :, self._mine()]
            plgpu.wgmma(acc, mine.transpose((1, 0)), g.at[slot])
            plgpu.wgmma_wait(delay)
            pl.when(number >= delay)(functools.partial(release, number - delay))

        lax.fori_loop(0, count, add, None)
        sums = acc[...]
        for back in reversed(range(1, delay + 1)):
            pl.when(count >= back)(functools.partial(release, count - back))
        return sums

    def _clear(self, tile: Tile, number: Int, lhs: Ref) -> None:
        """Sets this thread's columns to zero in rows that are not of the group."""
        size = self.config.tile_k
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

    def _store(self, tile: Tile, sums: jax.Array) -> None:
        """Starts the stores of this thread's rows of a tile, part by part."""
        config = self.config
        for part in range(config.parts):
            row, column = divmod(part * config.epilogue_n, config.tile_n)
            row *= STAGED_ROWS
            values = sums[row : row + STAGED_ROWS, column : column + config.epilogue_n]
            plgpu.wait_smem_to_gmem(config.staging_slots - 1, wait_read_only=True)
            slot = self.staging.at[this_thread(config), part % config.staging_slots]
            slot[...] = values.astype(self.out.dtype)
            plgpu.commit_smem()
            first = tile.m * config.tile_m + this_thread(config) * config.rows + row
            columns = pl.ds(tile.n * config.tile_n + column, config.epilogue_n)
            there = self.out.at[tile.group, pl.ds(first, STAGED_ROWS), columns]
            plgpu.copy_smem_to_gmem(slot, there)
