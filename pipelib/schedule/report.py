"""`Finding` and `Report`: what is wrong with a program, in words.

The model. A **finding** is one fault: its kind, the ops that show it first, a sentence on the cause
and a sentence on the remedy. The same fault at later steps (the same kind and the same source
lines) is counted, not listed again. A **report** has the findings of one program, gravest kinds
first.

===================  ===============================================================================
kind                 what is wrong
===================  ===============================================================================
race                 two accesses of the same memory, one a write, in no order
missing-commit       ordinary and asynchronous accesses in order, but with no `commit_smem` between
deadlock             threads that wait for ever
out-of-bounds        an index of memory or of a barrier that its array does not have
barrier-misuse       arrivals that a phase does not expect, or a waiter that can miss a phase
uninitialized-read   a read of memory that nothing has written
lost-store           a result that never leaves SMEM, or may leave it too late
resource             more shared memory or registers than there are
===================  ===============================================================================
"""

import html
import linecache
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipelib.schedule.program import Name, Op, Program, step_name


class FindingKind(
    Name, what="a kind of finding", consequence="a report would not know how grave it is"
):
    """What is wrong, gravest first; equal to its name, so `finding.kind == "race"` holds."""

    OUT_OF_BOUNDS = "out-of-bounds"
    DEADLOCK = "deadlock"
    RACE = "race"
    MISSING_COMMIT = "missing-commit"
    BARRIER_MISUSE = "barrier-misuse"
    UNINITIALIZED_READ = "uninitialized-read"
    LOST_STORE = "lost-store"
    RESOURCE = "resource"


_GRAVITY = {kind: number for number, kind in enumerate(FindingKind)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: `ops` show its first occurrence, `count` says how often it occurs.

    The ops have the threads, steps and source lines. `where` names the buffer or the barrier, if
    the fault is about one, and `slot` the slot of a ring. The name of a kind becomes that
    `FindingKind`; a name that is none raises a ValueError.

    Example:
      >>> program = gallery.GALLERY["missing-commit"].program(fixed=False)
      >>> finding = pipelib.check(program)[0]
      >>> finding.kind, finding.where, [op.kind for op in finding.ops]
      ('missing-commit', 'o_smem', ['store', 'write'])
      >>> print(finding.remedy)
      Call commit_smem after the ordinary access, before others are let at it.
    """

    kind: FindingKind
    ops: tuple[Op, ...]
    cause: str
    remedy: str
    where: str = ""
    slot: int | None = None
    count: int = 1

    def __post_init__(self) -> None:
        if type(self.kind) is not FindingKind:
            object.__setattr__(self, "kind", FindingKind(self.kind))

    def __str__(self) -> str:
        """Kind, cause and remedy; a `Report` has the ops in words, too."""
        return f"{self.kind}: {self.cause} {self.remedy}"


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The findings of one program, an iterable; `ok` if there are none.

    `str` of it reads like a compiler's errors, and a notebook shows it as HTML. `notes` say what
    the check left out; the `verdict` is its last line.

    Example:
      >>> program = gallery.GALLERY["lapped-waiter"].program(fixed=False)
      >>> report = pipelib.check(program)
      >>> report.ok, {finding.kind for finding in report}
      (False, {'barrier-misuse'})
    """

    program: Program
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        by_kind = sorted(self.findings, key=lambda finding: _GRAVITY[finding.kind])
        object.__setattr__(self, "findings", tuple(by_kind))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, index: int) -> Finding:
        return self.findings[index]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        parts = [self._text(finding) for finding in self]
        parts += [f"note: {note}" for note in self.notes]
        return "\n\n".join([*parts, self.verdict])

    __repr__ = __str__

    @property
    def verdict(self) -> str:
        """The last line of `str`, which counts the findings and names the block."""
        ops = sum(map(len, self.program.threads))
        seen = f"{count(ops, 'op')} of {count(len(self.program.threads), 'thread')} checked"
        found = count(len(self), "finding") if self.findings else "no finding"
        return f"{self.program.name}: {found}{_within_grid(self.program)} ({seen})"

    def _text(self, finding: Finding) -> str:
        lines = [f"{finding.kind}: {finding.cause}"]
        for op in finding.ops:
            where, what, source = self._parts(op)
            lines.append(f"  --> {where}")
            lines.append(f"      {source}" if source else f"      {what}")
            if source:
                lines.append(f"      ({what})")
        lines.append(f"  remedy: {finding.remedy}")
        if finding.count > 1:
            lines.append(f"  ({finding.count - 1} more of the same)")
        return "\n".join(lines)

    def _parts(self, op: Op) -> tuple[str, str, str]:
        """Where an op is, what it does, and its source line if that can be read."""
        where = [op.line or "at an unknown line", thread_name(self.program, op.thread)]
        where += [step_name(op.step)] if op.step else []
        where += [f"in {op.scope}"] if op.scope else []
        what = self.program.describe(replace(op, line=None, step=(), scope=""))
        file, _, number = (op.line or "").rpartition(":")
        source = linecache.getline(file, int(number)).strip() if file else ""
        return ", ".join(where), what, source

    def _repr_html_(self) -> str:
        """The report for a notebook; colours are the page's own."""
        parts = [self._html(finding) for finding in self]
        parts += [f"<p><em>note:</em> {html.escape(note)}</p>" for note in self.notes]
        return f"<div>{''.join(parts)}<p>{html.escape(self.verdict)}</p></div>"

    def _html(self, finding: Finding) -> str:
        rows: list[str] = []
        for op in finding.ops:
            where, what, source = map(html.escape, self._parts(op))
            code = f"<br><code>{source}</code>" if source else ""
            rows.append(f"<li>{where}{code}<br><small>{what}</small></li>")
        more = f" ({finding.count - 1} more of the same)" if finding.count > 1 else ""
        return (
            f"<p><strong>{finding.kind}</strong>: {html.escape(finding.cause)}{more}</p>"
            f"<ul>{''.join(rows)}</ul><p><em>Remedy:</em> {html.escape(finding.remedy)}</p>"
        )


def thread_name(program: Program, thread: int) -> str:
    """What a report calls a thread: with its block, if there are several."""
    each = len(program.threads) // program.blocks
    block = f"block {thread // each} of the cluster, " if program.blocks > 1 else ""
    return f"{block}thread {thread % each}"


def _within_grid(program: Program) -> str:
    """Which block of its grid a program is: other blocks may have other faults."""
    if math.prod(program.grid) <= 1 or not program.block:
        return ""
    which = "cluster" if program.blocks > 1 else "block"
    return f" in {which} {program.block[: len(program.grid)]} of grid {program.grid}"


def truncation(program: Program) -> str:
    """Which threads' ends a truncated program lacks."""
    names = ", ".join(thread_name(program, thread) for thread in program.truncated)
    ends = "the end of {} is" if len(program.truncated) == 1 else "the ends of {} are"
    return f"truncated: {ends.format(names)} missing"


def count(number: int, noun: str) -> str:
    """The number with its noun."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
