"""The kernels of `attention`'s gradients: of dQ, of dK and dV together or alone, of all three.

The model. The forward kernel keeps no probabilities. Every kernel here computes them again, from
the log-sum-exp of each query (lse). Let S = Q K^T. Let delta be, for each query, the row sum of
dO O, minus the cotangent of the log-sum-exp. Then::

    P = exp2(scale S - lse)     dP = dO V^T     dS = P (dP - delta)    (log2 e is in scale and lse)
    dQ = scale dS K             dV = P^T dO     dK = scale dS^T Q

=========  =============  ================  =============  =======================================
kernel     rows of a      a step loads      in registers   products of a step
           thread
=========  =============  ================  =============  =======================================
dQ         queries        keys              dQ             S, dP, then dQ
dK and dV  keys           queries, of each  dK and dV      S^T, then dV and dP^T, then dK
                          head in turn
dK         keys           the same          dK             S^T, dP^T, then dK
dV         keys           the same          dV             S^T, then dV
all three  keys           the same          dK and dV      S^T, dQ of the previous step, then dV and
                                                           dP^T, then dK
=========  =============  ================  =============  =======================================

The operands of its rows are in a thread's SMEM. A head of K serves several heads of queries, and
its block goes through the queries of each of them. Where rows are keys, everything is transposed,
so that each factor of a product lies where `wgmma` reads it. The order within a step::

    dQ       S, dP queued | P, dS, once both are done | dQ += dS K[s]
    dK, dV   S^T | P^T | dV += P^T dO[s], dP^T queued | dS^T, once both are done | dK += dS^T Q[s]

A product with a factor in registers must be the first of the products in flight (`schedules` says
why). So where dV is made, dP^T cannot be queued beside S^T. The kernel of dK has both factors of
both products in SMEM, so it queues S^T and dP^T together.

With a head dimension of 256, dK and dV would fill a thread's registers, so each has a kernel.

The kernel of all three. Two kernels make S and dP twice, which is seven products; three kernels
make eight. One kernel for all three makes five. It is the kernel of dK and dV, with dQ besides. At
each step, a block's keys give a part of the dQ of the step's queries. Blocks add these parts to
float32 sums in GMEM, which start at zero; the store itself adds, in the L2. Blocks add in no fixed
order, so the last bits of dQ differ from run to run.

The compute threads share the work on dQ. A thread multiplies the dS of all threads with its own
columns of K (or, with a head dimension of 64, the dS of its own part of the step's queries with all
of K). So threads exchange dS: each writes its dS to SMEM, and arrives on the barrier `exchanged`.
dQ is a step late, so that no thread waits long for the others::

    S^T[s] queued | exchanged | dQ[s-1] queued | P^T, once S^T is done, beside dQ | store dQ[s-1]
    dV += P^T dO[s], dP^T queued | dS^T, once both are done; arrive | dK += dS^T Q[s]

dS has two slots. A thread overwrites dS[s-2] with dS[s] when all threads have arrived for s - 1: by
then all have finished the product with dS[s-2]. Before the first step dS is zero. After the
pipeline, each thread makes its part of the last step's dQ, and arrives once more. When all have
arrived, nobody reads the block's K, and dK is staged there.

The threads have no register to spare: ptxas spills what does not fit. So dP's accumulator starts at
-delta, and delta needs no registers. The numbers of a step's queries, which masks compare, are in
SMEM.

Few heads of keys. Where rows are keys, several blocks may share the heads of queries of a head of
K. Each makes a dK and a dV of its *part*, in the dtype of the operands, and these are added up.

Edges. `band` says which steps there are, and `order` which block runs when. The lse of a query that
sees nothing is infinite here, so its P is 0. TMA fills loads past the end of an operand with zeros,
which are masked, and drops stores past the end.

Not covered: the kernel of all three with a head dimension of 256.
Source of the formulas, of delta, and of a dQ that blocks add up in GMEM: FlashAttention-2 (T. Dao,
2023).
"""

# What it asks of JAX has no types.
# pyright: basic

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels.attention import pieces
from pipelib.kernels.attention.band import LOG2_E, Band, Options, Sizes, padded, spans
from pipelib.kernels.attention.config import ALL, DQ, AttentionConfig, GradientConfig, Gradients
from pipelib.kernels.attention.forward import sizes_of
from pipelib.kernels.attention.gradients import THREADS, Arrays
from pipelib.kernels.attention.order import AXES, BlockOrder
from pipelib.kernels.choosing import in_waves
from pipelib.kernels.dividing import Barriers, Scratch, allocations
from pipelib.kernels.front import named
from pipelib.kernels.hopper import num_sms
from pipelib.refs import Dtype, Ref
from pipelib.tiles import piece_columns, whole_pieces
from pipelib.warp_specialized import emit_pipeline_warp_specialized

#: In steps, each of about 2 us: what a block takes besides, its loads and its results' stores; what
#: it takes more if there are parts, whose results are read again; and another launch, which adds
#: these up. Estimates, by bytes over bandwidth. Of six problems with a mask for which two numbers
#: of parts were timed on an H200 (in no record), they choose the faster.
_BLOCK_STEPS, _PART_STEPS, _LAUNCH_STEPS = 4, 2, 2.5


def launch_backward(
    arrays: tuple[jax.Array, jax.Array, jax.Array, jax.Array, tuple[jax.Array, ...]],
    lse: jax.Array,
    delta: jax.Array,
    options: Options[AttentionConfig],
) -> tuple[jax.Array, ...]:
    """Makes dQ, dK and dV by the kernels.

    Args:
      arrays: q, k, v, the cotangent of the result in their dtype, and segments, as the forward
        kernel takes them. If copies must see rows, their heads are as many pieces wide as one of
        the kernels' sizes.
      lse: the log-sum-exp, float32 [batch, heads, q_seq].
      delta: the row sum of dO O minus the cotangent of the log-sum-exp, as lse.
      options: what queries see, the scale, and the configuration.

    Returns:
      Three arrays of the shapes and dtypes of q, k and v; the first one's sequences and heads may
      be filled up to whole pieces.
    """
    q, k, v, d_out, segments = arrays
    lse = jnp.where(jnp.isneginf(lse), jnp.inf, lse * LOG2_E)
    whole = Arrays(q, k, v, d_out, jnp.stack([lse, -delta], 2), segments)
    sizes = sizes_of(q, k, v, options)
    launched = (
        _launch(made, config, whole, options, sizes)
        for made, config in options.config.gradients(sizes.head_dim).items()
    )
    return tuple(itertools.chain(*launched))


def _launch(
    made: Gradients,
    config: GradientConfig,
    arrays: Arrays[jax.Array],
    options: Options[AttentionConfig],
    sizes: Sizes,
) -> tuple[jax.Array, ...]:
    """Runs a kernel on blocks of the rows of each head; returns `made.results`."""
    ends = [1, 1]
    ends[made.rows] = block = config.rows * config.compute_threads
    ends[made.columns] = config.block
    rows, columns = ((arrays.q, arrays.k)[axis] for axis in (made.rows, made.columns))
    segments = tuple(map(padded, arrays.segments, ends))
    if segments:
        of_rows, of_columns = (arrays.segments[axis] for axis in (made.rows, made.columns))
        segments = *segments, spans(of_rows, of_columns, block, config.block)
    arrays = arrays._replace(numbers=padded(arrays.numbers, ends[0]), segments=segments)
    sums = [jax.new_ref(_zeros_like(arrays.q))] if made == ALL else []
    # Of each column two operands, and its part of dQ if that is added up.
    read = 2 * rows.dtype.itemsize + sum(ref.dtype.itemsize for ref in sums)

    def order_of(parts: int) -> BlockOrder:
        heads, blocks = rows.shape[2] * parts, pl.cdiv(rows.shape[1], block)
        bytes_per_head = columns.size * read // (sizes.batch * heads)
        return BlockOrder.of(sizes.batch, heads, blocks, _sides(made, options), bytes_per_head)

    parts = 1
    if made.rows:  # keys
        are_equal = _sides(made, options) == (None, None)
        parts = parts_of(order_of, sizes.group, pl.cdiv(sizes.queries, config.block), are_equal)
    order, sizes = order_of(parts), sizes._replace(group=sizes.group // parts)
    block_body = functools.partial(_block, made, config, options, sizes, order, parts)
    body = named(f"attention_{made.name}", block_body)
    like = dict(dq=arrays.q, dk=arrays.k, dv=arrays.v)
    shapes = [like[name].shape for name in made.results[len(sums) :]]
    results = plgpu.kernel(
        body,
        out_type=[
            jax.ShapeDtypeStruct((batch, seq, heads * parts, size), rows.dtype)
            for batch, seq, heads, size in shapes
        ],
        scratch_types=dict(scratch=_scratch(made, config, options, sizes, rows.dtype)),
        grid=order.grid,
        grid_names=AXES,
        num_threads=config.compute_threads + 1,
        thread_name="thread",
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            reduction_scratch_bytes=0,
            # In the kernel of all three a `commit_smem` stands wherever lanes need each other.
            unsafe_no_auto_barriers=made == ALL,
        ),
    )(*arrays[:5], *arrays.segments, *sums)
    if parts > 1:
        results = [_added(result, parts) for result in results]
    return *((ref[...] * options.scale).astype(rows.dtype) for ref in sums), *results


def parts_of(order_of: Callable[[int], BlockOrder], group: int, steps: int, are_equal: bool) -> int:
    """How many blocks share the heads of queries of a block of keys: the fewest of the least time.

    With few heads of keys, too few blocks would go through the queries of too many heads. Each
    part makes a dK and a dV, which are added up. A part must save a twentieth of the time.

    Blocks of a mask take half the steps on average, and the longest takes all. They begin with the
    longest, so the SMs end at the same time, unless only some heads are taken together: then the
    last heads' longest blocks begin late, and keep their SMs for about a wave.

    Args:
      order_of: the order of the blocks, by the number of parts.
      group: heads of queries that share a head of keys; the parts divide it.
      steps: of one head of queries, without a mask.
      are_equal: whether all blocks take as many steps.
    """
    sms = num_sms()

    def time(parts: int) -> float:
        order, longest = order_of(parts), steps * group / parts
        heads, besides, launch = order.batch * order.heads, float(_BLOCK_STEPS), 0.0
        if parts > 1:
            besides, launch = besides + _PART_STEPS, _LAUNCH_STEPS
        if are_equal or heads * order.blocks <= sms:
            return launch + in_waves(heads * order.blocks, sms, longest, 1.0, besides)
        waves = heads * order.blocks / sms + (order.together < heads)
        return launch + max(longest + besides, waves * (longest / 2 + besides))

    found = 1
    for parts in range(2, group + 1):
        if group % parts == 0 and time(parts) < 0.95 * time(found):
            found = parts
    return found


def _added(parts: jax.Array, count: int) -> jax.Array:
    """The sum of `count` heads each, [batch, seq, heads, head_dim]."""
    batch, seq, heads, head_dim = parts.shape
    divided = parts.reshape(batch, seq, heads // count, count, head_dim)
    return divided.sum(3, dtype=jnp.float32).astype(parts.dtype)


@jax.custom_batching.custom_vmap
def _zeros_like(array: jax.Array) -> jax.Array:
    """Float32 zeros that have an array's axes of `jax.vmap`, as `jnp.zeros_like` has not.

    They do not vary along axes of `jax.shard_map`: Pallas takes no ref that does. Their sequences
    and heads are whole pieces.
    """
    *batch, seq, heads, head_dim = array.shape
    seq, head_dim = whole_pieces((seq, head_dim), array.dtype)
    return jnp.zeros((*batch, seq, heads, head_dim), jnp.float32)


@_zeros_like.def_vmap
def _batched_zeros_like(
    axis_size: int, in_batched: list[bool], array: jax.Array
) -> tuple[jax.Array, bool]:
    del axis_size
    return _zeros_like(array), in_batched[0]


def _scratch(
    made: Gradients,
    config: GradientConfig,
    options: Options[AttentionConfig],
    sizes: Sizes,
    dtype: Dtype,
) -> dict[str, Any]:
    """What a kernel allocates."""
    memory = config.memory(made, sizes.head_dim, not options.config.in_place, dtype)
    if not (options.config.in_place and options.counts(sizes.queries, config.block)):
        memory.pop("queries", None)  # no mask compares them, or in registers
    made_of: dict[str, Any] = allocations(memory)
    if sizes.by_rows:  # a copy, and an array, for each piece
        threads, rows = config.compute_threads, config.rows
        operand = pieces.allocation(threads, rows, sizes.head_dim, dtype)
        made_of["operands"] = [operand] * made.operands
        arrivals = made.operands * (sizes.head_dim // piece_columns(dtype)) + (made == DQ)
        made_of["loaded"] = Barriers(threads, arrivals).allocation()
    return made_of


def _sides(made: Gradients, options: Options[AttentionConfig]) -> tuple[int | None, int | None]:
    """How many columns a row sees before its own, and after it; None for all."""
    return (options.right, options.left) if made.rows else (options.left, options.right)


def _block(
    made: Gradients,
    config: GradientConfig,
    options: Options[AttentionConfig],
    sizes: Sizes,
    order: BlockOrder,
    parts: int,
    q: Ref,
    k: Ref,
    v: Ref,
    d_out: Ref,
    numbers: Ref,
    *refs: Ref,
    scratch: Scratch,
) -> None:
    """What each thread of a block does; `refs` are segments, if any, and the results."""
    count, axes = len(refs) - len(made.results), (made.rows, made.columns)
    place = order.place(*map(lax.axis_index, AXES))
    rows, columns = ((sizes.queries, sizes.keys)[axis] for axis in axes)
    row = place[2] * (config.rows * config.compute_threads)
    behind, ahead = _sides(made, options)
    band = Band.of(behind, ahead, rows, columns, config.tiles, row)
    band = band.within(tuple(span.at[place[0], place[2]] for span in refs[2:count]))
    index = lax.axis_index("thread")
    if made == ALL:  # beyond the end K is 0, but dS could be infinite
        band = band._replace(ends=sizes.keys)
    if "queries" in scratch:
        band = band._replace(numbers=scratch["queries"].at[index])
    segments = tuple(refs[:count][axis].at[place[0]] for axis in axes if count)
    q, k, v, d_out, numbers = (ref.at[place[0]] for ref in (q, k, v, d_out, numbers))
    arrays = Arrays(q, k, v, d_out, numbers, segments)
    outs = tuple(ref.at[place[0]] for ref in refs[count:])
    thread = THREADS[made](
        options=options,
        sizes=sizes,
        config=config,
        band=band,
        head=place[1],
        block_row=row,
        index=index,
        outs=outs,
        scratch=scratch,
        parts=parts,
    )
    loads = thread.steps(arrays)
    emit_pipeline_warp_specialized(
        functools.partial(thread.step, segments),
        grid=loads.grid,
        in_specs=loads.in_specs,
        max_concurrent_steps=config.slots,
        memory_registers=config.memory_registers,
        wg_axis="thread",
        num_compute_wgs=config.compute_threads,
        # dQ's kernel releases V early. In that of all three `_give` commits what a step has read.
        manual_consumed_barriers=made == DQ,
        ordinary_reads=made not in (DQ, ALL),
        compute_context=functools.partial(thread.compute, arrays),
    )(*loads.refs)
