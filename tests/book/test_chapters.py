"""The chapters: executed top to bottom, in step, published as recorded."""

import copy
import importlib.util
import re
import shlex
import shutil
import sys
import tomllib
import types

import nbformat
import pytest
from IPython.core import inputtransformer2
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from pipelib_book import progressing
from tests.book.runs import RUN, executed, is_wrong
from tools import execution, exercise_list, exercises, notebooks

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
        for cell in (exercise.skeleton, exercise.solution):
            number = f"{int(md.name[:2])}.{place}"
            assert re.findall(r'\bexercise="([^"]*)"', cell.source) == [number]


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


@pytest.mark.parametrize("md", CHAPTERS)
def test_chapter_is_published_as_recorded(md, record_property):
    if notebooks.is_interpreted(md):
        record_property("table: interpreted so far (make record)", [md.name])
    found = notebooks.problems(md)
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def first_cells():
    return {notebooks.code(notebooks.read_source(md))[0] for md in notebooks.chapters()}


def test_all_chapters_have_the_same_first_cell():
    (source,) = first_cells()
    assert "book.setup()" in source


def installed_in_colab(monkeypatch, *, has_gpu):
    """What pip is told by the first cell in a notebook of Colab that lacks pipelib."""
    told, namespace = [], {}

    def run_line_magic(name, line):
        assert name == "pip"
        told.extend(shlex.split(line.format(**namespace)))  # as IPython puts in variables

    shell = types.SimpleNamespace(run_line_magic=lambda name, line, **_: run_line_magic(name, line))
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if has_gpu else None)
    (source,) = first_cells()
    install = source.partition("import pipelib_book")[0]
    code = inputtransformer2.TransformerManager().transform_cell(install)
    namespace["get_ipython"] = lambda: shell
    exec(code, namespace)
    wanted = [Requirement(word) for word in told if word not in ("install", "--quiet")]
    return {requirement.name: requirement for requirement in wanted}


@pytest.mark.parametrize("has_gpu", [True, False])
def test_the_first_cell_installs_in_colab_the_jax_of_the_recordings(monkeypatch, has_gpu):
    wanted = installed_in_colab(monkeypatch, has_gpu=has_gpu)
    assert {*wanted} == {"jax", "pallas-pipelib", "pallas-pipelib-book"}
    url = "git+https://github.com/pallas-pipelib/pipelib"
    assert wanted["pallas-pipelib"].url == url
    assert wanted["pallas-pipelib-book"].url == f"{url}#subdirectory=pipelib_book"
    assert wanted["jax"].extras == ({"cuda12"} if has_gpu else set())
    (pin,) = wanted["jax"].specifier
    lock = (execution.ROOT / "requirements.txt").read_text()
    assert f"\njax=={pin.version}\n" in lock and pin.operator == "=="
    recorded = [kept["jax"] for md in notebooks.chapters() if (kept := notebooks.read_record(md))]
    assert {*recorded} <= {pin.version}


def test_colab_s_python_is_new_enough():
    """It is 3.13 since August 2026 (github.com/googlecolab/colabtools/issues/6081)."""
    project = tomllib.loads((execution.ROOT / "pyproject.toml").read_text())["project"]
    assert SpecifierSet(project["requires-python"]).contains("3.13.0")
