"""Grades mutants of solutions: which wrong answers pass.

    python -m tools.grade_mutants                       all exercises, which takes an hour or two
    python -m tools.grade_mutants 07 12.3 --each 5      a chapter, an exercise; a few of each

The model. A chapter's cells are executed up to an exercise, as a reader has done when it comes to
it. In the solution's place stand its mutants (`tools.answer_mutants`), a cell each. Each one has a
**fate**:

=========  ===================================================================================
failed     its grade says "Not yet."
raised     its code raises an error before there is a grade
passed     its grade says "Passed."; a fault of the grade, unless the mutant is equivalent
hung       no end after a minute: a grade must not run what hangs
=========  ===================================================================================

A mutant is **equivalent** if it does what the task asks: `book/equivalent.json` lists those that
somebody looked at, with a reason each. What passes or hangs and is not listed is printed, and makes
the exit status 1.

The report `book/mutants.json` has the counts of each exercise; tests hold it to the chapters.
"""

import argparse
import asyncio
import collections
import concurrent.futures
import dataclasses
import enum
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
    answered = {id(cell) for one in found for cell in (one.skeleton, one.solution)}
    code = execution.code_cells(notebook)
    for number, (one, end) in enumerate(zip(found, ends), 1):
        earlier = {id(cell) for cell in cells[:end]} - answered
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


def judged(number: str, tried: Iterable[Mutant], found: Iterable[Fate]) -> list[str]:
    """The mutants that pass or hang and that nobody explained, in words."""
    known = equivalent().get(number, {})
    wrong = Fate.PASSED, Fate.HUNG
    return [
        f"{number} {fate}: {mutant}"
        for mutant, fate in zip(tried, found, strict=True)
        if fate in wrong and str(mutant) not in known
    ]


def _one(task: Task, most: int | None) -> tuple[str, dict[str, int], list[str]]:
    tried = chosen(mutants(task.solution), most)
    found = fates(task, tried)
    unexplained = judged(task.number, tried, found)
    counts = {str(fate): found.count(fate) for fate in Fate}
    return task.number, counts, unexplained


def main() -> int:
    """Grades the mutants that were asked for; the exit status says whether all is explained."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("numbers", nargs="*", help="chapters (07) or exercises (7.2); all without")
    parser.add_argument("--each", type=int, help="mutants of an exercise; all without")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    asked = {number.lstrip("0") for number in options.numbers}
    every = [task for md in notebooks.chapters() for task in tasks(md)]
    wanted = [t for t in every if not asked or {t.number, t.number.partition(".")[0]} & asked]
    report, faults = dict[str, dict[str, int]](), dict[str, list[str]]()
    # The longest first, so that no process is left alone with one at the end.
    wanted.sort(key=lambda task: -len(mutants(task.solution)))
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        tried = [pool.submit(_one, task, options.each) for task in wanted]
        for done in concurrent.futures.as_completed(tried):
            number, report[number], faults[number] = done.result()
            print(f"{number}: {report[number]}", *faults[number], sep="\n  ", flush=True)
    total = {str(fate): sum(counts[fate] for counts in report.values()) for fate in Fate}
    to_explain = [fault for task in every for fault in faults.get(task.number, [])]
    print(f"{sum(total.values())} mutants: {total}; {len(to_explain)} to explain")
    if len(wanted) == len(every) and options.each is None:
        counts = {task.number: report[task.number] for task in every}
        text = json.dumps(dict(exercises=counts, to_explain=to_explain), indent=1)
        REPORT.write_text(text + "\n", "utf-8")
    return bool(to_explain)


if __name__ == "__main__":
    asyncio.set_event_loop_policy(None)
    sys.exit(main())
