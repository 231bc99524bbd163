"""`progress`: what a reader has passed is kept, shown, and never in the way of a grade."""

import json

import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib_book as book
from pipelib_book import progressing as module


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(module.VARIABLE, str(tmp_path / "new" / "data"))
    return tmp_path / "new" / "data"


def passed():
    return set(book.progress().passed)


def test_nothing_is_passed_at_first(folder):
    assert book.progress().passed == {} and not folder.exists()


def test_what_is_passed_is_kept_with_its_first_day(folder):
    module.note("7.2")
    kept = json.loads((folder / "passed.json").read_text())
    (folder / "passed.json").write_text(json.dumps(dict.fromkeys(kept, "2026-01-02")))
    module.note("7.2")
    module.note("8.1")
    found = book.progress().passed
    assert found["7.2"] == "2026-01-02" and set(found) == {"7.2", "8.1"}


def test_it_shows_each_chapter():
    shown = book.Progress((("1.1", "A"), ("1.2", "B"), ("2.1", "C")), {"1.2": "2026-01-02"})
    assert repr(shown) == (
        "1 of 3 exercises passed.\nchapter 1: 1.1 open, 1.2 passed\nchapter 2: 2.1 open"
    )
    assert shown._repr_markdown_().splitlines()[2:] == [
        "| chapter | exercises |",
        "| ---: | --- |",
        "| 1 | · 1.1 A<br>✓ 1.2 B |",
        "| 2 | · 2.1 C |",
    ]


def test_a_folder_that_cannot_be_written_to_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(module.VARIABLE, str(tmp_path / "file"))
    module.note("7.2")
    assert passed() == set()


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_file_is_said(folder, text):
    folder.mkdir(parents=True)
    (folder / "passed.json").write_text(text)
    with pytest.raises(ValueError, match=r"passed.json cannot be read \(.*\), so the exercises"):
        book.progress()


def add_one(x):
    def kernel(x_gmem, o_gmem, x_smem, loaded):
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
        plgpu.barrier_wait(loaded)
        x_smem[...] += 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()]
    return plgpu.kernel(kernel, out_type=x, scratch_types=scratch)(x)


def test_a_grade_notes_what_passes_alone():
    x = jnp.ones((4, 128))
    with plgpu.force_gpu_interpret_mode():
        assert not book.grade(add_one, x, expected=x, exercise="1.1").passed
        assert passed() == set()
        assert book.grade(add_one, x, expected=x + 1, exercise="1.2").passed
        assert passed() == {"1.2"}
        with pytest.raises(ValueError) as refusal:
            book.grade(add_one, x, expected=x + 1, exercise="seven")
    assert str(refusal.value) == (
        "exercise= is 'seven', which is no number of an exercise, so nobody could find it again:"
        ' give the chapter and the place in it, such as "7.2".'
    )
