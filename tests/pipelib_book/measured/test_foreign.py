"""`pipelib_book.measured.foreign`: the checker on kernels that others wrote, as tables."""

import json

import pytest

from pipelib_book.measured import foreign


def group(count, kind, verdict, line):
    return {"count": count, "kind": kind, "verdict": verdict, "lines": [line]}


MADE = {
    "JAX 1, guides": {
        "counts": {"lowered": 1007, "traced": 1006, "refused": 1},
        "findings": [
            group(3, "race", "fault", "docs/a.md:7"),
            group(1, "race", "fault", "docs/a.md:9"),
            group(2, "deadlock", "fault", "docs/a.md:9"),
            group(2, "race", "true, and harmless", ""),
            group(5, "deadlock", "fault", "tests/c.py:1"),
        ],
    },
    "JAX 1, tests": {"counts": {"lowered": 2, "traced": 2}, "findings": []},
    "JAX 2, guides": {
        "counts": {"lowered": 1, "traced": 1},
        "findings": [group(1, "race", "fault", "docs/a.md:7")],
    },
    "tokamax 3": {
        "counts": {"lowered": 1, "traced": 1},
        "findings": [group(1, "race", "fault by the letter of PTX", "t.py:1")],
    },
}


def test_a_project_has_a_row_for_each_version():
    assert foreign.projects_table(MADE).splitlines()[2:] == [
        "| tokamax 3 | 1 | 0 | 1 | 0 | 0 | 0 |",
        "| JAX 1 | 1,008 | 11 | 0 | 2 | 0 | 0 |",
        "| JAX 2 | 1 | 1 | 0 | 0 | 0 | 0 |",
    ]


def test_a_fault_that_is_in_no_test_has_its_place():
    assert foreign.places_table(MADE).splitlines()[2:] == [
        "| `t.py` | fault by the letter of PTX | tokamax 3: 1 race |",
        "| `a.md` | fault | JAX 1: 4 race, 2 deadlock; JAX 2: 1 race |",
    ]


def test_the_record_is_read_where_it_is_first(tmp_path):
    path = tmp_path / "foreign.json"
    path.write_text(json.dumps(MADE))
    assert foreign.read((tmp_path / "none.json", path)) == MADE
    with pytest.raises(FileNotFoundError, match=r"There is no .*none\.json, so"):
        foreign.read((tmp_path / "none.json",))


def test_the_project_s_own_record_is_there():
    assert "tokamax" in next(iter(foreign.in_order(foreign.read())))
