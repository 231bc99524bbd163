"""`pipelib_book.measured.outcomes`: records of hazards, in words."""

import json

import pytest

from pipelib_book.measured.outcomes import Outcomes

RIGHT = dict(outcome="nothing", wrong=[0, 0], error=[0.0, 0.0])
RACE = dict(race="read by `f` and write by `g`", end="wrong", text="")


def outcomes(faulty=RIGHT, *jax):
    gpu = {"provenance": {"gpu": "NVIDIA H200"}, "hazards": {"x": {"faulty": faulty}}}
    versions = enumerate(jax or (RACE,))
    records = [{"provenance": {"jax": f"0.{i}"}, "hazards": {"x": found}} for i, found in versions]
    return Outcomes(gpu, tuple(records))


def ended(outcome, text):
    return dict(outcome=outcome, wrong=[], error=[], text=text)


@pytest.mark.parametrize(
    ("faulty", "words", "short"),
    [
        (RIGHT, "nothing seen: right in all of 2 runs.", "nothing seen"),
        (
            dict(outcome="wrong", wrong=[0, 3, 9], error=[0.0, 2.0, 12.5]),
            "wrong in 2 of 3 runs; the largest error was 12.5.",
            "wrong",
        ),
        (
            dict(outcome="wrong", wrong=[1], error=[None]),
            "wrong in 1 of 1 runs; the largest error was not finite.",
            "wrong",
        ),
        (ended("hang", "no answer in 10 s"), "a hang (no answer in 10 s), ended from", "hang"),
        (ended("killed", "CUDA says no"), "ended by an error: `CUDA says no`.", "killed"),
        (ended("refused", "too big"), "refused by the compiler: `too big`.", "refused"),
    ],
)
def test_words_on_the_gpu(faulty, words, short):
    seen = outcomes(faulty)
    assert seen.gpu_name == "NVIDIA H200"
    assert seen.on_gpu("x").startswith(words)
    assert seen.row("x")[1] == short


def test_words_where_no_gpu_ran_them_yet():
    seen = outcomes()._replace(gpu=None)
    assert seen.gpu_name == "GPU" and seen.on_gpu("x") == "not yet run on a GPU."
    assert seen.row("x") == ("race", "not yet run")
    assert seen.runs() == "None of these kernels has run on a GPU yet."


def test_an_unknown_outcome_is_refused():
    with pytest.raises(ValueError, match="'odd' is no outcome"):
        outcomes(ended("odd", "")).on_gpu("x")


RAISED = dict(race=None, end="raised", text="ValueError: no.")
NOTHING = dict(race=None, end="wrong", text="")


@pytest.mark.parametrize(
    ("jax", "words", "short"),
    [
        ([RACE, RACE], "a race, read by `f` and write by `g`.", "race"),
        (
            [RACE, RAISED],
            "0.0: a race, read by `f` and write by `g`; 0.1: an error,",
            "race / error",
        ),
        ([RAISED], "an error, “ValueError: no”.", "error"),
        ([NOTHING], "nothing, and the result is wrong.", "nothing"),
        (
            [dict(race=None, end="hang", text="no end in 40 s")],
            "no answer: it hangs (no end in 40 s).",
            "hangs",
        ),
    ],
)
def test_words_on_the_interpreter(jax, words, short):
    seen = outcomes(RIGHT, *jax)
    assert seen.in_jax("x").startswith(words)
    assert seen.row("x")[0] == short


def test_records_are_read_where_they_are_first(tmp_path):
    gpu, *jax = outcomes()
    folder = tmp_path / "results"
    for name, record in (("nvidia-h200/hazards", gpu), ("interpreter/hazards-jax-0.0", *jax[0])):
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
    assert Outcomes.read((tmp_path / "none", folder)) == outcomes()
    gpu_path = folder / "nvidia-h200" / "hazards.json"
    gpu_path.rename(gpu_path.with_name("wild.json"))
    assert Outcomes.read((folder,)) == outcomes()._replace(gpu=None)
    assert Outcomes.read((folder,), "wild") == outcomes()._replace(jax=())
    with pytest.raises(FileNotFoundError, match=r"is in none of .*none, so"):
        Outcomes.read((tmp_path / "none",))
