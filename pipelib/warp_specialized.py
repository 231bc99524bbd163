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
    consumed   its slot may be loaded again      one for each compute thread (of a cluster)

To its barriers, a chain of pipelines (START, STEADY ..., STOP) is one long pipeline: only the first
fills slots that nobody released, only the last waits for the last releases. Each has a multiple of
S steps, so the slots go on in turn. Source: the function of this name in JAX 0.11.2.

Not covered: with `delay_release`, the last d slots are still unreleased when the last pipeline
ends. Retire what reads them (`wgmma_wait(0)`) before that memory is used again.
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

    On Hopper, a drop-in superset of `mosaic_gpu`'s function of this name. Beyond it: outputs of
    several compute threads; no inputs, or some in GMEM or not using the grid; a `delay_release` for
    each; any memory thread; chains with `delay_release`; and what this package's `emit_pipeline`
    has.

    Args:
      body: called at each step by each compute thread as `body(indices, *in_refs, *out_refs,
        *produced, *consumed, carry)`: barriers only if manual, in the tree of `in_specs` (None for
        a pinned input); a carry only with `compute_context`, and then it returns the next. All
        threads get the same refs and divide the work themselves.
      grid, in_specs, out_specs, max_concurrent_steps, ordinary_reads: as in `emit_pipeline` (an
        input whose block does not change is loaded again at each step, and has all slots); an
        input's `collective_axes` multicasts it along a cluster axis.
      memory_registers: of each lane of the memory thread, 24 to 256, a multiple of 8.
      wg_axis: the kernel's thread axis, of size `num_compute_wgs + 1`.
      num_compute_wgs: compute threads, 1 to 7; they share the rest of the registers.
      pipeline_state: place in a chain of pipelines that share allocations and differ in body and
        specs only; may be traced. None: no chain.
      manual_produced_barriers: the body waits for each input's barrier, once.
      manual_consumed_barriers: the body arrives at each input's barrier, once (after `commit_smem`
        if it has ordinary reads), to release the slot of `delay_release` steps ago, if any.
      compute_context: called by compute threads as `compute_context(pipeline)`; must once call
        `pipeline(init_carry)`, which returns the last carry.
      memory_thread_idx: the memory thread; by default the last.

    Returns:
      A function of the GMEM refs, inputs then outputs, that all threads call. For memory that
      outlives a call, pass its `get_allocations(*gmem_refs)` through `pl.run_scoped(...,
      collective_axes=wg_axis)` to its argument `allocations`.

    Raises:
      ValueError, TypeError, NotImplementedError: as `emit_pipeline`; for threads, registers or
        chains.

    Example:
      The kernel has two Pallas threads: thread 0 adds 1, thread 1, the last, loads.

      >>> def add_one(x_gmem, o_gmem):
      ...     block = pl.BlockSpec((16, 128), lambda i: (i, 0))
      ...     def body(indices, x_smem, o_smem):
      ...         o_smem[...] = x_smem[...] + 1.0
      ...     pipeline = pipelib.emit_pipeline_warp_specialized(
      ...         body, grid=(4,), in_specs=[block], out_specs=[block],
      ...         max_concurrent_steps=2, memory_registers=40,
      ...         wg_axis="thread", num_compute_wgs=1,
      ...     )
      ...     pipeline(x_gmem, o_gmem)
      >>> x = jnp.zeros((64, 128))
      >>> kernel = plgpu.kernel(
      ...     add_one, out_type=x, num_threads=2, thread_name="thread")
      >>> with plgpu.force_gpu_interpret_mode():
      ...     y = kernel(x)
      >>> bool((y == 1).all())
      True
    """
    _check_types(body, wg_axis, pipeline_state, compute_context)
    manual = manual_produced_barriers or manual_consumed_barriers
    plan = ring.Plan.of(grid, in_specs, out_specs, max_concurrent_steps, manual)
    memory_registers = specs.integer("memory_registers", memory_registers)
    num_compute_wgs = specs.integer("num_compute_wgs", num_compute_wgs)
    registers = specs.compute_registers(memory_registers, num_compute_wgs)
    if memory_thread_idx is None:
        memory_thread_idx = num_compute_wgs
    memory_thread_idx = specs.integer("memory_thread_idx", memory_thread_idx)
    if not 0 <= memory_thread_idx <= num_compute_wgs:
        raise ValueError(
            f"{memory_thread_idx=} is not 0 to {num_compute_wgs=}: nothing would be loaded."
        )
    (_, slots, num_steps), chained = plan.steps, pipeline_state is not None
    if chained and not isinstance(num_steps, int):
        raise NotImplementedError(
            "A pipeline of pipelines is not supported with dynamic grids: the slot that the last"
            " one ended with, and so the next one's first, is not known."
        )
    if chained and num_steps % slots:
        raise NotImplementedError(
            "A pipeline of pipelines is only allowed when the number of steps is divisible by"
            f" max_concurrent_steps, but {num_steps} = {num_steps // slots} x {slots} +"
            f" {num_steps % slots}: the next would start in a slot with another step's blocks."
        )
    is_first = not chained or pipeline_state == plgpu.PipelinePipeline.START
    is_last = not chained or pipeline_state == plgpu.PipelinePipeline.STOP
    return _Pipeline(
        body, plan, wg_axis, num_compute_wgs, memory_thread_idx, memory_registers, registers,
        chained, is_first, is_last, manual_produced_barriers, manual_consumed_barriers,
        compute_context, ordinary_reads and not manual_consumed_barriers,
    )


def _check_types(body: Any, wg_axis: Any, pipeline_state: Any, compute_context: Any) -> None:
    specs.check_function("body", body)
    if compute_context is not None:
        specs.check_function("compute_context", compute_context)
    if not isinstance(wg_axis, str):
        raise specs.wrong_type("wg_axis", wg_axis, "the axis of the threads is named by a string")
    if pipeline_state is not None and not specs.is_integer(pipeline_state):
        because = "a place in a chain is one of plgpu.PipelinePipeline, or its integer"
        raise specs.wrong_type("pipeline_state", pipeline_state, because)


@dataclasses.dataclass(frozen=True)
class _Pipeline:
    body: Callable[..., Any]
    plan: ring.Plan
    wg_axis: str
    num_compute: int
    memory_thread_idx: int
    memory_registers: int
    compute_registers: int
    chained: bool
    is_first: bool | jax.Array
    is_last: bool | jax.Array
    manual_produced: bool
    manual_consumed: bool
    compute_context: Callable[[Callable], None] | None
    ordinary_reads: bool

    def __call__(self, *gmem_refs: Any, allocations: Any = None) -> None:
        threads, size = self.num_compute + 1, self._threads()
        if size < threads or (allocations is None and size > threads):
            raise ValueError(
                f"num_compute_wgs={self.num_compute} + 1 memory thread = {threads} threads, but the"
                f" axis {self.wg_axis!r} has {size}: a slot is released by {self.num_compute}"
                " arrivals, so fewer deadlock and more release it early."
            )
        run = functools.partial(self._run, self.plan.flatten_refs(gmem_refs))
        if allocations is not None:
            return run(**allocations)
        if self.chained:
            raise ValueError(
                "Pipeline state should not be set when using automatic allocation: the next of the"
                " chain would find none of this one's slots. Pass allocations= (get_allocations)."
            )
        pl.run_scoped(run, **self.get_allocations(*gmem_refs), collective_axes=self.wg_axis)

    def _threads(self) -> int:
        """Those of the kernel."""
        try:
            return lax.axis_size(self.wg_axis)
        except NameError:
            raise ValueError(
                f"wg_axis={self.wg_axis!r} is no axis of this kernel, so no thread would know its"
                " role: give the kernel's thread_name."
            ) from None

    def get_allocations(self, *gmem_refs: Any) -> dict[str, Any]:
        """What a call with these refs allocates, for `pl.run_scoped`."""
        plan, arrivals, kind = self.plan, self.num_compute, plgpu.Barrier
        is_alone = arrivals == 1 or all(operand.pinned for operand in plan.outputs)
        written = None if is_alone else plgpu.Barrier(num_arrivals=arrivals)
        if axes := [a for operand in plan.inputs for a in operand.spec.collective_axes or ()]:
            axes = tuple(dict.fromkeys(axes))
            kind = functools.partial(plgpu.ClusterBarrier, collective_axes=axes)
        slots = plan.steps.slots
        consumed = [kind(num_arrivals=arrivals, num_barriers=slots) for _ in plan.groups]
        barriers, gmem = len(consumed) * slots + (not is_alone), plan.flatten_refs(gmem_refs)
        return dict(plan.allocations(gmem, barriers), consumed=consumed, written=written)

    def _run(self, gmem, smem, produced, consumed, written) -> None:
        """Gives each thread its role; the first compute thread stores what they all write."""
        inputs, outputs, channels = self.plan.bind(gmem, smem, produced, consumed)
        stores, thread = ring.Stores(outputs, self.plan.steps), lax.axis_index(self.wg_axis)
        if written is not None:
            leader = thread == int(self.memory_thread_idx == 0)
            sync = lambda: (plgpu.barrier_arrive(written), plgpu.barrier_wait(written))
            stores = stores._replace(leader=leader, sync=sync)
        memory_thread = functools.partial(self._memory_thread, channels)
        compute_thread = functools.partial(self._compute_thread, inputs, channels, stores)
        lax.cond(thread == self.memory_thread_idx, memory_thread, compute_thread)

    def _memory_thread(self, channels) -> None:
        """Loads each step's inputs as their slots become free."""
        plgpu.set_max_registers(self.memory_registers, action="decrease")
        plan, steps, free = self.plan, self.plan.steps, self.plan.steps.prologue
        if self.is_first is not True:
            free = jnp.where(self.is_first, jnp.int32(free), 0)
        wait = lambda channel, slot: plgpu.barrier_wait(channel.consumed.at[slot])
        indices = plan.load_steps(channels, 0, free, steps.indices())
        plan.load_steps(channels, free, steps.num_steps, indices, wait)

        @pl.when(self.is_last)
        def wait_for_the_last_releases():
            for channel in channels:
                first, end = steps.num_steps - steps.prologue, steps.num_steps - channel.delay
                wait_step = lambda step, _: wait(channel, steps.slot(step))
                steps.loop(first, end, wait_step, unroll=True)

    def _compute_thread(self, inputs, channels, stores: ring.Stores) -> None:
        """Runs the body at each step, within compute_context."""
        plgpu.set_max_registers(self.compute_registers, action="increase")
        call, calls = functools.partial(self._call, channels), []
        release = functools.partial(self._release, [] if self.manual_consumed else channels)
        awaited = [] if self.manual_produced else channels

        def pipeline(*init_carry):
            if calls:
                raise ValueError(
                    "Cannot call pipeline more than once in `compute_context`: each step is loaded"
                    " once, so the second call would wait for ever."
                )
            calls.append(pipeline)
            return self.plan.compute_steps(
                call, inputs, awaited, stores, init_carry, self.ordinary_reads, release
            )

        (self.compute_context or (lambda pipeline: pipeline()))(pipeline)
        if not calls:
            raise ValueError(
                "Pipeline was not called in `compute_context`: the memory thread waits for ever."
            )
        stores.drain()

    def _call(self, channels, step, indices, refs, carry) -> Any:
        """Calls the user's body, with the barriers that it works itself, one for each input."""
        slot, barriers = self.plan.steps.slot, []
        if self.manual_produced:
            barriers.append([c.produced.at[slot(step)] for c in channels])
        if self.manual_consumed:
            barriers.append([c.consumed.at[slot(step, c.delay)] for c in channels])
        for group in barriers:
            leaves = [None if operand.pinned else group.pop(0) for operand in self.plan.inputs]
            refs += self.plan.in_tree.unflatten(leaves)
        return self.body(indices, *refs, *carry)

    def _release(self, channels, step, _) -> None:
        """Tells the memory thread which slots it may load again."""
        for channel in channels:
            barrier = channel.consumed.at[self.plan.steps.slot(step, channel.delay)]
            used = (step >= channel.delay) | (self.is_first ^ True)
            arrive = functools.partial(plgpu.barrier_arrive, barrier)
            pl.when(used if channel.delay else True)(arrive)
