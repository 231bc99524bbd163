"""A report as JSON, held to the schema that is shipped with it."""

import json

import pytest

from pallascope import check, report
from pallascope.checking.grid import check_grid
from pallascope.report import FindingKind
from tests.pallascope import build
from tests.pallascope.schema import SCHEMA, closed


def validate(document):
    """Raises unless a report is as the schema says, with no field that the schema lacks."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schema")
    whole = {"$defs": closed(SCHEMA["$defs"]), "$ref": "#/$defs/report"}
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(whole).validate(document)


RACE = build.program(
    [build.load(0, 1, line="k.py:1"), build.read(1, line="k.py:2")], grid=(2, 3), block=(1, 2)
)


def test_a_report_is_as_its_schema_says():
    found = json.loads(check(RACE).to_json())
    validate(found)
    assert (found["format"], found["ok"]) == (2, False)
    assert found["program"] == {
        "name": "hand-made", "grid": [2, 3], "block": [1, 2], "cluster": [], "devices": [],
        "compared": None, "threads": 1, "ops": 2, "truncated": False,
    }  # fmt: skip
    race = next(finding for finding in found["findings"] if finding["kind"] == "race")
    assert (race["where"], race["slot"], race["count"], race["strict"]) == ("ring", 1, 1, False)
    assert [(op["kind"], op["file"], op["line"]) for op in race["ops"]] == [
        ("read", "k.py", 2),
        ("load", "k.py", 1),
    ]
    assert race["ops"][0]["what"] == "read reads ring[1, 0:8]"
    assert race["ops"][0]["block"] == [1, 2]
    assert found["verdict"] == check(RACE).verdict


def test_the_outermost_step_comes_first():
    op = build.read(0)
    program = build.program([build.just("commit_group"), op])
    program = build.replace(program, threads=((build.replace(op, step=(0, 7)),),))
    (finding,) = json.loads(check(program).to_json())["findings"]
    assert (finding["kind"], finding["ops"][0]["step"]) == ("uninitialized-read", [7, 0])
    assert (finding["ops"][0]["file"], finding["ops"][0]["line"]) == (None, None)


def test_the_report_on_a_grid_is_as_the_schema_says():
    programs = [build.program([build.store(0, 3)], block=(i,)) for i in range(2)]
    found = json.loads(check_grid(programs).to_json())
    validate(found)
    assert (found["program"]["compared"], found["program"]["block"]) == (2, None)
    assert [op["block"] for op in found["findings"][0]["ops"]] == [[1], [0]]


def test_the_schema_lists_the_kinds():
    assert SCHEMA["$defs"]["finding"]["properties"]["kind"]["enum"] == [*FindingKind]
    assert SCHEMA["properties"]["format"]["const"] == report.FORMAT


def test_a_document_that_is_not_so_is_refused():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schema")
    found = json.loads(check(RACE).to_json())
    for wrong in (found | {"format": 1}, found | {"new": 1}, {**found, "ok": "no"}):
        with pytest.raises(jsonschema.ValidationError):
            validate(wrong)
    order = found["findings"][0]["counterexample"]
    for wrong in (
        [order],
        order | {"ops": -1},
        order | {"turns": [order["turns"][0] | {"ops": 0}]},
    ):
        found["findings"][0]["counterexample"] = wrong
        with pytest.raises(jsonschema.ValidationError):
            validate(found)


def test_every_kind_says_what_is_wrong_and_what_comes_of_it():
    for kind in FindingKind:
        assert all(text[0].isupper() and text.endswith(".") for text in (kind.fault, kind.effect))
    assert len({kind.fault for kind in FindingKind}) == len(FindingKind)
