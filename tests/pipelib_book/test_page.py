"""`pipelib_book.page`: the first findings, the number of the others, names for any reader."""

import pytest

import pallascope
import pipelib_book as book
from pipelib_book import page
from pipelib_book.gallery import GALLERY
from tests.players import packed

CELL = "/".join(["", "tmp", "ipykernel_12", "345.py"])


@pytest.mark.parametrize(
    ("number", "most", "said"),
    [
        (0, 1, []),
        (1, 1, ["a fault 0"]),
        (2, 1, ["a fault 0", "(1 more finding)"]),
        (4, 2, ["a fault 0", "a fault 1", "(2 more findings)"]),
        (2, 9, ["a fault 0", "a fault 1"]),
    ],
)
def test_the_first_are_shown_and_the_others_counted(number, most, said):
    assert page.first_findings((f"a fault {n}" for n in range(number)), most) == said


def test_cells_and_files_have_the_names_that_readers_know():
    assert page.first_findings([f"It is read at {CELL}:7."]) == ["It is read at cell:7."]


@pytest.mark.parametrize("most", [1, 2])
def test_a_report_keeps_its_notes_and_its_verdict(most):
    report = pallascope.check(GALLERY["one-release-of-two"].program(fixed=False))
    report = type(report)(report.program, report.findings, (f"{CELL}:9 is left out.",))
    *findings, more, note, verdict = page.report_text(report, most).split("\n\n")
    assert len(findings) == most
    assert more == f"({len(report) - most} more findings)"
    assert note == "note: cell:9 is left out."
    assert verdict == str(report).split("\n\n")[-1]
    whole = page.report_text(report)
    assert "more finding" not in whole and whole.count("\n\n") == len(report) + 1


def test_a_hazard_s_figure_counts_the_others_alike():
    report = pallascope.check(GALLERY["one-release-of-two"].program(fixed=False))
    assert len(report) > 2
    [data] = packed(str(book.play_hazard("one-release-of-two")))
    assert f" ({len(report) - 1} more findings)" in data
