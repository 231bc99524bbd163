"""The forward kernel of `attention`: its launch, its scratch memory, and the roles of its threads.

The model. A block has some queries of one head. Its memory thread loads the blocks of K and V that
these queries see. Each compute thread has `rows` of the queries. For these rows it keeps the
running maximum m, the sum l of exponentials and the result O. For each step s, with
S = Q K[s]^T::

    m, before = max(m, scale S), m         p = exp2(scale S - m)           (log2 e is in the scale)
    l = l exp2(before - m) + sum of p      O = O exp2(before - m) + p V[s]

K[s] is released when S is there, V[s] when O is. "optimistic" steps make no m, and keep K[s] until
their sums show that none was needed (`optimistic`). `schedules` says how these parts overlap,
`band` which steps there are, and `order` which block runs when.

Where SMEM has room, the kernel is persistent: a block goes on to other queries. Its pipeline goes
through the steps of all its *visits* (the queries that it goes through), so K and V of the next
visit are loaded ahead. If a mask leaves visits different numbers of steps, this is so only for
"optimistic", and if each SM gets its share (`order`).

Where q, k and v do not divide into pieces (`tiles`), copies see their rows: a head of 80 is two
pieces wide, each has a copy, and a product of its own.

TMA fills loads beyond the end of K with zeros, and drops stores beyond the end of the result. A row
that sees nothing has l = 0: its result is 0, and its log-sum-exp is -inf.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels.attention import narrow, pieces
from pipelib.kernels.attention.arguments import is_addressable
from pipelib.kernels.attention.band import Band, Options, Sizes, padded, spans
from pipelib.kernels.attention.config import AttentionConfig
from pipelib.kernels.attention.optimistic import Optimistic
from pipelib.kernels.attention.order import AXES, BlockOrder, BlockVisits
from pipelib.kernels.attention.schedules import Overlap, Pingpong, Plain
from pipelib.kernels.dividing import Barriers, Scratch, allocations
from pipelib.kernels.front import named
from pipelib.kernels.hopper import num_sms
from pipelib.refs import Body, Dtype, Int, Ref, Shaped
from pipelib.ring import Allocations
from pipelib.specs import ByRows
from pipelib.tiles import piece_columns, tiled
from pipelib.warp_specialized import (
    AllSteps,
    WarpSpecializedPipeline,
    emit_pipeline_warp_specialized,
)

#: The class of each `AttentionConfig.schedule`.
SCHEDULES = {
    "plain": Plain,
    "overlap": Overlap,
    "pingpong": Pingpong,
    "optimistic": Optimistic,
}


def launch_forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: tuple[jax.Array, ...],
    options: Options[AttentionConfig],
    sinks: tuple[jax.Array, ...] = (),
) -> tuple[jax.Array, jax.Array]:
    """Makes the result and the log-sum-exp by the kernel.

    Args:
      q, k, v: as `attention` takes them, of sizes that copies can address.
      segments: none, or int32 [batch, seq] of the queries and of the keys.
      options: what queries see, the scale, and the configuration.
      sinks: none, or float32 [heads].

    Returns:
      [batch, q_seq, heads, head_dim] in q's dtype, or bfloat16 if q is float8; and float32 [batch,
      heads, q_seq].
    """
    config, sizes = options.config, sizes_of(q, k, v, options)
    rows = pl.cdiv(sizes.queries, config.block_q) * config.block_q
    if segments:
        own, others = segments
        by_block = spans(own, others, config.block_q, config.block_kv)
        segments = padded(own, config.block_q), padded(others, config.block_kv), by_block
    lse_type = jax.ShapeDtypeStruct((sizes.batch, sizes.heads, rows), jnp.float32)
    order = order_of(options, sizes, k.dtype.itemsize, bool(segments))
    is_narrow = q.dtype.itemsize == 1
    shape = *q.shape[:3], v.shape[3]
    out_type = jax.ShapeDtypeStruct(shape, jnp.bfloat16 if is_narrow else q.dtype)
    if is_narrow:
        v = narrow.turned(v, config.block_kv, config.probabilities == "registers")
    body = named("attention", functools.partial(_block, options, sizes, order, bool(segments)))
    out, lse = plgpu.kernel(
        body,
        out_type=[out_type, lse_type],
        scratch_types=dict(scratch=_scratch(config, sizes, order, q.dtype)),
        grid=order.grid,
        grid_names=AXES,
        num_threads=config.compute_threads + 1,
        thread_name="thread",
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
    )(q, k, v, *segments, *sinks)
    return out, lse if rows == sizes.queries else lse[:, :, : sizes.queries]


def head_dim_of(q: Shaped, v: Shaped) -> int:
    """The size of a head of q and k in SMEM; the result is staged where queries were."""
    width = piece_columns(q.dtype)
    return math.ceil(max(q.shape[3], v.shape[3]) / width) * width


def sizes_of(q: jax.Array, k: jax.Array, v: jax.Array, options: Options[AttentionConfig]) -> Sizes:
    """The sizes of a problem, by rows if copies cannot address pieces of its arrays."""
    sizes = Sizes.of(q, k, options.keys)
    if is_addressable(q, k) and v.shape[3] == q.shape[3]:
        return sizes
    width = piece_columns(q.dtype)
    values = math.ceil(v.shape[3] / width) * width
    return sizes._replace(head_dim=head_dim_of(q, v), by_rows=values)


def order_of(
    options: Options[AttentionConfig], sizes: Sizes, itemsize: int, segmented: bool = False
) -> BlockOrder:
    """The order of the blocks; persistent if SMEM has room, and each SM gets its share.

    Args:
      options, sizes: of the problem.
      itemsize: the bytes of an element of K and V.
      segmented: whether the sequences have segments.
    """
    config, sides = options.config, (options.left, options.right)
    blocks = pl.cdiv(sizes.queries, config.block_q)
    bytes_per_head = 2 * sizes.keys * sizes.head_dim * itemsize // sizes.group
    order = BlockOrder.of(sizes.batch, sizes.heads, blocks, sides, bytes_per_head)
    if segmented or not config.is_persistent(sizes.head_dim):
        return order
    if sides == (None, None):
        return order.on(num_sms())
    if config.schedule != "optimistic":
        return order
    steps = steps_of(options, sizes)
    return order.by_length_on(num_sms(), tuple(steps.tolist()), bytes_per_head)


def steps_of(options: Options[AttentionConfig], sizes: Sizes) -> np.ndarray:
    """How many steps each block of a head takes, [blocks]."""
    size = options.config.block_q
    rows = np.arange(0, sizes.queries, size, dtype=np.int32)
    return np.broadcast_to(np.asarray(_band(options, sizes, rows).steps), rows.shape)


def _band(options: Options[AttentionConfig], sizes: Sizes, row: Int | np.ndarray) -> Band:
    """The band of the block whose first query is `row`, or of several."""
    sides = options.left, options.right
    return Band.of(*sides, sizes.queries, sizes.keys, options.config.tiles, row)


def _scratch(
    config: AttentionConfig, sizes: Sizes, order: BlockOrder, dtype: Dtype
) -> dict[str, Any]:
    """What the kernel allocates."""
    memory = config.memory(sizes.head_dim, order.persistent is not None, dtype)
    made: dict[str, Any] = allocations(memory)
    if sizes.by_rows:  # a copy, and an array, for each piece
        threads, rows = config.compute_threads, config.rows
        queries = pieces.allocation(threads, rows, sizes.head_dim, dtype)
        made |= {name: queries for name in ("q", "next_q") if name in made}
        count = sizes.head_dim // piece_columns(dtype)
        made["loaded"] = Barriers(threads, count).allocation()
    return made


def _block(
    options: Options[AttentionConfig],
    sizes: Sizes,
    order: BlockOrder,
    segmented: bool,
    q: Ref,
    k: Ref,
    v: Ref,
    *refs: Ref,
    scratch: Scratch,
) -> None:
    """What each thread of a block does.

    `refs` are the segments with their spans, and sinks, if any, the result, and its lse.
    """
    config, (*given, out, lse) = options.config, refs
    count = 3 if segmented else 0
    segments, of_blocks, sinks = given[:count][:2], given[:count][2:], given[count:]
    visits = order.visits(*map(lax.axis_index, AXES))

    batch, _, first_block = visits.place(jnp.int32(0))
    first = _band(options, sizes, first_block * config.block_q)
    first = first.within(tuple(span.at[batch, first_block] for span in of_blocks))

    def band_of(block: Int) -> Band:
        return _band(options, sizes, block * config.block_q) if visits.vary else first

    slots = config.slots
    if not visits.are_many:  # with a single step, nothing is loaded ahead
        slots = min(slots, pl.cdiv(sizes.keys, config.block_kv))

    pipeline = functools.partial(_pipeline, config, sizes, band_of, visits, slots, k.dtype)

    def run(allocations: Allocations) -> None:
        thread = (config.thread_class or SCHEDULES[config.schedule])(
            options=options,
            sizes=sizes,
            band_of=band_of,
            visits=visits,
            arrays=(q, out, lse),
            segments=tuple(segments),
            sinks=tuple(sinks),
            scratch=scratch,
            allocations=allocations,
            index=lax.axis_index("thread"),
        )
        pipeline(thread.body, thread.compute)(k, v, allocations=allocations)

    allocations = pipeline(lambda *_: None, None).get_allocations(k, v)  # whatever a thread does
    pl.run_scoped(run, allocations, collective_axes="thread")


def _pipeline(
    config: AttentionConfig,
    sizes: Sizes,
    band_of: Callable[[Int], Band],
    visits: BlockVisits,
    slots: int,
    dtype: Dtype,
    step: Body,
    compute: Callable[[AllSteps], None] | None,
) -> WarpSpecializedPipeline:
    """The pipeline over the blocks of K and V of all visits."""

    def block(*indices: jax.Array) -> tuple[Int, ...]:
        visit, step = visits.split(indices)
        batch, head, block = visits.place(visit)
        return batch, band_of(block).first + step, lax.div(head, jnp.int32(sizes.group)), 0

    def steps(visit: Int) -> Int:
        return band_of(visits.place(visit)[2]).steps

    def turned(*indices: jax.Array) -> tuple[Int, ...]:
        batch, step, head, _ = block(*indices)
        return batch, head, 0, step

    def spec(head_dim: int) -> plgpu.BlockSpec:
        kind = ByRows if sizes.by_rows else plgpu.BlockSpec
        return kind((None, config.block_kv, None, head_dim), block, transforms=tiled(dtype))

    of_k, of_v = spec(sizes.head_dim), spec(sizes.values)
    if dtype.itemsize == 1:
        shape = None, None, sizes.head_dim, config.block_kv
        of_v = plgpu.BlockSpec(shape, turned, transforms=tiled(dtype))
    return emit_pipeline_warp_specialized(
        step,
        grid=visits.grid(steps if visits.vary else band_of(0).steps),
        in_specs=[of_k, of_v],
        max_concurrent_steps=slots,
        memory_registers=config.memory_registers,
        wg_axis="thread",
        num_compute_wgs=config.compute_threads,
        compute_context=compute,
        manual_produced_barriers=True,
        manual_consumed_barriers=True,
    )
