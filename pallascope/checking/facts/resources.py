"""More memory, barriers or registers than there are."""

from dataclasses import dataclass
from typing import override

from pallascope.checking.facts import SCRATCH, Fault
from pallascope.machine import COLUMN_BYTES
from pallascope.program import Action, Op, Program, Space
from pallascope.report import Finding, FindingKind, count, thread_name


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
        return Finding(
            FindingKind.RESOURCE, (),
            f"The block allocates {program.smem_bytes:,} bytes of SMEM at once, and a block can"
            f" have {self.limit:,}: {' + '.join(terms)}, each buffer rounded up to 1,024; it cannot"
            " be launched.",
            "Take fewer slots, smaller tiles, or scopes that do not live at the same time.",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TooManyColumns(Fault):
    """A block allocates more columns of TMEM than the `limit`."""

    limit: int

    @override
    def finding(self, program: Program) -> Finding:
        mine = [b for b in program.buffers if b.space is Space.TMEM and not b.block]
        terms = " + ".join(f"{b.bytes // COLUMN_BYTES} ({b.name})" for b in mine)
        return Finding(
            FindingKind.RESOURCE, (),
            f"The block allocates {program.tmem_columns} columns of TMEM at once, and a block can"
            f" have {self.limit}: {terms}; it cannot be launched.",
            "Take narrower tiles or fewer accumulators, or let some share memory (plgpu.RefUnion).",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TooManyRegisters(Fault):
    """A block's threads ask for these registers a lane; each begins with `given`."""

    asked: tuple[int, ...]
    given: int

    @override
    def finding(self, program: Program) -> Finding:
        terms, each = " + ".join(map(str, self.asked)), len(self.asked)
        return Finding(
            FindingKind.RESOURCE, (),
            f"The threads ask for {terms} = {sum(self.asked)} registers of a lane, and the block"
            f" begins with {each} x {self.given} = {each * self.given}: who asks last waits for"
            " ever.",
            "Let the memory thread give up more, or the compute threads ask for less.",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WrongWay(Fault):
    """A request for registers that is less than the thread has and an increase, or more and none.

    The thread has `held` a lane.
    """

    op: Op
    held: int

    @override
    def finding(self, program: Program) -> Finding:
        op, who = self.op, thread_name(program, self.op.thread)
        asked, right = "a decrease", "increase"
        if op.action is Action.INCREASE:
            asked, right = "an increase", "decrease"
        return Finding(
            FindingKind.RESOURCE, (op,),
            f"{who} asks for {op.registers} registers a lane as {asked}, and it has {self.held}:"
            " PTX gives that no meaning.",
            f'Ask with action="{right}", or for another number.',
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TooManyBarriers(Fault):
    """An array of more barriers than the `limit`."""

    barrier: int
    limit: int

    @override
    def finding(self, program: Program) -> Finding:
        array = program.barriers[self.barrier]
        return Finding(
            FindingKind.RESOURCE, (),
            f"`{array.name}` has {array.count} barriers, and Mosaic GPU takes up to {self.limit} in"
            " one array, since their parities are the bits of one word: it does not compile.",
            "Take several arrays.", array.name,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spill(Fault):
    """A thread's accumulators take more registers a lane than its `limit`."""

    thread: int
    needed: int
    limit: int

    @override
    def finding(self, program: Program) -> Finding:
        return Finding(
            FindingKind.RESOURCE, (),
            f"The accumulators of {thread_name(program, self.thread)} take {self.needed} registers"
            f" a lane at once, and it has {self.limit}: they spill to local memory.",
            "Take a smaller tile, or share it among more compute threads.",
        )  # fmt: skip
