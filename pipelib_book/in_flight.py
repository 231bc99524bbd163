"""What a thread has left in flight, op by op, and which barriers free the slots of a buffer.

The model. A thread's products and stores end in the order in which it started them; a store has
first **read** its SMEM, and is **over** when its bytes are in GMEM. What may still be in flight
after an op follows from the waits up to there, and from nothing else, so it is the same in each
schedule. Stores are waited for in groups.

The barrier that **frees** a buffer's slots is the one on which a thread waits last before it loads
or writes a slot again; other threads arrive there when they are done with the slot. Not covered: a
thread that waits for something else in between.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pallascope.program import Buffer, Kind, Op, Program, Region

#: Stores that one wait covers together.
type Group = tuple[Op, ...]


@dataclass(frozen=True)
class Moment:
    """An op, and what its thread may have in flight after it, the oldest first.

    Attributes:
      products: products that may not be over.
      unread: groups of stores that may not have read their SMEM.
      stores: groups of stores that may not be over.
    """

    op: Op
    products: tuple[Op, ...] = ()
    unread: tuple[Group, ...] = ()
    stores: tuple[Group, ...] = ()

    def reads(self, program: Program, buffer: str) -> bool:
        """Whether what is in flight may still read the slot that this arrival frees."""
        readers = self.products + tuple(itertools.chain(*self.unread))
        return any(
            may_be_slot(program, self.op, region)
            for op in readers
            for region in op.reads
            if _has_name(program, region, buffer)
        )


def moments(ops: Iterable[Op]) -> Iterator[Moment]:
    """A thread's ops, each with what may be in flight after it."""
    products, unread, stores, group = (), (), (), ()
    for op in ops:
        match op.kind:
            case Kind.WGMMA:
                products += (op,)
            case Kind.STORE:
                group += (op,)
            case Kind.COMMIT_GROUP:
                unread, stores, group = (*unread, group), (*stores, group), ()
            case Kind.WGMMA_WAIT | Kind.ACC_READ if op.pending is not None:
                products = _newest(products, op.pending)
            case Kind.WAIT_STORE if op.pending is not None:
                unread = _newest(unread, op.pending)
                stores = stores if op.read_only else _newest(stores, op.pending)
            case _:
                pass
        yield Moment(op, products, unread, stores)


def frees(program: Program, buffer: str) -> frozenset[int]:
    """The barriers that free the slots of a buffer, by their ids."""
    arrivals = {op.barrier for op in program.ops if op.kind is Kind.ARRIVE}
    found = set[int]()
    for ops in program.threads:
        last: int | None = None
        for op in ops:
            if op.kind is Kind.WAIT:
                last = op.barrier
            elif op.kind not in (Kind.LOAD, Kind.WRITE) or last is None:
                continue
            elif last in arrivals and _names(program, op.writes, buffer):
                found.add(last)
    return frozenset(found)


def frees_unread(program: Program, buffer: str) -> bool:
    """Whether a thread frees a slot that it has not read since it freed that slot last.

    Only a ring with a barrier for each slot says which slot an arrival frees.
    """
    slots = {each.slots for each in program.buffers if report_name(each) == buffer}
    ring = {each for each in frees(program, buffer) if program.barriers[each].count in slots}
    for ops in program.threads:
        read = set[int | None]()
        for op in ops:
            read |= {each.box[0][0] for each in op.reads if _has_name(program, each, buffer)}
            if op.kind is Kind.ARRIVE and op.barrier in ring:
                if op.index not in read:
                    return True
                read.remove(op.index)
    return False


def filled_by(program: Program, op: Op, buffer: str) -> Region | None:
    """Where an op loads or writes into a slot of a buffer, if it does."""
    written = op.writes if op.kind in (Kind.LOAD, Kind.WRITE) else ()
    return next((each for each in written if _has_name(program, each, buffer)), None)


def may_be_slot(program: Program, op: Op, region: Region) -> bool:
    """Whether a region may be in the slot of an arrival or wait: a ring has a barrier for each."""
    slots, barrier = program.buffers[region.buffer].slots, op.barrier
    if slots is None or barrier is None or program.barriers[barrier].count != slots:
        return True
    return region.box[0][0] == op.index


def is_load_of(program: Program, op: Op, buffer: str) -> bool:
    """Whether an op loads into a slot of a buffer."""
    return op.kind is Kind.LOAD and _names(program, op.writes, buffer)


def _names(program: Program, regions: Iterable[Region], buffer: str) -> bool:
    """Whether one of some regions is in memory of this name."""
    return any(_has_name(program, region, buffer) for region in regions)


def _has_name(program: Program, region: Region, buffer: str) -> bool:
    return report_name(program.buffers[region.buffer]) == buffer


def report_name(buffer: Buffer) -> str:
    """What a report calls a buffer, whichever block's it is."""
    return buffer.name.partition("@")[0]


def _newest[T](items: tuple[T, ...], number: int) -> tuple[T, ...]:
    return items[-number:] if number else ()
