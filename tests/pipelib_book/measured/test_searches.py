"""`pipelib_book.measured.searches`: the search beside brute force."""

import pytest

from pipelib_book.measured import searches


def group(complete=True, search=(20.0, 21.0, 22.0), brute=(20.0, 20.0, 20.0)):
    row = lambda us: [{"slots": 2}, "measured", 1.0, us, ""]
    return dict(
        problem=dict(kernel="softmax"),
        searched=2,
        space=4,
        complete=complete,
        search=dict(seconds=3.2, rows=[row([1.0]), row([])]),
        brute=dict(seconds=9.0, rows=[row([1.0]), row([2.0])]),
        contenders=dict(
            search=dict(burst_microseconds=search), brute=dict(burst_microseconds=brute)
        ),
    )


@pytest.mark.parametrize(("complete", "tail"), [(True, ""), (False, ", not all")])
def test_a_row_has_counts_seconds_and_the_ratio_of_medians(complete, tail):
    (row,) = searches.table([group(complete)]).splitlines()[2:]
    assert row == f"| softmax | 2 of 4 | 1 | 3 | 2{tail} | 9 | 20.0 | 21.0 | 1.050 |"


def test_a_part_that_was_not_compared_has_no_row():
    unfinished = group()
    unfinished["contenders"] = {}
    assert len(searches.table([group(), unfinished]).splitlines()) == 3
    assert searches.table([unfinished]).startswith("(The record has no search")


def test_groups_are_those_of_the_record(recorded):
    folders = recorded(search=dict(groups=[group()]))
    assert [each["space"] for each in searches.groups(folders)] == [4]
