"""Barriers: the phase that each arrival counts for, and when each phase is complete.

The model. The k-th phase of a barrier takes the k-th `arrivals` arrivals, in the order in which
they are made. A phase is complete when its arrivals have been made and all parts of copies that
they announced have landed; it is over at the time of the last of these. Threads that wait for a
phase are kept there until then.

Not covered: whether barriers are used rightly. That is `check`'s to say.
"""

from collections import defaultdict
from collections.abc import Callable

from pallascope.program import Program
from pallascope.simulating.threads import Done, Thread


class Phase:
    """A phase of a barrier: what it has had so far, its latest end, and who waits for it.

    `ends` has those of its ends that a figure shows.
    """

    __slots__ = ("announced", "arrivals", "ends", "landed", "last", "waiters")

    def __init__(self) -> None:
        self.arrivals = self.announced = self.landed = 0
        self.last = Done(0.0, None)
        self.ends: list[Done] = []
        self.waiters: list[Thread] = []


# Lets a thread go on that waits for a phase, which is over.
Release = Callable[[Thread, Phase], None]


class Barrier:
    """One barrier of an array: `arrived` counts its arrivals, each phase takes `needed` of them.

    `tracked` counts the loads on it whose arrivals another block makes, on a barrier of its own.
    """

    __slots__ = ("arrived", "needed", "phases", "tracked")

    def __init__(self, needed: int) -> None:
        self.needed, self.arrived, self.tracked = needed, 0, 0
        self.phases: defaultdict[int, Phase] = defaultdict(Phase)

    def complete(self, phase: int) -> bool:
        """Whether a phase has all its arrivals and all bytes that they announced."""
        state = self.phases[phase]
        return state.arrivals >= self.needed and state.landed >= state.announced


class Barriers:
    """All barriers of all copies of a program; `release` lets a waiting thread go on."""

    def __init__(self, program: Program, release: Release) -> None:
        self._needed = [barrier.arrivals for barrier in program.barriers]
        self._release = release
        self._barriers: dict[tuple[int, int, int], Barrier] = {}

    def at(self, copy: int, barrier: int, index: int) -> Barrier:
        """The barrier of a copy, by its array's id and its index there."""
        key = copy, barrier, index
        found = self._barriers.get(key)
        if found is None:
            found = self._barriers[key] = Barrier(self._needed[barrier])
        return found

    def arrive(self, barrier: Barrier, done: Done, parts: int) -> None:
        """Counts an arrival, which announces this many parts that must land in the same phase."""
        number = barrier.arrived // barrier.needed
        barrier.arrived += 1
        phase = barrier.phases[number]
        phase.arrivals += 1
        phase.announced += parts
        self._update(barrier, number, done)

    def land(self, barrier: Barrier, number: int, done: Done) -> None:
        """Counts a part that has landed for a phase."""
        barrier.phases[number].landed += 1
        self._update(barrier, number, done)

    def _update(self, barrier: Barrier, number: int, done: Done) -> None:
        """Notes that something happened to a phase; if the phase is complete, waiters go on."""
        phase = barrier.phases[number]
        if done.time >= phase.last.time:
            phase.last = done
        if done.span is not None:
            phase.ends.append(done)
        if phase.waiters and barrier.complete(number):
            waiters, phase.waiters = phase.waiters, []
            for thread in waiters:
                self._release(thread, phase)
