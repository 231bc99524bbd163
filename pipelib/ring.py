"""Slots, channels and stores: what both emitters are made of.

The model. A pipeline runs its body once for each *step* of a sequential grid, whose last axis is
the fastest. Each operand in SMEM has a ring of S *slots*. Step s finds its inputs in slot s mod S.
That slot has a *produced* barrier, which completes phase s // S when the inputs of step s have
landed. Where another thread loads, the slot also has a *consumed* barrier, which completes a phase
when every compute thread has released the slot. The pipeline is right because of four rules:

==================  ================================================================================
before              this has happened
==================  ================================================================================
body(s) reads       produced[s mod S] has completed phase s // S
load(s + S) starts  body(s + delay_release) has ended, and `commit_smem` after it. So all lanes have
                    made their ordinary reads, and the copy writes after them. (To PTX the copy
                    engine is another proxy: program order alone does not order its writes.)
body(s) writes      all stores but the last S - 1 have read their slots
store(s) starts     body(s) has ended, and `commit_smem` after it
==================  ================================================================================

A *channel* is all inputs with the same `delay_release`. They are released together, so they share
one barrier of each kind for each slot. An input is loaded at each step, whether its block has
changed or not. An output takes its next slot only when its block changes: consecutive steps that
visit one block build it up in one slot, and the last of them stores the block.

The classes. `Steps` counts steps, and knows each step's slot and grid indices. `Plan` holds the
checked arguments of a pipeline. `Plan.bind` joins them with what was allocated: a `Buffer` for each
operand, a `Channel` for each group of inputs, `Stores` for all outputs.

GPUs before Hopper have no TMA; `cp_async` keeps the same rules by other means. Not covered: refs
that the body copies or keeps by itself; a `wgmma` that reads a slot for more than `delay_release`
steps; a block that steps leave and visit again, whose two stores may land in either order.
Source: `mosaic_gpu.emit_pipeline` of JAX 0.11.2, except for outputs.
"""

import functools
import math
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs, tiles
from pipelib.refs import Body, Bool, Int, Ref, Tree, TreeDef, flatten, structure

#: Grid indices of a step: an int32 scalar for each axis.
Indices = tuple[jax.Array, ...]
#: The size of an axis of a grid. That of the last axis may depend on the indices before it.
Size = Int | Callable[..., Int]
#: The allocations of a pipeline by name, for `pl.run_scoped`: lists of refs and of barriers, or one
#: barrier, or None.
Allocations = dict[str, Any]


class Steps(NamedTuple):
    """The steps over a grid, and their slots.

    Attributes:
      grid: the sizes of the axes: ints if all are known, else int32 scalars. Of a *ragged* grid,
        the last is a function of the indices before it. There an index has one number more, the
        size of its own row: so it is computed once for each row.
      slots: the slots of each ring.
      num_steps: the product of the sizes; of a ragged grid, the sum of the last ones.
      before: how many steps a chain has made before these; they go on in the slots after those.
    """

    grid: tuple[Size, ...]
    slots: int
    num_steps: Int
    before: Int = 0

    @classmethod
    def of(cls, grid: Sequence[Size], slots: int) -> "Steps":
        """All steps of a grid, with no more slots than steps if their number is known.

        Raises:
          ValueError: a size is not an integer, or is known and less than 1.
        """
        axes: tuple[Any, ...] = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        if len(axes) > 1 and callable(axes[-1]) and not isinstance(axes[-1], type):
            size = cast(Callable[..., Int], axes[-1])
            return cls._ragged(cls.of(axes[:-1], slots), size, slots)
        given = cast(tuple[Int, ...], axes)
        if not all(map(specs.is_integer, given)):
            raise ValueError(
                f"grid={given!r} has a size that is not an integer, so it has no number of steps;"
                " use // instead of /."
            )
        sizes = tuple(int(size) if isinstance(size, np.integer) else size for size in given)
        known = tuple(size for size in sizes if isinstance(size, int))
        if any(size <= 0 for size in known):
            raise ValueError(
                f"All elements in the grid must be strictly positive, but got grid={sizes!r}: no"
                " step would run."
            )
        if (count := math.prod(known)) >= 2**31:
            raise ValueError(
                f"grid={sizes!r} has {count:,} steps, but steps are counted in int32, whose largest"
                f" number is {2**31 - 1:,}: divide them among blocks of the kernel's grid."
            )
        if len(known) == len(sizes):
            return cls(known, min(slots, count), count)
        dynamic = tuple(jnp.maximum(jnp.asarray(size, jnp.int32), 0) for size in sizes)
        return cls(dynamic, slots, math.prod(dynamic))

    @classmethod
    def _ragged(cls, outer: "Steps", size: Callable[..., Int], slots: int) -> "Steps":
        """The steps over `outer`, and over as many more as `size` says of each of its indices."""

        def add(_: jax.Array, state: tuple[Indices, jax.Array]) -> tuple[Indices, jax.Array]:
            indices, total = state
            return outer.following(indices), total + size(*indices)

        _, total = outer.loop(0, outer.num_steps, add, (outer.indices(), jnp.int32(0)))
        return cls((*outer.grid, size), slots, total)

    @property
    def prologue(self) -> Int:
        """How many steps are loaded before the first body runs: as many as there are slots."""
        slots, num_steps = self.slots, self.num_steps
        return slots if isinstance(num_steps, int) else lax.min(np.int32(slots), num_steps)

    def slot(self, step: jax.Array, delay: int = 0) -> jax.Array:
        """The slot of the step `step - delay`, a number that may be negative."""
        if not isinstance(self.before, int):
            step += lax.rem(self.before, np.int32(self.slots))
        return lax.rem(step + (-delay) % self.slots, np.int32(self.slots))

    @property
    def is_ragged(self) -> bool:
        """Whether the rows along the last axis have different sizes."""
        return bool(self.grid) and callable(self.grid[-1])

    @property
    def rank(self) -> int:
        """How many numbers an index has."""
        return len(self.grid) + self.is_ragged

    def indices(self, step: int = 0) -> Indices:
        """The grid indices of one of the first steps."""
        first = (jnp.int32(0),) * len(self.grid)
        if self.grid and callable(size := self.grid[-1]):
            first += (_int32(size(*first[:-1])),)
        return functools.reduce(lambda indices, _: self.following(indices), range(step), first)

    def following(self, indices: Indices) -> Indices:
        """The grid indices of the next step; after the last step, those of the first."""
        if self.grid and callable(size := self.grid[-1]):
            return self._following_in_rows(indices, size)
        result: list[jax.Array] = []
        carry = jnp.bool(True)
        for index, size in zip(reversed(indices), reversed(self.grid)):
            index = lax.select(carry, index + 1, index)
            carry = index == size
            result.append(lax.select(carry, jnp.int32(0), index))
        return tuple(reversed(result))

    def _following_in_rows(self, indices: Indices, size: Callable[..., Int]) -> Indices:
        """The index of the next step of a ragged grid: most often in the same row."""
        *row, column, columns = indices

        def next_row() -> Indices:
            following = Steps(self.grid[:-1], self.slots, 0).following(tuple(row))
            return *following, jnp.int32(0), _int32(size(*following))

        def same_row() -> Indices:
            return *row, column + 1, columns

        return lax.cond(column + 1 < columns, same_row, next_row)

    def loop(
        self,
        start: Int,
        stop: Int,
        body: Callable[[jax.Array, Any], Any],
        init: Tree,
        *,
        unroll: bool = False,
    ) -> Tree:
        """`lax.fori_loop` whose steps are int32, whatever the default integer is.

        `unroll` unrolls the loop if both bounds are ints.
        """
        unroll &= isinstance(start, int) and isinstance(stop, int)

        def one_step(step: Int, state: Tree) -> Tree:
            return body(jnp.int32(step), state)

        return lax.fori_loop(start, stop, one_step, init, unroll=unroll)


def _int32(number: Int) -> jax.Array:
    """A size as an int32 scalar."""
    return jnp.asarray(number, jnp.int32)


class Buffer(NamedTuple):
    """An operand with its GMEM ref and its slots in SMEM.

    `smem` is None if the operand is pinned to GMEM. `copied` is the same memory as copies see it.
    """

    operand: specs.Operand
    gmem: Ref
    smem: Ref | None
    copied: Ref | None

    @classmethod
    def of(cls, operand: specs.Operand, gmem: Ref, smem: Ref | None) -> "Buffer":
        """The buffer of what was allocated."""
        if smem is None:
            return cls(operand, gmem, None, None)
        return cls(operand, gmem, *tiles.both(smem, isinstance(operand.spec, specs.ByRows)))

    def at(self, slot: jax.Array) -> Ref:
        """The ref that the body gets: a slot, or the GMEM ref if pinned."""
        return self.gmem if self.smem is None else self.smem.at[slot]

    def _copies(self, slot: jax.Array, indices: Indices) -> Iterator[tuple[Ref, Ref]]:
        """What the copies of a step's block have in GMEM and in its slot."""
        assert self.copied is not None, "what is pinned is not copied"
        slices, pieces = self.operand.gmem_slices(indices), self.operand.pieces(self.gmem.dtype)
        if pieces == 1:
            here = tuple(map(specs.maybe_longer, slices, self.gmem.shape))
            yield self.gmem.at[here], self.copied.at[slot]
            return
        whole = cast("pl.Slice", slices[-1])
        width = whole.size // pieces
        for piece in range(pieces):
            columns = specs.maybe_beyond(whole.start + piece * width, width)
            yield self.gmem.at[*slices[:-1], columns], self.copied.at[slot, piece]

    def load(self, slot: jax.Array, indices: Indices, barrier: Ref) -> None:
        """Starts the copy of a step's block into a slot; it arrives at the barrier."""
        axes, mode = self.operand.collective_axes, self.operand.spec.oob_fill_mode
        for there, here in self._copies(slot, indices):
            plgpu.copy_gmem_to_smem(there, here, barrier, collective_axes=axes, oob_mode=mode)

    def store(self, slot: jax.Array, indices: Indices) -> None:
        """Starts the copy of a slot to a step's block; the caller closes the group of copies."""
        for there, here in self._copies(slot, indices):
            plgpu.copy_smem_to_gmem(here, there, commit_group=False)


class Channel(NamedTuple):
    """Inputs that are released together, and their barriers, one of each kind for each slot.

    `delay` is the inputs' `delay_release`. `consumed` is None where one thread both loads and
    computes: there program order tells when a slot is free.
    """

    delay: int
    buffers: list[Buffer]
    produced: Ref
    consumed: Ref | None = None

    def load(self, slot: jax.Array, indices: Indices) -> None:
        """Starts the copies of a step's blocks into a slot."""
        for buffer in self.buffers:
            buffer.load(slot, indices, self.produced.at[slot])

    def wait_until_loaded(self, slot: jax.Array) -> None:
        """Returns once a step's blocks have landed in a slot."""
        plgpu.barrier_wait(self.produced.at[slot])

    def release(self, slot: jax.Array) -> None:
        """Tells the thread that loads: this compute thread no longer reads a slot."""
        plgpu.barrier_arrive(self.consumed_at(slot))

    def wait_until_released(self, slot: jax.Array) -> None:
        """Returns once all compute threads have released a slot."""
        plgpu.barrier_wait(self.consumed_at(slot))

    def consumed_at(self, slot: jax.Array) -> Ref:
        """The consumed barrier of a slot."""
        assert self.consumed is not None, "only a pipeline with a memory thread has these barriers"
        return self.consumed.at[slot]


class Stores(NamedTuple):
    """The outputs of a pipeline, and who stores them.

    Attributes:
      outputs: their buffers.
      steps: the steps of the pipeline.
      leader: whether this thread stores, for all threads that write.
      meet: returns once all threads that write have called it.
    """

    outputs: tuple[Buffer, ...]
    steps: Steps
    leader: Bool = True
    meet: Callable[[], object] = lambda: None

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

    def store(self, step: jax.Array, indices: Indices, slots: Indices) -> Indices:
        """Starts to store the blocks that the next step does not visit.

        All threads must have committed what they wrote.

        Args:
          step, indices: the step that has ended.
          slots: the slot of each output at this step.

        Returns:
          The slot of each output at the next step.
        """
        if not self.any:
            return slots
        self.meet()
        following = self.steps.following(indices)
        next_slots: list[jax.Array] = []
        for buffer, slot in zip(self.outputs, slots, strict=True):
            done = buffer.operand.is_left(step, self.steps.num_steps, indices, following)
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
    """The arguments of a pipeline, checked.

    Attributes:
      steps: its steps.
      inputs, outputs: the leaves of the specs.
      in_tree: the pytree of `in_specs`.
      tree: the pytree of the refs that a call takes: those of the inputs, then of the outputs.
      groups: for each channel, the positions of its inputs.
    """

    steps: Steps
    inputs: tuple[specs.Operand, ...]
    outputs: tuple[specs.Operand, ...]
    in_tree: TreeDef
    tree: TreeDef
    groups: list[list[int]]

    @classmethod
    def of(
        cls,
        grid: Sequence[Size],
        in_specs: Tree,
        out_specs: Tree,
        slots: int,
        separate: bool = False,
    ) -> "Plan":
        """The plan of a pipeline; the arguments are those of the emitters.

        Inputs with one `delay_release` are one channel; if `separate`, each input is a channel.

        Raises:
          ValueError, TypeError, NotImplementedError: as `specs` and `Steps.of` say.
        """
        slots = specs.integer("max_concurrent_steps", slots)
        rank = (steps := Steps.of(grid, slots)).rank
        inputs, in_tree = specs.flatten(in_specs, "in_specs", rank)
        outputs, out_tree = specs.flatten(out_specs, "out_specs", rank)
        specs.check_slots(slots, inputs)
        groups: dict[int, list[int]] = {}
        for i, operand in enumerate(inputs):
            if not operand.pinned:
                groups.setdefault(i if separate else operand.spec.delay_release, []).append(i)
        tree = structure(in_tree.unflatten(inputs) + out_tree.unflatten(outputs))
        return cls(steps, inputs, outputs, in_tree, tree, [groups[key] for key in sorted(groups)])

    def flatten_refs(self, gmem_refs: tuple[Tree, ...]) -> list[Ref]:
        """The refs of inputs and outputs in order.

        Raises:
          ValueError, TypeError: if they do not match the specs, or one is not a ref.
        """
        leaves, tree = flatten(gmem_refs)
        if tree != self.tree:
            raise ValueError(
                f"{len(self.inputs)} in_specs and then {len(self.outputs)} out_specs need refs of"
                f" the same pytree structure, {self.tree}, but got {len(leaves)}: {tree}."
            )
        for operand, leaf in zip(self.inputs + self.outputs, leaves):
            specs.check_ref(f"the operand of {operand.name}", leaf)
        return leaves

    def allocations(self, gmem: list[Ref], more_barriers: int = 0) -> Allocations:
        """The SMEM of the operands, and the produced barriers.

        Args:
          gmem: the refs of the operands.
          more_barriers: how many other barriers the pipeline has, which take SMEM too.

        Raises:
          ValueError: a block does not have as much SMEM.
        """
        slots, operands = self.steps.slots, self.inputs + self.outputs
        counts = [slots] * len(self.inputs) + [slots if o.changes else 1 for o in self.outputs]
        smem = list(map(specs.Operand.allocation, operands, gmem, counts))
        specs.check_smem(operands, smem, slots * len(self.groups) + more_barriers)
        copies = [operand.pieces(ref.dtype) for operand, ref in zip(self.inputs, gmem)]
        arrivals = [sum(copies[i] for i in group) for group in self.groups]
        produced = [plgpu.Barrier(num_arrivals=count, num_barriers=slots) for count in arrivals]
        smem = list(map(specs.Operand.shared, operands, smem))
        return dict(smem=smem, produced=produced)

    def buffers(self, gmem: list[Ref], smem: list[Ref | None]) -> tuple[Buffer, ...]:
        """The buffers of inputs and then of outputs, of what was allocated."""
        return tuple(map(Buffer.of, self.inputs + self.outputs, gmem, smem))

    def bind(
        self,
        gmem: list[Ref],
        smem: list[Ref | None],
        produced: list[Ref],
        consumed: Sequence[Ref | None] | None = None,
    ) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...], list[Channel]]:
        """The buffers of inputs and of outputs, and the channels, of what was allocated.

        `consumed` is None where one thread both loads and computes.
        """
        buffers = self.buffers(gmem, smem)
        inputs, outputs = buffers[: len(self.inputs)], buffers[len(self.inputs) :]
        if consumed is None:
            consumed = [None] * len(self.groups)
        channels: list[Channel] = []
        for group, full, free in zip(self.groups, produced, consumed, strict=True):
            delay = self.inputs[group[0]].spec.delay_release
            channels.append(Channel(delay, [inputs[i] for i in group], full, free))
        return inputs, outputs, channels

    def refs(self, buffers: tuple[Buffer, ...], slot: jax.Array, out_slots: Indices) -> Tree:
        """The refs that the body gets, in the trees of the specs.

        Args:
          buffers: those of all inputs, then those of all outputs.
          slot: the slot of the inputs.
          out_slots: the slot of each output.
        """
        slots = (slot,) * len(self.inputs) + out_slots
        return self.tree.unflatten(map(Buffer.at, buffers, slots))

    def commit(self, ordinary_reads: bool) -> None:
        """Calls `commit_smem` if the body has written a slot, or read one by ordinary loads."""
        operands = self.outputs + (self.inputs if ordinary_reads else ())
        if not all(operand.pinned for operand in operands):
            plgpu.commit_smem()


class Loads(Protocol):
    """A channel, as far as its loads go."""

    @property
    def delay(self) -> int:
        """The inputs' `delay_release`."""
        ...

    def load(self, slot: jax.Array, indices: Indices, /) -> None:
        """Starts the copies of a step's blocks into a slot."""
        ...


def load_first(steps: Steps, channels: Sequence[Loads], stop: Int) -> Indices:
    """Loads the first steps, whose slots are free; returns the grid indices of the step `stop`."""

    def load(step: jax.Array, indices: Indices) -> Indices:
        slot = steps.slot(step)
        for channel in channels:
            channel.load(slot, indices)
        return steps.following(indices)

    return steps.loop(0, stop, load, steps.indices(), unroll=True)


def load_ahead(
    steps: Steps, channels: Sequence[Loads], step: jax.Array, load_indices: list[Indices]
) -> list[Indices]:
    """Loads again, for each channel, the slot that the end of `step` frees.

    Args:
      steps, channels: those of the pipeline.
      step: the step whose body has ended.
      load_indices: for each channel, the grid indices of the step that is loaded, if there is one.

    Returns:
      The `load_indices` of the next call.
    """
    for channel, indices in zip(channels, load_indices, strict=True):
        later = step + (steps.slots - channel.delay)
        load = functools.partial(channel.load, steps.slot(later), indices)
        pl.when((step >= channel.delay) & (later < steps.num_steps))(load)
    return [steps.following(indices) for indices in load_indices]


def run_body(body: Body, indices: Indices, refs: Tree, carry: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """Calls the body of a step.

    Args:
      body, indices, refs: the body, and what it takes.
      carry: a tuple of the carry, or of nothing if there is no carry.

    Returns:
      A tuple of the next carry, or of nothing.

    Raises:
      ValueError: the body returned another pytree than the carry, or a value without a carry.
    """
    result = body(indices, *refs, *carry)
    if not carry:
        if jax.tree.leaves(result):
            raise ValueError(
                f"The body returned {reprlib.repr(result)}, but without init_carry no step gets"
                " it, so it would be lost: give init_carry, or return nothing."
            )
        return ()
    given, returned = structure(carry[0]), structure(result)
    if returned != given:
        raise ValueError(
            f"The body got a carry {given} but returned {returned}: there is no"
            " carry for the next step. It must return one like the one it took."
        )
    return (result,)
