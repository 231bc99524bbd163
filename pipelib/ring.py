"""Slots, channels and stores: what both emitters are made of.

The model. A pipeline runs its body once for each *step* of a sequential grid, whose last axis is
the fastest. Each operand in SMEM has a ring of S *slots*. Step s finds its inputs in slot s mod S.
That slot has a *produced* barrier, which completes phase s // S when the inputs of step s have
landed. The pipeline is right because of four rules:

==================  ================================================================================
before              this has happened
==================  ================================================================================
body(s) reads       produced[s mod S] has completed phase s // S
load(s + S) starts  body(s + delay_release) has ended, and `commit_smem` after it: all lanes have
                    made their ordinary reads, and the copy's write comes after these (PTX counts
                    the copy engine as another proxy, so program order alone does not say so)
body(s) writes      all stores but the last S - 1 have read their slots
store(s) starts     body(s) has ended, and `commit_smem` after it
==================  ================================================================================

A *channel* is all inputs with the same `delay_release`. They are released together, so they share
one barrier of each kind for each slot. An input is loaded at each step, whether its block has
changed or not. An output takes its next slot only when its block changes: consecutive steps that
visit one block build it up in one slot, and the block is stored after the last of them.

Not covered: GPUs before Hopper; what else a body does with its refs; `wgmma` that reads a slot for
more than `delay_release` steps; a block that is left and visited again, whose two stores may land
in either order.
Source: `mosaic_gpu.emit_pipeline` of JAX 0.11.2, except for outputs.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs

#: Grid indices of a step: an int32 scalar for each axis.
Indices = tuple[Any, ...]


class Steps(NamedTuple):
    """`num_steps` steps over a grid, and their slots; ints, or int32 scalars if dynamic."""

    grid: tuple[int | jax.Array, ...]
    slots: int
    num_steps: int | jax.Array

    @classmethod
    def of(cls, grid: Sequence[int | jax.Array], slots: int) -> "Steps":
        """All steps of a grid, with no more slots than steps if their number is known."""
        grid = grid if isinstance(grid, (tuple, list)) else (grid,)
        if not all(map(specs.is_integer, grid)):
            raise ValueError(
                f"{grid=} has a size that is not an integer, so it has no number of steps; use //"
                " instead of /."
            )
        grid = tuple(int(size) if isinstance(size, np.integer) else size for size in grid)
        if any(isinstance(size, int) and size <= 0 for size in grid):
            raise ValueError(
                f"All elements in the grid must be strictly positive, but got {grid=}: no step"
                " would run."
            )
        if all(isinstance(size, int) for size in grid):
            return cls(grid, min(slots, math.prod(grid)), math.prod(grid))
        sizes = tuple(jnp.maximum(jnp.asarray(size, jnp.int32), 0) for size in grid)
        return cls(sizes, slots, math.prod(sizes))

    @property
    def prologue(self) -> int | jax.Array:
        """How many steps are loaded before the first body runs."""
        slots, num_steps = self.slots, self.num_steps
        return slots if isinstance(num_steps, int) else lax.min(np.int32(slots), num_steps)

    def slot(self, step: jax.Array, delay: int = 0) -> jax.Array:
        """The slot of `step - delay`, which may be negative."""
        return lax.rem(step + (-delay) % self.slots, np.int32(self.slots))

    def indices(self, step: int = 0) -> Indices:
        """The grid indices of an early step."""
        first = (jnp.int32(0),) * len(self.grid)
        return functools.reduce(lambda indices, _: self.following(indices), range(step), first)

    def following(self, indices: Indices) -> Indices:
        """The grid indices of the next step; after the last step, those of the first."""
        result, carry = [], jnp.bool(True)
        for index, size in zip(reversed(indices), reversed(self.grid)):
            index = lax.select(carry, index + 1, index)
            carry = index == size
            result.append(lax.select(carry, jnp.int32(0), index))
        return tuple(reversed(result))

    def loop(
        self, start: Any, stop: Any, body: Callable[..., Any], init: Any, *, unroll: bool = False
    ) -> Any:
        """`fori_loop` with int32 steps whatever the default integer is; unrolls ints only."""
        unroll &= isinstance(start, int) and isinstance(stop, int)
        one_step = lambda step, state: body(jnp.int32(step), state)
        return lax.fori_loop(start, stop, one_step, init, unroll=unroll)


class Buffer(NamedTuple):
    """An operand with its GMEM ref and its slots in SMEM (None if it is pinned to GMEM)."""

    operand: specs.Operand
    gmem: Any
    smem: Any

    def at(self, slot: Any) -> Any:
        """The ref that the body gets: a slot, or the GMEM ref if pinned."""
        return self.gmem if self.operand.pinned else self.smem.at[slot]

    def load(self, slot: Any, indices: Indices, barrier: Any) -> None:
        """Starts the copy of a step's block into a slot."""
        block, spec = self.gmem.at[self.operand.gmem_slices(indices)], self.operand.spec
        options = dict(collective_axes=spec.collective_axes, oob_mode=spec.oob_fill_mode)
        plgpu.copy_gmem_to_smem(block, self.smem.at[slot], barrier, **options)

    def store(self, slot: Any, indices: Indices) -> None:
        """Starts the copy of a slot to a step's block; the caller closes the group."""
        block = self.gmem.at[self.operand.gmem_slices(indices)]
        plgpu.copy_smem_to_gmem(self.smem.at[slot], block, commit_group=False)


class Channel(NamedTuple):
    """Inputs that are released together, and their barriers, one of each kind for each slot.

    `consumed` is None where program order tells when a slot is free.
    """

    delay: int
    buffers: list[Buffer]
    produced: Any
    consumed: Any = None

    def load(self, slot: Any, indices: Indices) -> None:
        """Starts the copies of a step's blocks into a slot."""
        for buffer in self.buffers:
            buffer.load(slot, indices, self.produced.at[slot])

    def wait_until_loaded(self, slot: Any) -> None:
        """Returns once a step's blocks have landed in a slot."""
        plgpu.barrier_wait(self.produced.at[slot])

    def release(self, slot: Any) -> None:
        """Tells the thread that loads: this compute thread no longer reads a slot."""
        plgpu.barrier_arrive(self.consumed.at[slot])

    def wait_until_released(self, slot: Any) -> None:
        """Returns once all compute threads have released a slot."""
        plgpu.barrier_wait(self.consumed.at[slot])


class Stores(NamedTuple):
    """The outputs of a pipeline. The `leader` of the threads that write stores for all of them.

    `meet` returns once all these threads have called it.
    """

    outputs: tuple[Buffer, ...]
    steps: Steps
    leader: bool | jax.Array = True
    meet: Callable[[], Any] = lambda: None

    @property
    def any(self) -> bool:
        """Whether there is anything to store."""
        return not all(buffer.operand.pinned for buffer in self.outputs)

    def first_slots(self) -> tuple[jax.Array, ...]:
        """The slot of each output at the first step."""
        return (jnp.int32(0),) * len(self.outputs)

    def wait_for_free_slots(self) -> None:
        """Returns once the slots that the body writes next are free."""
        if self.any:
            stores = self.steps.slots - 1
            pl.when(self.leader)(lambda: plgpu.wait_smem_to_gmem(stores, wait_read_only=True))
            self.meet()

    def store(self, step: jax.Array, indices: Indices, slots: tuple[Any, ...]) -> tuple[Any, ...]:
        """Starts to store the blocks that the next step does not visit; returns its slots.

        All threads must have committed what they wrote.
        """
        if not self.any:
            return slots
        self.meet()
        following, next_slots = self.steps.following(indices), []
        for buffer, slot in zip(self.outputs, slots, strict=True):
            blocks = map(buffer.operand.block_indices, (indices, following))
            changes = (jnp.asarray(old != new) for old, new in zip(*blocks))
            done = functools.reduce(lax.bitwise_or, changes, step == self.steps.num_steps - 1)
            if not buffer.operand.pinned:
                pl.when(done & self.leader)(functools.partial(buffer.store, slot, indices))
            if buffer.operand.changes:
                slot = lax.select(done, self.steps.slot(slot + 1), slot)
            next_slots.append(slot)
        pl.when(self.leader)(plgpu.commit_smem_to_gmem_group)  # also if empty: groups count steps
        return tuple(next_slots)

    def drain(self) -> None:
        """Returns once every store is done."""
        if self.any:
            pl.when(self.leader)(lambda: plgpu.wait_smem_to_gmem(0))
            self.meet()


class Plan(NamedTuple):
    """The arguments of a pipeline, checked; `groups` has the positions of each channel's inputs."""

    steps: Steps
    inputs: tuple[specs.Operand, ...]
    outputs: tuple[specs.Operand, ...]
    in_tree: Any
    tree: Any
    groups: list[list[int]]

    @classmethod
    def of(
        cls, grid: Sequence[Any], in_specs: Any, out_specs: Any, slots: int, separate: bool = False
    ) -> "Plan":
        """Groups the inputs by delay_release, or makes each a channel of its own (`separate`)."""
        slots = specs.integer("max_concurrent_steps", slots)
        rank = len((steps := Steps.of(grid, slots)).grid)
        inputs, in_tree = specs.flatten(in_specs, "in_specs", rank)
        outputs, out_tree = specs.flatten(out_specs, "out_specs", rank)
        specs.check_slots(slots, inputs)
        groups: dict[int, list[int]] = {}
        for i, operand in enumerate(inputs):
            if not operand.pinned:
                groups.setdefault(i if separate else operand.spec.delay_release, []).append(i)
        tree = jax.tree.structure(in_tree.unflatten(inputs) + out_tree.unflatten(outputs))
        return cls(steps, inputs, outputs, in_tree, tree, [groups[key] for key in sorted(groups)])

    def flatten_refs(self, gmem_refs: tuple[Any, ...]) -> list[Any]:
        """The refs of inputs and outputs in order.

        Raises:
          ValueError, TypeError: if they do not match the specs, or one is not a ref.
        """
        leaves, tree = jax.tree.flatten(gmem_refs)
        if tree != self.tree:
            raise ValueError(
                f"{len(self.inputs)} in_specs and then {len(self.outputs)} out_specs need refs of"
                f" the same pytree structure, {self.tree}, but got {len(leaves)}: {tree}."
            )
        for operand, leaf in zip(self.inputs + self.outputs, leaves):
            specs.check_ref(f"the operand of {operand.name}", leaf)
        return leaves

    def allocations(self, gmem: list[Any], more_barriers: int = 0) -> dict[str, Any]:
        """SMEM and produced barriers; ValueError if a block does not have as much SMEM."""
        slots, operands = self.steps.slots, self.inputs + self.outputs
        counts = [slots] * len(self.inputs) + [slots if o.changes else 1 for o in self.outputs]
        smem = list(map(specs.Operand.allocation, operands, gmem, counts))
        specs.check_smem(operands, smem, slots * len(self.groups) + more_barriers)
        barrier = lambda group: plgpu.Barrier(num_arrivals=len(group), num_barriers=slots)
        return dict(smem=smem, produced=list(map(barrier, self.groups)))

    def bind(
        self, gmem: list[Any], smem: list[Any], produced: list[Any], consumed: Any = None
    ) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...], list[Channel]]:
        """The buffers of inputs and of outputs, and the channels, of what was allocated."""
        buffers = tuple(map(Buffer, self.inputs + self.outputs, gmem, smem))
        inputs, outputs = buffers[: len(self.inputs)], buffers[len(self.inputs) :]
        if consumed is None:
            consumed = [None] * len(self.groups)
        channels = []
        for group, full, free in zip(self.groups, produced, consumed, strict=True):
            delay = self.inputs[group[0]].spec.delay_release
            channels.append(Channel(delay, [inputs[i] for i in group], full, free))
        return inputs, outputs, channels

    def refs(self, buffers: tuple[Buffer, ...], slot: Any, out_slots: tuple[Any, ...]) -> Any:
        """What the body gets of inputs in this slot and outputs in those, in the specs' trees."""
        slots = (slot,) * len(self.inputs) + out_slots
        return self.tree.unflatten(map(Buffer.at, buffers, slots))

    def commit(self, ordinary_reads: bool) -> None:
        """`commit_smem`, if the body has written a slot or read one by ordinary loads."""
        operands = self.outputs + (self.inputs if ordinary_reads else ())
        if not all(operand.pinned for operand in operands):
            plgpu.commit_smem()


def load_first(steps: Steps, channels: list[Channel], stop: Any) -> Indices:
    """Loads the steps before `stop` into slots that are free; returns the indices of `stop`."""

    def load(step: jax.Array, indices: Indices) -> Indices:
        slot = steps.slot(step)
        for channel in channels:
            channel.load(slot, indices)
        return steps.following(indices)

    return steps.loop(0, stop, load, steps.indices(), unroll=True)


def run_body(
    body: Callable[..., Any], indices: Indices, refs: Any, carry: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Calls the body with its carry, a tuple of one or none; returns the next carry."""
    result = body(indices, *refs, *carry)
    if not carry:
        return ()
    if jax.tree.structure(result) != (tree := jax.tree.structure(carry[0])):
        raise ValueError(
            f"The body got a carry {tree} but returned {jax.tree.structure(result)}: there is no"
            " carry for the next step. It must return one like the one it took."
        )
    return (result,)
