"""`grade`: what an exercise's answer is worth, by the checker, by its result, and by its time.

Chapters call it as `book.grade`.

The model. An answer is a function that calls one kernel. It is looked at in this order, and what
fails ends it, so that a barrier that nobody arrives on hangs nothing: such an answer is never run.

=========  ===================================================================================
traced     it can be traced for these arguments
checked    `pipelib.check` finds nothing
right      it is run, natively or interpreted, and its result is the expected one
lowered    JAX lowers it for a Hopper GPU, which the interpreter does not ask of a kernel
fast       where that is asked for: `pipelib.simulate` has it faster than another kernel
sparing    where that is asked for: its blocks load fewer bytes than another kernel's
=========  ===================================================================================

A wrong answer is no error: the grade says what is missing.
"""

import pathlib
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from pipelib.schedule.machine import Machine
from pipelib.schedule.program import Program
from pipelib_book.judging import judge
from pipelib_book.page import first_findings

_KINDS = "stdlib", "platstdlib", "purelib", "platlib"
_OWN = (str(pathlib.Path(file).parent) for file in (pipelib.__file__, __file__))
_LIBRARIES = *map(sysconfig.get_path, _KINDS), *_OWN, "<"


class Grade(NamedTuple):
    """What came of an answer: a line for each thing looked at, the last one what failed, if any.

    Example:
      >>> book.Grade(False, ("The checker finds nothing.", "Its result is wrong: ..."))
      Not yet.
      - The checker finds nothing.
      - Its result is wrong: ...
    """

    passed: bool
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self._verdict(), *(f"- {line}" for line in self.lines)])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        """The grade for a notebook."""
        return "\n".join([f"**{self._verdict()}**\n", *(f"- {line}" for line in self.lines)])

    def _verdict(self) -> str:
        return "Passed." if self.passed else "Not yet."


class _Fails(Exception):
    """What an answer lacks, in a sentence."""


def grade(
    answer: Callable[..., Any],
    *args: Any,
    expected: Any,
    tolerance: float = 0.0,
    strict: bool = False,
    faster_than: Callable[..., Any] | None = None,
    loads_less_than: Callable[..., Any] | None = None,
    by: float = 1.0,
    machine: Machine | None = None,
) -> Grade:
    """Grades the answer to an exercise.

    Args:
      answer: a function of `args` that calls one kernel.
      args: arrays.
      expected: what `answer(*args)` must return: an array, or a tree of arrays.
      tolerance: the largest `relative_error` that an array may have.
      strict: as in `pipelib.check`.
      faster_than: a function of `args` that calls one kernel, whose simulated time the answer's
        must beat.
      loads_less_than: a function of `args` that calls one kernel, of which a block or cluster must
        load more bytes; those of a multicast count once.
      by: how many times the answer must be faster, or load less.
      machine: of the simulation; by default `pipelib.H200`, which the book's numbers are of.

    Returns:
      A `Grade`; `passed` is true if the answer is right in all that was asked.

    Raises:
      ValueError: the other kernel cannot be traced, or `by` is not above 0.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> expected = jnp.full((4, 128), 1 / 128)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     book.grade(softmax, x, expected=expected, tolerance=1e-6)
      Passed.
      - The checker finds nothing.
      - Its result: ... within 1e-06.
    """
    if not by > 0:
        raise ValueError(f"grade: {by=} is not above 0, so no time would be too long.")
    lines = []
    try:
        for line in _look(answer, args, expected, tolerance, strict):
            lines.append(line)
        if faster_than is not None:
            lines.append(_compared_times(answer, faster_than, args, by, machine or pipelib.H200))
        if loads_less_than is not None:
            lines.append(_compared_loads(answer, loads_less_than, args, by))
    except _Fails as failure:
        return Grade(False, (*lines, str(failure)))
    return Grade(True, tuple(lines))


def _look(answer, args, expected, tolerance, strict) -> Iterator[str]:
    """A line for each thing that is well; `_Fails` for the first that is not."""
    program = _or_fails("It cannot be traced", pipelib.trace, answer, *args)
    report = pipelib.check(program, strict=strict)
    if not report.ok:
        words = " ".join(first_findings(map(str, report)))
        raise _Fails(f"The checker found a fault, so it was not run. {words}")
    yield "The checker finds nothing."
    run = lambda: jax.block_until_ready(answer(*args))
    said = _compared(_or_fails("It cannot be run", run), expected, tolerance)
    _or_fails("Its result is right, but JAX does not lower it for a GPU", _lowered, answer, *args)
    yield said


def _lowered(answer: Callable[..., Any], *args: Any) -> None:
    """Lowers an answer for a GPU, on any machine."""
    # A new function: what JAX has traced of the answer may be for the interpreter.
    jitted: Any = jax.jit(lambda *operands: answer(*operands))
    with plgpu.force_gpu_interpret_mode(cast(Any, None)):
        jitted.trace(*args).lower(lowering_platforms=("cuda",))


def _compared_times(answer, other, args, by: float, machine: Machine) -> str:
    """How fast a right answer is; `_Fails` if not fast enough."""
    traced = (pipelib.trace(function, *args) for function in (answer, other))
    cycles, others = (pipelib.simulate(program, machine).cycles for program in traced)
    said = f"{cycles:,.0f} simulated cycles, of {others / by:,.0f} at most"
    if cycles > others / by:
        raise _Fails(f"It is right, but not fast enough: {said}.")
    return f"It is fast enough: {said}."


def _compared_loads(answer, other, args, by: float) -> str:
    """How much a right answer loads; `_Fails` if too much."""
    loaded, others = (_loaded(pipelib.trace(function, *args)) for function in (answer, other))
    said = f"{loaded:,.0f} bytes, of {others / by:,.0f} at most"
    if loaded > others / by:
        raise _Fails(f"It is right, but loads too much: {said}.")
    return f"It loads little enough: {said}."


def _loaded(program: Program) -> int:
    """The bytes that the threads of a program ask for."""
    return sum(op.bytes for ops in program.threads for op in ops if op.kind == "load")


def _or_fails(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns; any error of the reader's code is a `_Fails` of its own words."""
    try:
        return function(*args)
    except Exception as error:
        words = list(filter(None, "".join(traceback.format_exception_only(error)).splitlines()))
        said = " ".join(words[: 2 if words[0].endswith(":") else 1]).strip().removesuffix(".")
        own = [frame.line for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame)]
        where = f", at `{own[-1]}`" if own else ""
        raise _Fails(f"{what}: {said}{where}.") from error


def _is_own(frame: traceback.FrameSummary) -> bool:
    """Whether a line is the reader's: of no library, and known."""
    return bool(frame.line) and not frame.filename.startswith(_LIBRARIES)


def _compared(actual: Any, expected: Any, tolerance: float) -> str:
    """How far a result is off; `_Fails` if too far."""
    if jax.tree.structure(actual) != jax.tree.structure(expected):
        raise _Fails(
            f"It returns {jax.tree.structure(actual)}, but {jax.tree.structure(expected)} is"
            " expected."
        )
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    is_right, said = judge("Its result", pairs, tolerance)
    if not is_right:
        raise _Fails(said)
    return said
