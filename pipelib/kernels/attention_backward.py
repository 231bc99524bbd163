"""The kernels of `attention`'s gradients: one of dQ, one of dK and dV.

The model. Both make anew the probabilities, from the log-sum-exp of each query. With S = Q K^T and
delta, for each query, the sum of dO O less the log-sum-exp's own cotangent::

    P = exp2(scale S - lse)     dP = dO V^T     dS = P (dP - delta)    (log2 e is in scale and lse)
    dQ = scale dS K             dV = P^T dO     dK = scale dS^T Q

In the kernel of dQ a compute thread has `rows` queries, with their Q and dO in SMEM and the result
in registers, and goes through the keys. In that of dK and dV it has keys, with their K and V, and
goes through the queries of each head that its head of K serves, and makes everything transposed, so
that each factor of a product lies where `wgmma` reads it::

    dQ       S, dP queued | P, dS, once both are done | dQ += dS K[s]
    dK, dV   S^T | P^T | dV += P^T dO[s], dP^T queued | dS^T, once both are done | dK += dS^T Q[s]

What is in flight together begins with the product that has a factor in registers, if one has
(`attention_blocks` says why); so dP^T is not beside S^T.

What is seen, and so how many steps there are, says `attention_band`. Queries that see nothing have
an infinite lse here, so that P is 0. What is loaded beyond the end of an operand is 0 and masked;
what would be stored there is dropped.

Not covered: one kernel for all three, which would make S and dP once, not twice, but add up dQ in
GMEM in no fixed order. A head of 256: dK and dV alone would fill a thread's registers.
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

from pipelib.kernels.attention_band import (
    Band,
    Problem,
    Sizes,
    accumulate,
    padded,
    spread,
    thread_index,
)
from pipelib.kernels.attention_config import GradientConfig
from pipelib.kernels.matmul_blocks import tiled
from pipelib.warp_specialized import emit_pipeline_warp_specialized

_LOG2_E = math.log2(math.e)


class Arrays(NamedTuple):
    """What the kernels read: q, k, v and d_out as `attention` has them, numbers, segments.

    `numbers` are of each query the log-sum-exp, times log2 e, and delta: [batch, heads, 2, seq].
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    d_out: jax.Array
    numbers: jax.Array
    segments: tuple[jax.Array, ...]


def run(arrays: tuple, lse: jax.Array, delta: jax.Array, problem: Problem) -> tuple:
    """dQ, dK and dV by the kernels of `problem.config`, which has them for this head.

    Args:
      arrays: q, k, v, the cotangent of the result in their dtype, and segments as `attention`'s
        forward kernel takes them.
      lse, delta: of each query [batch, heads, seq], float32.
      problem: with a configuration.
    """
    q, k, v, d_out, segments = arrays
    lse = jnp.where(jnp.isneginf(lse), jnp.inf, lse * _LOG2_E)
    whole = Arrays(q, k, v, d_out, jnp.stack([lse, delta], 2), segments)
    sizes, (dq, dkv) = Sizes.of(q, k), problem.config.gradients(q.shape[-1])
    (d_q,) = _launch(DQ, dq, whole, problem, sizes)
    d_k, d_v = _launch(DKV, dkv, whole, problem, sizes)
    return d_q, d_k, d_v


class Kernel(NamedTuple):
    """What distinguishes the two kernels.

    Attributes:
      name: as a profiler shows it.
      results: how many there are.
      axes: along which axis of the scores its rows are, and its columns: 0 queries, 1 keys.
      thread: its compute thread.
    """

    name: str
    results: int
    axes: tuple[int, int]
    thread: Any


def _launch(
    kernel: Kernel, config: GradientConfig, arrays: Arrays, problem: Problem, sizes: Sizes
) -> tuple:
    """Runs a kernel on a grid of (batch, heads of its rows, blocks of rows)."""
    ends = [1, 1]
    ends[kernel.axes[0]] = block = config.rows * config.compute_threads
    ends[kernel.axes[1]] = config.block
    rows = (arrays.q, arrays.k)[kernel.axes[0]]
    arrays = arrays._replace(
        numbers=padded(arrays.numbers, ends[0]),
        segments=tuple(map(padded, arrays.segments, ends)),
    )
    body = functools.partial(_block, kernel, config, problem, sizes)
    body.__name__ = kernel.name
    return plgpu.kernel(
        body,
        out_type=(jax.ShapeDtypeStruct(rows.shape, rows.dtype),) * kernel.results,
        scratch_types=dict(
            scratch=_scratch(kernel, config, problem.config.in_place, sizes, rows.dtype)
        ),
        grid=(sizes.batch, rows.shape[2], pl.cdiv(rows.shape[1], block)),
        grid_names=("batch", "head", "block"),
        num_threads=config.compute_threads + 1, thread_name="thread",
        compiler_params=plgpu.CompilerParams(approx_math=True),
    )(*arrays[:5], *arrays.segments)  # fmt: skip


def _scratch(kernel: Kernel, config: GradientConfig, in_place: bool, sizes, dtype) -> dict:
    """The rows' two operands, numbers if the rows are queries, factors if interpreted."""
    threads, rows = config.compute_threads, config.rows
    shared = lambda width: plgpu.SMEM((threads, rows, width), dtype, transforms=tiled(dtype))
    scratch = dict(
        operands=[shared(sizes.head_dim)] * 2,
        loaded=plgpu.Barrier(num_arrivals=4 - kernel.results, num_barriers=threads),
    )
    if kernel is DQ:
        scratch.update(numbers=plgpu.SMEM((threads, 2, rows), jnp.float32))
    if not in_place:
        scratch.update(factors=[shared(config.block)] * kernel.results)
    return scratch


def _block(kernel, config, problem, sizes, q, k, v, d_out, numbers, *refs, scratch) -> None:
    """What each thread of a block does."""
    count = len(refs) - kernel.results
    place = tuple(map(lax.axis_index, ("batch", "head", "block")))
    sides, lengths = (problem.left, problem.right), (sizes.queries, sizes.keys)
    if kernel.axes[0]:
        sides, lengths = sides[::-1], lengths[::-1]
    else:
        # Causal blocks of queries take longer the later they are: the longest first.
        blocks = pl.cdiv(sizes.queries, config.rows * config.compute_threads)
        place = (*place[:2], blocks - 1 - place[2])
    row = place[2] * (config.rows * config.compute_threads)
    band = Band.of(*sides, *lengths, config.tiles, row)
    segments = tuple(refs[:count][axis].at[place[0]] for axis in kernel.axes if count)
    arrays = Arrays(*(ref.at[place[0]] for ref in (q, k, v, d_out, numbers)), segments)
    thread = kernel.thread(problem, sizes, config, band, place[1], row, scratch)
    outs = tuple(ref.at[place[0]] for ref in refs[count:])
    refs, in_specs, grid = thread.steps(arrays)
    emit_pipeline_warp_specialized(
        functools.partial(thread.step, segments), grid=grid, in_specs=in_specs,
        max_concurrent_steps=config.slots, memory_registers=config.memory_registers,
        wg_axis="thread", num_compute_wgs=config.compute_threads, manual_consumed_barriers=True,
        compute_context=lambda pipeline: thread.compute(arrays, outs, pipeline),
    )(*refs)  # fmt: skip


class Thread(NamedTuple):
    """A compute thread of either kernel: its head, its block's first row, its scratch."""

    problem: Problem
    sizes: Sizes
    config: GradientConfig
    band: Band
    head: Any
    block_row: Any
    scratch: dict[str, Any]

    @property
    def row(self) -> Any:
        """Its first row."""
        return self.block_row + thread_index() * self.config.rows

    def mine(self, name: str) -> Any:
        """Its part of some scratch, or of each in a list."""
        return jax.tree.map(lambda ref: ref.at[thread_index()], self.scratch[name])

    def load(self, *operands: Any, numbers: tuple = ()) -> None:
        """Loads its rows of the two operands [seq, heads, head_dim], and its numbers."""
        here, loaded = self.here, self.mine("loaded")
        for operand, ref in zip(operands, self.mine("operands"), strict=True):
            plgpu.copy_gmem_to_smem(operand.at[here], ref, loaded)
        for ref in numbers:
            some = ref.at[self.head, :, pl.ds(self.row, self.config.rows)]
            plgpu.copy_gmem_to_smem(some, self.mine("numbers"), loaded)
        plgpu.barrier_wait(loaded)

    @property
    def here(self) -> tuple[Any, Any]:
        """Its rows, of an array [seq, heads, head_dim]."""
        return pl.ds(self.row, self.config.rows), self.head

    def zeros(self) -> jax.Array:
        """A result to begin with."""
        return jnp.zeros((self.config.rows, self.sizes.head_dim), jnp.float32)

    def store(self, results: tuple, outs: tuple) -> None:
        """Stores results, through the SMEM of the operands, whose products are done."""
        staging = self.mine("operands")[: len(results)]
        for result, ref in zip(results, staging, strict=True):
            ref[...] = result.astype(ref.dtype)
        plgpu.commit_smem()
        for ref, out in zip(staging, outs, strict=True):
            plgpu.copy_smem_to_gmem(ref, out.at[self.here])
        plgpu.wait_smem_to_gmem(0)

    def blocks(self, index_map: Callable, *refs: Any) -> list[Any]:
        """The specs of what a step loads of arrays [seq, heads, head_dim]."""
        shape = self.config.block, None, self.sizes.head_dim
        return [
            plgpu.BlockSpec(shape, index_map, transforms=tiled(ref.dtype)) for ref in refs
        ]  # fmt: skip

    def products(self, function: Callable, count: int) -> Any:
        """The function, called with so many accumulators of scores, which are zeros."""
        acc = plgpu.ACC((self.config.rows, self.config.block), jnp.float32)
        return pl.run_scoped(function, *[acc] * count)

    def probabilities(self, scores: jax.Array, lse: jax.Array, axis: int) -> jax.Array:
        """Of scores and of the log-sum-exps along an axis of theirs."""
        scale = self.problem.scale * _LOG2_E
        return jnp.exp2(scores * scale - spread(lse, scores.shape, axis))

    def factor(self, index: int, values: jax.Array) -> Any:
        """Values in 16 bits, where `wgmma` reads them."""
        values = values.astype(self.scratch["operands"][0].dtype)
        if self.problem.config.in_place:
            return values
        staging = self.mine("factors")[index]
        staging[...] = values
        plgpu.commit_smem()
        return staging

    def add(self, results: tuple, function: Callable) -> tuple:
        """The results plus what the function adds to their accumulators."""
        in_place = self.problem.config.in_place
        return accumulate(in_place, results, (), lambda *accs: function(*accs) or ())[0]


class _Queries(Thread):
    """A compute thread of the kernel of dQ."""

    def steps(self, arrays: Arrays) -> tuple:
        """What the steps load, with its specs, and their grid."""
        kv_head = lax.div(self.head, jnp.int32(self.sizes.group))
        index_map = lambda s: (self.band.first + s, kv_head, 0)
        refs = arrays.k, arrays.v
        return refs, self.blocks(index_map, *refs), (self.band.steps,)

    def compute(self, arrays: Arrays, outs: tuple, pipeline: Callable) -> None:
        """All that it does."""
        self.load(arrays.q, arrays.d_out, numbers=(arrays.numbers,))
        layout = plgpu.Layout.WGMMA.reduce(1)
        numbers = tuple(plgpu.load(self.mine("numbers").at[i], layout=layout) for i in (0, 1))
        d_q, _ = pipeline((self.zeros(), numbers))
        self.store((d_q * self.problem.scale,), outs)

    def step(self, segments, indices, k, v, k_out, v_out, carry: tuple) -> tuple:
        """The body of the pipeline."""
        q, d_out = self.mine("operands")
        d_q, (lse, delta) = carry

        def multiply(scores, d_p):
            plgpu.wgmma(scores, q, k.transpose((1, 0)))
            plgpu.wgmma(d_p, d_out, v.transpose((1, 0)))
            return scores[...], d_p[...]

        scores, d_p = self.products(multiply, 2)
        plgpu.barrier_arrive(v_out)
        scores = self.band.masked(scores, indices[0], self.row, segments)
        p = self.probabilities(scores, lse, 0)
        d_s = self.factor(0, p * (d_p - spread(delta, p.shape, 0)))
        (d_q,) = self.add((d_q,), lambda acc: plgpu.wgmma(acc, d_s, k))
        plgpu.barrier_arrive(k_out)
        return d_q, (lse, delta)


class _Keys(Thread):
    """A compute thread of the kernel of dK and dV."""

    def steps(self, arrays: Arrays) -> tuple:
        """What the steps load, with its specs, and their grid: a head of queries, a block."""
        head = lambda g: self.head * self.sizes.group + g
        index_map = lambda g, s: (self.band.first + s, head(g), 0)
        refs = arrays.q, arrays.d_out
        numbers = plgpu.BlockSpec(
            (None, 2, self.config.block), lambda g, s: (head(g), 0, self.band.first + s)
        )
        specs = [*self.blocks(index_map, *refs), numbers]
        return (*refs, arrays.numbers), specs, (self.sizes.group, self.band.steps)

    def compute(self, arrays: Arrays, outs: tuple, pipeline: Callable) -> None:
        """All that it does."""
        self.load(arrays.k, arrays.v)
        d_k, d_v = pipeline((self.zeros(), self.zeros()))
        self.store((d_k * self.problem.scale, d_v), outs)

    def step(self, segments, indices, q, d_out, numbers, *barriers_and_carry) -> tuple:
        """The body of the pipeline."""
        *barriers, carry = barriers_and_carry
        k, v = self.mine("operands")
        number = lambda i: plgpu.load(numbers.at[i], layout=plgpu.Layout.WGMMA.reduce(0))

        def multiply(scores):
            plgpu.wgmma(scores, k, q.transpose((1, 0)))
            return scores[...]

        scores = self.band.masked(self.products(multiply, 1), indices[1], self.row, segments)
        p = self.probabilities(scores, number(0), 1)
        p_factor = self.factor(0, p)

        def add(d_k, d_v):
            def multiply(d_p):
                plgpu.wgmma(d_v, p_factor, d_out)
                plgpu.wgmma(d_p, v, d_out.transpose((1, 0)))
                return d_p[...]

            d_s = p * (self.products(multiply, 1) - spread(number(1), p.shape, 1))
            plgpu.wgmma(d_k, self.factor(1, d_s), q)

        carry = self.add(carry, add)
        plgpu.commit_smem()  # the numbers were read by ordinary loads
        for barrier in barriers:
            plgpu.barrier_arrive(barrier)
        return carry


DQ = Kernel("attention_dq", 1, (0, 1), _Queries)
DKV = Kernel("attention_dkv", 2, (1, 0), _Keys)
