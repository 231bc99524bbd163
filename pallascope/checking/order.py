"""`Order`: which op of a program has happened before which, whatever the threads' speeds.

The model. A **clock** counts, for each thread, how many of its ops are known to be over (`clocks`).
A thread that waits for a phase joins its clock with the clocks of the phase's arrivals; nothing
else crosses from thread to thread. So a clock that has a thread's op has all that this thread knew
at that op.

An asynchronous access is over where some thread has waited for it: a load by a wait for its phase,
a store, a product or a `cp_async` by the thread's own wait. That wait is an op, so clocks count no
loads, stores or products. `Ends` says which op of which thread is the wait, and an access is over
by a clock that has this op. An access is then two numbers instead of a clock, as in FastTrack
(Flanagan and Freund, PLDI 2009): the ends that it is one of, and its number among them.

Why one run is enough. A traced thread is straight-line code, a wait looks at a count that only
grows, and arrivals do not block. So whether a thread gets past a wait does not depend on the order
of the other threads' ops. Threads that run as far as they can, in any order, get equally far, and
threads that are stuck then are stuck in every run. The arrivals that make up a phase are also the
same in every run, if each arrival of a phase knows that the phase before is complete; an arrival
that does not know it is a fault. The hardware compares parities in a wait. A parity is as good as a
count if the phase after next cannot be complete before the wait; if it can, that is a fault. Where
neither fault is found, the clocks hold for every interleaving. Where one is, they hold for the
interleavings in which phases fall as they do here.

Beside each count stands another one for `commit_smem`: how many of the thread's ops had a fence
after them on the way here. PTX wants such a fence between ordinary and asynchronous accesses of the
same memory, in any thread along the way (PTX ISA, memory consistency model, "proxy-preserved base
causality order").

A third count is the tensor core's: PTX orders what different threads do with TMEM only by a pair of
`tcgen05.fence`s around what synchronises them (PTX ISA, tcgen05 memory consistency model), and
Mosaic GPU has these at barriers made with `orders_tensor_core` only. So an arrival and a wait there
carry this count across, and no others do. A commit for a thread's products is itself such an
arrival. An access of TMEM is over where the thread's own `wait_load_tmem` or
`commit_tmem` says so, a product where some thread has waited for a commit that came after it.

Clocks are joined where all threads of a block begin a scope together, and where a thread and its
warps meet. What a thread waits for or commits, each of its warps does too. Corresponding multicast
copies of a cluster's blocks are taken to fall in phases of the same number. A wait on a semaphore
joins the clocks of the signals that are sure to come before it (`semaphores`). Not covered: what a
`test` of a barrier answers; semaphores that are not followed; blocks of the grid that are not in
the program.

The cost. A clock has two numbers for each thread of the program, however long it is and however
many barriers it makes. Only arrivals, waits and fences touch whole clocks. An arrival that goes to
all blocks along an axis of a cluster counts once: their barriers all get the same arrivals, and are
one `Place`. A phase is forgotten once all who wait for it have done so: what is kept grows with the
barriers and the waits, not with clocks.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Literal, assert_never

from pallascope.checking.clocks import Clock
from pallascope.checking.facts import Clash
from pallascope.checking.facts.barriers import EarlyArrival, LappedWait
from pallascope.checking.registers import may_wait_for_registers, registers_at_first
from pallascope.interleaving import Spot
from pallascope.program import BarrierType, Kind, Op, Program, Region, Single

Members = tuple[int, ...]  # threads that meet


class Ends:
    """The ends of accesses that threads await in one order, numbered from 0, and who awaits them.

    They are the phases of a single barrier; the reading or the finishing of a thread's groups of
    stores; a thread's products or `cp_async`s; its accesses of TMEM; or a thread's own ops, each of
    which is over when it is issued. `waits` has, for each thread that waits for these ends, the
    index of the op after which the thread knows of end 0, of end 1, and so on.
    """

    __slots__ = ("waits",)

    def __init__(self, waits: dict[int, list[int] | range]):
        self.waits = waits

    def wait(self, thread: int, index: int, count: int) -> None:
        """Notes that a thread, at its op of this index, waits for the first `count` ends."""
        indices = self.waits[thread]
        assert isinstance(indices, list)  # the thread's own ops are no one's to wait for
        indices += [index] * (count - len(indices))

    def are_known(self, number: int, clock: Clock) -> bool:
        """Whether a clock has a wait for the end of this number, or for a later one."""
        for thread, indices in self.waits.items():
            if number < len(indices) and clock.has(thread, indices[number]):
                return True
        return False

    def are_ordered(self, number: int, clock: Clock) -> bool:
        """Whether the tensor core knows of such a wait, by the clock of an access of TMEM."""
        for thread, indices in self.waits.items():
            if number < len(indices) and clock.has_ordered(thread, indices[number]):
                return True
        return False


End = tuple[Ends, int]  # and the number of one of them


class Event:
    """An op as it is issued, and how others can know that its accesses are over.

    `clock` is what its thread knows then: it is the thread's own, and goes on when the next event
    is asked for. `read_end` is where its reads are over, `write_ends` where each of its writes is.
    """

    __slots__ = ("clock", "index", "op", "read_end", "write_ends")

    def __init__(self, op: Op, index: int, clock: Clock, read_end: End, write_ends: Sequence[End]):
        self.op, self.index, self.clock = op, index, clock
        self.read_end, self.write_ends = read_end, write_ends

    def accesses(self) -> Iterator[tuple[Region, End, bool]]:
        """Its regions, where the access of each is over, and whether it writes."""
        for region, end in zip(self.op.writes, self.write_ends, strict=True):
            yield region, end, True
        for region in self.op.reads:
            yield region, self.read_end, False


class Issued:
    """The asynchronous accesses of one kind that each thread has issued, and where each is over.

    `ends` and `counts` are by thread.
    """

    __slots__ = ("counts", "ends")

    def __init__(self, ends: list[Ends]):
        self.ends, self.counts = ends, [0] * len(ends)

    def issue(self, thread: int, index: int, op: Op, clock: Clock) -> Event:
        """The thread's next access."""
        end = self.ends[thread], self.counts[thread]
        self.counts[thread] += 1
        return Event(op, index, clock, end, (end,) * len(op.writes))

    def wait(self, thread: int, index: int, pending: int = 0) -> None:
        """Notes that the thread waits, at its op of this index, for all but the `pending` last."""
        self.ends[thread].wait(thread, index, self.counts[thread] - pending)


# What an op comes to: its event, None if it has none, or False if its thread cannot go on.
Outcome = Event | Literal[False] | None
# Takes the thread, the index and the op.
Step = Callable[[int, int, Op], Outcome]


class Phase:
    """The arrivals of one phase of a barrier; `owed` are parts of copies that have yet to land.

    `parts` are the copies of which a part lands without an arrival. `commits` has, for each commit
    among the arrivals, how many products its thread had started.
    """

    __slots__ = ("arrivals", "clock", "commits", "is_complete", "owed", "parts")

    def __init__(self, clock: Clock):
        self.clock, self.owed, self.is_complete = clock, 0, False
        self.arrivals: list[tuple[int, int, Op]] = []  # thread, index, op
        self.parts: list[Spot] = []
        self.commits: dict[Spot, int] = {}


class Place:
    """A single barrier, and the phases that it has been through.

    Or several barriers that all get the same arrivals, and so are in the same phases. `barriers`
    has them, by id and index. `expects` is how many arrivals each phase takes. `total` counts the
    arrivals so far, `landed` the loads here that another block's barrier tracks, `completed` the
    complete phases, `waited` the phases that somebody has waited for, on each of the barriers;
    `orders` says whether they order the tensor core. `ends` are its phases', with each wait in the
    program, whether its thread reaches it or not. `phases` has those phases that have begun and
    that something may still ask for.
    """

    def __init__(self, expects: int, threads: int, orders: bool = False):
        self.orders = orders
        self.barriers: list[Single] = []
        self.expects = expects
        self.total = self.completed = self.landed = 0
        self.waited: Counter[Single] = Counter()
        self.ends = Ends({})
        self.phases: dict[int, Phase] = {}
        self._threads, self._first = threads, 0  # phases before the first are forgotten
        self._passed: dict[int, int] = {}  # of each thread, how many phases it has waited for

    def phase(self, number: int) -> Phase:
        """The phase of this number, new if it has not begun."""
        if number not in self.phases:
            self.phases[number] = Phase(Clock.zero(self._threads))
        return self.phases[number]

    def will_wait(self, op: Op, index: int) -> None:
        """Notes that a thread waits here, as its op of this index; called in program order."""
        self.ends.waits.setdefault(op.thread, [])
        self.ends.wait(op.thread, index, op.phase + 1)

    def pass_wait(self, op: Op) -> Phase:
        """The phase for which a thread has waited here."""
        self.waited[op.place] = max(self.waited[op.place], op.phase + 1)
        self._passed[op.thread] = op.phase + 1
        return self.phase(op.phase)

    def forget(self) -> None:
        """Lets go of phases that are over for all who wait for them, but for the last complete one.

        The arrivals of the next phase are compared with that one's.
        """
        ahead = [
            passed
            for thread, waits in self.ends.waits.items()
            if (passed := self._passed.get(thread, 0)) < len(waits)
        ]
        waited = max(self.waited.values(), default=0)
        last = min(*ahead, waited, self.completed - 1)
        for number in range(self._first, last):
            self.phases.pop(number, None)
        self._first = max(self._first, last)


class _Meeting:
    """Threads that come together: which have come and which have gone on, and what all know."""

    __slots__ = ("clock", "come", "gone")

    def __init__(self, clock: Clock):
        self.clock = clock
        self.come: set[int] = set()
        self.gone = 0


class Registers:
    """The registers a lane that threads have, and those that their blocks have `free`.

    A request for more waits until other threads of the block have given up enough (`setmaxnreg`).
    """

    def __init__(self, program: Program):
        self.program = program
        self.held = [registers_at_first(program)] * len(program.threads)
        self.free = [0] * program.blocks

    def take(self, thread: int, op: Op) -> bool:
        """Whether a thread gets what it asks for now."""
        block, more = self.program.block_of(thread), (op.registers or 0) - self.held[thread]
        if more > self.free[block]:
            return False
        self.free[block] -= more
        self.held[thread] += more
        return True


class Semaphores:
    """The semaphores that are followed, and what is known at each of their signals and waits.

    `sure` has, for each wait, the signals that are sure to come before it (`semaphores`). `signals`
    and `awaited` have each signal and each wait so far: where it is, on which semaphore, what its
    thread knew, and of a wait what it needs. `passed` has what is known after each wait. `totals`
    has what was signalled.
    """

    def __init__(self, places: Set[Single], sure: Mapping[Spot, Sequence[Spot]]):
        self.places, self.sure = places, sure
        self.totals, self._taken = Counter[Single](), Counter[Single]()
        self.signals: dict[Spot, tuple[Single, Clock]] = {}
        self.awaited: dict[Spot, tuple[Single, int]] = {}
        self.passed: dict[Spot, Clock] = {}

    def signal(self, spot: Spot, op: Op, clock: Clock) -> None:
        """A signal."""
        if op.place in self.places:
            self.totals[op.place] += op.amount
            self.signals[spot] = op.place, clock.copy()

    def need(self, op: Op) -> int:
        """The sum that signals must reach for a wait to return."""
        return self._taken[op.place] + op.amount

    def pass_wait(self, spot: Spot, op: Op, clock: Clock) -> bool:
        """Whether a wait returns; its thread then knows what was sure to come before."""
        if op.place not in self.places:
            return True
        need = self.need(op)
        if self.totals[op.place] < need:
            return False
        self.awaited[spot] = op.place, need
        for signal in self.sure.get(spot, ()):
            clock.join(self.signals[signal][1])
        if not op.keeps:
            self._taken[op.place] += op.amount
        self.passed[spot] = clock.copy()
        return True


class Order:
    """Runs a program's threads as far as they get. Iterate once, over the events in one order.

    `misused` has the faults of barriers that came up so far. `places` has the single barriers, by
    id and index, `clocks` what each thread knows. `registers` is None if no thread has to wait for
    registers. `met` counts, for each Pallas thread, those of its ops that all of its lanes know to
    be over: the ones before the last place where its lanes met. `last_commit` has the index of each
    thread's last commit that some thread has waited for, -1 if there is none. After the iteration
    `position` has the index of the op that each thread is stuck at, or the number of its ops if it
    is not stuck.
    """

    def __init__(
        self,
        program: Program,
        semaphores: Set[Single] = frozenset(),
        sure: Mapping[Spot, Sequence[Spot]] | None = None,
    ):
        self.program = program
        self.misused: list[EarlyArrival | LappedWait] = []
        self.semaphores = Semaphores(semaphores, sure or {})
        self._size = len(program.threads)
        self.places = _places(program)
        self.clocks = [Clock.zero(self._size) for _ in program.threads]
        self.position = [0] * self._size
        self.met = [0] * self._size
        self._groups = [0] * self._size
        self._warps: dict[int, list[int]] = defaultdict(list)  # of each thread that has some
        for number, warp in enumerate(program.warps, self._size - len(program.warps)):
            self._warps[warp.thread].append(number)
        self._own = [Ends({t: range(len(ops))}) for t, ops in enumerate(program.threads)]
        # Of the groups of stores: where they have been read, and where they are finished.
        self._read, self._stored, *rest = (
            [Ends({thread: [], program.pallas_thread(thread): []}) for thread in range(self._size)]
            for _ in range(6)
        )
        self._products, self._copies, self._tmem_reads, self._tmem_writes = map(Issued, rest)
        # Of Blackwell's tensor core, whose products whoever waits for a commit waits for.
        self._committed = Issued([Ends({}) for _ in range(self._size)])
        self.last_commit = [-1] * self._size
        self._meetings: dict[tuple[Members, int], _Meeting] = {}
        self._met: Counter[tuple[int, Members]] = Counter()
        self.registers = Registers(program) if may_wait_for_registers(program) else None
        self._doubtful: set[int] = set()  # barriers whose phases are in doubt: the rest is noise
        for ops in program.threads:
            for index, op in enumerate(ops):
                if op.kind == Kind.WAIT:
                    self.places[op.place].will_wait(op, index)

    def __iter__(self) -> Iterator[Event]:
        steps = {kind: self._step(kind) for kind in Kind}
        moved = True
        while moved:
            moved = False
            for thread, ops in enumerate(self.program.threads):
                for index in range(self.position[thread], len(ops)):
                    op = ops[index]
                    if step := steps[op.kind]:
                        self.clocks[thread].advance(thread, index + 1)
                        event = step(thread, index, op)
                        if event is False:
                            break
                        if event is not None:
                            yield event
                    self.position[thread], moved = index + 1, True

    def _step(self, kind: Kind) -> Step | None:
        """What an op of this kind does to the order; None if no other op can notice it."""
        match kind:
            case Kind.LOAD:
                return self._load
            case Kind.STORE:
                return self._store
            case Kind.COMMIT_GROUP:
                return self._commit
            case Kind.WAIT_STORE:
                return self._wait_store
            case Kind.CP_ASYNC:
                return partial(self._issue, self._copies)
            case Kind.WAIT_CP_ASYNC:
                return self._wait_cp_async
            case Kind.ARRIVE:
                return self._arrive
            case Kind.WAIT:
                return self._wait
            case Kind.WGMMA:
                return partial(self._issue, self._products)
            case Kind.WGMMA_WAIT:
                return self._retire
            case Kind.ACC_READ:
                return self._read_product
            case Kind.TCGEN05_MMA | Kind.TCGEN05_COPY:
                return partial(self._issue, self._committed)
            case Kind.TCGEN05_COMMIT:
                return self._commit_products
            case Kind.LOAD_TMEM:
                return partial(self._issue, self._tmem_reads)
            case Kind.STORE_TMEM:
                return partial(self._issue, self._tmem_writes)
            case Kind.WAIT_LOAD_TMEM:
                return partial(self._wait_tmem, self._tmem_reads)
            case Kind.WAIT_STORE_TMEM:
                return partial(self._wait_tmem, self._tmem_writes)
            case Kind.FENCE:
                return self._fence
            case Kind.SCOPE_BEGIN:
                return self._begin
            case Kind.MEET:
                return self._meet
            case (
                Kind.READ
                | Kind.WRITE
                | Kind.ACC_INIT
                | Kind.ACC_WRITE
                | Kind.SKIP
                | Kind.SCOPE_END
                | Kind.GRID_SIGNAL
            ):
                return self._access
            case Kind.REGISTERS:
                return self._registers
            case Kind.SIGNAL:
                return self._signal
            case Kind.AWAIT:
                return self._await
            case Kind.PREFETCH | Kind.TEST | Kind.GRID_WAIT:
                return None
            case Kind.COMPUTE:
                return self._compute
            case Kind.OPAQUE:
                return self._opaque
            case _:
                assert_never(kind)

    # Ops.

    def _access(self, thread: int, index: int, op: Op) -> Event:
        end = self._own[thread], index
        return Event(op, index, self.clocks[thread], end, (end,) * len(op.writes))

    def _compute(self, thread: int, index: int, op: Op) -> Event | None:
        if op.scratch is None:
            return None
        self._meet_lanes(thread, index, op)
        return self._access(thread, index, op)

    def _opaque(self, thread: int, index: int, op: Op) -> Event:
        self._meet_lanes(thread, index, op)
        return self._access(thread, index, op)

    def _meet_lanes(self, thread: int, index: int, op: Op) -> None:
        """All lanes of a thread come here: a warpgroup barrier, as far as it is known."""
        self.met[thread] = index + 1

    def _load(self, thread: int, index: int, op: Op) -> Event:
        if op.barrier is None:
            return self._access(thread, index, op)
        place, clock = self.places[op.place], self.clocks[thread]
        peers = [self.places[peer, op.index] for peer in op.peers] or [place]
        announced = len(peers) if op.parts is None else op.parts
        others = [peer for peer in peers if peer is not place]
        if announced:
            number = place.total // place.expects
            # A part that lands on the load's own barrier may do so when the phase ends.
            place.phase(number).owed += announced - (len(peers) - len(others))
            self._count(place, thread, index, op)
        else:  # another block's load arrives, at the same place among that block's loads
            number = place.landed // peers[0].expects
            place.landed += 1
        for peer in others:
            if not announced:
                self._expect_before(peer, number, index, op)
            phase = peer.phase(number)
            phase.owed -= 1
            phase.parts.append((thread, index))
            phase.clock.join(clock)
            if phase.owed <= 0:
                self._try_complete(peer, number, phase)
        ends = tuple([(peer.ends, number) for peer in peers])
        read_end = (place.ends, number) if announced else ends[0]
        return Event(op, index, clock, read_end, ends)

    def _store(self, thread: int, index: int, op: Op) -> Event:
        group = self._groups[thread]
        ends = ((self._stored[thread], group),) * len(op.writes)
        return Event(op, index, self.clocks[thread], (self._read[thread], group), ends)

    def _commit(self, thread: int, index: int, op: Op) -> None:
        for each in (thread, *self._warps.get(thread, ())):
            self._groups[each] += 1

    def _wait_store(self, thread: int, index: int, op: Op) -> None:
        self._meet_lanes(thread, index, op)
        if op.pending is None:
            return
        for each in (thread, *self._warps.get(thread, ())):
            finished = self._groups[each] - op.pending
            self._read[each].wait(thread, index, finished)
            if not op.read_only:
                self._stored[each].wait(thread, index, finished)

    def _issue(self, issued: Issued, thread: int, index: int, op: Op) -> Event:
        return issued.issue(thread, index, op, self.clocks[thread])

    def _wait_cp_async(self, thread: int, index: int, op: Op) -> None:
        self._meet_lanes(thread, index, op)
        self._copies.wait(thread, index, op.pending or 0)

    def _retire(self, thread: int, index: int, op: Op) -> None:
        if op.pending is not None:
            self._products.wait(thread, index, op.pending)

    def _read_product(self, thread: int, index: int, op: Op) -> Event:
        self._retire(thread, index, op)
        return self._access(thread, index, op)

    def _commit_products(self, thread: int, index: int, op: Op) -> None:
        for peer in op.peers:
            place = self.places[peer, op.index]
            number = place.total // place.expects
            place.phase(number).commits[thread, index] = self._committed.counts[thread]
            self._count(place, thread, index, op)

    def _wait_tmem(self, issued: Issued, thread: int, index: int, op: Op) -> None:
        self._meet_lanes(thread, index, op)
        issued.wait(thread, index)

    def _fence(self, thread: int, index: int, op: Op) -> None:
        self._meet_lanes(thread, index, op)
        self.clocks[thread].fence()

    def _begin(self, thread: int, index: int, op: Op) -> Outcome:
        """All threads of a block meet where they begin a shared scope.

        Mosaic GPU's lowering of `run_scoped` has a barrier of the whole block there.
        """
        if op.shared:
            members = tuple(self.program.threads_of(self.program.block_of(thread)))
            if not self._gather(thread, members):
                return False
        return self._access(thread, index, op)

    def _meet(self, thread: int, index: int, op: Op) -> Literal[False] | None:
        is_one = len({self.program.pallas_thread(member) for member in op.members}) == 1
        return None if self._gather(thread, op.members, is_one) else False

    def _gather(self, thread: int, members: Members, is_one: bool = False) -> bool:
        """Whether all members have come here; each then knows what all know.

        If they are one Pallas thread and its warps (`is_one`), so does the tensor core.
        """
        key = members, self._met[thread, members]
        if key not in self._meetings:
            self._meetings[key] = _Meeting(Clock.zero(self._size))
        meeting = self._meetings[key]
        if thread not in meeting.come:
            meeting.come.add(thread)
            meeting.clock.join(self.clocks[thread], is_one)
        if len(meeting.come) < len(members):
            return False
        self.clocks[thread].join(meeting.clock, is_one)
        self.met[thread] = meeting.clock.over[thread]
        self._met[thread, members] += 1
        meeting.gone += 1
        if meeting.gone == len(members):
            del self._meetings[key]
        return True

    def _wait(self, thread: int, index: int, op: Op) -> Literal[False] | None:
        place = self.places[op.place]
        if place.completed <= op.phase:
            return False
        phase = place.pass_wait(op)
        self.clocks[thread].join(phase.clock, place.orders)
        for (by, at), products in phase.commits.items():
            self.last_commit[by] = max(self.last_commit[by], at)
            ends = self._committed.ends[by]
            ends.waits.setdefault(thread, [])
            ends.wait(thread, index, products)
        if any(by != thread or other.kind is Kind.ARRIVE for by, _, other in phase.arrivals):
            # All lanes arrive and all lanes wait, but one lane issues a load for all.
            self.met[thread] = max(self.met[thread], phase.clock.over[thread])
        return None

    def _arrive(self, thread: int, index: int, op: Op) -> None:
        own, at = op.place
        peers = self.program.barriers[own].peers
        for place in dict.fromkeys([self.places[peer, at] for peer in peers or (own,)]):
            if op.parts:
                place.phase(place.total // place.expects).owed += op.parts
            self._count(place, thread, index, op)

    def _registers(self, thread: int, index: int, op: Op) -> Literal[False] | None:
        # No clocks are joined: PTX says nothing of memory where it defines `setmaxnreg`.
        return None if self.registers is None or self.registers.take(thread, op) else False

    def _signal(self, thread: int, index: int, op: Op) -> None:
        self.semaphores.signal((thread, index), op, self.clocks[thread])

    def _await(self, thread: int, index: int, op: Op) -> Literal[False] | None:
        if not self.semaphores.pass_wait((thread, index), op, self.clocks[thread]):
            return False
        self._meet_lanes(thread, index, op)
        return None

    # Phases.

    def _count(self, place: Place, thread: int, index: int, op: Op) -> None:
        """An arrival: it counts in the first phase that has not had all of its own."""
        number, clock = place.total // place.expects, self.clocks[thread]
        if number and not self._knows_complete(clock, place, number - 1):
            self._report_early(place, number, index, op)
        phase = place.phase(number)
        phase.arrivals.append((thread, index, op))
        # A copy's arrival has no fence before it (`arrive_expect_tx` in `mosaic/gpu/utils.py`).
        phase.clock.join(clock, place.orders and op.kind is not Kind.LOAD)
        place.total += 1
        if place.total % place.expects == 0:
            self._try_complete(place, number, phase)

    def _knows_complete(self, clock: Clock, place: Place, number: int) -> bool:
        """Whether the phase is over in every run in which a thread with this clock gets this far.

        An arrival that is over is enough, unless it announces parts of copies; so is a commit whose
        products are over.
        """
        if place.ends.are_known(number, clock):
            return True
        phase = place.phase(number)
        return all(
            self._are_over(clock, by, phase.commits[by, index])
            if op.kind is Kind.TCGEN05_COMMIT
            else op.kind is Kind.ARRIVE and not op.parts and clock.has(by, index)
            for by, index, op in phase.arrivals
        )

    def _are_over(self, clock: Clock, thread: int, products: int) -> bool:
        """Whether so many of a thread's products are known to be over."""
        return self._committed.ends[thread].are_known(products - 1, clock) if products else False

    def _expect_before(self, place: Place, number: int, index: int, op: Op) -> None:
        """A part that lands without an arrival: the phase before has to be over then too."""
        if number and not place.ends.are_known(number - 1, self.clocks[op.thread]):
            self._report_early(place, number, index, op)

    def _try_complete(self, place: Place, number: int, phase: Phase) -> None:
        if phase.is_complete or phase.owed > 0 or len(phase.arrivals) < place.expects:
            return
        phase.is_complete = True
        place.completed = number + 1
        barrier, _ = place.barriers[0]
        is_named = self.program.barriers[barrier].type is BarrierType.NAMED
        if number and not is_named and barrier not in self._doubtful:
            self._look_for_lapped(place, number)
        place.forget()

    def _report_early(self, place: Place, number: int, at: int, op: Op) -> None:
        before = place.phase(number - 1)
        loads = [(by, i) for by, i, o in before.arrivals if o.kind == Kind.LOAD]
        last = before.arrivals[-1][2] if before.arrivals else op
        flying = tuple(load for load in loads if self.clocks[op.thread].has(*load))
        clash = Clash((), flying, ((op.thread, at),), incomplete=(place.barriers[0], number - 1))
        for barrier, index in place.barriers:
            self._doubtful.add(barrier)
            self.misused.append(
                EarlyArrival(
                    op,
                    last,
                    barrier,
                    index,
                    number,
                    place.expects,
                    bool(loads) or not before.is_complete,
                    clash,
                )
            )

    def _look_for_lapped(self, place: Place, number: int) -> None:
        """A wait for one phase must be over before the next is, or their parities look alike."""
        phase, before = place.phase(number), number - 1
        for thread, waits in place.ends.waits.items():
            if before < len(waits) and not phase.clock.has(thread, waits[before]):
                wait = self.program.threads[thread][waits[before]]
                if wait.phase == before:  # else the thread begins to wait here with a later phase
                    arrivals = tuple((by, at) for by, at, _ in phase.arrivals)
                    done = (*arrivals, *phase.parts)
                    clash = Clash(done=done, coming=((thread, waits[before]),))
                    last = phase.arrivals[-1][2]
                    self.misused.append(LappedWait(wait, last, *wait.place, number, clash))


def _places(program: Program) -> dict[Single, Place]:
    """The place of each single barrier; those of a cluster that are in step have one together."""
    apart, made = _apart(program), dict[object, Place]()
    places: dict[Single, Place] = {}
    for id, index in _singles(program):
        barrier = program.barriers[id]
        peers = [program.barriers[peer] for peer in barrier.peers]
        is_in_step = barrier in peers and all(
            (peer.peers, peer.arrivals) == (barrier.peers, barrier.arrivals)
            and peer.id not in apart
            for peer in peers
        )
        key = (barrier.peers, index) if is_in_step else (id, index)
        if key not in made:
            made[key] = Place(barrier.arrivals, len(program.threads), barrier.orders_tensor_core)
        made[key].barriers.append((id, index))
        places[id, index] = made[key]
    return places


def _apart(program: Program) -> set[int]:
    """Arrays that may not be in step with their peers, or on which another block's thread waits.

    A copy arrives on one block's array alone.
    """
    found = set[int]()
    for op in program.ops:
        if op.barrier is None:
            continue
        if op.kind in (Kind.LOAD, Kind.TCGEN05_COMMIT):
            found |= {op.barrier, *op.peers}
        elif program.barriers[op.barrier].block != program.block_of(op.thread):
            found.add(op.barrier)
    return found


def _singles(program: Program) -> list[Single]:
    """The id and index of each barrier, also of those that are used but are not in their array."""
    phased = (b for b in program.barriers if b.type is not BarrierType.SEMAPHORE)
    found = {(b.id, i) for b in phased for i in range(b.count)}
    used = {
        (*op.place, op.peers)
        for op in program.ops
        if op.barrier is not None and op.kind not in (Kind.SIGNAL, Kind.AWAIT)
    }
    for id, index, peers in used:
        found |= {(peer, index) for peer in (id, *peers, *program.barriers[id].peers)}
    return sorted(found)
