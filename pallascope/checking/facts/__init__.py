"""What the check finds, as typed facts: one class for each way in which a program can go wrong.

The model. A detector says which ops, which memory or which barrier a fact is about, and what it
counted there; it makes no sentence. The fact makes them: a `Fault` becomes a `Finding`, a `Remark`
becomes a note. A cause says who does what to which memory, and by what the two would have been in
order. A remedy names the call that is missing and the thread that has to make it. A barrier is
named by the id of its array and its index there.

A fault that some orders of the threads' ops bring out, and others do not, is `Fleeting`. It has a
`Clash`: which ops have to be where for it to show. `interleavings` makes an order of that.
"""

import abc
from dataclasses import dataclass

from pallascope.interleaving import Spot
from pallascope.program import Buffer, Op, Program
from pallascope.report import Finding, FindingKind, thread_name


@dataclass(frozen=True, slots=True)
class Clash:
    """A moment at which a fault shows.

    The `done` ops are over, those `in_flight` have been issued and are not, the `coming` are next.
    Of a barrier, by id and index, a phase may have to be `incomplete`. No thread may have come to
    the `later` ops.
    """

    done: tuple[Spot, ...] = ()
    in_flight: tuple[Spot, ...] = ()
    coming: tuple[Spot, ...] = ()
    incomplete: tuple[tuple[int, int], int] | None = None
    later: tuple[Spot, ...] = ()

    @property
    def spots(self) -> tuple[Spot, ...]:
        """All ops that it names."""
        return self.done + self.in_flight + self.coming


#: Of a fault that shows in every order.
NO_CLASH = Clash()


class Fault(abc.ABC):
    """Something that is wrong with a program."""

    __slots__ = ()

    @abc.abstractmethod
    def finding(self, program: Program) -> Finding:
        """The fault in words."""


class Fleeting(Fault):
    """A fault that some orders of the ops bring out; every order does if `clash` names no op."""

    __slots__ = ()
    clash: Clash

    @abc.abstractmethod
    def moment(self, program: Program) -> str:
        """What happens at the moment at which the fault shows, as the end of a sentence."""


class Remark(abc.ABC):
    """Something that may be right or wrong, or that the check did not look at."""

    __slots__ = ()

    @abc.abstractmethod
    def note(self, program: Program) -> str:
        """The remark in words."""


# How findings and notes name threads, memory and barriers.

#: What a report calls the memory that reductions across warps share.
SCRATCH = "the scratch of reductions"


def lines(*lines: str | None) -> str:
    """Lines of source, each once."""
    return " and ".join(dict.fromkeys(line or "an unknown line" for line in lines))


def at(line: str | None) -> str:
    """How a note of a line begins, if the trace knows the line."""
    return f"{line}: " if line else ""


def agent(program: Program, op: Op) -> str:
    """Who it is that accesses memory for this op."""
    who = thread_name(program, op.thread)
    return who if op.kind.engine is None else f"the {op.kind} of {who}"


def named(buffer: Buffer) -> str:
    """The buffer's name, with its block's number if that is not the first."""
    return f"`{buffer.name}`" + (f" of block {buffer.block}" if buffer.block else "")


def slot_of(buffer: Buffer, *ops: Op) -> int | None:
    """The slot of the buffer's ring that all these ops are in, if they are in one."""
    boxes = [r.box for op in ops for r in op.reads + op.writes if r.buffer == buffer.id]
    slots = {box[0][0] for box in boxes} if buffer.slots else set[int]()
    return slots.pop() if len(slots) == 1 else None


def place(buffer: Buffer, *ops: Op) -> str:
    """The buffer's name, with its slot if the ops are in one."""
    slot = slot_of(buffer, *ops)
    return ("" if slot is None else f"slot {slot} of ") + named(buffer)


def if_rounded(program: Program, buffer: Buffer, *ops: Op) -> str:
    """A sentence on regions of these ops that are larger than what is accessed, if any are."""
    regions = (r for op in ops for r in op.reads + op.writes if r.buffer == buffer.id)
    rounded = (r for r in dict.fromkeys(regions) if r.is_placed and not r.is_exact)
    names = [program.index_of(region) for region in rounded]
    if not names:
        return ""
    boxes = " and to ".join(f"`{name}`" for name in names)
    return f" It may be false: what is accessed is no box, and was rounded up to {boxes}."


def of_buffer(
    kind: FindingKind,
    program: Program,
    buffer: Buffer,
    ops: tuple[Op, ...],
    cause: str,
    remedy: str,
    is_strict: bool = False,
) -> Finding:
    """A finding about accesses of one buffer: `ops` make them, the newest first."""
    made = ops[::-1]
    cause += if_rounded(program, buffer, *made)
    slot = slot_of(buffer, *made)
    return Finding(kind, ops, cause, remedy, buffer.name, slot, is_strict=is_strict)


def misuse(
    program: Program, barrier: int, index: int, ops: tuple[Op, ...], cause: str, remedy: str
) -> Finding:
    """A finding about the use of one barrier, by its array's id and its index there."""
    about = where(program, barrier, index)
    return Finding(FindingKind.BARRIER_MISUSE, ops, cause, remedy, *about)


def where(program: Program, barrier: int, index: int) -> tuple[str, int | None]:
    """The name of a barrier's array, and its index there if it has several."""
    array = program.barriers[barrier]
    return array.name, index if array.count > 1 else None


def barrier_name(program: Program, barrier: int, index: int) -> str:
    """A single barrier's name, as a report has it."""
    array, at = where(program, barrier, index)
    each = "" if at is None else f"[{at}]"
    owner = program.barriers[barrier].block
    block = f" of block {owner}" if program.blocks > 1 and owner is not None else ""
    return f"`{array}{each}`{block}"


def landing_on(load: Op, buffer: Buffer) -> int:
    """The barrier on which a load's part in a buffer lands, which may be another block's."""
    assert load.barrier is not None, "it lands on one"
    peers = dict(zip((region.buffer for region in load.writes), load.peers))
    return peers.get(buffer.id, load.barrier)
