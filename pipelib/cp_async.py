"""`emit_pipeline` before Hopper: `cp.async` loads, ordinary instructions store.

The model. A GPU of compute capability 8.0 to 8.9 has no TMA. There a thread's 128 lanes load
together, by `cp.async` instructions that copy a few bytes each. The instructions of one copy are a
**group**. No barrier completes: a thread waits until at most N of its own groups are unfinished,
which finish in order. N must be a constant of the program::

    prologue      load steps 0 .. S-1
    steady state  for each step s:
                    wait    until no group of step s is unfinished (`_Waits` counts N)
                    body    on slot s mod S
                    load    step s + S - d into the slot of step s - d
                    store   the blocks that step s + 1 does not visit
    drain         none: nothing is unfinished when the last body has run

The rules of `ring` hold, by other means:

==================  ================================================================================
before              this has happened
==================  ================================================================================
body(s) reads       the wait for the groups of step s, where the thread's lanes meet as well
load(s + S) starts  body(s + delay_release) has ended, in all lanes: Mosaic GPU lets them meet
                    before a load. To PTX `cp.async` is no other proxy, so there is no `commit_smem`
body(s) writes      store(s - 1) has read: it is ordinary reads of SMEM and writes of GMEM
store(s) starts     body(s) has ended, in all lanes, which meet after each ordinary write
==================  ================================================================================

A store is over when the next instruction begins, so an output has one slot.

What the hardware asks. A copy of a block without `transforms` takes a run of bytes, so a block that
is several runs in GMEM is several copies. Each lane copies 4 bytes at least, so a run is a multiple
of 512 bytes. Nothing stops a copy at the end of an array.

Not covered: kernels that are compiled with `unsafe_no_auto_barriers`, where lanes do not meet by
themselves (`pallascope.check` remarks on it); loads that blocks share; Pallas's interpreter, which
has no copies without a barrier.
Source: `mosaic_gpu.emit_pipeline` of JAX 0.11.2, except for outputs, runs, and N where an input has
a `delay_release`. JAX's N leaves that out: it lets a body begin before its load has landed.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring, specs, targets
from pipelib.refs import Body, Ref, Tree

# Lanes of a thread, and the least bytes that one of them copies.
_LANES, _LANE_BYTES = 128, 4
#: The most groups that `cp.async.wait_group` leaves unfinished. Source: ptxas of CUDA 13.0, which
#: makes `DEPBAR.LE SB0, 0x3f` of any larger number.
MAX_GROUPS = 63


class Channel(NamedTuple):
    """Inputs that are released together, as `ring.Channel`, without barriers."""

    delay: int
    buffers: list[ring.Buffer]

    def load(self, slot: jax.Array, indices: ring.Indices) -> None:
        """Starts the copies of a step's blocks into a slot, each a group."""
        for buffer in self.buffers:
            for there, here in _copies(buffer, slot, indices):
                plgpu.copy_gmem_to_smem(there, here, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)

    @property
    def groups(self) -> int:
        """How many groups the loads of a step are."""
        return sum(_Runs.of(each.operand, each.gmem).number for each in self.buffers)


class _Runs(NamedTuple):
    """The runs of bytes that a block is in GMEM: one for each place along the `outer` axes.

    `outer` has the block's sizes along the axes that no run spans, `elements` the length of a run.
    """

    outer: tuple[int, ...]
    elements: int

    @classmethod
    def of(cls, operand: specs.Operand, gmem: Ref) -> "_Runs":
        """A run spans the last axes that the block has whole, and a part of the axis before."""
        shape = tuple(gmem.shape)
        block, first = operand.block_sizes(shape), len(shape)
        while first and (first == len(shape) or block[first] == shape[first]):
            first -= 1
        sizes = [size or 1 for size in block]
        if operand.spec.transforms:  # JAX copies tile by tile, wherever the rows lie
            first = 0
        return cls(tuple(sizes[:first]), math.prod(sizes[first:]))

    @property
    def number(self) -> int:
        """How many runs there are."""
        return math.prod(self.outer)


def _copies(
    buffer: ring.Buffer, slot: jax.Array, indices: ring.Indices
) -> Iterator[tuple[Ref, Ref]]:
    """What the copies of a step's block have in GMEM and in its slot: a run each."""
    slices, smem = buffer.operand.gmem_slices(indices), buffer.at(slot)
    for place in itertools.product(*map(range, _Runs.of(buffer.operand, buffer.gmem).outer)):
        there, here = [*slices], list[int]()
        for axis, at in enumerate(place):
            if isinstance(whole := slices[axis], pl.Slice):  # else it is squeezed away
                there[axis] = whole.start + at
                here.append(at)
        yield buffer.gmem.at[tuple(there)], smem.at[tuple(here)] if here else smem


class _Waits(NamedTuple):
    """`counts[r]` groups may be unfinished when a body begins, if r steps come after it.

    The last of the counts is for all greater r.
    """

    counts: tuple[int, ...]

    @classmethod
    def of(cls, slots: int, channels: list[Channel]) -> "_Waits":
        """The groups that are sure to have begun after the last one of a step.

        The channel with the greatest delay loads a step last. From then on until the body of that
        step, S - 1 - delay bodies end, and after each of them every channel loads, if there is
        still a step for it to load.
        """
        last = max(channel.delay for channel in channels)
        counts = [
            sum(
                channel.groups * max(0, min(slots - 1 - last, to_come + channel.delay - last))
                for channel in channels
            )
            for to_come in range(slots)
        ]
        while counts[-2:-1] == counts[-1:]:
            counts.pop()
        return cls(tuple(min(count, MAX_GROUPS) for count in counts))

    def wait(self, to_come: jax.Array) -> None:
        """Returns once a step's blocks have landed; `to_come` steps come after it."""
        waits = [functools.partial(plgpu.wait_gmem_to_smem, count) for count in self.counts]
        if len(waits) == 1:
            waits[0]()
        else:
            lax.switch(lax.min(to_come, jnp.int32(len(waits) - 1)), waits)


def run(
    plan: ring.Plan, body: Body, init: tuple[Tree, ...], gmem: list[Ref], smem: list[Ref | None]
) -> Tree:
    """Runs all steps of a pipeline; returns the last carry.

    Args:
      plan: the checked arguments of the pipeline.
      body: what a step does.
      init: a tuple of the first carry, or of nothing.
      gmem, smem: the refs of the operands, and what was allocated for them.
    """
    steps, buffers = plan.steps, plan.buffers(gmem, smem)
    inputs, outputs = buffers[: len(plan.inputs)], buffers[len(plan.inputs) :]
    channels = [
        Channel(inputs[group[0]].operand.spec.delay_release, [inputs[i] for i in group])
        for group in plan.groups
    ]
    waits = _Waits.of(steps.slots, channels) if channels else None
    first_slots = (jnp.int32(0),) * len(outputs)

    def one_step(step: jax.Array, state: _State) -> _State:
        indices, load_indices, carry = state
        if waits is not None:
            waits.wait(steps.num_steps - 1 - step)
        refs = plan.refs(buffers, steps.slot(step), first_slots)
        carry = ring.run_body(body, indices, refs, carry)
        load_indices = ring.load_ahead(steps, channels, step, load_indices)
        following = steps.following(indices)
        for buffer in outputs:
            if not buffer.operand.pinned:
                is_left = buffer.operand.is_left(step, steps.num_steps, indices, following)
                pl.when(is_left)(functools.partial(_store, buffer, indices))
        return _State(following, load_indices, carry)

    ring.load_first(steps, channels, steps.prologue)
    load_indices = [steps.indices(steps.slots - channel.delay) for channel in channels]
    state = steps.loop(0, steps.num_steps, one_step, _State(steps.indices(), load_indices, init))
    return state.carry[0] if state.carry else None


class _State(NamedTuple):
    """What one step hands to the next: as in `pipeline`, without the slots of outputs."""

    indices: ring.Indices
    load_indices: list[ring.Indices]
    carry: tuple[Tree, ...]


def _store(buffer: ring.Buffer, indices: ring.Indices) -> None:
    """Copies an output's slot to a step's block, through registers."""
    block = buffer.gmem.at[buffer.operand.gmem_slices(indices)]
    block[...] = buffer.at(jnp.int32(0))[...]


# The arguments.


def allocations(plan: ring.Plan, gmem: list[Ref]) -> ring.Allocations:
    """The SMEM of the operands, for `pl.run_scoped`: S slots of each input, one of each output.

    Raises:
      NotImplementedError: the GPU has no `cp.async`.
      ValueError: a block does not divide its array, its runs are no multiples of 512 bytes, or a
        block of the kernel does not have as much SMEM.
    """
    targets.check_capability()
    operands = plan.inputs + plan.outputs
    for operand, ref in zip(operands, gmem, strict=True):
        if not operand.pinned:
            _check_bounds(operand, ref)
    for operand, ref in zip(plan.inputs, gmem):
        if not operand.pinned:
            _check_runs(operand, ref)
    slots = [plan.steps.slots] * len(plan.inputs) + [1] * len(plan.outputs)
    smem = list(map(specs.Operand.allocation, operands, gmem, slots))
    specs.check_smem(operands, smem, 0, targets.smem_bytes())
    return dict(smem=smem)


def _check_bounds(operand: specs.Operand, gmem: Ref) -> None:
    """Raises ValueError unless each block of an operand lies in its array, or that is promised."""
    if operand.spec.oob_fill_mode is plgpu.OOBFillMode.PROMISE_IN_BOUNDS:
        return
    promise = "or promise oob_fill_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS in a plgpu.BlockSpec"
    if operand.has_element_axes:
        raise ValueError(
            f"{operand.name}: blocks that begin at any element (pl.Element) may reach beyond the"
            f" array, where no copy stops before Hopper (no TMA): count whole blocks, {promise}."
        )
    shape = tuple(gmem.shape)
    for axis, (size, block) in enumerate(zip(shape, operand.block_sizes(shape), strict=True)):
        if block is not None and size % block:
            raise ValueError(
                f"{operand.name}: axis {axis} of the array has {size} elements = {size // block} x"
                f" {block} + {size % block}, so the last block reaches beyond it, where no copy"
                f" stops before Hopper (no TMA): pad the array to a multiple of {block}, {promise}."
            )


def _check_runs(operand: specs.Operand, gmem: Ref) -> None:
    """Raises ValueError unless a thread's lanes can copy the runs of an input's block."""
    if operand.spec.transforms:
        return
    bits, elements = specs.bits_of(gmem.dtype), _Runs.of(operand, gmem).elements
    least = _LANES * _LANE_BYTES
    if elements % _LANES or elements * bits % (8 * least):
        raise ValueError(
            f"{operand.name}: a block of {gmem.dtype}{[*gmem.shape]} lies in GMEM in runs of"
            f" {elements} elements x {bits} bits = {elements * bits / 8:g} B, but before Hopper (no"
            f" TMA) each of {_LANES} lanes copies at least {_LANE_BYTES} B, so a run must be a"
            f" multiple of {least} B and of {_LANES} elements: take a wider block, or tiles"
            " (transforms= of plgpu.BlockSpec)."
        )
