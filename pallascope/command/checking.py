"""`check`: some kernels checked; what was found as text, as JSON and as SARIF.

The model. Each target is checked by itself: one that cannot be traced says so on stderr, and the
next is checked all the same. The text comes block by block. A fault that an earlier block of the
kernel had too is not told again. After the blocks of a grid comes what they do to each other, and
then how many were looked at.

JSON has the same in one document, `report.schema.json`: nothing else is on stdout then, and what
the caller's code prints goes to stderr.
"""

import contextlib
import json
import math
import pathlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import jax

import pallascope
from pallascope.checking.grid import compare
from pallascope.command.blocks import Checked, checked
from pallascope.command.sarif import sarif
from pallascope.command.targets import ALL, REFUSALS, CallersFailure, Target
from pallascope.report import FORMAT, Document, count

#: Nothing found; something found; a kernel that could not be checked.
CLEAN, FOUND, FAILED = range(3)


@dataclass(slots=True)
class Outcome:
    """What came of one target: a report for each block, one on the grid; or an error."""

    target: Target
    reports: list[Document] = field(default_factory=list[Document])
    grid: Document | None = None
    summary: str | None = None
    error: str | None = None

    @property
    def status(self) -> int:
        """The exit status that it calls for."""
        if self.error is not None:
            return FAILED
        all_ok = all(report["ok"] for report in (*self.reports, self.grid or {"ok": True}))
        return CLEAN if all_ok else FOUND

    def fields(self) -> Document:
        """The check as JSON has it."""
        return {
            "function": self.target.function,
            "args": [*self.target.args],
            "strict": self.target.strict,
            "ok": self.status == CLEAN,
            "reports": self.reports,
            "grid": self.grid,
            "summary": self.summary,
            "error": self.error,
        }


def check(
    targets: Sequence[Target], jobs: int | None, as_json: bool, sarif_file: pathlib.Path | None
) -> int:
    """Checks the targets and tells what was found; returns the exit status."""
    quiet = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    outcomes: list[Outcome] = []
    with quiet:
        for target in targets:
            if len(targets) > 1 and not as_json:
                print(f"== {target}")
            outcomes.append(_outcome(target, jobs, says=not as_json))
    status = max(outcome.status for outcome in outcomes)
    checks = [outcome.fields() for outcome in outcomes]
    if sarif_file is not None:
        text = json.dumps(sarif(checks, pathlib.Path.cwd()), indent=1)
        sarif_file.write_text(text + "\n", "utf-8")
    if as_json:
        versions = {"pallascope": pallascope.__version__, "jax": jax.__version__}
        ok = status == CLEAN
        print(json.dumps({"format": FORMAT} | versions | {"ok": ok, "checks": checks}, indent=1))
    elif len(targets) > 1:
        print(_total(outcomes))
    return status


def _outcome(target: Target, jobs: int | None, says: bool) -> Outcome:
    """Checks one target, and tells it as it goes on if `says`."""
    outcome = Outcome(target)
    try:
        for text in _blocks(outcome, jobs):
            if says:
                print(text)
    except REFUSALS as error:
        if isinstance(error, CallersFailure):
            print(error.details, end="", file=sys.stderr)
        outcome.error = str(error)
        print(f"pallascope check: {error}", file=sys.stderr)
    return outcome


def _blocks(outcome: Outcome, jobs: int | None) -> Iterator[str]:
    """Checks the blocks of an outcome's target; yields what to say of each, and of all."""
    seen: set[tuple[tuple[object, ...], ...]] = set()
    found: list[Checked] = []
    for one in checked(outcome.target, jobs):
        outcome.reports.append(one.fields)
        yield f"{one.verdict}, as above" if one.faults in seen else one.text
        seen |= {one.faults} - {()}
        found.append(one)
    if outcome.target.block == ALL:
        if len(found) > 1:
            between = compare([one.footprint for one in found])
            outcome.grid = between.fields()
            yield str(between)
        outcome.summary = _summary(found)
        yield outcome.summary


def _summary(found: Sequence[Checked]) -> str:
    """How many blocks of the grid were looked at, and how many have findings."""
    program, faulty = found[0].footprint.program, sum(not one.ok for one in found)
    noun, total = "cluster" if program.blocks > 1 else "block", math.prod(program.grid)
    which = "every one" if len(found) == total else "the first, middle and last of each axis"
    return (
        f"{program.name}: {len(found):,} of {count(total, noun)} checked, {which};"
        f" {faulty or 'none'} with findings"
    )


def _total(outcomes: Sequence[Outcome]) -> str:
    """The last line, where several kernels were checked."""
    numbers = [sum(outcome.status == status for outcome in outcomes) for status in (FOUND, FAILED)]
    faulty, failed = (number or "none" for number in numbers)
    return f"{len(outcomes)} kernels: {faulty} with findings, {failed} that could not be checked"
