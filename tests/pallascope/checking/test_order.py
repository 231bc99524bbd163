"""What `Order` keeps: it grows with the program's waits, not with the square of its barriers."""

import pytest

from pallascope.checking.order import Order
from tests.pallascope.strategies import Writer, ring


def run(program) -> Order:
    order = Order(program)
    for _ in order:
        pass
    return order


@pytest.mark.parametrize("steps", [20, 200])
def test_phases_that_all_have_waited_for_are_forgotten(steps):
    order = run(ring(2, steps, compute=2))
    assert sum(place.completed for place in order.places.values()) > steps
    assert all(len(place.phases) <= 3 for place in order.places.values())


def test_a_phase_is_kept_for_a_thread_that_has_yet_to_wait_for_it():
    """Thread 1 waits thrice before thread 2 waits for the first time."""
    writer = Writer(3)
    there, back = writer.barrier(), writer.barrier()
    for _ in range(3):
        writer.arrive(there).wait(there, thread=1).arrive(back, thread=1).wait(back)
    last = writer.barrier()
    writer.arrive(last).wait(last, thread=2)
    for _ in range(3):
        writer.wait(there, thread=2)
    order = run(writer.program())
    assert order.position == [len(ops) for ops in order.program.threads]
    assert sorted(order.places[there, 0].phases) == [0, 1, 2]


def test_a_phase_that_nobody_waits_for_is_kept_for_the_report():
    writer = Writer(1)
    barrier = writer.barrier()
    for _ in range(5):
        writer.arrive(barrier)
    assert sorted(run(writer.program()).places[barrier, 0].phases) == [0, 1, 2, 3, 4]


def test_a_clock_does_not_grow_with_barriers():
    """It has two counts for each thread, whether they wait on one barrier or on a hundred."""

    def made(barriers):
        writer = Writer(2)
        for _ in range(barriers):
            barrier = writer.barrier()
            writer.arrive(barrier).wait(barrier, thread=1)
        return run(writer.program())

    clocks = [made(barriers).clocks[1] for barriers in (1, 100)]
    assert all(len(clock.over) == len(clock.fenced) == 2 for clock in clocks)
