"""The kernel of `decode_attention`: its launch, its scratch memory, and how parts are combined.

The model. All queries that share a head of K and V are the rows of one product (`decode_config`):
row r is query r // group of a sequence. A block has some rows, and one part of the keys of its
sequence, a range of whole steps. It is one pipeline over these steps::

    memory thread                        each compute thread
    for each step s:                     for each step s:
      read  the pages of its keys          S = Q K[s]^T, once K[s] has landed; release K[s]
      wait  until its slot is free         the softmax of S, and with it a new maximum (`queries`)
      load  K[s], then V[s]                O = O + P V[s], once V[s] has landed; release V[s]

K and V have a ring each (`pipelib.ring` says why a ring is right). Nothing here overlaps a softmax
and a product, as `schedules` has it: a step computes in about half of the time in which its keys
arrive, so it is the memory thread that must never wait.

If the keys are divided, each part stores its result divided by its own sum, in float32, and its
log-sum-exp. `combined` weights the parts. A part without keys has a log-sum-exp of -inf.
"""

# Parts of the signatures of JAX's functions have no types.
# pyright: reportUnknownMemberType=false

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs
from pipelib.kernels.attention.band import named
from pipelib.kernels.attention.decode_config import staging
from pipelib.kernels.attention.decode_threads import (
    AXES,
    DecodeThread,
    Part,
    Ring,
    Staged,
    Work,
    memory_thread,
)
from pipelib.kernels.dividing import Barriers, allocations
from pipelib.refs import Allocation, Dtype, Ref
from pipelib.tiles import tiled


def launch_decode(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    lengths: jax.Array,
    page_table: jax.Array | None,
    work: Work,
) -> tuple[jax.Array, jax.Array]:
    """Makes the results and the log-sum-exps of all parts by the kernel.

    Args:
      q: the rows, [batch, kv_heads, rows, head_dim], filled up to a multiple of 8 rows.
      k, v: the cache, [pages, keys of a page, kv_heads, head_dim].
      lengths: int32 [batch].
      page_table: int32 [batch, pages of a sequence]; None if sequence b is page b.
      work: the problem and how it is divided.

    Returns:
      [batch, splits, kv_heads, rows, head_dim] in float32, or in q's dtype for one part; and
      float32 [batch, splits, kv_heads, rows up to a multiple of those of a block].
    """
    config, (batch, heads, _, head_dim) = work.config, q.shape
    dtype = q.dtype if work.splits == 1 else jnp.float32
    out_type = jax.ShapeDtypeStruct((batch, work.splits, *q.shape[1:]), dtype)
    rows = work.blocks * config.block_q
    lse_type = jax.ShapeDtypeStruct((batch, work.splits, heads, rows), jnp.float32)
    tables = () if page_table is None else (page_table,)
    return plgpu.kernel(
        named("decode_attention", functools.partial(_block, work)),
        out_type=[out_type, lse_type],
        scratch_types=dict(
            scratch=_scratch(work, head_dim, q.dtype),
            k_ring=_ring(work, head_dim, q.dtype),
            v_ring=_ring(work, head_dim, q.dtype),
        ),
        grid=(batch, work.splits, heads * work.blocks),
        grid_names=AXES,
        num_threads=config.compute_threads + 1,
        thread_name="thread",
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
    )(q, k, v, lengths, *tables)


def combined(out: jax.Array, lse: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The result and the log-sum-exp of all parts, which axis 1 counts.

    Parts are added up one by one, so that XLA makes one kernel of it all. It makes several of sums
    along an axis.

    Args:
      out: [batch, splits, kv_heads, rows, head_dim].
      lse: [batch, splits, kv_heads, rows].
    """
    parts = range(lse.shape[1])
    maximum = functools.reduce(jnp.maximum, (lse[:, part] for part in parts))
    finite = jnp.where(maximum == -jnp.inf, 0.0, maximum)
    weights = [jnp.exp(lse[:, part] - finite) for part in parts]
    total = functools.reduce(jnp.add, weights)
    inverse = 1.0 / jnp.where(total == 0.0, 1.0, total)
    weighted = (out[:, part] * (weights[part] * inverse)[..., None] for part in parts)
    return functools.reduce(jnp.add, weighted), finite + jnp.log(total)


# SMEM.


def _scratch(work: Work, head_dim: int, dtype: Dtype) -> dict[str, Any]:
    """The fields of `Staged` that the kernel has."""
    memory = work.config.memory(head_dim, dtype=dtype)
    if work.splits > 1:
        memory["staged"] = staging(work.config)
    return allocations(memory)


def _ring(work: Work, head_dim: int, dtype: Dtype) -> dict[str, Allocation]:
    """The fields of a `Ring`."""
    config = work.config
    shape = config.slots, config.block_kv, head_dim
    return dict(
        smem=plgpu.SMEM(shape, dtype, transforms=tiled(dtype)),
        produced=Barriers(config.slots, work.copies).allocation(),
        consumed=Barriers(config.slots, config.compute_threads).allocation(),
    )


# A block.


def _block(
    work: Work,
    q: Ref,
    k: Ref,
    v: Ref,
    lengths: Ref,
    *refs: Ref,
    scratch: Staged,
    k_ring: Ring,
    v_ring: Ring,
) -> None:
    """What each thread of a block does; `refs` are the table, if any, the result, and its lse."""
    config, (*table, out, lse) = work.config, refs
    rings, part = (k_ring, v_ring), Part.here(work, lengths)
    registers = config.memory_registers
    threads = specs.Threads.of("thread", config.compute_threads, None, registers)
    index = lax.axis_index("thread")

    def compute() -> None:
        plgpu.set_max_registers(threads.compute_registers, action="increase")
        DecodeThread.of(work, part, (q, out, lse), scratch, index).run(rings)

    def load() -> None:
        plgpu.set_max_registers(threads.memory_registers, action="decrease")
        memory_thread(work, part, (k, v), rings, *table)

    lax.cond(index == threads.memory_thread, load, compute)
