"""What the blocks of a grid do to each other."""

from dataclasses import dataclass
from typing import override

from pipelib.schedule.checking.facts import Fault, Remark
from pipelib.schedule.checking.facts.naming import agent, lines, named
from pipelib.schedule.checking.facts.races import Collision
from pipelib.schedule.program import Program, Region
from pipelib.schedule.report import Finding, FindingKind, block_name, count


@dataclass(frozen=True, slots=True)
class BlocksRace(Collision, Fault):
    """The two are of different blocks of a grid; `programs` are the newer's and the older's."""

    programs: tuple[Program, Program]

    @override
    def finding(self, program: Program) -> Finding:
        (later, earlier), buffer = self.programs, self.buffer
        verb = "overwritten" if self.newer_writes else "read"
        doing = "written" if self.older_writes else "read"
        if self.newer_writes and self.older_writes:
            verb, doing = "written", "written too"
        who, other = (
            f"{agent(program, op)} of {block_name(program)}"
            for program, op in ((later, self.newer), (earlier, self.older))
        )
        return Finding(
            FindingKind.RACE, (self.newer, self.older),
            f"{named(buffer)} is {verb} by {who}, and a part of the same place is {doing} by"
            f" {other}: nothing orders the blocks of one launch, so either may come first.",
            "Let each block write a part of its own (the block's index on every axis of the grid"
            " has to be in the index of the array), add with an atomic operation, or launch two"
            " kernels.",
            buffer.name, programs=self.programs,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnwrittenOutput(Fault):
    """A part of an output that no block of the grid writes."""

    region: Region

    @override
    def finding(self, program: Program) -> Finding:
        name = program.buffers[self.region.buffer].name
        return Finding(
            FindingKind.UNWRITTEN_OUTPUT, (),
            f"No block of grid {program.grid} writes all of the output `{name}`, at least not"
            f" `{program.index_of(self.region)}`: the caller gets there what the memory held"
            " before.",
            "Let the grid, or a block's loop, also cover that part (pl.cdiv rounds up a number of"
            " tiles), or make the output smaller.", name,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BlocksMeet(Remark):
    """Accesses of a buffer in GMEM by two blocks that may race, `times`; nobody can tell.

    `is_rounded` if what one of the two accesses was rounded up; else the blocks may wait for each
    other, in a way that the check does not follow.
    """

    lines: tuple[str | None, ...]
    buffer: str
    is_rounded: bool
    times: int

    @override
    def note(self, program: Program) -> str:
        why = "the blocks may wait for each other in a way that is not followed here"
        if self.is_rounded:
            why = "what is accessed is no box, and was rounded up to one"
        return (
            f"{lines(*self.lines)}: two blocks of the grid may access the same part of"
            f" `{self.buffer}`, one to write it, {count(self.times, 'time')}: not judged, since"
            f" {why}."
        )
