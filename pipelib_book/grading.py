"""`grade`: what an exercise's answer is worth, by the checker, by its result, by what it must do.

Chapters call it as `book.grade`.

The model. An answer is a function that calls one kernel. It is looked at in this order, and what
fails ends it, so that a barrier that nobody arrives on hangs nothing: such an answer is never run.

=========  ===================================================================================
verified   `pallascope.verify` finds nothing: it can be traced for these arguments, its blocks are
           right, each and together, and JAX lowers it for a Hopper GPU; a write to shared memory
           that nothing reads is no fault where the result is right
right      it is run, natively or interpreted; the interpreter tells of no race, and its result is
           the expected one
again      with each of `again`, other arrays, it is verified and right, too
as asked   it does what else the task asks: each of `asks`
alone      the kernel takes the arguments and makes the results: XLA does nothing beside it
compiled   where it multiplies, and JAX's CUDA plugin is installed: ptxas neither serializes its
           products nor spills registers; at the end, since it takes seconds
=========  ===================================================================================

A wrong answer is no error. The grade says what is wrong and what comes of it, but not which line
would mend that: of a finding it has the cause, and leaves out the remedy.
"""

import contextlib
import html
import io
import logging
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast
from unittest import mock

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.bench import provenance
from pallascope.compiling import lacking
from pallascope.drawing.paths import relative_paths
from pallascope.failing import own_frames
from pallascope.machine import Machine
from pallascope.program import Kind, Program
from pallascope.report import Finding, FindingKind, Report
from pallascope.verifying import BlockChoice, KernelVerdict
from pipelib_book.asks import Answer, Ask
from pipelib_book.beside import beside_of
from pipelib_book.judging import judge
from pipelib_book.page import first_findings
from pipelib_book.progressing import expect_exercise, note
from pipelib_book.races import MARK, races_of

# What a note says of loads and stores outside of an array, and of outputs that nothing writes.
_BEHIND = "behind the end of"
_TELLING = _BEHIND, "is not all written"
_PROGRAM_ID = (
    "It calls `pl.program_id`, which JAX's interpreter takes for 0 in each block, and which JAX"
    " gives up in Mosaic GPU for `lax.axis_index`."
)
# JAX's product; the interpreter has none with an operand from registers.
_WGMMA = plgpu.wgmma


class Grade(NamedTuple):
    """What came of an answer: a line for each thing looked at, the last one what failed, if any.

    `printed` is what the interpreter printed of races, folded away in a notebook.

    Example:
      >>> book.Grade(False, ("The checker finds nothing.", "Its result is wrong: ..."))
      Not yet.
      - The checker finds nothing.
      - Its result is wrong: ...
    """

    passed: bool
    lines: tuple[str, ...]
    printed: str = ""

    def __str__(self) -> str:
        return "\n".join([self._verdict(), *(f"- {line}" for line in self.lines)])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        """The grade for a notebook."""
        said = "\n".join([f"**{self._verdict()}**\n", *(f"- {line}" for line in self.lines)])
        if not self.printed:
            return said
        head = "<details><summary>What the interpreter printed</summary>"
        return f"{said}\n\n{head}<pre>{html.escape(self.printed)}</pre></details>"

    def _verdict(self) -> str:
        return "Passed." if self.passed else "Not yet."


class Fails(Exception):
    """What an answer lacks, in a sentence; and what the interpreter printed, if it says more."""

    def __init__(self, said: str, printed: str = "") -> None:
        super().__init__(said)
        self.printed = printed


def grade(
    answer: Callable[..., Any],
    *args: Any,
    expected: Any,
    tolerance: float = 0.0,
    strict: bool = False,
    again: Sequence[tuple[Sequence[Any], Any]] = (),
    asks: Sequence[Ask] = (),
    machine: Machine | None = None,
    xla_does: Collection[str] = (),
    exercise: str = "",
) -> Grade:
    """Grades the answer to an exercise.

    Args:
      answer: a function of `args` that calls one kernel.
      args: arrays.
      expected: what `answer(*args)` must return: an array, or a tree of arrays.
      tolerance: the largest `relative_error` that an array may have.
      strict: as in `pallascope.check`.
      again: other arrays that the answer must be right for, too, and of each what it must return of
        them: pairs of `args` and `expected`.
      asks: what the answer must do beside that, as in `book.asks.faster_than(other)`.
      machine: of simulations; by default `pallascope.H200`, which the book's numbers are of.
      xla_does: what XLA may do beside the kernel: names of JAX's primitives, as "reduce_sum".
      exercise: the exercise's number, such as "7.2", under which `progress` shows it once passed.

    Returns:
      A `Grade`; `passed` is true if the answer is right in all that was asked. Where no session
      shows what a line gives, as in a script, the grade is printed.

    Raises:
      ValueError: another kernel, that an ask compares the answer with, cannot be traced; or
        `exercise` is no such number.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> expected = jnp.full((4, 128), 1 / 128)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     book.grade(softmax, x, expected=expected, tolerance=1e-6)
      Passed.
      - The checker finds nothing.
      - Its result: ... within 1e-06.
    """
    expect_exercise(exercise)
    machine = machine or pallascope.H200
    look = _look(answer, args, expected, tolerance, strict, again, asks, machine, xla_does)
    return graded(look, exercise)


def graded(look: Iterator[str], exercise: str) -> Grade:
    """The grade of what a look says: lines up to the first thing that fails.

    It is noted if it passes, and printed where no session shows what a line gives.
    """
    lines, passed, printed = list[str](), True, ""
    try:
        for line in look:
            lines.append(line)
    except Fails as failure:
        lines, passed, printed = [*lines, str(failure)], False, failure.printed
    got = Grade(passed, tuple(lines), printed)
    if passed:
        note(exercise)
    if not hasattr(sys, "ps1"):  # which each interactive session has
        print(got)
    return got


def asked(seen: Answer, asks: Iterable[Ask], but: str = "") -> Iterator[str]:
    """A line for each ask that an answer does; `Fails`, which `but` begins, for the first other."""
    for ask in asks:
        holds, said = ask(seen)
        if not holds:
            raise Fails(but + said)
        yield said


def _look(
    answer, args, expected, tolerance, strict, again, asks, machine, xla_does
) -> Iterator[str]:
    """A line for each thing that is well; `Fails` for the first that is not."""
    first = verified(answer, args, strict)
    if not first.unread:
        yield "The checker finds nothing."
    said = _right(answer, args, expected, tolerance, first)
    if first.unread:
        yield "The checker finds only writes that nothing reads: they do no harm."
    yield said
    for others, wanted in again:
        where = f" with arrays of {', '.join(str(x.shape) for x in others)}"
        found = verified(answer, others, strict, where)
        yield _right(answer, others, wanted, tolerance, found, where)
    beside = beside_of(answer, args)
    seen = Answer(first.program, args, machine, beside, answer)
    yield from asked(seen, asks)
    for fault in beside.faults(xla_does):
        raise Fails(f"It is right, but {fault}.")
    if first.program.has(Kind.WGMMA) and not lacking():
        for fault in or_fails("It is right, but ptxas refuses it", _faults, answer, *args):
            raise Fails(f"It is right, but it wastes time: {fault}")


class Verified(NamedTuple):
    """An answer without a grave fault: its first block, and what the checker says of all it saw.

    `notes` are the checker's, `unread` what it says of writes that nothing reads.
    """

    program: Program
    notes: list[str]
    unread: list[str]


def verified(
    answer: Callable[..., Any],
    args: Sequence[Any],
    strict: bool,
    where: str = "",
    blocks: BlockChoice = BlockChoice.ALL,
    is_run: bool = True,
) -> Verified:
    """What `pallascope.verify` says of an answer to an exercise, which is run later if `is_run`.

    Raises:
      Fails: it cannot be traced, or has a fault.
    """

    def verify(*args: Any) -> pallascope.Verdict:
        return pallascope.verify(answer, *args, strict=strict, blocks=blocks, compiler=False)

    kernel, *others = or_fails(f"It cannot be traced{where}", verify, *args, at_line=True).kernels
    if others:
        raise Fails(f"It calls {len(others) + 1} Mosaic GPU kernels{where}: one is graded.")
    texts = _texts(kernel)
    if not all(map(_is_unread, kernel.findings)):
        words = " ".join(first_findings(texts))
        so = ", so it was not run" if is_run else ""
        raise Fails(f"The checker found a fault{where}{so}. {words}")
    if kernel.refusal:
        raise Fails(f"It cannot be traced{where}: {relative_paths(kernel.refusal)}")
    notes = dict.fromkeys(note for report in kernel.reports for note in report.notes)
    return Verified(kernel.reports[0].program, [*notes], texts)


def expect_inside(found: Verified) -> None:
    """Expects that no copy is of a tile behind the end of an array.

    It is for grades that compare no result. Where one is compared, such a copy may be right: it
    brings zeros, or stores nothing.

    Raises:
      Fails: the checker notes such a copy.
    """
    for said in found.notes:
        if _BEHIND in said:
            no = "Its result is not compared, and the checker notes:"
            raise Fails(f"{no} {relative_paths(said)}")


def _texts(kernel: KernelVerdict) -> list[str]:
    """What the findings say, the gravest first, each with its block if the first has it not."""
    found = [(finding, _where(report)) for report in kernel.reports for finding in report]
    found += [(finding, "") for finding in kernel.between or ()]
    texts = dict[str, str]()
    for finding, where in sorted(found, key=lambda one: _is_unread(one[0])):
        cause = finding.cause
        if finding.kind is FindingKind.NOT_LOWERED:
            cause = f"{cause.rstrip('.')}. {finding.kind.effect}"
        texts.setdefault(f"{finding.kind}: {cause}", where)
    return [f"{text}{where}" for text, where in texts.items()]


def _where(report: Report) -> str:
    block = report.program.grid_index
    return f" That is in block {block}." if any(block) else ""


def _is_unread(finding: Finding) -> bool:
    """Whether it is an ordinary write to shared memory that nothing reads."""
    return finding.kind is FindingKind.LOST_STORE and finding.ops[0].kind is Kind.WRITE


def _right(
    answer: Callable[..., Any],
    args: Sequence[Any],
    expected: Any,
    tolerance: float,
    found: Verified,
    where: str = "",
) -> str:
    """What is said of an answer's right result; `Fails` if it has none, or a wrong one."""
    try:
        return _compared(
            _run(answer, args, found.notes, where), expected, tolerance, found.notes, where
        )
    except Fails as wrong:
        why = ""
        if found.unread:
            words = " ".join(first_findings(found.unread))
            why = f" The checker found a fault, which may be why. {words}"
        elif not provenance.on_hopper() and "program_id[" in str(jax.make_jaxpr(answer)(*args)):
            why = f" {_PROGRAM_ID}"
        raise Fails(f"{wrong}{why}", wrong.printed) from wrong


def _run(answer: Callable[..., Any], args: Sequence[Any], notes: Sequence[str], where: str) -> Any:
    """The result of an answer; `Fails` if it has none, or if the interpreter sees a race."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = or_fails(f"It cannot be run{where}", _result, answer, *args, notes=notes)
    said, mark, dump = printed.getvalue().partition(MARK)
    print(said, end="")
    if mark:
        first, *_ = races_of(dump) or ("two accesses of one place",)
        raise Fails(f"The interpreter reports a race{where}: {first}.", mark + dump)
    return result


def _result(answer: Callable[..., Any], *args: Any) -> Any:
    """The result of an answer; JAX's log has nothing of its errors, which the grade tells."""
    product = _WGMMA if provenance.on_hopper() else _interpretable
    logging.disable()
    try:
        with mock.patch.object(plgpu, "wgmma", product):
            return jax.block_until_ready(answer(*args))
    finally:
        logging.disable(logging.NOTSET)


def _interpretable(acc: Any, a: Any, b: Any) -> None:
    """A product as JAX's interpreter has it: an operand from registers goes through SMEM first."""
    if not isinstance(a, jax.Array):
        return _WGMMA(acc, a, b)

    def through(a_smem: Any) -> None:
        a_smem[...] = a
        plgpu.commit_smem()
        _WGMMA(acc, a_smem, b)

    return pl.run_scoped(through, plgpu.SMEM(a.shape, a.dtype))


def _faults(answer: Callable[..., Any], *args: Any) -> tuple[str, ...]:
    """What ptxas has to say of an answer."""
    with plgpu.force_gpu_interpret_mode(cast(Any, None)):
        return pallascope.compiled(answer, *args).faults


def or_fails(
    what: str,
    function: Callable[..., Any],
    *args: Any,
    notes: Sequence[str] = (),
    at_line: bool = False,
) -> Any:
    """What a function returns; any error of the reader's code is a `Fails` of its own words.

    `notes` are what the checker noted, which may explain the error. The reader's line is told if it
    raises the error, or if `at_line`: where the interpreter fails it is the launch, and tells
    nothing.
    """
    try:
        return function(*args)
    except Exception as error:
        own = [frame.line for frame in own_frames(error) if frame.line]
        raised = traceback.extract_tb(error.__traceback__)[-1].line
        where = f", at `{own[-1]}`" if own and (at_line or raised == own[-1]) else ""
        raise Fails(f"{what}: {_words_of(error)}{where}.{_noted(notes)}") from error


def _noted(notes: Iterable[str]) -> str:
    """What the checker notes, in sentences, each after a space."""
    return "".join(f" The checker notes: {relative_paths(note)}" for note in notes)


def _words_of(error: Exception) -> str:
    """What an error says, in a line."""
    own = str(error).splitlines()
    if own and "Traceback" in own[0]:  # of another thread, the interpreter's: its error comes last
        return re.sub(r"\bbarrier \d{6,}", "a barrier", own[-1]).removesuffix(".")
    words = [*filter(None, "".join(traceback.format_exception_only(error)).splitlines())]
    return " ".join(words[: 2 if words[0].endswith(":") else 1]).strip().removesuffix(".")


def _compared(
    actual: Any, expected: Any, tolerance: float, notes: Sequence[str], where: str
) -> str:
    """How far a result is off; `Fails` if too far, with the notes that may explain it."""
    if jax.tree.structure(actual) != jax.tree.structure(expected):
        raise Fails(
            f"It returns {jax.tree.structure(actual)}{where}, but {jax.tree.structure(expected)} is"
            " expected."
        )
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    is_right, said = judge(f"Its result{where}", pairs, tolerance)
    if not is_right:
        telling = (note for note in notes if any(words in note for words in _TELLING))
        raise Fails(f"{said}{_noted(telling)}")
    return said
