"""Accesses of what holds nothing, or no longer, or is no part of its array, or nobody reads."""

from dataclasses import dataclass
from typing import override

from pallascope.checking.facts import (
    NO_CLASH,
    Clash,
    Fault,
    Fleeting,
    Remark,
    agent,
    at,
    barrier_name,
    landing_on,
    named,
    of_buffer,
    place,
    slot_of,
)
from pallascope.program import Buffer, Kind, Op, Program, Region, Space, step_name
from pallascope.report import Finding, FindingKind, count, thread_name


@dataclass(frozen=True, slots=True)
class Uninitialized(Fault):
    """A read of memory that the writes so far do not cover."""

    op: Op
    buffer: Buffer

    @override
    def finding(self, program: Program) -> Finding:
        op, buffer = self.op, self.buffer
        cause = (
            f"{agent(program, op)} reads {place(buffer, op)}, of which at least a part has been"
            " written by nothing before."
        )
        remedy = "Write it first, or let a copy into it land."
        return of_buffer(FindingKind.UNINITIALIZED_READ, program, buffer, (op,), cause, remedy)


@dataclass(frozen=True, slots=True)
class LostWrite(Fault):
    """A write that nothing reads; `is_useful` if other writes of the same line are stored."""

    op: Op
    buffer: Buffer
    is_useful: bool

    @override
    def finding(self, program: Program) -> Finding:
        op, buffer = self.op, self.buffer
        also, leave_out = "", "leave the write out."
        if self.is_useful:
            also = (
                " What this line writes at other steps is read: so a last read is missing, or the"
                " line runs once too often, which does no harm."
            )
            leave_out = "leave out this write (pl.when)."
        cause = (
            f"{agent(program, op)} writes {place(buffer, op)}, and nothing reads it before it is"
            f" written over or ceases to exist: the result is lost.{also}"
        )
        remedy = f"Store it with copy_smem_to_gmem, or {leave_out}"
        return of_buffer(FindingKind.LOST_STORE, program, buffer, (op,), cause, remedy)


@dataclass(frozen=True, slots=True)
class Outliving(Fleeting):
    """An access that may still use its memory when `taker`, or the end, takes it.

    Of a load, and of an ordinary access by a peer, `buffer` is the memory.
    """

    late: Op
    taker: Op | None
    buffer: Buffer | None = None
    clash: Clash = NO_CLASH

    @override
    def finding(self, program: Program) -> Finding:
        late, taker = self.late, self.taker
        if late.kind is Kind.LOAD and self.buffer is not None:
            assert taker is not None, "what lands after the end is told of its barrier"
            return _landing(program, late, taker, self.buffer)
        kind, what, does = FindingKind.RACE, "product", "read"
        before = "before its memory is given to others, or the kernel ends."
        if late.kind == Kind.CP_ASYNC:
            what, does, missing = "copy", "write", "wait_gmem_to_smem"
            remedy = f"Call wait_gmem_to_smem(0) {before}"
        elif late.kind == Kind.STORE:
            kind, what, missing = FindingKind.LOST_STORE, "copy", "wait_smem_to_gmem"
            after = "(after commit_smem_to_gmem_group, if the copy has commit_group=False)"
            remedy = f"Call wait_smem_to_gmem(0) {after} {before}"
        elif late.kind is Kind.WGMMA:
            missing = "wgmma_wait"
            remedy = "Call wgmma_wait(0), or read the accumulator, before the next scope begins."
        elif self.buffer is not None:
            what, does = "access", "write" if late.writes else "read"
            missing = f"barrier on which it arrives and block {self.buffer.block} waits"
            remedy = f"Let it arrive, then, on a barrier on which that block waits {before}"
        else:
            missing = "wait for a commit"
            remedy = "Wait for a tcgen05_commit_arrive after it before the next scope begins."
        used = late.writes if late.kind is Kind.CP_ASYNC else late.reads
        name = (self.buffer or program.buffers[used[0].buffer]).name
        ceases = "ceases to exist" if taker is None else "is given to the next scope"
        cause = (
            f"`{name}` {ceases} while this {what} of {thread_name(program, late.thread)} may still"
            f" {does} it: no {missing} after it covers it."
        )
        return Finding(kind, (late,) if taker is None else (taker, late), cause, remedy, name)

    @override
    def moment(self, program: Program) -> str:
        does = f"the {self.late.kind} is in flight"
        if self.late.kind.engine is None:
            does = f"{thread_name(program, self.late.thread)} goes on to its access"
        given = "is given to the next scope" if self.taker else "has ceased to exist"
        return f"{does}, and its memory {given}."


def _landing(program: Program, load: Op, taker: Op, buffer: Buffer) -> Finding:
    name, barrier = buffer.name, "its barrier"
    if load.barrier is not None:
        barrier = barrier_name(program, landing_on(load, buffer), load.index)
    cause = (
        f"`{name}` is given to the next scope while this copy of"
        f" {thread_name(program, load.thread)} may still land in it:"
        f" {thread_name(program, taker.thread)} does not know that its phase of {barrier} is over."
    )
    remedy = f"Wait on {barrier} before the scope of `{name}` ends."
    return Finding(FindingKind.RACE, (taker, load), cause, remedy, name)


@dataclass(frozen=True, slots=True)
class MixedTile(Fault):
    """A multicast load of a part of another tile than the load `older` of a peer, to one place."""

    op: Op
    older: Op

    @override
    def finding(self, program: Program) -> Finding:
        op, older = self.op, self.older
        buffer = program.buffers[op.whole[1].buffer]
        who, other = (thread_name(program, each.thread) for each in (op, older))
        tile, others = (f"`{program.index_of(each.whole[0])}`" for each in (op, older))
        axes = " and ".join(op.collective)
        cause = (
            f"{who} and {other} share a load to {place(buffer, op)} along the axis {axes} of the"
            f" cluster, but {other} copies its part of {others}, and {who} its part of {tile}: each"
            " of them gets a mixture of the two."
        )
        remedy = (
            f"Let all blocks along {axes} name the same tile, without {axes} in its index, or leave"
            " collective_axes out, so that each block loads a tile of its own."
        )
        return Finding(
            FindingKind.MIXED_TILE, (op, older), cause, remedy, buffer.name, slot_of(buffer, op)
        )


@dataclass(frozen=True, slots=True)
class UnwrittenOutput(Fault):
    """A part of an output that no block of the grid writes."""

    region: Region

    @override
    def finding(self, program: Program) -> Finding:
        name = program.buffers[self.region.buffer].name
        cause = (
            f"No block of grid {program.grid} writes all of the output `{name}`, at least not"
            f" `{program.index_of(self.region)}`: the caller gets there what the memory held"
            " before."
        )
        remedy = (
            "Let the grid, or a block's loop, also cover that part (pl.cdiv rounds up a number of"
            " tiles), or make the output smaller."
        )
        return Finding(FindingKind.UNWRITTEN_OUTPUT, (), cause, remedy, name)


@dataclass(frozen=True, slots=True)
class Overwritten(Remark):
    """Writes of a line to a buffer that nobody reads, but other writes of the line (`at_times`)."""

    line: str | None
    buffer: str
    at_times: bool
    times: int

    @override
    def note(self, program: Program) -> str:
        how, right = "", "right if only the last is meant to count"
        if self.at_times:
            how, right = " or gone", "it does no harm if once too often, or a read is missing"
        return (
            f"{at(self.line)}what is written to `{self.buffer}` is not read before it is written"
            f" anew{how}, {count(self.times, 'time')}: {right}."
        )


@dataclass(frozen=True, slots=True)
class HandedOver(Remark):
    """Reads of what nothing here has written, after waits for semaphores that are not followed."""

    line: str | None
    buffer: str
    semaphores: tuple[str, ...]

    @override
    def note(self, program: Program) -> str:
        return (
            f"{at(self.line)}nothing here writes what this reads of `{self.buffer}`: right if"
            f" another block does, then signals {', '.join(self.semaphores)}; whole_grid=True"
            " follows that."
        )


@dataclass(frozen=True, slots=True)
class Unwritten(Remark):
    """A part of an output that nothing writes, in a grid without other blocks."""

    region: Region

    @override
    def note(self, program: Program) -> str:
        name, part = program.buffers[self.region.buffer].name, program.index_of(self.region)
        return (
            f"the output `{name}` is not all written, at least not `{part}`, and the grid has"
            " no other block to do so: right if the caller does not read that."
        )


@dataclass(frozen=True, slots=True)
class Unused(Remark):
    """Copies or products of a line that nothing reads; `is_product` says which."""

    line: str | None
    buffer: str
    is_product: bool
    times: int

    @override
    def note(self, program: Program) -> str:
        what = "the product in" if self.is_product else "what is copied into"
        return (
            f"{at(self.line)}{what} `{self.buffer}` is not read, {count(self.times, 'time')}:"
            " right if nothing is meant to come of it."
        )


@dataclass(frozen=True, slots=True)
class Unplaced(Remark):
    """Accesses of a line whose place in the buffer depends on what a tensor holds."""

    line: str | None
    buffer: str
    times: int

    @override
    def note(self, program: Program) -> str:
        return (
            f"{at(self.line)}where this accesses `{self.buffer}` depends on what a tensor holds,"
            f" {count(self.times, 'time')}: it was taken to be within the array, and compared only"
            " with accesses of all that it may reach."
        )


@dataclass(frozen=True, slots=True)
class _Outside:
    """An access of a region that is outside of its buffer on an axis, at least in part."""

    op: Op
    region: Region
    axis: int

    @property
    def is_write(self) -> bool:
        """Whether the access writes."""
        return self.region in self.op.writes

    def told(self, program: Program, follows: str, remedy: str, there: str = "") -> Finding:
        """The finding: where the access is and how long the axis, what follows, and what to do.

        `there` says what the axis has instead, if its length does not matter.
        """
        op, buffer = self.op, program.buffers[self.region.buffer]
        size = buffer.shape[self.axis]
        cause = (
            f"{_in_step(op)}{agent(program, op)} {'writes' if self.is_write else 'reads'}"
            f" {named(buffer)} at {_indices(*self.region.box[self.axis])} of axis {self.axis},"
            f" {there or f'which has {size} ({_range(size)})'}: {follows}."
        )
        return Finding(FindingKind.OUT_OF_BOUNDS, (op,), cause, remedy, buffer.name)


@dataclass(frozen=True, slots=True)
class OutsideBuffer(_Outside, Fault):
    """A region that reaches beyond its buffer on an axis."""

    @override
    def finding(self, program: Program) -> Finding:
        buffer, (start, stop) = program.buffers[self.region.buffer], self.region.box[self.axis]
        size = buffer.shape[self.axis]
        remedy = f"Keep the indices from 0 to {size - 1}, or give the axis more."
        if buffer.space is Space.GMEM:
            remedy = (
                f"Leave out what is not from 0 to {size - 1}, or copy through SMEM: a copy's engine"
                " leaves it out in GMEM."
            )
        elif stop - start == 1:
            remedy = (
                f"Take the index modulo {size}, as lax.rem does of what is not negative, or give"
                " the axis more."
            )
        does = "overwrites" if self.is_write else "gets"
        return self.told(program, f"it {does} what is not the array's", remedy)


@dataclass(frozen=True, slots=True)
class OutsideView(_Outside, Fault):
    """A region that an index of a view leads to, and that is outside of the view on an axis."""

    @override
    def finding(self, program: Program) -> Finding:
        follows = f"it {'overwrites' if self.is_write else 'gets'} what is not the view's"
        remedy = "Keep the index within the view, or take a larger view."
        there = f"of which the view has {_indices(*self.region.view[self.axis])}"
        return self.told(program, follows, remedy, there)


@dataclass(frozen=True, slots=True)
class BeyondArray(_Outside, Fault):
    """A copy whose whole region of GMEM lies outside of its array on an axis, by mistake."""

    @override
    def finding(self, program: Program) -> Finding:
        does, more = "stores nothing", ""
        if not self.is_write:
            does, more = "gets zeros only", "; if zeros are meant, write them to SMEM"
        follows = f"all of that is outside of the array, so it {does}, and no error says so"
        remedy = f"Correct the index, or leave the copy out (pl.when){more}."
        return self.told(program, follows, remedy)


@dataclass(frozen=True, slots=True)
class OutsideBarriers(Fault):
    """An op on a barrier that its array does not have."""

    op: Op

    @override
    def finding(self, program: Program) -> Finding:
        op = self.op
        assert op.barrier is not None
        barrier = program.barriers[op.barrier]
        does = {Kind.WAIT: "waits", Kind.TEST: "tests"}.get(op.kind, "arrives")
        cause = (
            f"{_in_step(op)}{agent(program, op)} {does} on `{barrier.name}` at index {op.index},"
            f" but the array has {count(barrier.count, 'barrier')} ({_range(barrier.count)}): it"
            " takes for a barrier what is none, or another's."
        )
        remedy = (
            f"Take the index modulo {barrier.count}, as lax.rem does of what is not negative, or"
            " give the array more barriers."
        )
        return Finding(FindingKind.OUT_OF_BOUNDS, (op,), cause, remedy, barrier.name)


@dataclass(frozen=True, slots=True)
class Overshoot(Remark):
    """Copies of a line from or to tiles behind the end of an array, which it also copies itself."""

    kind: Kind
    line: str | None
    buffer: str
    times: int

    @override
    def note(self, program: Program) -> str:
        what = "gets zeros only" if self.kind == Kind.LOAD else "stores nothing"
        return (
            f"{at(self.line)}this {self.kind} is of a tile behind the end of `{self.buffer}` and"
            f" {what}, {count(self.times, 'time')}: right if a number of steps was rounded up."
        )


def _indices(start: int, stop: int) -> str:
    """An interval of an axis."""
    return f"index {start}" if stop - start == 1 else f"indices {start} to {stop - 1}"


def _range(size: int) -> str:
    """The indices of an axis."""
    return f"0 to {size - 1}" if size > 1 else "0 only" if size else "none"


def _in_step(op: Op) -> str:
    return f"in {step_name(op.step)} " if op.step else ""
