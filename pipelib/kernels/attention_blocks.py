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
block runs when. Loads beyond K's end bring zeros and stores beyond that of the result are dropped:
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
from pipelib.kernels.attention_order import AXES, Order
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
    order = Order.of(
        sizes.batch, sizes.heads, blocks, (problem.left, problem.right),
        2 * sizes.keys * sizes.head_dim * k.dtype.itemsize // sizes.group,
    )  # fmt: skip
    body = functools.partial(_block, problem, sizes, order, bool(segments))
    body.__name__ = "attention"  # as a profiler shows it
    out, lse = plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(q.shape, q.dtype), lse],
        scratch_types=dict(scratch=_scratch(config, sizes, q.dtype)),
        grid=order.grid, grid_names=AXES,
        num_threads=config.compute_threads + 1, thread_name="thread",
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
    )(q, k, v, *segments)  # fmt: skip
    return out, lse if rows == sizes.queries else lse[:, :, : sizes.queries]


def _scratch(config: AttentionConfig, sizes: Sizes, dtype: Any) -> dict[str, Any]:
    threads, rows = config.compute_threads, config.rows
    shared = lambda *shape: plgpu.SMEM((threads, rows, *shape), dtype, transforms=tiled(dtype))
    scratch = dict(
        q=shared(sizes.head_dim),
        lse=plgpu.SMEM((threads, rows), jnp.float32),
        loaded=plgpu.Barrier(num_barriers=threads),
    )
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
    place = order.place(*map(lax.axis_index, AXES))
    band = Band.of(
        problem.left, problem.right, sizes.queries, sizes.keys, config.tiles,
        place[2] * config.block_q,
    )  # fmt: skip
    kv_head = lax.div(place[1], jnp.int32(sizes.group))
    k, v = (ref.at[place[0], :, kv_head, :] for ref in (k, v))

    def scope(allocations):
        thread = Thread(
            problem, sizes, band, place, segments, scratch, allocations, lax.axis_index("thread")
        )
        pipeline = make(thread.step, lambda pipeline: thread.compute(q, out, lse, pipeline))
        pipeline(k, v, allocations=allocations)

    def make(step, context):
        spec = lambda ref: plgpu.BlockSpec(
            (config.block_kv, sizes.head_dim), lambda s: (band.first + s, 0),
            transforms=tiled(ref.dtype),
        )  # fmt: skip
        return emit_pipeline_warp_specialized(
            step, grid=(band.steps,), in_specs=[spec(k), spec(v)],
            max_concurrent_steps=_slots(config, sizes),
            memory_registers=config.memory_registers, wg_axis="thread",
            num_compute_wgs=config.compute_threads, compute_context=context,
            manual_produced_barriers=True, manual_consumed_barriers=True,
        )  # fmt: skip

    allocations = make(lambda *_: None, None).get_allocations(k, v)  # whatever a thread does
    pl.run_scoped(scope, allocations, collective_axes="thread")


# A compute thread.


class Thread(NamedTuple):
    """A compute thread: its part of the scratch, the place of its block, and the rings."""

    problem: Problem
    sizes: Sizes
    band: Band
    place: tuple[Any, Any, Any]
    segments: tuple[Any, ...]
    scratch: dict[str, Any]
    allocations: dict[str, Any]
    index: Any

    @property
    def config(self) -> AttentionConfig:
        """That of the kernel."""
        return self.problem.config

    @property
    def row(self) -> Any:
        """The first of its queries."""
        return self.place[2] * self.config.block_q + self.index * self.config.rows

    def compute(self, q: Any, out: Any, lse: Any, pipeline: Callable[[State], State]) -> None:
        """All that it does: loads its queries, runs the pipeline, stores the result."""
        batch, head, _ = self.place
        mine, loaded = (self.scratch[name].at[self.index] for name in ("q", "loaded"))
        here = (batch, pl.ds(self.row, self.config.rows), head)
        plgpu.copy_gmem_to_smem(q.at[here], mine, loaded)
        plgpu.barrier_wait(loaded)
        state = self._start()
        if self.config.takes_turns:
            is_last = self.index == self.config.compute_threads - 1
            pl.when(is_last)(self._pass_turn)
        if self.config.schedule != "plain":
            state = self._first_scores(state)
        state = pipeline(state)
        pl.when(self.index == 0)(self._take_turn)
        self._store(state, mine, out.at[here], lse.at[batch, head])

    def _start(self) -> State:
        rows, full = self.config.rows, lambda x, *shape: jnp.full(shape, x, jnp.float32)
        p = jnp.zeros((rows, self.config.block_kv), self.scratch["q"].dtype)
        return State(
            full(0.0, rows, self.sizes.head_dim), full(-jnp.inf, rows), full(0.0, rows),
            () if self.config.schedule == "plain" else p,
        )  # fmt: skip

    def _store(self, state: State, staging: Any, out: Any, lse: Any) -> None:
        is_none = state.total == 0.0
        inverse = 1.0 / jnp.where(is_none, 1.0, state.total)
        staging[...] = _scaled(state.result, inverse).astype(staging.dtype)
        sums = (state.maximum + jnp.log2(state.total)) * math.log(2.0)
        numbers = self.scratch["lse"].at[self.index]
        numbers[...] = jnp.where(is_none, -jnp.inf, sums)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staging, out)
        plgpu.copy_smem_to_gmem(numbers, lse.at[pl.ds(self.row, self.config.rows)])
        plgpu.wait_smem_to_gmem(0)

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
        if self.config.schedule != "plain":
            return self._step_ahead(indices[0], v, v_out, state)
        plgpu.barrier_wait(k_in)
        scores = self._scores(k)
        plgpu.barrier_arrive(k_out)
        state, _ = self._softmax(self._masked(scores, indices[0]), state)
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
        plgpu.wgmma(acc, self.scratch["q"].at[self.index], k.transpose((1, 0)))

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

    def _slot(self, of: str, step: Any) -> tuple[Any, Any, Any]:
        """K ("k") or V ("v") of a step in its ring, and the barriers of its slot."""
        slot = lax.rem(step, jnp.int32(_slots(self.config, self.sizes)))
        rings = (self.allocations[name] for name in ("smem", "produced", "consumed"))
        return tuple(ring["kv".index(of)].at[slot] for ring in rings)

    def _await(self, step: Any) -> None:
        """Waits for what a step multiplies: its V, and K of the next, if there is one.

        Done beside the products of the step before, when it takes no time.
        """
        plgpu.barrier_wait(self._slot("v", step)[1])

        @pl.when(step + 1 < self.band.steps)
        def _():
            plgpu.barrier_wait(self._slot("k", step + 1)[1])

    def _step_ahead(self, step, v, v_out, state: State) -> State:
        """P V of a step and the probabilities of the next, if there is one."""
        following = step + 1
        k, _, k_out = self._slot("k", following)

        def begin():
            p = self._operand(state.p)
            self._take_turn()
            return p

        def pingpong(state):
            p = begin()

            def both(result):
                def multiply(scores):
                    plgpu.wgmma(result, p, v)
                    self._multiply_keys(scores, k)
                    self._pass_turn()
                    self._await(following)
                    return scores[...]

                return (pl.run_scoped(multiply, self._scores_type()),)

            like = jnp.zeros((self.config.rows, self.config.block_kv), jnp.float32)
            result, (scores,) = self._accumulate(state.result, (like,), both)
            plgpu.barrier_arrive(k_out)
            plgpu.barrier_arrive(v_out)
            scores = self._masked(scores, following)
            return self._softmax(scores, state._replace(result=result))[0]

        def overlap(mask, state):
            p = begin()

            def both(result):
                def multiply(scores):
                    self._multiply_keys(scores, k)
                    plgpu.wgmma(result, p, v)
                    self._pass_turn()
                    return plgpu.wgmma_accumulator_load(scores, wait_n=1)

                scores = pl.run_scoped(multiply, self._scores_type())
                plgpu.barrier_arrive(k_out)
                after, shrink = self._softmax(mask(scores), state._replace(result=()))
                self._await(following)
                return (*after[1:], shrink)

            like = (*state[1:], state.total)
            result, (*rest, shrink) = self._accumulate(state.result, like, both)
            plgpu.barrier_arrive(v_out)
            return State(_scaled(result, shrink), *rest)

        def end(state):
            p = begin()

            def multiply(result):
                plgpu.wgmma(result, p, v)
                self._pass_turn()
                return ()

            result, _ = self._accumulate(state.result, (), multiply)
            plgpu.barrier_arrive(v_out)
            return state._replace(result=result)

        go_on = pingpong
        if self.config.overlaps:
            go_on = functools.partial(
                self.band.choose, following, self.row, self._all_segments(), overlap
            )
        return lax.cond(following < self.band.steps, go_on, end, state)

    # Its parts.

    def _masked(self, scores: jax.Array, step: Any) -> jax.Array:
        """The scores of a step, masked if they must be."""
        return self.band.masked(scores, step, self.row, self._all_segments())

    def _all_segments(self) -> tuple:
        return tuple(ids.at[self.place[0]] for ids in self.segments)

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


def _slots(config: AttentionConfig, sizes: Sizes) -> int:
    return min(config.slots, pl.cdiv(sizes.keys, config.block_kv))


def _scaled(rows: jax.Array, factors: jax.Array) -> jax.Array:
    """Each row times its factor."""
    return rows * spread(factors, rows.shape, 0)
