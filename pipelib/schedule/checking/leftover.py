"""What is unfinished where a scope, a thread or a program ends.

The model. Memory whose scope has ended goes to the thread's next scope with SMEM, where that
begins; until then a wait is in time. A block's memory goes to another block where the block ends.
An engine that still reads the memory then reads what others wrote, and a copy that nobody waited
for may land in it. Arrivals that complete no phase are left over. Not covered: products in flight
where a thread ends; nobody gets the memory that they read before the block ends.
"""

from collections import defaultdict
from collections.abc import Iterator

from pipelib.schedule.checking.facts import IncompletePhase, Outliving, UnawaitedLoad
from pipelib.schedule.checking.order import Event, Order, Place
from pipelib.schedule.program import Kind, Space


class Readers:
    """Copies from SMEM and products that may still read their memory when others get it.

    A copy must also be over where its thread ends.
    """

    def __init__(self, order: Order):
        self.order = order
        self.pending: dict[int, list[Event]] = defaultdict(list)
        self.ended: dict[int, set[int | None]] = defaultdict(set)
        self.takers = {b.scope_id for b in order.program.buffers if b.space is Space.SMEM}

    def see(self, event: Event) -> Iterator[Outliving]:
        """One event: a copy or a product begins to read, or a scope ends, or one takes memory."""
        op = event.op
        if op.kind in (Kind.STORE, Kind.WGMMA):
            self.pending[op.thread].append(event)
        elif op.kind == Kind.SCOPE_END:
            self.pending[op.thread] = self._unfinished(op.thread)
            self.ended[op.thread].add(op.scope_id)
        elif op.kind == Kind.SCOPE_BEGIN and op.scope_id in self.takers:
            for late in self._unfinished(op.thread):
                if self._scopes(late) & self.ended[op.thread]:
                    yield Outliving(late.op, op)

    def finish(self) -> Iterator[Outliving]:
        """The copies that threads have not waited for when they end."""
        for thread in self.pending:
            for late in self._unfinished(thread):
                if late.op.kind == Kind.STORE:
                    yield Outliving(late.op, None)

    def _unfinished(self, thread: int) -> list[Event]:
        clock = self.order.clocks[thread]
        return [e for e in self.pending[thread] if clock[e.read_done[0]] < e.read_done[1]]

    def _scopes(self, event: Event) -> set[int | None]:
        buffers = (self.order.program.buffers[region.buffer] for region in event.op.reads)
        return {buffer.scope_id for buffer in buffers if buffer.space is Space.SMEM}


def left_over(place: Place) -> Iterator[IncompletePhase | UnawaitedLoad]:
    """The arrivals on a barrier that complete no phase, and the loads that nobody waits for."""
    barrier, index, extra = place.barrier, place.index, place.total % place.expects
    if extra:
        arrivals = place.phases[place.total // place.expects].arrivals
        first = tuple(op for *_, op in arrivals[:2])
        yield IncompletePhase(first, barrier, index, extra, place.expects)
    for phase in place.phases[place.waited :]:
        loads = [op for *_, op in phase.arrivals if op.kind == Kind.LOAD]
        if loads:
            yield UnawaitedLoad(loads[0], barrier, index)
