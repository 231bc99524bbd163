"""`check`: races, deadlocks and misused barriers of a program, for every schedule of its threads.

The model. First come accesses outside of their arrays (`bounds`), and tiles of which blocks load
parts that do not belong together (`multicasts`). `order` runs the threads once and
gives each op a clock; its docstring says why one run is enough for all interleavings. By these
clocks `memory` compares accesses, `launch` compares each access of GMEM with the end of the kernel
before, `reductions` compares what threads do in a scratch that they share, and `lanes` compares
what the lanes of one thread do, where the compiler keeps them in no order. Then comes what only
the end shows: which threads are stuck (`deadlock`), what is unfinished (`leftover`), what does not
fit (`resources`). Each of these gives `facts`, and `words` makes the sentences of the report. A
fault that only some orders of the ops bring out gets the shortest of these (`interleavings`).

The proxy question. An ordinary write needs `commit_smem` before an engine reads or overwrites the
same memory, always. By the letter of PTX an ordinary *read* of a slot needs one too before a load
overwrites the slot, and pipelib's emitters have it. JAX's emitters do not, and no fault has been
seen on hardware, so this is a finding only with `strict=True`.

Not covered: what the answer of a barrier test or the contents of tensors decide (`trace` refuses
flow that depends on them, but for branches that put no threads in order: a program has all of
these); blocks of the grid that are not in the program (`grid` compares blocks; the command's
`--block all` calls it); opaque code; memory that several scopes have one after another at the same
address; registers that the compiler needs.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace

from pipelib.schedule.arguments import PROGRAM, expect
from pipelib.schedule.checking import words
from pipelib.schedule.checking.bounds import beyond_arrays, out_of_bounds
from pipelib.schedule.checking.deadlock import deadlock
from pipelib.schedule.checking.facts import (
    Fault,
    Overshoot,
    Remark,
    Signalled,
    Tested,
    Truncated,
    Trusted,
    Unchecked,
    clash_of,
)
from pipelib.schedule.checking.interleavings import shortest
from pipelib.schedule.checking.lanes import Lanes
from pipelib.schedule.checking.launch import Launch
from pipelib.schedule.checking.leftover import Readers, early_exits, left_over, unobserved
from pipelib.schedule.checking.memory import Memory
from pipelib.schedule.checking.multicasts import mixed_tiles
from pipelib.schedule.checking.order import Order
from pipelib.schedule.checking.reductions import Reductions
from pipelib.schedule.checking.resources import (
    barriers,
    named_barriers,
    register_requests,
    registers,
    shared_memory,
    tensor_memory,
)
from pipelib.schedule.checking.semaphores import orders
from pipelib.schedule.garbage import uncollected
from pipelib.schedule.interleaving import Interleaving
from pipelib.schedule.program import BarrierType, Kind, Program
from pipelib.schedule.report import Finding, Report


def check(program: Program, *, strict: bool = False) -> Report:
    """The faults of a program that some schedule of its threads can bring out.

    Args:
      program: what `trace` gave, or one built by hand.
      strict: also report asynchronous copies that overwrite what a thread has read with ordinary
        loads, with no `commit_smem` between (see the module's docstring).

    Returns:
      a `Report`: an iterable of `Finding`s, empty if there is no fault.

    Raises:
      TypeError: `program` is not a Program.

    Example:
      >>> program = gallery.GALLERY["missing-commit"].program(fixed=False)
      >>> report = pipelib.check(program)
      >>> report.ok
      False
      >>> print(report[0].cause)
      the store of thread 0 reads `o_smem`, which thread 0 wrote with
      ordinary accesses, and no commit_smem stands between: the two may be
      seen in another order.
      >>> mended = gallery.GALLERY["missing-commit"].program(fixed=True)
      >>> print(pipelib.check(mended))
      missing_commit: no finding (9 ops of 1 thread checked)
    """
    expect("check", program, *PROGRAM)
    with uncollected():
        return _checked(program, strict)


def _checked(program: Program, strict: bool) -> Report:
    findings, order = Findings(program), orders(program)
    memory, readers = Memory(program, findings.add, strict), Readers(order)
    launch, reductions, lanes = Launch(order), Reductions(order), Lanes(order)
    findings.add_all(out_of_bounds(program))
    findings.add_all(mixed_tiles(program))
    overshoots: list[Remark] = []
    for fact in beyond_arrays(program):
        if isinstance(fact, Overshoot):
            overshoots.append(fact)
        else:
            findings.add(fact)
    for event in order:
        memory.see(event)
        findings.add_all(readers.see(event))
        findings.add_all(launch.see(event))
        findings.add_all(reductions.see(event))
        findings.add_all(lanes.see(event))
    findings.add_all(order.misused)
    stuck = deadlock(program, order)
    if stuck is not None:
        findings.add(stuck)
    is_whole = stuck is None and not program.truncated
    memory.finish(is_whole)
    if is_whole:
        findings.add_all(readers.finish())
        findings.add_all(early_exits(order))
        for (barrier, index), place in order.places.items():
            if program.barriers[barrier].type is BarrierType.MBARRIER:
                findings.add_all(left_over(order, barrier, index, place))
    findings.add_all(shared_memory(program))
    findings.add_all(tensor_memory(program))
    findings.add_all(barriers(program))
    findings.add_all(named_barriers(program))
    findings.add_all(register_requests(program))
    for block in range(program.blocks):
        findings.add_all(registers(program, block))
    remarks = [
        *_remarks(program, stuck is not None, order.semaphores.places),
        *overshoots,
        *memory.remarks(),
        *launch.remarks(),
        *reductions.remarks(),
        *lanes.remarks(),
    ]
    if is_whole:
        remarks += unobserved(order)
    notes = tuple(words.note(program, remark) for remark in remarks)
    return Report(program, findings.all(order), notes)


def _remarks(program: Program, is_stuck: bool, places: Set[tuple[int, int]]) -> Iterator[Remark]:
    """What the check did not look at."""
    if program.truncated:
        yield Truncated()
    if is_stuck:
        yield Unchecked()
    opaque = {op.function for ops in program.threads for op in ops if op.kind == Kind.OPAQUE}
    if opaque:
        yield Trusted(tuple(sorted(opaque)))
    if any(op.kind == Kind.TEST for ops in program.threads for op in ops):
        yield Tested()
    signalled = tuple(
        barrier.name for barrier in program.barriers
        if barrier.type is BarrierType.SEMAPHORE
        and any((barrier.id, index) not in places for index in range(barrier.count))
    )  # fmt: skip
    if signalled:
        yield Signalled(signalled)


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
        new = words.finding(self.program, fault)
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
        clashes = {k: clash for k, fault in self._first.items() if (clash := clash_of(fault))}
        found = shortest(order, [*clashes.values()])
        for (alike, clash), turns in zip(clashes.items(), found, strict=True):
            if turns is not None:
                then = words.moment(self.program, self._first[alike])
                shown = Interleaving(turns, clash.coming, clash.in_flight, then)
                self._found[alike] = replace(self._found[alike], interleaving=shown)
        return tuple(self._found.values())
