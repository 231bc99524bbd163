"""The kernels of `attention`'s gradients: of dQ, of dK and dV together or alone, of all three.

The model. All make anew the probabilities, from the log-sum-exp of each query. With S = Q K^T and
delta, for each query, the sum of dO O less the log-sum-exp's own cotangent::

    P = exp2(scale S - lse)     dP = dO V^T     dS = P (dP - delta)    (log2 e is in scale and lse)
    dQ = scale dS K             dV = P^T dO     dK = scale dS^T Q

In the kernel of dQ a compute thread has `rows` queries, with their Q and dO in SMEM and the result
in registers, and goes through the keys. In that of dK and dV it has keys, with their K and V, and
goes through the queries of each head that its head of K serves, and makes everything transposed, so
that each factor of a product lies where `wgmma` reads it::

    dQ       S, dP queued | P, dS, once both are done | dQ += dS K[s]
    dK, dV   S^T | P^T | dV += P^T dO[s], dP^T queued | dS^T, once both are done | dK += dS^T Q[s]

With a head of 256, dK and dV would fill a thread's registers. Each has a kernel then, without the
other's product; in that of dK, whose factors are in SMEM both, S^T and dP^T are queued together.

What is in flight together begins with the product that has a factor in registers, if one has
(`attention_blocks` says why); so dP^T is not beside S^T where dV is made.

The two make S and dP twice: seven products (and three kernels make eight). The kernel of all three
makes five. It is that of dK and dV, and it adds each step's part of dQ, of all keys of the block,
to float32 sums in GMEM, which were zeros (a store that adds, in the L2 cache). The parts come in no
fixed order, so the last bits of dQ differ from run to run. What a thread multiplies for it is the
dS of all compute threads, of all their keys, and its own columns of K: each thread leaves its dS in
SMEM and arrives on the barrier `exchanged`. So that none waits long, dQ is a step late::

    S^T[s] queued | exchanged | dQ[s-1] queued | P^T, once S^T is done, beside dQ | store dQ[s-1]
    dV += P^T dO[s], dP^T queued | dS^T, once both are done; arrive | dK += dS^T Q[s]

A block's threads have no register to spare: ptxas spills what is left over. So dP's accumulators
begin as what is taken from dP, which is in no register beside it, and the numbers of a step's
queries, which a mask needs, are in SMEM. A thread makes a part of dQ's columns; of a head of 64, a
part of the step's queries.

dS has two slots. A thread writes that of step s, into the slot of s - 2, when the others have
arrived for s - 1, and so are done with what they multiplied before that: dQ[s-2]. The dS before the
first step are zeros; dQ of the last comes after the pipeline. The block's K is then free, when all
have arrived once more, to stage dK.

What is seen, and so how many steps there are, says `attention_band`, and `attention_order` which
block runs when. Queries that see nothing have an infinite lse here, so that P is 0. What is loaded
beyond the end of an operand is 0 and masked; what would be stored there is dropped.

Not covered: all three of a head of 256.
"""

import functools
import itertools
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
)
from pipelib.kernels.attention_config import (
    ALL,
    DK,
    DKV,
    DQ,
    DV,
    GradientConfig,
    Gradients,
)
from pipelib.kernels.attention_order import AXES, Order
from pipelib.kernels.matmul_blocks import tiled
from pipelib.warp_specialized import emit_pipeline_warp_specialized

_LOG2_E = math.log2(math.e)


class Arrays(NamedTuple):
    """What the kernels read: q, k, v and d_out as `attention` has them, numbers, segments.

    `numbers` are of each query the log-sum-exp, times log2 e, and -delta: [batch, heads, 2, seq].
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    d_out: jax.Array
    numbers: jax.Array
    segments: tuple[jax.Array, ...]


def run(arrays: tuple, lse: jax.Array, delta: jax.Array, problem: Problem) -> tuple:
    """dQ, dK and dV by the kernels of `problem.config`.

    Args:
      arrays: q, k, v, the cotangent of the result in their dtype, and segments as `attention`'s
        forward kernel takes them.
      lse, delta: of each query [batch, heads, seq], float32.
      problem: with a configuration.
    """
    q, k, v, d_out, segments = arrays
    lse = jnp.where(jnp.isneginf(lse), jnp.inf, lse * _LOG2_E)
    whole = Arrays(q, k, v, d_out, jnp.stack([lse, -delta], 2), segments)
    sizes = Sizes.of(q, k)
    launched = (
        _launch(made, config, whole, problem, sizes)
        for made, config in problem.config.gradients(q.shape[-1]).items()
    )
    return tuple(itertools.chain(*launched))


def _launch(
    made: Gradients, config: GradientConfig, arrays: Arrays, problem: Problem, sizes: Sizes
) -> tuple:
    """Runs a kernel on blocks of the rows of each head."""
    ends = [1, 1]
    ends[made.rows] = block = config.rows * config.compute_threads
    ends[made.columns] = config.block
    rows, columns = ((arrays.q, arrays.k)[axis] for axis in (made.rows, made.columns))
    arrays = arrays._replace(
        numbers=padded(arrays.numbers, ends[0]),
        segments=tuple(map(padded, arrays.segments, ends)),
    )
    sums = [jax.new_ref(_zeros_like(arrays.q))] if made == ALL else []
    # Of each column two operands, and its part of dQ if that is added up.
    read = 2 * rows.dtype.itemsize + sum(ref.dtype.itemsize for ref in sums)
    order = Order.of(
        sizes.batch, rows.shape[2], pl.cdiv(rows.shape[1], block), _sides(made, problem),
        columns.size * read // (sizes.batch * rows.shape[2]),
    )  # fmt: skip
    body = functools.partial(_block, made, config, problem, sizes, order)
    body.__name__ = f"attention_{made.name}"  # as a profiler shows it
    results = plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(rows.shape, rows.dtype)] * (len(made.results) - len(sums)),
        scratch_types=dict(scratch=_scratch(made, config, problem, sizes, rows.dtype)),
        grid=order.grid, grid_names=AXES,
        num_threads=config.compute_threads + 1, thread_name="thread",
        compiler_params=plgpu.CompilerParams(
            approx_math=True, reduction_scratch_bytes=0,
            # In the kernel of all three a `commit_smem` stands wherever lanes need each other.
            unsafe_no_auto_barriers=made == ALL,
        ),
    )(*arrays[:5], *arrays.segments, *sums)  # fmt: skip
    return *((ref[...] * problem.scale).astype(rows.dtype) for ref in sums), *results


@jax.custom_batching.custom_vmap
def _zeros_like(array: jax.Array) -> jax.Array:
    """Float32 zeros, with an array's axes of `jax.vmap`, which `jnp.zeros_like` would not have.

    Along axes of `jax.shard_map` they do not vary: Pallas takes no ref that does.
    """
    return jnp.zeros(array.shape, jnp.float32)


@_zeros_like.def_vmap
def _batched_zeros_like(axis_size, in_batched, array) -> tuple[jax.Array, bool]:
    del axis_size
    return _zeros_like(array), in_batched[0]


def _scratch(made: Gradients, config: GradientConfig, problem: Problem, sizes, dtype) -> dict:
    """The rows' operands; what else the kernel has; factors if interpreted."""
    threads, rows, block = config.compute_threads, config.rows, config.block
    in_place = problem.config.in_place
    shared = lambda *shape: plgpu.SMEM(shape, dtype, transforms=tiled(dtype))
    scratch = dict(
        operands=[shared(threads, rows, sizes.head_dim)] * made.operands,
        loaded=plgpu.Barrier(num_arrivals=made.operands + (made == DQ), num_barriers=threads),
    )
    if made == DQ:
        scratch.update(numbers=plgpu.SMEM((threads, 2, rows), jnp.float32))
    if made == ALL:
        part = threads, *config.d_q_part(sizes.head_dim)
        scratch.update(
            d_s=shared(2, threads, rows, block),
            d_q=plgpu.SMEM(part, jnp.float32, transforms=tiled(jnp.float32)),
            exchanged=plgpu.Barrier(num_arrivals=threads),
        )
        if in_place and problem.counts(sizes.queries, block):
            scratch.update(queries=plgpu.SMEM((threads, block), jnp.int32))
    if not in_place:
        scratch.update(factors=[shared(threads, rows, block)] * made.factors)
    return scratch


def _sides(made: Gradients, problem: Problem) -> tuple[int | None, int | None]:
    """How many columns a row sees before its own, and after it; None for all."""
    sides = problem.left, problem.right
    return sides[::-1] if made.rows else sides


def _block(made, config, problem, sizes, order, q, k, v, d_out, numbers, *refs, scratch) -> None:
    """What each thread of a block does."""
    count, axes = len(refs) - len(made.results), (made.rows, made.columns)
    place = order.place(*map(lax.axis_index, AXES))
    lengths = [(sizes.queries, sizes.keys)[axis] for axis in axes]
    row = place[2] * (config.rows * config.compute_threads)
    band = Band.of(*_sides(made, problem), *lengths, config.tiles, row)
    index = lax.axis_index("thread")
    if made == ALL:  # beyond the end K is 0, but dS could be infinite
        band = band._replace(ends=sizes.keys)
    if "queries" in scratch:
        band = band._replace(numbers=scratch["queries"].at[index])
    segments = tuple(refs[:count][axis].at[place[0]] for axis in axes if count)
    arrays = Arrays(*(ref.at[place[0]] for ref in (q, k, v, d_out, numbers)), segments)
    outs = tuple(ref.at[place[0]] for ref in refs[count:])
    thread = _THREADS[made](problem, sizes, config, band, place[1], row, index, outs, scratch)
    refs, in_specs, grid = thread.steps(arrays)
    emit_pipeline_warp_specialized(
        functools.partial(thread.step, segments), grid=grid, in_specs=in_specs,
        max_concurrent_steps=config.slots, memory_registers=config.memory_registers,
        wg_axis="thread", num_compute_wgs=config.compute_threads,
        # dQ's kernel releases V early. In that of all three `_give` commits what a step has read.
        manual_consumed_barriers=made == DQ, ordinary_reads=made not in (DQ, ALL),
        compute_context=functools.partial(thread.compute, arrays),
    )(*refs)  # fmt: skip


class Thread(NamedTuple):
    """A compute thread: its head, its block's first row, its index, the results, its scratch."""

    problem: Problem
    sizes: Sizes
    config: GradientConfig
    band: Band
    head: Any
    block_row: Any
    index: Any
    outs: tuple[Any, ...]
    scratch: dict[str, Any]

    @property
    def row(self) -> Any:
        """Its first row."""
        return self.block_row + self.index * self.config.rows

    def mine(self, name: str) -> Any:
        """Its part of some scratch, or of each in a list."""
        return jax.tree.map(lambda ref: ref.at[self.index], self.scratch[name])

    def load(self, *operands: Any, numbers: tuple = ()) -> None:
        """Loads its rows of the operands [seq, heads, head_dim], and its numbers."""
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

    def store(self, *results: jax.Array) -> None:
        """Stores the last results, through the SMEM of the operands, whose products are done."""
        staging = self.mine("operands")[: len(results)]
        for result, ref in zip(results, staging, strict=True):
            ref[...] = result.astype(ref.dtype)
        plgpu.commit_smem()
        for ref, out in zip(staging, self.outs[-len(results) :], strict=True):
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

    def d_scores(
        self, columns: tuple, masked: Callable, number: Callable, axis: int,
        multiplied: Callable[[], None] = lambda: None,
    ) -> Any:
        """dS of a step, where `wgmma` reads it, from both products of the rows' operands.

        Args:
          columns: what the rows' operands are multiplied by, of the step.
          masked: of the scores.
          number: the log-sum-exps (0), and what is taken from dP (1), less.
          axis: of the scores, along which these are.
          multiplied: what to do when both products are done.
        """

        def multiply(*accs):
            for acc, ours, others in zip(accs, self.mine("operands"), columns, strict=True):
                plgpu.wgmma(acc, ours, others.transpose((1, 0)))
            return tuple(acc[...] for acc in accs)

        scores, d_p = self.products(multiply, 2)
        multiplied()
        p = self.probabilities(masked(scores), number(0), axis)
        return self.factor(0, p * (d_p + spread(number(1), p.shape, axis)))

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

    def compute(self, arrays: Arrays, pipeline: Callable) -> None:
        """All that it does."""
        self.load(arrays.q, arrays.d_out, numbers=(arrays.numbers,))
        layout = plgpu.Layout.WGMMA.reduce(1)
        numbers = tuple(plgpu.load(self.mine("numbers").at[i], layout=layout) for i in (0, 1))
        d_q, _ = pipeline((self.zeros(), numbers))
        self.store(d_q * self.problem.scale)

    def step(self, segments, indices, k, v, k_out, v_out, carry: tuple) -> tuple:
        """The body of the pipeline."""
        d_q, numbers = carry
        masked = lambda scores: self.band.masked(scores, indices[0], self.row, segments)
        release = lambda: plgpu.barrier_arrive(v_out)
        d_s = self.d_scores((k, v), masked, numbers.__getitem__, 0, release)
        (d_q,) = self.add((d_q,), lambda acc: plgpu.wgmma(acc, d_s, k))
        plgpu.barrier_arrive(k_out)
        return d_q, numbers


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

    def compute(self, arrays: Arrays, pipeline: Callable) -> None:
        """All that it does."""
        self.load(arrays.k, arrays.v)
        d_k, d_v = pipeline((self.zeros(), self.zeros()))
        self.store(d_k * self.problem.scale, d_v)

    def step(self, segments, indices, q, d_out, numbers, carry: tuple) -> tuple:
        """The body of the pipeline."""
        _, v = self.mine("operands")
        number = functools.partial(self.number, numbers)
        p = self.seen(segments, indices, q, lambda scores: self.probabilities(scores, number(0), 1))
        p_factor = self.factor(0, p)

        def add(d_v, d_p):
            plgpu.wgmma(d_v, p_factor, d_out)
            plgpu.wgmma(d_p, v, d_out.transpose((1, 0)))

        d_k, d_v = carry
        d_v, d_p = self.add((d_v, spread(number(1), p.shape, 1)), add)
        d_s = self.given(indices, p * d_p)
        (d_k,) = self.add((d_k,), lambda acc: plgpu.wgmma(acc, d_s, q))
        return d_k, d_v

    def seen(self, segments: tuple, indices: tuple, q: Any, function: Callable) -> jax.Array:
        """The function of a step's scores, masked."""

        def multiply(scores):
            self.multiply_queries(scores, q)
            return scores[...]

        return function(self.masked(self.products(multiply, 1), segments, indices))

    def masked(self, scores: jax.Array, segments: tuple, indices: tuple) -> jax.Array:
        """The scores of a step, masked if they must be."""
        return self.band.masked(scores, indices[1], self.row, segments)

    def number(self, numbers: Any, index: int) -> jax.Array:
        """The log-sum-exps (0) of a step's queries, or what is taken from dP (1)."""
        return plgpu.load(numbers.at[index], layout=plgpu.Layout.WGMMA.reduce(0))

    def multiply_queries(self, scores: Any, q: Any) -> None:
        """Queues K Q^T of a step."""
        plgpu.wgmma(scores, self.mine("operands")[0], q.transpose((1, 0)))

    def given(self, indices: tuple, d_s: jax.Array) -> Any:
        """dS of a step, where `wgmma` reads it."""
        del indices
        return self.factor(1, d_s)


class _KeysForK(_Keys):
    """A compute thread of the kernel of dK."""

    def compute(self, arrays: Arrays, pipeline: Callable) -> None:
        """All that it does."""
        self.load(arrays.k, arrays.v)
        self.store(pipeline(self.zeros()) * self.problem.scale)

    def step(self, segments, indices, q, d_out, numbers, d_k: jax.Array) -> jax.Array:
        """The body of the pipeline."""
        masked = lambda scores: self.masked(scores, segments, indices)
        number = functools.partial(self.number, numbers)
        d_s = self.d_scores((q, d_out), masked, number, 1)
        return self.add((d_k,), lambda acc: plgpu.wgmma(acc, d_s, q))[0]


class _KeysForV(_Keys):
    """A compute thread of the kernel of dV."""

    def compute(self, arrays: Arrays, pipeline: Callable) -> None:
        """All that it does."""
        self.load(arrays.k)
        self.store(pipeline(self.zeros()))

    def step(self, segments, indices, q, d_out, numbers, d_v: jax.Array) -> jax.Array:
        """The body of the pipeline."""
        made = lambda scores: self.probabilities(scores, self.number(numbers, 0), 1)
        p = self.factor(0, self.seen(segments, indices, q, made))
        return self.add((d_v,), lambda acc: plgpu.wgmma(acc, p, d_out))[0]


class _All(_Keys):
    """A compute thread of the kernel of all three."""

    def compute(self, arrays: Arrays, pipeline: Callable) -> None:
        """All that it does."""
        self.load(arrays.k, arrays.v)
        if (numbers := self.band.numbers) is not None:
            layout = plgpu.Layout.WGMMA.reduce(0)
            numbers[...] = plgpu.broadcasted_iota(jnp.int32, numbers.shape, 0, layout=layout)
        zeros = jnp.zeros((self.config.rows, self.config.block), arrays.k.dtype)
        self._give(jnp.int32(-1), zeros)
        d_k, d_v = pipeline((self.zeros(), self.zeros()))
        # No int: where queries are ragged, JAX would refuse a last block that ends beyond them.
        last = self.sizes.group - 1, jnp.int32(self.band.steps - 1)

        def multiply(d_q):
            self._multiply_keys(d_q, self._number(last))
            return d_q[...]

        plgpu.barrier_wait(self.scratch["exchanged"])
        self._add_to_sums(pl.run_scoped(multiply, self._part), last)
        plgpu.barrier_arrive(self.scratch["exchanged"])
        plgpu.barrier_wait(self.scratch["exchanged"])  # others have multiplied by its K
        self.store(d_k * self.problem.scale, d_v)

    def seen(self, segments: tuple, indices: tuple, q: Any, function: Callable) -> jax.Array:
        """The function of a step's scores, masked, beside dQ of the step before."""
        before, where = self._number(indices) - 1, self._before(indices)

        def multiply(scores, d_q):
            self.multiply_queries(scores, q)
            plgpu.barrier_wait(self.scratch["exchanged"])
            self._multiply_keys(d_q, before)
            loaded = plgpu.wgmma_accumulator_load(scores, wait_n=self.config.compute_threads)
            made = lambda mask: function(mask(loaded))
            choose = lambda: self.band.choose(indices[1], self.row, segments, made)
            return self._beside(loaded, choose), d_q[...]

        scores = plgpu.ACC((self.config.rows, self.config.block), jnp.float32)
        p, d_q = pl.run_scoped(multiply, scores, self._part)
        self._add_to_sums(d_q, where)
        return p

    def _beside(self, scores: jax.Array, function: Callable) -> jax.Array:
        """What the function makes of a step's scores, kept beside the product that is queued.

        ptxas would wait for the product first, unless a branch keeps the two apart. Beyond the end
        of the keys K is 0 and so are the scores, as P is to be. A step of more queries leaves no
        registers for P beside the whole of dQ: there ptxas had better mix them.
        """
        if self.config.block > 64:
            return function()
        return lax.cond(self.row < self.sizes.keys, function, lambda: scores)

    def given(self, indices: tuple, d_s: jax.Array) -> Any:
        """dS of a step, where `wgmma` reads it; other threads have it too."""
        d_s = d_s.astype(self.scratch["d_s"].dtype)
        staging = self._give(self._number(indices), d_s)
        return d_s if self.problem.config.in_place else staging

    def _number(self, indices: tuple) -> Any:
        """That of a step, over all heads of queries."""
        return indices[0] * self.band.steps + indices[1]

    def _give(self, number: Any, d_s: jax.Array) -> Any:
        """Lets all threads have the dS of a step, and says where it is."""
        staging = self.scratch["d_s"].at[number & 1, self.index]
        staging[...] = d_s
        plgpu.commit_smem()
        plgpu.barrier_arrive(self.scratch["exchanged"])
        return staging

    # Its part of dQ.

    @property
    def _part(self) -> Any:
        return plgpu.ACC(self.config.d_q_part(self.sizes.head_dim), jnp.float32)

    @property
    def _share(self) -> tuple[Any, Any]:
        """Its queries of a step, and its columns."""
        mine = lambda size: pl.ds(pl.multiple_of(self.index * size, size), size)
        whole = self.config.block, self.sizes.head_dim
        return tuple(
            pl.ds(0, size) if size == every else mine(size)
            for size, every in zip(self._part.shape, whole)
        )

    def _multiply_keys(self, d_q: Any, number: Any) -> None:
        """Queues dS K of a step, for the keys of each thread."""
        queries, columns = self._share
        for thread in range(self.config.compute_threads):
            d_s = self.scratch["d_s"].at[number & 1, thread, :, queries]
            k = self.scratch["operands"][0].at[thread, :, columns]
            plgpu.wgmma(d_q, d_s.transpose((1, 0)), k)

    def _before(self, indices: tuple) -> tuple:
        """The step before; before the first, that one, to which zeros are added."""
        (group, step), number = indices, self._number(indices)
        before = jnp.where(step > 0, step - 1, jnp.where(number > 0, self.band.steps - 1, 0))
        return jnp.where((step > 0) | (number == 0), group, group - 1), before

    def _add_to_sums(self, d_q: jax.Array, indices: tuple) -> None:
        """Adds its part of dQ of a step to the sums in GMEM, some time."""
        (group, step), (queries, columns) = indices, self._share
        row = (self.band.first + step) * self.config.block + queries.start
        head = self.head * self.sizes.group + group
        staging = self.mine("d_q")
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staging[...] = d_q
        plgpu.commit_smem()
        sums = self.outs[0].at[pl.ds(row, queries.size), head, columns]
        plgpu.copy_smem_to_gmem(staging, sums, reduction_op="add")


_THREADS = {DQ: _Queries, DKV: _Keys, DK: _KeysForK, DV: _KeysForV, ALL: _All}
