"""`orders`: which signals of semaphores a wait is sure to come after.

The model. A wait on a semaphore returns once the signals so far add up to what it **needs**: its
amount, and what the same thread's waits have taken off before. It does not say which signals these
were. A signal is **sure** to come before a wait if the others that can come before the wait do not
add up to what it needs. A signal cannot come before the wait if it comes after the wait anyway, or
after the signal that is left out. Whether it does is asked of the clocks of `order`; what is sure
puts ops in order, by which more may become sure. So the program is run again until nothing changes.
Each run only adds what holds in every interleaving.

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
from collections.abc import Iterable

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
    sure: dict[Spot, tuple[Spot, ...]] = {}
    while places:
        run = _ran(program, places, sure)
        found = {spot: them for place in places for spot, them in _sure(run, place).items()}
        if found == sure:
            break
        sure = found
    return sure


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
    taken = _ran(program, places, sure).semaphores.taken
    return frozenset(
        place
        for place, them in several.items()
        for spot, op in them
        if not op.keeps and spot in taken
        if not all(o.thread == op.thread or taken[spot].has(*other) for other, o in them)
    )


def _sure(run: Order, place: Single) -> dict[Spot, tuple[Spot, ...]]:
    """The signals that are sure to come before each wait on a semaphore, after a run."""
    signals = {s: clock for s, (at, clock) in run.semaphores.signals.items() if at == place}
    needs = {spot: need for spot, (at, need) in run.semaphores.awaited.items() if at == place}
    if not signals or not needs:
        return {}
    ops = (run.program.threads[thread][index] for thread, index in signals)
    amounts = [op.amount for op in ops]
    equal = {amount: _bits(other == amount for other in amounts) for amount in {*amounts}}

    def free_of(spot: Spot) -> int:
        """The signals that need not come after an op, a bit each."""
        return _bits(not clock.has(*spot) for clock in signals.values())

    def total(bits: int) -> int:
        """The sum of the amounts of these signals, a bit each."""
        return sum(amount * (bits & those).bit_count() for amount, those in equal.items())

    without = {signal: free_of(signal) for signal in signals}
    found: dict[Spot, tuple[Spot, ...]] = {}
    for wait, need in needs.items():
        before = free_of(wait)
        found[wait] = tuple(s for s, others in without.items() if total(others & before) < need)
    return found


def _bits(flags: Iterable[bool]) -> int:
    """A number with a bit for each flag."""
    return int("".join("1" if flag else "0" for flag in flags), 2)
