"""What a challenge asks: each of its conditions can fail, and says so."""

import pytest

from pallascope.editing import Expect, Move, Remove, Repeat, edited
from pipelib_book.laboratory.goals import Goal, solutions
from tests.pallascope.strategies import ring, where

COMPUTE, MEMORY = 0, 1


@pytest.fixture
def program():
    return ring(2, 6)


def unmet(goal, program, *edits):
    return goal.unmet(program, goal.check(edited(program, edits)), edits)


def test_what_should_be_found_is_found(program):
    goal = Goal(found=("deadlock",))
    assert unmet(goal, program) == ["The check finds no deadlock."]
    assert unmet(goal, program, Expect(1, 2)) == []


def test_what_should_not_be_found_is_not(program):
    waits = where(program, COMPUTE, "wait")
    several = unmet(Goal(found=("race",)), program, Remove(COMPUTE, waits))
    others = "barrier-misuse", "uninitialized-read"
    assert several == [f"The check finds {' and '.join(others)}, which there should not be."]
    assert unmet(Goal(found=("race",), only=False), program, Remove(COMPUTE, waits)) == []
    assert unmet(Goal(), program, Expect(1, 2)) == [
        "The check finds deadlock, which there should not be."
    ]


def test_what_has_no_findings_is_checked_strictly(program):
    """A copy over what was read, with no fence between."""
    fences = where(program, COMPUTE, "fence")
    assert unmet(Goal(fewer=1), program, Remove(COMPUTE, fences[:1])) == [
        "The check finds missing-commit, which there should not be."
    ]


def test_a_strict_check_is_asked_for(program):
    fences = where(program, COMPUTE, "fence")
    edit = Remove(COMPUTE, fences)
    assert unmet(Goal(found=("missing-commit",), strict=True), program, edit) == []
    assert unmet(Goal(found=("missing-commit",)), program, edit) == [
        "The check finds no missing-commit."
    ]
    assert Goal().strict and not Goal(found=("race",)).strict


def test_the_work_must_stay(program):
    loads, reads = where(program, MEMORY, "load"), where(program, COMPUTE, "read")
    said = "The work is not the same: what moves data or computes must stay."
    for edit in (Remove(COMPUTE, reads), Repeat(COMPUTE, reads[:1]), Remove(MEMORY, loads[:1])):
        assert said in unmet(Goal(found=("deadlock",), only=False), program, edit)


def test_ops_are_counted(program):
    last = where(program, COMPUTE, "fence")[-1:]
    assert unmet(Goal(fewer=1), program, Remove(COMPUTE, last)) == []
    assert unmet(Goal(fewer=2), program, Remove(COMPUTE, last)) == [
        "It has 1 op fewer, but should have at least 2 fewer."
    ]


def test_ops_are_not_counted_where_nothing_is_asked_about_them(program):
    """A fence more does no harm, and only what moves data or computes must stay as it is."""
    fences = where(program, COMPUTE, "fence")
    assert unmet(Goal(), program, Repeat(COMPUTE, fences)) == []
    assert unmet(Goal(fewer=1), program, Repeat(COMPUTE, fences)) != []


def test_speed_is_simulated(program):
    """Nothing is faster by itself, and what is wrong is not timed."""
    (said,) = unmet(Goal(faster=1.5), program)
    assert said == "It is 1.00 times as fast, but should be 1.5 times as fast."
    assert unmet(Goal(faster=1.5), program, Expect(1, 2)) == [
        "The check finds deadlock, which there should not be."
    ]


def test_edits_are_counted_and_named(program):
    edits = Expect(1, 2), Expect(1, 3)
    assert unmet(Goal(found=("deadlock",), edits=1), program, *edits) == [
        "There are 2 edits, but 1 should do."
    ]
    assert unmet(Goal(found=("deadlock",), by=("move", "remove")), program, *edits) == [
        "Only moving and taking away will do here, but one of the edits is changing the arrivals."
    ]


def test_edits_are_of_the_kinds_that_are_asked_for(program):
    """Also the later ones, which are of the program as it is by then."""
    fences, arrivals = where(program, COMPUTE, "fence"), where(program, COMPUTE, "arrive")
    goal = Goal(found=("race",), only=False, of=("fence",))
    ours = Remove(COMPUTE, fences[-1:]), Remove(COMPUTE, (arrivals[-1] - 1,))
    assert "The edits should be of fence; one is of arrive." in unmet(goal, program, *ours)
    assert not any("edits should be" in said for said in unmet(goal, program, ours[0]))


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'hang' is not a kind of finding"):
        Goal(found=("hang",))


def test_moves_of_one_op_one_after_another_are_one_edit(program):
    """As presses of a key are. Another op's move is another edit, and so is a line's."""
    goal = Goal(found=("race",), edits=1)
    wait, arrival = where(program, COMPUTE, "wait")[1], where(program, COMPUTE, "arrive")[0]
    moves = [Move(COMPUTE, (wait + n,), 1) for n in range(2)]
    two = ["There are 2 edits, but 1 should do."]
    assert unmet(goal, program, *moves) == []
    assert unmet(goal, program, *moves, Move(COMPUTE, (wait,), 1))[-1:] == two
    assert unmet(goal, program, moves[0], Move(MEMORY, (wait + 1,), 1))[-1:] == two
    lines = Move(COMPUTE, where(program, COMPUTE, "arrive"), -1)
    assert unmet(goal, program, lines, Move(COMPUTE, (arrival - 1,), -1))[-1:] == two


def test_edits_are_of_what_is_asked_for(program):
    wait, fence = where(program, COMPUTE, "wait"), where(program, COMPUTE, "fence")
    barrier = program.barriers[program.threads[COMPUTE][wait[0]].barrier].name
    on = Goal(found=("race",), only=False, on=(barrier,))
    assert unmet(on, program, Remove(COMPUTE, wait[:1])) == []
    assert f"The edits should be of lines on {barrier}; one is of none." in unmet(
        on, program, Remove(COMPUTE, fence[:1])
    )
    once = Goal(found=("race",), only=False, once=True)
    assert unmet(once, program, Remove(COMPUTE, wait[:1])) == []
    assert unmet(once, program, Remove(COMPUTE, wait)) == [
        f"One operation should be edited, but this edit is of {len(wait)}."
    ]
    twice = Goal(needs=("repeat",))
    assert unmet(twice, program) == ["It takes doing twice of something, too."]
    assert unmet(twice, program, Repeat(COMPUTE, fence)) == []


def test_each_way_to_meet_a_goal_is_found_once(program):
    """A fault at another step is the same way, and so is a move that goes further."""
    goal = Goal(found=("deadlock",), by=("expect",))
    assert solutions(program, goal) == [(Expect(0, 2),), (Expect(1, 2),)]
    goal = Goal(found=("race",), by=("move",))
    found = solutions(program, goal, far=3)
    assert found and all(isinstance(edit, Move) for (edit,) in found)
    assert all(unmet(goal, program, *answer) == [] for answer in found)
    ops = [program.threads[edit.thread][edit.indices[0]] for (edit,) in found]
    assert len({(op.kind, op.line, edit.by > 0) for op, (edit,) in zip(ops, found)}) == len(found)


def test_two_edits_are_found_that_neither_is_enough_for(program):
    last = where(program, COMPUTE, "fence")[-2:]  # no copy comes after them
    goal = Goal(fewer=2, by=("remove",), of=("fence",), once=True)
    assert solutions(program, goal) == []
    ((first, second),) = solutions(program, goal, most=2)
    assert unmet(goal, program, first, second) == []
    assert first.indices == last[:1] and second.indices == (last[1] - 1,)
    assert solutions(program, Goal(fewer=2, edits=1, once=True), most=2) == []
