"""What is unfinished where a scope, a thread or a program ends.

The model. Memory whose scope has ended goes to the thread's next scope with SMEM, where that
begins; until then a wait is in time. A block's memory goes to another block where the block ends.
An engine that still reads the memory then reads what others wrote, and a copy that nobody waited
for may land in it. So may an arrival of another block of the cluster: Mosaic GPU lets each block
end when its threads do. Arrivals that complete no phase are left over; on a named barrier, which is
no memory, they do no harm. Not covered: products in flight where a thread ends; nobody gets the
memory that they read before the block ends.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import override

from pallascope.checking.clocks import Clock
from pallascope.checking.detector import Detector
from pallascope.checking.facts import Clash, Fault
from pallascope.checking.facts.barriers import (
    EarlyExit,
    IncompletePhase,
    UnawaitedLoad,
    Unobserved,
)
from pallascope.checking.facts.memory import Outliving
from pallascope.checking.order import Event, Order, Place
from pallascope.interleaving import Spot
from pallascope.program import BarrierType, Engine, Kind, Op, Region, Space


class Readers(Detector):
    """Finds copies from SMEM, products and `cp_async`s that may use memory when others get it.

    A copy must also be over where its thread ends; what a warp started, its thread may wait for.
    """

    def __init__(self, order: Order, *, strict: bool = False) -> None:
        super().__init__(order, strict=strict)
        program = order.program
        self.own = [program.pallas_thread(thread) for thread in range(len(program.threads))]
        self.pending: dict[int, deque[Event]] = defaultdict(deque)  # the oldest of them is not over
        self.ended: dict[int, set[int | None]] = defaultdict(set)
        self.takers = {b.scope_id for b in order.program.buffers if b.space is Space.SMEM}

    @override
    def see(self, event: Event) -> Iterator[Outliving]:
        """One event: a copy or a product begins to read, or a scope ends, or one takes memory."""
        op = event.op
        is_product = op.kind.engine is Engine.TENSOR_CORE
        if op.kind in (Kind.STORE, Kind.CP_ASYNC) or is_product:
            own = self.own[op.thread]
            pending, clock = self.pending[own], self.order.clocks[own]
            while pending and _is_over(pending[0], clock):
                pending.popleft()
            pending.append(event)
        elif op.kind == Kind.SCOPE_END:
            self.pending[op.thread] = deque(self._unfinished(op.thread))
            self.ended[op.thread].add(op.scope_id)
        elif op.kind == Kind.SCOPE_BEGIN and op.scope_id in self.takers:
            for late in self._unfinished(op.thread):
                if self._scopes(late.op.reads + late.op.writes) & self.ended[op.thread]:
                    yield Outliving(late.op, op, _clash((late.op.thread, late.index), event))
            for by, at, load in self._landing(op.thread):
                if self._scopes(load.writes) & self.ended[op.thread]:
                    yield Outliving(load, op, _clash((by, at), event))

    @override
    def finish(self, is_whole: bool) -> Iterator[Outliving]:
        """The copies that threads have not waited for when they end."""
        for thread in self.pending if is_whole else ():
            for late in self._unfinished(thread):
                if late.op.kind in (Kind.STORE, Kind.CP_ASYNC):
                    yield Outliving(late.op, None)

    def _unfinished(self, thread: int) -> list[Event]:
        clock = self.order.clocks[thread]
        return [e for e in self.pending[thread] if not _is_over(e, clock)]

    def _landing(self, thread: int) -> Iterator[tuple[int, int, Op]]:
        """The loads that may still land, for all that a thread knows."""
        clock = self.order.clocks[thread]
        for place in dict.fromkeys(self.order.places.values()):
            for number, phase in place.phases.items():
                loads = [arrival for arrival in phase.arrivals if arrival[2].kind == Kind.LOAD]
                if loads and not place.ends.are_known(number, clock):
                    yield from loads

    def _scopes(self, regions: Iterable[Region]) -> set[int | None]:
        buffers = (self.order.program.buffers[region.buffer] for region in regions)
        return {buffer.scope_id for buffer in buffers if buffer.space is Space.SMEM}


def _clash(late: Spot, taker: Event) -> Clash:
    """The moment at which a scope takes the memory of what is in flight."""
    return Clash(in_flight=(late,), coming=((taker.op.thread, taker.index),))


def _is_over(event: Event, clock: Clock) -> bool:
    """Whether a thread with this clock has waited for an event's reads."""
    ends, number = event.read_end
    return ends.are_known(number, clock)


class Arrivals(Detector):
    """Finds arrivals that a phase does not expect, or that come too late, and waits that miss one.

    What `order` found as it ran comes first. A remark has the phases that nobody waits for.
    """

    @override
    def finish(self, is_whole: bool) -> Iterator[Fault]:
        yield from self.order.misused
        if not is_whole:
            return
        yield from early_exits(self.order)
        for (barrier, index), place in self.order.places.items():
            if self.program.barriers[barrier].type is BarrierType.MBARRIER:
                yield from left_over(self.order, barrier, index, place)
        self._note_unobserved()

    def _note_unobserved(self) -> None:
        """Notes arrays of barriers with phases that nobody waits for, no load among them."""
        counts: Counter[int] = Counter()
        for (barrier, index), place in self.order.places.items():
            waited = place.waited[barrier, index]
            late = (place.phases.get(number) for number in range(waited, place.completed))
            if not any(
                op.kind == Kind.LOAD for phase in late if phase for *_, op in phase.arrivals
            ):
                counts[barrier] += place.completed - waited
        for barrier, count in counts.items():
            if count:
                self.note(Unobserved(barrier, count))


def early_exits(order: Order) -> Iterator[EarlyExit]:
    """The arrivals of other blocks that a block does not wait for before it ends.

    Mosaic GPU lets the blocks of a cluster meet before they give back TMEM that they have as pairs
    (`mosaic/gpu/core.py`), but by `barrier.cluster.arrive.relaxed`: PTX says that it orders no
    accesses of memory, so an arrival may still be on its way.
    """
    program = order.program
    for (barrier, index), place in order.places.items() if program.blocks > 1 else ():
        block = program.barriers[barrier].block
        if block is None:
            continue
        clock = Clock.zero(len(program.threads))
        for thread in program.threads_of(block):
            clock.join(order.clocks[thread])
        for phase in place.phases.values():
            for thread, at, op in phase.arrivals:
                if program.block_of(thread) != block and not clock.has(thread, at):
                    ends = ((t, len(program.threads[t]) - 1) for t in program.threads_of(block))
                    clash = Clash(tuple(e for e in ends if e[1] >= 0), coming=((thread, at),))
                    yield EarlyExit(op, barrier, index, block, clash)


def left_over(
    order: Order, barrier: int, index: int, place: Place
) -> Iterator[IncompletePhase | UnawaitedLoad]:
    """The arrivals on an mbarrier that complete no phase, and what is to arrive at the end.

    That is a load that nobody waits for; or a commit, if nobody waits for it or for a later one.
    """
    extra, waited = place.total % place.expects, place.waited[barrier, index]
    if extra:
        arrivals = place.phases[place.total // place.expects].arrivals
        first = tuple(op for *_, op in arrivals[:2])
        yield IncompletePhase(first, barrier, index, extra, place.expects)
    for number in sorted(number for number in place.phases if number >= waited):
        loads = [op for *_, op in place.phases[number].arrivals if op.kind == Kind.LOAD]
        if loads:
            yield UnawaitedLoad(loads[0], barrier, index)
        commits = place.phases[number].commits
        late = [(thread, at) for thread, at in commits if at > order.last_commit[thread]]
        if late:
            thread, at = late[0]
            yield UnawaitedLoad(order.program.threads[thread][at], barrier, index)
