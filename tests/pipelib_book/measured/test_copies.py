"""`pipelib_book.measured.copies`: what probes of copies found, for chapter 4."""

import pallascope
from pipelib_book.measured import copies


def numbers(table):
    rows = (line.strip("| ").split(" | ") for line in table.splitlines()[2:])
    return [[*map(int, row)] for row in rows]


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


def test_what_is_not_in_the_record_has_no_row(recorded):
    folders = recorded(machine={"probes": {"store 1024 bytes, read": {"cycles": [1.0]}}})
    assert "has no probe of copies" in copies.stores_table(folders)
