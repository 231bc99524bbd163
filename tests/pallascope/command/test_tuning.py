"""`python -m pallascope tune`: what it prints, and what it exits with."""

import json
import pathlib

import jax
import pytest

from pallascope.command import tuning
from pallascope.tuning import ranking
from pallascope.tuning.results import Outcome
from pallascope.tuning.searching import INTERRUPTED
from pipelib.kernels.hopper import Gpu, assumed
from tests.pallascope.schema import validate

SOURCE = """
import functools
import grid_kernels

print("loaded too")
SPACE = [dict(fence=True), dict(fence=False)]

def kernel_of(fence, greedy=False, name=None):
    if greedy:
        return grid_kernels.greedy
    return grid_kernels.right if fence else grid_kernels.unfenced

def plain(x):
    return x + 1.0

def faulty():
    return 1 / 0
"""
CALL = "tune", "tuned_kernels.py:kernel_of", "f32[32,64]"


@pytest.fixture
def tune(folder, run):
    (folder / "tuned_kernels.py").write_text(SOURCE, "utf-8")
    return lambda *words: run(*CALL, *words)


def test_a_table_of_ranges(tune):
    status, out, err = tune("--range", "fence=true,false", "--range", "greedy=false,true")
    assert status == 0 and "predicting: 100%" in err
    lines = out.partition("fence  greedy")[2].splitlines()
    assert lines[0].split() == ["predicted", "us", "measured", "us", "bound", "outcome"]
    assert lines[1].split()[:2] == ["True", "False"] and lines[1].endswith("  predicted")
    assert any(line.startswith("Best: fence=True, greedy=False, by prediction:") for line in lines)
    assert any("fence=False, greedy=False: finding: missing-commit:" in line for line in lines)
    assert any("1 more: does not fit: resource: The block allocates" in line for line in lines)


def test_a_space_by_its_name_and_json(tune):
    words = "--space", "tuned_kernels.py:SPACE", "--expected", "tuned_kernels.py:plain"
    status, out, err = tune(*words, "--json", "--machine", "H100")
    document = json.loads(out)
    validate(document, "tune")
    (found,) = document["searches"]
    assert status == 0 and err.count("loaded too") == 1
    assert found["machine"] == "H100" and found["args"] == ["f32[32,64]"]
    assert found["best"]["config"] == {"fence": True}
    assert [trial["outcome"] for trial in found["trials"]] == ["predicted", "finding"]
    assert found["best"]["predicted_us"] > 0 and found["best"]["measured_us"] is None


def test_advice_on_the_best(tune):
    ranges = "--range", "fence=true,false", "--advise"
    _, out, _ = tune(*ranges)
    searched, _, advised = out.partition("cycles a block.")
    assert "Best: fence=True" in searched and "Bound: " in advised
    _, out, _ = tune(*ranges, "--json")
    document = json.loads(out)
    validate(document, "tune")
    assert document["searches"][0]["advice"] == []


def test_the_schema_lists_the_outcomes():
    """The document of a real search has few of them."""
    place = pathlib.Path(tuning.__file__).with_name("tune.schema.json")
    trial = json.loads(place.read_text("utf-8"))["$defs"]["trial"]
    assert trial["properties"]["outcome"]["enum"] == [*Outcome]


PROJECT = """
[[tool.pallascope.tune]]
function = "tuned_kernels.py:kernel_of"
args = ["f32[32,64]"]
range = ["fence=false"]
cache = "kept.db"

[[tool.pallascope.tune]]
function = "tuned_kernels.py:kernel_of"
args = ["f32[16,64]"]
space = "tuned_kernels.py:SPACE"
machine = "H100"

[[tool.pallascope.tune]]
function = "tuned_kernels.py:nowhere"
range = ["fence=true"]
"""


def test_the_searches_of_a_project(tune, run, folder, monkeypatch):
    (folder / "pyproject.toml").write_text(PROJECT, "utf-8")
    (folder / "within").mkdir()
    monkeypatch.chdir(folder / "within")
    status, out, err = run("tune")
    said = "tuned_kernels.py has no 'nowhere': it is not defined there."
    assert status == 2 and err.endswith(f"pallascope tune: {said}\n")
    first, second = out.partition("== tuned_kernels.py:kernel_of f32[16,64]\n")[::2]
    assert "== tuned_kernels.py:kernel_of f32[32,64]\n" in first
    assert "No configuration can be run." in first and "Best: fence=True" in second
    assert second.endswith("== tuned_kernels.py:nowhere\nloaded too\n")
    assert (folder / "kept.db").is_file(), "where pyproject.toml is, which names it"
    words = "--range", "fence=true", "--machine", "B200", "--cache", "mine.db"
    status, out, _ = run("tune", "--json", *words)
    document = json.loads(out)
    validate(document, "tune")
    searches = document["searches"]
    assert status == 2 and [found["machine"] for found in searches] == ["B200"] * 3
    assert [found["error"] for found in searches] == [None, None, said]
    assert [len(found["trials"]) for found in searches] == [1, 1, 0]
    assert (folder / "within" / "mine.db").is_file(), "where the command ran, whose word it is"


def test_nothing_that_can_run_exits_with_1(tune):
    status, out, _ = tune("--range", "fence=false")
    assert status == 1 and "No configuration can be run." in out


def test_an_interruption_exits_with_130_and_the_cache_goes_on(tune, folder, monkeypatch):
    words = "--range", "fence=true", "--range", "name=a,b", "--cache", "kept.db"
    looked, verify = [], ranking.verify

    def interrupted(*args, **options):
        looked.append(args)
        if len(looked) == 1:
            raise KeyboardInterrupt
        return verify(*args, **options)

    monkeypatch.setattr(ranking, "verify", interrupted)
    status, out, _ = tune(*words)
    assert status == tuning.STOPPED and INTERRUPTED in out
    assert tune(*words)[0] == 0 and len(looked) == 2, "one kernel for both names"
    assert tune(*words)[0] == 0 and len(looked) == 2
    assert (folder / "kept.db").is_file()


def test_processes_find_the_file(tune):
    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU here, on which it would run")
    with assumed(Gpu("NVIDIA H200", "9.0")):
        words = "--expected", "tuned_kernels.py:plain", "--measure", "1", "--jobs", "1"
        status, out, _ = tune("--range", "fence=true", *words)
    assert status == 1 and ": Only interpret mode is supported on CPU" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "there is no space to search: give --range name=value,value for each parameter of"),
        (("--range", "fence"), "'fence' is no range: write name=value,value, as slots=2,3,4."),
        (("--range", "fence="), "the range of fence has 0 values"),
        (("--range", "tile=1"), "cannot be called with tile=1 (missing a required argument"),
        (
            ("--range", "fence=1", "--space", "a:b"),
            "there are --space a:b and 1 of --range, and a search has one space: leave out one",
        ),
        (("--space", "tuned_kernels.py:NONE"), "tuned_kernels.py has no 'NONE': it is not defined"),
        (("--range", "fence=true", "--measure", "2"), "search: measure=2, but JAX runs on cpu"),
        (("--range", "fence=true", "--seconds", "0"), "search: seconds=0.0 is not above 0"),
    ],
)
def test_what_is_wrong_exits_with_2(tune, words, text):
    status, _, err = tune(*words)
    assert status == 2 and err.splitlines()[-1].startswith("pallascope tune: ") and text in err


def test_values_of_words():
    assert tuning._range("a=1,2.5,true,None,x") == ("a", [1, 2.5, True, None, "x"])
