"""The chapters: executed top to bottom, in step, published as recorded."""

import copy

import nbformat
import pytest

from pipelib_book import progressing
from tests.book.runs import RUN, executed, is_wrong
from tools import exercise_list, exercises, notebooks

CHAPTERS = [pytest.param(md, id=md.stem) for md in notebooks.chapters()]


def test_there_are_chapters():
    assert CHAPTERS


@pytest.mark.parametrize("md", RUN)
def test_chapter_runs_in_the_interpreter(md):
    notebook = copy.copy(executed(md))
    # JAX 0.11.2 prints a race that it detects, and goes on.
    assert races(notebook) == []
    notebook.cells = [cell for cell in notebook.cells if not is_wrong(cell)]
    found = exercises.exercises(notebook)
    verdicts = [
        [grade.splitlines()[0] for grade in exercises.graded(cell)]
        for exercise in found
        for cell in (exercise.skeleton, exercise.solution)
    ]
    assert verdicts == [["Not yet."], ["Passed."]] * len(found)


@pytest.mark.parametrize("md", CHAPTERS)
def test_a_skeleton_is_its_solution_without_lines(md):
    for exercise in exercises.exercises(notebooks.read_source(md)):
        skeleton, solution = exercise.skeleton, exercise.solution
        assert exercises.is_skeleton(skeleton.source, solution.source), skeleton.source
        assert "hide-cell" in solution.metadata.tags, solution.source


@pytest.mark.parametrize("md", CHAPTERS)
def test_exercises_tell_their_numbers(md):
    for place, exercise in enumerate(exercises.exercises(notebooks.read_source(md)), 1):
        number = f"{int(md.name[:2])}.{place}"
        assert exercises.NUMBER.findall(exercise.skeleton.source) == [number]
        # Whoever runs a whole chapter passes nothing: solutions are the book's.
        assert not exercises.NUMBER.findall(exercise.solution.source)


def test_the_kit_lists_the_exercises_of_the_book():
    listed = [(each.number, each.title) for each in progressing.all_exercises()]
    assert listed == exercise_list.rows(), "Run `python -m tools.exercise_list`."
    assert all(title for _, title in listed) and len(listed) >= 78


def races(notebook):
    """What race detection printed, by the source of the cell; wrong answers may race."""
    return [
        (cell.source, output.text)
        for cell in notebook.cells
        if cell.cell_type == "code" and not is_wrong(cell)
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


@pytest.mark.slow
@pytest.mark.parametrize("md", CHAPTERS)
def test_chapter_is_published_as_recorded(md, record_property):
    if notebooks.is_interpreted(md):
        record_property("table: interpreted so far (make record)", [md.name])
    found = notebooks.problems(md)
    if found:
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.parametrize("md", CHAPTERS)
def test_published_solutions_pass(md):
    """A grade's limits may depend on the GPU that runs the page: no answer may pass on some."""
    notebook = notebooks.read_published(md.with_suffix(".ipynb"))
    solutions = [cell for cell in notebook.cells if "solution" in cell.metadata.get("tags", [])]
    failed = [
        grade
        for cell in solutions
        for grade in exercises.graded(cell)
        if not grade.startswith("Passed.")
    ]
    if failed:
        pytest.fail("\n\n".join(failed), pytrace=False)
