"""`check`: races, deadlocks and misused barriers of a program, for every schedule of its threads.

The model. `order` runs the threads once and gives each op a clock; its docstring says why one run
is enough for all interleavings. `deadlock` looks at where the run got stuck. Each `Detector` of the
list below looks for faults of one family: by the clocks, as the events come, or by what only the
end shows. What is found are `facts`, which make the sentences of the report. A fault that only some
orders of the ops bring out gets the shortest of these (`interleavings`).

The proxy question. An ordinary write needs `commit_smem` before an engine reads or overwrites the
same memory, always. By the letter of PTX an ordinary *read* of a slot needs one too before a load
overwrites the slot, and pipelib's emitters have it. JAX's emitters do not, and no fault has been
seen on hardware, so this is a finding only with `strict=True`.

Not covered: what the answer of a barrier test or the contents of tensors decide (`trace` refuses
flow that depends on them, but for branches that put no threads in order: a program has all of
these); blocks of the grid that are not in the program (`grid` compares blocks; the command's
`--block all` calls it); opaque code; registers that the compiler needs.
"""

from collections.abc import Iterable
from dataclasses import replace

from pallascope.arguments import PROGRAM, expect, expect_flags
from pallascope.checking.bounds import Bounds
from pallascope.checking.deadlock import deadlock
from pallascope.checking.detector import Detector
from pallascope.checking.facts import Fault, Fleeting, Remark
from pallascope.checking.facts.left_out import Truncated, Unchecked
from pallascope.checking.interleavings import shortest
from pallascope.checking.lanes import LanesApart
from pallascope.checking.launch import EarlyLaunch
from pallascope.checking.left_out import LeftOut
from pallascope.checking.leftover import Arrivals, Readers
from pallascope.checking.memory import Memory
from pallascope.checking.multicasts import MixedTiles
from pallascope.checking.order import Order
from pallascope.checking.reductions import Reductions
from pallascope.checking.resources import Resources
from pallascope.checking.scopes import Foregone
from pallascope.checking.semaphores import orders
from pallascope.garbage import uncollected
from pallascope.interleaving import Interleaving
from pallascope.program import Program
from pallascope.report import Finding, Report

# Faults of one kind, and remarks, are in this order.
_DETECTORS: tuple[type[Detector], ...] = (
    LeftOut,
    Bounds,
    MixedTiles,
    Memory,
    Readers,
    Foregone,
    EarlyLaunch,
    Reductions,
    LanesApart,
    Arrivals,
    Resources,
)


def check(program: Program, *, strict: bool = False) -> Report:
    """The faults of a program that some schedule of its threads can bring out.

    Args:
      program: what `trace` gave, or one built by hand.
      strict: also report asynchronous copies that overwrite what a thread has read with ordinary
        loads, with no `commit_smem` between (see the module's docstring).

    Returns:
      a `Report`: an iterable of `Finding`s, empty if there is no fault.

    Raises:
      TypeError: `program` is not a Program, or `strict` not True or False.

    Example:
      >>> program = gallery.GALLERY["missing-commit"].program(fixed=False)
      >>> report = pallascope.check(program)
      >>> report.ok
      False
      >>> print(report[0].cause)
      the store of thread 0 reads `o_smem`, which thread 0 wrote with
      ordinary accesses, and no commit_smem stands between: the two may be
      seen in another order.
      >>> mended = gallery.GALLERY["missing-commit"].program(fixed=True)
      >>> print(pallascope.check(mended))
      missing_commit: no finding (9 ops of 1 thread checked)
    """
    expect("check", program, *PROGRAM)
    expect_flags("check", strict=strict)
    with uncollected():
        return _checked(program, strict)


def _checked(program: Program, strict: bool) -> Report:
    findings, order = Findings(program), orders(program)
    detectors = [detector(order, strict=strict) for detector in _DETECTORS]
    watching = [each for each in detectors if type(each).see is not Detector.see]
    for event in order:
        for each in watching:
            findings.add_all(each.see(event))
    remarks: list[Remark] = [Truncated()] if program.truncated else []
    if (stuck := deadlock(program, order)) is not None:
        findings.add(stuck)
        remarks.append(Unchecked())
    is_whole = not remarks
    for each in detectors:
        findings.add_all(each.finish(is_whole))
        remarks += each.remarks()
    notes = tuple(remark.note(program) for remark in remarks)
    return Report(program, findings.all(order), notes)


class Findings:
    """Faults in words; of those that are alike, the first is kept and the rest are counted.

    Faults are alike if the kind, the place, and the kinds and lines of their ops are.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._found: dict[tuple[object, ...], Finding] = {}
        self._first: dict[tuple[object, ...], Fault] = {}

    def add(self, fault: Fault) -> None:
        """One more fault."""
        new = fault.finding(self.program)
        alike = new.kind, new.where, *((op.kind, op.line, op.scope) for op in new.ops)
        seen = self._found.get(alike)
        self._found[alike] = replace(seen, count=seen.count + 1) if seen else new
        self._first.setdefault(alike, fault)

    def add_all(self, faults: Iterable[Fault]) -> None:
        """More faults, in order."""
        for fault in faults:
            self.add(fault)

    def all(self, order: Order) -> tuple[Finding, ...]:
        """What was found, in the order of first occurrence, with orders of ops that show it."""
        fleeting = [
            (alike, fault, fault.clash)
            for alike, fault in self._first.items()
            if isinstance(fault, Fleeting) and fault.clash.spots
        ]
        found = shortest(order, [clash for *_, clash in fleeting])
        for (alike, fault, clash), turns in zip(fleeting, found, strict=True):
            if turns is not None:
                then = fault.moment(self.program)
                shown = Interleaving(turns, clash.coming, clash.in_flight, then)
                self._found[alike] = replace(self._found[alike], interleaving=shown)
        return tuple(self._found.values())
