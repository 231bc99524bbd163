"""Slots, steps and copies: what both emitters are made of.

The model. A pipeline runs its body once for each *step* of a sequential grid, last axis fastest.
Each operand in SMEM has a ring of S slots; the inputs of step `s` are in slot `s mod S`, whose
*produced* barrier completes a phase each time a step's inputs have landed: phase `s // S`.

==================  ================================================================================
before              this has happened
==================  ================================================================================
body(s) reads       produced[s mod S] completed phase s // S
load(s + S) starts  body(s + delay_release), and `commit_smem` after it: all lanes' ordinary reads
                    of the slot are over, and ordered before the copy engine's write (in PTX's
                    terms, another proxy's)
body(s) writes      all stores but the last S - 1 have read their slots
store(s) starts     body(s), and `commit_smem` after it
==================  ================================================================================

Inputs with the same `delay_release` are released together and form a *channel*.

An output takes its next slot not at each step but when its block changes, and the block is stored
after the last of its consecutive steps: steps that visit the same block build it up together.

Not covered: what a body does besides with its refs; `wgmma` that reads a slot for more than
`delay_release` steps. Source: `mosaic_gpu.emit_pipeline` of JAX 0.11.2, where however outputs take
a new slot at each step.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs

Indices = tuple[jax.Array, ...]


def when(condition: bool | jax.Array, action: Callable[[], None]) -> None:
    """Runs `action` if `condition`, deciding now where that is known."""
    if not isinstance(condition, bool):
        lax.cond(condition, action, lambda: None)
    elif condition:
        action()


@dataclasses.dataclass(frozen=True)
class Steps:
    """`count` steps over a grid and the slots they go through; ints, or int32 if dynamic."""

    grid: tuple[int | jax.Array, ...]
    slots: int
    count: int | jax.Array

    @classmethod
    def of(cls, grid: Sequence[int | jax.Array], slots: int) -> "Steps":
        """All steps of a grid, with no more slots than steps where that is known."""
        if any(isinstance(size, int) and size <= 0 for size in grid):
            raise ValueError(
                f"All elements in the grid must be strictly positive, but got {grid=}: with no"
                " steps the outputs would never be written."
            )
        if all(isinstance(size, int) for size in grid):
            count = math.prod(grid)
            return cls(tuple(grid), min(slots, count), count)
        sizes = tuple(jnp.maximum(jnp.asarray(size, jnp.int32), 0) for size in grid)
        return cls(sizes, slots, functools.reduce(lax.mul, sizes))

    @property
    def prologue(self) -> int | jax.Array:
        """How many steps are loaded before the first body runs."""
        return self.slots if isinstance(self.count, int) else lax.min(self.slots, self.count)

    def slot(self, step: jax.Array, delay: int = 0) -> jax.Array:
        """The slot of `step - delay`, which may be negative."""
        return lax.rem(step + (-delay) % self.slots, np.int32(self.slots))

    def indices(self, step: int = 0) -> Indices:
        """The grid indices of a step."""
        indices, rest = [], jnp.int32(step)
        for size in reversed(self.grid):
            size = jnp.maximum(jnp.int32(size), 1)  # an empty axis divides by none
            indices.append(lax.rem(rest, size))
            rest = lax.div(rest, size)
        return tuple(reversed(indices))

    def following(self, indices: Indices) -> Indices:
        """The grid indices of the next step; after the last, of the first."""
        result, carry = [], jnp.bool(True)
        for index, size in zip(reversed(indices), reversed(self.grid)):
            index = lax.select(carry, index + 1, index)
            carry = index == size
            result.append(lax.select(carry, jnp.int32(0), index))
        return tuple(reversed(result))

    def loop(self, start, stop, body, init=None, unroll: bool = False) -> Any:
        """`fori_loop` with int32 steps whatever the default integer is; unrolls ints only."""
        unroll &= isinstance(start, int) and isinstance(stop, int)
        bounds = (np.int32(b) if isinstance(b, int) else b for b in (start, stop))
        return lax.fori_loop(*bounds, body, init, unroll=unroll)


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An operand with its GMEM ref and its slots in SMEM, if any."""

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
        """Starts the copy of a slot to a step's block, in no group yet."""
        block = self.gmem.at[self.operand.gmem_slices(indices)]
        plgpu.copy_smem_to_gmem(self.smem.at[slot], block, commit_group=False)


class Channel(NamedTuple):
    """Inputs that are released together, with one barrier of each kind for each slot."""

    delay: int
    buffers: tuple[Buffer, ...]
    produced: Any
    consumed: Any

    def load(self, slot: Any, indices: Indices) -> None:
        """Starts the copies of a step's blocks into a slot."""
        for buffer in self.buffers:
            buffer.load(slot, indices, self.produced.at[slot])


class Stores(NamedTuple):
    """A pipeline's outputs: written by one thread or several, stored by the leader.

    `sync` makes the threads that write wait for each other.
    """

    outputs: tuple[Buffer, ...]
    steps: Steps
    leader: bool | jax.Array = True
    sync: Callable[[], Any] = lambda: None

    @property
    def any(self) -> bool:
        """Whether there is anything to store."""
        return not all(buffer.operand.pinned for buffer in self.outputs)

    def before_body(self) -> None:
        """Returns once the slots that the body writes next are free."""
        if self.any:
            pending = self.steps.slots - 1
            when(self.leader, lambda: plgpu.wait_smem_to_gmem(pending, wait_read_only=True))
            self.sync()

    def after_body(self, step: jax.Array, indices: Indices, slots: tuple) -> tuple:
        """Stores the blocks, already committed, that the next step does not visit.

        Each step is one group, with stores or without, so that groups count steps. Returns each
        output's slot at the next step.
        """
        if not self.any:
            return slots
        self.sync()
        following, next_slots = self.steps.following(indices), []
        for buffer, slot in zip(self.outputs, slots, strict=True):
            blocks = map(buffer.operand.block_indices, (indices, following))
            changes = (jnp.asarray(old != new) for old, new in zip(*blocks))
            done = functools.reduce(lax.bitwise_or, changes, step == self.steps.count - 1)
            if not buffer.operand.pinned:
                when(done & self.leader, lambda: buffer.store(slot, indices))
            if buffer.operand.changes:
                slot = lax.select(done, self.steps.slot(slot + 1), slot)
            next_slots.append(slot)
        when(self.leader, plgpu.commit_smem_to_gmem_group)
        return tuple(next_slots)

    def drain(self) -> None:
        """Returns once every store is done."""
        if self.any:
            when(self.leader, lambda: plgpu.wait_smem_to_gmem(0))
            self.sync()


class Plan(NamedTuple):
    """A pipeline before it meets its operands: its arguments, checked.

    `groups` are the positions of the inputs of each channel.
    """

    steps: Steps
    inputs: tuple[specs.Operand, ...]
    outputs: tuple[specs.Operand, ...]
    trees: tuple[Any, Any]
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, grid, in_specs, out_specs, slots: int, separate: bool = False) -> "Plan":
        """Groups the inputs by delay_release, or makes each a channel of its own (`separate`)."""
        steps, rank = Steps.of(grid, slots), len(grid)
        inputs, in_tree = specs.flatten(in_specs, "in_specs", rank)
        outputs, out_tree = specs.flatten(out_specs, "out_specs", rank)
        specs.check_slots(slots, inputs)
        groups = {}
        for i, operand in enumerate(inputs):
            if not operand.pinned:
                groups.setdefault(i if separate else operand.spec.delay_release, []).append(i)
        groups = tuple(tuple(groups[key]) for key in sorted(groups))
        return cls(steps, inputs, outputs, (in_tree, out_tree), groups)

    def flatten_refs(self, gmem_refs: tuple) -> list[Any]:
        """The refs of inputs and outputs in order; ValueError if the trees differ."""
        split, flat = len(self.trees[0].children()), []
        parts = gmem_refs[:split], gmem_refs[split:]
        for name, refs, tree in zip(("Input", "Output"), parts, self.trees):
            leaves, ref_tree = jax.tree.flatten(refs)
            if ref_tree != tree:
                raise ValueError(
                    f"{name} specs and {name.lower()} gmem refs must have the same pytree"
                    f" structure. {tree} != {ref_tree}: {tree.num_leaves} blocks would meet"
                    f" {len(leaves)} operands."
                )
            flat += leaves
        return flat

    def allocations(self, gmem: list[Any], more_barriers: int = 0) -> dict[str, Any]:
        """SMEM and produced barriers; ValueError if a block has not so much."""
        slots, operands = self.steps.slots, self.inputs + self.outputs
        counts = [slots] * len(self.inputs) + [slots if o.changes else 1 for o in self.outputs]
        smem = [o.allocation(*args) for o, *args in zip(operands, gmem, counts)]
        named = [(operand.name, memory) for operand, memory in zip(operands, smem)]
        specs.check_smem(named, slots * len(self.groups) + more_barriers)
        arrivals = map(len, self.groups)
        produced = [plgpu.Barrier(num_arrivals=n, num_barriers=slots) for n in arrivals]
        return dict(smem=smem, produced=produced)

    def bind(self, gmem, smem, produced, consumed=None) -> tuple[tuple, tuple, list[Channel]]:
        """Buffers of inputs and outputs, and channels, of what was allocated."""
        buffers = tuple(map(Buffer, self.inputs + self.outputs, gmem, smem))
        inputs, outputs = buffers[: len(self.inputs)], buffers[len(self.inputs) :]
        channels = []
        for group, *barriers in zip(self.groups, produced, consumed or produced):
            delay = self.inputs[group[0]].spec.delay_release
            channels.append(Channel(delay, tuple(inputs[i] for i in group), *barriers))
        return inputs, outputs, channels

    def load_steps(self, channels, start, stop, indices, before=lambda *_: None) -> Indices:
        """Loads steps in turn, after `before(channel, slot)`; returns the indices that follow."""

        def load(step, indices):
            slot = self.steps.slot(step)
            for channel in channels:
                before(channel, slot)
                channel.load(slot, indices)
            return self.steps.following(indices)

        prologue = isinstance(stop, int) and stop <= self.steps.slots
        return self.steps.loop(start, stop, load, indices, unroll=prologue)

    def compute_steps(self, call, inputs, channels, stores, carry, release, ordinary_reads, state=()):
        """Runs the body at each step as the table above asks; returns the last carry.

        Args:
          call: `call(step, indices, refs, carry)` runs the body, and returns its result.
          channels: those whose produced barriers to wait for.
          carry: a tuple of the first carry, or the empty tuple.
          release: `release(step, state)` gives the slot of the inputs back, returns the next state.
        """
        steps, (in_tree, out_tree) = self.steps, self.trees
        committed = self.outputs + (self.inputs if ordinary_reads else ())

        def one_step(step, loop_state):
            indices, out_slots, state, carry = loop_state
            slot = steps.slot(step)
            for channel in channels:
                plgpu.barrier_wait(channel.produced.at[slot])
            stores.before_body()
            in_refs = in_tree.unflatten([buffer.at(slot) for buffer in inputs])
            out_refs = out_tree.unflatten(map(Buffer.at, stores.outputs, out_slots))
            result = call(step, indices, in_refs + out_refs, carry)
            if not all(operand.pinned for operand in committed):
                plgpu.commit_smem()
            state = release(step, state)
            out_slots = stores.after_body(step, indices, out_slots)
            return steps.following(indices), out_slots, state, (result,) if carry else ()

        loop_state = steps.indices(), (jnp.int32(0),) * len(self.outputs), state, carry
        *_, carry = steps.loop(0, steps.count, one_step, loop_state)
        return carry[0] if carry else None
