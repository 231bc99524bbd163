"""`Goal`: what a challenge asks of a reader's edits, judged by the checker and the simulator.

The model. A challenge gives a program and says what should become of it: which kinds of findings
there should be and which not, how much faster it should get, with which edits. The work must stay:
what is loaded, stored, read, written, multiplied and computed, each as often as before. `unmet`
says what is still missing, each in a sentence. A press of a key moves an op by one place, so moves
of the same ops one after another are one edit. `solutions` tries every single edit, of a line at
all steps and of one op alone, and, if asked, every two of them, and returns the ways that meet the
goal: so the page can say how many there are. Not covered: solutions of more edits. Source: this
project's own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pallascope.checking.check import check
from pallascope.editing import (
    FIXED,
    Edit,
    Expect,
    Move,
    OfOps,
    Remove,
    Repeat,
    edited,
    order,
    site,
)
from pallascope.machine import B200, H200, Machine
from pallascope.program import Kind, Op, Program, Space
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
      on: the names of the barriers that the ops of edits may wait for or arrive at; empty if edits
        may be of any ops.
      needs: the names of edits that there must be.
      once: whether each edit should be of one op alone, and not of its line at every step.
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
    on: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    once: bool = False
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
        if self.edits is not None and (made := made_of(program, edits)) > self.edits:
            yield f"There are {count(made, 'edit')}, but {self.edits} should do."
        names = dict.fromkeys(type(edit).__name__.lower() for edit in edits)
        if wrong := [WORDS[name] for name in names if self.by and name not in self.by]:
            allowed = " and ".join(WORDS[name] for name in self.by)
            yield f"Only {allowed} will do here, but one of the edits is {wrong[0]}."
        if missing := [WORDS[name] for name in self.needs if name not in names]:
            yield f"It takes {' and '.join(missing)} of something, too."
        for edit in edits:
            if fault := "" if isinstance(edit, Expect) else self._fault_of(program, edit):
                yield fault
                return
            program = edited(program, [edit])

    def _fault_of(self, program: Program, edit: OfOps) -> str:
        """What is wrong with an edit of ops of a program, in a sentence; empty if nothing is."""
        kinds = {str(program.threads[edit.thread][index].kind) for index in edit.indices}
        if self.of and (others := sorted(kinds - {*self.of})):
            return f"The edits should be of {' and '.join(self.of)}; one is of {others[0]}."
        named = {_name(program, program.threads[edit.thread][index]) for index in edit.indices}
        if self.on and (others := sorted(named - {*self.on})):
            which = f"one is of {others[0]}" if others[0] else "one is of none"
            return f"The edits should be of lines on {' and '.join(self.on)}; {which}."
        if self.once and len({*edit.indices}) > 1:
            return f"One operation should be edited, but this edit is of {len(edit.indices)}."
        return ""


def solutions(program: Program, goal: Goal, most: int = 1, far: int = 1) -> list[tuple[Edit, ...]]:
    """The ways to meet a goal with `most` edits, 1 or 2, an answer for each way.

    The same edit at another step is the same way, and so is a move that goes further than it must.
    No answer has an edit that it could do without. Where there is one edit, a move is by up to
    `far` places, and where there are two, by one place.
    """
    found, seen = dict[frozenset[_Way], tuple[Edit, ...]](), {program}
    firsts = list[tuple[Edit, _Way, Program]]()
    for edit, way in _singles(program, goal, far):
        after = edited(program, [edit])
        if frozenset([way]) in found or after in seen:
            continue
        seen.add(after)
        if not goal.unmet(program, goal.check(after), [edit]):
            found[frozenset([way])] = (edit,)
        elif not isinstance(edit, Move) or abs(edit.by) == 1:
            firsts.append((edit, way, after))
    single = {way for ways in found for way in ways}
    for first, way, before in firsts if most > 1 and goal.edits != 1 else ():
        for edit, other in _singles(before, goal) if way not in single else ():
            ways, after = frozenset([way, other]), edited(before, [edit])
            if other in single or ways in found or after in seen:
                continue
            seen.add(after)
            if not goal.unmet(program, goal.check(after), [first, edit]):
                found[ways] = (first, edit)
    return [*found.values()]


def made_of(program: Program, edits: Sequence[Edit]) -> int:
    """How many edits there are, moves of the same ops one after another as one."""
    made, held = 0, None
    for edit in edits:
        is_move = isinstance(edit, Move)
        made += not (is_move and held == (edit.thread, {*edit.indices}))
        held = (edit.thread, _placed(program, edit)) if is_move else None
        program = edited(program, [edit])
    return made


def _placed(program: Program, edit: Move) -> set[int]:
    """Where a move leaves its ops."""
    made = order(program, edit)
    return {made.index(index) for index in edit.indices}


def _work(program: Program) -> list[Counter[object]]:
    """What each thread does that moves data or computes, and how often."""
    return [
        Counter((op.kind, op.reads, op.writes) for op in ops if op.kind in WORK)
        for ops in program.threads
    ]


def _name(program: Program, op: Op) -> str:
    """The name of an op's barriers; "" without one."""
    return "" if op.barrier is None else program.barriers[op.barrier].name


def _ops(program: Program) -> int:
    return sum(map(len, program.threads))


#: What an edit does to which line: its name, the line and its direction, or a barrier's arrivals.
type _Way = tuple[object, ...]


def _singles(program: Program, goal: Goal, far: int = 1) -> Iterator[tuple[Edit, _Way]]:
    """Each edit that a page offers and a goal allows, the nearest moves first, with its way."""
    for thread, ops in enumerate(program.threads):
        chosen = dict.fromkeys(
            each
            for index, op in enumerate(ops)
            if op.kind not in FIXED and (not goal.of or op.kind in goal.of)
            for each in (site(program, thread, index), (index,))
        )
        for indices in chosen:
            op = ops[indices[0]]
            for name, direction, edit in _of(thread, indices, far):
                is_odd = goal.on and _name(program, op) not in goal.on
                if is_odd or (goal.by and name not in goal.by):
                    continue
                if name == "move" or op.kind not in WORK:
                    where = thread, op.kind, op.line, op.scope, op.barrier
                    yield edit, (name, direction, *where)
    for barrier in program.barriers if not goal.by or "expect" in goal.by else ():
        for arrivals in (barrier.arrivals - 1, barrier.arrivals + 1):
            if arrivals:
                yield Expect(barrier.id, arrivals), ("expect", barrier.id, arrivals)


def _of(thread: int, indices: Sequence[int], far: int) -> Iterator[tuple[str, int, Edit]]:
    """The edits of some ops of a thread, each with its name, and a move with its direction."""
    yield "remove", 0, Remove(thread, tuple(indices))
    yield "repeat", 0, Repeat(thread, tuple(indices))
    for by in range(1, far + 1):
        yield "move", -1, Move(thread, tuple(indices), -by)
        yield "move", 1, Move(thread, tuple(indices), by)
