"""`pipelib_book.measured.foreign`: the checker on kernels that others wrote, as tables."""

import json

import pytest

from pipelib_book.measured import foreign

MADE = {"JAX 1, tests": {"counts": {"lowered": 2, "traced": 2}, "findings": []}}


def test_the_record_is_read_where_it_is_first(tmp_path):
    path = tmp_path / "foreign.json"
    path.write_text(json.dumps(MADE))
    assert foreign.read((tmp_path / "none.json", path)) == MADE
    with pytest.raises(FileNotFoundError, match=r"There is no .*none\.json, so"):
        foreign.read((tmp_path / "none.json",))


def test_the_project_s_own_record_is_there():
    projects = dict.fromkeys(name.split()[0] for name in foreign.in_order(foreign.read()))
    assert list(projects) == ["jax-linear-attention", "tokamax", "JAX"]


def test_a_fault_of_a_whole_kernel_stands_where_the_kernel_begins():
    of = lambda lines, kernel, verdict="fault": dict(
        kind="resource", count=2, verdict=verdict, lines=lines, kernel=kernel
    )
    findings = [
        of([], "lib/large.py:3 body"),
        of(["lib/large.py:9"], "lib/other.py:1 body"),
        of([], "tests/large_test.py:3 body"),
        of([""], "lib/harmless.py:3 body", "true, and harmless"),
    ]
    sources = {"made 1, tests": dict(MADE["JAX 1, tests"], findings=findings)}
    assert foreign.places_table(sources).splitlines()[2:] == [
        "| `large.py` | fault | made 1: 4 resource |"
    ]
