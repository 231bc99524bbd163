"""Grades mutants of solutions: which wrong answers pass.

    python -m tools.grade_mutants                       all exercises, which takes an hour or two
    python -m tools.grade_mutants 07 12.3 --each 5      a chapter, an exercise; a few of each

The model. A chapter's cells are executed up to an exercise, as a reader has done when it comes to
it, with earlier solutions in place of their skeletons. In the solution's place stand its mutants
(`tools.answer_mutants`), a cell each. Each one has a **fate**:

=========  ===================================================================================
failed     its grade says "Not yet."
raised     its code raises an error before there is a grade
passed     its grade says "Passed."; a fault of the grade, unless the mutant is equivalent
hung       no end after a minute: a grade must not run what hangs
=========  ===================================================================================

A mutant is **equivalent** if it does what the task asks: `book/equivalent.json` lists those that
somebody looked at, with a reason each. What passes or hangs and is not listed is printed, and makes
the exit status 1.

The report `book/mutants.json` has the counts of each exercise, as they were when it was last tried.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import enum
import itertools
import json
import pathlib
import random
import sys
from collections.abc import Iterable, Iterator, Sequence

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from tools import execution, exercises, notebooks
from tools.answer_mutants import Mutant, mutants

EQUIVALENT = execution.BOOK / "equivalent.json"
REPORT = execution.BOOK / "mutants.json"
#: A grade takes a second or two, and on a busy machine ten.
SECONDS = 60
#: Mutants that one process grades, after the cells before the exercise.
PART = 20


class Fate(enum.StrEnum):
    """What came of a mutant."""

    FAILED = "failed"
    RAISED = "raised"
    PASSED = "passed"
    HUNG = "hung"


@dataclasses.dataclass(frozen=True)
class Task:
    """An exercise: its number, the chapter's cells before it, its solution."""

    number: str
    before: tuple[NotebookNode, ...]
    solution: str


def tasks(md: pathlib.Path) -> Iterator[Task]:
    """The exercises of a chapter."""
    notebook = notebooks.read_all(md)
    found = exercises.exercises(notebook)
    cells = notebook.cells
    ends = [cells.index(one.skeleton) for one in found]
    skeletons = {id(one.skeleton) for one in found}
    code = execution.code_cells(notebook)
    for number, (one, end) in enumerate(zip(found, ends), 1):
        earlier = {id(cell) for cell in cells[:end]} - skeletons
        before = tuple(cell for cell in code if id(cell) in earlier)
        yield Task(f"{int(md.stem[:2])}.{number}", before, one.solution.source)


def fates(task: Task, tried: Sequence[Mutant]) -> list[Fate]:
    """What comes of mutants, in their order; a process that one hangs is begun anew."""
    found: list[Fate] = []
    while len(found) < len(tried):
        found += _run(task, tried[len(found) :])
    return found


def _run(task: Task, tried: Sequence[Mutant]) -> list[Fate]:
    """The fates of mutants in one process, up to the first that hangs."""
    cells = [nbformat.from_dict(dict(cell)) for cell in task.before]
    answers = [nbformat.v4.new_code_cell(mutant.source) for mutant in tried]
    for cell in answers:
        cell.metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=[*cells, *answers])
    client = NotebookClient(
        notebook, kernel_manager_class=execution.ThisPython, timeout=execution.CELL_SECONDS,
        extra_arguments=["--log-level=ERROR"], record_timing=False,
    )  # fmt: skip
    found: list[Fate] = []
    env = execution.environment(**execution.ON_CPU)
    with client.setup_kernel(cwd=str(execution.BOOK), env=env):
        for index, cell in enumerate(notebook.cells):
            is_answer = index >= len(cells)
            client.timeout = SECONDS if is_answer else execution.CELL_SECONDS
            try:
                client.execute_cell(cell, index)
            except (CellTimeoutError, DeadKernelError):
                if not is_answer:
                    raise
                return [*found, Fate.HUNG]
            if is_answer:
                found.append(_fate(cell))
    return found


def _fate(cell: NotebookNode) -> Fate:
    """What a cell's outputs say."""
    for grade in exercises.graded(cell):
        return Fate.PASSED if grade.startswith("Passed.") else Fate.FAILED
    return Fate.RAISED


# Which mutants, and which of them are known.


def chosen(found: Sequence[Mutant], most: int | None) -> list[Mutant]:
    """All mutants, or a few: of each rule about as many, the same ones each time."""
    if most is None or len(found) <= most:
        return list(found)
    by_rule = collections.defaultdict[str, list[Mutant]](list)
    for mutant in random.Random(0).sample(found, len(found)):
        by_rule[mutant.rule].append(mutant)
    turns = [
        mutant
        for i in range(len(found))
        for group in by_rule.values()
        for mutant in group[i : i + 1]
    ]
    return sorted(turns[:most], key=lambda mutant: mutant.line)


def equivalent() -> dict[str, dict[str, str]]:
    """The reasons of mutants that are no wrong answers: by exercise, by the mutant in words."""
    return json.loads(EQUIVALENT.read_text("utf-8")) if EQUIVALENT.exists() else {}


def judged(number: str, tried: Iterable[tuple[Mutant, Fate]]) -> list[str]:
    """The mutants that pass or hang and that nobody explained, in words."""
    known = equivalent().get(number, {})
    wrong = Fate.PASSED, Fate.HUNG
    return [
        f"{number} {fate}: {mutant}"
        for mutant, fate in tried
        if fate in wrong and str(mutant) not in known
    ]


type _Tried = tuple[Mutant, Fate]


def _graded(
    asked: Iterable[tuple[Task, Sequence[Mutant]]], jobs: int
) -> Iterator[tuple[Task, list[_Tried]]]:
    """The fates of exercises' mutants, a few at a time, as they come."""
    parts = [(task, part) for task, few in asked for part in itertools.batched(few, PART)]
    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    try:
        running = {pool.submit(fates, task, part): (task, part) for task, part in parts}
        for done in concurrent.futures.as_completed(running):
            task, part = running[done]
            yield task, list(zip(part, done.result(), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)  # one that fails does not wait for all others


def _note(number: str, tried: Sequence[_Tried]) -> None:
    """Writes an exercise's counts into the report."""
    report: dict[str, dict[str, int]] = json.loads(REPORT.read_text("utf-8"))
    fates = [fate for _, fate in tried]
    report[number] = {str(fate): fates.count(fate) for fate in Fate}
    in_order = sorted(report.items(), key=lambda item: [int(x) for x in item[0].split(".")])
    REPORT.write_text(json.dumps(dict(in_order), indent=1) + "\n", "utf-8")


def main() -> int:
    """Grades the mutants that were asked for; the exit status says whether all is explained."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("numbers", nargs="*", help="chapters (07) or exercises (7.2); all without")
    parser.add_argument("--each", type=int, help="mutants of an exercise; all without")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    every = [task for md in notebooks.chapters() for task in tasks(md)]
    asked = [number.lstrip("0") for number in options.numbers]
    numbers = [{task.number, task.number.partition(".")[0]} for task in every]
    wanted = [task for one in asked for task, known in zip(every, numbers) if one in known]
    wanted = wanted if asked else every
    few = {task.number: chosen(mutants(task.solution), options.each) for task in wanted}
    found = {task.number: list[_Tried]() for task in wanted}
    to_explain = 0
    for task, tried in _graded([(task, few[task.number]) for task in wanted], options.jobs):
        found[task.number] += tried
        for line in judged(task.number, tried):
            to_explain += 1
            print(line, flush=True)
        if len(found[task.number]) == len(few[task.number]):
            print(f"{task.number}: {len(found[task.number])} graded", flush=True)
            _note(task.number, found[task.number])
    total = collections.Counter(fate for tried in found.values() for _, fate in tried)
    counts = ", ".join(f"{total[fate]} {fate}" for fate in Fate)
    print(f"{total.total()} mutants: {counts}; {to_explain} to explain")
    return bool(to_explain)


if __name__ == "__main__":
    sys.exit(main())
