"""Exercises of a chapter: the cells that belong to one, and what an answer to it lacks.

The model. An exercise is a cell tagged `exercise` with a skeleton, then one tagged `solution`, then
any number of raw cells tagged `wrong`, with answers that must fail (`tools.wrong_answers`). A
**skeleton** is its solution without some lines; in place of these it has lines of `...`. These
missing lines are the **answer**: what a grade says of another must not contain it.

Wrong answers are for tests alone: they stand in the `.md`, and in no notebook.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

from tools.wrong_answers import WrongAnswer, parse, without_comment

WRONG = "wrong"
_TAGS = "exercise", "solution", WRONG
#: Where a skeleton says which exercise it is.
NUMBER = re.compile(r'\bexercise="([^"]*)"')
# The same with the comma that is then too much: the one before it, or else the one after.
_UNNUMBERED = re.compile(r', exercise="[^"]*"|exercise="[^"]*",? ?')


@dataclass(frozen=True)
class Exercise:
    """A skeleton, its solution, and wrong answers."""

    skeleton: NotebookNode
    solution: NotebookNode
    wrong: tuple[WrongAnswer, ...] = ()

    def reveals(self, text: str) -> list[str]:
        """The parts of the answer that a text contains: lines, and calls in them.

        A line without a name, as a closing bracket, tells nothing.
        """
        said = _plain(text)
        lines = missing_lines(self.skeleton.source, self.solution.source)
        parts = dict.fromkeys(part for line in lines for part in _parts(line))
        telling = (part for part in parts if re.search(r"\w", part))
        return [part for part in telling if _plain(part) in said]


def exercises(notebook: NotebookNode) -> list[Exercise]:
    """The exercises of a chapter, in order.

    Raises:
      ValueError: a cell that does not follow the one it belongs to, or a wrong answer in a cell
        that is executed.
    """
    found: list[Exercise] = []
    skeleton = None
    for cell in notebook.cells:
        tag = _tag(cell)
        if tag == "exercise" and skeleton is None:
            skeleton = cell
        elif tag == "solution" and skeleton is not None:
            found.append(Exercise(skeleton, cell))
            skeleton = None
        elif tag == WRONG and skeleton is None and found:
            if cell.cell_type != "raw":
                raise ValueError(
                    f"The wrong answer {_first_line(cell)!r} is in a {cell.cell_type} cell, so"
                    " readers would meet it: make it a `{raw-cell}`."
                )
            last = found[-1]
            wrong = (*last.wrong, parse(cell.source))
            found[-1] = Exercise(last.skeleton, last.solution, wrong)
        elif tag:
            raise _misplaced(tag, cell)
    if skeleton is not None:
        raise _misplaced("exercise", skeleton)
    return found


def without_wrong_answers(notebook: NotebookNode) -> NotebookNode:
    """The chapter as readers get it; in place."""
    notebook.cells = [cell for cell in notebook.cells if _tag(cell) != WRONG]
    return notebook


def is_skeleton(skeleton: str, solution: str) -> bool:
    """Whether a skeleton is its solution without some lines; comments do not count."""
    kept, rest = _lines(skeleton), iter(_lines(solution))
    shown = [line for line in kept if line.strip() != "..."]
    is_part = all(line in rest for line in shown)  # each is looked for after the last
    return is_part and len(shown) < len(kept) and len(shown) < len(_lines(solution))


def missing_lines(skeleton: str, solution: str) -> list[str]:
    """The lines of a solution that its skeleton lacks."""
    return [*(Counter(_lines(solution)) - Counter(_lines(skeleton))).elements()]


def graded(cell: NotebookNode) -> list[str]:
    """The grades that a cell shows."""
    shown = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return [text for text in shown if text.startswith(("Passed.", "Not yet."))]


def _tag(cell: NotebookNode) -> str:
    """Which part of an exercise a cell is; empty if it is none."""
    return next((tag for tag in cell.metadata.get("tags", []) if tag in _TAGS), "")


def _misplaced(tag: str, cell: NotebookNode) -> ValueError:
    what = {"exercise": "an exercise", WRONG: "a wrong answer"}.get(tag, f"a {tag}")
    return ValueError(
        f"{_first_line(cell)!r} is {what} that stands in the wrong place: each exercise must be"
        " followed by its solution, and that by its wrong answers."
    )


def _first_line(cell: NotebookNode) -> str:
    return cell.source.partition("\n")[0]


def _lines(source: str) -> list[str]:
    """Lines of code, without the comments at their ends and without the exercise's number.

    Only a skeleton has the number, so that no pass is noted for the book's own solution.
    """
    lines = (without_comment(_UNNUMBERED.sub("", line)) for line in source.splitlines())
    return [line for line in lines if line.strip()]


def _parts(line: str) -> Iterator[str]:
    """A line of code, and the calls in it."""
    code = line.strip()
    yield code
    # What begins a block needs one.
    text = f"{code.removeprefix('el')} ..." if code.endswith(":") else code
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    yield from (ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _plain(text: str) -> str:
    """Text without what may differ where the same code is meant: modules' names and spaces."""
    return re.sub(r"\b(plgpu|pl|lax|jnp|jax|pipelib)\.|\s|\"|'", "", text)
