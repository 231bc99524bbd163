"""What is unfinished where a scope, a thread or a program ends.

The model. Memory whose scope has ended goes to the thread's next scope with SMEM, where that
begins; until then a wait is in time. A block's memory goes to another block where the block ends.
An engine that still reads the memory then reads what others wrote, and a copy that nobody waited
for may land in it. So may an arrival or an ordinary access of another block of the cluster: Mosaic
GPU lets each block end when its threads do. Arrivals that complete no phase are left over; on a
named barrier, which is no memory, they do no harm. Not covered: products in flight where a thread
ends; nobody gets the memory that they read before the block ends.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import override

from pallascope.checking.cells import clash_of
from pallascope.checking.clocks import Clock
from pallascope.checking.detector import Detector
from pallascope.checking.facts import NO_CLASH, Clash, Fault
from pallascope.checking.facts.barriers import (
    EarlyExit,
    IncompletePhase,
    UnawaitedLoad,
    Unobserved,
)
from pallascope.checking.facts.memory import Outliving
from pallascope.checking.order import End, Event, Order, Place
from pallascope.interleaving import Spot
from pallascope.program import BarrierType, Buffer, Engine, Kind, Op, Program, Region, Space


class Readers(Detector):
    """Finds copies from SMEM, products and `cp_async`s that may use memory when others get it.

    So may loads that land there, and accesses by a peer of the cluster. A copy must also be over
    where its thread ends; what a warp started, its thread may wait for.
    """

    def __init__(self, order: Order, *, strict: bool = False) -> None:
        super().__init__(order, strict=strict)
        program = order.program
        self.own = [program.pallas_thread(thread) for thread in range(len(program.threads))]
        self.pending: dict[int, deque[Event]] = defaultdict(deque)  # the oldest of them is not over
        self.ended: dict[int, set[int | None]] = defaultdict(set)
        # Those of them that nobody has taken the memory of, or in which accesses may not be over.
        self.watched: dict[int, set[int | None]] = defaultdict(set)
        self.takers = {b.scope_id for b in order.program.buffers if b.space is Space.SMEM}
        # Of each scope whose memory others get: what lands there, and who was the first to get it.
        self.inside: dict[int | None, list[tuple[Event, End, Buffer]]] = {}
        self.inside |= {scope: [] for scope in self._given_on()}
        self.given: dict[int | None, Event] = {}
        is_asked = bool(self.inside) or program.blocks > 1
        self.enters = (Kind.LOAD, Kind.READ, Kind.WRITE) if is_asked else ()
        self.peers: list[tuple[Event, Buffer, int]] = []  # their ordinary accesses, of which block

    @override
    def see(self, event: Event) -> Iterator[Outliving]:
        """One event: a copy or a product begins to read, or a scope ends, or one takes memory."""
        op = event.op
        is_product = op.kind.engine is Engine.TENSOR_CORE
        if op.kind in (Kind.STORE, Kind.CP_ASYNC) or is_product:
            own = self.own[op.thread]
            pending, clock = self.pending[own], self.order.clocks[own]
            while pending and is_over(pending[0].read_end, clock):
                pending.popleft()
            pending.append(event)
        elif op.kind == Kind.SCOPE_END:
            self.pending[op.thread] = deque(self._unfinished(op.thread))
            self.ended[op.thread].add(op.scope_id)
            self.watched[op.thread].add(op.scope_id)
        elif op.kind == Kind.SCOPE_BEGIN and op.scope_id in self.takers:
            yield from self._take(event)
        elif op.kind in self.enters:
            yield from self._enter(event)

    def _take(self, event: Event) -> Iterator[Outliving]:
        """A scope begins: what the scopes before it had is its own."""
        op, ended = event.op, self.ended[event.op.thread]
        for late in self._unfinished(op.thread):
            if self._scopes(late.op.reads + late.op.writes) & ended:
                yield Outliving(late.op, op, None, clash_of(late, event))
        watched = self.watched[op.thread]
        for scope in watched & self.inside.keys():
            self.given.setdefault(scope, event)
            inside = [each for each in self.inside[scope] if not is_over(each[1], event.clock)]
            self.inside[scope] = inside
            if not inside:
                watched.discard(scope)
            for late, _, buffer in inside:
                yield Outliving(late.op, op, buffer, clash_of(late, event))

    def _enter(self, late: Event) -> Iterator[Outliving]:
        """An access that its block may not wait for, of memory that others get or have got."""
        for region, end, _ in late.accesses():
            buffer = self.program.buffers[region.buffer]
            peer = peer_of(self.program, late.op, buffer)
            if buffer.space is not Space.SMEM or (peer is None and late.op.kind is not Kind.LOAD):
                continue
            if peer is not None and late.op.kind is not Kind.LOAD:
                self.peers.append((late, buffer, peer))
            if buffer.scope_id in self.inside:
                self.inside[buffer.scope_id].append((late, end, buffer))
            if taker := self.given.get(buffer.scope_id):
                for thread, ended in self.ended.items():
                    if buffer.scope_id in ended:
                        self.watched[thread].add(buffer.scope_id)
                # It was not issued when the scope took the memory, so nobody knew of its end there.
                is_always = late.clock.has(taker.op.thread, taker.index)
                clash = NO_CLASH if is_always else clash_of(late, taker)
                yield Outliving(late.op, taker.op, buffer, clash)

    @override
    def finish(self, is_whole: bool) -> Iterator[Outliving]:
        """The copies and the peers' accesses that nobody has waited for where a thread ends."""
        for late, buffer, block in self.peers if is_whole else ():
            known, ends = _end_of(self.order, block)
            if not is_over(late.read_end, known):
                clash = Clash(ends, coming=((late.op.thread, late.index),))
                yield Outliving(late.op, None, buffer, clash)
        for thread in self.pending if is_whole else ():
            for late in self._unfinished(thread):
                if late.op.kind in (Kind.STORE, Kind.CP_ASYNC):
                    yield Outliving(late.op, None)

    def _unfinished(self, thread: int) -> list[Event]:
        clock = self.order.clocks[thread]
        return [e for e in self.pending[thread] if not is_over(e.read_end, clock)]

    def _scopes(self, regions: Iterable[Region]) -> set[int | None]:
        buffers = (self.order.program.buffers[region.buffer] for region in regions)
        return {buffer.scope_id for buffer in buffers if buffer.space is Space.SMEM}

    def _given_on(self) -> set[int | None]:
        """The scopes after which their thread takes memory again."""
        found = set[int | None]()
        for ops in self.program.threads:
            begins = (at for at, op in enumerate(ops) if op.kind is Kind.SCOPE_BEGIN)
            last = max((at for at in begins if ops[at].scope_id in self.takers), default=0)
            found |= {op.scope_id for op in ops[:last] if op.kind is Kind.SCOPE_END}
        return found & self.takers


def peer_of(program: Program, op: Op, buffer: Buffer) -> int | None:
    """The block of the cluster whose memory an op accesses, if that is not its own block's."""
    return None if buffer.block == program.block_of(op.thread) else buffer.block


def is_over(end: End, clock: Clock) -> bool:
    """Whether a thread with this clock has waited for this end."""
    ends, number = end
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
        clock, ends = _end_of(order, block)
        for phase in place.phases.values():
            for thread, at, op in phase.arrivals:
                if program.block_of(thread) != block and not clock.has(thread, at):
                    yield EarlyExit(op, barrier, index, block, Clash(ends, coming=((thread, at),)))


def _end_of(order: Order, block: int) -> tuple[Clock, tuple[Spot, ...]]:
    """What the threads of a block know together when the last of them ends, and their last ops."""
    clock, threads = Clock.zero(len(order.program.threads)), order.program.threads_of(block)
    for thread in threads:
        clock.join(order.clocks[thread])
    ends = ((thread, len(order.program.threads[thread]) - 1) for thread in threads)
    return clock, tuple(end for end in ends if end[1] >= 0)


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
