"""`verify`: the whole verdict on a function that calls Mosaic GPU kernels, as they are launched.

The model. Each kernel that the function calls is asked, on no GPU:

=========  =========================================================================================
traced     what does each thread do, in each block of `BlockChoice`?
checked    is each of these blocks right under every schedule of its threads?
compared   do these blocks leave each other's memory alone, and is every part of an output written?
lowered    does JAX lower the kernel for a GPU? The interpreter and the trace take kernels that
           Mosaic GPU refuses: a block of 512 rows, which TMA cannot copy, or rows of 12 bytes. That
           is a finding as the others are, `not-lowered`, of the first block
compiled   where nothing was found, and JAX's CUDA plugin and ptxas are at hand: what does ptxas say
           that costs time, as serialized products and spilled registers?
=========  =========================================================================================

All but the last take time that is linear in the ops of the blocks, of which edges come first. After
`seconds`, or `MOST_OPS` ops, no further block is begun. A `KernelVerdict` says what was not looked
at: blocks, and the compiler where it is not at hand.

Not covered: blocks that wait for each other by semaphores, but for `BlockChoice.TOGETHER`; values
of results.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from numbers import Real

from pallascope import compiling
from pallascope.arguments import expect, expect_flags
from pallascope.checking.check import check
from pallascope.checking.grid import Footprint, compare, footprint
from pallascope.compiling.kernels import compiled_call, launched
from pallascope.compiling.lowering import lowered, natively
from pallascope.failing import in_words, is_ours
from pallascope.program import Name, Program
from pallascope.report import Finding, FindingKind, Report, count
from pallascope.tracing.trace import CLAIMS, Tracer, expect_integers, tracers
from pipelib import targets

type Block = tuple[int, ...]

#: The most blocks of a grid of which each is looked at.
MOST_BLOCKS = 32
#: Seconds after which no further block is begun.
SECONDS = 30.0
#: What is told where ptxas was not asked.
UNCOMPILED = "not looked at: what ptxas makes of it (`python -m pallascope compile` needs more)"
#: Ops, in all blocks of a kernel, after which none is begun: a gigabyte or two.
MOST_OPS = 2_000_000


class BlockChoice(
    Name, what="a choice of blocks", consequence="it is unknown which blocks to check"
):
    """Which blocks of a grid are looked at; equal to its name, so `blocks="first"` will do.

    Edges fail first. `ALL` takes every block of a small grid; of a large one those that are first,
    middle or last on each axis. `DIAGONAL` takes the first, the middle and the last of all axes,
    and `FIRST` one. `TOGETHER` takes all blocks into one program, and all devices if the function
    calls the kernel within `jax.shard_map`, for those that wait for each other by semaphores.

    Example:
      >>> BlockChoice.DIAGONAL.of((4, 3))
      [(0, 0), (2, 1), (3, 2)]
    """

    FIRST = "first"
    DIAGONAL = "diagonal"
    ALL = "all"
    TOGETHER = "together"

    def of(self, grid: tuple[int, ...]) -> list[Block]:
        """These blocks of a grid, each once, the first block first."""
        if self is BlockChoice.ALL:
            axes = [range(size) for size in grid]
            if math.prod(grid) > MOST_BLOCKS:
                axes = [sorted({0, size // 2, size - 1}) for size in grid]
            return list(itertools.product(*axes))
        found = [tuple(0 for _ in grid)]
        if self is BlockChoice.DIAGONAL:
            found += [tuple(size // 2 for size in grid), tuple(size - 1 for size in grid)]
        return list(dict.fromkeys(found))


#: What `verify` takes for `blocks`: a choice, or blocks by their indices on the axes of the grid.
type Blocks = BlockChoice | str | Sequence[Block]


@dataclasses.dataclass(frozen=True, slots=True)
class KernelVerdict:
    """What came of one kernel.

    Attributes:
      name: the kernel's; the second of one name that a function calls ends with " (2)".
      grid: the blocks, or clusters, along each axis.
      reports: of each block that was looked at.
      between: of what these blocks do to each other; None if one was looked at.
      refusal: why it was not checked, or not to the end, in a sentence; empty if it was.
      compiled: what ptxas says that costs time; None if it was not asked.
      unseen: which blocks were not looked at, and why; empty if all that were asked for were.
    """

    name: str
    grid: tuple[int, ...]
    reports: tuple[Report, ...] = ()
    between: Report | None = None
    refusal: str = ""
    compiled: tuple[str, ...] | None = None
    unseen: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all reports."""
        return tuple(finding for report in self._all for finding in report)

    @property
    def ok(self) -> bool:
        """Whether it was checked, and nothing was found; what ptxas says costs only time."""
        return not self.refusal and not self.findings

    @property
    def summary(self) -> str:
        """Which blocks of the grid were looked at, and what came of it, in a line."""
        total, done = math.prod(self.grid), len(self.reports)
        noun = "cluster" if done and self.reports[0].program.blocks > 1 else "block"
        number = f"all {total:,}" if done == total else f"{done:,} of {total:,}"
        which = f"{number} {noun}s of grid {self.grid}"
        if not self.findings:
            return f"{self.name}: no finding in {which}, nor between them"
        faulty = sum(not report.ok for report in self.reports) or "none"
        between = "" if self.between is None or self.between.ok else ", and between them"
        return f"{self.name}: {which} checked; {faulty} with findings{between}"

    @property
    def _all(self) -> tuple[Report, ...]:
        return (*self.reports, *filter(None, [self.between]))

    def __str__(self) -> str:
        """The reports, each fault once; what else there is to say; how much was looked at."""
        said = list(self._told())
        said += [f"{self.name}: not checked: {self.refusal}"] * bool(self.refusal)
        said += [f"slow: {fault}" for fault in self.compiled or ()]
        said += [f"not looked at: {self.unseen}"] * bool(self.unseen)
        if len(self.reports) > 1:
            said.append(self.summary)
        return "\n".join(said)

    def _told(self) -> Iterator[str]:
        """The reports that say something which none before did; the only one, whatever it says."""
        seen: set[object] = set()
        for report in self._all:
            faults = ((f.cause, *(op.line for op in f.ops)) for f in report)
            news = {*faults, *report.notes} - seen
            if news or len(self._all) == 1:
                yield str(report)
            seen |= news


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found: `kernels`, one `KernelVerdict` for each that the function calls.

    `lacking` says why ptxas was not asked, where what that takes is not installed.

    Example:
      >>> x = jax.ShapeDtypeStruct((4096, 512), jnp.float32)
      >>> verdict = pallascope.verify(softmax, x)
      >>> verdict.ok
      True
    """

    kernels: tuple[KernelVerdict, ...]
    lacking: str = ""

    @property
    def ok(self) -> bool:
        """Whether all were checked, and nothing was found."""
        return all(kernel.ok for kernel in self.kernels)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all kernels."""
        return tuple(finding for kernel in self.kernels for finding in kernel.findings)

    def __str__(self) -> str:
        said = "\n\n".join(map(str, self.kernels))
        return f"{said}\n{UNCOMPILED}" if self.lacking else said

    __repr__ = __str__


def verify(
    kernel: Callable[..., object],
    *args: object,
    strict: bool = False,
    blocks: Blocks = BlockChoice.ALL,
    call: int | None = None,
    max_steps: int | None = None,
    seconds: float = SECONDS,
    compiler: bool = True,
) -> Verdict:
    """The whole verdict on a function that calls kernels, for every schedule, on no GPU.

    Args:
      kernel: a function that calls one `plgpu.kernel`, or several.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Nothing is run.
      strict: as in `pallascope.check`.
      blocks: which blocks of each grid are checked, and compared with each other.
      call: which kernel, from 0, if not all of them.
      max_steps: as in `pallascope.trace`.
      seconds: no block is begun after so long; the first one of each kernel always is.
      compiler: whether ptxas is asked, where it is at hand and nothing was found: two to four
        seconds a kernel.

    Returns:
      A `Verdict`: print it, or ask whether it is `ok`.

    Raises:
      TypeError: `kernel` is not a function.
      ValueError: a number out of its range; `blocks` is no choice of blocks; the function calls no
        kernel, or not that one.
      NotImplementedError: a kernel for a TPU or Triton.

    Example:
      >>> racy = gallery.GALLERY["missing-commit"]
      >>> args = racy.arguments(np.random.default_rng(0), 1)
      >>> verdict = pallascope.verify(functools.partial(racy.kernel, fixed=False), *args)
      >>> [finding.kind for finding in verdict.findings]
      ['missing-commit']
    """
    expect_integers("verify", max_steps=max_steps, call=call)
    expect_flags("verify", strict=strict, compiler=compiler)
    expect("verify", seconds, Real, "a number for seconds=", "give one, or leave it out")
    expect("verify", blocks, Sequence, "a choice or a list for blocks=", "give all, or indices")
    if not blocks:
        raise ValueError(f"verify: {blocks=} has 0 blocks, so nothing would be checked: give one.")
    if not seconds > 0:
        raise ValueError(f"verify: {seconds=} is not above 0, so no block could begin: give more.")
    choice = BlockChoice(blocks) if isinstance(blocks, str) else blocks
    deadline = time.monotonic() + seconds
    with natively():  # what a GPU will run, though the caller may have asked for the interpreter
        found = tracers(kernel, args, "verify", call)
        looked = [_looked(tracer, strict, choice, max_steps, deadline) for tracer in found]
    if not compiler or not all(kernel.ok for kernel in looked):
        return Verdict(tuple(looked))
    if lacking := compiling.lacking():
        return Verdict(tuple(looked), lacking)
    return Verdict(tuple(map(_compiled, found, looked)))


def _looked(
    tracer: Tracer,
    strict: bool,
    choice: BlockChoice | Sequence[Block],
    max_steps: int | None,
    deadline: float,
) -> KernelVerdict:
    """Checks the blocks of a kernel while there is time and room, and compares them; lowers it."""
    asked = choice.of(tracer.grid) if isinstance(choice, BlockChoice) else [*choice]
    reports: list[Report] = []
    prints: list[Footprint] = []
    refusal, ops = "", 0
    for block in asked:
        if reports and (time.monotonic() > deadline or ops > MOST_OPS):
            break
        try:
            program, compared = _programs(tracer, block, max_steps, choice, is_first=not reports)
        except Exception as error:  # the trace's refusal, or the author's own error
            if is_ours(error):
                raise
            refusal = in_words(error)
            break
        reports.append(_checked(program, strict))
        prints.append(footprint(compared))
        ops += sum(map(len, program.threads))
    if reports:
        reports[0] = _lowered(tracer, reports[0])
    between = compare(prints) if len(prints) > 1 else None
    left = len(asked) - len(reports)
    why = "time" if time.monotonic() > deadline else "room"
    unseen = f"{count(left, 'block')} of {tracer.name}, for which there was no {why}"
    unseen *= bool(left and not refusal)
    return KernelVerdict(tracer.name, tracer.grid, tuple(reports), between, refusal, None, unseen)


def _programs(
    tracer: Tracer,
    block: Block,
    max_steps: int | None,
    choice: BlockChoice | Sequence[Block],
    is_first: bool,
) -> tuple[Program, Program]:
    """The program of a block to check, and the one to compare with other blocks'.

    A block that takes tiles of others over is checked doing so, and compared with its own tile
    alone: the others count too.
    """
    if choice is BlockChoice.TOGETHER:
        program = tracer.program(None, max_steps, whole_grid=True)
        return program, program
    program = tracer.program(block, max_steps, claims=CLAIMS if is_first else 0)
    takes_over = any(op.claims for op in program.ops)
    return program, tracer.program(block, max_steps) if takes_over else program


def _checked(program: Program, strict: bool) -> Report:
    """The report on a block; if it is not strict, a note says what a strict one has besides."""
    report = check(program, strict=True)
    letter = [finding for finding in report if finding.is_strict]
    if strict or not letter:
        return report
    kept = tuple(finding for finding in report if not finding.is_strict)
    lines = ", ".join(dict.fromkeys(f.ops[0].line or "an unknown line" for f in letter))
    note = (
        f"--strict has {count(len(letter), 'finding')} more, at {lines}: a copy overwrites what a"
        " thread has read with ordinary loads, and no commit_smem stands between. PTX asks for one,"
        " though no GPU has been seen to need it: use --strict for kernels that are to hold by"
        " PTX's letter, and for those that promise ordinary_reads=False to pipelib's emitters."
    )
    return dataclasses.replace(report, findings=kept, notes=(*report.notes, note))


def _lowered(tracer: Tracer, first: Report) -> Report:
    """The report on the first block, with a finding if JAX does not lower the kernel."""
    if any(finding.kind is FindingKind.RESOURCE for finding in first):
        return first  # JAX refuses what has no room, too
    try:
        lowered(launched(tracer.called), tracer.called.devices)
    except Exception as error:
        where = f" of {tracer.line}" if tracer.line else ""
        finding = Finding(
            FindingKind.NOT_LOWERED,
            (),
            f"JAX does not lower the kernel{where} for {targets.described()}: {in_words(error)}",
            "Mend what JAX names: the interpreter runs kernels that no GPU does.",
        )
        return dataclasses.replace(first, findings=(*first, finding))
    return first


def _compiled(tracer: Tracer, verdict: KernelVerdict) -> KernelVerdict:
    """The verdict with what ptxas says; it may be of an age or for a GPU that the kernel is not."""
    try:
        return dataclasses.replace(verdict, compiled=compiled_call(tracer.called).faults)
    except ValueError as error:
        unseen = "; ".join(filter(None, [verdict.unseen, f"what ptxas makes of it: {error}"]))
        return dataclasses.replace(verdict, unseen=unseen)
