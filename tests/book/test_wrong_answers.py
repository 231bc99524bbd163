"""Each exercise has wrong answers, and each of them fails, in words that do not give the answer.

A wrong answer that passes is a fault of the grade: let it ask for what the task asks.
"""

import nbformat
import pytest

from tests.book.runs import RUN, executed, is_wrong
from tools import exercises, notebooks
from tools.wrong_answers import parse

LEAST = 3


@pytest.mark.parametrize("md", RUN)
def test_an_exercise_has_wrong_answers(md, record_property):
    found = exercises.exercises(notebooks.read_all(md))
    line = f"{md.stem}: {sum(len(one.wrong) for one in found)}, {len(found)} exercises"
    record_property("table: wrong answers", [line])
    assert lacking(found) == []


@pytest.mark.parametrize("md", RUN)
def test_what_is_wrong_fails_and_the_grade_does_not_give_the_answer(md):
    cells, found = executed(md).cells, exercises.exercises(notebooks.read_all(md))
    tries = [(one, wrong.says) for one in found for wrong in one.wrong]
    wrong = [cell for cell in cells if is_wrong(cell)]
    faults = [
        fault
        for (one, says), cell in zip(tries, wrong, strict=True)
        for fault in faults_of(one, cell, says)
    ]
    unanswered = [cell for cell in cells if "exercise" in cell.metadata.get("tags", [])]
    faults += [
        fault
        for one, cell in zip(found, unanswered, strict=True)
        for fault in faults_of(one, cell, "")
    ]
    if faults:
        pytest.fail("\n\n".join(faults), pytrace=False)


def lacking(found):
    """The exercises with too few wrong answers."""
    return [
        f"exercise {number} has {len(one.wrong)} of {LEAST}"
        for number, one in enumerate(found, 1)
        if len(one.wrong) < LEAST
    ]


def faults_of(exercise, cell, says):
    """What is wrong with how an answer was graded."""
    raised = [f"{o.ename}: {o.evalue}" for o in cell.outputs if o.output_type == "error"]
    grades = exercises.graded(cell)
    if raised or len(grades) != 1:
        return [f"It has no grade, but {raised or grades}:\n{cell.source}"]
    (grade,) = grades
    faults = []
    if not grade.startswith("Not yet."):
        faults.append("It passes")
    if says not in " ".join(grade.split()):
        faults.append(f"Its grade does not say {says!r}")
    if parts := exercise.reveals(grade):
        faults.append(f"Its grade gives the answer, {parts}")
    return [f"{fault}:\n{grade}\n\n{cell.source}" for fault in faults]


EXERCISE = exercises.Exercise(
    nbformat.v4.new_code_cell("load(x)\n...  # your line"),
    nbformat.v4.new_code_cell("load(x)\nwait(1)"),
)


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ("Not yet.\n- The checker finds\n  a race.", ()),
        ("Passed.\n- Not a race.", ["It passes"]),
        ("Not yet.\n- It is wrong.", ["Its grade does not say 'a race'"]),
        ("Not yet.\n- It is a race: call wait(1).", ["Its grade gives the answer, ['wait(1)']"]),
        ("a figure", ["It has no grade, but []"]),
    ],
)
def test_a_fault_of_a_grade_is_found(shown, found):
    data = {"text/plain": shown}
    cell = nbformat.v4.new_code_cell("load(x)")
    cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
    got = faults_of(EXERCISE, cell, "a race" if "figure" not in shown else "")
    assert [fault.partition(":\n")[0] for fault in got] == [*found]


def test_an_error_in_place_of_a_grade_is_found():
    cell = nbformat.v4.new_code_cell("load(x)")
    cell.outputs = [nbformat.v4.new_output("error", ename="TypeError", evalue="no x")]
    assert "['TypeError: no x']" in faults_of(EXERCISE, cell, "")[0]


def test_too_few_are_found():
    wrong = parse("It does not wait.\n- wait(1)\nsays: race")
    some = exercises.Exercise(EXERCISE.skeleton, EXERCISE.solution, (wrong,) * 3)
    assert lacking([some, EXERCISE]) == ["exercise 2 has 0 of 3"]
