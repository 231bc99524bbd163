"""Detectors give facts; `words` alone makes sentences of them. `test_check` has the texts."""

import ast
import dataclasses
import pathlib
import typing

import pytest

from pipelib.schedule import check
from pipelib.schedule.checking import facts, words
from pipelib.schedule.program import Region
from pipelib.schedule.report import Finding, FindingKind
from tests.schedule import build

pytestmark = pytest.mark.one_jax

CHECKING = pathlib.Path(words.__file__).parent
DETECTORS = (
    "bounds", "cells", "check", "clocks", "deadlock", "facts", "grid", "interleavings", "lanes",
    "launch", "leftover", "memory", "multicasts", "order", "playing", "reductions", "resources",
    "semaphores",
)  # fmt: skip
LOAD, STORE, WAIT = build.load(0, 0), build.store(0, 0), build.wait(build.PRODUCED)
PROGRAM = build.program([LOAD, WAIT, build.read(0)])
SMEM = build.BUFFERS[build.SMEM]
SHARED = dataclasses.replace(LOAD, collective=("x",), whole=(*LOAD.reads, *LOAD.writes))
REGISTERS = build.just("registers", registers=40, action="increase")
REDUCTION = build.just("compute", scratch=0)
CLASH = facts.Clash(coming=((0, 1),))
FAULTS = [
    facts.Race(LOAD, STORE, SMEM, True, False, CLASH),
    facts.MissingCommit(STORE, build.write(0), SMEM, False, True),
    facts.Uninitialized(STORE, SMEM),
    facts.LostWrite(build.write(0), SMEM, is_useful=False),
    facts.Outliving(STORE, None),
    facts.EarlyAccess(LOAD, build.BUFFERS[build.GMEM], False, None, CLASH),
    facts.MixedTile(SHARED, SHARED),
    facts.SharedScratch(REDUCTION, REDUCTION, CLASH),
    facts.LanesRace(LOAD, build.read(0), SMEM, True, False, CLASH),
    facts.OutsideBuffer(LOAD, build.at(build.SMEM, 7), 0),
    facts.OutsideBarriers(WAIT),
    facts.BeyondArray(LOAD, build.at(build.GMEM, 64), 0),
    facts.EarlyArrival(LOAD, LOAD, 0, 0, 1, 1, bytes_missing=True, clash=CLASH),
    facts.LappedWait(WAIT, LOAD, 0, 0, 1, CLASH),
    facts.IncompletePhase((LOAD,), 0, 0, 1, 2),
    facts.UnawaitedLoad(LOAD, 0, 0),
    facts.EarlyExit(LOAD, 0, 0, 1, CLASH),
    facts.TakenBarrier(build.arrive(0), 1),
    facts.Deadlock((facts.Stuck(WAIT, 0, 1, (LOAD,)),), CLASH),
    facts.BlocksRace(STORE, STORE, build.BUFFERS[build.OUT], True, True, (PROGRAM, PROGRAM)),
    facts.UnwrittenOutput(build.at(build.OUT, 3)),
    facts.TooMuchMemory(232_448),
    facts.TooManyColumns(512),
    facts.TooManyRegisters((240, 240), 168),
    facts.WrongWay(REGISTERS, 168),
    facts.TooManyBarriers(0, 32),
    facts.Spill(0, 300, 255),
]
REMARKS = [
    facts.Truncated(),
    facts.Unchecked(),
    facts.Trusted(("mma",)),
    facts.Tested(),
    facts.Overwritten("k.py:1", "ring", 2),
    facts.Unwritten(Region(build.OUT, ((0, 1), (0, build.WIDTH)))),
    facts.Unused("k.py:1", "acc", True, 2),
    facts.Unplaced("k.py:1", "x", 2),
    facts.Signalled(("semaphore.0",)),
    facts.Unobserved(build.CONSUMED, 2),
    facts.Overshoot("load", "k.py:1", "x", 2),
    facts.BlocksMeet(("k.py:1", None), "out", True, 2),
    facts.EarlySignal("k.py:1", "out", None),
    facts.SharedScratchPerhaps("k.py:1", None),
    facts.LanesRacePerhaps("k.py:1", None, "ring"),
]


def test_every_fact_is_here():
    assert [type(fault) for fault in FAULTS] == [*typing.get_args(facts.Fault)]
    assert [type(remark) for remark in REMARKS] == [*typing.get_args(facts.Remark)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_every_fault_has_words(fault):
    found = words.finding(PROGRAM, fault)
    assert isinstance(found, Finding) and found.kind in FindingKind and found.count == 1
    assert found.cause.endswith(".") and found.remedy.endswith(".")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_every_fault_with_a_clash_has_its_moment_in_words(fault):
    if facts.clash_of(fault) is None and type(fault) is not facts.Outliving:
        with pytest.raises(AssertionError, match="has no clash"):
            words.moment(PROGRAM, fault)
    else:
        said = words.moment(PROGRAM, fault)
        assert said.endswith(".") and (said[0].islower() or said.startswith("`"))


@pytest.mark.parametrize("remark", REMARKS, ids=lambda remark: type(remark).__name__)
def test_every_remark_has_words(remark):
    assert words.note(PROGRAM, remark).endswith(".")


@pytest.mark.parametrize("word", [words.finding, words.note])
def test_a_fact_without_words_is_an_error(word):
    with pytest.raises(AssertionError, match="but got: 'new'"):
        word(PROGRAM, "new")


def sentences(source):
    """Texts with a space in them, but for docstrings and what a caller's mistake is told."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        and " " in node.value and id(node) not in docs
    ]  # fmt: skip


def test_no_detector_makes_a_sentence():
    assert {path.stem for path in CHECKING.glob("*.py")} == {*DETECTORS, "words", "__init__"}
    for name in DETECTORS:
        assert sentences((CHECKING / f"{name}.py").read_text("utf-8")) == [], name
    assert len(sentences((CHECKING / "words.py").read_text("utf-8"))) > 50
    assert sentences('"""Doc string."""\nraise ValueError("two words")') == ["two words"]


def test_the_same_fault_at_other_steps_is_counted():
    loads = [build.load(step, 0, line="k.py:1") for step in range(3)]
    (misuse,) = (f for f in check(build.program(loads)) if "meant for its phase" in f.cause)
    assert (misuse.count, misuse.ops[0].phase) == (2, 1)
