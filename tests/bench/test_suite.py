"""`benchmarks.suite`, `turns`, `records`: what is measured when, what is kept, who imports whom."""

import ast
import dataclasses
import json
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

from benchmarks import collective, decode, grouped, noting, records, suite
from benchmarks.suite import Call, Part, Suite, Whole
from benchmarks.turns import InTurns, OneByOne
from pipelib.kernels.hopper import Gpu, assumed
from tests.bench.stand_ins import FACTS, Workers, dry_run, with_parts


class Size(NamedTuple):
    """How many numbers there are."""

    n: int

    def __str__(self):
        return f"{self.n} numbers"


SIZES = [Size(n) for n in (1, 2, 3, 4)]
MADE = {"right": lambda x: x, "wrong": lambda x: x + 1, "refuses": lambda x: 1 / 0}
COMPARED = Part(
    lambda problem, groups: MADE,
    InTurns(
        lambda problem: (jnp.zeros(problem.n),),
        lambda problem, args, name, made: float(abs(made(*args)).max()),
        0.5,
    ),
    suite.kinds(("refuses",), lambda problem: (problem.n,)),
    SIZES,
    Size,
)
APART = Part(
    lambda problem, groups: {"a": 1, "b": 2},
    OneByOne(lambda each: each, lambda each, compiled: dict(cycles=each + compiled), str),
    apart=True,
)
#: It stands for the script of one that there is.
SUITE = Suite("starts", {"compared": COMPARED, "apart": APART}, facts=dict(seed=7))


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Measures the suite, or another one; returns the record's groups."""

    def run(*words, made=SUITE):
        return records.read(dry_run(monkeypatch, tmp_path, made, *words))

    return run


def names(groups):
    return [
        suite.label(group["part"], SUITE.parts[group["part"]].of_group(group)) for group in groups
    ]


def test_all_parts_are_measured_if_none_is_named(measured, capsys):
    *compared, apart = measured()
    assert [group["problem"] for group in compared] == [size._asdict() for size in SIZES]
    run = compared[0]["run"]
    assert run["provenance"] == FACTS and run["seed"] == 7
    assert run["command"].startswith("python -m benchmarks.starts")
    assert apart["contenders"] == {"a": dict(cycles=2), "b": dict(cycles=4)}
    assert "  right" in capsys.readouterr().out


def test_what_is_wrong_or_refuses_is_not_timed(measured):
    (group,) = measured("compared", "--only", ":1")
    found = group["contenders"]
    assert found["right"] == dict(relative_error=0.0, burst_microseconds=[8.0] * 6)
    assert found["wrong"] == dict(relative_error=1.0, reason="wrong by more than 0.5")
    assert found["refuses"] == dict(reason="division by zero")
    text = SUITE.table(group)
    assert "8.0 us +-0.0%" in text and "wrong by more than 0.5" in text


@pytest.mark.parametrize(
    ("only", "sizes"), [("", SIZES), ("1:3", SIZES[1:3]), (":2", SIZES[:2]), ("3:", SIZES[3:])]
)
def test_some_problems_can_be_chosen(measured, only, sizes):
    assert names(measured("compared", "--only", only)) == [f"compared {size}" for size in sizes]


def call(tmp_path, **options):
    parser = SUITE._parser().parse_args(["--results", str(tmp_path)])
    for name, value in options.items():
        setattr(parser, name, value)
    return Call(SUITE, parser, {suite.OTHERS: Workers()})


def test_nothing_begins_when_the_time_is_over(tmp_path, capsys, monkeypatch):
    one = call(tmp_path, seconds=-1.0, only=":1")
    assert list(one.problems("compared", COMPARED)) == []
    assert f"no time left for {SIZES[0]}" in capsys.readouterr().out
    assert [*APART.measure(one, APART, Whole(), {"a": 1})] == []


def test_resuming_leaves_out_what_is_of_these_kernels(measured, tmp_path, monkeypatch):
    measured("compared", "--only", ":1")
    stale = []
    monkeypatch.setattr(noting, "stale", lambda path: stale)
    noting._stale_at_first.cache_clear()
    assert list(call(tmp_path, resume=True).problems("compared", COMPARED)) == SIZES[1:]
    assert list(call(tmp_path).problems("compared", COMPARED)) == SIZES
    stale.append(f"compared {SIZES[0]}, right")
    noting._stale_at_first.cache_clear()
    assert list(call(tmp_path, resume=True).problems("compared", COMPARED)) == SIZES
    noting._stale_at_first.cache_clear()


def test_what_is_stale_of_a_part_is_measured_anew_and_says_so(measured, monkeypatch):
    (first,) = measured("apart")
    monkeypatch.setattr(noting, "is_current", lambda path, name: name == "a")
    measure = OneByOne(lambda each: 0, lambda each, compiled: dict(cycles=0), str)
    (group,) = measured("apart", "--resume", made=with_parts(SUITE, apart=dict(measure=measure)))
    assert group["contenders"] == {"a": dict(cycles=2), "b": dict(cycles=0)}
    assert group["run"] == first["run"]
    assert [more["contenders"] for more in group["added"]] == [["b"]]


def test_digests_are_of_our_contenders_that_ran(measured):
    groups = measured()
    found = [each.name for each in SUITE.measurements(groups)]
    assert found == [*(f"compared {size}, right" for size in SIZES), "a", "b"]
    assert [each.args for each in SUITE.measurements(groups)][:2] == [(1,), (2,)]


def test_a_part_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SystemExit, match=r"benchmarks.starts has no part other\."):
        call(tmp_path, parts=["other"])


def test_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(Workers, "gpu", None)
    with pytest.raises(SystemExit, match="there is nothing to time"):
        call(tmp_path)


def test_a_command_takes_the_words_behind_it():
    told = []
    made = dataclasses.replace(SUITE, commands={"derive": lambda *words: told.append(words)})
    made.main(["derive", "a", "b"])
    assert told == [("a", "b")]


# Records.


def test_a_group_takes_the_place_of_the_same_problem_s(tmp_path):
    path = tmp_path / "gpu" / "matmul.json"
    for part, n, value in (("a", 64, 1), ("a", 128, 2), ("b", 64, 3), ("a", 64, 4)):
        records.put(path, dict(part=part, problem=dict(n=n), run={}, contenders={}, value=value))
    assert [group["value"] for group in records.read(path)] == [2, 3, 4]
    assert records.read(tmp_path / "none.json") == []


def test_a_record_has_a_contender_on_a_line():
    group = dict(part="pairs", problem={}, contenders={"a": dict(mhz=[1.0]), "b": {}}, run={})
    text = records.text(dict(groups=[group, group]))
    assert json.loads(text) == dict(groups=[group, group])
    assert text.splitlines()[2:4] == ['  "a": {"mhz": [1.0]},', '  "b": {}']


@pytest.mark.parametrize(
    "path", sorted(records.RESULTS.glob("*/*.json")), ids=lambda path: path.stem
)
def test_records_have_one_layout(path):
    """But for a trace of Chrome's, and times of plain Python."""
    record = json.loads(path.read_text("utf-8"))
    if path.stem not in ("profile", "schedule"):
        assert path.read_text("utf-8") == records.text(record) and record.keys() == {"groups"}
        for group in record["groups"]:
            assert {"part", "problem", "run", "contenders"} <= group.keys()
            assert {"command", "provenance"} <= group["run"].keys()


# Contenders.


#: Ours also as they are divided otherwise, and on devices that are not here.
LOWERED = [
    *((decode, problem) for problem in (decode.PROBLEMS[0], decode.PROBLEMS[-1])),
    *((grouped, problem) for problem in grouped.PROBLEMS[::10]),
    *((collective, problem) for problem in collective.PROBLEMS[::4]),
]


@pytest.mark.parametrize(("module", "problem"), LOWERED, ids=lambda each: str(each)[:60])
def test_ours_lower(module, problem):
    with assumed(Gpu("NVIDIA H200", "9.0")):
        for name, contender in module.contenders(problem).items():
            if name.partition(",")[0] == module.OURS:
                traced = jax.jit(contender).trace(*problem.args)
                assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


# Who imports whom.


def imported(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_benchmarks_know_no_tools_and_their_foundation_no_suite():
    folder = pathlib.Path(suite.__file__).parent
    of = {path.stem: {*imported(path)} for path in folder.glob("*.py")}
    for name, found in of.items():
        assert not [each for each in found if each.split(".")[0] in ("tools", "tests")], name
    foundation = {"records", "noting", "peers", "suite", "turns", "processes"}
    for name in foundation:
        inside = {each.split(".")[1] for each in of[name] if each.startswith("benchmarks.")}
        assert inside <= foundation, name
