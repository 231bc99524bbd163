"""The kernels of `matmul`: what the blocks and the Pallas threads of each form do.

The model. Every form multiplies the steps of a tile into float32 accumulators and stores them::

    for each tile of the block:
      for each step k, in a ring of slots:
        accumulator += a[m, k] @ b[k, n]       (wgmma, delay_release of them in flight)
      for each 64 rows and `epilogue_n` columns:
        wait until a staging slot has been read, write epilogue(accumulator) into it, start a store

===========  =====================================================================================
ring         A block makes one tile. One compute thread loads what it multiplies (`emit_pipeline`).
             Two share the slots: the first loads one again when both have released it.
specialized  A memory thread loads (`emit_pipeline_warp_specialized`).
persistent   A block goes through its tiles, in a snake order that keeps neighbours in the L2. Each
             has a pipeline of its own, so nothing is loaded while the last one's result is stored.
chained      The pipelines of the tiles are one chain. The memory thread goes on to the next tile.
===========  =====================================================================================

In a cluster, blocks of one column of tiles share the loads of b and those of one row the loads of
a: each loads a part and sends it to all (multicast), and a slot is loaded again when the compute
threads of all have released it.

An operand of the epilogue that is a matrix is loaded, part by part, into staging slots of its own:
the first parts before the tile is multiplied, each next one when its slot has been read. A row or a
column is read where it is, in GMEM.

Edges need no other code. A load beyond an operand's end brings zeros, which add nothing, and a
store beyond the output's end is dropped (both are what TMA does); a cluster's tiles beyond the
output do both. A chain goes on in the slot where it stopped, so each of its tiles takes a multiple
of `slots` steps; those beyond K multiply zeros.
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

from pipelib import ring
from pipelib.kernels.matmul_config import (
    PIECE_ROWS,
    STAGED_ROWS,
    SWIZZLE,
    MatmulConfig,
)
from pipelib.pipeline import emit_pipeline
from pipelib.warp_specialized import emit_pipeline_warp_specialized

Epilogue = Callable[..., jax.Array]


class Product(NamedTuple):
    """What a product is told beside its arrays; hashable, so that JAX compiles each once."""

    transpose_a: bool
    transpose_b: bool
    config: MatmulConfig | None
    epilogue: Epilogue | None
    out_dtype: Any
    approx_math: bool = False

    def sizes(self, a: Any, b: Any) -> tuple[int, int, int]:
        """M, N and K."""
        (m, k) = a.shape[::-1] if self.transpose_a else a.shape
        return m, b.shape[0 if self.transpose_b else 1], k


def run(a: jax.Array, b: jax.Array, operands: tuple, product: Product, num_sms: int) -> jax.Array:
    """The product, made by the kernel of `product.config`, which is given.

    Args:
      a, b: as `matmul` takes them, of sizes that copies can address.
      operands: of the epilogue: matrices [M, N], rows [1, N], columns [M, 1] and scalars [1, 1].
      num_sms: multiprocessors of the GPU.
    """
    (m, n, _), config = product.sizes(a, b), product.config
    tiles = config.tiles(m, n)
    kinds = tuple(map(_kind, operands, [(m, n)] * len(operands)))
    operands = [_padded(x, kind, config, tiles) for x, kind in zip(operands, kinds)]
    clusters = config.resident_blocks(m, n, num_sms) // config.cluster_size
    cluster = {f"cluster_{axis}": size for axis, size in _cluster(config).items()}
    block = functools.partial(_block, product, kinds, tiles)
    return plgpu.kernel(
        block, out_type=jax.ShapeDtypeStruct((m, n), product.out_dtype),
        scratch_types=_scratch(product, kinds, operands), grid=(clusters,),
        grid_names=("block",), cluster=tuple(cluster.values()), cluster_names=tuple(cluster),
        compiler_params=plgpu.CompilerParams(approx_math=product.approx_math),
        **dict(num_threads=config.threads, thread_name="thread") if config.threads > 1 else {},
    )(a, b, *operands)  # fmt: skip


def _cluster(config: MatmulConfig) -> dict[str, int]:
    """The axes of a cluster that has more than one block along them."""
    sizes = dict(m=config.cluster_m, n=config.cluster_n)
    return {axis: size for axis, size in sizes.items() if size > 1}


def _kind(operand: Any, shape: tuple[int, int]) -> str:
    """Which axes of the output an operand has."""
    return "".join(axis for axis, size, full in zip("mn", operand.shape, shape) if size == full)


def _padded(operand: jax.Array, kind: str, config: MatmulConfig, tiles: tuple) -> jax.Array:
    """A row, a column or a scalar, flat, up to the end of the last tile: it is read unguarded."""
    if kind == "mn":
        return operand
    size = {"m": tiles[0] * config.tile_m, "n": tiles[1] * config.tile_n, "": 1}[kind]
    return jnp.pad(operand.reshape(-1), (0, size - operand.size))


def _scratch(product: Product, kinds: tuple[str, ...], operands: list[Any]) -> list[Any]:
    """Staging slots of the output and of each matrix among the operands, and their barriers."""
    config, dtypes = product.config, [product.out_dtype]
    dtypes += [operand.dtype for operand, kind in zip(operands, kinds) if kind == "mn"]
    shape = config.compute_threads, config.staging_slots, STAGED_ROWS, config.epilogue_n
    scratch = [plgpu.SMEM(shape, dtype, transforms=tiled(dtype)) for dtype in dtypes]
    if loads := len(dtypes) - 1:
        slots = config.compute_threads * config.staging_slots
        scratch.append(plgpu.Barrier(num_arrivals=loads, num_barriers=slots))
    return scratch


def _block(product: Product, kinds: tuple[str, ...], tiles: tuple[int, int], a, b, *refs) -> None:
    """What each thread of a block does."""
    config, count = product.config, len(kinds)
    result = Result(product, kinds, refs[:count], refs[count], refs[count + 1 :])
    place = functools.partial(_place, config, tiles)
    if config.form == "ring":
        one = _one_thread if config.threads == 1 else _two_threads
        one(a, b, product, result.of(*place(lax.axis_index("block"))))
    else:
        count = math.prod(tiles) // config.cluster_size
        getattr(_Specialized(a, b, product, result, place, count), config.form)()
    is_compute_thread = _thread(config) < config.compute_threads
    pl.when(is_compute_thread)(lambda: plgpu.wait_smem_to_gmem(0))


def _thread(config: MatmulConfig) -> Any:
    return lax.axis_index("thread") if config.threads > 1 else jnp.int32(0)


def _place(config: MatmulConfig, tiles: tuple[int, int], index: Any) -> tuple[Any, Any]:
    """This block's tile of the cluster that is `index`th in the order."""
    sizes = config.cluster_m, config.cluster_n
    clusters = tuple(count // size for count, size in zip(tiles, sizes))
    place = plgpu.planar_snake(index, clusters, "mn".index(config.order), config.width)
    mine = [lax.axis_index(f"cluster_{x}") if x in _cluster(config) else 0 for x in "mn"]
    return tuple(p * size + offset for p, size, offset in zip(place, sizes, mine))


def tiled(dtype: Any) -> tuple[Any, ...]:
    """The layout in SMEM that `wgmma` reads, and in which rows lie in different banks."""
    tiling = plgpu.TilingTransform((PIECE_ROWS, SWIZZLE // jnp.dtype(dtype).itemsize))
    return tiling, plgpu.SwizzleTransform(SWIZZLE)


# Steps.


class Steps(NamedTuple):
    """The steps over K of one tile: slots, `wgmma`s in flight, count, and what a step loads."""

    slots: int
    delay: int
    count: int
    in_specs: list[Any]

    @classmethod
    def of(cls, a: Any, b: Any, product: Product, place: tuple[Any, Any]) -> "Steps":
        """Of a tile; in a chain their number is a multiple of the slots."""
        config, needed = product.config, math.ceil(product.sizes(a, b)[2] / product.config.tile_k)
        slots = min(config.slots, needed)
        count = math.ceil(needed / slots) * slots if config.form == "chained" else needed
        delay, axes = min(config.delay_release, slots - 1), _cluster(config)

        def spec(ref, size, tile, is_k_first, shared_along):
            block, index = (size, config.tile_k), lambda k: (tile, k)
            if is_k_first:
                block, index = block[::-1], lambda k: (k, tile)
            collective = (f"cluster_{shared_along}",) if shared_along in axes else ()
            return plgpu.BlockSpec(
                block, index, transforms=tiled(ref.dtype), delay_release=delay,
                collective_axes=collective,
            )  # fmt: skip

        in_specs = [
            spec(a, config.tile_m, place[0], product.transpose_a, "n"),
            spec(b, config.tile_n, place[1], not product.transpose_b, "m"),
        ]
        return cls(slots, delay, count, in_specs)

    def multiply(self, product: Product, _, a: Any, b: Any, acc: Any) -> Any:
        """Multiplies this thread's rows of a step."""
        rows = product.config.rows
        mine = pl.ds(_thread(product.config) * rows, rows)
        a = a.at[:, mine].transpose((1, 0)) if product.transpose_a else a.at[mine]
        plgpu.wgmma(acc, a, b.transpose((1, 0)) if product.transpose_b else b)
        plgpu.wgmma_wait(self.delay)
        return acc


def _accumulate(product: Product, multiply_all: Callable[[Any], None]) -> jax.Array:
    """The accumulator of one thread, after `multiply_all` of it."""

    def scope(acc):
        multiply_all(acc)
        return acc[...]

    config = product.config
    return pl.run_scoped(scope, plgpu.ACC((config.rows, config.tile_n), jnp.float32))


# The forms.


def _one_thread(a: Any, b: Any, product: Product, result: "Result") -> None:
    """One thread loads, multiplies and stores a tile."""
    steps = Steps.of(a, b, product, result.place)

    def multiply_all(acc):
        def body(indices, a, b):
            steps.multiply(product, indices, a, b, acc)

        emit_pipeline(
            body, grid=(steps.count,), in_specs=steps.in_specs, max_concurrent_steps=steps.slots,
            ordinary_reads=False,
        )(a, b)  # fmt: skip

    result.prefetch()
    result.store(_accumulate(product, multiply_all))


def _two_threads(a: Any, b: Any, product: Product, result: "Result") -> None:
    """Two threads multiply half a tile each; the first loads, when both have released a slot.

    It is `emit_pipeline` but for the consumed barriers: program order no longer tells when a slot
    is free.
    """
    steps, is_first = Steps.of(a, b, product, result.place), lax.axis_index("thread") == 0
    plan = ring.Plan.of((steps.count,), steps.in_specs, (), steps.slots)

    def scope(smem, produced, consumed):
        inputs, _, channels = plan.bind([a, b], smem, produced, consumed)
        [channel] = channels

        def refill(step, indices):
            freed = step - steps.delay
            is_needed = (freed >= 0) & (freed + steps.slots < steps.count)
            slot = plan.steps.slot(step, steps.delay)
            pl.when(is_needed)(lambda: plgpu.barrier_arrive(channel.consumed.at[slot]))

            @pl.when(is_needed & is_first)
            def _():
                plgpu.barrier_wait(channel.consumed.at[slot])
                channel.load(slot, indices)

            return plan.steps.following(indices)

        def multiply_all(acc):
            call = lambda _, indices, refs, carry: steps.multiply(product, indices, *refs, acc)
            fetch = plan.steps.indices(steps.slots - steps.delay)
            nothing = ring.Stores((), plan.steps)
            plan.compute_steps(call, inputs, channels, nothing, (), False, refill, fetch)

        @pl.when(is_first)
        def _():
            plan.load_steps(channels, 0, plan.steps.prologue, plan.steps.indices())

        result.prefetch()
        result.store(_accumulate(product, multiply_all))

    allocations = plan.allocations([a, b], steps.slots)
    threads = product.config.compute_threads
    consumed = [plgpu.Barrier(num_arrivals=threads, num_barriers=steps.slots)]
    pl.run_scoped(scope, **allocations, consumed=consumed, collective_axes="thread")


class _Specialized(NamedTuple):
    """The forms with a memory thread, over `count` places in the order."""

    a: Any
    b: Any
    product: Product
    result: "Result"
    place: Callable[[Any], tuple[Any, Any]]
    count: int

    def specialized(self) -> None:
        """The block's only tile."""
        self._pipeline(self.place(lax.axis_index("block")))(self.a, self.b)

    def persistent(self) -> None:
        """The block's tiles, with a pipeline each."""

        @plgpu.nd_loop((self.count,), collective_axes="block")
        def _(info):
            self._pipeline(self.place(info.index[0]))(self.a, self.b)

    def chained(self) -> None:
        """The block's tiles, as one chain."""

        def scope(allocations):
            @plgpu.nd_loop((self.count,), collective_axes="block")
            def _(info):
                state = plgpu.PipelinePipeline
                state = jnp.where(info.local_index == 0, state.START, state.STEADY)
                pipeline = self._pipeline(self.place(info.index[0]), state)
                pipeline(self.a, self.b, allocations=allocations)

            is_memory_thread = lax.axis_index("thread") == self.product.config.compute_threads
            pl.when(is_memory_thread)(lambda: self._last_releases(**allocations))

        zero = jnp.int32(0)
        allocations = self._pipeline((zero, zero), zero).get_allocations(self.a, self.b)
        pl.run_scoped(scope, allocations, collective_axes="thread")

    def _last_releases(self, consumed, **_) -> None:
        # A STOP would do it, but the only tile of a block would have to be a START too.
        steps = Steps.of(self.a, self.b, self.product, (0, 0))
        for slot in range(steps.slots - steps.delay):
            plgpu.barrier_wait(consumed[0].at[slot])

    def _pipeline(self, place: tuple[Any, Any], state: Any = None) -> Any:
        """The pipeline that makes and stores one tile."""
        steps, result = Steps.of(self.a, self.b, self.product, place), self.result.of(*place)

        def compute_thread(pipeline):
            result.prefetch()
            result.store(_accumulate(self.product, pipeline))

        return emit_pipeline_warp_specialized(
            functools.partial(steps.multiply, self.product), grid=(steps.count,),
            max_concurrent_steps=steps.slots, in_specs=steps.in_specs,
            memory_registers=self.product.config.memory_registers, wg_axis="thread",
            num_compute_wgs=self.product.config.compute_threads, compute_context=compute_thread,
            pipeline_state=state, ordinary_reads=False,
        )  # fmt: skip


# The epilogue.


class Result(NamedTuple):
    """Where a tile goes: the epilogue, its operands, the output, scratch, and the place."""

    product: Product
    kinds: tuple[str, ...]
    operands: tuple[Any, ...]
    out: Any
    scratch: tuple[Any, ...]
    place: tuple[Any, Any] = (0, 0)

    def of(self, m: Any, n: Any) -> "Result":
        """That of another tile."""
        return self._replace(place=(m, n))

    def _first(self, part: int) -> tuple[int, int]:
        """The first row and column of a part, of this thread's."""
        row, column = divmod(part * self.product.config.epilogue_n, self.product.config.tile_n)
        return row * STAGED_ROWS, column

    def _here(self, part: int) -> tuple[Any, Any]:
        """The rows and the columns of a part in the output."""
        config, (row, column) = self.product.config, self._first(part)
        row += self.place[0] * config.tile_m + _thread(config) * config.rows
        column += self.place[1] * config.tile_n
        return pl.ds(row, STAGED_ROWS), pl.ds(column, config.epilogue_n)

    def _slot(self, part: int) -> tuple[Any, Any]:
        """This thread's staging slot for a part."""
        return _thread(self.product.config), part % self.product.config.staging_slots

    def _barrier(self, part: int) -> Any:
        thread, slot = self._slot(part)
        return self.scratch[-1].at[thread * self.product.config.staging_slots + slot]

    def _matrices(self) -> list[tuple[Any, Any]]:
        """The operands that are matrices, each with its staging slots."""
        found = [x for x, kind in zip(self.operands, self.kinds) if kind == "mn"]
        return list(zip(found, self.scratch[1:]))

    def prefetch(self) -> None:
        """Starts the loads of what the first parts need, which nothing else waits for."""
        for part in range(self.product.config.staging_slots):
            self._load(part)

    def _load(self, part: int) -> None:
        for operand, staging in self._matrices():
            here, slot = operand.at[self._here(part)], staging.at[self._slot(part)]
            plgpu.copy_gmem_to_smem(here, slot, self._barrier(part))

    def store(self, acc: jax.Array) -> None:
        """Starts the stores of this thread's rows of a tile, part by part."""
        config, staging = self.product.config, self.scratch[0]
        for part in range(config.parts):
            row, column = self._first(part)
            values = acc[row : row + STAGED_ROWS, column : column + config.epilogue_n]
            if self.product.epilogue is not None:
                values = self.product.epilogue(values, *self._parts(part))
            plgpu.wait_smem_to_gmem(config.staging_slots - 1, wait_read_only=True)
            slot = staging.at[self._slot(part)]
            slot[...] = values.astype(self.product.out_dtype)
            plgpu.commit_smem()
            if part + config.staging_slots < config.parts:
                self._load(part + config.staging_slots)
            plgpu.copy_smem_to_gmem(slot, self.out.at[self._here(part)])

    def _parts(self, part: int) -> list[jax.Array]:
        """The operands of a part, in float32, each of the part's shape."""
        config, layout = self.product.config, plgpu.Layout.WGMMA
        shape, (rows, columns) = (STAGED_ROWS, config.epilogue_n), self._here(part)
        if matrices := [staging for _, staging in self._matrices()]:
            plgpu.barrier_wait(self._barrier(part))
        values = []
        for operand, kind in zip(self.operands, self.kinds):
            if kind == "mn":
                value = matrices.pop(0).at[self._slot(part)][...].astype(jnp.float32)
            elif kind == "":
                value = jnp.full(shape, operand[0].astype(jnp.float32))
            else:
                axis = "mn".index(kind)
                vector = operand.at[(rows, columns)[axis]]
                value = plgpu.load(vector, layout=layout.reduce(1 - axis), optimized=False)
                value = lax.broadcast_in_dim(value.astype(jnp.float32), shape, (axis,))
            values.append(plgpu.layout_cast(value, layout))
        return values
