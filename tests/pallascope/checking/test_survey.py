"""The survey of mutants: what its record holds, and that it says what the judges say."""

import json

import pytest

from pallascope import Report
from tests.pallascope.checking import survey
from tests.pallascope.checking.mutations import mutants
from tools.mutants import FOUND, HARMLESS, counts, read, why

ROWS = read()


def test_all_that_does_harm_is_found_and_at_least_500_of_each_class():
    found = {of: sum(verdicts[each] for each in FOUND) for of, verdicts in counts(ROWS).items()}
    assert {*found} == {*survey.CLASSES.values()}
    assert {of: number for of, number in found.items() if number < 500} == {}
    verdicts = {verdict for each in counts(ROWS).values() for verdict in each}
    assert verdicts <= {*FOUND, *HARMLESS, "not followed"}


def test_what_chance_alone_judges_has_a_reason():
    left = [name for row in ROWS for name, verdict in row["left"]]
    assert left and all(map(why, left))


def test_the_rows_are_of_kernels_that_there_are():
    assert {row["name"] for row in ROWS} <= {kernel.name for kernel in survey.kernels()}


@pytest.mark.parametrize(
    "name",
    [
        "by-hand/add_one",
        "constructs/named barrier",
        "semaphores/3 blocks in turns",
        "early/by-hand/add_one, thread 0 waits",
        "blackwell/2 steps, 1 slots",
    ],
)
def test_the_record_says_what_the_survey_says(name):
    (number,) = (i for i, kernel in enumerate(survey.kernels()) if kernel.name == name)
    (row,) = (row for row in ROWS if row["name"] == name)
    assert json.loads(json.dumps(survey.surveyed(number))) == row


def test_what_a_checker_does_not_find_is_missed():
    (kernel,) = (each for each in survey.kernels() if each.name == "by-hand/add_one")
    program = kernel.trace()
    (mutant,) = (m for m in mutants(program) if m.name.startswith("without wait barrier"))
    assert survey.verdict(program, mutant, Report(mutant.program, ())) == "missed"
