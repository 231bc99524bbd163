"""Orders of ops that show a fault, judged by the explorer: each shows it, and none is shorter.

The explorer shares nothing with the checker. It makes the ops of an order one after another, lets a
copy land only where the next op needs it, and says whether the fault is there at the end. Then it
looks, without leaving out any order, how many ops the shortest one has.

An order of lanes that race has the ops of the fastest lane. `LanesJudge` makes them in the program
in which each lane is a thread; the slowest lane makes them, too, up to the older access.
"""

import contextlib

from pallascope import check
from pallascope.checking.facts.barriers import EarlyArrival
from pallascope.checking.order import Order
from tests.pallascope.checking.explorer import LANDING, QUEUE, TooLarge, _bits, _Explorer
from tests.pallascope.checking.lanes_apart import LANES, apart

LIMIT = 4000


class Judge(_Explorer):
    """An explorer that makes every move in its turn, also those that concern no one else."""

    def __init__(self, program, limit=LIMIT):
        super().__init__(program, limit)
        self.is_local = [False] * len(self.ops)
        self.number = {spot: i for i, spot in enumerate(self.places)}
        self.first = self._first()

    # One order.

    def replay(self, order):
        """The state at the end of an order; raises if it is no order of the program."""
        state, self.late = self.first, {self.number[spot] for spot in order.in_flight}
        for turn in order.turns:
            for index in range(turn.start, turn.stop):
                if (i := self.number.get((turn.thread, index))) is not None:
                    state = self._made(state, turn.thread, i)
        return state

    def _made(self, state, thread, i):
        assert self._next(state, thread) == i, "a thread makes its ops in order"
        state = self._let_land(state, i)
        if self.ops[i].kind == "grid_wait":
            state = self._let_end(state)
        assert self._is_enabled(state, i), self.ops[i]
        new = self._moved(state, thread, i)
        assert new is not None, f"misused: {self.ops[i]}"
        return new

    def _let_end(self, state):
        """The state when the kernel before has ended."""
        last = None if self.before is None else self._next(state, self.before)
        return state if last is None else self._moved(state, self.before, last)

    def _let_land(self, state, i):
        """Copies land until an op can be made: a wait, or an arrival on what is full."""
        waits = lambda s: self.ops[i].kind == "wait" and not self._is_enabled(s, i)
        full = lambda s: any(s.barriers[at][1] == self.arrivals[at] for at in self.arrives_at[i])
        for load in _bits(state.flying):
            if not waits(state) and not full(state):
                break
            if self.ops[load].kind in LANDING and self._may_land(load) and self._concern(load, i):
                for before in (*self._commits_before(state, load), load):
                    state = self._landed(state, before)
        return state

    def _may_land(self, load):
        """Whether a copy is not to stay in flight, nor a product that is committed here."""
        own = self.threads[self.ops[load].thread]
        is_commit = self.ops[load].kind == "tcgen05_commit"
        products = {i for i in own if i < load and self.ops[i].kind in QUEUE} if is_commit else ()
        return self.late.isdisjoint({load, *products})

    def _commits_before(self, state, load):
        """The commits of its thread that arrive before this one."""
        if self.ops[load].kind != "tcgen05_commit":
            return []
        own = (i for i in self.threads[self.ops[load].thread] if i < load)
        return [i for i in own if self.ops[i].kind == "tcgen05_commit" and state.flying >> i & 1]

    def _concern(self, load, i):
        """Whether a copy lands where an op waits or arrives."""
        lands = {self.place[peer, self.ops[load].index] for peer in self._peers(load)}
        here = {*self.arrives_at[i]}
        return lands & (here or {self.place[self.ops[i].place]})

    def _peers(self, load):
        return self.ops[load].peers or (self.ops[load].barrier,)

    def sees(self, finding, state):
        """Whether the explorer tells of this finding in a state, or in a move of what comes."""
        self.bad.clear()
        if finding.kind != "race":  # what may land has landed: no thread gets further by it
            for load in _bits(state.flying):
                state = self._landed(state, load) if self.ops[load].kind in LANDING else state
            state = self._let_end(state)
        self._tell_all(state)
        for spot in finding.interleaving.coming:
            if (i := self.number[spot]) is not None and self._is_enabled(state, i):
                self._moved(state, spot[0], i)
        return self._bad_of(finding)

    def _tell_all(self, state):
        self._tell_races(state)
        self._tell_exchanged_arrivals(state)
        if not list(self._following(state)):
            self._tell_end(state)

    def _bad_of(self, finding):
        spots = {*finding.interleaving.coming, *finding.interleaving.in_flight}
        return any(kind == finding.kind and {*places} == spots for kind, places in self.bad)

    # All orders.

    def cost(self, state):
        """How many ops of the program have been made."""
        return sum(state.counters[: len(self.program.threads)])

    def least(self, finding):
        """How many ops an order has that shows a finding, at least."""
        seen, levels = {self.first}, {0: [self.first]}
        for made in range(len(self.ops) + 1):
            for state in (level := levels.get(made, [])):
                self.bad.clear()
                self._tell_all(state)
                following = [new for new in self._following(state) if new is not None]
                if self._bad_of(finding):
                    return made
                for new in following:
                    if new not in seen:
                        seen.add(new)
                        count = self.cost(new)
                        (level if count == made else levels.setdefault(count, [])).append(new)
                if len(seen) > self.limit:
                    raise TooLarge(self.program.name)
        raise AssertionError("no order shows it")


class LanesJudge(Judge):
    """A judge of the races of one thread's lanes, each of which is a thread to it."""

    def __init__(self, program, finding, limit=LIMIT):
        lanes, self.origin = apart(program)
        super().__init__(lanes, limit)
        newer, older = finding.ops
        turns = [turn for turn in finding.interleaving.turns if turn.thread == newer.thread]
        before = enumerate(program.threads[newer.thread][: turns[-1].stop])
        self.slow = LANES * newer.thread + 1
        self.older = max(index for index, op in before if op is older)

    def replay(self, order):
        """As of a thread; of each op, a meeting of the lanes comes when both have come to it."""
        state, self.late = self.first, set()
        for turn in order.turns:
            for index in range(turn.start, turn.stop):
                made = [
                    (at, lane)
                    for lane in range(LANES * turn.thread, LANES * (turn.thread + 1))
                    if lane != self.slow or index < self.older
                    for at, i in enumerate(self._ops_of(lane, index))
                ]
                for at, lane in sorted(made):
                    state = self._made(state, lane, self._ops_of(lane, index)[at])
        return state

    def _ops_of(self, lane, index):
        """A lane's ops for one of its thread's."""
        return [i for i, at in zip(self.threads[lane], self.origin[lane]) if at == index]

    def cost(self, state):
        """How many ops the fastest lanes have made of their threads'."""
        reached = [
            origin[count - 1] + 1 if count else 0
            for origin, count in zip(self.origin, state.counters)
        ]
        return sum(max(reached[t : t + LANES]) for t in range(0, len(reached), LANES))

    def sees(self, finding, state):
        """Whether the two accesses race in a state."""
        self.bad.clear()
        self._tell_all(state)
        return self._bad_of(finding)

    def _bad_of(self, finding):
        newer, older = finding.ops
        return any(
            kind == "race" and {self._line(spot) for spot in places} == {newer.line, older.line}
            for kind, places in self.bad
        )

    def _line(self, spot):
        thread, index = spot
        return self.program.threads[thread][index].line


def judge(program, report=None, limit=LIMIT):
    """The kinds of findings with an order; raises unless each shows its own, at its shortest.

    Up to `limit` states are visited to see that none is shorter. A report that is there already may
    be given.
    """
    report = check(program) if report is None else report
    found = [finding for finding in report if finding.interleaving is not None]
    if not found:
        return []
    run = Order(program)
    for _ in run:
        pass
    early = {f.clash.coming: f for f in run.misused if isinstance(f, EarlyArrival)}
    of_threads = Judge(program, limit)
    for finding in found:
        order, told = finding.interleaving, f"{finding}\n{finding.interleaving}\n{program}"
        of_lanes = "the lanes do not meet" in finding.cause
        judge = LanesJudge(program, finding, limit) if of_lanes else of_threads
        state = judge.replay(order)
        assert judge.cost(state) <= order.ops, told
        if "is meant for its phase" in finding.cause and order.coming in early:
            fact = early[order.coming]
            completed, *_ = state.barriers[judge.place[fact.barrier, fact.index]]
            assert completed < fact.number, told
            continue
        assert judge.sees(finding, state), told
        if not run.misused:
            with contextlib.suppress(TooLarge):
                assert judge.least(finding) == judge.cost(state), told
    return [str(finding.kind) for finding in found]


def shown(program, words, report=None, limit=LIMIT):
    """How many findings with these words there are; each has an order, which is judged."""
    report = check(program) if report is None else report
    judge(program, report, limit)
    findings = [finding for finding in report if words in finding.cause]
    if "barrier-misuse" not in {finding.kind for finding in report}:
        assert all(finding.interleaving is not None for finding in findings), program
    return len(findings)
