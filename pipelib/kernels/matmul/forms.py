"""The kernels of `matmul`: what the blocks and the Pallas threads of each form do.

The model. Every form goes through the steps of a tile, and then stores the tile (`result`)::

    for each tile of the block:
      for each step k, in a ring of slots:
        accumulator += a[m, k] @ b[k, n]       (wgmma; delay_release of them stay in flight)
      store epilogue(accumulator)

===========  =====================================================================================
specialized  A block makes one tile. A memory thread loads (`emit_pipeline_warp_specialized`).
chained      A block makes several tiles, in a snake order that keeps neighbours in the L2. The
             pipelines of the tiles are one chain: the memory thread goes on to the next tile while
             the compute threads store.
===========  =====================================================================================

A configuration of a subclass may have more forms (`MatmulConfig.more_forms`): the book's ladder has
those that lead up to these.

In a cluster, blocks of one column of tiles share the loads of b, and blocks of one row share the
loads of a. Each loads a part and sends it to all of them (multicast). A slot is loaded again when
the compute threads of all these blocks have released it.

K can be divided into parts (`splits`), so that a product of few tiles has a block for each SM. Then
a block makes a part of a tile, and stores it in float32; the sums, and the epilogue, are plain
JAX's.

Edges need no other code. TMA fills loads beyond the end of an operand with zeros, which add
nothing, and drops stores beyond the end of the output. Tiles beyond the output, which a cluster may
have, do both. A chain goes on in the slot where the last tile stopped, so each tile takes a
multiple of `slots` steps; steps beyond K multiply zeros.
"""

# What it asks of JAX has no types.
# pyright: basic, reportPrivateImportUsage=false

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring
from pipelib.kernels.chain import run_chain
from pipelib.kernels.dividing import Smem
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.kernels.matmul.product import Product
from pipelib.kernels.matmul.result import TilePlace, TileResult, this_thread
from pipelib.refs import Accumulator, Int, Ref
from pipelib.specs import ByRows
from pipelib.tiles import has_pieces, tiled, whole_pieces
from pipelib.warp_specialized import (
    AllSteps,
    WarpSpecializedPipeline,
    emit_pipeline_warp_specialized,
)

#: The most products that a wait may leave running. Source: CUTLASS, `warpgroup_wait`
#: (cute/arch/mma_sm90_gmma.hpp).
_MOST_RUNNING = 7


def launch_product(
    a: jax.Array,
    b: jax.Array,
    operands: tuple[jax.Array, ...],
    product: Product[MatmulConfig],
    num_sms: int,
) -> jax.Array:
    """Makes the product by the kernel of its configuration.

    Args:
      a, b: as `matmul` takes them, of sizes that copies can address.
      operands: those of the epilogue: matrices [M, N], rows [1, N], columns [M, 1], scalars [1, 1].
      product: which product of them.
      num_sms: the number of SMs of the GPU.

    Returns:
      [M, N] in `product.out_dtype`. If K is split, the parts, float32 [splits, rows, columns]; rows
      and columns beyond M and N are zeros.
    """
    (m, n, _), config = product.sizes(a, b), product.config
    tiles, shape = config.tiles(m, n), (m, n)
    if config.swapped:
        product, a, b = product.transposed(a, b)
    if config.splits > 1:
        product, operands = product._replace(epilogue=None, out_dtype=jnp.dtype(jnp.float32)), ()
        shape = whole_pieces(shape, product.out_dtype)
    parts = (config.splits,) if config.splits > 1 else ()
    kinds = tuple(_kind(operand, (m, n), config) for operand in operands)
    padded = [_padded(x, kind, config, tiles) for x, kind in zip(operands, kinds)]
    clusters = config.resident_blocks(m, n, num_sms) // config.cluster_size
    cluster = {f"cluster_{axis}": size for axis, size in _cluster(config).items()}
    block = functools.partial(_block, product, kinds, tiles)
    return plgpu.kernel(
        block,
        out_type=jax.ShapeDtypeStruct((*parts, *shape), product.out_dtype),
        scratch_types=_scratch(product, kinds, padded, shape),
        grid=(clusters,),
        grid_names=("block",),
        cluster=tuple(cluster.values()),
        cluster_names=tuple(cluster),
        compiler_params=plgpu.CompilerParams(approx_math=product.approx_math),
        num_threads=config.threads if config.threads > 1 else None,
        thread_name="thread" if config.threads > 1 else None,
    )(a, b, *padded)


def _cluster(config: MatmulConfig) -> dict[str, int]:
    """The axes of a cluster that has more than one block along them."""
    sizes = dict(m=config.cluster_m, n=config.cluster_n)
    return {axis: size for axis, size in sizes.items() if size > 1}


def _kind(operand: jax.Array, shape: tuple[int, int], config: MatmulConfig) -> str:
    """Which axes of the kernel's product an operand has: "mn", "m", "n" or ""."""
    axes = "nm" if config.swapped else "mn"
    found = {axis for axis, size, full in zip(axes, operand.shape, shape) if size == full}
    return "".join(axis for axis in "mn" if axis in found)


def _padded(
    operand: jax.Array, kind: str, config: MatmulConfig, tiles: tuple[int, int]
) -> jax.Array:
    """An operand as the kernel reads it.

    A row, a column or a number becomes flat. It is padded to the end of the last tile, since the
    kernel reads it without looking where it ends.
    """
    if kind == "mn":
        return operand
    size = {"m": tiles[0] * config.tile_m, "n": tiles[1] * config.tile_n, "": 1}[kind]
    return jnp.pad(operand.reshape(-1), (0, size - operand.size))


def _scratch(
    product: Product[MatmulConfig],
    kinds: tuple[str, ...],
    operands: list[jax.Array],
    shape: tuple[int, int],
) -> list[Any]:
    """Staging slots of the output and of each matrix among the operands, and their barriers.

    Args:
      product, kinds, operands: as `_block` has them.
      shape: that of the output.
    """
    dtypes = [operand.dtype for operand, kind in zip(operands, kinds) if kind == "mn"]
    # The dtype of the factors says nothing of what is staged.
    memory = product.config.memory(product.out_dtype, product.out_dtype, dtypes)
    kept = [each for each in memory.values() if not each.is_emitted]
    return [
        each.allocation(sees_rows=not has_pieces(shape, jnp.dtype(each.dtype)))
        if isinstance(each, Smem)
        else each.allocation()
        for each in kept
    ]


def _block(
    product: Product[MatmulConfig],
    kinds: tuple[str, ...],
    tiles: tuple[int, int],
    a: Ref,
    b: Ref,
    *refs: Ref,
) -> None:
    """What each thread of a block does; `refs` are the operands, the output, and scratch."""
    config, count = product.config, len(kinds)
    result = TileResult(product, kinds, refs[:count], refs[count], refs[count + 1 :])
    place = functools.partial(place_of_block, config, tiles)
    count = math.prod(tiles) * config.splits // config.cluster_size
    make = config.more_forms.get(config.form) or _FORMS[config.form]
    make(TileMaker(a, b, product, result, place, count))
    is_compute_thread = this_thread(config) < config.compute_threads
    pl.when(is_compute_thread)(lambda: plgpu.wait_smem_to_gmem(0))


def place_of_block(config: MatmulConfig, tiles: tuple[int, int], index: jax.Array) -> TilePlace:
    """The place of this block, if its cluster is the `index`th in the order."""
    sizes = config.cluster_m, config.cluster_n
    clusters = tiles[0] // config.cluster_m, tiles[1] // config.cluster_n
    split: Int = 0
    if config.splits > 1:
        count = jnp.int32(math.prod(clusters))
        split, index = lax.div(index, count), lax.rem(index, count)
    place = plgpu.planar_snake(index, clusters, "mn".index(config.order), config.width)
    mine = [lax.axis_index(f"cluster_{x}") if x in _cluster(config) else 0 for x in "mn"]
    m, n = (p * size + offset for p, size, offset in zip(place, sizes, mine))
    return TilePlace(m, n, split)


# Steps.


@dataclasses.dataclass(frozen=True)
class KSteps:
    """The steps over K of one tile.

    Attributes:
      slots: slots of each ring.
      delay: `wgmma`s in flight when a step ends.
      count: how many steps there are.
      in_specs: what a step loads of a and of b.
    """

    slots: int
    delay: int
    count: int
    in_specs: list[plgpu.BlockSpec]

    @classmethod
    def of(cls, a: Ref, b: Ref, product: Product[MatmulConfig], place: TilePlace) -> "KSteps":
        """The steps of a tile, or of a part of it; in a chain, a multiple of the slots."""
        config, k = product.config, product.sizes(a, b)[2]
        needed = math.ceil(math.ceil(k / config.tile_k) / config.splits)
        slots = min(config.slots, needed)
        count = math.ceil(needed / slots) * slots if config.form == "chained" else needed
        first = place.split * count if config.splits > 1 else None
        delay, axes = min(config.delay_release, slots - 1), _cluster(config)

        def spec(
            ref: Ref, size: int, tile: Int, is_k_first: bool, shared_along: str
        ) -> plgpu.BlockSpec:
            at = lambda k: k if first is None else k + first
            block, index = (size, config.tile_k), lambda k: (tile, at(k))
            if is_k_first:
                block, index = block[::-1], lambda k: (at(k), tile)
            collective = (f"cluster_{shared_along}",) if shared_along in axes else ()
            kind = plgpu.BlockSpec if has_pieces(ref.shape, ref.dtype) else ByRows
            return kind(
                block,
                index,
                transforms=tiled(ref.dtype),
                delay_release=delay,
                collective_axes=collective,
            )

        in_specs = [
            spec(a, config.tile_m, place.m, product.transpose_a, "n"),
            spec(b, config.tile_n, place.n, not product.transpose_b, "m"),
        ]
        return cls(slots, delay, count, in_specs)

    def multiply(
        self, product: Product[MatmulConfig], _: ring.Indices, a: Ref, b: Ref, acc: Accumulator
    ) -> Accumulator:
        """Multiplies this thread's rows of a step; of factors in pieces along K, piece by piece."""
        config, thread = product.config, this_thread(product.config)
        mine = pl.ds(thread * config.rows, config.rows)
        if product.transpose_a:  # or a piece for each thread
            a = a.at[thread] if len(a.shape) == 3 else a.at[:, mine]
        # What is still of three axes is in pieces along K.
        count = max(x.shape[0] if len(x.shape) == 3 else 1 for x in (a, b))
        for part in range(count):
            k = pl.ds(part * (config.tile_k // count), config.tile_k // count)
            left = _along_k(a, k, part, count, product.transpose_a)
            left = left.transpose((1, 0)) if product.transpose_a else left.at[mine]
            right = _along_k(b, k, part, count, not product.transpose_b)
            plgpu.wgmma(acc, left, right.transpose((1, 0)) if product.transpose_b else right)
        plgpu.wgmma_wait(min(self.delay * count, _MOST_RUNNING))
        return acc


def _along_k(factor: Ref, k: pl.Slice, part: int, count: int, is_k_first: bool) -> Ref:
    """A part of a step's block of a factor along K, of `count`: [K, ...] or [..., K]."""
    if count == 1:
        return factor
    if len(factor.shape) == 3:
        return factor.at[part]
    return factor.at[k] if is_k_first else factor.at[:, k]


def accumulated(
    product: Product[MatmulConfig], multiply_all: Callable[[Accumulator], None]
) -> jax.Array:
    """The sum that `multiply_all` makes in the accumulator of one thread."""

    def scope(acc: Accumulator) -> jax.Array:
        multiply_all(acc)
        return acc[...]

    config = product.config
    return pl.run_scoped(scope, plgpu.ACC((config.rows, config.tile_n), jnp.float32))


# The forms.


@dataclasses.dataclass(frozen=True)
class TileMaker:
    """Makes the tiles of a block; a method for each form.

    Attributes:
      a, b: the factors, in GMEM.
      product: which product of them.
      result: the end of a tile.
      place: gives this block's tile at a place in the order.
      count: how many places the blocks go through together.
    """

    a: Ref
    b: Ref
    product: Product[MatmulConfig]
    result: TileResult
    place: Callable[[jax.Array], TilePlace]
    count: int

    def specialized(self) -> None:
        """The block's only tile."""
        self.pipeline(self.place(lax.axis_index("block")))(self.a, self.b)

    def chained(self) -> None:
        """The block's tiles, as one chain."""
        zero = jnp.int32(0)
        steps = KSteps.of(self.a, self.b, self.product, TilePlace(0, 0))
        run_chain(
            self.count,
            lambda index, state: self.pipeline(self.place(index), state),
            self.pipeline(TilePlace(zero, zero), zero),
            (self.a, self.b),
            steps.slots - steps.delay,
        )

    def pipeline(self, place: TilePlace, state: jax.Array | None = None) -> WarpSpecializedPipeline:
        """The pipeline that makes and stores one tile; `state` is its place in a chain."""
        steps, result = KSteps.of(self.a, self.b, self.product, place), self.result.of(place)

        def compute_thread(pipeline: AllSteps) -> None:
            result.prefetch()
            result.store(accumulated(self.product, pipeline))

        return emit_pipeline_warp_specialized(
            functools.partial(steps.multiply, self.product),
            grid=(steps.count,),
            max_concurrent_steps=steps.slots,
            in_specs=steps.in_specs,
            memory_registers=self.product.config.memory_registers,
            wg_axis="thread",
            num_compute_wgs=self.product.config.compute_threads,
            compute_context=compute_thread,
            pipeline_state=state,
            ordinary_reads=False,
        )


_FORMS = {"specialized": TileMaker.specialized, "chained": TileMaker.chained}
