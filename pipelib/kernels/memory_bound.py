"""`rms_norm` and `softmax`: kernels whose ceiling is the bandwidth of GMEM.

The model. Each kernel first makes a few *statistics* of a row (the sum of its squares, or its
maximum and the sum of exponentials). From these and the element it then makes each result. The
statistics of two parts of a row can be merged, so a row may come in chunks. All arithmetic is in
float32.

===========  ====================================================================================
one pass     A step is a block of whole rows. The result replaces the rows in their slot, and is
             stored from there. With one slot, each block of the grid takes one step. With more
             slots there are only as many blocks as the SMs hold, and block b takes steps b,
             b + blocks, ...
kept         For rows that registers do not hold, and SMEM does. All chunks of a row are loaded at
             once, and their statistics merged as they land. Then one chunk after the other is
             computed, and stored from its place. A weight comes through a ring meanwhile.
two passes   For rows that are longer still. A step is a chunk. A first pipeline merges the
             statistics. A second one loads the row again and writes; this load comes from the L2,
             if the rows that all SMs work on fit there.
===========  ====================================================================================

How rows are copied. A row is reshaped to (pieces, piece), without a copy. A *piece* has at most 256
elements, because it is one axis of a TMA box, and a multiple of 16 bytes. A block of rows is a box
of (rows, pieces in the block, piece), whose elements 128 lanes share evenly. If the length of the
row does not allow that, the block has more pieces than the row: TMA does not store these, and the
body masks them. Such a block has at least two rows: Mosaic GPU copies a contiguous slice as one run
of bytes, so a single padded row would run into the next.

Bytes in flight (Little's law: bandwidth x latency). An H200 moves 4.8 TB/s (its data sheet), half
of it loads. 2.4 TB/s / 132 SMs = 18 B/ns, so a latency of about 1 us needs 18 KiB of loads in
flight on each SM, and about twice as much with the copies that queue near the limit. A slot that is
computed on, or stored from, is not in flight. A step is one row, or several rows of 4 KiB together.
An SM holds 16 blocks, or as many as registers and SMEM allow: 64 KiB or more. Part of that is in
flight at any time, and no block waits for another. A chunk is 16 KiB.

Why one slot. Slots overlap the copies of a block with its own computation, and blocks that share an
SM do the same for each other. Besides, new blocks start on the SMs that are ahead, while blocks
that stay have a fixed number of steps each and end with the slowest SM. The record of
`benchmarks/memory_bound.py` has both ways measured, and the bandwidth over bytes in flight.

Why one compute thread. Mosaic GPU's sums and maxima over the lanes of a thread go through SMEM, at
one address for all threads of a block (JAX 0.11.2 and 0.12.0.1). Two threads that reduce at the
same time read each other's parts. The interpreter has no such address, so it reports nothing.

Not covered, and computed by the plain-JAX reference instead: rows that do not divide into pieces of
at least 64 bytes that suit the lanes (`RowPlan.of` has the rule), among them all rows that are not
a multiple of 16 bytes; arrays without elements; a weight with a `jax.vmap` axis. Gradients are
plain JAX.
"""

# What it asks of JAX has no types.
# pyright: basic

import dataclasses
import functools
import math
from typing import Any, ClassVar, NamedTuple, override

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs
from pipelib.kernels.front import Front, differentiable
from pipelib.kernels.hopper import num_sms
from pipelib.kernels.keywords import RMS_NORM, SOFTMAX, knows
from pipelib.pipeline import emit_pipeline
from pipelib.refs import Int, Ref
from pipelib.ring import Indices

#: Bytes that a step loads: of several whole rows together, and of a chunk.
ROWS_BYTES, CHUNK_BYTES = 4096, 16 * 1024
#: The longest row in registers: 128 float32s for each of 128 lanes.
MAX_ELEMENTS = 16384
#: The shortest piece; the most rows in a step, which are unrolled.
MIN_PIECE_BYTES, MAX_ROWS = 64, 8
#: SMEM of an SM, and what the system reserves of it for each block. Source: CUDA C++ Programming
#: Guide, "Technical Specifications".
SM_BYTES, RESERVED_BYTES = 228 * 1024, 1024
#: SMEM of a block beside its slots: Mosaic GPU's scratch for reductions, and barriers.
SCRATCH_BYTES = 3 * 1024
LANES, BOX, TMA_UNIT = 128, 256, 16
#: Of a weight's ring, if chunks of rows are kept.
WEIGHT_SLOTS = 2
_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


#: Float32 scalars that say of a row what its result needs.
Statistics = tuple[jax.Array, ...]


class Operation:
    """What a kernel makes of rows; the operations are frozen, and so hashable.

    Attributes:
      front: the kernel's front door.
      fill: an element that changes no statistics.
      start: the statistics of no elements.
      approximate: whether the GPU's less exact instructions are exact enough.
    """

    front: ClassVar[Front]
    fill: ClassVar[float]
    start: ClassVar[tuple[float, ...]]
    approximate: bool

    def of(self, x: jax.Array) -> Statistics:
        """The statistics of a chunk."""
        raise NotImplementedError

    def merge(self, one: Statistics, other: Statistics) -> Statistics:
        """The statistics of two chunks together."""
        raise NotImplementedError

    def apply(self, x: jax.Array, statistics: Statistics, weight: jax.Array | None) -> jax.Array:
        """The result for a chunk of a row with these statistics."""
        raise NotImplementedError

    def reference(self, x: jax.Array, *weight: jax.Array) -> jax.Array:
        """The operation on whole rows, in plain JAX."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class RmsNorm(Operation):
    """`rms_norm` of rows of `length` elements. Statistics: the sum of squares."""

    length: int
    eps: float
    approximate: bool = False

    front = Front("rms_norm", "pipelib.kernels.memory_bound.rms_norm_reference", or_newer=True)
    fill, start = 0.0, (0.0,)

    @override
    def of(self, x: jax.Array) -> Statistics:
        return (jnp.sum(x * x),)

    @override
    def merge(self, one: Statistics, other: Statistics) -> Statistics:
        return (one[0] + other[0],)

    @override
    def apply(self, x: jax.Array, statistics: Statistics, weight: jax.Array | None) -> jax.Array:
        y = x * lax.rsqrt(statistics[0] * (1.0 / self.length) + self.eps)
        return y if weight is None else y * weight

    @override
    def reference(self, x: jax.Array, *weight: jax.Array) -> jax.Array:
        return rms_norm_reference(x, *weight, eps=self.eps)


@dataclasses.dataclass(frozen=True)
class Softmax(Operation):
    """`softmax`. Statistics: the maximum, and the sum of the exponentials below it.

    An `approximate` exponential has a relative error of 2^-21, plus what the rounding of its
    argument to float32 adds: far less than a rounding to 16 bits. Below 2^-126 it is 0.
    """

    approximate: bool

    front = Front("softmax", "jax.nn.softmax", or_newer=True)
    fill, start = -math.inf, (-math.inf, 0.0)

    @override
    def of(self, x: jax.Array) -> Statistics:
        maximum = jnp.max(x)
        return maximum, jnp.sum(jnp.exp(x - _finite(maximum)))

    @override
    def merge(self, one: Statistics, other: Statistics) -> Statistics:
        maximum = jnp.maximum(one[0], other[0])
        scaled = (total * jnp.exp(top - _finite(maximum)) for top, total in (one, other))
        return maximum, 0.0 + next(scaled) + next(scaled)

    @override
    def apply(self, x: jax.Array, statistics: Statistics, weight: jax.Array | None) -> jax.Array:
        del weight  # a softmax has none
        maximum, total = statistics
        return jnp.exp(x - _finite(maximum)) * (1.0 / total)  # 0 * inf is NaN if all are -inf

    @override
    def reference(self, x: jax.Array, *weight: jax.Array) -> jax.Array:
        del weight
        return softmax_reference(x)


def _finite(maximum: jax.Array) -> jax.Array:
    """The maximum to subtract: 0 instead of -inf, since -inf - -inf is NaN."""
    return jnp.where(maximum == -math.inf, 0.0, maximum)


class RowPlan(NamedTuple):
    """How rows go through the slots: a step is `rows` x `block` pieces of `piece` elements.

    Attributes:
      piece: elements of a piece.
      pieces: pieces of a row.
      block: pieces of a chunk: at least `pieces` if a step has whole rows.
      rows: rows of a step.
      slots: slots of each ring.
      blocks: blocks of the grid.
      is_kept: whether the chunks of a row stay in SMEM, a slot for each.
    """

    piece: int
    pieces: int
    block: int
    rows: int
    slots: int
    blocks: int
    is_kept: bool = False

    @property
    def chunks(self) -> int:
        """How many steps a row takes."""
        return pl.cdiv(self.pieces, self.block)

    @property
    def padded(self) -> bool:
        """Whether the last chunk of a row has more pieces than the row."""
        return self.chunks * self.block != self.pieces

    @classmethod
    def of(
        cls,
        num_rows: int,
        length: int,
        size: int,
        weight_size: int,
        slots: int | None,
        rows: int | None,
    ) -> "RowPlan | None":
        """The plan for some rows; None if they do not divide into pieces.

        Args:
          num_rows, length: how many rows there are, and how many elements each has.
          size, weight_size: bytes of an element, and of an element of the weight (0 if none).
          slots, rows: the arguments of this name; None for the defaults.

        Raises:
          ValueError: `rows` is 1, but the row is padded.
        """
        fitting = [p for p in range(1, min(length, BOX) + 1) if _is_piece(p, length, size)]
        if not fitting:
            return None
        piece = min(fitting, key=lambda piece: (_padded(length, piece), -piece))
        unit = LANES // math.gcd(piece, LANES)
        cut = _Cut(num_rows, length // piece, piece, size, weight_size, slots, rows)
        pieces = cut.pieces
        block = pieces if length % LANES == 0 else pl.cdiv(pieces, unit) * unit
        is_box = block == pieces or block <= BOX  # a contiguous run of bytes may be longer
        if is_box and block * piece <= MAX_ELEMENTS and (plan := cut.one_pass(block)):
            return plan
        if plan := cut.kept(cut.chunk(MAX_ELEMENTS // 2 // piece, unit)):
            return plan
        return cut.two_passes(cut.chunk(CHUNK_BYTES // (piece * size), unit))


class _Cut(NamedTuple):
    """Rows cut into pieces, but not yet into blocks; the names are those of `RowPlan.of`."""

    num_rows: int
    pieces: int
    piece: int
    size: int
    weight_size: int
    slots: int | None
    rows: int | None

    def one_pass(self, block: int) -> RowPlan | None:
        """The plan for whole rows, padded to `block` pieces; None if an SM has too little SMEM."""
        step = block * self.piece * self.size
        rows, slots = self._rows(block, min(MAX_ROWS, ROWS_BYTES // step)), self.slots or 1
        steps = pl.cdiv(self.num_rows, rows)
        smem = slots * (rows * step + block * self.piece * self.weight_size) + SCRATCH_BYTES
        resident = SM_BYTES // (smem + RESERVED_BYTES)
        if resident < (1 if self.slots else 2):  # one slot, with no other block beside it
            return None
        blocks = steps if slots == 1 else min(steps, resident * num_sms())
        return RowPlan(self.piece, self.pieces, block, rows, slots, blocks)

    def chunk(self, most: int, unit: int) -> int:
        """The pieces of a chunk: not above `most`, of whole units, and of whole rows if that is no
        less than half of them.
        """
        most = min(BOX, most) // unit * unit
        whole = [b for b in range(unit, most + 1, unit) if self.pieces % b == 0 and 2 * b >= most]
        even = pl.cdiv(pl.cdiv(self.pieces, pl.cdiv(self.pieces, most)), unit) * unit
        return whole[-1] if whole else even

    def kept(self, block: int) -> RowPlan | None:
        """The plan for whole rows in chunks of `block` pieces; None if an SM has too little SMEM.

        Slots that are asked for are those of two passes.
        """
        chunks, rows = pl.cdiv(self.pieces, block), self._rows(block, 1)
        size = chunks * rows * self.size + WEIGHT_SLOTS * self.weight_size
        if self.slots or block * self.piece * size > SM_BYTES - RESERVED_BYTES - SCRATCH_BYTES:
            return None
        steps = pl.cdiv(self.num_rows, rows)
        return RowPlan(self.piece, self.pieces, block, rows, chunks, steps, is_kept=True)

    def two_passes(self, block: int) -> RowPlan:
        """The plan for chunks of `block` pieces."""
        step = block * self.piece * self.size
        rows = self._rows(block, min(2, CHUNK_BYTES // step))
        steps = pl.cdiv(self.num_rows, rows)
        return RowPlan(self.piece, self.pieces, block, rows, self.slots or 2, steps)

    def _rows(self, block: int, fitting: int) -> int:
        """The rows of a step, of which `fitting` are enough; at least two if they are padded."""
        least = 2 if self.pieces % block else 1
        rows = self.rows or max(least, min(fitting, self.num_rows))
        if rows < least:
            raise ValueError(
                f"rows={self.rows}, but rows of {self.pieces * self.piece:,} elements are padded to"
                f" {pl.cdiv(self.pieces, block) * block * self.piece:,}, so the copy of one alone"
                " would overwrite the next; it takes at least 2 in a block."
            )
        return rows


def _padded(length: int, piece: int) -> int:
    """Elements of a row of whole pieces that 128 lanes share evenly."""
    unit = math.lcm(piece, LANES)
    return pl.cdiv(length, unit) * unit


def _is_piece(piece: int, length: int, size: int) -> bool:
    """Whether TMA can copy rows in pieces of this size, and 128 lanes share a step evenly."""
    is_copied = length % piece == 0 and piece * size % TMA_UNIT == 0
    is_shared = math.lcm(piece, LANES) * size <= CHUNK_BYTES
    return is_copied and is_shared and piece * size >= MIN_PIECE_BYTES


def _row(operation: Operation, plan: RowPlan, x: Ref, chunk: Int) -> jax.Array:
    """A row of a block, or its chunk, in float32; elements beyond the row are neutral."""
    values = x[...].astype(jnp.float32)
    if not plan.padded:
        return values
    piece = plgpu.broadcasted_iota(jnp.int32, values.shape, 0)
    return jnp.where(piece < plan.pieces - chunk * plan.block, values, operation.fill)


def _one_pass(operation: Operation, plan: RowPlan, num_rows: int, x: Ref, *refs: Ref) -> None:
    """The kernel in which a step is a block of whole rows; `refs` are a weight, if any, and o."""
    *weight, o = refs
    first, steps = lax.axis_index("block"), pl.cdiv(num_rows, plan.rows)
    shape, delay = (plan.rows, plan.block, plan.piece), min(1, plan.slots - 1)
    start = first * 0  # traced: JAX 0.12 takes an int for a promise that the block is in bounds

    def step(i: jax.Array) -> jax.Array:
        """The block of rows that is this block's step i."""
        return first + i * plan.blocks

    spec = plgpu.BlockSpec(shape, lambda i: (step(i), start, 0), delay_release=delay)
    weight_specs = [plgpu.BlockSpec(shape[1:], lambda i: (0, 0), delay_release=delay)] * len(weight)

    def body(indices: Indices, x_smem: Ref, *weight_smem: Ref) -> None:
        for r in range(plan.rows):
            row = _row(operation, plan, x_smem.at[r], 0)
            scale = weight_smem[0][...].astype(jnp.float32) if weight_smem else None
            x_smem[r] = operation.apply(row, operation.of(row), scale).astype(o.dtype)
        plgpu.commit_smem()
        here = pl.ds(step(indices[0]) * plan.rows, plan.rows), pl.ds(start, plan.block)
        plgpu.copy_smem_to_gmem(x_smem, o.at[here])
        plgpu.wait_smem_to_gmem(delay, wait_read_only=True)  # the slot that is released next

    mine = 1
    if plan.blocks < steps:
        mine = lax.div(steps - 1 - first, jnp.int32(plan.blocks)) + 1
    emit_pipeline(
        body,
        grid=(mine,),
        in_specs=[spec, *weight_specs],
        max_concurrent_steps=plan.slots,
        ordinary_reads=False,  # the body has committed them
    )(x, *weight)
    plgpu.wait_smem_to_gmem(0)


class _Chunks(NamedTuple):
    """What both kernels of chunks do with one, in SMEM."""

    operation: Operation
    plan: RowPlan

    def start(self) -> list[Statistics]:
        """The statistics of each row of a step before its first chunk."""
        return [tuple(map(jnp.float32, self.operation.start)) for _ in range(self.plan.rows)]

    def gather(self, chunk: Int, x_smem: Ref, carry: list[Statistics]) -> list[Statistics]:
        """The statistics with those of this chunk."""
        rows = (_row(self.operation, self.plan, x_smem.at[r], chunk) for r in range(self.plan.rows))
        return [self.operation.merge(old, self.operation.of(row)) for old, row in zip(carry, rows)]

    def write(self, chunk: Int, statistics: list[Statistics], x_smem: Ref, *refs: Ref) -> None:
        """Writes a chunk's results; `refs` are the weight's chunk, if any, and the results'."""
        *weight_smem, o_smem = refs
        for r, of_row in enumerate(statistics):
            scale = weight_smem[0][...].astype(jnp.float32) if weight_smem else None
            row = _row(self.operation, self.plan, x_smem.at[r], chunk)
            o_smem[r] = self.operation.apply(row, of_row, scale).astype(o_smem.dtype)


def _kept(operation: Operation, plan: RowPlan, x: Ref, *refs: Ref) -> None:
    """The kernel that has all chunks of its rows in SMEM; `refs` are a weight, if any, and o."""
    *weight, o = refs
    chunks, first = _Chunks(operation, plan), lax.axis_index("block")
    every, step = functools.partial(lax.fori_loop, 0, plan.chunks), (plan.block, plan.piece)
    weight_specs = [plgpu.BlockSpec(step, lambda chunk: (chunk, 0))] * len(weight)

    def place(chunk: jax.Array) -> tuple[Any, Any]:
        return pl.ds(first * plan.rows, plan.rows), pl.ds(chunk * plan.block, plan.block)

    def body(x_smem: Ref, landed: Ref) -> None:
        def load(chunk: jax.Array, _: None) -> None:
            plgpu.copy_gmem_to_smem(x.at[place(chunk)], x_smem.at[chunk], landed.at[chunk])

        def gather(chunk: jax.Array, carry: list[Statistics]) -> list[Statistics]:
            plgpu.barrier_wait(landed.at[chunk])
            return chunks.gather(chunk, x_smem.at[chunk], carry)

        def store(indices: Indices, *weight_smem: Ref) -> None:
            (chunk,), smem = indices, x_smem.at[indices[0]]
            chunks.write(chunk, statistics, smem, *weight_smem, smem)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(smem, o.at[place(chunk)])

        every(load, None)
        statistics = every(gather, chunks.start())
        emit_pipeline(
            store, grid=(plan.chunks,), in_specs=weight_specs, max_concurrent_steps=WEIGHT_SLOTS
        )(*weight)
        plgpu.wait_smem_to_gmem(0)

    smem = plgpu.SMEM((plan.chunks, plan.rows, *step), x.dtype)
    pl.run_scoped(body, smem, plgpu.Barrier(num_barriers=plan.chunks))


def _two_passes(operation: Operation, plan: RowPlan, x: Ref, *refs: Ref) -> None:
    """The kernel in which a step is a chunk of rows; `refs` are a weight, if any, and o."""
    *weight, o = refs
    chunks, first = _Chunks(operation, plan), lax.axis_index("block")
    shape = plan.rows, plan.block, plan.piece
    grid, slots = (plan.chunks,), min(plan.slots, plan.chunks)
    spec = plgpu.BlockSpec(shape, lambda chunk: (first, chunk, 0))
    weight_specs = [plgpu.BlockSpec(shape[1:], lambda chunk: (chunk, 0))] * len(weight)

    statistics = emit_pipeline(
        lambda indices, *args: chunks.gather(indices[0], *args),
        grid=grid,
        in_specs=[spec],
        max_concurrent_steps=slots,
        init_carry=chunks.start(),
    )(x)
    emit_pipeline(
        lambda indices, *refs: chunks.write(indices[0], statistics, *refs),
        grid=grid,
        in_specs=[spec, *weight_specs],
        out_specs=[spec],
        max_concurrent_steps=slots,
    )(x, *weight, o)


@functools.partial(jax.jit, static_argnums=(0, 1))
def launch_rows(operation: Operation, plan: RowPlan, x: jax.Array, *weight: jax.Array) -> jax.Array:
    """Runs the kernel of an operation on rows.

    Args:
      operation, plan: what to make of the rows, and how.
      x: [num_rows, length].
      weight: nothing, or one array of [length].

    Returns:
      An array of x's shape and dtype.
    """
    gmem = x.reshape(len(x), plan.pieces, plan.piece)
    padding = plan.chunks * plan.block - plan.pieces
    weights = [jnp.pad(w.reshape(gmem.shape[1:]), ((0, padding), (0, 0))) for w in weight]
    kernel = functools.partial(_kept if plan.is_kept else _two_passes, operation, plan)
    if plan.chunks == 1:
        kernel = functools.partial(_one_pass, operation, plan, len(x))
    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(gmem.shape, x.dtype),
        grid=(plan.blocks,),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(approx_math=operation.approximate),
    )(gmem, *weights).reshape(x.shape)


class _Asked(NamedTuple):
    """What is to be made of rows, and the arguments `slots` and `rows`; hashable."""

    operation: Operation
    slots: int | None
    rows: int | None


def _forward(asked: _Asked, *operands: jax.Array) -> jax.Array:
    """Runs the kernel on x and a weight, if any, with any leading axes; `jax.vmap` adds one."""
    operation = asked.operation

    @jax.custom_batching.custom_vmap
    def call(x: jax.Array, *weight: jax.Array) -> jax.Array:
        length, size = x.shape[-1], x.dtype.itemsize
        weight_size = weight[0].dtype.itemsize if weight else 0
        plan = None
        if x.size:
            plan = RowPlan.of(x.size // length, length, size, weight_size, asked.slots, asked.rows)
        if plan is None:
            return operation.reference(x, *weight)
        operation.front.require_gpu()
        return launch_rows(operation, plan, x.reshape(-1, length), *weight).reshape(x.shape)

    @call.def_vmap
    def _(axis_size: int, batched: list[bool], *operands: jax.Array) -> tuple[jax.Array, bool]:
        del axis_size
        if any(batched[1:]):
            axes = [0 if is_batched else None for is_batched in batched]
            return jax.vmap(operation.reference, axes)(*operands), True
        return call(*operands), True

    return call(*operands)


def _make_rms_norm(x: jax.Array, weight: jax.Array | None, asked: _Asked) -> jax.Array:
    return _forward(asked, x) if weight is None else _forward(asked, x, weight)


def _rms_norm_backward(
    asked: _Asked, cotangent: jax.Array, x: jax.Array, weight: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
    operands = (x,) if weight is None else (x, weight)
    gradients = jax.vjp(asked.operation.reference, *operands)[1](cotangent)
    return gradients[0], None if weight is None else gradients[1]


def _make_softmax(x: jax.Array, asked: _Asked) -> jax.Array:
    return _forward(asked, x)


def _softmax_backward(asked: _Asked, cotangent: jax.Array, x: jax.Array) -> tuple[jax.Array]:
    return jax.vjp(asked.operation.reference, x)[1](cotangent)


_rms_norm = differentiable(_make_rms_norm, _rms_norm_backward, is_compiled=False)
_softmax = differentiable(_make_softmax, _softmax_backward, is_compiled=False)


@knows(RMS_NORM)
def rms_norm(
    x: jax.Array,
    weight: jax.Array | None = None,
    *,
    eps: float = 1e-6,
    slots: int | None = None,
    rows: int | None = None,
) -> jax.Array:
    """`x / sqrt(mean(x**2) + eps) * weight` over the last axis, in float32.

    Works under `jax.jit`, `jax.vmap`, `jax.grad` and `jax.shard_map`. The module's docstring says
    what plain JAX computes.

    Args:
      x: (..., length), float32, bfloat16 or float16.
      weight: (length,), of one of these dtypes, not necessarily x's; None for ones.
      eps: added to the mean of squares: 0, or positive and finite in float32.
      slots: the slots of each block; by default 1, and then a block takes one step. A row that a
        slot does not hold is by default kept in SMEM, a slot for each chunk. One that SMEM does not
        hold, or for which slots are given, takes two passes, whose stores have as many slots as the
        loads: by default 2, and never more than a row has chunks.
      rows: rows in a step, which are unrolled; by default as many as make 4 KiB.

    Returns:
      An array of x's shape and dtype.

    Raises:
      ValueError, TypeError: for wrong shapes, dtypes or types of arguments; for an eps, slots or
        rows that are not as above; a GPU older than Hopper, which has no TMA (on newer ones nothing
        was run); a CPU where nothing interprets kernels (under `jax.jit` in Pallas's words).

    Example:
      >>> x = jnp.full((4, 128), 3.0)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     y = rms_norm(x, jnp.full(128, 2.0))
      >>> y.shape, round(float(y[0, 0]), 3)
      ((4, 128), 2.0)
    """
    front = RmsNorm.front
    slots, rows = _checked(front, x, slots, rows)
    if weight is not None:
        front.check_arrays(weight=weight)
    if weight is not None and (weight.shape != x.shape[-1:] or weight.dtype not in _DTYPES):
        raise ValueError(
            f"rms_norm: a weight of shape {weight.shape} and {weight.dtype} cannot scale rows of"
            f" {x.shape[-1]} elements: it must be {x.shape[-1:]} and {_names()}."
        )
    eps = _checked_eps(front, eps)
    return front.call(_rms_norm, (x, weight), _Asked(RmsNorm(x.shape[-1], eps), slots, rows))


@knows(SOFTMAX)
def softmax(x: jax.Array, *, slots: int | None = None, rows: int | None = None) -> jax.Array:
    """`exp(x - max(x)) / sum(exp(x - max(x)))` over the last axis, in float32.

    Elements of -inf give 0, and a row of nothing else gives NaN, as in `jax.nn.softmax`. Works
    under `jax.jit`, `jax.vmap`, `jax.grad` and `jax.shard_map`. The module's docstring says what
    plain JAX computes.

    Args:
      x: (..., length), float32, bfloat16 or float16.
      slots: the slots of each block; by default 1, and then a block takes one step. A row that a
        slot does not hold is by default kept in SMEM, a slot for each chunk. One that SMEM does not
        hold, or for which slots are given, takes two passes, whose stores have as many slots as the
        loads: by default 2, and never more than a row has chunks.
      rows: rows in a step, which are unrolled; by default as many as make 4 KiB.

    Returns:
      An array of x's shape and dtype.

    Raises:
      ValueError, TypeError: for wrong shapes, dtypes or types of arguments; for slots or rows that
        do not fit; a GPU older than Hopper, which has no TMA (on newer ones nothing was run); a CPU
        where nothing interprets kernels (under `jax.jit` in Pallas's words).

    Example:
      >>> with plgpu.force_gpu_interpret_mode():
      ...     y = softmax(jnp.zeros((4, 128)))
      >>> float(y[0, 0]) == 1 / 128
      True
    """
    front = Softmax.front
    slots, rows = _checked(front, x, slots, rows)
    operation = Softmax(approximate=x.dtype.itemsize == 2)
    return front.call(_softmax, (x,), _Asked(operation, slots, rows))


def rms_norm_reference(
    x: jax.Array, weight: jax.Array | None = None, *, eps: float = 1e-6
) -> jax.Array:
    """`rms_norm` in plain JAX."""
    wide = x.astype(jnp.float32)
    y = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)
    return (y if weight is None else y * weight.astype(jnp.float32)).astype(x.dtype)


def softmax_reference(x: jax.Array) -> jax.Array:
    """`softmax` in plain JAX."""
    return jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype)


def _checked(
    front: Front, x: jax.Array, slots: int | None, rows: int | None
) -> tuple[int | None, int | None]:
    """The slots and the rows, as ints.

    Raises:
      ValueError, TypeError: for arguments that no kernel takes.
    """
    front.check_arrays(x=x)
    name = front.name
    if x.ndim == 0 or x.dtype not in _DTYPES:
        raise ValueError(
            f"{name}: x of shape {x.shape} and {x.dtype} has no rows that the kernel takes: it"
            f" needs at least one axis, and {_names()}."
        )
    slots = _in_range(f"{name}: slots", slots, specs.MAX_SLOTS, "one array of barriers has")
    return slots, _in_range(f"{name}: rows", rows, BOX, "one copy takes")


def _checked_eps(front: Front, eps: float) -> float:
    """The eps of `rms_norm` as a float.

    Raises:
      TypeError: it is no number, or is traced and so known only at run time.
      ValueError: it is negative, NaN, or infinite in float32.
    """
    number = front.number("eps", eps)
    most = float(jnp.finfo(jnp.float32).max)
    if not 0.0 <= number <= most:
        raise ValueError(
            f"rms_norm: eps={number!r} is not 0 to {most:.3g}, float32's largest, so rows would"
            " become NaN or 0: give a small positive number, such as 1e-6."
        )
    return number


def _in_range(name: str, value: int | None, most: int, because: str) -> int | None:
    """The argument as an int from 1 to `most`, or None."""
    if value is None:
        return None
    number = specs.integer(name, value)
    if not 1 <= number <= most:
        raise ValueError(f"{name}={number} is not 1 to {most}, the most that {because}.")
    return number


def _names() -> str:
    """The names of the dtypes that the kernels take."""
    return "float32, bfloat16 or float16"
