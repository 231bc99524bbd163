"""`advise`: which edits of a kernel's schedule make it faster, and still right.

The model. A kernel's schedule is edited in its program (`editing`), as an author would edit it in
the source: at one line, in every step. The edits are

=======  ===========================================================================================
edit     what becomes of it
=======  ===========================================================================================
remove   a wait or a fence goes; or all waits for a barrier, with its arrivals
move     an op stands earlier or later in its thread, by up to a step and a half
relax    a wait leaves one product, store or copy more in flight, or waits for stores' reads only;
         also with arrivals that move behind the next such wait
deepen   the rings of n slots get one more (`deepening`)
=======  ===========================================================================================

Each is simulated. Of those that gain, the fastest first, `check` says whether they are right, as
strictly as the kernel is now, and `values` whether each access reads what it read before. What
passes both is a `Hint`: its gain, and what would be wrong if the same edit went further. Only a
change to the critical cycle can gain; `Advice` tells that, too.

Not covered: edits of several lines at once, but for those above; values in registers, whose order
stays; what the compiler does by itself, which places arithmetic as it likes; other blocks of the
grid. A hint is a sentence about the model of time: measure. Source: this project's own.
"""

import dataclasses
import itertools
import math
import pathlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real

from pallascope.arguments import MACHINE, expect, expect_flags
from pallascope.checking.check import check
from pallascope.deepening import deepened, depths
from pallascope.drawing.paths import relative_paths
from pallascope.editing import (
    FIXED,
    RELAXED,
    WAIT_STORES,
    Edit,
    Move,
    Relax,
    Remove,
    edited,
    order,
    site,
)
from pallascope.machine import H200, Machine
from pallascope.playing import bare
from pallascope.program import Kind, Op, Program
from pallascope.progress import Progress, steps
from pallascope.report import count
from pallascope.simulating.simulate import simulate
from pallascope.tracing.trace import trace
from pallascope.values import sources_of

#: Seconds after which no further edit is tried.
SECONDS = 60.0
#: The most hints, and the least gain of one: a fraction of the cycles.
_MOST, _LEAST = 5, 0.01
#: The most ops of a block that is looked at whole; steps of the loops of a longer one.
_MOST_OPS, _STEPS = 4_000, 16
#: How much of a gain is worth no further move, and how many relaxed waits get moved arrivals.
_ALIKE, _BOLD = 0.004, 4
#: Kinds of ops that only order others.
_ORDERING = frozenset({Kind.WAIT, Kind.FENCE, *RELAXED})
#: Kinds of ops that gain nothing by being later: what others wait for. And nothing by being
#: earlier: what waits.
_EARLIER = frozenset({Kind.ARRIVE, Kind.LOAD, Kind.STORE, Kind.WGMMA, Kind.CP_ASYNC})
_LATER = frozenset({Kind.SIGNAL, *_ORDERING})
#: Kinds of ops that are not moved by themselves: the compiler places arithmetic.
_STAY = frozenset({Kind.COMPUTE, Kind.COMMIT_GROUP, Kind.REGISTERS})


@dataclass(frozen=True, slots=True)
class Hint:
    """One piece of advice.

    Attributes:
      line: "file:line" of what is edited; empty for what is of no line.
      text: the edit, in words.
      cycles: of the block after it.
      gain: by how much that is less, as a fraction of the cycles before.
      further: what would be wrong if the same went further, in words; empty if nothing would, or if
        it cannot.
      edits: of the program, as `pallascope.editing.edited` takes them; none for a slot more.
    """

    line: str
    text: str
    cycles: float
    gain: float
    further: str = ""
    edits: tuple[Edit, ...] = ()

    def __str__(self) -> str:
        more = f" {self.further}" if self.further else ""
        return f"{self.text}: {self.gain:.1%} fewer cycles ({self.cycles:,.0f}).{more}"


@dataclass(frozen=True, slots=True)
class Advice:
    """What `advise` found: the best hints first.

    Attributes:
      name: the kernel's.
      machine: the name of the simulated machine.
      cycles: of the block as it is.
      bound: what bounds it, as `Timeline.bound` says.
      hints: each for itself, not one on top of another.
      tried: how many edits were simulated; `left`, for how many there was no time.

    Example:
      >>> config = pipelib.kernels.MatmulConfig(
      ...     64, 64, slots=3, compute_threads=1, delay_release=0, form="specialized")
      >>> a = jax.ShapeDtypeStruct((512, 2048), jnp.bfloat16)
      >>> b = jax.ShapeDtypeStruct((2048, 512), jnp.bfloat16)
      >>> kernel = functools.partial(pipelib.kernels.matmul, config=config)
      >>> advice = pallascope.advise(kernel, a, b, progress=False)
      >>> print(advice.hints[0])
      Give the rings of 3 slots one more (16,400 B of SMEM): ...% fewer
      cycles (...).
    """

    name: str
    machine: str
    cycles: float
    bound: str
    hints: tuple[Hint, ...]
    tried: int
    left: int = 0

    def __str__(self) -> str:
        said = [f"{self.name}, simulated on {self.machine}: {self.cycles:,.0f} cycles a block."]
        said += [f"{number}. {hint}" for number, hint in enumerate(self.hints, 1)]
        if not self.hints:
            said.append(f"No edit of {self.tried:,} that is right gains {_LEAST:.0%}.")
        said.append(f"Bound: {self.bound}.")
        if self.left:
            said.append(f"Not tried, for want of time: {count(self.left, 'edit')}.")
        return "\n".join(said)

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class _Try:
    """An edit, what it makes of the program, and how long that takes; `what` it is of, and `size`.

    The size is how far it goes: of two that gain alike the smaller one is told.
    """

    what: object
    size: int
    edits: tuple[Edit, ...]
    program: Program
    cycles: float = math.inf
    text: str = ""
    line: str = ""


def advise(
    kernel: Callable[..., object],
    *args: object,
    machine: Machine = H200,
    block: tuple[int, ...] | None = None,
    call: int | None = None,
    max_steps: int | None = None,
    seconds: float = SECONDS,
    progress: Progress = True,
) -> Advice:
    """Which edits of a kernel's schedule would make it faster, by simulation, and still right.

    Args:
      kernel: a function that calls a `plgpu.kernel`, or a `Program`, with no arguments then.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Nothing is run.
      machine: what is simulated.
      block, call, max_steps: as in `pallascope.trace`. By default loops run for 16 steps at most
        where the block has more than 4,000 ops.
      seconds: after so long no further edit is tried.
      progress: True for tqdm's bar (the extra `tune`), or printed lines without tqdm; a function
        for the lines; False for none.

    Returns:
      An `Advice`: print it.

    Raises:
      TypeError: `kernel` is no function, or an option is of another type.
      ValueError: the kernel has findings as it is; a number out of its range.
      NotImplementedError: as `pallascope.trace`.

    Example:
      >>> x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
      >>> advice = pallascope.advise(softmax, x, progress=False)
      >>> [hint.gain > 0 for hint in advice.hints]
      [...]
    """
    expect("advise", machine, *MACHINE)
    if not callable(progress):
        expect_flags("advise", progress=progress)
    expect("advise", seconds, Real, "a number for seconds=", "give one, or leave it out")
    if not seconds > 0:
        raise ValueError(
            f"advise: {seconds=} is not above 0, so no edit could be tried: give more."
        )
    if isinstance(kernel, Program):
        program = kernel
    else:
        program = trace(kernel, *args, block=block, call=call, max_steps=max_steps)
        if max_steps is None and sum(map(len, program.threads)) > _MOST_OPS:
            program = trace(kernel, *args, block=block, call=call, max_steps=_STEPS)
    return _Search(program, machine, time.monotonic() + seconds).advice(progress)


class _Search:
    """The search for edits of one program."""

    def __init__(self, program: Program, machine: Machine, deadline: float):
        self.program, self.machine = program, machine
        self.deadline, self.left, self.tried = deadline, 0, 0
        report = check(program, strict=True)
        self.strict = report.ok
        if not self.strict:
            report = check(program)
        if not report.ok:
            raise ValueError(
                f"{program.name} has {count(len(report.findings), 'finding')} as it is, so no edit"
                f" of it can be told from a fault: mend it first. {report[0]}"
            )
        self.notes = {*report.notes}
        self.timeline = simulate(program, machine)
        self.cycles, self.sources = self.timeline.cycles, sources_of(program)

    def advice(self, progress: Progress) -> Advice:
        """All of it."""
        tries = [*_tries(self.program)]
        with steps(progress, "trying", len(tries)) as step:
            timed = [each for each in map(self._timed, tries, itertools.repeat(step)) if each]
        bold: list[_Try] = []
        hints = self._hints(timed, bold)
        more = [*_with_moved_arrivals(self.program, bold)]
        hints += self._hints([each for each in map(self._timed, more) if each], [])
        best = sorted(hints, key=lambda hint: hint.cycles)[:_MOST]
        bound, name = self.timeline.bound(), self.program.name
        return Advice(
            name, self.machine.name, self.cycles, bound, tuple(best), self.tried, self.left
        )

    def _timed(self, each: _Try, step: Callable[[str], None] | None = None) -> _Try | None:
        """A try that gains, with its time; None if it does not, or if there is no time."""
        if time.monotonic() > self.deadline:
            self.left += 1
            return None
        self.tried += 1
        timeline = simulate(each.program, self.machine)
        if step is not None:
            step(each.text)
        if timeline.stuck or timeline.cycles > (1 - _LEAST) * self.cycles:
            return None
        return dataclasses.replace(each, cycles=timeline.cycles)

    def _hints(self, tries: list[_Try], bold: list[_Try]) -> list[Hint]:
        """The hints that tries come to, one for each thing edited; what is wrong goes to `bold`."""
        faults: defaultdict[object, list[tuple[int, str]]] = defaultdict(list)
        right: dict[object, _Try] = {}
        for each in sorted(tries, key=lambda each: (each.cycles, each.size)):
            best, is_late = right.get(each.what), time.monotonic() > self.deadline
            if best is None and (len(right) >= 2 * _MOST or is_late):
                continue
            most = math.inf if best is None else best.cycles + _ALIKE * self.cycles
            if best is not None and (each.size >= best.size or each.cycles > most):
                continue
            if fault := self._fault(each.program):
                faults[each.what].append((each.size, fault))
                bold.append(each)
            else:
                right[each.what] = each
        # Two edits may come to the same: an op that is later, and the other that is earlier.
        unlike = {_unnumbered(each.program): each for each in [*right.values()][::-1]}
        return [self._hint(each, faults[each.what]) for each in unlike.values()]

    def _hint(self, each: _Try, faults: list[tuple[int, str]]) -> Hint:
        """A try in words, with the fault of the next that goes further."""
        further = min((fault for fault in faults if fault[0] > each.size), default=None)
        words = "" if further is None else f"Further, {further[1]}."
        gain = 1 - each.cycles / self.cycles
        return Hint(each.line, each.text, each.cycles, gain, words, each.edits)

    def _fault(self, program: Program) -> str:
        """What is wrong with an edited program, in a few words; empty if nothing is."""
        report = check(program, strict=self.strict)
        if not report.ok:
            line = next((op.line for op in report[0].ops if op.line), None)
            at = f" at {pathlib.PurePath(line).name}" if line else ""
            return f"the check finds {report[0].kind}{at}"
        if len(report.notes) > len(self.notes):  # their numbers may differ: how many phases
            return next(note for note in report.notes if note not in self.notes).rstrip(".")
        is_alike = sources_of(program) == self.sources
        return "" if is_alike else "something reads another value than before"


def _unnumbered(program: Program) -> Program:
    """A program to compare with others, whatever the ops' lines."""
    return dataclasses.replace(program, threads=tuple(tuple(map(bare, t)) for t in program.threads))


def _tries(program: Program) -> Iterator[_Try]:
    """Every edit that is tried, in the program."""
    for thread, ops in enumerate(program.threads):
        for indices in dict.fromkeys(site(program, thread, i) for i in range(len(ops))):
            op = ops[indices[len(indices) // 2]]
            if op.kind not in FIXED:
                yield from _of_site(program, thread, indices, op)
    yield from _without_barriers(program)
    for slots in depths(program):
        if (deeper := deepened(program, slots)) is not None:
            more = deeper.smem_bytes - program.smem_bytes
            text = f"Give the rings of {count(slots, 'slot')} one more ({more:,} B of SMEM)"
            yield _Try(("slots", slots), 1, (), deeper, text=text)


def _of_site(program: Program, thread: int, indices: tuple[int, ...], op: Op) -> Iterator[_Try]:
    """The edits of one line's ops."""

    def tried(size: int, text: str, *edits: Edit) -> _Try:
        what = thread, indices, isinstance(edits[0], Relax)
        return _Try(what, size, edits, edited(program, edits), math.inf, text, op.line or "")

    where = _where(program, op)
    if op.kind in _ORDERING:
        yield tried(0, f"Take away {where}", Remove(thread, indices))
    if op.kind in RELAXED:
        text = f"Let {where} leave {(op.pending or 0) + 1} unfinished"
        yield tried(1, text, Relax(thread, indices))
    if op.kind in WAIT_STORES and not op.read_only:
        text = f"Let {where} wait only until stores have read their SMEM"
        yield tried(0, text, Relax(thread, indices, read_only=True))
    if op.kind is Kind.STORE:  # a store and the end of its group are one line
        ops = program.threads[thread]
        ends = (i + 1 for i in indices if i + 1 < len(ops))
        ends = {i for i in ends if ops[i].kind is Kind.COMMIT_GROUP}
        indices = tuple(sorted({*indices, *ends}))
    for by, place in _ways(program, thread, indices, op.kind) if op.kind not in _STAY else ():
        yield tried(abs(by), f"Move {where} {place}", Move(thread, indices, by))


def _ways(
    program: Program, thread: int, indices: tuple[int, ...], kind: Kind
) -> Iterator[tuple[int, str]]:
    """How far ops can be moved to some use, up to a step and a half, and to where that is."""
    apart = [b - a for a, b in itertools.pairwise(indices)]
    most = max(apart, default=len(program.threads[thread])) * 3 // 2
    for way in (1, -1):
        before: list[int] | None = None
        for by in range(1, most + 1) if kind not in (_EARLIER, _LATER)[way < 0] else ():
            made = order(program, Move(thread, indices, way * by))
            if made in (before, sorted(made)):
                break
            before = made
            if place := _place(program, thread, made, indices):
                yield way * by, place


def _place(program: Program, thread: int, made: list[int], indices: tuple[int, ...]) -> str:
    """Where moved ops then are, in words; empty if they pass nothing but arithmetic.

    Arithmetic in registers holds nothing up: the compiler moves it by itself.
    """
    ops, at = program.threads[thread], {index: place for place, index in enumerate(made)}
    middle = indices[len(indices) // 2]
    index = max(indices, key=lambda i: (abs(at[i] - i), -abs(i - middle)))
    is_later = at[index] > index
    passed = made[index : at[index]][::-1] if is_later else made[at[index] + 1 : index + 1]
    passed = [each for each in passed if each not in indices]
    if all(ops[each].kind is Kind.COMPUTE for each in passed):
        return ""
    op, other = ops[index], ops[passed[0]]
    are_of_one_loop = len(op.step) == len(other.step)
    turns = (other.step[::-1] > op.step[::-1]) - (other.step[::-1] < op.step[::-1])
    step = {0: "", 1: " of the next step", -1: " of the step before"}[turns * are_of_one_loop]
    return f"{'behind' if is_later else 'before'} {_where(program, other)}{step}"


def _without_barriers(program: Program) -> Iterator[_Try]:
    """The program without each array of barriers that only threads arrive on."""
    used: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    others: set[int | None] = set()
    for thread, ops in enumerate(program.threads):
        for index, op in enumerate(ops):
            if op.kind in (Kind.WAIT, Kind.ARRIVE) and op.barrier is not None:
                used[op.barrier][thread].append(index)
            else:
                others.add(op.barrier)
    for barrier in (b for b in program.barriers if b.id in used and b.id not in others):
        edits = [Remove(thread, tuple(each)) for thread, each in used[barrier.id].items()]
        text = f"Take away all waits and arrivals on `{barrier.name}`"
        made = edited(program, edits)
        yield _Try(("barrier", barrier.id), 1, tuple(edits), made, text=text)


def _with_moved_arrivals(program: Program, bold: list[_Try]) -> Iterator[_Try]:
    """Relaxed waits, with the arrivals of their thread so much later that they are right again."""
    relaxed = [(each, edit) for each in bold for edit in each.edits if isinstance(edit, Relax)]
    for each, relax in relaxed[:_BOLD]:
        thread, ops = relax.thread, program.threads[relax.thread]
        arrivals = dict.fromkeys(
            site(program, thread, i) for i, op in enumerate(ops) if op.kind is Kind.ARRIVE
        )
        often = [indices for indices in arrivals if len(indices) > len(relax.indices) // 2]
        together = tuple(sorted(itertools.chain(*often)))
        for indices in dict.fromkeys([*often, together]) if often else ():
            apart = max((b - a for a, b in itertools.pairwise(relax.indices)), default=0)
            for by in range(1, apart * 3 // 2 + 1):
                edits = relax, Move(thread, indices, by)
                made = edited(program, edits)
                place = _place(program, thread, order(program, edits[1]), indices)
                text = f"{each.text}, and move {_where(program, ops[indices[0]])} {place}"
                what = each.what, "and arrivals"
                yield _Try(what, by, edits, made, text=text, line=each.line)


def _where(program: Program, op: Op) -> str:
    """An op by what it does, and its line."""
    match op.kind:
        case Kind.WAIT | Kind.ARRIVE:
            verb = "wait" if op.kind is Kind.WAIT else "arrival"
            words = f"the {verb} on `{program.barriers[op.barrier or 0].name}`"
        case Kind.WGMMA_WAIT:
            words = f"wgmma_wait({op.pending})"
        case Kind.WAIT_STORE:
            words = f"wait_smem_to_gmem({op.pending})"
        case Kind.FENCE:
            words = "commit_smem"
        case _:
            words = f"the {program.label(bare(op)).partition(',')[0]}"
    place = pathlib.PurePath(relative_paths(op.line or "")).name  # of a notebook's cell: "cell"
    return f"{words} ({place})" if place else words
