"""Grades fail mutants of solutions: the report of all that were tried holds, and so does a sample.

`python -m tools.grade_mutants` grades the others, and writes the report.
"""

import json

import pytest

from tools import exercises, notebooks
from tools.answer_mutants import RULES, mutants
from tools.grade_mutants import REPORT, Fate, chosen, equivalent, fates, judged, tasks

# The mutants of an exercise that are graded at least.
LEAST = 20
# Exercises whose cells before take a second or two, one for each way to be asked.
SAMPLE = "1.1", "4.3", "5.5", "12.3", "13.2", "16.3"

TASKS = {task.number: task for md in notebooks.chapters() for task in tasks(md)}

CHANGED = [
    ("drop", "def f():\n    begin()\n    return 1", "def f():\n    return 1"),
    ("double", "run(x)", "run(x)\nrun(x)"),
    ("swap", "copy(a_smem, b_smem)", "copy(b_smem, a_smem)"),
    ("shift", "wait(1)", "wait(2)"),
    ("shift", "wait(1)", "wait(0)"),
    ("index", "x = y.at[k]", "x = y.at[k + 1]"),
    ("start", "x = jnp.zeros(y)", "x = jnp.ones(y)"),
    ("start", "x = -jnp.inf", "x = 0.0"),
    ("maximum", "x = jnp.maximum(y, z)", "x = y"),
    ("grid", "plgpu.kernel(f, grid=(4,))", "plgpu.kernel(f, grid=(4,) + (2,))"),
    ("compare", "x = y < z", "x = y <= z"),
]


@pytest.mark.parametrize(("rule", "solution", "changed"), CHANGED)
def test_a_rule_makes_its_change(rule, solution, changed):
    assert (rule, changed) in {(mutant.rule, mutant.source) for mutant in mutants(solution)}


def test_each_rule_is_tried():
    assert {rule for rule, _, _ in CHANGED} == set(RULES)


@pytest.mark.parametrize(
    "kept",
    [
        "import jax",
        "book.grade(f, 1, expected=2)",
        "blackwell.grade_unrun(f, 1, makes=2)",
        "def f():\n    '''Text.'''\n    return x",
        "plgpu.wgmma_wait(n)",  # once more waits for nothing
        "plgpu.wait_load_tmem()",
        "x = plgpu.SMEM((2, 64))",  # more memory than it needs
    ],
)
def test_what_stays(kept):
    assert mutants(kept) == []


def test_a_mutant_tells_what_it_changed():
    first, *_ = mutants("x = wait(1)")
    assert str(first) == "shift, line 1: wait(1) -> wait(2)"


def test_the_few_of_many_are_of_all_rules_and_always_the_same():
    found = mutants(TASKS["4.2"].solution)
    few = chosen(found, LEAST)
    assert few == chosen(found, LEAST) and len(few) == LEAST
    assert {mutant.rule for mutant in few} == {mutant.rule for mutant in found}


REPORTED = json.loads(REPORT.read_text("utf-8"))


@pytest.mark.parametrize("number", REPORTED)
def test_what_was_tried_fails_or_is_explained(number):
    counts, made = REPORTED[number], mutants(TASKS[number].solution)
    assert sum(counts.values()) >= min(LEAST, len(made))
    assert counts[Fate.HUNG] == 0
    explained = [mutant for mutant in made if str(mutant) in equivalent().get(number, {})]
    assert counts[Fate.PASSED] <= len(explained)


@pytest.mark.parametrize("number", equivalent())
def test_what_is_explained_is_a_mutant(number):
    made = {str(mutant) for mutant in mutants(TASKS[number].solution)}
    assert set(equivalent()[number]) <= made


@pytest.mark.slow
@pytest.mark.parametrize("number", SAMPLE)
def test_a_sample_fails_or_is_explained(number):
    task = TASKS[number]
    few = chosen(mutants(task.solution), 6)
    assert judged(number, zip(few, fates(task, few), strict=True)) == []


@pytest.mark.slow
def test_a_grade_that_asks_for_nothing_is_found_out():
    task = TASKS["1.1"]
    weak = task.solution.partition("book.grade")[0] + "book.Grade(True, ())"
    (first,) = chosen(mutants(task.solution), 1)
    (said,) = judged("1.1", [(first, *fates(task, [mutants(weak)[0]]))])
    assert said == f"1.1 passed: {first}"


def test_the_tasks_are_the_exercises():
    found = [exercises.exercises(notebooks.read_all(md)) for md in notebooks.chapters()]
    assert len(TASKS) == sum(map(len, found))
