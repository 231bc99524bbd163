"""A chapter's run in the interpreter, once for all tests of a process that look at it.

The wrong answers to an exercise run too, before its solution, as those of a reader would: so the
solution must pass after them.
"""

import functools

import nbformat
import pytest

from tools import execution, exercises, notebooks

#: The chapters, for tests of their runs: those of one chapter are for one process.
RUN = [
    pytest.param(
        md, id=md.stem, marks=[pytest.mark.slow, pytest.mark.xdist_group(f"run of {md.stem}")]
    )
    for md in notebooks.chapters()
]


@functools.cache
def executed(md):
    """A chapter's cells after a run; a test fails if they do not come to their end."""
    notebook = notebooks.read_all(md)
    found = exercises.exercises(notebook)
    exercises.without_wrong_answers(notebook)
    for exercise in found:
        place = notebook.cells.index(exercise.solution)
        notebook.cells[place:place] = [
            wrong_cell(wrong.applied(exercise.solution.source)) for wrong in exercise.wrong
        ]
    try:
        execution.execute(notebook, md.name, **execution.ON_CPU)
    except notebooks.ChapterError as error:
        pytest.fail(str(error), pytrace=False)
    return notebook


def wrong_cell(source):
    """A cell with a wrong answer; if it raises an error, the chapter goes on."""
    tags = [exercises.WRONG, "raises-exception"]
    return nbformat.v4.new_code_cell(source, metadata={"tags": tags})


def is_wrong(cell):
    """Whether a cell has a wrong answer."""
    return exercises.WRONG in cell.metadata.get("tags", [])
