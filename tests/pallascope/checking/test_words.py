"""Detectors give facts; `facts` alone makes sentences of them. `test_check` has the texts."""

import ast
import dataclasses
import pathlib

import pytest

from pallascope import check
from pallascope.checking import facts
from pallascope.checking.check import _DETECTORS
from pallascope.checking.detector import Detector
from pallascope.checking.facts import (
    barriers,
    left_out,
    memory,
    races,
    resources,
)
from pallascope.program import Region
from pallascope.report import Finding, FindingKind
from tests.pallascope import build

FACTS = pathlib.Path(facts.__file__).parent
LOAD, STORE, WAIT = build.load(0, 0), build.store(0, 0), build.wait(build.PRODUCED)
PROGRAM = build.program([LOAD, WAIT, build.read(0)])
SMEM = build.BUFFERS[build.SMEM]
SHARED = dataclasses.replace(LOAD, collective=("x",), whole=(*LOAD.reads, *LOAD.writes))
REGISTERS = build.just("registers", registers=40, action="increase")
REDUCTION = build.just("compute", scratch=0)
CLASH = facts.Clash(coming=((0, 1),))
FAULTS = [
    races.Race(LOAD, STORE, SMEM, True, False, CLASH),
    races.MissingCommit(STORE, build.write(0), SMEM, False, True),
    memory.Uninitialized(STORE, SMEM),
    memory.LostWrite(build.write(0), SMEM, is_useful=False),
    memory.Outliving(STORE, None),
    races.EarlyAccess(LOAD, build.BUFFERS[build.GMEM], False, None, CLASH),
    memory.MixedTile(SHARED, SHARED),
    races.SharedScratch(REDUCTION, REDUCTION, CLASH),
    races.LanesRace(LOAD, build.read(0), SMEM, True, False, CLASH),
    memory.OutsideView(LOAD, Region(build.SMEM, ((2, 3), (0, 8)), view=((0, 2), (0, 8))), 0),
    memory.OutsideBuffer(LOAD, build.at(build.SMEM, 7), 0),
    memory.OutsideBarriers(WAIT),
    memory.BeyondArray(LOAD, build.at(build.GMEM, 64), 0),
    barriers.EarlyArrival(LOAD, LOAD, 0, 0, 1, 1, bytes_missing=True, clash=CLASH),
    barriers.LappedWait(WAIT, LOAD, 0, 0, 1, CLASH),
    barriers.IncompletePhase((LOAD,), 0, 0, 1, 2),
    barriers.UnawaitedLoad(LOAD, 0, 0),
    barriers.EarlyExit(LOAD, 0, 0, 1, CLASH),
    barriers.TakenBarrier(build.arrive(0), 1),
    barriers.Deadlock((barriers.Stuck(WAIT, 0, 1, (LOAD,)),), CLASH),
    races.BlocksRace(STORE, STORE, build.BUFFERS[build.OUT], True, True, (PROGRAM, PROGRAM)),
    memory.UnwrittenOutput(build.at(build.OUT, 3)),
    resources.TooLarge("blocks a cluster", (3, 6)),
    resources.TooMuchMemory(232_448),
    resources.TooManyColumns(512),
    resources.TooManyRegisters((240, 240), 168),
    resources.WrongWay(REGISTERS, 168),
    resources.TooManyBarriers(0, 32),
    resources.Spill(0, 300, 255),
]
REMARKS = [
    left_out.Truncated(),
    left_out.Unchecked(),
    left_out.Trusted(("mma",)),
    left_out.Tested(),
    memory.Overwritten("k.py:1", "ring", False, 2),
    memory.Unwritten(Region(build.OUT, ((0, 1), (0, build.WIDTH)))),
    memory.Unused("k.py:1", "acc", True, 2),
    memory.Unplaced("k.py:1", "x", 2),
    memory.HandedOver("k.py:1", "x", ("semaphore.0",)),
    resources.Absent("k.py:1", 1, 132, 140),
    left_out.Signalled(("semaphore.0",)),
    barriers.Unobserved(build.CONSUMED, 2),
    memory.Overshoot("load", "k.py:1", "x", 2),
    races.BlocksMeet(("k.py:1", None), "out", True, 2),
    races.EarlySignal("k.py:1", "out", None),
    races.SharedScratchPerhaps("k.py:1", None),
    races.LanesRacePerhaps("k.py:1", None, "ring"),
]


def of_all(base):
    """The names of the classes that are made: those below a base that have no class below them."""
    below = base.__subclasses__()  # a class with slots is there twice, by one name
    return {name for each in below for name in of_all(each)} if below else {base.__name__}


def names(classes):
    return {each.__name__ for each in classes}


def test_every_fact_and_every_detector_is_here():
    assert names(map(type, FAULTS)) == of_all(facts.Fault)
    assert names(map(type, REMARKS)) == of_all(facts.Remark)
    assert names(_DETECTORS) == of_all(Detector)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_every_fault_has_words(fault):
    found = fault.finding(PROGRAM)
    assert isinstance(found, Finding) and found.kind in FindingKind and found.count == 1
    assert found.cause.endswith(".") and found.remedy.endswith(".")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_every_fault_with_a_clash_has_its_moment_in_words(fault):
    assert isinstance(fault, facts.Fleeting) == hasattr(fault, "clash")
    if isinstance(fault, facts.Fleeting):
        said = fault.moment(PROGRAM)
        assert said.endswith(".") and (said[0].islower() or said.startswith("`"))


@pytest.mark.parametrize("remark", REMARKS, ids=lambda remark: type(remark).__name__)
def test_every_remark_has_words(remark):
    assert remark.note(PROGRAM).endswith(".")
    if hasattr(remark, "line"):
        assert "None" not in dataclasses.replace(remark, line=None).note(PROGRAM)


def test_a_fact_without_words_cannot_be_made():
    for base in (facts.Fault, facts.Fleeting, facts.Remark):
        with pytest.raises(TypeError, match="abstract method"):
            type("New", (base,), {})()


def sentences(source):
    """Texts with a space in them, but for docstrings and what a caller's mistake is told."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and " " in node.value
        and id(node) not in docs
    ]


def test_no_detector_makes_a_sentence():
    for path in FACTS.parent.glob("*.py"):
        assert sentences(path.read_text("utf-8")) == [], path.name
    assert sum(len(sentences(path.read_text("utf-8"))) for path in FACTS.glob("*.py")) > 50
    assert sentences('"""Doc string."""\nraise ValueError("two words")') == ["two words"]


def test_the_same_fault_at_other_steps_is_counted():
    loads = [build.load(step, 0, line="k.py:1") for step in range(3)]
    (misuse,) = (f for f in check(build.program(loads)) if "meant for its phase" in f.cause)
    assert (misuse.count, misuse.ops[0].phase) == (2, 1)
