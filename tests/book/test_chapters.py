"""The chapters: executed top to bottom, in step, published as recorded."""

import pytest

from tools import notebooks

CHAPTERS = [
    pytest.param(md, id=md.stem) for md in notebooks.chapters()
]


def test_there_are_chapters():
    assert CHAPTERS


@pytest.mark.parametrize("md", CHAPTERS)
def test_chapter_runs_in_the_interpreter(md):
    try:
        notebooks.execute(
            notebooks.read_source(md), md.name, JAX_PLATFORMS="cpu"
        )
    except notebooks.ChapterError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.mark.parametrize("md", CHAPTERS)
def test_chapter_is_published_as_recorded(md):
    found = notebooks.problems(md)
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_all_chapters_have_the_same_first_cell():
    first = {
        notebooks.code(notebooks.read_source(md))[0]
        for md in notebooks.chapters()
    }
    assert len(first) == 1
    (source,) = first
    assert 'if "google.colab" in sys.modules' in source
    assert "%pip install" in source
    assert "book.setup()" in source
