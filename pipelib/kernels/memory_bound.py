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
two passes   For rows that are longer than a slot. A step is a chunk. A first pipeline merges the
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

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs
from pipelib.kernels.hopper import num_sms, require_hopper
from pipelib.pipeline import emit_pipeline

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
_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


class RmsNorm(NamedTuple):
    """Statistics: the sum of squares."""

    length: int
    eps: float

    name, fill, start, approximate = "rms_norm", 0.0, (0.0,), False

    def of(self, x: jax.Array) -> tuple:
        """The statistics of a chunk."""
        return (jnp.sum(x * x),)

    def merge(self, one: tuple, other: tuple) -> tuple:
        """The statistics of two chunks together."""
        return (one[0] + other[0],)

    def apply(self, x: jax.Array, statistics: tuple, weight: jax.Array | None) -> jax.Array:
        """The result for a chunk of a row with these statistics."""
        y = x * lax.rsqrt(statistics[0] * (1.0 / self.length) + self.eps)
        return y if weight is None else y * weight

    def reference(self, x: jax.Array, weight: jax.Array | None = None) -> jax.Array:
        """The same in plain JAX."""
        return rms_norm_reference(x, weight, eps=self.eps)


class Softmax(NamedTuple):
    """Statistics: the maximum, and the sum of the exponentials less it.

    An `approximate` exponential has a relative error of 2^-21, plus what the rounding of its
    argument to float32 adds: far less than a rounding to 16 bits. Below 2^-126 it is 0.
    """

    approximate: bool

    name, fill, start = "softmax", -math.inf, (-math.inf, 0.0)

    def of(self, x: jax.Array) -> tuple:
        """The statistics of a chunk."""
        maximum = jnp.max(x)
        return maximum, jnp.sum(jnp.exp(x - _finite(maximum)))

    def merge(self, one: tuple, other: tuple) -> tuple:
        """The statistics of two chunks together."""
        maximum = jnp.maximum(one[0], other[0])
        scaled = (total * jnp.exp(top - _finite(maximum)) for top, total in (one, other))
        return maximum, sum(scaled, start=0.0)

    def apply(self, x: jax.Array, statistics: tuple, weight: None) -> jax.Array:
        """The result for a chunk of a row with these statistics."""
        maximum, total = statistics
        return jnp.exp(x - _finite(maximum)) * (1.0 / total)  # 0 * inf is NaN if all are -inf

    def reference(self, x: jax.Array) -> jax.Array:
        """The same in plain JAX."""
        return softmax_reference(x)


def _finite(maximum: jax.Array) -> jax.Array:
    """The maximum to subtract: 0 instead of -inf, since -inf - -inf is NaN."""
    return jnp.where(maximum == -math.inf, 0.0, maximum)


class RowPlan(NamedTuple):
    """How rows go through the slots: a step is `rows` x `block` pieces of `piece` elements."""

    piece: int
    pieces: int
    block: int
    rows: int
    slots: int
    blocks: int

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
        """The plan for elements of `size` bytes; None if rows have no pieces."""
        padded = lambda piece: pl.cdiv(length, math.lcm(piece, LANES)) * math.lcm(piece, LANES)
        fitting = [p for p in range(1, min(length, BOX) + 1) if _is_piece(p, length, size)]
        if not fitting:
            return None
        piece = min(fitting, key=lambda piece: (padded(piece), -piece))
        pieces, unit = length // piece, LANES // math.gcd(piece, LANES)

        def finish(block: int) -> RowPlan | None:
            """The plan with this many pieces in a block; None if a whole row is too long for it."""
            step, padded = block * piece * size, pieces % block != 0
            is_whole, least = block >= pieces, 2 if padded else 1
            fitting = min(MAX_ROWS, ROWS_BYTES // step) if is_whole else min(2, CHUNK_BYTES // step)
            chosen = rows or max(least, min(fitting, num_rows))
            if chosen < least:
                raise ValueError(
                    f"rows={rows}, but rows of {length:,} elements are padded to"
                    f" {pl.cdiv(pieces, block) * block * piece:,}, so the copy of one alone would"
                    " overwrite the next; it takes at least 2 in a block."
                )
            steps = pl.cdiv(num_rows, chosen)
            if not is_whole:
                return cls(piece, pieces, block, chosen, slots or 2, steps)
            one_pass = cls(piece, pieces, block, chosen, slots or 1, steps)
            smem = one_pass.slots * (chosen * step + block * piece * weight_size) + SCRATCH_BYTES
            resident = SM_BYTES // (smem + RESERVED_BYTES)
            if resident < (1 if slots else 2):  # one slot, with no other block beside it
                return None
            if one_pass.slots == 1:
                return one_pass
            return one_pass._replace(blocks=min(steps, resident * num_sms()))

        block = pieces if length % LANES == 0 else pl.cdiv(pieces, unit) * unit
        is_box = block == pieces or block <= BOX  # a contiguous run of bytes may be longer
        if is_box and block * piece <= MAX_ELEMENTS and (plan := finish(block)):
            return plan
        most = min(BOX, CHUNK_BYTES // (piece * size)) // unit * unit
        whole = [b for b in range(unit, most + 1, unit) if pieces % b == 0 and 2 * b >= most]
        even = pl.cdiv(pl.cdiv(pieces, pl.cdiv(pieces, most)), unit) * unit
        return finish(whole[-1] if whole else even)


def _is_piece(piece: int, length: int, size: int) -> bool:
    """Whether TMA can copy rows in pieces of this size, and 128 lanes share a step evenly."""
    is_copied = length % piece == 0 and piece * size % TMA_UNIT == 0
    is_shared = math.lcm(piece, LANES) * size <= CHUNK_BYTES
    return is_copied and is_shared and piece * size >= MIN_PIECE_BYTES


def _row(operation: Any, plan: RowPlan, x: Any, chunk: Any) -> jax.Array:
    """A row of a block, or its chunk, in float32; elements beyond the row are neutral."""
    values = x[...].astype(jnp.float32)
    if not plan.padded:
        return values
    piece = plgpu.broadcasted_iota(jnp.int32, values.shape, 0)
    return jnp.where(piece < plan.pieces - chunk * plan.block, values, operation.fill)


def _one_pass(operation: Any, plan: RowPlan, num_rows: int, x: Any, *refs: Any) -> None:
    """The kernel in which a step is a block of whole rows."""
    *weight, o = refs
    first, steps = lax.axis_index("block"), pl.cdiv(num_rows, plan.rows)
    shape, delay = (plan.rows, plan.block, plan.piece), min(1, plan.slots - 1)
    start = first * 0  # traced: JAX 0.12 takes an int for a promise that the block is in bounds
    step = lambda i: first + i * plan.blocks
    spec = plgpu.BlockSpec(shape, lambda i: (step(i), start, 0), delay_release=delay)
    weight_specs = [plgpu.BlockSpec(shape[1:], lambda i: (0, 0), delay_release=delay)] * len(weight)

    def body(indices, x_smem, *weight_smem):
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
        body, grid=(mine,), in_specs=[spec, *weight_specs], max_concurrent_steps=plan.slots,
        ordinary_reads=False,  # the body has committed them
    )(x, *weight)  # fmt: skip
    plgpu.wait_smem_to_gmem(0)


def _two_passes(operation: Any, plan: RowPlan, x: Any, *refs: Any) -> None:
    """The kernel in which a step is a chunk of rows."""
    *weight, o = refs
    first = lax.axis_index("block")
    options = dict(grid=(plan.chunks,), max_concurrent_steps=min(plan.slots, plan.chunks))
    spec = plgpu.BlockSpec((plan.rows, plan.block, plan.piece), lambda chunk: (first, chunk, 0))
    weight_specs = [plgpu.BlockSpec(spec.block_shape[1:], lambda chunk: (chunk, 0))] * len(weight)

    def gather(indices, x_smem, carry):
        rows = (_row(operation, plan, x_smem.at[r], indices[0]) for r in range(plan.rows))
        return [operation.merge(old, operation.of(row)) for old, row in zip(carry, rows)]

    def write(indices, x_smem, *refs):
        *weight_smem, o_smem = refs
        for r in range(plan.rows):
            scale = weight_smem[0][...].astype(jnp.float32) if weight_smem else None
            row = _row(operation, plan, x_smem.at[r], indices[0])
            o_smem[r] = operation.apply(row, statistics[r], scale).astype(o.dtype)

    start = [tuple(map(jnp.float32, operation.start)) for _ in range(plan.rows)]
    statistics = emit_pipeline(gather, in_specs=[spec], init_carry=start, **options)(x)
    emit_pipeline(write, in_specs=[spec, *weight_specs], out_specs=[spec], **options)(x, *weight, o)


@functools.partial(jax.jit, static_argnums=(0, 1))
def launch_rows(operation: Any, plan: RowPlan, x: jax.Array, *weight: jax.Array) -> jax.Array:
    """The kernel of an operation on rows, (num_rows, length), and a weight if there is one."""
    gmem = x.reshape(len(x), plan.pieces, plan.piece)
    padding = plan.chunks * plan.block - plan.pieces
    weight = [jnp.pad(w.reshape(gmem.shape[1:]), ((0, padding), (0, 0))) for w in weight]
    kernel = functools.partial(_two_passes, operation, plan)
    if plan.chunks == 1:
        kernel = functools.partial(_one_pass, operation, plan, len(x))
    return plgpu.kernel(
        kernel, out_type=jax.ShapeDtypeStruct(gmem.shape, x.dtype), grid=(plan.blocks,),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(approx_math=operation.approximate),
    )(gmem, *weight).reshape(x.shape)  # fmt: skip


def _forward(
    operation: Any, slots: int | None, rows: int | None, *operands: jax.Array
) -> jax.Array:
    """Runs the kernel on arrays with any leading axes; `jax.vmap` adds one."""

    @jax.custom_batching.custom_vmap
    def call(x, *weight):
        length, size = x.shape[-1], x.dtype.itemsize
        weight_size = weight[0].dtype.itemsize if weight else 0
        plan = x.size and RowPlan.of(x.size // length, length, size, weight_size, slots, rows)
        if not plan:
            return operation.reference(x, *weight)
        require_hopper(operation.name, or_newer=True)
        return launch_rows(operation, plan, x.reshape(-1, length), *weight).reshape(x.shape)

    @call.def_vmap
    def _(axis_size, batched, *operands):
        del axis_size
        if any(batched[1:]):
            axes = [0 if is_batched else None for is_batched in batched]
            return jax.vmap(operation.reference, axes)(*operands), True
        return call(*operands), True

    return call(*operands)


def rms_norm(
    x: jax.Array,
    weight: jax.Array | None = None,
    *,
    eps: float = 1e-6,
    slots: int | None = None,
    rows: int | None = None,
) -> jax.Array:
    """`x / sqrt(mean(x**2) + eps) * weight` over the last axis, in float32.

    Works under `jax.jit`, `jax.vmap` and `jax.grad`. The module's docstring says what plain JAX
    computes.

    Args:
      x: (..., length), float32, bfloat16 or float16.
      weight: (length,), of one of these dtypes, not necessarily x's; None for ones.
      eps: added to the mean of squares.
      slots: the slots of each block; by default 1, and then a block takes one step. If a slot does
        not hold a whole row, there are two passes, and the stores have as many slots as the loads:
        by default 2, and never more than a row has chunks.
      rows: rows in a step, which are unrolled; by default as many as make 4 KiB.

    Returns:
      An array of x's shape and dtype.

    Raises:
      ValueError, TypeError: for wrong shapes, dtypes or types of arguments; for slots or rows that
        do not fit; a GPU older than Hopper, which has no TMA (on newer ones nothing was run).

    Example:
      >>> x = jnp.full((4, 128), 3.0)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     y = rms_norm(x, jnp.full(128, 2.0))
      >>> y.shape, round(float(y[0, 0]), 3)
      ((4, 128), 2.0)
    """
    slots, rows = _checked("rms_norm", x, slots, rows)
    if weight is not None:
        specs.check_array("rms_norm: weight", weight)
    if weight is not None and (weight.shape != x.shape[-1:] or weight.dtype not in _DTYPES):
        raise ValueError(
            f"rms_norm: a weight of shape {weight.shape} and {weight.dtype} cannot scale rows of"
            f" {x.shape[-1]} elements: it must be {x.shape[-1:]} and {_names()}."
        )
    try:
        eps = float(eps)
    except (TypeError, ValueError):
        because = "a kernel is compiled for it, so it must be a number that is known before"
        raise specs.wrong_type("rms_norm: eps", eps, because) from None
    return _rms_norm(x, weight, eps, slots, rows)


def softmax(x: jax.Array, *, slots: int | None = None, rows: int | None = None) -> jax.Array:
    """`exp(x - max(x)) / sum(exp(x - max(x)))` over the last axis, in float32.

    Elements of -inf give 0, and a row of nothing else gives NaN, as in `jax.nn.softmax`. Works
    under `jax.jit`, `jax.vmap` and `jax.grad`. The module's docstring says what plain JAX computes.

    Args:
      x: (..., length), float32, bfloat16 or float16.
      slots: the slots of each block; by default 1, and then a block takes one step. If a slot does
        not hold a whole row, there are two passes, and the stores have as many slots as the loads:
        by default 2, and never more than a row has chunks.
      rows: rows in a step, which are unrolled; by default as many as make 4 KiB.

    Returns:
      An array of x's shape and dtype.

    Raises:
      ValueError, TypeError: for wrong shapes, dtypes or types of arguments; for slots or rows that
        do not fit; a GPU older than Hopper, which has no TMA (on newer ones nothing was run).

    Example:
      >>> with plgpu.force_gpu_interpret_mode():
      ...     y = softmax(jnp.zeros((4, 128)))
      >>> float(y[0, 0]) == 1 / 128
      True
    """
    slots, rows = _checked("softmax", x, slots, rows)
    return _softmax(x, slots, rows)


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


def _checked(name: str, x: Any, slots: Any, rows: Any) -> tuple[int | None, int | None]:
    """The slots and the rows; ValueError or TypeError for arguments that no kernel takes."""
    specs.check_array(f"{name}: x", x)
    if x.ndim == 0 or x.dtype not in _DTYPES:
        raise ValueError(
            f"{name}: x of shape {x.shape} and {x.dtype} has no rows that the kernel takes: it"
            f" needs at least one axis, and {_names()}."
        )
    found = []
    for argument, value, most in (("slots", slots, specs.MAX_SLOTS), ("rows", rows, BOX)):
        if value is not None:
            value = specs.integer(f"{name}: {argument}", value)
            if not 1 <= value <= most:
                raise ValueError(
                    f"{name}: {argument}={value} is not 1 to {most}, the most that"
                    f" {'one array of barriers has' if argument == 'slots' else 'one copy takes'}."
                )
        found.append(value)
    return tuple(found)


def _names() -> str:
    return "float32, bfloat16 or float16"


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _rms_norm(
    x: jax.Array, weight: jax.Array | None, eps: float, slots: int | None, rows: int | None
) -> jax.Array:
    operands = (x,) if weight is None else (x, weight)
    return _forward(RmsNorm(x.shape[-1], eps), slots, rows, *operands)


def _rms_norm_forward(
    x: jax.Array, weight: jax.Array | None, eps: float, slots: int | None, rows: int | None
) -> tuple[jax.Array, Any]:
    return _rms_norm(x, weight, eps, slots, rows), (x, weight)


def _rms_norm_backward(
    eps: float, slots: int | None, rows: int | None, residuals: Any, cotangent: jax.Array
) -> Any:
    del slots, rows
    _, gradient = jax.vjp(functools.partial(rms_norm_reference, eps=eps), *residuals)
    return gradient(cotangent)


_rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _softmax(x: jax.Array, slots: int | None, rows: int | None) -> jax.Array:
    return _forward(Softmax(approximate=x.dtype.itemsize == 2), slots, rows, x)


def _softmax_forward(
    x: jax.Array, slots: int | None, rows: int | None
) -> tuple[jax.Array, jax.Array]:
    return _softmax(x, slots, rows), x


def _softmax_backward(
    slots: int | None, rows: int | None, x: jax.Array, cotangent: jax.Array
) -> Any:
    del slots, rows
    return jax.vjp(softmax_reference, x)[1](cotangent)


_softmax.defvjp(_softmax_forward, _softmax_backward)
