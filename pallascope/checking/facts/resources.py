"""More memory, barriers or registers than there are."""

from dataclasses import dataclass
from math import prod
from typing import override

from pallascope.checking.facts import SCRATCH, Fault, Remark, at
from pallascope.machine import COLUMN_BYTES
from pallascope.program import Action, Op, Program, Space
from pallascope.report import Finding, FindingKind, count, thread_name

_GRID = "Give more to the grid's last axis, CUDA's x, or let a block do the work of several."
#: What a launch has at most, and what to do where it has more.
LIMITS = {
    "lanes a block": (1_024, "Take fewer Pallas threads."),
    "blocks a cluster": (16, "Take less: 8 run on every GPU that has clusters, 16 on Hopper."),
    "blocks along CUDA's x": (2**31 - 1, _GRID),
    "blocks along CUDA's y": (65_535, _GRID),
    "blocks along CUDA's z": (65_535, _GRID),
}


@dataclass(frozen=True, slots=True)
class TooLarge(Fault):
    """A launch with more of `what`, the product of the `sizes`, than `LIMITS` says."""

    what: str
    sizes: tuple[int, ...]

    @override
    def finding(self, program: Program) -> Finding:
        terms, (limit, remedy) = " x ".join(map("{:,}".format, self.sizes)), LIMITS[self.what]
        cause = (
            f"The kernel has {terms} = {prod(self.sizes):,} {self.what}, and CUDA has {limit:,} at"
            " most: it cannot be launched."
        )
        return Finding(FindingKind.RESOURCE, (), cause, remedy)


@dataclass(frozen=True, slots=True)
class Absent(Remark):
    """A wait for a later block of `blocks`, of which `sms` SMs have room for `each` at once."""

    line: str | None
    each: int
    sms: int
    blocks: int

    @override
    def note(self, program: Program) -> str:
        return (
            f"{at(self.line)}this waits for a later block, and of {self.blocks:,} blocks no more"
            f" than {self.sms} SMs x {self.each} = {self.sms * self.each:,} run at once: if all of"
            " these wait, that block never begins. Launch no more, or wait for earlier blocks only."
        )


@dataclass(frozen=True, slots=True)
class TooMuchMemory(Fault):
    """A block allocates more shared memory than the `limit`."""

    limit: int

    @override
    def finding(self, program: Program) -> Finding:
        mine = [b for b in program.buffers if b.space is Space.SMEM and not b.block]
        terms = [f"{b.bytes:,} ({b.name})" for b in mine]
        singles = sum(barrier.count for barrier in program.barriers if not barrier.block)
        terms += [f"{8 * singles:,} ({count(singles, 'barrier')})"] if singles else []
        reserved = (program.scratch_bytes, SCRATCH), (program.profiler_bytes, "the profiler")
        terms += [f"{size:,} ({name})" for size, name in reserved if size]
        cause = (
            f"The block allocates {program.smem_bytes:,} bytes of SMEM at once, and a block can"
            f" have {self.limit:,}: {' + '.join(terms)}, each buffer rounded up to 1,024; it cannot"
            " be launched."
        )
        remedy = "Take fewer slots, smaller tiles, or scopes that do not live at the same time."
        return Finding(FindingKind.RESOURCE, (), cause, remedy)


@dataclass(frozen=True, slots=True)
class TooManyColumns(Fault):
    """A block allocates more columns of TMEM than the `limit`."""

    limit: int

    @override
    def finding(self, program: Program) -> Finding:
        mine = [b for b in program.buffers if b.space is Space.TMEM and not b.block]
        terms = " + ".join(f"{b.bytes // COLUMN_BYTES} ({b.name})" for b in mine)
        cause = (
            f"The block allocates {program.tmem_columns} columns of TMEM at once, and a block can"
            f" have {self.limit}: {terms}; it cannot be launched."
        )
        remedy = (
            "Take narrower tiles or fewer accumulators, or let some share memory (plgpu.RefUnion)."
        )
        return Finding(FindingKind.RESOURCE, (), cause, remedy)


@dataclass(frozen=True, slots=True)
class TooManyRegisters(Fault):
    """A block's threads ask for these registers a lane; each begins with `given`."""

    asked: tuple[int, ...]
    given: int

    @override
    def finding(self, program: Program) -> Finding:
        terms, each = " + ".join(map(str, self.asked)), len(self.asked)
        cause = (
            f"The threads ask for {terms} = {sum(self.asked)} registers of a lane, and the block"
            f" begins with {each} x {self.given} = {each * self.given}: who asks last waits for"
            " ever."
        )
        remedy = "Let the memory thread give up more, or the compute threads ask for less."
        return Finding(FindingKind.RESOURCE, (), cause, remedy)


@dataclass(frozen=True, slots=True)
class WrongWay(Fault):
    """A request for registers that is less than the thread has and an increase, or more and none.

    The thread has `held` a lane, at least if `or_more`.
    """

    op: Op
    held: int
    or_more: bool = False

    @override
    def finding(self, program: Program) -> Finding:
        op, who = self.op, thread_name(program, self.op.thread)
        asked, right = "a decrease", "increase"
        if op.action is Action.INCREASE:
            asked, right = "an increase", "decrease"
        cause = (
            f"{who} asks for {op.registers} registers a lane as {asked}, and it has {self.held}"
            f"{' or more' if self.or_more else ''}: PTX gives that no meaning."
        )
        remedy = f'Ask with action="{right}", or for another number.'
        return Finding(FindingKind.RESOURCE, (op,), cause, remedy)


@dataclass(frozen=True, slots=True)
class TooManyBarriers(Fault):
    """An array of more barriers than the `limit`."""

    barrier: int
    limit: int

    @override
    def finding(self, program: Program) -> Finding:
        array = program.barriers[self.barrier]
        cause = (
            f"`{array.name}` has {array.count} barriers, and Mosaic GPU takes up to {self.limit} in"
            " one array, since their parities are the bits of one word: it does not compile."
        )
        remedy = "Take several arrays."
        return Finding(FindingKind.RESOURCE, (), cause, remedy, array.name)


@dataclass(frozen=True, slots=True)
class Spill(Fault):
    """A thread's accumulators take more registers a lane than its `limit`."""

    thread: int
    needed: int
    limit: int

    @override
    def finding(self, program: Program) -> Finding:
        cause = (
            f"The accumulators of {thread_name(program, self.thread)} take {self.needed} registers"
            f" a lane at once, and it has {self.limit}: they spill to local memory."
        )
        remedy = "Take a smaller tile, or share it among more compute threads."
        return Finding(FindingKind.RESOURCE, (), cause, remedy)
