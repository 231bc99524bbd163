"""Slots, steps and copies: what both emitters are made of.

The model. A pipeline runs its body once for each *step* of a sequential grid, last axis fastest.
Each operand in SMEM has a ring of S slots; the inputs of step `s` are in slot `s mod S`, whose
*produced* barrier completes a phase each time a step's inputs have landed: phase `s // S`.

==================  ================================================================================
before              this has happened
==================  ================================================================================
body(s) reads       produced[s mod S] completed phase s // S
load(s + S) starts  body(s + delay_release), and `commit_smem` after it: the ordinary reads of all
                    lanes are over, and ordered before the write of TMA (PTX: another proxy)
body(s) writes      all stores but the last S - 1 have read their slots
store(s) starts     body(s), and `commit_smem` after it
==================  ================================================================================

Inputs with the same `delay_release` are released together and form a *channel*. An output takes its
next slot when its block changes, not at each step, and the block is stored after the last of its
consecutive steps: steps that visit the same block build it up together. An input is loaded at each
step, whether its block has changed or not.

Not covered: GPUs before Hopper; what else a body does with its refs; `wgmma` that reads a slot for
more than `delay_release` steps; a block left and visited again, whose stores may change places.
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


class Steps(NamedTuple):
    """`num_steps` steps over a grid and the slots they go through; ints, or int32 if dynamic."""

    grid: tuple[int | jax.Array, ...]
    slots: int
    num_steps: int | jax.Array

    @classmethod
    def of(cls, grid: Sequence[int | jax.Array], slots: int) -> "Steps":
        """All steps of a grid, with no more slots than steps where that is known."""
        grid = grid if isinstance(grid, (tuple, list)) else (grid,)
        if not all(map(specs.is_integer, grid)):
            raise ValueError(f"{grid=} has a size that is no integer, so no steps; use // for /.")
        grid = tuple(int(size) if isinstance(size, np.integer) else size for size in grid)
        if any(isinstance(size, int) and size <= 0 for size in grid):
            raise ValueError(
                f"All elements in the grid must be strictly positive, but got {grid=}: none runs."
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

    def indices(self, step: int = 0) -> tuple:
        """The grid indices of an early step."""
        first = (jnp.int32(0),) * len(self.grid)
        return functools.reduce(lambda indices, _: self.following(indices), range(step), first)

    def following(self, indices: tuple) -> tuple:
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
        one_step = lambda step, state: body(jnp.int32(step), state)
        return lax.fori_loop(start, stop, one_step, init, unroll=unroll)


class Buffer(NamedTuple):
    """An operand with its GMEM ref and its slots in SMEM, if any."""

    operand: specs.Operand
    gmem: Any
    smem: Any

    def at(self, slot: Any) -> Any:
        """The ref that the body gets: a slot, or the GMEM ref if pinned."""
        return self.gmem if self.operand.pinned else self.smem.at[slot]

    def load(self, slot: Any, indices: tuple, barrier: Any) -> None:
        """Starts the copy of a step's block into a slot."""
        block, spec = self.gmem.at[self.operand.gmem_slices(indices)], self.operand.spec
        options = dict(collective_axes=spec.collective_axes, oob_mode=spec.oob_fill_mode)
        plgpu.copy_gmem_to_smem(block, self.smem.at[slot], barrier, **options)

    def store(self, slot: Any, indices: tuple) -> None:
        """Starts the copy of a slot to a step's block, in no group yet."""
        block = self.gmem.at[self.operand.gmem_slices(indices)]
        plgpu.copy_smem_to_gmem(self.smem.at[slot], block, commit_group=False)


class Channel(NamedTuple):
    """Inputs that are released together, with one barrier of each kind for each slot."""

    delay: int
    buffers: list[Buffer]
    produced: Any
    consumed: Any

    def load(self, slot: Any, indices: tuple) -> None:
        """Starts the copies of a step's blocks into a slot."""
        for buffer in self.buffers:
            buffer.load(slot, indices, self.produced.at[slot])


class Stores(NamedTuple):
    """A pipeline's outputs, stored by the leader of the threads that write; `sync` joins these."""

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
            n = self.steps.slots - 1
            pl.when(self.leader)(lambda: plgpu.wait_smem_to_gmem(n, wait_read_only=True))
            self.sync()

    def after_body(self, step: jax.Array, indices: tuple, slots: tuple) -> tuple:
        """Stores the (committed) blocks that the next step does not visit; returns its slots."""
        if not self.any:
            return slots
        self.sync()
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
            self.sync()


class Plan(NamedTuple):
    """A pipeline's arguments, checked; `groups` has the positions of each channel's inputs."""

    steps: Steps
    inputs: tuple[specs.Operand, ...]
    outputs: tuple[specs.Operand, ...]
    in_tree: Any
    tree: Any
    groups: list[list[int]]

    @classmethod
    def of(cls, grid, in_specs, out_specs, slots: int, separate: bool = False) -> "Plan":
        """Groups the inputs by delay_release, or makes each a channel of its own (`separate`)."""
        slots = specs.integer("max_concurrent_steps", slots)
        rank = len((steps := Steps.of(grid, slots)).grid)
        inputs, in_tree = specs.flatten(in_specs, "in_specs", rank)
        outputs, out_tree = specs.flatten(out_specs, "out_specs", rank)
        specs.check_slots(slots, inputs)
        groups = {}
        for i, operand in enumerate(inputs):
            if not operand.pinned:
                groups.setdefault(i if separate else operand.spec.delay_release, []).append(i)
        tree = jax.tree.structure(in_tree.unflatten(inputs) + out_tree.unflatten(outputs))
        return cls(steps, inputs, outputs, in_tree, tree, [groups[key] for key in sorted(groups)])

    def flatten_refs(self, gmem_refs: tuple) -> list[Any]:
        """The refs of inputs and outputs in order.

        Raises:
          ValueError, TypeError: they do not match the specs; one is no ref.
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
        """SMEM and produced barriers; ValueError if a block has not so much."""
        slots, operands = self.steps.slots, self.inputs + self.outputs
        counts = [slots] * len(self.inputs) + [slots if o.changes else 1 for o in self.outputs]
        smem = list(map(specs.Operand.allocation, operands, gmem, counts))
        specs.check_smem(operands, smem, slots * len(self.groups) + more_barriers)
        barrier = lambda group: plgpu.Barrier(num_arrivals=len(group), num_barriers=slots)
        return dict(smem=smem, produced=list(map(barrier, self.groups)))

    def bind(self, gmem, smem, produced, consumed=None) -> tuple[tuple, tuple, list[Channel]]:
        """Buffers of inputs and outputs, and channels, of what was allocated."""
        buffers = tuple(map(Buffer, self.inputs + self.outputs, gmem, smem))
        inputs, outputs = buffers[: len(self.inputs)], buffers[len(self.inputs) :]
        delays = [self.inputs[group[0]].spec.delay_release for group in self.groups]
        members = [[inputs[i] for i in group] for group in self.groups]
        channels = list(map(Channel, delays, members, produced, consumed or produced))
        return inputs, outputs, channels

    def load_steps(self, channels, start, stop, indices, wait=None) -> tuple:
        """Loads steps in turn, each after `wait(channel, slot)`; returns the next's indices."""

        def load(step, indices):
            slot = self.steps.slot(step)
            for channel in channels:
                if wait is not None:
                    wait(channel, slot)
                channel.load(slot, indices)
            return self.steps.following(indices)

        return self.steps.loop(start, stop, load, indices, unroll=wait is None)

    def compute_steps(
        self, call, inputs, channels, stores, carry, ordinary_reads, release, state=None
    ) -> Any:
        """Runs the body at each step, as the table above asks; returns the last carry.

        `call(step, indices, refs, carry)` runs the body once the inputs of `channels` are there,
        `carry` being a tuple of one or none; `release(step, state)` gives the inputs' slot back.
        """
        steps, committed = self.steps, self.outputs + (self.inputs if ordinary_reads else ())

        def one_step(step, loop_state):
            indices, out_slots, state, carry = loop_state
            slot = steps.slot(step)
            for channel in channels:
                plgpu.barrier_wait(channel.produced.at[slot])
            stores.before_body()
            slots = (slot,) * len(inputs) + out_slots
            refs = self.tree.unflatten(map(Buffer.at, inputs + stores.outputs, slots))
            result = call(step, indices, refs, carry)
            if carry and jax.tree.structure(result) != (tree := jax.tree.structure(carry[0])):
                raise ValueError(
                    f"The body got a carry {tree} but returned {jax.tree.structure(result)}: there"
                    " is no carry for the next step. It must return one like the one it took."
                )
            if not all(operand.pinned for operand in committed):
                plgpu.commit_smem()
            state = release(step, state)
            out_slots = stores.after_body(step, indices, out_slots)
            return steps.following(indices), out_slots, state, (result,) if carry else ()

        loop_state = steps.indices(), (jnp.int32(0),) * len(self.outputs), state, carry
        *_, carry = steps.loop(0, steps.num_steps, one_step, loop_state)
        return carry[0] if carry else None
