"""`orders`: which signals of semaphores a wait is sure to come after.

The model. A wait on a semaphore returns once the signals so far add up to what it **needs**: its
amount, and what the same thread's waits have taken off before. It does not say which signals these
were. A signal is **sure** to come before a wait if the others that can come before the wait do not
add up to what it needs. A signal cannot come before the wait if it comes after the wait anyway, or
after the signal that is left out. Whether it does is asked of the clocks of `order`; what is sure
puts ops in order, by which more may become sure, until nothing changes. Each step only adds what
holds in every interleaving. How far threads get does not depend on it, so one run tells the rest.

Signals never block, and a sum only grows, so that how far threads get does not depend on the order
of ops (`order` says why that matters). This holds if nobody else takes off what a wait needs. So
several threads may wait on one semaphore only if each leaves it as it is (`decrement=False`), or
takes something off when the others will wait there no more: a wait that takes off comes after all
waits of other threads. That is asked of a run in which nobody disturbs a wait. If it holds there it
holds always: up to the first wait that is disturbed, every run is like that one.

Other semaphores are not followed, and neither are those of a program that has not all blocks and
devices, since others may signal them: they put nothing in order, and no thread waits for them.
Source: this project's own.
"""

from collections import defaultdict
from collections.abc import Iterator

from pallascope.checking.order import Order
from pallascope.interleaving import Spot
from pallascope.program import Kind, Op, Program, Single


def followed(program: Program) -> frozenset[Single]:
    """The semaphores whose waits put ops in order."""
    return frozenset() if program.truncated else program.counted


def orders(program: Program) -> Order:
    """A run of the program to come, with what is sure of its semaphores."""
    places = followed(program)
    sure = _all_sure(program, places)
    while disturbed := _disturbed(program, places, sure):
        places -= disturbed
        sure = _all_sure(program, places)
    return Order(program, places, sure)


def _all_sure(program: Program, places: frozenset[Single]) -> dict[Spot, tuple[Spot, ...]]:
    """The signals that are sure to come before each wait, if no wait is disturbed."""
    if not places:
        return {}
    before = _Before(run := _ran(program, places, {}))
    found: dict[Spot, int] = defaultdict(int)
    # What the last of several turns waits for tells of the turns before: the greatest needs first.
    waits = sorted(run.semaphores.awaited.items(), key=lambda item: -item[1][1])
    while new := [
        before.add(wait, sure)
        for wait, (place, need) in waits
        if (sure := before.sure(wait, place, need))
    ]:
        for wait, sure in new:
            found[wait] |= sure
    return {wait: before.last(them) for wait, them in found.items()}


def _ran(program: Program, places: frozenset[Single], sure: dict[Spot, tuple[Spot, ...]]) -> Order:
    """A run that is over."""
    run = Order(program, places, sure)
    for _ in run:
        pass
    return run


def _disturbed(
    program: Program, places: frozenset[Single], sure: dict[Spot, tuple[Spot, ...]]
) -> frozenset[Single]:
    """The semaphores on which a wait takes something off while another thread may still wait."""
    waits: dict[Single, list[tuple[Spot, Op]]] = defaultdict(list)
    for thread, ops in enumerate(program.threads if places else ()):
        for index, op in enumerate(ops):
            if op.kind is Kind.AWAIT and op.place in places:
                waits[op.place].append(((thread, index), op))
    several = {
        place: them
        for place, them in waits.items()
        if len({op.thread for _, op in them}) > 1 and not all(op.keeps for _, op in them)
    }
    if not several:
        return frozenset()
    taken = _ran(program, places, sure).semaphores.passed
    return frozenset(
        place
        for place, them in several.items()
        for spot, op in them
        if not op.keeps and spot in taken
        if not all(o.thread == op.thread or taken[spot].has(*other) for other, o in them)
    )


class _Before:
    """Which signals and waits come before which, after a run, and by what is sure since.

    Each has a bit, by its number in `spots`. `known` has for each those that come before it, and
    `later` those that come after it, both with itself; `signals` has those of each semaphore that
    signal each amount. An order between these is one between all ops: the clocks have the rest.
    """

    def __init__(self, run: Order):
        clocks = {spot: clock for spot, (_, clock) in run.semaphores.signals.items()}
        clocks |= run.semaphores.passed
        self.spots = sorted(clocks)
        self.number = {spot: number for number, spot in enumerate(self.spots)}
        self.known = [0] * len(self.spots)
        self.later = [0] * len(self.spots)
        self.signals: dict[Single, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for (thread, index), (place, _) in run.semaphores.signals.items():
            amount = run.program.threads[thread][index].amount
            self.signals[place][amount] |= 1 << self.number[thread, index]
        for number, spot in enumerate(self.spots):
            for other in (n for n, each in enumerate(self.spots) if clocks[spot].has(*each)):
                self.known[number] |= 1 << other
                self.later[other] |= 1 << number

    def sure(self, wait: Spot, place: Single, need: int) -> int:
        """The signals that are sure to come before a wait and are not known to, a bit each."""
        amounts, at, found = self.signals[place].items(), self.number[wait], 0
        free = sum(those for _, those in amounts) & ~self.later[at]  # need not come after the wait
        for signal in _ones(free & ~self.known[at]):
            others = free & ~self.later[signal]
            if sum(amount * (others & those).bit_count() for amount, those in amounts) < need:
                found |= 1 << signal
        return found

    def add(self, wait: Spot, signals: int) -> tuple[Spot, int]:
        """Puts signals before a wait, and so all that comes before these before all after it."""
        new, after = 0, self.later[self.number[wait]]
        for signal in _ones(signals):
            new |= self.known[signal]
        for number in _ones(after):
            self.known[number] |= new
        for number in _ones(new):
            self.later[number] |= after
        return wait, signals

    def last(self, signals: int) -> tuple[Spot, ...]:
        """Those of some signals that come before none of the others: their clocks tell of all."""
        for signal in _ones(signals):
            signals &= ~self.known[signal] | 1 << signal
        return tuple(self.spots[signal] for signal in _ones(signals))


def _ones(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while bits:
        last = bits & -bits
        yield last.bit_length() - 1
        bits ^= last
