"""`tune`: the configurations of a kernel, ranked by simulation, and the best measured on a GPU.

The model. The function named is a `kernel_of`: it takes a configuration and returns the kernel. Its
space is given as ranges, or by the name of one in a module. All else is
`pallascope.tuning.search`'s. JSON has all searches in one document, `tune.schema.json`: nothing
else is on stdout then. A search that is refused says so on stderr, and the next begins all the
same; after an interruption none does.
"""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pallascope
from pallascope.advising import Advice
from pallascope.command.options import print_document, refusing
from pallascope.command.targets import argument, callers, named
from pallascope.report import Document
from pallascope.tuning.results import Results, Trial
from pallascope.tuning.searching import INTERRUPTED, search
from pallascope.tuning.spaces import fields, kernel

#: The format of the document; a change that breaks its readers adds 1.
FORMAT = 3
#: The statuses: a configuration can be run; none can; nothing could be searched; an interruption.
FOUND, NONE, REFUSED, STOPPED = 0, 1, 2, 130
#: The machine that is simulated where none is named.
MACHINE = "H200"


@dataclass(frozen=True, slots=True)
class Task:
    """What to search, in words of a shell.

    Attributes:
      function: names a `kernel_of`.
      args: the arguments of the kernel.
      ranges: each as name=value,value,...
      space: names a space, in place of ranges.
      expected: names a function of the arguments; None for none.
      machine: the name of the simulated machine.
      is_advised: whether to tell which edits of the best one's schedule would gain.
      options: the other arguments of `search`.
    """

    function: str
    args: Sequence[str]
    ranges: Sequence[str]
    space: str | None
    expected: str | None
    machine: str
    is_advised: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        return " ".join([self.function, *self.args])


def tune(tasks: Sequence[Task], as_json: bool) -> int:
    """Searches, and tells what was found; returns the exit status."""
    quiet = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    searches: list[Document] = []
    status = FOUND
    for task in tasks:
        if len(tasks) > 1 and not as_json:
            print(f"== {task}")
        found: list[tuple[Results, Advice | None]] = []
        with quiet, refusing("tune") as errors:
            found.append(_searched(task))
        results, advice = found[0] if found else (None, None)
        searches.append(_fields(task, results, advice, *errors))
        if results is not None and not as_json:
            print(results, *([advice] if advice else []), sep="\n")
        status = max(status, _status(results))
        if status == STOPPED:
            break
    if as_json:
        print_document(FORMAT, searches=searches)
    return status


def _searched(task: Task) -> tuple[Results, Advice | None]:
    """What one search found, and the advice on the best configuration, if that is asked for.

    Raises:
      ValueError, ImportError, OSError: the words name nothing, or nothing can be searched.
    """
    _check_space(task)
    args = list(map(argument, task.args))
    with callers():
        words = task.function, task.space, task.expected
        found = dict(zip(filter(None, words), named(*filter(None, words))))
        space = found[task.space] if task.space else dict(map(_range, task.ranges))
        machine, kernel_of = getattr(pallascope, task.machine), found[task.function]
        expected = found[task.expected] if task.expected else None
        results = search(
            kernel_of, space, *args, machine=machine, expected=expected, **task.options
        )
        if results.best is None or not task.is_advised:
            return results, None
        best = kernel(kernel_of, results.best.config)
        return results, pallascope.advise(best, *args, machine=machine, progress=False)


def _status(results: Results | None) -> int:
    """The exit status that a search calls for."""
    if results is None:
        return REFUSED
    if INTERRUPTED in results.notes:
        return STOPPED
    return NONE if results.best is None else FOUND


def _check_space(task: Task) -> None:
    """ValueError unless the words name one space."""
    if task.space is not None and task.ranges:
        raise ValueError(
            f"there are --space {task.space} and {len(task.ranges)} of --range, and a search has"
            " one space: leave out one of the two."
        )
    if task.space is None and not task.ranges:
        raise ValueError(
            "there is no space to search: give --range name=value,value for each parameter of the"
            " function, or --space module:name."
        )


def _range(text: str) -> tuple[str, list[int | float | str | bool | None]]:
    """The name and the values of a range."""
    name, equals, values = text.partition("=")
    if not name.isidentifier() or not equals:
        raise ValueError(f"{text!r} is no range: write name=value,value, as slots=2,3,4.")
    return name, [_value(word) for word in values.split(",") if word]


def _value(word: str) -> int | float | str | bool | None:
    """A number, true, false or none, or else the word itself."""
    with contextlib.suppress(ValueError):
        return int(word)
    with contextlib.suppress(ValueError):
        return float(word)
    return {"true": True, "false": False, "none": None}.get(word.lower(), word)


def _fields(
    task: Task, results: Results | None, advice: Advice | None, error: str | None = None
) -> Document:
    """What came of one search, as JSON has it."""
    best = results and results.best
    return {
        "function": task.function,
        "args": [*task.args],
        "machine": task.machine,
        "best": best and _trial(best),
        "trials": [*map(_trial, results.trials)] if results else [],
        "notes": [*results.notes] if results else [],
        "advice": [*map(str, advice.hints)] if advice else None,
        "error": error,
    }


def _trial(trial: Trial) -> Document:
    return {
        "config": fields(trial.config),
        "outcome": trial.outcome,
        "reason": trial.reason,
        "predicted_us": trial.predicted_us,
        "bound": trial.bound,
        "measured_us": trial.measured_us,
        "microseconds": [*trial.us],
        "error": trial.error,
    }
