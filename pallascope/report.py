"""`Finding` and `Report`: what is wrong with a program, in words.

The model. A **finding** is one fault: its kind (`FindingKind` says what each is), the ops that show
it first, a sentence on the cause and a sentence on the remedy. The same fault at later steps (the
same kind and the same source lines) is counted, not listed again. A **report** has the findings of
one program, or those between the blocks of a grid, gravest kinds first.

A report is text for a person, HTML for a notebook, and JSON for a program: `report.schema.json`,
beside this module, is the JSON Schema of format 2, and `schema()` the same with a list of the kinds
that a finding may have. A later format may add fields without a new number; it gets a new number
where a field goes or changes its meaning.
"""

import html
import json
import math
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from pallascope.interleaving import Interleaving, Turn
from pallascope.program import Name, Op, Program, step_name
from pallascope.sources import text_of

#: What JSON writes as an object.
type Document = dict[str, Any]
#: The number of the JSON's format.
FORMAT = 2


class FindingKind(
    Name, what="a kind of finding", consequence="a report would not know how grave it is"
):
    """What is wrong, gravest first; equal to its name, so `finding.kind == "race"` holds.

    The one table of kinds: `fault` says what is wrong, `effect` what the hardware then does. The
    rules of SARIF and the kinds of the JSON Schema are made of it.
    """

    fault: str
    effect: str

    def __new__(cls, name: str, fault: str = "", effect: str = "") -> "FindingKind":
        """A kind of this name."""
        kind = str.__new__(cls, name)
        kind._value_, kind.fault, kind.effect = name, fault, effect
        return kind

    OUT_OF_BOUNDS = (
        "out-of-bounds",
        "An index of memory or of a barrier that its array does not have.",
        "The device checks no index: an ordinary access takes what belongs to another array, and a"
        " copy of a tile outside of GMEM loads zeros or stores nothing.",
    )
    DEADLOCK = (
        "deadlock",
        "Threads that wait for ever.",
        "A phase of a barrier never gets all of its arrivals, so the kernel never ends.",
    )
    RACE = (
        "race",
        "Two accesses of the same memory, one a write, in no order.",
        "Some timing of the threads, or of the blocks of a grid, lets either come first: the result"
        " may be wrong, and differ from run to run.",
    )
    MISSING_COMMIT = (
        "missing-commit",
        "Ordinary and asynchronous accesses in order, but with no commit_smem between.",
        "The two go different ways to memory, and may be seen in another order without a fence.",
    )
    BARRIER_MISUSE = (
        "barrier-misuse",
        "Arrivals that a phase does not expect, or a waiter that can miss a phase.",
        "A wait sees the parity of a phase only, so a thread may go on too early, or never.",
    )
    UNINITIALIZED_READ = (
        "uninitialized-read",
        "A read of memory that nothing has written.",
        "The kernel computes with what the memory held before.",
    )
    MIXED_TILE = (
        "mixed-tile",
        "Blocks of a cluster that load parts of different tiles to one place.",
        "Blocks that share a load each copy a part of it for all: each gets parts of two tiles.",
    )
    UNWRITTEN_OUTPUT = (
        "unwritten-output",
        "A part of an output that no block of the grid writes.",
        "The caller gets there what the memory held before.",
    )
    LOST_STORE = (
        "lost-store",
        "A result that never leaves SMEM, or may leave it too late.",
        "The output lacks the result, or has what was in its place later.",
    )
    NOT_LOWERED = (
        "not-lowered",
        "A kernel that JAX does not lower for a GPU.",
        "No GPU can run it, though the interpreter may.",
    )
    RESOURCE = (
        "resource",
        "More shared memory or registers than there are.",
        "The kernel cannot be launched, waits for ever, or spills to slow memory.",
    )


def schema() -> Document:
    """The JSON Schema of what is saved, with all kinds of findings."""
    text = pathlib.Path(__file__).with_name("report.schema.json").read_text("utf-8")
    found: Document = json.loads(text)
    found["$defs"]["finding"]["properties"]["kind"]["enum"] = [str(kind) for kind in FindingKind]
    return found


#: How many turns of an order a report shows: the last ones.
_TURNS = 6
_GRAVITY = {kind: number for number, kind in enumerate(FindingKind)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: `ops` show its first occurrence, `count` says how often it occurs.

    The ops have the threads, steps and source lines. `where` names the buffer or the barrier, if
    the fault is about one, and `slot` the slot of a ring. The name of a kind becomes that
    `FindingKind`; a name that is none raises a ValueError. `programs` has the program of each op,
    if the fault is between blocks of a grid; these programs are without their ops. `is_strict` says
    whether only `check(..., strict=True)` tells the fault. `interleaving` is an order of ops that
    brings the fault out; None if every order does, or if the fault has no such moment.

    Example:
      >>> program = gallery.GALLERY["missing-commit"].program(fixed=False)
      >>> finding = pallascope.check(program)[0]
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
    programs: tuple[Program, ...] = ()
    is_strict: bool = False
    interleaving: Interleaving | None = None

    def __post_init__(self) -> None:
        if type(self.kind) is not FindingKind:
            object.__setattr__(self, "kind", FindingKind(self.kind))

    def __str__(self) -> str:
        """Kind, cause and remedy; a `Report` has the ops in words, too."""
        return f"{self.kind}: {self.cause} {self.remedy}"


@dataclass(frozen=True, slots=True)
class Shown:
    """An op of a finding as a report shows it.

    Attributes:
      op: the op.
      who: its thread, with the block if there are several.
      thread: the thread's number in its block.
      block: the block's number in its cluster.
      index: the index in the grid of that block, or of that cluster.
      file, line: where it was written; None if that is not known.
      what: what it does, on one line.
      source: its line of source, if that can be read.
    """

    op: Op
    who: str
    thread: int
    block: int
    index: tuple[int, ...]
    file: str | None
    line: int | None
    what: str
    source: str

    @property
    def where(self) -> str:
        """The line, who called it, the thread, the step and the scope."""
        words = [self.op.source or "at an unknown line", self.who]
        words += [step_name(self.op.step)] if self.op.step else []
        words += [f"in {self.op.scope}"] if self.op.scope else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """The findings of one program, an iterable; `ok` if there are none.

    `str` of it reads like a compiler's errors, a notebook shows it as HTML, and `to_json` is for
    other programs. `notes` say what the check left out; the `verdict` is its last line. In a report
    on what the blocks of a grid do to each other, `compared` says how many of them were compared,
    and `program` is the first of them, without its ops.

    Example:
      >>> program = gallery.GALLERY["lapped-waiter"].program(fixed=False)
      >>> report = pallascope.check(program)
      >>> report.ok, {finding.kind for finding in report}
      (False, {'barrier-misuse'})
    """

    program: Program
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    compared: int = 0

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
        found = count(len(self), "finding") if self.findings else "no finding"
        if self.compared:
            return f"{self.program.name}, between blocks: {found} in {self._compared()}"
        ops = sum(map(len, self.program.threads))
        seen = f"{count(ops, 'op')} of {count(len(self.program.threads), 'thread')} checked"
        return f"{self.program.name}: {found}{_within_grid(self.program)} ({seen})"

    def _compared(self) -> str:
        """Which blocks were compared with each other."""
        total, noun = math.prod(self.program.grid), _unit(self.program)
        which = f"all {total:,}" if self.compared == total else f"{self.compared:,} of {total:,}"
        return f"{which} {noun}s of grid {self.program.grid}"

    def _text(self, finding: Finding) -> str:
        lines = [f"{finding.kind}: {finding.cause}"]
        for op in self.shown(finding):
            lines.append(f"  --> {op.where}")
            lines.append(f"      {op.source or op.what}")
            if op.source:
                lines.append(f"      ({op.what})")
        if finding.interleaving is not None:
            lines.append(f"  {_lead(finding.interleaving)}:")
            lines += [f"      {step}" for step in self._steps(finding.interleaving)]
        lines.append(f"  remedy: {finding.remedy}")
        if finding.count > 1:
            lines.append(f"  ({finding.count - 1} more of the same)")
        return "\n".join(lines)

    def _steps(self, order: Interleaving) -> list[str]:
        """An order of ops in words: its last turns, and what happens then."""
        hidden = order.turns[:-_TURNS]
        before = sum(turn.stop - turn.start for turn in hidden)
        first = [f"{count(before, 'op')} in {count(len(hidden), 'turn')}"] if hidden else []
        turns = [self._turn(turn) for turn in order.turns[len(hidden) :]]
        return [*first, *turns, f"then {order.then}"]

    def _turn(self, turn: Turn) -> str:
        """A turn in words: how many ops, and the last of them."""
        op = _last(self.program, turn)
        words = [str(op.kind), *map(self.program.index_of, (op.writes or op.reads)[:1])]
        if op.barrier is not None:
            words.append(f"on {self.program.barriers[op.barrier].name}[{op.index}] #{op.phase}")
        words += [step_name(op.step)] if op.step else []
        words += [f"[{op.source}]"] if op.line else []
        made = turn.stop - turn.start
        up_to = f"{made:,} ops, up to " if made > 1 else ""
        return f"{thread_name(self.program, turn.thread)}: {up_to}{' '.join(words)}"

    def shown(self, finding: Finding) -> list[Shown]:
        """The ops of a finding, in words."""
        programs = finding.programs or (self.program,) * len(finding.ops)
        return [
            _shown(program, op, in_grid=bool(finding.programs))
            for program, op in zip(programs, finding.ops, strict=True)
        ]

    def order_of(self, number: int | None = None) -> Interleaving:
        """The order of ops that shows a finding.

        Args:
          number: the finding, from 0, as in `report[number]`; by default the first with an order.

        Raises:
          TypeError: `number` is not an integer.
          IndexError: no such finding, or none that has an order.
          ValueError: a finding without an order.
        """
        if not isinstance(number, Integral | None):
            raise TypeError(
                f"A finding is asked for by its number, but {number=} is of type"
                f" {type(number).__name__}: give an integer, from 0, or leave it out."
            )
        asked = f"Finding {number}" if number is not None else "A finding with an order of ops"
        if number is None:
            orders = [found.interleaving for found in self]
            number = next((i for i, order in enumerate(orders) if order is not None), len(orders))
        if not -len(self) <= number < len(self):
            raise IndexError(
                f"{asked} is asked for, but {self.program.name} has {count(len(self), 'finding')}"
                f"{', none with one' if self.findings else ''}: there is nothing to play."
            )
        order = self[number].interleaving
        if order is None:
            raise ValueError(
                f"{asked} ({self[number].kind}) has no order of ops, so there is nothing to play:"
                " it shows in every order, or takes two blocks, or follows from another finding;"
                " read its ops."
            )
        return order

    def to_json(self) -> str:
        """The report as JSON text; `report.schema.json` describes it.

        Example:
          >>> program = gallery.GALLERY["lapped-waiter"].program(fixed=False)
          >>> saved = json.loads(pallascope.check(program).to_json())
          >>> saved["format"], saved["ok"], saved["findings"][0]["kind"]
          (2, False, 'barrier-misuse')
        """
        return json.dumps({"format": FORMAT} | self.fields())

    def fields(self) -> Document:
        """What `to_json` writes, as dicts and lists."""
        program = self.program
        return {
            "program": {
                "name": program.name,
                "grid": [*program.grid],
                "block": None if self.compared else [*program.grid_index],
                "cluster": [*program.cluster],
                "devices": [*program.devices],
                "compared": self.compared or None,
                "threads": len(program.threads),
                "ops": sum(map(len, program.threads)),
                "truncated": bool(program.truncated),
            },
            "ok": self.ok,
            "verdict": self.verdict,
            "findings": [self._fields(finding) for finding in self],
            "notes": [*self.notes],
        }

    def _fields(self, finding: Finding) -> Document:
        return {
            "kind": str(finding.kind),
            "cause": finding.cause,
            "remedy": finding.remedy,
            "where": finding.where or None,
            "slot": finding.slot,
            "count": finding.count,
            "strict": finding.is_strict,
            "ops": [_op_fields(op) for op in self.shown(finding)],
            "counterexample": self._order_fields(finding.interleaving),
        }

    def _order_fields(self, order: Interleaving | None) -> Document | None:
        """An order of ops for JSON."""
        if order is None:
            return None
        lasts = [_shown(self.program, _last(self.program, turn), False) for turn in order.turns]
        turns = [
            {
                "thread": last.thread,
                "block_of_cluster": last.block,
                "ops": turn.stop - turn.start,
                "last": _op_fields(last),
            }
            for turn, last in zip(order.turns, lasts)
        ]
        return {"ops": order.ops, "turns": turns, "then": order.then}

    def _repr_html_(self) -> str:
        """The report for a notebook; colours are the page's own."""
        parts = [self._html(finding) for finding in self]
        parts += [f"<p><em>note:</em> {html.escape(note)}</p>" for note in self.notes]
        return f"<div>{''.join(parts)}<p>{html.escape(self.verdict)}</p></div>"

    def _html(self, finding: Finding) -> str:
        rows: list[str] = []
        for op in self.shown(finding):
            where, what, source = map(html.escape, (op.where, op.what, op.source))
            code = f"<br><code>{source}</code>" if source else ""
            rows.append(f"<li>{where}{code}<br><small>{what}</small></li>")
        more = f" ({finding.count - 1} more of the same)" if finding.count > 1 else ""
        order = ""
        if finding.interleaving is not None:
            steps = "".join(f"<li>{html.escape(s)}</li>" for s in self._steps(finding.interleaving))
            order = (
                f"<details><summary>{_lead(finding.interleaving).capitalize()}</summary>"
                f"<ol>{steps}</ol></details>"
            )
        return (
            f"<p><strong>{finding.kind}</strong>: {html.escape(finding.cause)}{more}</p>"
            f"<ul>{''.join(rows)}</ul>{order}<p><em>Remedy:</em> {html.escape(finding.remedy)}</p>"
        )


def thread_name(program: Program, thread: int) -> str:
    """What a report calls a thread, or a warp of one: with its block, if there are several."""
    own = program.pallas_thread(thread)
    block, local = divmod(own, program.per_block)
    where = f"{_block(program, block)}, " if program.blocks > 1 else ""
    warp = (
        "" if own == thread else f"warp {program.warps[thread - len(program.threads)].number} of "
    )
    return f"{where}{warp}thread {local}"


def _block(program: Program, number: int) -> str:
    """The name of one of a program's blocks in a report, where there are several."""
    if not program.spans_grid:
        return f"block {number} of the cluster"
    each = program.blocks // program.num_devices
    words = [f"device {program.device_of(number)}"] if program.devices else []
    words += [f"block {number % each}"] if each > 1 else []
    return ", ".join(words)


def block_name(program: Program) -> str:
    """What a report calls the block, or the cluster, of a program: by its index in the grid."""
    return f"{_unit(program)} {program.grid_index}"


def _shown(program: Program, op: Op, in_grid: bool) -> Shown:
    """An op of a finding, in words; `in_grid` says whether the block of the grid is one of them."""
    each = len(program.threads) // program.blocks
    who = f"{block_name(program)}, " if in_grid else ""
    what = program.describe(replace(op, line=None, step=(), scope=""))
    file, _, number = (op.line or "").rpartition(":")
    line = int(number) if file else None
    return Shown(
        op,
        who + thread_name(program, op.thread),
        op.thread % each,
        op.thread // each,
        _index_of(program, op.thread // each),
        file or None,
        line,
        what,
        text_of(op.line or ""),
    )


def _lead(order: Interleaving) -> str:
    """The heading of an order of ops: how many there are."""
    return f"an order that shows it ({count(order.ops, 'op')})"


def _last(program: Program, turn: Turn) -> Op:
    """The last op of a turn."""
    return program.threads[turn.thread][turn.stop - 1]


def _op_fields(shown: Shown) -> Document:
    """An op of a finding for JSON; of its steps the outermost loop's comes first, as in text."""
    op = shown.op
    return {
        "kind": str(op.kind),
        "what": shown.what,
        "thread": shown.thread,
        "block_of_cluster": shown.block,
        "block": [*shown.index],
        "step": [*reversed(op.step)],
        "scope": op.scope,
        "file": shown.file,
        "line": shown.line,
        "source": shown.source,
    }


def _unit(program: Program) -> str:
    """The noun for the parts of a grid: blocks, or clusters of several blocks."""
    return "cluster" if program.blocks > 1 else "block"


def _index_of(program: Program, block: int) -> tuple[int, ...]:
    """The index on the axes of the grid of one of a program's blocks, or of its cluster."""
    if not program.spans_grid:
        return program.grid_index
    sizes, found = (*program.grid, *program.cluster), list[int]()
    for size in reversed(sizes):
        block, index = divmod(block, size)
        found.insert(0, index)
    return tuple(found[: len(program.grid)])


def _within_grid(program: Program) -> str:
    """Which block of its grid a program is: other blocks may have other faults."""
    if program.spans_grid:
        devices = math.prod(program.devices)
        on = f" on {devices} devices" if program.devices else ""
        return f" in all of grid {program.grid}{on}"
    if math.prod(program.grid) <= 1 or not program.block:
        return ""
    return f" in {block_name(program)} of grid {program.grid}"


def truncation(program: Program) -> str:
    """Which threads' ends a truncated program lacks, as a remark."""
    return f"truncated: {missing_ends(program)}"


def missing_ends(program: Program) -> str:
    """Which threads' ends a truncated program lacks."""
    names = ", ".join(thread_name(program, thread) for thread in program.truncated)
    ends = "the end of {} is" if len(program.truncated) == 1 else "the ends of {} are"
    return f"{ends.format(names)} missing"


def count(number: int, noun: str) -> str:
    """The number with its noun."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
