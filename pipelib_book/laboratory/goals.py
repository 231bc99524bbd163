"""`Goal`: what a challenge asks of a reader's edits, judged by the checker and the simulator.

The model. A challenge gives a program and says what should become of it: which kinds of findings
there should be and which not, how much faster it should get, with which edits. The work must stay:
what is loaded, stored, read, written, multiplied and computed, each as often as before. `unmet`
says what is still missing, each in a sentence. `solutions` tries every single edit, of a line at
all steps and of one op alone, and returns those that meet the goal: so the page can say how many
there are. Not covered: solutions that take several edits are not counted. Source: this project's
own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pallascope.checking.check import check
from pallascope.editing import FIXED, Edit, Expect, Move, Remove, Repeat, edited, site
from pallascope.machine import B200, H200, Machine
from pallascope.program import Kind, Program, Space
from pallascope.report import FindingKind, Report, count
from pallascope.simulating.simulate import simulate

#: Edits by their names, in words.
WORDS = {
    "remove": "taking away",
    "repeat": "doing twice",
    "move": "moving",
    "expect": "changing the arrivals",
}
#: Kinds of ops that move data or compute.
WORK = frozenset({
    Kind.LOAD, Kind.STORE, Kind.PREFETCH, Kind.READ, Kind.WRITE, Kind.COMPUTE, Kind.WGMMA,
    Kind.ACC_READ, Kind.ACC_WRITE, Kind.TCGEN05_MMA, Kind.TCGEN05_COPY, Kind.LOAD_TMEM,
    Kind.STORE_TMEM, Kind.CP_ASYNC,
})  # fmt: skip


def card(program: Program) -> Machine:
    """The machine to simulate a program on: an H200, or a B200 for one that uses TMEM."""
    return B200 if any(buffer.space is Space.TMEM for buffer in program.buffers) else H200


@dataclass(frozen=True, slots=True)
class Goal:
    """What should become of a program.

    Attributes:
      found: kinds of findings that there should be.
      only: whether there should be no others; with none in `found`, nothing should be found.
      fewer: how many ops fewer there should be, at least.
      faster: how many times as fast it should be, simulated, at least.
      edits: the most edits.
      by: the names of the edits that are allowed; empty if all are.
      of: the kinds of ops that edits may be of; empty if all are.
      strict: whether the check is strict; it is in any case where nothing should be found.

    Raises:
      ValueError: a kind of finding that does not exist.
    """

    found: tuple[str, ...] = ()
    only: bool = True
    fewer: int = 0
    faster: float = 1.0
    edits: int | None = None
    by: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", tuple(str(FindingKind(kind)) for kind in self.found))
        object.__setattr__(self, "strict", self.strict or not self.found)

    def check(self, program: Program) -> Report:
        """The check that the goal is judged by."""
        return check(program, strict=self.strict)

    def unmet(self, before: Program, report: Report, edits: Sequence[Edit]) -> list[str]:
        """What is still missing after these edits, in sentences; empty if nothing is.

        `report` is what `check` says of the program after them. It is `faster` on the program's
        `card`, whatever parameters of it the page shows.
        """
        after, kinds = report.program, {str(finding.kind) for finding in report}
        said = [f"The check finds no {kind}." for kind in self.found if kind not in kinds]
        others = sorted(kinds - {*self.found}) if self.only else []
        if others:
            said.append(f"The check finds {' and '.join(others)}, which there should not be.")
        if _work(before) != _work(after):
            said.append("The work is not the same: what moves data or computes must stay.")
        if self.fewer and (fewer := _ops(before) - _ops(after)) < self.fewer:
            less = count(max(fewer, 0), "op")
            said.append(f"It has {less} fewer, but should have at least {self.fewer} fewer.")
        if self.faster > 1.0 and not said:
            machine = card(before)
            gain = simulate(before, machine).cycles / simulate(after, machine).cycles
            if gain < self.faster:
                said.append(
                    f"It is {gain:.2f} times as fast, but should be {self.faster:g} times as fast."
                )
        return [*said, *self._about(before, edits)]

    def _about(self, program: Program, edits: Sequence[Edit]) -> Iterator[str]:
        """What is wrong with the edits themselves, the first of which is of this program."""
        if self.edits is not None and len(edits) > self.edits:
            yield f"There are {count(len(edits), 'edit')}, but {self.edits} should do."
        names = dict.fromkeys(type(edit).__name__.lower() for edit in edits)
        if wrong := [WORDS[name] for name in names if self.by and name not in self.by]:
            allowed = " and ".join(WORDS[name] for name in self.by)
            yield f"Only {allowed} will do here, but one of the edits is {wrong[0]}."
        for edit in edits if self.of else ():
            if isinstance(edit, Expect):
                continue
            kinds = {str(program.threads[edit.thread][index].kind) for index in edit.indices}
            if others := sorted(kinds - {*self.of}):
                yield f"The edits should be of {' and '.join(self.of)}; one is of {others[0]}."
                return
            program = edited(program, [edit])


def solutions(program: Program, goal: Goal) -> list[Edit]:
    """The single edits that meet a goal."""
    return [
        edit
        for edit in _singles(program)
        if not goal.unmet(program, goal.check(edited(program, [edit])), [edit])
    ]


def _work(program: Program) -> list[Counter[object]]:
    """What each thread does that moves data or computes, and how often."""
    return [
        Counter((op.kind, op.reads, op.writes) for op in ops if op.kind in WORK)
        for ops in program.threads
    ]


def _ops(program: Program) -> int:
    return sum(map(len, program.threads))


def _singles(program: Program) -> Iterator[Edit]:
    """Each edit that a page offers: of a site, of one op, of a barrier's arrivals."""
    for thread, ops in enumerate(program.threads):
        chosen = dict.fromkeys(
            each
            for index, op in enumerate(ops)
            if op.kind not in FIXED
            for each in (site(program, thread, index), (index,))
        )
        for indices in chosen:
            yield from _of(thread, indices)
    for barrier in program.barriers:
        for arrivals in (barrier.arrivals - 1, barrier.arrivals + 1):
            if arrivals:
                yield Expect(barrier.id, arrivals)


def _of(thread: int, indices: Sequence[int]) -> Iterator[Edit]:
    """The edits of some ops of a thread."""
    yield Remove(thread, tuple(indices))
    yield Repeat(thread, tuple(indices))
    for by in (-1, 1):
        yield Move(thread, tuple(indices), by)
