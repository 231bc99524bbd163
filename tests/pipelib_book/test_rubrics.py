"""`pipelib_book.rubric`: each judge's row, and that a kernel with a finding is never run."""

import functools

import jax
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib_book as book
from pallascope import verifying
from pallascope.bench import provenance, timing
from pipelib_book import rubrics
from pipelib_book.gallery import GALLERY

HAZARD = GALLERY["missing-commit"]
RIGHT, FAULTY = (functools.partial(HAZARD.kernel, fixed=fixed) for fixed in (True, False))


@pytest.fixture(scope="module")
def args():
    return HAZARD.arguments(np.random.default_rng(0), 1)


@pytest.fixture(scope="module")
def result(args):
    with plgpu.force_gpu_interpret_mode():
        return RIGHT(*args)


def rows(kernel, first, args, reference, tolerance=1e-6):
    with plgpu.force_gpu_interpret_mode():
        found = book.rubric(kernel, first, *args, reference=reference, tolerance=tolerance)
    return found.rows


def test_without_a_gpu_its_rows_are_open(args, result):
    found = rows(RIGHT, RIGHT, args, lambda *_: result)
    assert [row.judge for row in found] == [
        "checker",
        "result",
        "compiler",
        "simulator",
        "simulator",
        "GPU",
        "GPU",
    ]
    assert [row.met for row in found][:4] == [True, True, True, False]
    assert [row.met for row in found][5:] == [None, None]


def test_a_kernel_with_a_finding_is_not_run(args):
    def never(*_):
        raise AssertionError("it was run")

    (row,) = rows(FAULTY, RIGHT, args, never)
    assert row.met is False and row.found.startswith("missing-commit")


def test_a_wrong_result_is_not_met(args, result):
    assert [row.met for row in rows(RIGHT, RIGHT, args, lambda *_: result + 1)][1] is False


def test_a_kernel_that_jax_does_not_lower_is_not_met(args, result, monkeypatch):
    def refuses(*_):
        raise NotImplementedError("no such layout\nand more")

    monkeypatch.setattr(verifying, "lowered", refuses)
    row = rows(RIGHT, RIGHT, args, lambda *_: result)[2]
    assert not row.met and row.found.endswith(": no such layout")


def test_the_floor_is_bytes_over_bandwidth_where_nothing_multiplies(args):
    predicted = pallascope.predict(RIGHT, *args)
    arrays = jax.tree.leaves((args, jax.eval_shape(RIGHT, *args)))
    moved = sum(array.size * array.dtype.itemsize for array in arrays)
    floor = rubrics.floor_us(predicted, RIGHT, args, pallascope.H200)
    assert floor == pytest.approx(1e6 * moved / pallascope.H200.hbm_bytes_per_second)


def test_on_a_gpu_both_are_timed(args, result, monkeypatch):
    predicted = pallascope.predict(RIGHT, *args).us
    times = {"own": timing.Samples((predicted,) * 3), "plain": timing.Samples((3 * predicted,) * 3)}
    monkeypatch.setattr(provenance, "on_hopper", lambda: True)
    monkeypatch.setattr(timing, "measure", lambda *_, **__: times)
    faster, near = rows(RIGHT, RIGHT, args, lambda *_: result)[5:]
    assert faster.met and "3.00 times the speed" in faster.found
    assert near.met and near.found == "off by +0%"


def test_a_rubric_counts_what_is_met():
    marks = {"a": True, "b": False, "c": None}
    found = book.Rubric(tuple(rubrics.Row("x", name, "y", met) for name, met in marks.items()))
    assert str(found).endswith("| x | c | y | open |\n\n1 of 3 met, 1 open.")
    assert found._repr_markdown_() == str(found)
