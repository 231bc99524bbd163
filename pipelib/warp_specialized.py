"""`emit_pipeline_warp_specialized`: one thread loads, the others compute.

The algorithm, for S slots and delay d (`ring` says why it is right)::

    memory thread                        each compute thread
    load steps 0 .. S-1                  for each step s:
    for each step s from S:                wait    produced[s mod S]
      wait  consumed[s mod S]              body    on slot s mod S
      load  step s into its slot           commit  its reads and writes
    wait for the last S - d releases       arrive  consumed[(s - d) mod S]
                                           store   finished blocks (first thread)

    barrier    completes a phase when            arrivals
    produced   a step's inputs have landed       one for each copy
    consumed   its slot may be loaded again      one for each compute thread
                                                 (and each block of the cluster)

To its barriers, a chain of pipelines (START, STEADY ..., STOP) is one long pipeline: only the first
fills slots that nobody released, only the last waits for the last releases. Each has a multiple of
S steps, so the slots go on in turn.

Not covered: with `delay_release`, the last d slots are still unreleased when the last pipeline
ends. Retire what reads them (`wgmma_wait(0)`) before that memory is used again.

Source: the function of this name in JAX 0.11.2.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring, specs

_START, _STOP = plgpu.PipelinePipeline.START, plgpu.PipelinePipeline.STOP


def emit_pipeline_warp_specialized(
    body: Callable[..., Any],
    *,
    grid: Sequence[Any],
    memory_registers: int,
    in_specs: Any = (),
    out_specs: Any = (),
    max_concurrent_steps: int = 2,
    wg_axis: str,
    num_compute_wgs: int,
    pipeline_state: jax.Array | plgpu.PipelinePipeline | None = None,
    manual_produced_barriers: bool = False,
    manual_consumed_barriers: bool = False,
    compute_context: Callable[[Callable], None] | None = None,
    memory_thread_idx: int | None = None,
    ordinary_reads: bool = True,
) -> Callable[..., None]:
    """Makes a pipeline with a memory thread, inside a Pallas kernel.

    A drop-in superset of `mosaic_gpu`'s function of this name. Beyond it: outputs with several
    compute threads; inputs pinned to GMEM or that do not use the grid (loaded at each step like others); a `delay_release` for each input;
    any memory thread; chains with `delay_release`; and what this package's `emit_pipeline` has.

    Args:
      body: called at each step by each compute thread as `body(indices, *in_refs, *out_refs,
        *produced, *consumed, carry)`: barriers only if manual, in the tree of `in_specs` (None for
        a pinned input); a carry only with `compute_context`, and then it returns the next. All
        threads get the same refs and divide the work themselves.
      grid, in_specs, out_specs, max_concurrent_steps, ordinary_reads: as in `emit_pipeline`;
        an input's `collective_axes` multicasts it along a cluster axis.
      memory_registers: for each lane of the memory thread, 24 to 256, a multiple of 8; the compute
        threads share the rest.
      wg_axis: the kernel's thread axis, of size `num_compute_wgs + 1`.
      num_compute_wgs: compute threads, 1 to 7.
      pipeline_state: place in a chain of pipelines that share allocations and differ in body and
        specs only; may be traced. None: no chain.
      manual_produced_barriers: the body waits for each input's barrier, once.
      manual_consumed_barriers: the body arrives at each input's barrier, once (after `commit_smem`
        if it has ordinary reads), to release the slot of `delay_release` steps ago, if any.
      compute_context: called by the compute threads as `compute_context(pipeline)`; it calls
        `pipeline(init_carry)` once, which returns the last carry.
      memory_thread_idx: the memory thread; by default the last.

    Returns:
      A function of the GMEM refs, inputs then outputs, that all threads call. For memory that
      outlives a call, pass its `get_allocations(*gmem_refs)` through `pl.run_scoped(...,
      collective_axes=wg_axis)` to its argument `allocations`.

    Raises:
      ValueError, NotImplementedError: as `emit_pipeline`; also for threads or registers that do
        not fit and chains that cannot go on.
    """
    manual = manual_produced_barriers or manual_consumed_barriers
    plan = ring.Plan.of(grid, in_specs, out_specs, max_concurrent_steps, manual)
    registers = specs.compute_registers(memory_registers, num_compute_wgs)
    if memory_thread_idx is None:
        memory_thread_idx = num_compute_wgs
    if not 0 <= memory_thread_idx <= num_compute_wgs:
        raise ValueError(
            f"{memory_thread_idx=} is none of the threads 0 to {num_compute_wgs} that"
            f" {num_compute_wgs=} makes: nothing would be loaded."
        )
    if pipeline_state is not None:
        _check_chain(plan.steps)
    return _Pipeline(
        body, plan, wg_axis, num_compute_wgs, memory_thread_idx, (memory_registers, registers),
        pipeline_state, manual_produced_barriers, manual_consumed_barriers, compute_context,
        ordinary_reads and not manual_consumed_barriers,
    )  # fmt: skip


def _check_chain(steps: ring.Steps) -> None:
    if not isinstance(steps.count, int):
        raise NotImplementedError(
            "A pipeline of pipelines is not supported with dynamic grids: the next must start where"
            " the slots of the last ended, which is not known."
        )
    turns, rest = divmod(steps.count, steps.slots)
    if rest:
        raise NotImplementedError(
            "A pipeline of pipelines is only allowed when the number of steps is divisible by"
            f" max_concurrent_steps, but {steps.count} = {turns} x {steps.slots} + {rest}: the next"
            " would start in slot 0, which holds another step's blocks."
        )


@dataclasses.dataclass(frozen=True)
class _Pipeline:
    body: Callable[..., Any]
    plan: ring.Plan
    wg_axis: str
    num_compute: int
    memory_thread_idx: int
    registers: tuple[int, int]
    state: jax.Array | plgpu.PipelinePipeline | None
    manual_produced: bool
    manual_consumed: bool
    compute_context: Callable[[Callable], None] | None
    ordinary_reads: bool

    def __call__(self, *gmem_refs: Any, allocations: Any = None) -> None:
        gmem = self.plan.flatten_refs(gmem_refs)
        self._check_threads(exactly=allocations is None)

        def scope(smem, produced, consumed, written):
            inputs, outputs, channels = self.plan.bind(gmem, smem, produced, consumed)
            lax.cond(
                lax.axis_index(self.wg_axis) == self.memory_thread_idx,
                lambda: self._memory_thread(channels),
                lambda: self._compute_thread(inputs, channels, self._stores(outputs, written)),
            )

        if allocations is not None:
            return scope(**allocations)
        if self.state is not None:
            raise ValueError(
                "Pipeline state should not be set when using automatic allocation: what one"
                " pipeline of the chain loads for the next would be lost with its memory. Pass"
                " allocations= (see get_allocations)."
            )
        allocations = self.get_allocations(*gmem_refs)
        pl.run_scoped(scope, **allocations, collective_axes=self.wg_axis)

    def get_allocations(self, *gmem_refs: Any) -> dict[str, Any]:
        """What a call with these refs allocates, for `pl.run_scoped`."""
        plan, kind, arrivals = self.plan, plgpu.Barrier, self.num_compute
        is_alone = arrivals == 1 or all(operand.pinned for operand in plan.outputs)
        written = None if is_alone else plgpu.Barrier(num_arrivals=arrivals)
        if axes := [a for operand in plan.inputs for a in operand.spec.collective_axes or ()]:
            axes = tuple(dict.fromkeys(axes))
            kind = functools.partial(plgpu.ClusterBarrier, collective_axes=axes)
        slots = plan.steps.slots
        consumed = [kind(num_arrivals=arrivals, num_barriers=slots) for _ in plan.groups]
        barriers = len(consumed) * slots + (written is not None)
        allocations = plan.allocations(plan.flatten_refs(gmem_refs), barriers)
        return dict(allocations, consumed=consumed, written=written)

    def _stores(self, outputs, written) -> ring.Stores:
        """The outputs; if several threads write them, stored by the first of these."""
        if written is None:
            return ring.Stores(outputs, self.plan.steps)
        leader = int(self.memory_thread_idx == 0)
        sync = lambda: (plgpu.barrier_arrive(written), plgpu.barrier_wait(written))
        is_leader = lax.axis_index(self.wg_axis) == leader
        return ring.Stores(outputs, self.plan.steps, is_leader, sync)

    def _memory_thread(self, channels) -> None:
        """Loads each step's inputs as their slots become free."""
        plgpu.set_max_registers(self.registers[0], action="decrease")
        plan, steps, free = self.plan, self.plan.steps, self._is(_START)
        if isinstance(free, bool):
            free = steps.prologue if free else 0
        else:
            free = jnp.where(free, jnp.int32(steps.prologue), 0)
        wait = lambda channel, slot: plgpu.barrier_wait(channel.consumed.at[slot])
        indices = plan.load_steps(channels, 0, free, steps.indices())
        plan.load_steps(channels, free, steps.count, indices, wait)
        ring.when(self._is(_STOP), lambda: self._quiesce(channels))

    def _quiesce(self, channels) -> None:
        """Waits for the releases that no load has waited for."""
        steps = self.plan.steps
        for channel in channels:
            wait = lambda step, _: plgpu.barrier_wait(channel.consumed.at[steps.slot(step)])
            first, end = steps.count - steps.prologue, steps.count - channel.delay
            steps.loop(first, end, wait, unroll=True)

    def _compute_thread(self, inputs, channels, stores: ring.Stores) -> None:
        """Runs the body at each step, within compute_context."""
        plgpu.set_max_registers(self.registers[1], action="increase")
        awaited, released = ([] if m else channels for m in (self.manual_produced, self.manual_consumed))
        call, calls = functools.partial(self._call, channels), []

        def pipeline(*init_carry):
            if calls:
                raise ValueError(
                    "Cannot call pipeline more than once in `compute_context`: the memory thread"
                    " loads each step once, so the second call would wait for ever."
                )
            calls.append(pipeline)
            release = functools.partial(self._release, released)
            return self.plan.compute_steps(
                call, inputs, awaited, stores, init_carry, release, self.ordinary_reads
            )

        (self.compute_context or (lambda pipeline: pipeline()))(pipeline)
        if not calls:
            raise ValueError(
                "Pipeline was not called in `compute_context`: the memory thread would wait for"
                " ever for its slots to be released."
            )
        stores.drain()

    def _call(self, channels, step, indices, refs, carry) -> Any:
        """Calls the user's body, with the barriers that it works itself."""
        steps = self.plan.steps
        if self.manual_produced:
            refs += self._per_input([c.produced.at[steps.slot(step)] for c in channels])
        if self.manual_consumed:
            refs += self._per_input([c.consumed.at[steps.slot(step, c.delay)] for c in channels])
        return self.body(indices, *refs, *carry)

    def _per_input(self, barriers) -> tuple[Any, ...]:
        """Barriers of channels of one input each, in the tree of `in_specs`."""
        by_input = {group[0]: barrier for group, barrier in zip(self.plan.groups, barriers)}
        leaves = [by_input.get(i) for i in range(len(self.plan.inputs))]
        return self.plan.trees[0].unflatten(leaves)

    def _release(self, channels, step, state) -> tuple:
        """Tells the memory thread which slots it may load again."""
        for channel in channels:
            barrier = channel.consumed.at[self.plan.steps.slot(step, channel.delay)]
            used = (step >= channel.delay) | (self._is(_START) ^ True)
            ring.when(used if channel.delay else True, lambda: plgpu.barrier_arrive(barrier))
        return state

    def _is(self, place: plgpu.PipelinePipeline) -> bool | jax.Array:
        """Whether this is the first (START) or last (STOP) pipeline of a chain."""
        return True if self.state is None else self.state == place

    def _check_threads(self, exactly: bool) -> None:
        threads, size = self.num_compute + 1, lax.axis_size(self.wg_axis)
        if size < threads or (exactly and size > threads):
            raise ValueError(
                f"num_compute_wgs={self.num_compute} and one memory thread make {threads} threads,"
                f" but the axis {self.wg_axis!r} has {size}: each slot is released by"
                f" {self.num_compute} arrivals, so too few threads deadlock and too many release it"
                " early."
            )
