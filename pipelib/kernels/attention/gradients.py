"""The compute threads of the kernels of `attention`'s gradients: a class for each kernel.

The model is in `backward`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels.attention.band import Band, Options, Sizes, accumulate, spread
from pipelib.kernels.attention.config import ALL, DK, DKV, DQ, DV, GradientConfig
from pipelib.kernels.hopper import tiled

#: The kernels work with powers of 2, so logarithms and scales are multiplied by it.
LOG2_E = math.log2(math.e)


class Arrays(NamedTuple):
    """The arrays that the kernels read.

    q, k, v and d_out are as `attention` has them. `numbers` are two for each query, the log-sum-exp
    times log2 e, and -delta: [batch, heads, 2, seq].
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    d_out: jax.Array
    numbers: jax.Array
    segments: tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientThread:
    """What the compute threads of all these kernels have in common.

    Attributes:
      options, sizes, config: the problem, and how the kernel divides it.
      band: the steps of its block.
      head: the head of its rows.
      block_row: the first row of its block.
      index: which compute thread of the block it is.
      outs: the results, in GMEM.
      scratch: SMEM and barriers of the block.
    """

    options: Options
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
        """Its part of some scratch; if that is a list, of each entry."""
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
        """A result before the first step."""
        return jnp.zeros((self.config.rows, self.sizes.head_dim), jnp.float32)

    def store(self, *results: jax.Array) -> None:
        """Stores the last results, staged in the SMEM of the operands, which no product reads."""
        staging = self.mine("operands")[: len(results)]
        for result, ref in zip(results, staging, strict=True):
            ref[...] = result.astype(ref.dtype)
        plgpu.commit_smem()
        for ref, out in zip(staging, self.outs[-len(results) :], strict=True):
            plgpu.copy_smem_to_gmem(ref, out.at[self.here])
        plgpu.wait_smem_to_gmem(0)

    def blocks(self, index_map: Callable, *refs: Any) -> list[Any]:
        """The specs of the blocks that a step loads from arrays [seq, heads, head_dim]."""
        shape = self.config.block, None, self.sizes.head_dim
        return [
            plgpu.BlockSpec(shape, index_map, transforms=tiled(ref.dtype)) for ref in refs
        ]  # fmt: skip

    def products(self, function: Callable, count: int) -> Any:
        """Calls the function with this many accumulators of scores, which start at zero."""
        acc = plgpu.ACC((self.config.rows, self.config.block), jnp.float32)
        return pl.run_scoped(function, *[acc] * count)

    def probabilities(self, scores: jax.Array, lse: jax.Array, axis: int) -> jax.Array:
        """The probabilities of scores, with the log-sum-exps along one of their axes."""
        scale = self.options.scale * LOG2_E
        return jnp.exp2(scores * scale - spread(lse, scores.shape, axis))

    def factor(self, index: int, values: jax.Array) -> Any:
        """Values in 16 bits, where `wgmma` reads them."""
        values = values.astype(self.scratch["operands"][0].dtype)
        if self.options.config.in_place:
            return values
        staging = self.mine("factors")[index]
        staging[...] = values
        plgpu.commit_smem()
        return staging

    def d_scores(
        self,
        columns: tuple,
        masked: Callable,
        number: Callable,
        axis: int,
        multiplied: Callable[[], None] = lambda: None,
    ) -> Any:
        """dS of a step, where `wgmma` reads it, from both products of the rows' operands.

        Args:
          columns: the step's operands, which the rows' operands are multiplied by.
          masked: masks the scores.
          number: gives the log-sum-exps (0) and -delta (1) of the queries.
          axis: the axis of the scores that is the queries'.
          multiplied: called when both products are done.
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
        """The results after the function has added to their accumulators."""
        in_place = self.options.config.in_place
        return accumulate(in_place, results, (), lambda *accs: function(*accs) or ())[0]


class GradientOfQ(GradientThread):
    """A compute thread of the kernel of dQ."""

    def steps(self, arrays: Arrays) -> tuple:
        """The operands that steps load, their specs, and the grid of the steps."""
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
        self.store(d_q * self.options.scale)

    def step(
        self,
        segments: tuple[Any, ...],
        indices: tuple[Any, ...],
        k: Any,
        v: Any,
        k_out: Any,
        v_out: Any,
        carry: tuple[Any, Any],
    ) -> tuple[Any, Any]:
        """The body of the pipeline."""
        d_q, numbers = carry
        masked = lambda scores: self.band.masked(scores, indices[0], self.row, segments)
        release = lambda: plgpu.barrier_arrive(v_out)
        d_s = self.d_scores((k, v), masked, numbers.__getitem__, 0, release)
        (d_q,) = self.add((d_q,), lambda acc: plgpu.wgmma(acc, d_s, k))
        plgpu.barrier_arrive(k_out)
        return d_q, numbers


class GradientOfKV(GradientThread):
    """A compute thread of the kernel of dK and dV."""

    def steps(self, arrays: Arrays) -> tuple:
        """The operands that steps load, their specs, and the grid: heads of queries, blocks."""
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
        self.store(d_k * self.options.scale, d_v)

    def step(
        self,
        segments: tuple[Any, ...],
        indices: tuple[Any, ...],
        q: Any,
        d_out: Any,
        numbers: Any,
        carry: tuple[Any, Any],
    ) -> tuple[Any, Any]:
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

    def seen(
        self, segments: tuple[Any, ...], indices: tuple[Any, ...], q: Any, function: Callable
    ) -> jax.Array:
        """The function of a step's masked scores."""

        def multiply(scores):
            self.multiply_queries(scores, q)
            return scores[...]

        return function(self.masked(self.products(multiply, 1), segments, indices))

    def masked(
        self, scores: jax.Array, segments: tuple[Any, ...], indices: tuple[Any, ...]
    ) -> jax.Array:
        """The scores of a step, masked if they must be."""
        return self.band.masked(scores, indices[1], self.row, segments)

    def number(self, numbers: Any, index: int) -> jax.Array:
        """The log-sum-exps (0) of a step's queries, or -delta (1)."""
        return plgpu.load(numbers.at[index], layout=plgpu.Layout.WGMMA.reduce(0))

    def multiply_queries(self, scores: Any, q: Any) -> None:
        """Queues K Q^T of a step."""
        plgpu.wgmma(scores, self.mine("operands")[0], q.transpose((1, 0)))

    def given(self, indices: tuple[Any, ...], d_s: jax.Array) -> Any:
        """dS of a step, where `wgmma` reads it."""
        del indices
        return self.factor(1, d_s)


class GradientOfK(GradientOfKV):
    """A compute thread of the kernel of dK."""

    def compute(self, arrays: Arrays, pipeline: Callable) -> None:
        """All that it does."""
        self.load(arrays.k, arrays.v)
        self.store(pipeline(self.zeros()) * self.options.scale)

    def step(
        self,
        segments: tuple[Any, ...],
        indices: tuple[Any, ...],
        q: Any,
        d_out: Any,
        numbers: Any,
        d_k: jax.Array,
    ) -> jax.Array:
        """The body of the pipeline."""
        masked = lambda scores: self.masked(scores, segments, indices)
        number = functools.partial(self.number, numbers)
        d_s = self.d_scores((q, d_out), masked, number, 1)
        return self.add((d_k,), lambda acc: plgpu.wgmma(acc, d_s, q))[0]


class GradientOfV(GradientOfKV):
    """A compute thread of the kernel of dV."""

    def compute(self, arrays: Arrays, pipeline: Callable) -> None:
        """All that it does."""
        self.load(arrays.k)
        self.store(pipeline(self.zeros()))

    def step(
        self,
        segments: tuple[Any, ...],
        indices: tuple[Any, ...],
        q: Any,
        d_out: Any,
        numbers: Any,
        d_v: jax.Array,
    ) -> jax.Array:
        """The body of the pipeline."""
        made = lambda scores: self.probabilities(scores, self.number(numbers, 0), 1)
        p = self.factor(0, self.seen(segments, indices, q, made))
        return self.add((d_v,), lambda acc: plgpu.wgmma(acc, p, d_out))[0]


class GradientOfAll(GradientOfKV):
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
        self.store(d_k * self.options.scale, d_v)

    def seen(
        self, segments: tuple[Any, ...], indices: tuple[Any, ...], q: Any, function: Callable
    ) -> jax.Array:
        """The function of a step's masked scores, beside dQ of the previous step."""
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
        """Calls the function, so that its arithmetic runs beside the product that is queued.

        Without a branch that separates them, ptxas would wait for the product first. The other side
        of the branch is for rows past the end of the keys: K is 0 there, and so are the scores,
        which is what P must be. Longer steps leave no registers for P beside all of dQ, so there
        ptxas may mix the two.
        """
        if self.config.block > 64:
            return function()
        return lax.cond(self.row < self.sizes.keys, function, lambda: scores)

    def given(self, indices: tuple[Any, ...], d_s: jax.Array) -> Any:
        """dS of a step, where `wgmma` reads it; the other threads get it too."""
        d_s = d_s.astype(self.scratch["d_s"].dtype)
        staging = self._give(self._number(indices), d_s)
        return d_s if self.options.config.in_place else staging

    def _number(self, indices: tuple[Any, ...]) -> Any:
        """The number of a step, over all heads of queries."""
        return indices[0] * self.band.steps + indices[1]

    def _give(self, number: Any, d_s: jax.Array) -> Any:
        """Gives all threads the dS of a step; returns its slot."""
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
        """The queries of a step, and the columns, whose dQ it makes."""
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

    def _before(self, indices: tuple[Any, ...]) -> tuple:
        """The indices of the previous step; for the first step, its own, where zeros are added."""
        (group, step), number = indices, self._number(indices)
        before = jnp.where(step > 0, step - 1, jnp.where(number > 0, self.band.steps - 1, 0))
        return jnp.where((step > 0) | (number == 0), group, group - 1), before

    def _add_to_sums(self, d_q: jax.Array, indices: tuple[Any, ...]) -> None:
        """Starts to add its part of a step's dQ to the sums in GMEM."""
        (group, step), (queries, columns) = indices, self._share
        row = (self.band.first + step) * self.config.block + queries.start
        head = self.head * self.sizes.group + group
        staging = self.mine("d_q")
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        staging[...] = d_q
        plgpu.commit_smem()
        sums = self.outs[0].at[pl.ds(row, queries.size), head, columns]
        plgpu.copy_smem_to_gmem(staging, sums, reduction_op="add")


THREADS = {DQ: GradientOfQ, DKV: GradientOfKV, DK: GradientOfK, DV: GradientOfV, ALL: GradientOfAll}
