"""Semaphores: what each of them holds, and who waits for more.

The model. A signal adds its amount when it arrives. A wait returns once the semaphore holds the
wait's amount, and takes that off unless it `keeps` it. Of several threads that wait, the one that
has waited longest goes first if there is enough for it; else the next one.

Only semaphores that the program has all signals of are counted (`Program.counted`). Any other one,
which blocks and devices may signal that are not in the program, is taken to hold enough.
"""

from collections.abc import Callable

from pallascope.program import Op, Program
from pallascope.simulating.threads import Done, Thread

# Lets a thread go on that waits for a semaphore; the second argument is the signal that arrived.
Release = Callable[[Thread, Done], None]


class Semaphore:
    """What it has `held` since the `last` signal, and the `waiters`, in the order they came."""

    __slots__ = ("held", "last", "waiters")

    def __init__(self) -> None:
        self.held = 0
        self.last = Done(0.0, None)
        self.waiters: list[Thread] = []

    def passes(self, op: Op) -> bool:
        """Whether a wait returns now; it has then taken off what it takes."""
        if self.held < op.amount:
            return False
        self.held -= 0 if op.keeps else op.amount
        return True


class Semaphores:
    """The semaphores of all copies of a program; `release` lets a waiting thread go on."""

    def __init__(self, program: Program, release: Release) -> None:
        self._counted, self._release = program.counted, release
        self._found: dict[tuple[int, int, int], Semaphore] = {}

    def at(self, copy: int, place: tuple[int, int]) -> Semaphore | None:
        """The semaphore of a copy, by its array's id and its index there; None if not counted."""
        if place not in self._counted:
            return None
        key = copy, *place
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = Semaphore()
        return found

    def arrive(self, semaphore: Semaphore, amount: int, done: Done) -> None:
        """Adds what a signal brings; those for whom there is enough now go on."""
        semaphore.held += amount
        semaphore.last = done
        waiters, semaphore.waiters = semaphore.waiters, []
        for thread in waiters:
            if semaphore.passes(thread.op):
                self._release(thread, done)
            else:
                semaphore.waiters.append(thread)
