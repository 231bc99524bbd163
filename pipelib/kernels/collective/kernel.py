"""The kernel of `collective_matmul`: what its blocks and Pallas threads do, on each device.

The model. Device d has shard d. In **shift** s a device sends its shard to device d + s, and
multiplies the shard of device d - s, which that device sends it in its own shift s; in shift 0 it
multiplies its own. All devices are counted modulo D. The first blocks send, the others multiply. A
block that multiplies goes through its tiles of all shifts, in one chain (`chain`)::

    a block that multiplies                                a block that sends
    compute threads          memory thread                 memory thread
    for each tile:           for each tile:                for each shift s from 1:
      for each step k:         if s > 0: wait for            for each unit of the block:
        wait, multiply,          arrived[s, row of tiles]      for each piece of the unit:
        release a slot         for each step k:                  load it
      store the tile             wait for a free slot            store it in device d + s
                                 load a[m, k] and b[k, n]      wait for the last unit's stores
                                                               signal arrived[s, its row of tiles]

A **piece** is what one copy moves: some rows, up to 256 columns. Pieces lie in a ring, in the SMEM
where a block that multiplies has the slots of its product. A **unit** is up to 8 pieces beside each
other. The blocks take the units in turns, row by row, so that rows of tiles arrive in order. A unit
is told of when the next one has been sent, so that the engine never runs empty.

What is right about it, on any timing:

- A tile's rows are read after they were written: a row of tiles is complete when the semaphore has
  a signal for each of its units, whoever sent them. Each has a semaphore of its own, so no signal
  stands for another row's.
- A semaphore is back at zero when the kernel ends. The blocks wait and leave it as it is. Each
  tells the last one once it will wait no more (`passed`), and that one then takes off what all have
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

import functools
import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring, tiles
from pipelib.kernels.chain import state_in_chain, wait_for_last_releases
from pipelib.kernels.collective.config import SENT_COLUMNS, CollectiveConfig
from pipelib.kernels.front import named
from pipelib.kernels.matmul.config import STAGED_ROWS
from pipelib.kernels.matmul.forms import KSteps, TileMaker, place_of_block
from pipelib.kernels.matmul.product import Product
from pipelib.kernels.matmul.result import TilePlace, TileResult, this_thread
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
        """How a shard [m, k] is divided."""
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
    results = jax.ShapeDtypeStruct((asked.devices, m, n), asked.product.out_dtype)
    shards = jax.ShapeDtypeStruct((asked.devices - 1, m, k), lhs.dtype)
    blocks = config.senders + config.multipliers(m, n, asked.devices, num_sms)
    out, _ = plgpu.kernel(
        named("collective_matmul", functools.partial(_block, asked)),
        out_type=(results, shards),
        grid=(blocks,),
        grid_names=("block",),
        num_threads=config.threads,
        thread_name="thread",
    )(lhs, rhs)
    return out.reshape(asked.devices * m, n)


def _block(asked: Gathered, *refs: Ref) -> None:
    """What each thread of a block does; `refs` are both factors, the result and the shards."""
    Block.of(asked, *refs).run()


class Tile(NamedTuple):
    """A tile: its shift, and its place among the tiles of a shard."""

    shift: Int
    place: TilePlace


class Told(NamedTuple):
    """A unit, as a signal tells of it: its shift, or 0 if it is none, and its row of tiles."""

    shift: Int
    row: Int


class Block(NamedTuple):
    """A block of the kernel.

    Attributes:
      asked: which product.
      lhs, rhs: the device's shard and columns, in GMEM.
      out: the results of all shards, in GMEM.
      shards: those of other devices, in the order of the shifts, in GMEM.
      arrived: semaphores, for each shift from 1 and each row of tiles: units that have arrived.
      passed: a semaphore: blocks that wait no more.
      units: how the shard is sent.
    """

    asked: Gathered
    lhs: Ref
    rhs: Ref
    out: Ref
    shards: Ref
    arrived: Ref
    passed: Ref
    units: Units

    @classmethod
    def of(cls, asked: Gathered, lhs: Ref, rhs: Ref, out: Ref, shards: Ref) -> "Block":
        """The block, with its semaphores."""
        config, (m, k) = asked.product.config, lhs.shape
        rows = config.tiles(m, rhs.shape[1])[0]
        arrived = cast(Ref, pl.get_global(plgpu.SemaphoreType.REGULAR((asked.devices - 1, rows))))
        passed = cast(Ref, pl.get_global(plgpu.SemaphoreType.REGULAR))
        return cls(asked, lhs, rhs, out, shards, arrived, passed, Units.of(config, m, k))

    @property
    def config(self) -> CollectiveConfig:
        """How the product is divided."""
        return self.asked.product.config

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of a shard along m and n."""
        return self.config.tiles(self.lhs.shape[0], self.rhs.shape[1])

    @property
    def multipliers(self) -> int:
        """How many blocks multiply."""
        return lax.axis_size("block") - self.config.senders

    def run(self) -> None:
        """Gives the block its role."""
        config, dtype, zero = self.config, self.asked.product.out_dtype, jnp.int32(0)
        staged = config.compute_threads, config.staging_slots, STAGED_ROWS, config.epilogue_n
        staging = plgpu.SMEM(staged, dtype, transforms=tiles.tiled(dtype))
        first = self._pipeline(self.lhs, Tile(zero, TilePlace(zero, zero)), zero, None)
        product = first.get_allocations(self.lhs, self.rhs)
        sending = self._sending().get_allocations(self.lhs)
        # A block has one role, so what it needs for the other one may lie in the same place.
        shared = plgpu.RefUnion((product.pop("smem"), staging), sending.pop("smem"))
        pl.run_scoped(self._roles, shared, product, sending, collective_axes="thread")

    def _roles(self, shared: Any, product: ring.Allocations, sending: ring.Allocations) -> None:
        (slots, staging), pieces = shared
        product, sending = product | dict(smem=slots), sending | dict(smem=pieces)
        is_memory_thread = this_thread(self.config) == self.config.compute_threads
        is_sender = lax.axis_index("block") < self.config.senders
        pl.when(is_sender & is_memory_thread)(lambda: self._send_shard(sending))

        @pl.when(jnp.logical_not(is_sender))
        def _() -> None:
            lax.cond(
                is_memory_thread,
                lambda: self._memory_thread(product),
                lambda: self._compute_thread(product, staging),
            )

    # A block that multiplies.

    def _compute_thread(self, allocations: ring.Allocations, staging: Ref) -> None:
        """Multiplies and stores this thread's rows of the block's tiles."""
        config = self.config
        registers = compute_registers(config.memory_registers, config.compute_threads)
        plgpu.set_max_registers(registers, action="increase")

        @self._for_each_tile
        def _(tile: Tile, state: jax.Array) -> None:
            # The shard's slots do not tell which memory they were loaded from.
            pipeline = self._pipeline(self.lhs, tile, state, staging)
            pipeline.compute(self.lhs, self.rhs, allocations=allocations)

        plgpu.wait_smem_to_gmem(0)

    def _memory_thread(self, allocations: ring.Allocations) -> None:
        """Loads what the compute threads multiply, once it is there."""
        plgpu.set_max_registers(self.config.memory_registers, action="decrease")

        @self._for_each_tile
        def _(tile: Tile, state: jax.Array) -> None:
            def load(shard: Ref) -> None:
                pipeline = self._pipeline(shard, tile, state, None)
                pipeline.load(shard, self.rhs, allocations=allocations)

            def load_from_another_device() -> None:
                row, source = tile.place.m, tile.shift - 1
                semaphore = self.arrived.at[source, row]
                pl.semaphore_wait(semaphore, self.units.of_row(row), decrement=False)
                load(self.shards.at[source])

            lax.cond(tile.shift == 0, lambda: load(self.lhs), load_from_another_device)

        pl.semaphore_signal(self.passed)
        pl.when(lax.axis_index("block") == lax.axis_size("block") - 1)(self._reset)
        steps = KSteps.of(self.lhs, self.rhs, self.asked.product, TilePlace(0, 0))
        wait_for_last_releases(allocations, steps.slots - steps.delay)

    def _for_each_tile(self, visit: Any) -> None:
        """Calls `visit` with each tile of this block, and its place in the chain."""
        per_shard, first = math.prod(self.tiles), lax.axis_index("block") - self.config.senders

        @pl.loop(first, self.asked.devices * per_shard, step=self.multipliers)
        def _(index: jax.Array) -> None:
            shift = lax.div(index, jnp.int32(per_shard))
            within = lax.rem(index, jnp.int32(per_shard))
            tile = Tile(shift, place_of_block(self.config, self.tiles, within))
            visit(tile, state_in_chain(index == first))

    def _pipeline(
        self, shard: Ref, tile: Tile, state: jax.Array, staging: Ref | None
    ) -> WarpSpecializedPipeline:
        """The pipeline that makes and stores a tile of a shard's product.

        `staging` are the staging slots, where there is a compute thread to store.
        """
        product, devices = self.asked.product, self.asked.devices
        origin = self._device(devices - tile.shift)
        scratch = () if staging is None else (staging,)
        result = TileResult(product, (), (), self.out.at[origin], scratch)
        form = TileMaker(shard, self.rhs, product, result, lambda _: tile.place, 1)
        return form.pipeline(tile.place, state)

    def _device(self, distance: Int) -> jax.Array:
        """The device at a distance of 0 or more after this one."""
        me, devices = lax.axis_index(self.asked.axis), jnp.int32(self.asked.devices)
        return lax.rem(me + distance, devices)

    def _reset(self) -> None:
        """Takes off the semaphores what was signalled, when no block waits for it any more."""
        pl.semaphore_wait(self.passed, self.multipliers)
        sources, rows = self.arrived.shape

        @pl.loop(0, sources)
        def _(source: jax.Array) -> None:
            @pl.loop(0, rows)
            def _(row: jax.Array) -> None:
                pl.semaphore_wait(self.arrived.at[source, row], self.units.of_row(row))

    # A block that sends.

    def _send_shard(self, allocations: ring.Allocations) -> None:
        """Sends this block's units."""
        last = self._sending()(self.lhs, allocations=allocations)
        plgpu.wait_smem_to_gmem(0)
        self._tell(last)

    def _sending(self) -> Pipeline:
        """The pipeline that sends this block's units of the shard, to one device after another.

        Its carry is the unit that was sent last: the shift, and the row of tiles. Shift 0 is none.
        """
        units, config, block = self.units, self.config, lax.axis_index("block")
        senders = jnp.int32(config.senders)
        turns = lax.div(units.total + senders - 1 - block, senders)
        parts, slots = jnp.int32(units.parts), config.send_slots
        delay = slots // 2  # half of the ring is being loaded, half stored

        def place(turn: Int, piece: Int) -> tuple[jax.Array, jax.Array]:
            unit = turn * senders + block
            return lax.div(unit, parts), lax.rem(unit, parts) * units.pieces + piece

        def send(indices: ring.Indices, piece: Ref, before: Told) -> Told:
            index, turn, of_unit = indices
            strip, column = place(turn, of_unit)
            self._store(index, (strip, column), piece)
            is_last = of_unit == units.pieces - 1

            @pl.when(is_last)
            def _() -> None:
                plgpu.wait_smem_to_gmem(units.pieces)  # all but those of this unit
                self._tell(before)

            plgpu.wait_smem_to_gmem(delay, wait_read_only=True)
            own = Told(index + 1, lax.div(strip, jnp.int32(units.per_row)))
            return Told(*(jnp.where(is_last, *pair) for pair in zip(own, before)))

        spec = plgpu.BlockSpec(
            (units.rows, units.columns),
            lambda index, *of_shard: place(*of_shard),  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
            delay_release=delay,
        )
        return emit_pipeline(
            send,
            grid=(self.asked.devices - 1, turns, units.pieces),
            in_specs=[spec],
            max_concurrent_steps=slots,
            init_carry=Told(jnp.int32(0), jnp.int32(0)),
            ordinary_reads=False,
        )

    def _store(self, index: Int, place: tuple[jax.Array, jax.Array], piece: Ref) -> None:
        """Starts the store of a piece in another device.

        Args:
          index: the shift - 1.
          place: of the piece in the shard, in pieces.
          piece: the piece, in SMEM.
        """
        rows, columns = self.units.rows, self.units.columns
        here = pl.ds(place[0] * rows, rows), pl.ds(place[1] * columns, columns)
        for shift in range(1, self.asked.devices):  # a copy's device must be known to the host

            @pl.when(index == shift - 1)
            def _() -> None:
                there = plgpu.remote_ref(self.shards.at[shift - 1], self._peer(shift))
                plgpu.copy_smem_to_gmem(piece, there.at[here])

    def _tell(self, unit: Told) -> None:
        """Tells the device that a unit, if it is one, has been stored there."""

        @pl.when(unit.shift > 0)
        def _() -> None:
            arrived = self.arrived.at[unit.shift - 1, unit.row]
            pl.semaphore_signal(arrived, device_id=self._peer(unit.shift))

    def _peer(self, distance: Int) -> Any:
        """The device at a distance after this one, as copies and signals name it."""
        return {self.asked.axis: self._device(distance)}
