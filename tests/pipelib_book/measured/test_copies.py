"""`pipelib_book.measured.copies`: what probes of copies found, for chapters 3 and 4."""

import pytest

import pallascope
from pipelib_book.measured import copies


def numbers(table):
    rows = (line.strip("| ").split(" | ") for line in table.splitlines()[2:])
    return [[*map(int, row)] for row in rows]


def test_a_power_of_two_is_found_as_fast_as_it_is_carried():
    found = {slots: apart for slots, _, _, apart in numbers(copies.slots_table())}
    assert {*found} == {3, 4, 5, 6} and found[4] < min(found[n] for n in (3, 5, 6))


def test_a_store_is_written_when_it_has_read():
    found = numbers(copies.stores_table())
    assert [row[0] for row in found] == [1, 8, 16, 32] and all(row[3] <= 1 for row in found)


def test_a_waiter_that_has_only_begun_goes_on_sooner(tmp_path):
    rows = [
        line.strip("| ").split(" | ") for line in copies.costs_table(pallascope.H200).split("\n")
    ]
    cycles = {what: int(count) for what, count in rows[2:]}
    prompt, later = "if it has only just begun to wait", "until a waiter goes on"
    assert 0 < cycles[f"the same, {prompt}"] < cycles[f"a phase's end, {later}"]
    assert prompt not in copies.costs_table(pallascope.H200, (tmp_path,))


@pytest.mark.parametrize("table", [copies.slots_table, copies.stores_table])
def test_what_is_not_in_the_record_has_no_row(table, recorded):
    folders = recorded(machine={"probes": {"store 1024 bytes, read": {"cycles": [1.0]}}})
    assert "has no probe of copies" in table(folders)
