"""The chapters: executed top to bottom, in step, published as recorded."""

import nbformat
import pytest

from tools import notebooks

CHAPTERS = [
    pytest.param(md, id=md.stem) for md in notebooks.chapters()
]


def test_there_are_chapters():
    assert CHAPTERS


@pytest.mark.parametrize("md", CHAPTERS)
def test_chapter_runs_in_the_interpreter(md):
    notebook = notebooks.read_source(md)
    try:
        notebooks.execute(notebook, md.name, JAX_PLATFORMS="cpu")
    except notebooks.ChapterError as error:
        pytest.fail(str(error), pytrace=False)
    # JAX 0.11.2 prints a race that it detects, and goes on.
    assert races(notebook) == []
    graded = [tuple(map(grades, pair)) for pair in notebooks.exercises(notebook)]
    assert graded == [(["Not yet."], ["Passed."])] * len(graded)


def grades(cell):
    """The verdicts that a cell shows."""
    shown = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return [text.splitlines()[0] for text in shown if text.startswith(("Passed.", "Not yet."))]


@pytest.mark.parametrize("md", CHAPTERS)
def test_a_skeleton_is_its_solution_without_lines(md):
    for skeleton, solution in notebooks.exercises(notebooks.read_source(md)):
        assert notebooks.is_skeleton(skeleton.source, solution.source), skeleton.source
        assert "hide-cell" in solution.metadata.tags, solution.source


def races(notebook):
    """What race detection printed, by the source of the cell."""
    return [
        (cell.source, output.text)
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "RACE DETECTED" in output.get("text", "")
    ]


def test_a_printed_race_is_seen():
    output = nbformat.v4.new_output("stream", text="RACE DETECTED\n  write of")
    cell = nbformat.v4.new_code_cell("kernel(x)", outputs=[output])
    assert races(nbformat.v4.new_notebook(cells=[cell])) == [("kernel(x)", output.text)]


@pytest.mark.parametrize("md", CHAPTERS)
def test_code_fits_a_phone(md):
    source = "\n".join(notebooks.code(notebooks.read_source(md)))
    assert [line for line in source.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("md", CHAPTERS)
def test_chapter_is_published_as_recorded(md, record_property):
    if notebooks.is_interpreted(md):
        record_property("table: interpreted so far (make record)", [md.name])
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
