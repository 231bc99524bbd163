"""The compute threads of the kernels of `attention`'s gradients: a class for each kernel.

The model is in `backward`. The classes::

    GradientThread            its rows' operands in SMEM, dS, the store of results
      GradientOfQ             rows are queries, a step's columns are keys
      GradientOverQueries     rows are keys, a step's columns are queries of one head
        GradientOfK, GradientOfV
        GradientOfKV
          GradientOfAll       and dQ, one step late

`steps` says what the pipeline loads. `compute` is all that a thread does: it loads its rows, calls
the pipeline, and stores the results. `step` is the body of the pipeline. Every thread has all its
results in registers, in float32, and gives them from step to step as the pipeline's carry.
"""

# What it asks of JAX has no types.
# pyright: basic, reportPrivateImportUsage=false

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import tiles
from pipelib.kernels.attention import band as bands
from pipelib.kernels.attention.band import Band, Mask, Options, Sizes, spread
from pipelib.kernels.attention.config import (
    ALL,
    DK,
    DKV,
    DQ,
    DV,
    AttentionConfig,
    GradientConfig,
    Gradients,
)
from pipelib.kernels.attention.pieces import InPieces, piece_of
from pipelib.kernels.dividing import Scratch
from pipelib.refs import Accumulator, Dtype, Int, Ref, Tree
from pipelib.ring import Indices
from pipelib.specs import ByRows
from pipelib.warp_specialized import AllSteps


class Arrays[A: (jax.Array, Ref)](NamedTuple):
    """The arrays that the kernels read: whole, or, within a kernel, those of one batch in GMEM.

    Attributes:
      q, k, v: as `attention` takes them, [batch, seq, heads, head_dim].
      d_out: the cotangent of the result, of q's shape and dtype.
      numbers: two for each query, the log-sum-exp times log2 e, and -delta: float32
        [batch, heads, 2, q_seq].
      segments: none, or int32 [batch, seq] of the queries and of the keys, and for a launch the
        spans of its blocks; within a kernel, those of the rows and of the columns.
    """

    q: A
    k: A
    v: A
    d_out: A
    numbers: A
    segments: tuple[A, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientThread(InPieces):
    """What the compute threads of all these kernels have in common.

    Attributes:
      options, sizes, config: the problem, and how the kernel divides it.
      band: the steps of its block.
      head: the head of its rows: of the queries for dQ, else of the keys; if `parts` blocks share a
        head of the keys, head x parts + the number of the part. `sizes` has the part's `group`.
      block_row: the first row of its block.
      index: the number of the thread in its block, an int32 scalar.
      outs: the results [seq, heads, head_dim] of its batch, in GMEM.
      scratch: SMEM and barriers of the block, by the names of `GradientConfig.memory`; "operands"
        are both refs if copies see rows.
      parts: how many blocks share a head of the keys, each with as many heads of queries.
    """

    options: Options[AttentionConfig]
    sizes: Sizes
    config: GradientConfig
    band: Band
    head: Int
    block_row: Int
    index: jax.Array
    outs: tuple[Ref, ...]
    scratch: Scratch
    parts: int = 1

    @property
    def dtype(self) -> Dtype:
        """That of the operands."""
        return self.outs[-1].dtype

    def steps(self, arrays: Arrays[Ref]) -> "Loads":
        """What the pipeline loads."""
        raise NotImplementedError

    def compute(self, arrays: Arrays[Ref], pipeline: AllSteps) -> None:
        """All that the thread does, as the pipeline's `compute_context`."""
        raise NotImplementedError

    @property
    def row(self) -> Int:
        """The thread's first row."""
        return self.block_row + self.index * self.config.rows

    def mine(self, name: str) -> Ref:
        """This thread's part of the scratch memory of this name."""
        return self.scratch[name].at[self.index]

    def my_parts(self, name: str) -> list[Ref]:
        """This thread's part of each array of the scratch memory of this name."""
        return [ref.at[self.index] for ref in self.scratch[name]]

    def operands(self, as_copied: bool = False) -> list[Ref]:
        """The operands of all threads' rows, for products, or as copies see them."""
        every = (tiles.both(ref, bool(self.sizes.by_rows)) for ref in self.scratch["operands"])
        return [each.rows if as_copied else each.tiles for each in every]

    def my_operands(self, as_copied: bool = False) -> list[Ref]:
        """The operands of its rows."""
        return [ref.at[self.index] for ref in self.operands(as_copied)]

    def load(self, *operands: Ref, numbers: tuple[Ref, ...] = ()) -> None:
        """Loads its rows of the operands [seq, heads, head_dim], and its numbers."""
        (rows, head), loaded = self.here, self.mine("loaded")
        head = head if self.parts == 1 else lax.div(head, jnp.int32(self.parts))
        for operand, ref in zip(operands, self.my_operands(as_copied=True), strict=True):
            for piece in self.pieces(self.sizes.head_dim):
                there = self.columns(operand.at[rows, head], piece)
                plgpu.copy_gmem_to_smem(there, piece_of(ref, piece), loaded)
        for ref in numbers:
            some = ref.at[self.head, :, pl.ds(self.row, self.config.rows)]
            plgpu.copy_gmem_to_smem(some, self.mine("numbers"), loaded)
        plgpu.barrier_wait(loaded)

    @property
    def here(self) -> tuple[pl.Slice, Int]:
        """The thread's rows, of an array [seq, heads, head_dim]."""
        return pl.ds(self.row, self.config.rows), self.head

    def zeros(self) -> jax.Array:
        """A result before the first step: float32 [rows, head_dim]."""
        return jnp.zeros((self.config.rows, self.sizes.head_dim), jnp.float32)

    def store(self, *results: jax.Array) -> None:
        """Stores results to the last `outs`.

        They are staged in the SMEM of the rows' operands, which no product reads any more.
        """
        pieces = self.pieces(self.sizes.head_dim)
        count = len(results)
        for result, ref in zip(results, self.my_operands()[:count], strict=True):
            for piece in pieces:
                piece_of(ref, piece)[...] = self.cut(result, piece).astype(ref.dtype)
        plgpu.commit_smem()
        copied = self.my_operands(as_copied=True)[:count]
        for ref, out in zip(copied, self.outs[-count:], strict=True):
            for piece in pieces:
                there = self.columns(out.at[self.here], piece)
                plgpu.copy_smem_to_gmem(piece_of(ref, piece), there)
        plgpu.wait_smem_to_gmem(0)

    def blocks(
        self, index_map: Callable[..., tuple[Int, Int, int]], *refs: Ref
    ) -> list[plgpu.BlockSpec]:
        """The specs of the blocks that a step loads from arrays [seq, heads, head_dim].

        `index_map` gives the block, the head, and 0, for the grid indices of a step.
        """
        shape = self.config.block, None, self.sizes.head_dim
        kind = ByRows if self.sizes.by_rows else plgpu.BlockSpec
        return [kind(shape, index_map, transforms=tiles.tiled(ref.dtype)) for ref in refs]

    def products(self, function: Callable[..., Tree], count: int) -> Tree:
        """Calls the function with this many accumulators [rows, block], which start at zero."""
        acc = plgpu.ACC((self.config.rows, self.config.block), jnp.float32)
        return pl.run_scoped(function, *[acc] * count)

    def probabilities(self, scores: jax.Array, lse: jax.Array, axis: int) -> jax.Array:
        """The probabilities of scores. `lse` are the log-sum-exps along this axis of the scores."""
        return jnp.exp2(scores * self.options.factor - spread(lse, scores.shape, axis))

    def factor(self, index: int, values: jax.Array) -> jax.Array | Ref:
        """Values in 16 bits, where `wgmma` reads them: in registers, or in the factor `index`."""
        values = values.astype(self.dtype)
        if self.options.config.in_place:
            return values
        staging = self.my_parts("factors")[index]
        staging[...] = values
        plgpu.commit_smem()
        return staging

    def d_scores(
        self,
        columns: tuple[Ref, Ref],
        masked: Mask,
        number: Callable[[int], jax.Array],
        axis: int,
        multiplied: Callable[[], None] = lambda: None,
    ) -> jax.Array | Ref:
        """dS of a step, where `wgmma` reads it, from both products of the rows' operands.

        Args:
          columns: the step's operands. The first product is the rows' first operand times the
            step's first operand, transposed; the second product is that of the second operands.
          masked: masks the scores.
          number: gives the log-sum-exps (0) and -delta (1) of the queries.
          axis: the axis of the scores that queries lie along.
          multiplied: called when both products are done.
        """

        def multiply(*accs: Accumulator) -> tuple[jax.Array, ...]:
            for acc, ours, others in zip(accs, self.my_operands(), columns, strict=True):
                self.multiply_rows(acc, ours, others)
            return tuple(acc[...] for acc in accs)

        scores, d_p = self.products(multiply, 2)
        multiplied()
        scores = self.options.capped(scores)
        p = self.probabilities(masked(scores), number(0), axis)
        weights = self.options.slopes(p, scores)
        return self.factor(0, weights * (d_p + spread(number(1), p.shape, axis)))

    def add(self, result: jax.Array, a: jax.Array | Ref, b: Ref) -> jax.Array:
        """The result plus the product of a and b."""

        def multiply(acc: Accumulator) -> tuple[()]:
            self.multiply_columns(acc, a, b, self.sizes.head_dim)
            return ()

        (result,), _ = bands.accumulate(self.options.config.in_place, (result,), (), multiply)
        return result


class Loads(NamedTuple):
    """What a pipeline loads: arrays in GMEM, their specs, and the grid of its steps."""

    refs: Sequence[Ref]
    in_specs: list[plgpu.BlockSpec]
    grid: tuple[Int, ...]


class GradientOfQ(GradientThread):
    """A compute thread of the kernel of dQ."""

    def steps(self, arrays: Arrays[Ref]) -> Loads:
        """Blocks of K and V."""
        kv_head = lax.div(self.head, jnp.int32(self.sizes.group))
        index_map = lambda s: (self.band.first + s, kv_head, 0)
        refs = arrays.k, arrays.v
        return Loads(refs, self.blocks(index_map, *refs), (self.band.steps,))

    def compute(self, arrays: Arrays[Ref], pipeline: AllSteps) -> None:
        """Goes through the keys with its queries' numbers in registers."""
        self.load(arrays.q, arrays.d_out, numbers=(arrays.numbers,))
        layout = plgpu.Layout.WGMMA.reduce(1)
        numbers = tuple(plgpu.load(self.mine("numbers").at[i], layout=layout) for i in (0, 1))
        d_q, _ = pipeline((self.zeros(), numbers))
        self.store(d_q * self.options.scale)

    def step(
        self,
        segments: tuple[Ref, ...],
        indices: Indices,
        k: Ref,
        v: Ref,
        k_out: Ref,
        v_out: Ref,
        carry: tuple[jax.Array, tuple[jax.Array, jax.Array]],
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """The body of the pipeline, with manual consumed barriers."""
        d_q, numbers = carry
        masked = lambda scores: self.band.masked(scores, indices[0], self.row, segments)
        release = lambda: plgpu.barrier_arrive(v_out)
        d_s = self.d_scores((k, v), masked, numbers.__getitem__, 0, release)
        d_q = self.add(d_q, d_s, k)
        plgpu.barrier_arrive(k_out)
        return d_q, numbers


class Step(NamedTuple):
    """A step over queries.

    Attributes:
      segments: none, or the segments of the rows and of the columns, in GMEM.
      indices: the head of queries, and the block of them.
      q, d_out, numbers: what the step loads.
    """

    segments: tuple[Ref, ...]
    indices: Indices
    q: Ref
    d_out: Ref
    numbers: Ref

    def number(self, index: int) -> jax.Array:
        """The log-sum-exps (0) of its queries, or -delta (1)."""
        return plgpu.load(self.numbers.at[index], layout=plgpu.Layout.WGMMA.reduce(0))


class GradientOverQueries(GradientThread):
    """What the compute threads have in common whose steps go through queries.

    Attributes:
      made: which kernel it is.
    """

    made: ClassVar[Gradients]

    def steps(self, arrays: Arrays[Ref]) -> Loads:
        """Blocks of Q, dO and their numbers; the grid is the heads of queries, and blocks."""
        head = lambda g: self.head * self.sizes.group + g
        index_map = lambda g, s: (self.band.first + s, head(g), 0)
        refs = arrays.q, arrays.d_out
        numbers = plgpu.BlockSpec(
            (None, 2, self.config.block), lambda g, s: (head(g), 0, self.band.first + s)
        )
        specs = [*self.blocks(index_map, *refs), numbers]
        return Loads((*refs, arrays.numbers), specs, (self.sizes.group, self.band.steps))

    def compute(self, arrays: Arrays[Ref], pipeline: AllSteps) -> None:
        """Goes through the queries with its keys' operands in SMEM."""
        self.load(*(arrays.k, arrays.v)[: self.made.operands])
        self.store(*self.results(pipeline))

    def results(self, pipeline: AllSteps) -> tuple[jax.Array, ...]:
        """The results of all steps, as they are stored."""
        names = [name for name in self.made.results if name != "dq"]
        sums = pipeline(tuple(self.zeros() for _ in names))
        return tuple(x * self.options.scale if name == "dk" else x for name, x in zip(names, sums))

    def step(self, segments: tuple[Ref, ...], indices: Indices, *refs: Any) -> bands.Arrays:
        """The body of the pipeline."""
        *loaded, sums = refs
        return self.added(Step(segments, indices, *loaded), sums)

    def added(self, step: Step, sums: bands.Arrays) -> bands.Arrays:
        """The results with a step added."""
        raise NotImplementedError

    def seen(self, step: Step, function: Callable[[Mask, jax.Array], Tree]) -> Tree:
        """The function of a step's mask and scores."""

        def multiply(scores: Accumulator) -> jax.Array:
            self.multiply_queries(scores, step.q)
            return scores[...]

        return function(functools.partial(self.masked, step), self.products(multiply, 1))

    def masked(self, step: Step, scores: jax.Array) -> jax.Array:
        """The scores of a step, masked if they must be."""
        return self.band.masked(scores, step.indices[1], self.row, step.segments)

    def p_of(self, step: Step) -> bands.Arrays:
        """The probabilities of a step, and what dP is multiplied by, if that is something else."""

        def p_of_scores(mask: Mask, scores: jax.Array) -> bands.Arrays:
            scores = self.options.capped(scores)
            p = self.probabilities(mask(scores), step.number(0), 1)
            if self.options.soft_cap is None:
                return (p,)
            return p.astype(step.q.dtype), self.options.slopes(p, scores)

        return self.seen(step, p_of_scores)

    def multiply_queries(self, scores: Accumulator, q: Ref) -> None:
        """Queues K Q^T of a step."""
        self.multiply_rows(scores, self.my_operands()[0], q)


class GradientOfK(GradientOverQueries):
    """A compute thread of the kernel of dK."""

    made = DK

    def added(self, step: Step, sums: bands.Arrays) -> bands.Arrays:
        """dK with dS^T Q added."""
        masked = functools.partial(self.masked, step)
        d_s = self.d_scores((step.q, step.d_out), masked, step.number, 1)
        return (self.add(sums[0], d_s, step.q),)


class GradientOfV(GradientOverQueries):
    """A compute thread of the kernel of dV."""

    made = DV

    def added(self, step: Step, sums: bands.Arrays) -> bands.Arrays:
        """dV with P^T dO added."""
        return (self.add(sums[0], self.factor(0, self.p_of(step)[0]), step.d_out),)


class GradientOfKV(GradientOverQueries):
    """A compute thread of the kernel of dK and dV."""

    made = DKV

    def added(self, step: Step, sums: bands.Arrays) -> bands.Arrays:
        """dK and dV with a step's added."""
        _, v = self.my_operands()
        p, *others = self.p_of(step)
        p_factor, weights = self.factor(0, p), (p, *others)[-1]

        def multiply_both(d_v: Accumulator, d_p: Accumulator) -> tuple[()]:
            self.multiply_columns(d_v, p_factor, step.d_out, self.sizes.head_dim)
            self.multiply_rows(d_p, v, step.d_out)
            return ()

        d_k, d_v = sums
        both = d_v, spread(step.number(1), p.shape, 1)  # dP starts at -delta
        (d_v, d_p), _ = bands.accumulate(self.options.config.in_place, both, (), multiply_both)
        d_s = self.given(step.indices, weights * d_p)
        return self.add(d_k, d_s, step.q), d_v

    def given(self, indices: Indices, d_s: jax.Array) -> jax.Array | Ref:
        """dS of a step, where `wgmma` reads it."""
        del indices
        return self.factor(1, d_s)


class GradientOfAll(GradientOfKV):
    """A compute thread of the kernel of all three."""

    made = ALL

    def results(self, pipeline: AllSteps) -> tuple[jax.Array, ...]:
        """dK and dV; after the last step it makes its part of that step's dQ."""
        if (numbers := self.band.numbers) is not None:
            layout = plgpu.Layout.WGMMA.reduce(0)
            numbers[...] = plgpu.broadcasted_iota(jnp.int32, numbers.shape, 0, layout=layout)
        staging = self.scratch["d_s"]
        self._give(jnp.int32(-1), jnp.zeros((self.config.rows, self.config.block), staging.dtype))
        d_k, d_v = pipeline((self.zeros(), self.zeros()))
        # No int: where queries are ragged, JAX would refuse a last block that ends beyond them.
        last = self.sizes.group - 1, jnp.int32(self.band.steps - 1)

        def multiply(d_q: Accumulator) -> jax.Array:
            self._multiply_keys(d_q, self._number(last))
            return d_q[...]

        plgpu.barrier_wait(self.scratch["exchanged"])
        self._add_to_sums(pl.run_scoped(multiply, self._part), last)
        plgpu.barrier_arrive(self.scratch["exchanged"])
        plgpu.barrier_wait(self.scratch["exchanged"])  # others have multiplied by its K
        return d_k * self.options.scale, d_v

    def seen(self, step: Step, function: Callable[[Mask, jax.Array], Tree]) -> Tree:
        """The function of a step's mask and scores, beside dQ of the previous step."""
        before, where = self._number(step.indices) - 1, self._before(step.indices)

        def multiply(scores: Accumulator, d_q: Accumulator) -> tuple[Tree, jax.Array]:
            self.multiply_queries(scores, step.q)
            plgpu.barrier_wait(self.scratch["exchanged"])
            self._multiply_keys(d_q, before)
            loaded = plgpu.wgmma_accumulator_load(scores, wait_n=self._products)

            of_mask = lambda mask: function(mask, loaded)
            choose = lambda: self.band.choose(step.indices[1], self.row, step.segments, of_mask)
            return self._beside(loaded, choose), d_q[...]

        scores = plgpu.ACC((self.config.rows, self.config.block), jnp.float32)
        values, d_q = pl.run_scoped(multiply, scores, self._part)
        self._add_to_sums(d_q, where)
        return values

    def _beside(self, scores: jax.Array, function: Callable[[], bands.Arrays]) -> bands.Arrays:
        """Calls the function so that its arithmetic runs beside the product that is queued.

        ptxas would wait for the product first, were there no branch between the two. So there is
        one. Its other side is for rows past the end of the keys. K is 0 there, so the scores are 0,
        and P must be 0 too. A step of more than 64 queries has no branch: it leaves no registers
        for P beside all of dQ, so ptxas may mix the two.
        """
        if self.config.block > 64:
            return function()
        capped = self.options.soft_cap is not None
        zeros = (scores.astype(self.scratch["d_s"].dtype), scores) if capped else (scores,)
        return lax.cond(self.row < self.sizes.keys, function, lambda: zeros)

    def given(self, indices: Indices, d_s: jax.Array) -> jax.Array | Ref:
        """dS of a step, where `wgmma` reads it; the other threads get it too."""
        d_s = d_s.astype(self.scratch["d_s"].dtype)
        staging = self._give(self._number(indices), d_s)
        return d_s if self.options.config.in_place else staging

    def _number(self, indices: tuple[Int, ...]) -> Int:
        """The number of a step, over all heads of queries."""
        return indices[0] * self.band.steps + indices[1]

    def _give(self, number: Int, d_s: jax.Array) -> Ref:
        """Gives all threads its dS of a step; returns where it lies in SMEM."""
        staging = self.scratch["d_s"].at[number & 1, self.index]
        staging[...] = d_s
        plgpu.commit_smem()
        plgpu.barrier_arrive(self.scratch["exchanged"])
        return staging

    # Its part of dQ.

    @property
    def _part(self) -> plgpu.ACC:
        """The accumulator of its part of a step's dQ."""
        return plgpu.ACC(self.config.d_q_part(self.sizes.head_dim), jnp.float32)

    @property
    def _share(self) -> tuple[pl.Slice, pl.Slice]:
        """The part of a step's dQ that it makes: queries, and columns."""
        queries, columns = self._part.shape
        return self._slice(queries, self.config.block), self._slice(columns, self.sizes.head_dim)

    def _slice(self, size: int, every: int) -> pl.Slice:
        """The thread's part of an axis of `every` elements: `size` of them, or all."""
        if size == every:
            return pl.ds(0, size)
        return pl.ds(pl.multiple_of(self.index * size, size), size)

    @property
    def _my_pieces(self) -> int | None:
        """How many pieces of K its columns are; None if K is whole."""
        return self._part.shape[1] // self.width if self.sizes.by_rows else None

    @property
    def _products(self) -> int:
        """How many products make its part of dQ."""
        return self.config.compute_threads * (self._my_pieces or 1)

    def _multiply_keys(self, d_q: Accumulator, number: Int) -> None:
        """Queues dS K of a step: a product for the keys of each thread, and each piece."""
        queries, columns = self._share
        for thread in range(self.config.compute_threads):
            d_s = self.scratch["d_s"].at[number & 1, thread, :, queries].transpose((1, 0))
            k = self.operands()[0]
            if (count := self._my_pieces) is None:
                plgpu.wgmma(d_q, d_s, k.at[thread, :, columns])
                continue
            first = 0 if self._part.shape[1] == self.sizes.head_dim else self.index * count
            for i in range(count):
                place = pl.ds(i * self.width, self.width)
                plgpu.wgmma(d_q.at[:, place], d_s, k.at[thread, first + i])

    def _before(self, indices: Indices) -> Indices:
        """The indices of the previous step; for the first step its own, to which it adds zeros."""
        (group, step), number = indices, self._number(indices)
        before = jnp.where(step > 0, step - 1, jnp.where(number > 0, self.band.steps - 1, 0))
        return jnp.where((step > 0) | (number == 0), group, group - 1), before

    def _add_to_sums(self, d_q: jax.Array, indices: tuple[Int, ...]) -> None:
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


#: The class of each kernel.
THREADS = {DQ: GradientOfQ, DKV: GradientOfKV, DK: GradientOfK, DV: GradientOfV, ALL: GradientOfAll}
