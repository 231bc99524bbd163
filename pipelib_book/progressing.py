"""`progress`: which of the book's exercises a reader has passed.

Chapters call it as `book.progress`.

The model. An exercise has a number: `7.2` is the second of chapter 7. When `grade` passes an answer
to it, `note` writes the number and the day into `passed.json`, in the folder that the environment
variable `PIPELIB_BOOK_DATA` names, or else in `~/.local/share/pipelib-book`. Nothing leaves the
reader's machine. The book's own solutions are graded without their number, so that running a whole
chapter passes nothing. `exercises.json`, beside this module, has all exercises and their titles;
`python -m tools.exercise_list` makes it from the chapters.

Not covered: a machine that forgets its files, as Colab's do; point the variable at a folder of
your Drive there.
"""

import datetime
import functools
import json
import os
import pathlib
import re
from importlib import resources
from typing import NamedTuple

VARIABLE = "PIPELIB_BOOK_DATA"


class Exercise(NamedTuple):
    """An exercise of the book: its number, such as "7.2", and its title."""

    number: str
    title: str

    @property
    def chapter(self) -> int:
        """The number of its chapter."""
        return int(self.number.partition(".")[0])


class Progress(NamedTuple):
    """All exercises, and on which day each of those that were passed was passed first.

    Example:
      >>> book.Progress((("1.1", "A ring"), ("1.2", "Two")), {"1.1": "2026-11-25"})
      1 of 2 exercises passed.
      chapter 1: 1.1 passed, 1.2 open
    """

    exercises: tuple[Exercise, ...]
    passed: dict[str, str]

    def __repr__(self) -> str:
        lines = [self._headline()]
        for chapter, found in self._chapters().items():
            said = [f"{n} {'passed' if n in self.passed else 'open'}" for n, _ in found]
            lines.append(f"chapter {chapter}: {', '.join(said)}")
        return "\n".join(lines)

    def _repr_markdown_(self) -> str:
        """A table for a notebook, a row for each chapter."""
        lines = [f"**{self._headline()}**", "", "| chapter | exercises |", "| ---: | --- |"]
        for chapter, found in self._chapters().items():
            said = [f"{'✓' if n in self.passed else '·'} {n} {title}" for n, title in found]
            lines.append(f"| {chapter} | {'<br>'.join(said)} |")
        return "\n".join(lines)

    def _headline(self) -> str:
        count = sum(number in self.passed for number, _ in self.exercises)
        return f"{count} of {len(self.exercises)} exercises passed."

    def _chapters(self) -> dict[int, list[Exercise]]:
        found: dict[int, list[Exercise]] = {}
        for exercise in map(Exercise._make, self.exercises):
            found.setdefault(exercise.chapter, []).append(exercise)
        return found


def progress() -> Progress:
    """Which exercises were passed on this machine.

    Raises:
      ValueError: the file that keeps them is damaged.

    Example:
      >>> book.progress().passed.keys() <= {each.number for each in book.progress().exercises}
      True
    """
    return Progress(all_exercises(), _read())


@functools.cache
def all_exercises() -> tuple[Exercise, ...]:
    """The book's exercises, in its order."""
    text = resources.files(__package__).joinpath("exercises.json").read_text("utf-8")
    return tuple(Exercise(*each) for each in json.loads(text))


def expect_exercise(number: str) -> None:
    """Raises ValueError if a text is neither empty nor the number of an exercise."""
    if number and not re.fullmatch(r"\d+\.\d+", number):
        raise ValueError(
            f"exercise= is {number!r}, which is no number of an exercise, so nobody could find it"
            ' again: give the chapter and the place in it, such as "7.2".'
        )


def note(number: str) -> None:
    """Writes down that an exercise is passed, with today's date if it is so for the first time.

    Without a number there is nothing to write down. A folder that cannot be written to is passed
    over: a grade is worth as much without the note.
    """
    if not number:
        return
    try:
        found = {number: datetime.date.today().isoformat()} | _read()
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        # Another notebook may be reading.
        new = file.with_suffix(".new")
        new.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        new.replace(file)
    except OSError:
        pass


def _file() -> pathlib.Path:
    folder = os.environ.get(VARIABLE) or "~/.local/share/pipelib-book"
    return pathlib.Path(folder).expanduser() / "passed.json"


def _read() -> dict[str, str]:
    file = _file()
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text("utf-8"))
        return {str(number): str(day) for number, day in found.items()}
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{file} cannot be read ({error}), so the exercises that you passed are not known:"
            " mend the file, or delete it to begin anew."
        ) from error
