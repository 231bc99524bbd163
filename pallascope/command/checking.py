"""`check`: some kernels verified; what was found as text, as JSON and as SARIF.

The model. Each target goes through `pallascope.verify`: one that cannot be traced says so on
stderr, and the next is checked all the same. A function may call several kernels, of which each has
an `Outcome`.

JSON has the same in one document, `report.schema.json`: nothing else is on stdout then, and what
the caller's code prints goes to stderr.
"""

import contextlib
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pallascope
from pallascope.command.colour import coloured
from pallascope.command.options import print_document
from pallascope.command.sarif import sarif
from pallascope.command.targets import REFUSALS, Target, callers, loaded
from pallascope.report import FORMAT, Document
from pallascope.verifying import UNCOMPILED, BlockChoice, KernelVerdict, Verdict

#: Nothing found; something found; a kernel that could not be checked.
CLEAN, FOUND, FAILED = range(3)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one kernel of a target; `error` says why it could not be checked."""

    target: Target
    verdict: KernelVerdict | None = None
    error: str | None = None

    @property
    def status(self) -> int:
        """The exit status that it calls for."""
        if self.error is not None:
            return FAILED
        return CLEAN if self.verdict is None or self.verdict.ok else FOUND

    def fields(self) -> Document:
        """The check as JSON has it."""
        found = self.verdict or KernelVerdict(self.target.function, ())
        return {
            "function": self.target.function,
            "args": [*self.target.args],
            "kernel": self.verdict and self.verdict.name,
            "strict": self.target.strict,
            "ok": self.status == CLEAN,
            "reports": [report.fields() for report in found.reports],
            "grid": None if found.between is None else found.between.fields(),
            "summary": found.summary if len(found.reports) > 1 else None,
            "compiled": None if found.compiled is None else [*found.compiled],
            "unseen": found.unseen or None,
            "error": self.error,
        }


def check(
    targets: Sequence[Target],
    seconds: float,
    as_json: bool,
    sarif_file: pathlib.Path | None,
) -> int:
    """Checks the targets and tells what was found; returns the exit status."""
    quiet = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    outcomes: list[Outcome] = []
    unseen: dict[str, None] = {}
    with quiet:
        for target in targets:
            if len(targets) > 1 and not as_json:
                print(f"== {target}")
            for outcome in _outcomes(target, seconds, unseen):
                outcomes.append(outcome)
                _tell(outcome, says=not as_json)
        if not as_json:
            print(*unseen, sep="\n", end="\n" * bool(unseen))
    status = max(outcome.status for outcome in outcomes)
    checks = [outcome.fields() for outcome in outcomes]
    if sarif_file is not None:
        text = json.dumps(sarif(checks, pathlib.Path.cwd()), indent=1)
        sarif_file.write_text(text + "\n", "utf-8")
    if as_json:
        print_document(FORMAT, ok=status == CLEAN, checks=checks)
    elif len(outcomes) > 1:
        print(_total(outcomes))
    return status


def _outcomes(target: Target, seconds: float, unseen: dict[str, None]) -> Iterator[Outcome]:
    """What came of each kernel of a target; `unseen` gets what was not looked at in any."""
    try:
        verdict = _verdict(target, seconds)
    except REFUSALS as error:
        yield Outcome(target, error=str(error))
        return
    if verdict.lacking:
        unseen[UNCOMPILED] = None
    for kernel in verdict.kernels:
        yield Outcome(target, kernel, kernel.refusal or None)


def _verdict(target: Target, seconds: float) -> Verdict:
    function, args = loaded(target)
    chosen = BlockChoice.ALL if target.block is None else target.block
    with callers():
        return pallascope.verify(
            function,
            *args,
            strict=target.strict,
            blocks=chosen if isinstance(chosen, BlockChoice) else [chosen],
            call=target.call,
            max_steps=target.max_steps,
            seconds=seconds,
        )


def _tell(outcome: Outcome, says: bool) -> None:
    """Prints what was found, if `says`, and on stderr what went wrong."""
    if says and outcome.verdict is not None and outcome.verdict.reports:
        print(coloured(str(replace(outcome.verdict, refusal=""))))
    if outcome.error is not None:
        print(f"pallascope check: {outcome.error}", file=sys.stderr)


def _total(outcomes: Sequence[Outcome]) -> str:
    """The last line, where several kernels were checked."""
    numbers = [sum(outcome.status == status for outcome in outcomes) for status in (FOUND, FAILED)]
    faulty, failed = (number or "none" for number in numbers)
    return f"{len(outcomes)} kernels: {faulty} with findings, {failed} that could not be checked"
