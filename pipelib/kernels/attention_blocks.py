"""The kernel of `attention`: what the blocks and the Pallas threads of each schedule do.

The model. A block has some queries of one head. Its memory thread loads the blocks of K and V that
they see; each compute thread has `rows` of the queries, and of them the running maximum m, the sum
l of exponentials and the result O. For each step s, with S = Q K[s]^T::

    m, before = max(m, scale S), m         p = exp2(scale S - m)           (log2 e is in the scale)
    l = l exp2(before - m) + sum of p      O = O exp2(before - m) + p V[s]

K[s] is released when S is there, V[s] when O is. The maxima and sums of rows are within quads of
lanes (the layout of a `wgmma`'s accumulator), by shuffles: they need no SMEM, of which Mosaic GPU
gives reductions across a thread's warps one piece that all threads of a block share.

How the work overlaps (`AttentionConfig.schedule`)::

    plain      QK[s]  softmax[s]  PV[s]  QK[s+1]  ...
    overlap    QK[s+1] PV[s] queued | softmax[s+1], once QK[s+1] is done, beside PV[s] | ...
    pingpong   PV[s] QK[s+1] queued | softmax[s+1], once both are done | ...
               and a thread has the turn while it queues the two
    both       as overlap, with turns

The *schedule barrier* is the turn: one barrier for each compute thread, which its predecessor in
the ring of threads arrives at. A thread waits for its own before it queues products, and arrives at
its successor's when it has. So the tensor core gets the threads' products one after the other, and
the softmax of one runs beside the products of the others. The last thread gives the first its first
turn; the first takes the one that is left in the end, so that each arrival is waited for.

All but "plain" have K one step ahead of V: the first scores are made before the pipeline begins,
from the ring that the pipeline was given, and step s makes those of s + 1. They wait for what a
step multiplies beside the products of the step before, so they need two slots.

A product whose first factor is in registers must be the first of those in flight: Mosaic GPU fences
these registers, and where another product began before, ptxas waits for that one (its C7513). So
"pingpong" queues P V first, and "overlap", which cannot, has P in SMEM.

What is seen, and so how many steps there are, says `attention_band`, and `attention_order` which
block runs when. Where nothing is masked and SMEM has room, the kernel is persistent: a block goes
on to other queries, and its pipeline goes through the steps of all its visits, so that K and V are
loaded ahead of the next. Its last step of a visit is like any other, P V beside the next Q K^T, but
for the queries. Those of the next visit have been loaded into `next_q`; they are copied to `q`,
and their place stages the result, whose store runs beside the next softmax, and then gets the
queries after.

Loads beyond K's end bring zeros and stores beyond that of the result are dropped:
both are what TMA does. A row that sees nothing has l = 0: its result is 0 and its log-sum-exp -inf.
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
)
from pipelib.kernels.attention_config import AttentionConfig
from pipelib.kernels.attention_order import AXES, Order, Visits
from pipelib.kernels.device import num_sms
from pipelib.kernels.matmul_blocks import tiled
from pipelib.warp_specialized import emit_pipeline_warp_specialized


class State(NamedTuple):
    """A thread's rows: the result so far, maxima, sums, and the last step's probabilities."""

    result: Any
    maximum: Any
    total: Any
    p: Any


def run(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: tuple, problem: Problem
) -> tuple[jax.Array, jax.Array]:
    """The result and the log-sum-exp, made by the kernel of `problem.config`, which is given.

    Args:
      q, k, v: as `attention` takes them, of sizes that copies can address.
      segments: none, or int32 of the queries [batch, seq] and of the keys.
    """
    config, sizes = problem.config, Sizes.of(q, k)
    blocks = pl.cdiv(sizes.queries, config.block_q)
    rows = blocks * config.block_q
    if segments:
        segments = padded(segments[0], config.block_q), padded(segments[1], config.block_kv)
    lse = jax.ShapeDtypeStruct((sizes.batch, sizes.heads, rows), jnp.float32)
    sides = problem.left, problem.right
    order = Order.of(
        sizes.batch, sizes.heads, blocks, sides,
        2 * sizes.keys * sizes.head_dim * k.dtype.itemsize // sizes.group,
    )  # fmt: skip
    if sides == (None, None) and not segments and config.is_persistent(sizes.head_dim):
        order = order.on(num_sms())
    body = functools.partial(_block, problem, sizes, order, bool(segments))
    body.__name__ = "attention"  # as a profiler shows it
    out, lse = plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(q.shape, q.dtype), lse],
        scratch_types=dict(scratch=_scratch(config, sizes, order, q.dtype)),
        grid=order.grid, grid_names=AXES,
        num_threads=config.compute_threads + 1, thread_name="thread",
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
    )(q, k, v, *segments)  # fmt: skip
    return out, lse if rows == sizes.queries else lse[:, :, : sizes.queries]


def _scratch(config: AttentionConfig, sizes: Sizes, order: Order, dtype: Any) -> dict[str, Any]:
    threads, rows = config.compute_threads, config.rows
    shared = lambda *shape: plgpu.SMEM((threads, rows, *shape), dtype, transforms=tiled(dtype))
    scratch = dict(
        q=shared(sizes.head_dim),
        lse=plgpu.SMEM((threads, rows), jnp.float32),
        loaded=plgpu.Barrier(num_barriers=threads),
    )
    if order.persistent is not None:
        scratch.update(next_q=shared(sizes.head_dim))
    if config.through_smem:
        scratch.update(p=shared(config.block_kv))
    if config.takes_turns:
        scratch.update(turns=plgpu.Barrier(num_barriers=threads))
    return scratch


def _block(
    problem: Problem, sizes: Sizes, order: Order, segmented: bool, q, k, v, *refs, scratch
) -> None:
    """What each thread of a block does."""
    config, segments, (out, lse) = problem.config, refs[: 2 * segmented], refs[2 * segmented :]
    visits = order.visits(*map(lax.axis_index, AXES))
    _, _, block = visits.place(jnp.int32(0))  # of many visits, each sees the same
    band = Band.of(
        problem.left, problem.right, sizes.queries, sizes.keys, config.tiles,
        block * config.block_q,
    )  # fmt: skip
    # Of one visit with a single step, nothing is loaded ahead.
    slots = config.slots if visits.are_many else min(
        config.slots, pl.cdiv(sizes.keys, config.block_kv)
    )  # fmt: skip

    def where(*indices):
        visit, step = visits.split(indices)
        batch, head, _ = visits.place(visit)
        return batch, band.first + step, lax.div(head, jnp.int32(sizes.group)), 0

    def scope(allocations):
        thread = Thread(
            problem, sizes, band, visits, (q, out, lse), segments, scratch, allocations,
            lax.axis_index("thread"),
        )  # fmt: skip
        make(thread.step, thread.compute)(k, v, allocations=allocations)

    def make(step, context):
        shape = None, config.block_kv, None, sizes.head_dim
        spec = lambda ref: plgpu.BlockSpec(shape, where, transforms=tiled(ref.dtype))
        return emit_pipeline_warp_specialized(
            step, grid=visits.grid(band.steps), in_specs=[spec(k), spec(v)],
            max_concurrent_steps=slots, memory_registers=config.memory_registers, wg_axis="thread",
            num_compute_wgs=config.compute_threads, compute_context=context,
            manual_produced_barriers=True, manual_consumed_barriers=True,
        )  # fmt: skip

    allocations = make(lambda *_: None, None).get_allocations(k, v)  # whatever a thread does
    pl.run_scoped(scope, allocations, collective_axes="thread")


# A compute thread.


class Thread(NamedTuple):
    """A compute thread: what its block sees and visits, the arrays, its scratch, and the rings."""

    problem: Problem
    sizes: Sizes
    band: Band
    visits: Visits
    arrays: tuple[Any, Any, Any]
    segments: tuple[Any, ...]
    scratch: dict[str, Any]
    allocations: dict[str, Any]
    index: Any

    @property
    def config(self) -> AttentionConfig:
        """That of the kernel."""
        return self.problem.config

    def compute(self, pipeline: Callable[[State], State]) -> None:
        """All that it does: loads its queries, runs the pipeline, stores the result."""
        self._load(jnp.int32(0), "q")
        plgpu.barrier_wait(self._mine("loaded"))
        self._load_next(jnp.int32(1))
        state = self._start()
        if self.config.takes_turns:
            is_last = self.index == self.config.compute_threads - 1
            pl.when(is_last)(self._pass_turn)
        if self.config.schedule != "plain":
            state = self._first_scores(state)
        state = pipeline(state)
        pl.when(self.index == 0)(self._take_turn)
        self._store(state, self.visits.count - 1)
        plgpu.wait_smem_to_gmem(0)

    def _rows(self, visit: Any) -> tuple[Any, Any, Any]:
        """Its queries: the batch, which of the sequence, the head."""
        batch, head, block = self.visits.place(visit)
        row = block * self.config.block_q + self.index * self.config.rows
        return batch, pl.ds(row, self.config.rows), head

    def _mine(self, name: str) -> Any:
        """Its part of some scratch."""
        return self.scratch[name].at[self.index]

    def _load(self, visit: Any, name: str) -> None:
        rows = self.arrays[0].at[self._rows(visit)]
        plgpu.copy_gmem_to_smem(rows, self._mine(name), self._mine("loaded"))

    def _load_next(self, visit: Any) -> None:
        """Loads the queries of a visit that is to come, if there is one."""
        if self.visits.are_many:
            pl.when(visit < self.visits.count)(lambda: self._load(visit, "next_q"))

    def _take_next(self) -> None:
        """Puts the next queries where every step finds them: an address that is always the same."""
        plgpu.barrier_wait(self._mine("loaded"))
        self._mine("q")[...] = self._mine("next_q")[...]
        plgpu.commit_smem()

    def _start(self) -> State:
        rows, full = self.config.rows, lambda x, *shape: jnp.full(shape, x, jnp.float32)
        p = jnp.zeros((rows, self.config.block_kv), self.scratch["q"].dtype)
        return State(
            full(0.0, rows, self.sizes.head_dim), full(-jnp.inf, rows), full(0.0, rows),
            () if self.config.schedule == "plain" else p,
        )  # fmt: skip

    def _store(self, state: State, visit: Any) -> None:
        """Begins to store the result."""
        (_, out, lse), here = self.arrays, self._rows(visit)
        staging = self._mine("next_q" if self.visits.are_many else "q")  # no product reads it
        batch, rows, head = here
        is_none = state.total == 0.0
        inverse = 1.0 / jnp.where(is_none, 1.0, state.total)
        staging[...] = _scaled(state.result, inverse).astype(staging.dtype)
        sums = (state.maximum + jnp.log2(state.total)) * math.log(2.0)
        numbers = self._mine("lse")
        numbers[...] = jnp.where(is_none, -jnp.inf, sums)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staging, out.at[here])
        plgpu.copy_smem_to_gmem(numbers, lse.at[batch, head, rows])

    # The schedule barrier.

    def _take_turn(self) -> None:
        if self.config.takes_turns:
            plgpu.barrier_wait(self.scratch["turns"].at[self.index])

    def _pass_turn(self) -> None:
        if self.config.takes_turns:
            following = lax.rem(self.index + 1, jnp.int32(self.config.compute_threads))
            plgpu.barrier_arrive(self.scratch["turns"].at[following])

    # Steps.

    def step(self, indices, k, v, k_in, v_in, k_out, v_out, state: State) -> State:
        """The body of the pipeline."""
        visit, step = self.visits.split(indices)
        if self.config.schedule != "plain":
            return self._step_ahead(visit, step, v, v_out, state)
        plgpu.barrier_wait(k_in)
        scores = self._scores(k)
        plgpu.barrier_arrive(k_out)
        state, _ = self._softmax(self._masked(scores, step), state)
        p = self._operand(state.p)
        plgpu.barrier_wait(v_in)
        result, _ = self._accumulate(state.result, (), lambda acc: plgpu.wgmma(acc, p, v) or ())
        plgpu.barrier_arrive(v_out)
        return state._replace(result=result, p=())

    def _scores(self, k: Any, meanwhile: Callable[[], None] = lambda: None) -> jax.Array:
        """Q K^T of a step, all of it; the turn passes when it is queued."""

        def multiply(acc):
            self._multiply_keys(acc, k)
            self._pass_turn()
            meanwhile()
            return acc[...]

        return pl.run_scoped(multiply, self._scores_type())

    def _multiply_keys(self, acc: Any, k: Any) -> None:
        plgpu.wgmma(acc, self._mine("q"), k.transpose((1, 0)))

    def _scores_type(self) -> Any:
        return plgpu.ACC((self.config.rows, self.config.block_kv), jnp.float32)

    def _first_scores(self, state: State) -> State:
        first = jnp.int32(0)
        k, k_in, k_out = self._slot("k", first)
        plgpu.barrier_wait(k_in)
        self._take_turn()
        scores = self._scores(k, lambda: self._await(first))
        plgpu.barrier_arrive(k_out)
        return self._softmax(self._masked(scores, jnp.int32(0)), state)[0]

    def _slot(self, of: str, number: Any) -> tuple[Any, Any, Any]:
        """K ("k") or V ("v") of a step, of all visits, in its ring; the barriers of its slot."""
        rings = (self.allocations[name] for name in ("smem", "produced", "consumed"))
        smem, produced, consumed = (ring["kv".index(of)] for ring in rings)
        slot = lax.rem(number, jnp.int32(smem.shape[0]))
        return smem.at[slot], produced.at[slot], consumed.at[slot]

    def _await(self, number: Any) -> None:
        """Waits for what a step of all visits multiplies: its V, and K of the next, if any.

        Done beside the products of the step before, when it takes no time.
        """
        plgpu.barrier_wait(self._slot("v", number)[1])

        @pl.when(number + 1 < self.band.steps * self.visits.count)
        def _():
            plgpu.barrier_wait(self._slot("k", number + 1)[1])

    def _step_ahead(self, visit, step, v, v_out, state: State) -> State:
        """P V of a step and the probabilities of the next, of this visit or the next, if any."""
        number = visit * self.band.steps + step + 1
        k, _, k_out = self._slot("k", number)

        def begin():
            p = self._operand(state.p)
            self._take_turn()
            return p

        def pingpong(is_new, state):
            p = begin()

            def both(result):
                def multiply(scores):
                    plgpu.wgmma(result, p, v)
                    self._multiply_keys(scores, k)
                    self._pass_turn()
                    self._await(number)
                    return scores[...]

                return (pl.run_scoped(multiply, self._scores_type()),)

            like = jnp.zeros((self.config.rows, self.config.block_kv), jnp.float32)
            result, (scores,) = self._accumulate(state.result, (like,), both)
            plgpu.barrier_arrive(k_out)
            plgpu.barrier_arrive(v_out)
            scores = self._masked(scores, jnp.int32(0) if is_new else step + 1)
            state = state._replace(result=result)
            if not is_new:
                return self._softmax(scores, state)[0]
            self._store(state, visit)
            state, _ = self._softmax(scores, self._start())
            self._load_behind_store(visit)
            return state

        def overlap(is_new, mask, state):
            p = begin()

            def both(result):
                def multiply(scores):
                    self._multiply_keys(scores, k)
                    plgpu.wgmma(result, p, v)
                    self._pass_turn()
                    return plgpu.wgmma_accumulator_load(scores, wait_n=1)

                scores = pl.run_scoped(multiply, self._scores_type())
                plgpu.barrier_arrive(k_out)
                before = self._start() if is_new else state
                found, shrink = self._softmax(mask(scores), before._replace(result=()))
                self._await(number)
                return (*found[1:], shrink)

            like = (*state[1:], state.total)
            result, (*rest, shrink) = self._accumulate(state.result, like, both)
            plgpu.barrier_arrive(v_out)
            if not is_new:
                return State(_scaled(result, shrink), *rest)
            self._store(state._replace(result=result), visit)
            self._load_behind_store(visit)
            return self._start()._replace(maximum=rest[0], total=rest[1], p=rest[2])

        def end(state):
            p = begin()

            def multiply(result):
                plgpu.wgmma(result, p, v)
                self._pass_turn()
                return ()

            result, _ = self._accumulate(state.result, (), multiply)
            plgpu.barrier_arrive(v_out)
            return state._replace(result=result)

        def go_on(is_new, state):
            if is_new:
                self._take_next()
            if not self.config.overlaps:
                return pingpong(is_new, state)
            # No constant 0: JAX 0.11.2 does not lower one that a branch hands to `run_scoped`.
            following = step + 1 - self.band.steps if is_new else step + 1
            return self.band.choose(
                following, *self._seen_from(), functools.partial(overlap, is_new), state
            )

        def next_visit(state):
            is_any = visit + 1 < self.visits.count
            return lax.cond(is_any, functools.partial(go_on, True), end, state)

        last = next_visit if self.visits.are_many else end
        return lax.cond(step + 1 < self.band.steps, functools.partial(go_on, False), last, state)

    def _load_behind_store(self, visit: Any) -> None:
        """Loads the queries of the visit after the next, where a visit's result is stored from."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        self._load_next(visit + 2)

    # Its parts.

    def _masked(self, scores: jax.Array, step: Any) -> jax.Array:
        """The scores of a step, masked if they must be."""
        return self.band.masked(scores, step, *self._seen_from())

    def _seen_from(self) -> tuple[Any, tuple]:
        """What a mask depends on: the first of its queries, and segments."""
        batch, rows, _ = self._rows(jnp.int32(0))
        return rows.start, tuple(ids.at[batch] for ids in self.segments)

    def _softmax(self, scores: jax.Array, state: State) -> tuple[State, jax.Array]:
        """Adds a step's scores; also by what the result so far is multiplied (if it is here: ()).

        That comes before the exponentials, which leave the other units idle for it.
        """
        scale = self.problem.scale * math.log2(math.e)
        maximum = jnp.maximum(state.maximum, scores.max(axis=1) * scale)
        finite = jnp.where(maximum == -jnp.inf, 0.0, maximum)  # -inf less -inf would be NaN
        shrink = jnp.exp2(state.maximum - finite)
        result = jax.tree.map(lambda result: _scaled(result, shrink), state.result)
        p = jnp.exp2(scores * scale - spread(finite, scores.shape, 0))
        total = state.total * shrink + p.sum(axis=1)
        return State(result, maximum, total, p.astype(self.scratch["q"].dtype)), shrink

    def _operand(self, p: jax.Array) -> Any:
        """The probabilities, where `wgmma` reads them."""
        if not self.config.through_smem:
            return p
        staging = self.scratch["p"].at[self.index]
        staging[...] = p
        plgpu.commit_smem()
        return staging

    def _accumulate(self, result: jax.Array, like: tuple, multiply: Callable) -> tuple:
        """The result plus what `multiply(accumulator)` adds, and what it returns (as `like`)."""
        (result,), values = accumulate(self.config.in_place, (result,), like, multiply)
        return result, values


def _scaled(rows: jax.Array, factors: jax.Array) -> jax.Array:
    """Each row times its factor."""
    return rows * spread(factors, rows.shape, 0)
