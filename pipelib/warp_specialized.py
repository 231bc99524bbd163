"""`emit_pipeline_warp_specialized`: one thread loads, the others compute.

The algorithm, for S slots and delay d (`ring` says why it is right)::

    memory thread                        each compute thread
    load steps 0 .. S-1                  for each step s:
    for each step s from S:                wait     for the inputs, at produced[s mod S]
      wait  for consumed[s mod S]          wait     for free output slots
      load  step s into its slot           body     on slot s mod S
    wait for the last S - d releases       commit   its reads and writes
                                           release  the slot of step s - d, at consumed
                                           store    the blocks that step s + 1 does not visit
                                         wait for all stores

    barrier    completes a phase when            arrivals
    produced   the inputs of a step have landed  one for each copy
    consumed   its slot may be loaded again      one for each compute thread (of a cluster)
    written    all compute threads are there     one for each compute thread

Several compute threads share the slots of an output. The first of them waits for a free slot, and
stores, for all. They meet at `written` after this wait, and again before the store. A single
compute thread needs no such barrier.

A chain of pipelines (START, STEADY ..., STOP) is one long pipeline to its barriers. Only the first
one fills slots that nobody has released, and only the last one waits for the last releases. Each
has a multiple of S steps, so that the next one begins in slot 0; or it says how many steps the
chain has made before it, and begins in the slot after theirs.

With `delay_release`, the last d slots are still unreleased when the steps end. Wait for what reads
them (`wgmma_wait(0)`) before that memory is used again. Where blocks of a cluster share loads, a
peer may be the first to use it: its next pipeline loads for both. So there the compute threads
release the last d slots, too, once `compute_context` has returned, and the memory thread waits for
all S. Wait for the products within `compute_context`, then.

Not covered: a chain, or manual consumed barriers, that share loads. Before its memory is used
again, let the cluster meet.
Source: the function of this name in JAX 0.11.2.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring, specs, targets
from pipelib.refs import Body, Bool, Ref, Tree

#: What `compute_context` is given. It runs all steps: from the first carry, if any, to the last.
AllSteps = Callable[..., Tree]


def emit_pipeline_warp_specialized(
    body: Body,
    *,
    grid: Sequence[ring.Size],
    memory_registers: int,
    in_specs: Tree = (),
    out_specs: Tree = (),
    max_concurrent_steps: int = 2,
    wg_axis: str,
    num_compute_wgs: int,
    pipeline_state: jax.Array | plgpu.PipelinePipeline | None = None,
    steps_before: jax.Array | None = None,
    manual_produced_barriers: bool = False,
    manual_consumed_barriers: bool = False,
    compute_context: Callable[[AllSteps], None] | None = None,
    memory_thread_idx: int | None = None,
    ordinary_reads: bool = True,
) -> "WarpSpecializedPipeline":
    """Makes a pipeline with a memory thread, inside a Pallas kernel.

    On Hopper, a drop-in superset of `mosaic_gpu`'s function of this name. It adds outputs of
    several compute threads; pipelines without inputs, and inputs in GMEM or whose index map does
    not use the grid; a `delay_release` for each input; the choice of the memory thread; chains with
    `delay_release`; and all that this package's `emit_pipeline` adds.

    Args:
      body: called at each step by each compute thread as `body(indices, *in_refs, *out_refs,
        *produced, *consumed, carry)`. It gets barriers only if they are manual, in the tree of
        `in_specs` (None for a pinned input). It gets a carry only with `compute_context`, and then
        returns the next one. All compute threads get the same refs, and divide the work themselves.
      grid, in_specs, out_specs, max_concurrent_steps, ordinary_reads: as in `emit_pipeline`. The
        `collective_axes` of an input multicast it along a cluster axis.
      memory_registers: registers for each lane of the memory thread, 24 to 256, a multiple of 8.
      wg_axis: the name of the kernel's thread axis, which has `num_compute_wgs + 1` threads.
      num_compute_wgs: the number of compute threads, 1 to 7; they share the rest of the registers.
      pipeline_state: the place in a chain of pipelines, which share allocations and differ only in
        body and specs; may be traced. None: no chain.
      steps_before: how many steps the chain has made before this pipeline, an int32 scalar; then
        these need not be a multiple of the slots. None: they are.
      manual_produced_barriers: at each step the body waits for the barrier of each input, once.
      manual_consumed_barriers: at each step the body arrives once at the barrier of each input, and
        so releases the slot that was read `delay_release` steps before, if there was one. After
        ordinary reads it calls `commit_smem` first.
      compute_context: each compute thread calls `compute_context(pipeline)`. It must call
        `pipeline(init_carry)` exactly once; that returns the last carry.
      memory_thread_idx: the index of the memory thread; by default the last.

    Returns:
      A function of the GMEM refs, inputs then outputs, that all threads call. For memory that
      outlives a call, pass its `get_allocations(*gmem_refs)` through `pl.run_scoped(...,
      collective_axes=wg_axis)` to its argument `allocations`.

    Raises:
      ValueError, TypeError, NotImplementedError: as `emit_pipeline`, and for wrong threads,
        registers or chains.

    Example:
      The kernel has two Pallas threads: thread 0 adds 1; thread 1, the last, loads.

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
    manual_produced_barriers = specs.flag("manual_produced_barriers", manual_produced_barriers)
    manual_consumed_barriers = specs.flag("manual_consumed_barriers", manual_consumed_barriers)
    ordinary_reads = specs.flag("ordinary_reads", ordinary_reads)
    manual = manual_produced_barriers or manual_consumed_barriers
    plan = ring.Plan.of(grid, in_specs, out_specs, max_concurrent_steps, manual)
    if steps_before is not None:
        if not specs.is_integer(steps_before):
            because = "it is how many steps the chain has made, an int32 scalar"
            raise specs.wrong_type("steps_before", steps_before, because)
        plan = plan._replace(steps=plan.steps._replace(before=steps_before))
    return WarpSpecializedPipeline(
        body=body,
        plan=plan,
        threads=specs.Threads.of(wg_axis, num_compute_wgs, memory_thread_idx, memory_registers),
        chain=_Chain.of(pipeline_state, plan.steps),
        manual_produced=manual_produced_barriers,
        manual_consumed=manual_consumed_barriers,
        compute_context=compute_context,
        ordinary_reads=ordinary_reads and not manual_consumed_barriers,
    )


def _check_types(
    body: object, wg_axis: object, pipeline_state: object, compute_context: object
) -> None:
    specs.check_function("body", body)
    if compute_context is not None:
        specs.check_function("compute_context", compute_context)
    if not isinstance(wg_axis, str):
        raise specs.wrong_type("wg_axis", wg_axis, "the axis of the threads is named by a string")
    if pipeline_state is not None and not specs.is_integer(pipeline_state):
        because = "a place in a chain is one of plgpu.PipelinePipeline, or its integer"
        raise specs.wrong_type("pipeline_state", pipeline_state, because)


class _Chain(NamedTuple):
    """The place of a pipeline in a chain.

    Attributes:
      exists: whether there is a chain.
      is_first: whether nobody has released its slots before; traced if the place is.
      is_last: whether it waits for the last releases; traced if the place is.
    """

    exists: bool = False
    is_first: Bool = True
    is_last: Bool = True

    @classmethod
    def of(cls, state: jax.Array | plgpu.PipelinePipeline | None, steps: ring.Steps) -> "_Chain":
        """The place that `pipeline_state` says.

        Raises:
          NotImplementedError: the next pipeline of the chain would not begin in slot 0.
        """
        if state is None:
            return cls()
        slots, num_steps = steps.slots, steps.num_steps
        if not isinstance(num_steps, int):
            raise NotImplementedError(
                "A pipeline of pipelines is not supported with dynamic grids: the slot that one"
                " pipeline ends with, and so the first slot of the next, is not known."
            )
        if num_steps % slots and isinstance(steps.before, int):
            raise NotImplementedError(
                "A pipeline of pipelines is only allowed when the number of steps is divisible by"
                f" max_concurrent_steps, but {num_steps} = {num_steps // slots} x {slots} +"
                f" {num_steps % slots}: the next would start in a slot with another step's blocks."
            )
        places = plgpu.PipelinePipeline
        return cls(True, state == places.START, state == places.STOP)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarpSpecializedPipeline:
    """What `emit_pipeline_warp_specialized` returns. All threads of a block call it.

    Attributes:
      body, compute_context, ordinary_reads: arguments of the emitter.
      plan: the steps and the operands.
      threads: the roles of the threads.
      chain: its place in a chain of pipelines.
      manual_produced, manual_consumed: whether the body itself waits for, and releases, slots.
    """

    body: Body
    plan: ring.Plan
    threads: specs.Threads
    chain: _Chain
    manual_produced: bool
    manual_consumed: bool
    compute_context: Callable[[AllSteps], None] | None
    ordinary_reads: bool

    def __call__(self, *gmem_refs: Tree, allocations: ring.Allocations | None = None) -> None:
        """Runs the pipeline on these refs: all threads of a block call it.

        Raises:
          ValueError, TypeError: the refs do not match the specs; the kernel has other threads than
            the pipeline; a chain without allocations.
          NotImplementedError: the kernel is traced for a GPU before Hopper.
        """
        if not targets.has_tma():
            raise NotImplementedError(
                f"emit_pipeline_warp_specialized is traced for {targets.described()}, which has no"
                " TMA: before Hopper (9.0) a load completes no barrier, so no other thread would"
                " know that it has landed. Use emit_pipeline, whose one thread loads and computes."
            )
        self.threads.check_kernel(exact=allocations is None)
        run = functools.partial(self._run, self.plan.flatten_refs(gmem_refs))
        if allocations is not None:
            return run(**allocations)
        if self.chain.exists:
            raise ValueError(
                "Pipeline state should not be set when using automatic allocation: the next of the"
                " chain would find none of this one's slots. Pass allocations= (get_allocations)."
            )
        allocations = self.get_allocations(*gmem_refs)
        pl.run_scoped(run, **allocations, collective_axes=self.threads.axis)

    def get_allocations(self, *gmem_refs: Tree) -> ring.Allocations:
        """The SMEM and barriers of a call with these refs, for `pl.run_scoped`.

        Raises:
          ValueError, TypeError: the refs do not match the specs, or a block has too little SMEM.
        """
        plan, threads, slots = self.plan, self.threads.compute, self.plan.steps.slots
        is_alone = threads == 1 or all(operand.pinned for operand in plan.outputs)
        written = None if is_alone else plgpu.Barrier(num_arrivals=threads)
        consumed = [self._consumed_barriers() for _ in plan.groups]
        barriers, gmem = len(consumed) * slots + (not is_alone), plan.flatten_refs(gmem_refs)
        return dict(plan.allocations(gmem, barriers), consumed=consumed, written=written)

    def load(self, *gmem_refs: Tree, allocations: ring.Allocations) -> None:
        """The memory thread's part alone, also for one of its warps; registers stay as they are.

        For a kernel that gives its threads their roles itself, because the memory thread has
        another one beside this. Its compute threads call `compute`.

        Raises:
          ValueError, TypeError: the refs do not match the specs.
        """
        thread, gmem = lax.axis_index(self.threads.axis), self.plan.flatten_refs(gmem_refs)
        _, _, channels = self._bind(thread, gmem, **allocations)
        self._load_steps(channels)

    def compute(self, *gmem_refs: Tree, allocations: ring.Allocations) -> None:
        """A compute thread's part alone; registers stay as they are. Others call `load`.

        Raises:
          ValueError, TypeError: the refs do not match the specs.
        """
        thread, gmem = lax.axis_index(self.threads.axis), self.plan.flatten_refs(gmem_refs)
        inputs, stores, channels = self._bind(thread, gmem, **allocations)
        self._compute_steps(inputs, channels, stores)

    def _consumed_barriers(self) -> plgpu.Barrier | plgpu.ClusterBarrier:
        """The consumed barriers of a channel; if loads are shared, the whole cluster arrives."""
        threads, slots = self.threads.compute, self.plan.steps.slots
        axes = [axis for operand in self.plan.inputs for axis in operand.collective_axes or ()]
        if not axes:
            return plgpu.Barrier(num_arrivals=threads, num_barriers=slots)
        shared = tuple(dict.fromkeys(axes))
        return plgpu.ClusterBarrier(
            collective_axes=shared, num_arrivals=threads, num_barriers=slots
        )

    def _run(
        self,
        gmem: list[Ref],
        smem: list[Ref | None],
        produced: list[Ref],
        consumed: list[Ref],
        written: Ref | None,
    ) -> None:
        """Gives each thread its role."""
        thread = lax.axis_index(self.threads.axis)
        inputs, stores, channels = self._bind(thread, gmem, smem, produced, consumed, written)
        memory_thread = functools.partial(self._memory_thread, channels)
        compute_thread = functools.partial(self._compute_thread, inputs, channels, stores)
        lax.cond(thread == self.threads.memory_thread, memory_thread, compute_thread)

    def _bind(
        self,
        thread: jax.Array,
        gmem: list[Ref],
        smem: list[Ref | None],
        produced: list[Ref],
        consumed: list[Ref],
        written: Ref | None,
    ) -> tuple[tuple[ring.Buffer, ...], ring.Stores, list[ring.Channel]]:
        """The buffers of the inputs, a thread's stores, and the channels, of what was allocated."""
        inputs, outputs, channels = self.plan.bind(gmem, smem, produced, consumed)
        stores = ring.Stores(outputs, self.plan.steps._replace(before=0))  # each drains its stores
        if written is not None:
            leader = thread == self.threads.first_compute_thread
            meet = functools.partial(_meet, written)
            stores = stores._replace(leader=leader, meet=meet)
        return inputs, stores, channels

    def _memory_thread(self, channels: list[ring.Channel]) -> None:
        plgpu.set_max_registers(self.threads.memory_registers, action="decrease")
        self._load_steps(channels)

    @property
    def _releases_all(self) -> bool:
        """Whether the last d slots are released, too: a peer's next pipeline may load there."""
        shared = any(operand.collective_axes for operand in self.plan.inputs)
        return shared and not self.chain.exists and not self.manual_consumed

    def _load_steps(self, channels: list[ring.Channel]) -> None:
        """Loads each step's inputs as their slots become free."""
        steps, free = self.plan.steps, self.plan.steps.prologue
        if self.chain.is_first is not True:
            free = jnp.where(self.chain.is_first, jnp.int32(free), 0)

        def one_step(step: jax.Array, indices: ring.Indices) -> ring.Indices:
            slot = steps.slot(step)
            for channel in channels:
                channel.wait_until_released(slot)
                channel.load(slot, indices)
            return steps.following(indices)

        indices = ring.load_first(steps, channels, free)
        steps.loop(free, steps.num_steps, one_step, indices)

        @pl.when(self.chain.is_last)
        def wait_for_the_last_releases():
            for channel in channels:
                unreleased = 0 if self._releases_all else channel.delay
                first, end = steps.num_steps - steps.prologue, steps.num_steps - unreleased

                def wait(step: jax.Array, _: None) -> None:
                    channel.wait_until_released(steps.slot(step))

                steps.loop(first, end, wait, None, unroll=True)

    def _compute_thread(
        self, inputs: tuple[ring.Buffer, ...], channels: list[ring.Channel], stores: ring.Stores
    ) -> None:
        plgpu.set_max_registers(self.threads.compute_registers, action="increase")
        self._compute_steps(inputs, channels, stores)

    def _compute_steps(
        self, inputs: tuple[ring.Buffer, ...], channels: list[ring.Channel], stores: ring.Stores
    ) -> None:
        """Runs the body at each step, within `compute_context`."""
        plan, steps = self.plan, self.plan.steps

        def one_step(step: jax.Array, state: _State) -> _State:
            indices, out_slots, carry, slots = state
            slot = slots[0] if slots else steps.slot(step)  # counting on is short, a rest is not
            for channel in [] if self.manual_produced else channels:
                channel.wait_until_loaded(slot)
            stores.wait_for_free_slots()
            refs = plan.refs(inputs + stores.outputs, slot, out_slots)
            refs += self._manual_barriers(channels, step)
            carry = ring.run_body(self.body, indices, refs, carry)
            plan.commit(self.ordinary_reads)
            for channel in [] if self.manual_consumed else channels:
                self._release(channel, step)
            out_slots = stores.store(step, indices, out_slots)
            slots = tuple(lax.select(x == steps.slots - 1, jnp.int32(0), x + 1) for x in slots)
            return _State(steps.following(indices), out_slots, carry, slots)

        def all_steps(*init_carry: Tree) -> Tree:
            slots = () if isinstance(steps.before, int) else (steps.slot(jnp.int32(0)),)
            state = _State(steps.indices(), stores.first_slots(), init_carry, slots)
            state = steps.loop(0, steps.num_steps, one_step, state)
            return state.carry[0] if state.carry else None

        _call_once(self.compute_context or (lambda pipeline: pipeline()), all_steps)
        for channel in channels if self._releases_all else []:
            self._release_the_rest(channel)
        stores.drain()

    def _manual_barriers(self, channels: list[ring.Channel], step: jax.Array) -> tuple[Tree, ...]:
        """The barriers that the body itself waits for and arrives at, in the tree of `in_specs`."""
        slot, trees = self.plan.steps.slot, ()
        if self.manual_produced:
            trees += self._in_tree([c.produced.at[slot(step)] for c in channels])
        if self.manual_consumed:
            trees += self._in_tree([c.consumed_at(slot(step, c.delay)) for c in channels])
        return trees

    def _in_tree(self, barriers: list[Ref]) -> tuple[Tree, ...]:
        """A barrier of each input that is not pinned, in the tree of `in_specs`; None if pinned."""
        rest = iter(barriers)
        leaves = [None if operand.pinned else next(rest) for operand in self.plan.inputs]
        return self.plan.in_tree.unflatten(leaves)

    def _release(self, channel: ring.Channel, step: jax.Array) -> None:
        """Releases the slot of step - d, which a previous pipeline of the chain may have read."""
        release = functools.partial(channel.release, self.plan.steps.slot(step, channel.delay))
        used = (step >= channel.delay) | (self.chain.is_first ^ True)
        pl.when(used if channel.delay else True)(release)

    def _release_the_rest(self, channel: ring.Channel) -> None:
        """Releases the slots of the last d steps, as d more steps would."""
        end = self.plan.steps.num_steps

        def release(step: jax.Array, _: None) -> None:
            self._release(channel, step)

        self.plan.steps.loop(end, end + channel.delay, release, None, unroll=True)


class _State(NamedTuple):
    """What one step of a compute thread hands to the next.

    Attributes:
      indices: its grid indices.
      out_slots: the slot of each output.
      carry: a tuple of the body's carry, or of nothing.
      slots: a tuple of its slot if its number does not tell it, or of nothing.
    """

    indices: ring.Indices
    out_slots: ring.Indices
    carry: tuple[Tree, ...]
    slots: ring.Indices = ()


def _meet(written: Ref) -> None:
    """Returns once all compute threads have called it."""
    plgpu.barrier_arrive(written)
    plgpu.barrier_wait(written)


def _call_once(context: Callable[[AllSteps], None], all_steps: AllSteps) -> None:
    """Calls `compute_context` with the pipeline.

    Raises:
      ValueError: it did not call the pipeline exactly once.
    """
    calls = 0

    def pipeline(*init_carry: Tree) -> Tree:
        nonlocal calls
        if calls:
            raise ValueError(
                "Cannot call pipeline more than once in `compute_context`: each step is loaded"
                " once, so the second call would wait for ever."
            )
        calls += 1
        return all_steps(*init_carry)

    context(pipeline)
    if not calls:
        raise ValueError(
            "Pipeline was not called in `compute_context`: the memory thread waits for ever."
        )
