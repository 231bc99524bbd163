"""The kernel of `collective_matmul`: what its blocks and Pallas threads do, on each device.

The model. Device d has shard d. In **shift** s a device sends its shard to device d + s, and
multiplies the shard of device d - s, which that device sends it in its own shift s; in shift 0 it
multiplies its own. All devices are counted modulo D. A block goes through its tiles of all shifts,
in one chain (`chain`)::

    compute threads            memory thread, warp 0          memory thread, warp 1
    for each tile:             for each tile:                 for each shift s from 1:
      for each step k:           if s > 0: wait for             for each unit of the block:
        wait, multiply,            arrived[s, row of tiles]       for each piece of the unit:
        release a slot           for each step k:                   load it
      store the tile               wait for a free slot             store it in device d + s
                                   load a[m, k] and b[k, n]       wait until all are stored
                                                                  signal arrived[s, row of tiles]

A **piece** is what one copy moves: some rows, up to 256 columns. A **unit** is up to 8 pieces
beside each other. The blocks take the units in turns, row by row, so that rows of tiles arrive in
order.

What is right about it, on any timing:

- A tile's rows are read after they were written: a row of tiles is complete when the semaphore has
  a signal for each of its units, whoever sent them. Each has a semaphore of its own, so no signal
  stands for another row's.
- A semaphore is back at zero when the kernel ends. The blocks wait and leave it as it is. Each
  tells block 0 once it will wait no more (`passed`), and then block 0 takes off what all have
  waited for.
- Nobody waits for ever. Sending waits for no other device and for no other block, so all that is
  waited for is sent. All blocks run at once, because there are no more than SMs; a device whose SMs
  have other work begins late, and then others wait for it.
- A device writes into memory of another one only during the same call there. It cannot be too
  early: JAX lets no device begin a kernel that uses others' memory before all devices have come to
  it (`plgpu.CompilerParams`, `skip_device_barrier`), and so all that the memory was used for before
  is over, and its semaphores are zeros. It cannot be too late: a device ends the kernel only when
  it has multiplied all that others send it. So the memory of the shards, an output of this call, is
  free for anything else after it.
- What it reads of its own shard to send it, it has read before it says that it has arrived.

Edges. A copy drops what is beyond the last row of a shard, and loads zeros there. So shards, and
the result, have an axis of their own for devices: what is beyond one shard is not in the next.

Not covered: devices of several hosts; NVLink multicast; JAX's interpreter, which has no semaphores
and no memory of other devices. Source: the structure is this project's own. That a kernel may wait
for a copy's end and then signal the other device, is as in `collective_matmul_mgpu` of JAX 0.11.2.
"""

# Parts of the signatures of JAX's functions have no types.
# pyright: reportUnknownMemberType=false

import functools
import math
import sys
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring, tiles
from pipelib.kernels.chain import state_in_chain, wait_for_last_releases
from pipelib.kernels.collective.config import SENT_COLUMNS, CollectiveConfig
from pipelib.kernels.matmul.config import STAGED_ROWS
from pipelib.kernels.matmul.forms import KSteps, Specialized, place_of_block
from pipelib.kernels.matmul.product import Product
from pipelib.kernels.matmul.result import Place, TileResult, this_thread
from pipelib.pipeline import Pipeline, emit_pipeline
from pipelib.refs import Int, Ref
from pipelib.specs import compute_registers
from pipelib.warp_specialized import WarpSpecializedPipeline

#: Pieces of a unit, at most: a signal, and the wait for the last store, for each 8 pieces.
_PIECES = 8


class Gathered(NamedTuple):
    """A collective product, but for its arrays; hashable.

    Attributes:
      product: the product of a shard.
      axis: the axis of the mesh along which the shards lie.
      devices: how many devices there are along it.
    """

    product: Product[CollectiveConfig]
    axis: str
    devices: int


class Units(NamedTuple):
    """How a shard is divided to be sent.

    Attributes:
      rows, columns: of a piece.
      strips: how many pieces lie below each other.
      parts: how many units lie beside each other.
      pieces: how many pieces a unit has.
      per_row: how many strips a row of tiles has.
    """

    rows: int
    columns: int
    strips: int
    parts: int
    pieces: int
    per_row: int

    @classmethod
    def of(cls, config: CollectiveConfig, m: int, k: int) -> "Units":
        """Those of a shard [m, k]."""
        columns = math.gcd(k, SENT_COLUMNS)
        pieces = math.gcd(k // columns, _PIECES)
        parts, strips = k // columns // pieces, math.ceil(m / config.send_rows)
        per_row = config.tile_m // config.send_rows
        return cls(config.send_rows, columns, strips, parts, pieces, per_row)

    @property
    def total(self) -> int:
        """How many units a shard has."""
        return self.strips * self.parts

    def of_row(self, row: Int) -> jax.Array:
        """How many units a row of tiles has; the last one may have fewer."""
        strips = jnp.minimum(self.per_row, self.strips - row * self.per_row)
        return strips * jnp.int32(self.parts)


def launch(lhs: jax.Array, rhs: jax.Array, asked: Gathered, num_sms: int) -> jax.Array:
    """Makes the product, within `jax.shard_map`.

    Args:
      lhs, rhs: a device's shard [M, K], and its columns [K, N], of sizes that copies can address.
      asked: which product.
      num_sms: the number of SMs of the GPU.

    Returns:
      [devices x M, N] in the dtype of the product.
    """
    (m, k), n, config = lhs.shape, rhs.shape[1], asked.product.config
    rows, dtype = config.tiles(m, n)[0] * config.tile_m * asked.devices, asked.product.out_dtype
    results = jax.ShapeDtypeStruct((asked.devices, m, n), dtype)
    shards = jax.ShapeDtypeStruct((asked.devices - 1, m, k), lhs.dtype)
    staged = config.compute_threads, config.staging_slots, STAGED_ROWS, config.epilogue_n
    out, _ = plgpu.kernel(
        _named_block(asked), out_type=(results, shards),
        scratch_types=[plgpu.SMEM(staged, dtype, transforms=tiles.tiled(dtype))],
        grid=(config.resident_blocks(rows, n, num_sms),), grid_names=("block",),
        num_threads=config.threads, thread_name="thread",
    )(lhs, rhs)  # fmt: skip
    return out.reshape(asked.devices * m, n)


def _named_block(asked: Gathered) -> Any:
    """What each thread of a block does, under the name that a profiler shows."""

    def collective_matmul(lhs: Ref, rhs: Ref, out: Ref, shards: Ref, staging: Ref) -> None:
        Block.of(asked, lhs, rhs, out, shards, staging).run()

    return collective_matmul


class Tile(NamedTuple):
    """A tile: its shift, and its place among the tiles of a shard."""

    shift: Int
    place: Place


class Block(NamedTuple):
    """A block of the kernel.

    Attributes:
      asked: which product.
      lhs, rhs: the device's shard and columns, in GMEM.
      out: the results of all shards, in GMEM.
      shards: those of other devices, in the order of the shifts, in GMEM.
      staging: the staging slots.
      arrived: semaphores, for each shift from 1 and each row of tiles: units that have arrived.
      passed: a semaphore: blocks that wait no more.
      units: how the shard is sent.
    """

    asked: Gathered
    lhs: Ref
    rhs: Ref
    out: Ref
    shards: Ref
    staging: Ref
    arrived: Ref
    passed: Ref
    units: Units

    @classmethod
    def of(
        cls, asked: Gathered, lhs: Ref, rhs: Ref, out: Ref, shards: Ref, staging: Ref
    ) -> "Block":
        """The block, with its semaphores."""
        config, (m, k) = asked.product.config, lhs.shape
        rows = config.tiles(m, rhs.shape[1])[0]
        arrived = cast(Ref, pl.get_global(plgpu.SemaphoreType.REGULAR((asked.devices - 1, rows))))
        passed = cast(Ref, pl.get_global(plgpu.SemaphoreType.REGULAR))
        units = Units.of(config, m, k)
        return cls(asked, lhs, rhs, out, shards, staging, arrived, passed, units)

    @property
    def config(self) -> CollectiveConfig:
        """How the product is divided."""
        return self.asked.product.config

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of a shard along m and n."""
        return self.config.tiles(self.lhs.shape[0], self.rhs.shape[1])

    def run(self) -> None:
        """Gives each thread its role."""
        zero = jnp.int32(0)
        first = self._pipeline(self.lhs, Tile(zero, Place(zero, zero)), zero)
        allocations = first.get_allocations(self.lhs, self.rhs)
        sending = self._sending().get_allocations(self.lhs)
        pl.run_scoped(self._roles, allocations, sending, collective_axes="thread")

    def _roles(self, allocations: ring.Allocations, sending: ring.Allocations) -> None:
        is_memory_thread = this_thread(self.config) == self.config.compute_threads
        memory_thread = functools.partial(self._memory_thread, allocations, sending)
        lax.cond(is_memory_thread, memory_thread, lambda: self._compute_thread(allocations))

    def _compute_thread(self, allocations: ring.Allocations) -> None:
        """Multiplies and stores this thread's rows of the block's tiles."""
        config = self.config
        registers = compute_registers(config.memory_registers, config.compute_threads)
        plgpu.set_max_registers(registers, action="increase")

        @self._for_each_tile
        def _(tile: Tile, state: jax.Array) -> None:
            # The shard's slots do not tell which memory they were loaded from.
            pipeline = self._pipeline(self.lhs, tile, state)
            pipeline.compute(self.lhs, self.rhs, allocations=allocations)

        plgpu.wait_smem_to_gmem(0)

    def _memory_thread(self, allocations: ring.Allocations, sending: ring.Allocations) -> None:
        """Gives the warps their roles; two have none."""
        plgpu.set_max_registers(self.config.memory_registers, action="decrease")

        def warp(index: jax.Array) -> None:
            pl.when(index == 0)(lambda: self._load_tiles(allocations))
            pl.when(index == 1)(lambda: self._send_shard(sending))

        plgpu.warp_map(warp)

    def _for_each_tile(self, visit: Any) -> None:
        """Calls `visit` with each tile of this block, and its place in the chain."""
        per_shard = math.prod(self.tiles)

        @plgpu.nd_loop((self.asked.devices * per_shard,), collective_axes="block")
        def _(info: plgpu.NDLoopInfo) -> None:
            shift = lax.div(info.index[0], jnp.int32(per_shard))
            within = lax.rem(info.index[0], jnp.int32(per_shard))
            tile = Tile(shift, place_of_block(self.config, self.tiles, within))
            visit(tile, state_in_chain(info))

    def _pipeline(self, shard: Ref, tile: Tile, state: jax.Array) -> WarpSpecializedPipeline:
        """The pipeline that makes and stores a tile of a shard's product."""
        product, devices = self.asked.product, self.asked.devices
        origin = self._device(devices - tile.shift)
        result = TileResult(product, (), (), self.out.at[origin], (self.staging,))
        form = Specialized(shard, self.rhs, product, result, lambda _: tile.place, 1)
        return form.pipeline(tile.place, state)

    def _device(self, distance: Int) -> jax.Array:
        """The device at a distance of 0 or more after this one."""
        me, devices = lax.axis_index(self.asked.axis), jnp.int32(self.asked.devices)
        return lax.rem(me + distance, devices)

    # What a memory thread's warps do.

    def _load_tiles(self, allocations: ring.Allocations) -> None:
        """Loads what the compute threads multiply, once it is there."""

        @self._for_each_tile
        def _(tile: Tile, state: jax.Array) -> None:
            def load(shard: Ref) -> None:
                pipeline = self._pipeline(shard, tile, state)
                pipeline.load(shard, self.rhs, allocations=allocations)

            def load_from_another_device() -> None:
                row, source = tile.place.m, tile.shift - 1
                semaphore = self.arrived.at[source, row]
                pl.semaphore_wait(semaphore, self.units.of_row(row), decrement=False)
                load(self.shards.at[source])

            lax.cond(tile.shift == 0, lambda: load(self.lhs), load_from_another_device)

        pl.semaphore_signal(self.passed)
        steps = KSteps.of(self.lhs, self.rhs, self.asked.product, Place(0, 0))
        wait_for_last_releases(allocations, steps.slots - steps.delay)

    def _send_shard(self, allocations: ring.Allocations) -> None:
        """Sends this block's units; block 0 then takes the signals off the semaphores."""
        self._sending()(self.lhs, allocations=allocations)
        pl.when(lax.axis_index("block") == 0)(self._reset)

    def _sending(self) -> Pipeline:
        """The pipeline that sends this block's units of the shard, to one device after another."""
        units, config, block = self.units, self.config, lax.axis_index("block")
        blocks = min(config.senders or sys.maxsize, lax.axis_size("block"))
        turns = lax.div(jnp.int32(units.total + blocks - 1) - block, jnp.int32(blocks))
        turns = jnp.where(block < blocks, turns, 0)
        parts = jnp.int32(units.parts)

        def place(turn: Int, piece: Int) -> tuple[jax.Array, jax.Array]:
            unit = turn * blocks + block
            return lax.div(unit, parts), lax.rem(unit, parts) * units.pieces + piece

        def send(indices: ring.Indices, piece: Ref) -> None:
            self._send(indices[0], place(*indices[1:]), indices[2] == units.pieces - 1, piece)

        spec = plgpu.BlockSpec(
            (units.rows, units.columns), lambda shift, *of_shard: place(*of_shard), delay_release=1
        )
        return emit_pipeline(
            send, grid=(self.asked.devices - 1, turns, units.pieces), in_specs=[spec],
            max_concurrent_steps=config.send_slots, ordinary_reads=False,
        )  # fmt: skip

    def _send(
        self, index: Int, place: tuple[jax.Array, jax.Array], is_last: jax.Array, piece: Ref
    ) -> None:
        """Stores a piece in another device; after the last of a unit, tells that it is there.

        Args:
          index: the shift - 1.
          place: of the piece in the shard, in pieces.
          is_last: whether it is the last piece of its unit.
          piece: the piece, in SMEM.
        """
        strip, column = place
        here = (
            pl.ds(strip * self.units.rows, self.units.rows),
            pl.ds(column * self.units.columns, self.units.columns),
        )
        for shift in range(1, self.asked.devices):  # a copy's device must be known to the host

            @pl.when(index == shift - 1)
            def _() -> None:
                there = plgpu.remote_ref(self.shards.at[shift - 1], self._peer(shift))
                plgpu.copy_smem_to_gmem(piece, there.at[here])

        def finish() -> None:
            plgpu.wait_smem_to_gmem(0)
            row = lax.div(strip, jnp.int32(self.units.per_row))
            arrived = self.arrived.at[index, row]
            pl.semaphore_signal(arrived, device_id=self._peer(index + 1))

        lax.cond(is_last, finish, lambda: plgpu.wait_smem_to_gmem(1, wait_read_only=True))

    def _peer(self, distance: Int) -> Any:
        """The device at a distance after this one, as copies and signals name it."""
        return {self.asked.axis: self._device(distance)}

    def _reset(self) -> None:
        """Takes off the semaphores what was signalled, when no block waits for it any more."""
        pl.semaphore_wait(self.passed, lax.axis_size("block"))
        sources, rows = self.arrived.shape

        @pl.loop(0, sources)
        def _(source: jax.Array) -> None:
            @pl.loop(0, rows)
            def _(row: jax.Array) -> None:
                pl.semaphore_wait(self.arrived.at[source, row], self.units.of_row(row))
