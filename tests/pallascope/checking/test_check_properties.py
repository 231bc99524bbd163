"""`check` against the explorer, on programs that hypothesis writes: they `agree`."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pallascope import check
from tests.pallascope import strategies
from tests.pallascope.checking.agreement import BARRIERS, agree, quick
from tests.pallascope.checking.explorer import explore

KINDS = BARRIERS | {"race", "missing-commit", "uninitialized-read", "lost-store"}


@quick
@given(strategies.rings())
def test_rings(program):
    agree(program)


@quick
@given(strategies.spoiled_rings())
def test_rings_with_one_fault(program):
    agree(program)


@quick
@given(strategies.small_programs())
def test_programs_of_any_shape(program):
    agree(program)


@quick
@given(strategies.sums())
def test_threads_that_add_to_one_place(program):
    agree(program)


@quick
@given(strategies.warped())
def test_warps_apart_from_each_other(program):
    agree(program)


@quick
@given(strategies.signalled())
def test_threads_that_wait_for_semaphores(program):
    agree(program)


def test_threads_of_which_some_take_off_what_others_have_waited_for():
    """Either the checker says that it does not follow a semaphore, or it is right."""
    seen = Counter()

    @settings(quick, max_examples=400)
    @given(strategies.signalled(mixed=True))
    def look(program):
        waits = [op for op in program.ops if op.kind == "await"]
        several = {
            place
            for place in {op.place for op in waits}
            if len({op.thread for op in waits if op.place == place}) > 1
            and not all(op.keeps for op in waits if op.place == place)
        }
        if any("semaphores order nothing here" in note for note in check(program).notes):
            seen["not followed"] += 1
            return
        agree(program)
        seen["followed"] += bool(several)

    look()
    assert min(seen["followed"], seen["not followed"]) >= 5, seen


@quick
@given(strategies.early())
def test_programs_that_start_early(program):
    agree(program)


def test_programs_that_start_early_are_right_and_wrong():
    """Wrong by this alone: nothing is found in the same program if it starts when others end."""
    seen = Counter()

    @quick
    @given(strategies.early())
    def look(program):
        if not check(replace(program, starts_early=False)):
            seen[check(program).ok] += 1

    look()
    assert min(seen[True], seen[False]) >= 20, seen


def test_the_programs_have_every_fault():
    """Else the agreement would say little."""
    seen = Counter()

    @quick
    @given(st.one_of(strategies.spoiled_rings(), strategies.small_programs()))
    def look(program):
        seen.update(explore(program).kinds or ["clean"])

    look()
    assert seen.keys() == KINDS | {"clean"}
    assert min(seen.values()) >= 5, seen
