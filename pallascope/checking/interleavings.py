"""`shortest`: for each clash, the turns that lead to it, with no op that it can do without.

The model. What has to come before an op is what its thread knows there, its clock (`order`). Some
ops have to come before a clash: those that it names, and what has to come before these, and no
others. So they are in every order that leads to this clash, and there is no shorter one. They are
also enough: whatever comes before one of them is among them, so the run that `Order` makes, without
all other ops, is a run of the program. Its turns are given.

An access that meets the kernel before must come before any wait for the end of that kernel: where
the ops that it needs have such a wait, there is no order. Lanes of one thread that race are shown
by the ops of the fastest lane; the slowest is still at the older of the two accesses.

Where barriers are misused, phases may fall otherwise than in the run, and a wait on a semaphore may
need signals of which none is sure by itself, or which nobody follows. Then the order is replayed,
and is given only if its waits pass and its arrivals count where they are meant to. Where others may
signal, since the program lacks blocks of its grid, a wait on a semaphore passes. In the replay a
copy lands when somebody first waits for it, and those of the clash do not land. Not covered there:
that no shorter order shows it, and orders that show what a misuse leads to.
Source: this project's own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from pallascope.checking.clocks import Clock, later
from pallascope.checking.facts import Clash
from pallascope.checking.order import End, Order, Outcome, Step
from pallascope.interleaving import Spot, Turn
from pallascope.program import Action, BarrierType, Engine, Kind, Op, Program, Single

Counts = list[int]  # for each thread, how many of its ops come before a moment


def shortest(order: Order, clashes: Sequence[Clash]) -> list[tuple[Turn, ...] | None]:
    """The turns that lead to each clash, or None if they are not certain to.

    The program of `order` is run once for all of them. The turns are replayed where that run does
    not tell all: where barriers are misused, or threads wait for semaphores.
    """
    if not clashes:
        return []
    spots = {spot for clash in clashes for spot in clash.spots}
    run = _Watched(order.program, spots, order.semaphores.places, order.semaphores.sure)
    for _ in run:
        pass
    return [_turns(run, clash) if run.reaches(clash) else None for clash in clashes]


class _Watched(Order):
    """Notes whose turn it was up to which op, and what is over where the ops at some spots come."""

    def __init__(
        self,
        program: Program,
        spots: Iterable[Spot],
        semaphores: Set[Single],
        sure: Mapping[Spot, Sequence[Spot]],
    ):
        super().__init__(program, semaphores, sure)
        self._over: dict[Spot, Counts | None] = dict.fromkeys(spots)
        self._stops: list[Spot] = []  # of each turn: the thread, and the op before which it ends
        self._ends: dict[Spot, End] = {}  # of what an engine reads there
        self._given: list[Spot] = []  # where registers were given up
        self._asked: dict[Spot, list[Spot]] = {}  # where more were got, and what was given before

    def _step(self, kind: Kind) -> Step:
        """Also of ops that no other op can notice: by them, too, a thread comes to a meeting."""
        return partial(self._watch, super()._step(kind) or _pass)

    def _watch(self, step: Step, thread: int, index: int, op: Op) -> Outcome:
        outcome = step(thread, index, op)
        if outcome is False:
            return outcome
        if self._stops and self._stops[-1][0] == thread:
            self._stops.pop()
        self._stops.append((thread, index + 1))
        if op.kind is Kind.REGISTERS and self.registers is not None:
            self._note_registers((thread, index), op)
        if (thread, index) in self._over:
            self._over[thread, index] = [*self.clocks[thread].over]
            if outcome is not None:
                self._ends[thread, index] = outcome.read_end
        return outcome

    def _note_registers(self, spot: Spot, op: Op) -> None:
        self._over[spot] = None  # noted in a moment
        if op.action is Action.INCREASE:
            block = self.program.block_of(spot[0])
            mine = (given for given in self._given if self.program.block_of(given[0]) == block)
            self._asked[spot] = [*mine]
        else:
            self._given.append(spot)

    def reaches(self, clash: Clash) -> bool:
        """Whether its threads come as far as a clash, or are stuck before."""
        return all(index <= self.position[thread] for thread, index in clash.spots)

    def needed(self, clash: Clash) -> Counts | None:
        """How many ops of each thread come before a clash, at least.

        None if no signals are found that a wait among them needs, or an op that has to come later.
        """
        counts = [0] * len(self.program.threads)
        for spot in clash.spots:
            self._add(counts, spot)
        for thread, index in clash.coming:
            counts[thread] = index
        self._add_registers(counts)
        if any(counts[thread] > index for thread, index in clash.later):
            return None
        while (place := self._unmet(counts)) is not None:
            signals = (spot for spot, (at, _) in self.semaphores.signals.items() if at == place)
            more = (self._with(counts, spot) for spot in signals if spot[1] >= counts[spot[0]])
            fit = [new for new in more if self._is_before(new, clash)]
            if not fit:
                return None
            counts = min(fit, key=sum)
        return counts

    def _add_registers(self, counts: Counts) -> None:
        """A request that is met needs registers that were given up: it may not come any sooner.

        It comes after all that the block's threads gave up before it in the run; fewer might do.
        """
        waiting = dict(self._asked)
        while met := [spot for spot in waiting if spot[1] < counts[spot[0]]]:
            for given in {given for spot in met for given in waiting.pop(spot)}:
                self._add(counts, given)

    def _unmet(self, counts: Counts) -> Single | None:
        """A semaphore on which one of these ops waits for more signals than there are."""
        totals = Counter[Single]()
        for (thread, index), (place, _) in self.semaphores.signals.items():
            if index < counts[thread]:
                totals[place] += self.program.threads[thread][index].amount
        for (thread, index), (place, need) in self.semaphores.awaited.items():
            if index < counts[thread] and totals[place] < need:
                return place
        return None

    def _with(self, counts: Counts, signal: Spot) -> Counts:
        """These ops, and a signal with all that comes before it."""
        found = later(counts, self.semaphores.signals[signal][1].over)
        self._add_registers(found)
        return found

    def _is_before(self, counts: Counts, clash: Clash) -> bool:
        """Whether these ops can all come before a clash, with nothing over that is in flight."""
        clock = Clock(counts, counts, counts)
        ends = (self._ends[spot] for spot in clash.in_flight)
        coming = clash.coming + clash.later
        return all(counts[thread] <= index for thread, index in coming) and not any(
            waits.are_known(number, clock) for waits, number in ends
        )

    def without_meetings(self, counts: Counts, clash: Clash) -> Counts:
        """These ops without a meeting at a thread's end: it has only to come there.

        A clock does not tell apart whether a thread has come to a meeting or gone on from it.
        """
        found = [*counts]
        for thread, count in enumerate(counts):
            last, following = (thread, count - 1), (thread, count)
            goes_on = last in clash.spots or following in clash.spots
            if count and not goes_on and _is_meeting(self.program, last):
                found[thread] = count - 1
        return found

    def _add(self, counts: Counts, spot: Spot) -> None:
        """Adds what has come before an op, and the op; nothing of an op that is never made."""
        over = self._over[spot]
        if over is not None:
            counts[:] = later(counts, over)

    def turns(self, counts: Counts) -> list[Turn]:
        """The turns of the run with no more than the first `counts` ops of each thread."""
        found: list[Turn] = []
        reached = [0] * len(self.program.threads)
        for thread, stop in self._stops:
            start, stop = reached[thread], min(stop, counts[thread])
            if start >= stop:
                continue
            reached[thread] = stop
            if found and found[-1].thread == thread:
                start = found.pop().start
            found.append(Turn(thread, start, stop))
        return found


def _pass(thread: int, index: int, op: Op) -> None:
    """The step of an op that no other op can notice: it has no outcome."""


def _turns(run: _Watched, clash: Clash) -> tuple[Turn, ...] | None:
    """The turns that lead to one clash."""
    counts, again = run.needed(clash), run
    if counts is not None and run.semaphores.places:  # other signals may do than in the run
        again = _clipped(run, counts)
    if counts is None or again is None:
        return None
    turns = again.turns(run.without_meetings(counts, clash))
    signals = any(barrier.type is BarrierType.SEMAPHORE for barrier in run.program.barriers)
    is_plain = not run.misused and not signals
    return tuple(turns) if is_plain or _Replay(run, clash).shows(turns) else None


def _clipped(run: _Watched, counts: Counts) -> _Watched | None:
    """A run of these ops only; None if they cannot all be made."""
    ops = tuple(ops[:count] for ops, count in zip(run.program.threads, counts))
    again = _Watched(replace(run.program, threads=ops), (), run.semaphores.places, {})
    for _ in again:
        pass
    return again if again.position == counts else None


def _is_meeting(program: Program, spot: Spot) -> bool:
    """Whether threads meet at this op."""
    op = program.threads[spot[0]][spot[1]]
    return op.kind is Kind.MEET or (op.kind is Kind.SCOPE_BEGIN and op.shared)


class _Replay:
    """Barriers as the ops of one order leave them; what is in flight at its end never lands."""

    def __init__(self, order: Order, clash: Clash):
        self.program, self._clash = order.program, clash
        self.completed, self.arrived = Counter[Single](), Counter[Single]()
        self.copies = Counter[Single]()  # that the phase has yet to get
        self.held = Counter[Single]()  # by semaphores
        self._flying: dict[Single, list[tuple[Spot, Op]]] = defaultdict(list)

    def shows(self, turns: Iterable[Turn]) -> bool:
        """Whether these turns can be made in this order, each phase as meant, up to the clash."""
        place, phase = self._clash.incomplete or (None, 0)
        return self._takes(turns) and (place is None or self.completed[place] <= phase)

    def _takes(self, turns: Iterable[Turn]) -> bool:
        return all(
            self._make((turn.thread, index), self.program.threads[turn.thread][index])
            for turn in turns
            for index in range(turn.start, turn.stop)
        )

    def _make(self, spot: Spot, op: Op) -> bool:
        match op.kind:
            case Kind.WAIT:
                self._land(op.place, op.phase)
                is_named = self.program.barriers[op.place[0]].type is BarrierType.NAMED
                ahead = self.completed[op.place] - op.phase
                return ahead == 1 or (is_named and ahead > 0)
            case Kind.ARRIVE:
                own, at = op.place
                peers = self.program.barriers[own].peers or (own,)
                return all([self._arrive((peer, at), copies=op.parts or 0) for peer in peers])
            case Kind.LOAD if op.barrier is not None:
                parts = max(len(op.peers), 1) if op.parts is None else op.parts
                is_counted = self._arrive(op.place, parts) if parts else True
                for place in _places(op):
                    self._flying[place].append((spot, op))
                return is_counted
            case Kind.TCGEN05_COMMIT:
                for place in _places(op):
                    self._flying[place].append((spot, op))
                return all([self._arrive(place, copies=1) for place in _places(op)])
            case Kind.SIGNAL:
                self.held[op.place] += op.amount
                return True
            case Kind.AWAIT if self.program.is_whole:
                is_enough = self.held[op.place] >= op.amount
                self.held[op.place] -= 0 if op.keeps else op.amount
                return is_enough
            case _:
                return True

    def _arrive(self, place: Single, copies: int) -> bool:
        """Whether an arrival counts; a phase that lacks only copies gets them first."""
        expects = self.program.barriers[place[0]].arrivals
        if self.arrived[place] == expects:
            self._land(place, self.completed[place])
        self.arrived[place] += 1
        self.copies[place] += copies
        self._complete(place)
        return self.arrived[place] <= expects

    def _land(self, place: Single, phase: int) -> None:
        """Lets copies land, oldest first, until a phase is complete."""
        for spot, op in [*self._flying[place]]:
            if self.completed[place] > phase:
                return
            if not self._is_in_flight(spot, op):
                for each in self._commits_before(spot, op):
                    self._let_land(*each)
                self._let_land(spot, op)

    def _let_land(self, spot: Spot, op: Op) -> None:
        """A copy lands, or a commit arrives, on all of its barriers."""
        for each in _places(op):
            self._flying[each].remove((spot, op))
            self.copies[each] -= 1
            self._complete(each)

    def _commits_before(self, spot: Spot, op: Op) -> list[tuple[Spot, Op]]:
        """The commits of its thread that arrive before a commit does, in order."""
        if op.kind is not Kind.TCGEN05_COMMIT:
            return []
        flying = {each for flying in self._flying.values() for each in flying}
        return sorted(
            (
                each
                for each in flying
                if each[1].kind is Kind.TCGEN05_COMMIT and _is_before(each[0], spot)
            ),
            key=lambda each: each[0],
        )

    def _is_in_flight(self, spot: Spot, op: Op) -> bool:
        """Whether a copy is to stay in flight, or a product that this op commits."""
        if op.kind is not Kind.TCGEN05_COMMIT:
            return spot in self._clash.in_flight
        return any(
            thread == spot[0]
            and index < spot[1]
            and self.program.threads[thread][index].kind.engine is Engine.TENSOR_CORE
            for thread, index in self._clash.in_flight
        )

    def _complete(self, place: Single) -> None:
        if (
            self.copies[place] == 0
            and self.arrived[place] == self.program.barriers[place[0]].arrivals
        ):
            self.completed[place] += 1
            self.arrived[place] = 0


def _is_before(spot: Spot, other: Spot) -> bool:
    """Whether an op comes before another one of its thread."""
    return spot[0] == other[0] and spot[1] < other[1]


def _places(load: Op) -> list[Single]:
    """The barriers on which a copy lands."""
    return [(peer, load.index) for peer in load.peers or load.place[:1]]
