"""Accesses and barriers outside of their arrays."""

from dataclasses import dataclass
from typing import override

from pipelib.schedule.checking.facts import Fault, Remark
from pipelib.schedule.checking.facts.naming import agent, named
from pipelib.schedule.program import Kind, Op, Program, Region, Space, step_name
from pipelib.schedule.report import Finding, FindingKind, count


@dataclass(frozen=True, slots=True)
class OutsideBuffer(Fault):
    """A region that reaches beyond its buffer on an axis."""

    op: Op
    region: Region
    axis: int

    @override
    def finding(self, program: Program) -> Finding:
        op, region, axis = self.op, self.region, self.axis
        buffer, (start, stop) = program.buffers[region.buffer], region.box[axis]
        size, is_write = buffer.shape[axis], region in op.writes
        indices = f"index {start}" if stop - start == 1 else f"indices {start} to {stop - 1}"
        follows = f"it {'overwrites' if is_write else 'gets'} what is not the array's"
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
        return Finding(
            FindingKind.OUT_OF_BOUNDS, (op,),
            f"{_in_step(op)}{agent(program, op)} {'writes' if is_write else 'reads'}"
            f" {named(buffer)} at {indices} of axis {axis}, which has {size} ({_range(size)}):"
            f" {follows}.",
            remedy, buffer.name,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BeyondArray(Fault):
    """A copy whose whole region of GMEM lies outside of its array on an axis, by mistake."""

    op: Op
    region: Region
    axis: int

    @override
    def finding(self, program: Program) -> Finding:
        op, buffer = self.op, program.buffers[self.region.buffer]
        (start, stop), size = self.region.box[self.axis], buffer.shape[self.axis]
        is_write = self.region in op.writes
        indices = f"index {start}" if stop - start == 1 else f"indices {start} to {stop - 1}"
        follows = "it stores nothing" if is_write else "it gets zeros only"
        remedy = "Correct the index, or leave the copy out (pl.when)."
        if not is_write:
            remedy = (
                "Correct the index, or leave the copy out (pl.when); if zeros are meant, write"
                " them to SMEM."
            )
        return Finding(
            FindingKind.OUT_OF_BOUNDS, (op,),
            f"{_in_step(op)}{agent(program, op)} {'writes' if is_write else 'reads'}"
            f" {named(buffer)} at {indices} of axis {self.axis}, which has {size} ({_range(size)}):"
            f" all of that is outside of the array, so {follows}, and no error says so.",
            remedy, buffer.name,
        )  # fmt: skip


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
        return Finding(
            FindingKind.OUT_OF_BOUNDS, (op,),
            f"{_in_step(op)}{agent(program, op)} {does} on `{barrier.name}` at index {op.index},"
            f" but the array has {count(barrier.count, 'barrier')} ({_range(barrier.count)}): it"
            " takes for a barrier what is none, or another's.",
            f"Take the index modulo {barrier.count}, as lax.rem does of what is not negative, or"
            " give the array more barriers.",
            barrier.name,
        )  # fmt: skip


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
            f"{self.line}: this {self.kind} is of a tile behind the end of `{self.buffer}` and"
            f" {what}, {count(self.times, 'time')}: right if a number of steps was rounded up."
        )


def _range(size: int) -> str:
    """The indices of an axis."""
    return f"0 to {size - 1}" if size > 1 else "0 only" if size else "none"


def _in_step(op: Op) -> str:
    return f"in {step_name(op.step)} " if op.step else ""
