"""SARIF: what code scanning needs of it, where its places are, and that alerts are known again."""

import json
import pathlib
import re

import pytest

from pallascope.command.sarif import sarif
from pallascope.report import FindingKind

X = "f32[32,64]"


def obj(*required, **properties):
    return {"type": "object", "required": [*required], "properties": properties}


def array(items, least=0):
    return {"type": "array", "items": items, "minItems": least}


# What SARIF 2.1.0 requires of these objects, and GitHub's code scanning besides.
TEXT = {"type": "string", "minLength": 1}
MESSAGE = obj("text", text=TEXT)
PLACE = obj(
    "uri", uri={"type": "string", "pattern": r"^[^\\ ]+$"}, uriBaseId={"const": "%SRCROOT%"}
)
REGION = obj("startLine", startLine={"type": "integer", "minimum": 1})
PHYSICAL = obj("artifactLocation", "region", artifactLocation=PLACE, region=REGION)
LOCATION = obj(
    "physicalLocation",
    physicalLocation=PHYSICAL,
    message=MESSAGE,
    id={"type": "integer", "minimum": 0},
)
LEVEL = {"enum": ["none", "note", "warning", "error"]}
RULE = obj(
    "id", "shortDescription", "fullDescription", "help", "defaultConfiguration",
    id=TEXT, name={"type": "string", "maxLength": 255, "pattern": "^[A-Za-z]+$"},
    shortDescription=MESSAGE, fullDescription=MESSAGE, help=obj("text", "markdown"),
    defaultConfiguration=obj("level", level=LEVEL),
)  # fmt: skip
RESULT = obj(
    "ruleId",
    "message",
    "locations",
    "partialFingerprints",
    ruleId={"enum": [*FindingKind]},
    message=MESSAGE,
    locations=array(LOCATION, 1),
    relatedLocations=array(LOCATION),
    level=LEVEL,
    partialFingerprints=obj("primaryLocationLineHash", primaryLocationLineHash=TEXT),
)
RUN = obj(
    "tool",
    "results",
    results=array(RESULT),
    tool=obj("driver", driver=obj("name", "rules", name=TEXT, rules=array(RULE))),
    invocations=array(obj("executionSuccessful", executionSuccessful={"type": "boolean"})),
)
DOCUMENT = obj("version", "runs", "$schema", version={"const": "2.1.0"}, runs=array(RUN, 1))


@pytest.fixture
def scan(run, folder):
    """Checks a kernel; returns the results of the file, which is as it has to be."""

    def scan(name, *options):
        status, _, _ = run("check", f"grid_kernels.py:{name}", X, *options, "--sarif", "a.sarif")
        found = json.loads((folder / "a.sarif").read_text("utf-8"))
        jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads what is required")
        jsonschema.Draft202012Validator(DOCUMENT).validate(found)
        (only,) = found["runs"]
        assert bool(only["results"]) == (status == 1)
        return only["results"]

    return scan


def place(location):
    physical = location["physicalLocation"]
    return physical["artifactLocation"], physical["region"]["startLine"]


def test_a_finding_is_a_result_with_its_places(scan):
    (result,) = scan("unfenced", "--block", "all")
    here = {"uri": "grid_kernels.py", "uriBaseId": "%SRCROOT%"}
    assert result["ruleId"] == "missing-commit"
    assert place(result["locations"][0]) == (here, 18)
    (other,) = result["relatedLocations"]
    assert place(other) == (here, 15) and other["message"]["text"].startswith("write writes s[")
    text = result["message"]["text"]
    assert "no commit_smem stands between" in text and "Call commit_smem after the" in text
    assert "[the other access, line 15](1)" in text and other["id"] == 1
    assert re.findall(r"\]\((\d+)\)", text) == ["1"]
    assert text.endswith("1 finding in block (0,) of grid (4,) (10 ops of 1 thread checked))")


def test_nothing_found_is_a_run_without_results(scan):
    assert scan("right") == []


def test_a_fault_between_blocks(scan):
    race, bare = scan("overlapping", "--block", "all")
    assert (race["ruleId"], bare["ruleId"]) == ("race", "unwritten-output")
    assert place(race["locations"][0])[1] == 18


def test_what_is_at_no_line_is_where_the_function_begins(scan):
    source = pathlib.Path("grid_kernels.py").read_text().splitlines()
    results = scan("greedy")
    assert [result["ruleId"] for result in results] == ["resource"]
    here, line = place(results[0]["locations"][0])
    assert source[line - 1] == "def greedy(x):" and here["uri"] == "grid_kernels.py"


def fingerprints(results):
    return [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]


def test_lines_may_move(scan, folder):
    before = scan("unfenced")
    file = folder / "grid_kernels.py"
    text = file.read_text("utf-8")
    file.write_text("# one more\n\n" + text, "utf-8")
    after = scan("unfenced")
    assert fingerprints(after) == fingerprints(before)
    assert place(after[0]["locations"][0])[1] == place(before[0]["locations"][0])[1] + 2
    file.write_text(text.replace("s[...] = s[...] + 1.0", "s[...] = s[...] + 2.0"), "utf-8")
    assert fingerprints(scan("unfenced")) != fingerprints(before)


def test_places_are_relative_to_the_root_of_the_repository(run, folder, monkeypatch):
    below = folder / "a b"
    below.mkdir()
    (folder / "grid_kernels.py").rename(below / "grid_kernels.py")
    monkeypatch.chdir(below)
    run("check", "grid_kernels.py:unfenced", X, "--sarif", "a.sarif")
    (only,) = json.loads((below / "a.sarif").read_text("utf-8"))["runs"]
    assert place(only["results"][0]["locations"][0])[0]["uri"] == "a%20b/grid_kernels.py"


def test_a_file_outside_of_the_repository_has_its_whole_address(tmp_path):
    op = dict(kind="read", what="read", file=str(tmp_path / "k.py"), line=3, source="a")
    finding = dict(kind="race", cause="a", remedy="b", where=None, ops=[op])
    checks = [
        dict(function="m:f", error=None, grid=None, reports=[dict(findings=[finding], verdict="v")])
    ]
    inside = tmp_path / "repository"
    inside.mkdir()
    (result,) = sarif(checks, inside)["runs"][0]["results"]
    assert place(result["locations"][0]) == ({"uri": (tmp_path / "k.py").as_uri()}, 3)


def test_there_is_a_rule_for_each_kind_with_its_words(tmp_path):
    rules = sarif([], tmp_path)["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [*FindingKind]
    for rule, kind in zip(rules, FindingKind, strict=True):
        assert rule["shortDescription"]["text"] == kind.fault
        assert rule["fullDescription"]["text"] == f"{kind.fault} {kind.effect}"
