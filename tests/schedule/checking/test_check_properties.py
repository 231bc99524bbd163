"""`check` against the explorer, on programs that hypothesis writes.

What agreement is to be expected, and why no more:

- A clean verdict of one is a clean verdict of the other, always.
- One finds a deadlock or a misused barrier if and only if the other finds one of the two: where
  phases are not what they are meant to be, each judge sees its own part of what may follow.
- Else both find a race, or neither does. If not, they find the same kinds.
- What the checker points at is bad: the very ops of each finding are among those that the explorer
  saw go wrong. Not asked of a misused barrier, where the ops that tell of it are a choice, nor
  where one is misused or threads are stuck and the rest is a guess, nor of a result that is lost:
  beside a race the explorer does not look for it, and of several writes any may be blamed.
- Where threads ask for more registers in all than there are, the checker says so, without a run.
  For the explorer this is a deadlock.

The checker counts one fault once, and is silent of the others that follow from a race: so it need
not point at all that the explorer saw.
"""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelib.schedule import check
from tests.schedule import strategies
from tests.schedule.checking.explorer import explore

pytestmark = pytest.mark.one_jax

BARRIERS = {"deadlock", "barrier-misuse"}
TOO_MANY = "who asks last waits for ever"  # registers
KINDS = BARRIERS | {"race", "missing-commit", "uninitialized-read", "lost-store"}
quick = settings(
    max_examples=400, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip


def agree(program):
    """Raises unless the two judges agree as the module says; else the kinds that the checker found.

    What the checker says of too many registers is a deadlock here.
    """
    outcome, report = explore(program), check(program)
    kinds, found = outcome.kinds, frozenset(map(_kind, report))
    verdicts = f"explored {sorted(kinds)}, checked {sorted(found)} of\n{program}\n{report}"
    assert bool(kinds) == bool(found), verdicts
    assert bool(kinds & BARRIERS) == bool(found & BARRIERS), verdicts
    if not kinds & BARRIERS:
        assert ("race" in kinds) == ("race" in found), verdicts
        assert "race" in kinds or kinds == found, verdicts
    bad = {
        (kind, frozenset(program.threads[thread][index].line for thread, index in places))
        for kind, places in outcome.bad
    }
    for finding in report:
        if _is_to_be_seen(finding, kinds | found):
            assert (finding.kind, frozenset(op.line for op in finding.ops)) in bad, verdicts
    return found


def _kind(finding):
    return "deadlock" if TOO_MANY in finding.cause else str(finding.kind)


def _is_to_be_seen(finding, kinds):
    if _kind(finding) == "deadlock":
        return bool(finding.ops) and "barrier-misuse" not in kinds
    is_lost_write = finding.kind == "lost-store" and finding.ops[-1].kind == "write"
    return not kinds & BARRIERS and not is_lost_write


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
        waits = [op for ops in program.threads for op in ops if op.kind == "await"]
        several = {
            place for place in {op.place for op in waits}
            if len({op.thread for op in waits if op.place == place}) > 1
            and not all(op.keeps for op in waits if op.place == place)
        }  # fmt: skip
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
