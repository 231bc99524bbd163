"""`Order`: which op of a program has happened before which, whatever the threads' speeds.

The model. A **clock** is a tuple of counts. It says how much is known to be over: of each thread,
how many of its ops; of the stores that each thread started, how many groups have been read and how
many are finished; of each thread's products, how many; of each single barrier, how many phases. An
op's clock says what is over before the op is issued. A thread's clock grows where the thread waits:
by the arrivals of the phase that it waited for, or by its own stores or products. So an
asynchronous access needs no clock of its own: a load is over when its barrier's phase is, and so on
(`Event.read_done`).

Why one run is enough. A traced thread is straight-line code, a wait looks at a count that only
grows, and arrivals do not block. So whether a thread gets past a wait does not depend on the order
of the other threads' ops. Threads that run as far as they can, in any order, get equally far, and
threads that are stuck then are stuck in every run. The arrivals that make up a phase are also the
same in every run, if each arrival of a phase knows that the phase before is complete; an arrival
that does not know it is a fault. The hardware compares parities in a wait. A parity is as good as a
count if the phase after next cannot be complete before the wait; if it can, that is a fault. Where
neither fault is found, the clocks hold for every interleaving. Where one is, they hold for the
interleavings in which phases fall as they do here.

`fenced` is the same for `commit_smem`: for each thread, how many of its ops had a fence after them
on the way here. PTX wants such a fence between ordinary and asynchronous accesses of the same
memory, in any thread along the way (PTX ISA, memory consistency model, "proxy-preserved base
causality order").

A scope that all threads share begins with a barrier of the whole block (Mosaic GPU's lowering of
`run_scoped`), so clocks are joined there. Corresponding multicast copies of a cluster's blocks are
taken to fall in phases of the same number. Not covered: what a `test` of a barrier answers; other
blocks of the grid. Vector clocks: Mattern, Virtual Time and Global States (1989).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from pipelib.schedule.checking.facts import EarlyArrival, LappedWait
from pipelib.schedule.frozen import maker
from pipelib.schedule.program import Kind, Op, Program

Clock = tuple[int, ...]


def join(first: Clock, second: Clock) -> Clock:
    """The clock of what is over by either of two clocks."""
    return tuple(map(max, first, second))


@dataclass(frozen=True, slots=True)
class Event:
    """An op as it is issued, and how others can know that its accesses are over.

    `read_done` is a (component, value) of clocks: its reads are over for a thread whose clock has
    at least this value there. `write_done` has such a pair for each region that the op writes.
    """

    op: Op
    index: int
    clock: Clock
    fenced: Clock
    read_done: tuple[int, int]
    write_done: tuple[tuple[int, int], ...]


_make_event = maker(Event)


# What an op comes to: its event, None if it has none, or False if its thread cannot go on.
Outcome = Event | Literal[False] | None
# Takes the thread, the index and the op.
Step = Callable[[int, int, Op], Outcome]


class Phase:
    """The arrivals of one phase of a barrier; `owed` are peers' copies that have yet to land."""

    __slots__ = ("arrivals", "clock", "fenced", "is_complete", "owed")

    def __init__(self, clock: Clock, fenced: Clock):
        self.clock, self.fenced, self.owed, self.is_complete = clock, fenced, 0, False
        self.arrivals: list[tuple[int, int, Op]] = []  # thread, index, op


class Place:
    """A single barrier, and the phases that it has been through.

    `component` is the component of clocks that counts its phases, `expects` the arrivals that each
    phase takes. `total` counts the arrivals so far, `completed` the complete phases, `waited` the
    phases that somebody has waited for. `waits` lists the index of each wait of each thread,
    whether the thread reaches it or not.
    """

    def __init__(self, barrier: int, index: int, component: int, expects: int, zero: Phase):
        self.barrier, self.index, self.component = barrier, index, component
        self.expects, self.total, self.completed = expects, 0, 0
        self.phases: list[Phase] = []
        self.waits: dict[int, list[int]] = defaultdict(list)
        self.waited = 0
        self._zero = zero

    def phase(self, number: int) -> Phase:
        """The phase of this number, new if it has not begun."""
        while len(self.phases) <= number:
            self.phases.append(Phase(self._zero.clock, self._zero.fenced))
        return self.phases[number]


class Order:
    """Runs a program's threads as far as they get. Iterate once, over the events in one order.

    `misused` has the faults of barriers that came up so far. `places` has the single barriers, by
    id and index, `clocks` what each thread knows. After the iteration `position` has the index of
    the op that each thread is stuck at, or the number of its ops if it is not stuck.
    """

    def __init__(self, program: Program):
        self.program = program
        self.misused: list[EarlyArrival | LappedWait] = []
        self._size = len(program.threads)
        singles, first = _singles(program), 4 * self._size
        nothing = Phase((0,) * (first + len(singles)), (0,) * self._size)
        self.places = {
            (id, i): Place(id, i, component, program.barriers[id].arrivals, nothing)
            for component, (id, i) in enumerate(singles, first)
        }
        self.clocks, self._fenced = [nothing.clock] * self._size, [nothing.fenced] * self._size
        self.position = [0] * self._size
        self._groups, self._products = [0] * self._size, [0] * self._size
        self._meetings: dict[tuple[int, int], dict[int, tuple[Clock, Clock]]] = defaultdict(dict)
        self._met = [0] * self._size
        self._doubtful: set[int] = set()  # barriers whose phases are in doubt: the rest is noise
        for ops in program.threads:
            for index, op in enumerate(ops):
                if op.kind == Kind.WAIT:
                    self.places[op.place].waits[op.thread].append(index)

    def __iter__(self) -> Iterator[Event]:
        steps = {kind: self._step(kind) for kind in Kind}
        moved = True
        while moved:
            moved = False
            for thread, ops in enumerate(self.program.threads):
                for index in range(self.position[thread], len(ops)):
                    op = ops[index]
                    if step := steps[op.kind]:
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
            case Kind.ARRIVE:
                return self._arrive
            case Kind.WAIT:
                return self._wait
            case Kind.WGMMA:
                return self._wgmma
            case Kind.WGMMA_WAIT:
                return self._retire
            case Kind.ACC_READ:
                return self._read_product
            case Kind.FENCE:
                return self._fence
            case Kind.SCOPE_BEGIN:
                return self._begin
            case (
                Kind.READ | Kind.WRITE | Kind.ACC_INIT | Kind.ACC_WRITE | Kind.OPAQUE
                | Kind.SCOPE_END
            ):  # fmt: skip
                return self._access
            case Kind.PREFETCH | Kind.TEST | Kind.COMPUTE | Kind.REGISTERS:
                return None
            case _:
                assert_never(kind)

    # Components of a clock.

    def _groups_read(self, thread: int) -> int:
        """The component that counts the thread's groups of stores which have been read."""
        return self._size + thread

    def _groups_done(self, thread: int) -> int:
        """The component that counts the thread's groups of stores which are finished."""
        return 2 * self._size + thread

    def _products_done(self, thread: int) -> int:
        """The component that counts the thread's products which are finished."""
        return 3 * self._size + thread

    def _learn(self, thread: int, component: int, value: int) -> None:
        clock = self.clocks[thread]
        if clock[component] < value:
            self.clocks[thread] = (*clock[:component], value, *clock[component + 1 :])

    def _now(self, thread: int, index: int) -> tuple[Clock, Clock]:
        """What others learn from a thread: all that it knows, and its ops up to this one."""
        self._learn(thread, thread, index + 1)
        return self.clocks[thread], self._fenced[thread]

    # Ops.

    def _access(self, thread: int, index: int, op: Op) -> Event:
        done = thread, index + 1
        dones = (done,) * len(op.writes)
        return _make_event(op, index, self.clocks[thread], self._fenced[thread], done, dones)

    def _load(self, thread: int, index: int, op: Op) -> Event:
        clock, fenced = self.clocks[thread], self._fenced[thread]
        if op.barrier is None:
            return self._access(thread, index, op)
        place = self.places[op.place]
        number = place.total // place.expects
        peers = [self.places[peer, op.index] for peer in op.peers or (op.barrier,)]
        dones = tuple((peer.component, number + 1) for peer in peers)
        others = [peer for peer in peers if peer is not place]
        place.phase(number).owed += len(others)
        self._count(place, thread, index, op)
        for peer in others:
            phase = peer.phase(number)
            phase.owed -= 1
            phase.clock = join(phase.clock, self._now(thread, index)[0])
            self._try_complete(peer, number)
        return _make_event(op, index, clock, fenced, (place.component, number + 1), dones)

    def _store(self, thread: int, index: int, op: Op) -> Event:
        group = self._groups[thread] + 1
        dones = ((self._groups_done(thread), group),) * len(op.writes)
        read = self._groups_read(thread), group
        return _make_event(op, index, self.clocks[thread], self._fenced[thread], read, dones)

    def _commit(self, thread: int, index: int, op: Op) -> None:
        self._groups[thread] += 1

    def _wait_store(self, thread: int, index: int, op: Op) -> None:
        if op.pending is None:
            return
        finished = self._groups[thread] - op.pending
        self._learn(thread, self._groups_read(thread), finished)
        if not op.read_only:
            self._learn(thread, self._groups_done(thread), finished)

    def _wgmma(self, thread: int, index: int, op: Op) -> Event:
        self._products[thread] += 1
        done = self._products_done(thread), self._products[thread]
        clock, fenced = self.clocks[thread], self._fenced[thread]
        return _make_event(op, index, clock, fenced, done, (done,) * len(op.writes))

    def _retire(self, thread: int, index: int, op: Op) -> None:
        if op.pending is not None:
            finished = self._products[thread] - op.pending
            self._learn(thread, self._products_done(thread), finished)

    def _read_product(self, thread: int, index: int, op: Op) -> Event:
        self._retire(thread, index, op)
        return self._access(thread, index, op)

    def _fence(self, thread: int, index: int, op: Op) -> None:
        clock = self._now(thread, index)[0]
        self._fenced[thread] = join(self._fenced[thread], clock[: self._size])

    def _begin(self, thread: int, index: int, op: Op) -> Outcome:
        """All threads of a block meet here: each goes on when all have come."""
        if op.shared:
            each = self._size // self.program.blocks
            meeting = self._meetings[thread // each, self._met[thread]]
            meeting.setdefault(thread, self._now(thread, index))
            if len(meeting) < each:
                return False
            self._met[thread] += 1
            for clock, fenced in meeting.values():
                self.clocks[thread] = join(self.clocks[thread], clock)
                self._fenced[thread] = join(self._fenced[thread], fenced)
        return self._access(thread, index, op)

    def _wait(self, thread: int, index: int, op: Op) -> Literal[False] | None:
        place = self.places[op.place]
        if place.completed <= op.phase:
            return False
        phase = place.phases[op.phase]
        place.waited = max(place.waited, op.phase + 1)
        self.clocks[thread] = join(self.clocks[thread], phase.clock)
        self._fenced[thread] = join(self._fenced[thread], phase.fenced)
        return None

    def _arrive(self, thread: int, index: int, op: Op) -> None:
        own, at = op.place
        for barrier in self.program.barriers[own].peers or (own,):
            self._count(self.places[barrier, at], thread, index, op)

    # Phases.

    def _count(self, place: Place, thread: int, index: int, op: Op) -> None:
        """An arrival: it counts in the first phase that has not had all of its own."""
        number = place.total // place.expects
        if number and not self._knows_complete(thread, place, number - 1):
            self._report_early(place, number, op)
        clock, fenced = self._now(thread, index)
        phase = place.phase(number)
        phase.arrivals.append((thread, index, op))
        phase.clock, phase.fenced = join(phase.clock, clock), join(phase.fenced, fenced)
        place.total += 1
        self._try_complete(place, number)

    def _try_complete(self, place: Place, number: int) -> None:
        phase = place.phases[number]
        if phase.is_complete or phase.owed > 0 or len(phase.arrivals) < place.expects:
            return
        phase.is_complete = True
        place.completed = number + 1
        clock = list(phase.clock)
        clock[place.component] = max(clock[place.component], number + 1)
        phase.clock = tuple(clock)
        if number and place.barrier not in self._doubtful:
            self._look_for_lapped(place, number)

    def _knows_complete(self, thread: int, place: Place, number: int) -> bool:
        """Whether the phase is over in every run in which the thread gets this far."""
        clock = self.clocks[thread]
        if clock[place.component] > number:
            return True
        return all(
            op.kind == Kind.ARRIVE and (by == thread or clock[by] > index)
            for by, index, op in place.phases[number].arrivals
        )

    def _report_early(self, place: Place, number: int, op: Op) -> None:
        self._doubtful.add(place.barrier)
        before = place.phases[number - 1]
        has_loads = any(o.kind == Kind.LOAD for *_, o in before.arrivals)
        self.misused.append(
            EarlyArrival(
                op, before.arrivals[-1][2], place.barrier, place.index, number, place.expects,
                bytes_missing=has_loads or not before.is_complete,
            )
        )  # fmt: skip

    def _look_for_lapped(self, place: Place, number: int) -> None:
        """A wait for one phase must be over before the next is, or their parities look alike."""
        phase = place.phases[number]
        for thread, waits in place.waits.items():
            if number <= len(waits) and phase.clock[thread] <= waits[number - 1]:
                wait = self.program.threads[thread][waits[number - 1]]
                last = phase.arrivals[-1][2]
                self.misused.append(LappedWait(wait, last, place.barrier, place.index, number))


def _singles(program: Program) -> list[tuple[int, int]]:
    """The id and index of each barrier, also of those that are used but are not in their array."""
    found = {(b.id, i) for b in program.barriers for i in range(b.count)}
    used = {
        (*op.place, op.peers)
        for ops in program.threads for op in ops if op.barrier is not None
    }  # fmt: skip
    for id, index, peers in used:
        found |= {(peer, index) for peer in (id, *peers, *program.barriers[id].peers)}
    return sorted(found)
