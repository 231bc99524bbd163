"""`pipelib_book.in_flight`: what waits leave, and what frees a slot, on programs by hand."""

from dataclasses import replace

import pytest

from pipelib_book.in_flight import (
    Moment,
    filled_by,
    frees,
    frees_unread,
    is_load_of,
    may_be_slot,
    moments,
)
from tests.pallascope.build import (
    CONSUMED,
    PRODUCED,
    arrive,
    barriers,
    just,
    load,
    program,
    read,
    store,
    wait,
    wgmma,
    write,
)


def left(*ops):
    """What is in flight at the end."""
    *_, last = moments(ops)
    return len(last.products), len(last.unread), len(last.stores)


GROUP = store(0, 0), just("commit_group")


@pytest.mark.parametrize(
    ("ops", "found"),
    [
        ([wgmma(0), wgmma(1)], (2, 0, 0)),
        ([wgmma(0), wgmma(1), just("wgmma_wait", 1)], (1, 0, 0)),
        ([wgmma(0), just("wgmma_wait", 3)], (1, 0, 0)),  # no more than there are
        ([wgmma(0), wgmma(1), just("acc_read", 1)], (1, 0, 0)),
        ([wgmma(0), just("acc_read")], (1, 0, 0)),  # waits for nothing
        ([store(0, 0), store(1, 1)], (0, 0, 0)),  # in no group yet
        ([store(0, 0), *GROUP], (0, 1, 1)),  # one group
        ([*GROUP, *GROUP, just("wait_store", 1)], (0, 1, 1)),
        ([*GROUP, *GROUP, just("wait_store", 0, read_only=True)], (0, 0, 2)),
        ([*GROUP, just("wait_store", 0, read_only=True), *GROUP], (0, 1, 2)),
        ([wgmma(0), *GROUP, just("wait_store", 0)], (1, 0, 0)),
    ],
)
def test_what_is_in_flight_follows_from_the_waits(ops, found):
    assert left(*ops) == found


def test_there_is_a_moment_for_each_op():
    ops = [wgmma(0), wgmma(1), just("wgmma_wait", 1)]
    first, second, wait = ops
    found = [Moment(first, (first,)), Moment(second, (first, second)), Moment(wait, (second,))]
    assert [*moments(ops)] == found


def last(*ops):
    made = program(ops)
    *_, moment = moments(made.threads[0])
    return moment.reads(made, "ring")


def test_what_is_in_flight_may_still_read_the_slot_that_is_freed():
    assert last(wgmma(0), arrive(CONSUMED, 0))
    assert not last(wgmma(0), arrive(CONSUMED, 1))  # another slot
    assert not last(wgmma(0), just("wgmma_wait", 0), arrive(CONSUMED, 0))
    assert last(wgmma(0), wgmma(1), just("wgmma_wait", 1), arrive(CONSUMED, 1))
    assert last(*GROUP, arrive(CONSUMED, 0))
    assert not last(*GROUP, just("wait_store", 0, read_only=True), arrive(CONSUMED, 0))
    assert not last(read(0), arrive(CONSUMED, 0))


def test_one_barrier_may_free_all_slots():
    made = program((wgmma(1), arrive(CONSUMED, 0)), barriers=barriers(count=1))
    *_, moment = moments(made.threads[0])
    assert moment.reads(made, "ring") and not moment.reads(made, "x")


def test_a_slot_is_freed_where_its_next_load_waits():
    memory = load(0, 0), wait(CONSUMED), load(1, 0)
    compute = wait(PRODUCED), wgmma(0), arrive(CONSUMED)
    made = program(memory, compute)
    assert frees(made, "ring") == {CONSUMED} and frees(made, "x") == frozenset()
    assert [is_load_of(made, op, "ring") for op in made.threads[0]] == [True, False, True]
    assert not is_load_of(made, made.threads[0][0], "x")


def test_a_writer_may_wait_for_a_slot_too():
    made = program((write(0), wait(CONSUMED), write(0)), (store(0, 0), arrive(CONSUMED)))
    assert frees(made, "ring") == {CONSUMED}


def test_a_slot_that_an_op_fills_may_be_the_one_that_a_wait_is_for():
    made = program((load(0, 0), wait(CONSUMED), load(1, 0), read(0)))
    filled, waits, _, unread = made.threads[0]
    region = filled_by(made, filled, "ring")
    assert region and region.box[0][0] == 0
    assert filled_by(made, filled, "x") is filled_by(made, unread, "ring") is None
    assert may_be_slot(made, replace(waits, index=0), region)
    assert not may_be_slot(made, replace(waits, index=1), region)


def test_a_barrier_of_copies_frees_nothing():
    made = program((load(0, 0), wait(PRODUCED), load(1, 0)), (arrive(CONSUMED),))
    assert frees(made, "ring") == frozenset()


@pytest.mark.parametrize(
    ("ops", "found"),
    [
        ([read(0), arrive(CONSUMED, 0), *GROUP, arrive(CONSUMED, 0)], False),
        ([read(0), arrive(CONSUMED, 1)], True),  # another slot
        ([read(0), arrive(CONSUMED, 0), arrive(CONSUMED, 0)], True),  # once more
        ([wgmma(1), wgmma(0), arrive(CONSUMED, 1), arrive(CONSUMED, 0)], False),
        ([arrive(PRODUCED, 1)], False),  # frees nothing
    ],
)
def test_a_thread_may_free_a_slot_that_it_has_not_read(ops, found):
    memory = load(0, 0), wait(CONSUMED), load(1, 0)
    made = program(memory, ops)
    assert frees_unread(made, "ring") is found
    assert not frees_unread(made, "x")


def test_a_barrier_for_all_slots_does_not_say_which_is_free():
    made = program(
        (load(0, 0), wait(CONSUMED), load(1, 0)), (arrive(CONSUMED),), barriers=barriers(count=1)
    )
    assert not frees_unread(made, "ring")
