"""`tools.exercises`: which cells belong to an exercise, and what its answer is."""

import nbformat
import pytest

from tools.exercises import exercises, graded, is_skeleton, missing_lines, without_wrong_answers

WRONG = "It waits for nothing.\n- wait(0)\nsays: race"


def notebook_of(*tags, wrong=WRONG, kind="raw"):
    cells = []
    for i, tag in enumerate(tags):
        make = nbformat.v4.new_code_cell
        if tag == "wrong" and kind == "raw":
            make = nbformat.v4.new_raw_cell
        source = wrong if tag == "wrong" else f"cell {i}"
        cells.append(make(source, metadata={"tags": [tag, "more"] if tag else []}))
    return nbformat.v4.new_notebook(cells=cells)


def test_cells_are_found_in_their_order():
    tags = "", "exercise", "", "solution", "wrong", "", "wrong", "exercise", "solution"
    first, second = exercises(notebook_of(*tags))
    assert (first.skeleton.source, first.solution.source) == ("cell 1", "cell 3")
    assert (second.skeleton.source, second.solution.source) == ("cell 7", "cell 8")
    assert [wrong.says for wrong in first.wrong] == ["race", "race"] and second.wrong == ()


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (
            ["exercise"],
            "'cell 0' is an exercise that stands in the wrong place: each exercise must",
        ),
        (["solution", "exercise"], "'cell 0' is a solution that"),
        (["exercise", "exercise"], "'cell 1' is an exercise that"),
        (["exercise", "solution", "solution"], "'cell 2' is a solution that"),
        (["wrong"], "'It waits for nothing.' is a wrong answer that stands"),
        (["exercise", "wrong", "solution"], "must be followed by its solution, and that by its"),
    ],
)
def test_a_cell_that_stands_wrong_is_an_error(tags, said):
    with pytest.raises(ValueError, match=said):
        exercises(notebook_of(*tags))


def test_a_wrong_answer_that_would_be_executed_is_an_error():
    notebook = notebook_of("exercise", "solution", "wrong", kind="code")
    with pytest.raises(ValueError, match="is in a code cell, so readers would meet it: make it a"):
        exercises(notebook)


def test_a_reader_s_chapter_has_no_wrong_answers():
    notebook = without_wrong_answers(notebook_of("", "exercise", "solution", "wrong", ""))
    assert [cell.source for cell in notebook.cells] == ["cell 0", "cell 1", "cell 2", "cell 4"]


SOLUTION = "def f(x):\n    # Load.\n    load(x)\n    wait(x)  # now\n    return x\n"


@pytest.mark.parametrize(
    ("skeleton", "holds"),
    [
        ("def f(x):\n    load(x)\n    ...  # your line\n    return x\n", True),
        ("def f(x):\n    # Both.\n    ...\n    return x\n", True),
        (SOLUTION, False),  # nothing is left to do
        ("def f(x):\n    load(x)\n    return x\n", False),  # where?
        ("def f(x):\n    wait(x)\n    load(x)\n    ...\n", False),  # another order
        ("def f(x):\n    other(x)\n    ...\n    return x\n", False),
    ],
)
def test_a_skeleton_lacks_lines_only(skeleton, holds):
    assert is_skeleton(skeleton, SOLUTION) is holds


def test_the_answer_is_what_the_skeleton_lacks():
    skeleton = "wait(0)\n...  # your line\nend(x)\n...\n"
    solution = "wait(0)\nwait(0)\nend(x)  # now\nload(x)  # then\n"
    assert missing_lines(skeleton, solution) == ["wait(0)", "load(x)"]


ANSWER = """\
for k in range(6):
    plgpu.wait_smem_to_gmem(2, wait_read_only=True)
    if k > 1:
        pl.when(k + 1 < 8)(lambda: load(k + 1))
    options["delay_release"] = 1
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Call wait_smem_to_gmem(2, wait_read_only=True).", 1),
        ("at `plgpu.wait_smem_to_gmem(2,  wait_read_only=True)`", 1),
        ("you may load(k+1) there", 1),
        ("set options['delay_release'] = 1", 1),
        ("no wait_smem_to_gmem after it covers it: 2 may be unfinished", 0),
        ("for k in range(6) it is", 0),  # the skeleton has that
    ],
)
def test_what_reveals_the_answer_is_found(text, found):
    notebook = notebook_of("exercise", "solution")
    notebook.cells[0].source = "for k in range(6):\n    ...  # your lines\n"
    notebook.cells[1].source = ANSWER
    (exercise,) = exercises(notebook)
    parts = {"".join(part.split()).replace("plgpu.", "") for part in exercise.reveals(text)}
    assert len(parts) == found, parts


def test_the_grades_of_a_cell_are_what_it_shows():
    cell = nbformat.v4.new_code_cell("grade()")
    for shown in ("Not yet.\n- Wrong.", "a figure"):
        data = {"text/plain": shown}
        cell.outputs.append(nbformat.v4.new_output("display_data", data=data))
    assert graded(cell) == ["Not yet.\n- Wrong."]
