"""`Order`: which op of a program has happened before which, whatever the threads' speeds.

The model. A clock is a tuple that says how much of everything is known to be over: of each thread,
how many of its ops; behind each thread's back, how many of its groups of stores have been read, how
many are finished, and how many of its products; of each single barrier, how many phases. An op's
clock is what is over before it is issued. A thread's clock grows where it waits: by the arrivals of
the phase that it waited for, by its own stores or products. So what is asynchronous needs no clock
of its own: a load is over when its barrier's phase is, and so on (`Event.read_done`).

Why one run is enough. A traced thread is straight-line code, a wait looks at a count that only
grows, and arrivals do not block. So whether a thread gets past a wait does not depend on the order
of the others' ops: threads that run as far as they can, in any order, get equally far, and those
that are stuck then are stuck in every run. Which arrivals make up a phase is the same in every run
too if each arrival of a phase knows that the phase before is complete; if one does not, that is a
finding. A wait compares parities on the hardware: it is as good as a count if the phase after next
cannot be complete before the wait; if it can, that is a finding. Where neither is found, the clocks
hold for every interleaving; where one is, for those in which phases fall as they do here.

`fenced` is the same for `commit_smem`: of each thread, how many ops had a fence after them on the
way here. PTX wants such a fence between ordinary and asynchronous accesses of the same memory, on
any thread along the way (PTX ISA, memory consistency model, "proxy-preserved base causality
order").

A scope that all threads share begins with a barrier of the whole block (Mosaic GPU's lowering of
`run_scoped`), so clocks are joined there. Corresponding multicast copies of a cluster's blocks are
taken to fall in phases of the same number. Not covered: what a `test` of a barrier answers; other
blocks of the grid. Vector clocks: Mattern, Virtual Time and Global States (1989).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pipelib.schedule.program import Op, Program
from pipelib.schedule.report import Findings, count, thread_name

Clock = tuple[int, ...]


def join(first: Clock, second: Clock) -> Clock:
    """What is over by either."""
    return tuple(map(max, first, second))


class Event(NamedTuple):
    """An op as it is issued; `read_done` and `write_done` are (component, value) of a clock.

    What it reads is read, what it writes is written for whoever's clock has at least this value
    there. `write_done` has one for each region that is written.
    """

    op: Op
    index: int
    clock: Clock
    fenced: Clock
    read_done: tuple[int, int]
    write_done: tuple[tuple[int, int], ...]


class Phase:
    """The arrivals of one phase of a barrier; `owed` are peers' copies that have yet to land."""

    __slots__ = ("arrivals", "clock", "fenced", "is_complete", "owed")

    def __init__(self, clock: Clock, fenced: Clock):
        self.clock, self.fenced, self.owed, self.is_complete = clock, fenced, 0, False
        self.arrivals: list[tuple[int, int, Op]] = []  # thread, index, op


class Place:
    """A single barrier, and the phases that it has been through.

    `component` is the clock's that counts them, `expects` the arrivals that each takes; `total` are
    the arrivals so far, `completed` the phases, `waited` those that somebody has waited for.
    `waits` has the index of each wait of each thread, whether it is reached or not.
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
    """Runs a program's threads as far as they get: iterate once, over the events, in an order.

    Adds to `findings` what barriers are misused for. `places` has the single barriers, by id and
    index, `clocks` what each thread knows. After the iteration `position` has the index of the op
    that each thread is stuck at, the number of its ops if it is not.
    """

    def __init__(self, program: Program, findings: Findings):
        self.program, self._findings = program, findings
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
        self._misused: set[int] = set()  # where phases are in doubt, what else they say is noise
        for ops in program.threads:
            for index, op in enumerate(ops):
                if op.kind == "wait":
                    self.places[op.barrier, op.index].waits[op.thread].append(index)

    def __iter__(self) -> Iterator[Event]:
        steps: dict[str, Callable[[int, int, Op], Any]] = {
            "load": self._load, "store": self._store, "commit_group": self._commit,
            "wait_store": self._wait_store, "arrive": self._arrive, "wait": self._wait,
            "wgmma": self._wgmma, "wgmma_wait": self._retire, "acc_read": self._read_product,
            "read": self._access, "write": self._access, "acc_init": self._access,
            "acc_write": self._access, "opaque": self._access, "fence": self._fence,
            "scope_begin": self._begin, "scope_end": self._access,
        }  # fmt: skip
        moved = True
        while moved:
            moved = False
            for thread, ops in enumerate(self.program.threads):
                for index in range(self.position[thread], len(ops)):
                    op = ops[index]
                    if step := steps.get(op.kind):
                        event = step(thread, index, op)
                        if event is False:
                            break
                        if event is not None:
                            yield event
                    self.position[thread], moved = index + 1, True

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
        """What others learn from the thread: all that it knows, and its own ops up to this one."""
        self._learn(thread, thread, index + 1)
        return self.clocks[thread], self._fenced[thread]

    # Ops. Each gives an event, None, or False if the thread cannot go on.

    def _access(self, thread: int, index: int, op: Op) -> Event:
        done = thread, index + 1
        dones = (done,) * len(op.writes)
        return Event(op, index, self.clocks[thread], self._fenced[thread], done, dones)

    def _load(self, thread: int, index: int, op: Op) -> Event:
        clock, fenced = self.clocks[thread], self._fenced[thread]
        if op.barrier is None:
            return self._access(thread, index, op)
        place = self.places[op.barrier, op.index]
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
        return Event(op, index, clock, fenced, (place.component, number + 1), dones)

    def _store(self, thread: int, index: int, op: Op) -> Event:
        group = self._groups[thread] + 1
        dones = ((self._groups_done(thread), group),) * len(op.writes)
        read = self._groups_read(thread), group
        return Event(op, index, self.clocks[thread], self._fenced[thread], read, dones)

    def _commit(self, thread: int, index: int, op: Op) -> None:
        self._groups[thread] += 1

    def _wait_store(self, thread: int, index: int, op: Op) -> None:
        finished = self._groups[thread] - (op.n or 0)
        self._learn(thread, self._groups_read(thread), finished)
        if op.note != "read_only":
            self._learn(thread, self._groups_done(thread), finished)

    def _wgmma(self, thread: int, index: int, op: Op) -> Event:
        self._products[thread] += 1
        done = self._products_done(thread), self._products[thread]
        clock, fenced = self.clocks[thread], self._fenced[thread]
        return Event(op, index, clock, fenced, done, (done,) * len(op.writes))

    def _retire(self, thread: int, index: int, op: Op) -> None:
        if op.n is not None:
            finished = self._products[thread] - op.n
            self._learn(thread, self._products_done(thread), finished)

    def _read_product(self, thread: int, index: int, op: Op) -> Event:
        self._retire(thread, index, op)
        return self._access(thread, index, op)

    def _fence(self, thread: int, index: int, op: Op) -> None:
        clock = self._now(thread, index)[0]
        self._fenced[thread] = join(self._fenced[thread], clock[: self._size])

    def _begin(self, thread: int, index: int, op: Op) -> Event | bool:
        """Where all threads of a block meet, none goes on before all have come."""
        if op.note == "shared":
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

    def _wait(self, thread: int, index: int, op: Op) -> bool | None:
        place = self.places[op.barrier, op.index]
        if place.completed <= op.phase:
            return False
        phase = place.phases[op.phase]
        place.waited = max(place.waited, op.phase + 1)
        self.clocks[thread] = join(self.clocks[thread], phase.clock)
        self._fenced[thread] = join(self._fenced[thread], phase.fenced)
        return None

    def _arrive(self, thread: int, index: int, op: Op) -> None:
        for barrier in self.program.barriers[op.barrier].peers or (op.barrier,):
            self._count(self.places[barrier, op.index], thread, index, op)

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
        if number and place.barrier not in self._misused:
            self._look_for_lapped(place, number)

    def _knows_complete(self, thread: int, place: Place, number: int) -> bool:
        """Whether the phase is over whenever the thread gets to where it is."""
        clock = self.clocks[thread]
        if clock[place.component] > number:
            return True
        return all(
            op.kind == "arrive" and (by == thread or clock[by] > index)
            for by, index, op in place.phases[number].arrivals
        )

    def _report_early(self, place: Place, number: int, op: Op) -> None:
        self._misused.add(place.barrier)
        name = self.name(place)
        before = place.phases[number - 1].arrivals
        if not place.phases[number - 1].is_complete or any(o.kind == "load" for *_, o in before):
            why = "while the bytes of that phase may still be on their way"
        else:
            why = "which others may not have made by then"
        self._findings.add(
            "barrier-misuse", (op, before[-1][2]),
            f"This arrival on {name} is meant for its phase {number}, but nothing makes it come"
            f" after phase {number - 1} is complete: it takes {count(place.expects, 'arrival')},"
            f" {why}, so this one may count there, and whoever waits is let go too early.",
            f"Wait for phase {number - 1} of {name} first, or have it expect as many arrivals as"
            " are made in a phase.",
            *self.where(place),
        )  # fmt: skip

    def _look_for_lapped(self, place: Place, number: int) -> None:
        """A wait for one phase must be over before the next is, or their parities look alike."""
        clock = place.phases[number].clock
        for thread, waits in place.waits.items():
            if number <= len(waits) and clock[thread] <= waits[number - 1]:
                wait = self.program.threads[thread][waits[number - 1]]
                name, who = self.name(place), thread_name(self.program, thread)
                self._findings.add(
                    "barrier-misuse", (wait, place.phases[number].arrivals[-1][2]),
                    f"{who} can be lapped: its wait for phase {number - 1} of {name} may come when"
                    f" phase {number} is complete too, and since a wait sees the parity of a phase"
                    f" only ({number - 1} and {number + 1} look alike), it then waits for a phase"
                    f" {number + 1} that has not come.",
                    f"Let {who} arrive on a barrier after this wait, and wait for that before"
                    f" phase {number} of {name} gets its last arrival.",
                    *self.where(place),
                )  # fmt: skip

    def where(self, place: Place) -> tuple[str, int | None]:
        """The name of a barrier's array, and its index there if it has several."""
        barrier = self.program.barriers[place.barrier]
        return barrier.name, place.index if barrier.count > 1 else None

    def name(self, place: Place) -> str:
        """A single barrier's name, as a report has it."""
        array, index = self.where(place)
        each = "" if index is None else f"[{index}]"
        owner = self.program.barriers[place.barrier].block
        block = f" of block {owner}" if self.program.blocks > 1 else ""
        return f"`{array}{each}`{block}"


def _singles(program: Program) -> list[tuple[int, int]]:
    """The id and index of each barrier, also of those that are used but are not in their array."""
    found = {(b.id, i) for b in program.barriers for i in range(b.count)}
    used = {
        (op.barrier, op.index, op.peers)
        for ops in program.threads for op in ops if op.barrier is not None
    }  # fmt: skip
    for id, index, peers in used:
        found |= {(peer, index) for peer in (id, *peers, *program.barriers[id].peers)}
    return sorted(found)
