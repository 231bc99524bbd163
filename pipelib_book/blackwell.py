"""Kernels for Blackwell on any machine: checked, interpreted on the CPU, and lowered.

The model. No GPU of these chapters runs such a kernel, so they judge it by `pallascope.check`, by
JAX's interpreter with race detection, and by lowering. The interpreter counts the asynchronous
operations of a block with a few counters, in turn; two operations that share one can look ordered,
and which two do depends on how its threads run. `COUNTERS` is more than these kernels have
operations, so that a race that is reported once is reported in each run. What the detector prints
is read by its form.

Not covered: what the interpreter has not (collective products, scales), of which `grade_unrun`
judges the schedule alone; kernels that wait for ever, which wait here too, but for those that are
graded: the check comes first, and finds them. Source: JAX 0.11.2, `pallas/mosaic_gpu/interpret`.
"""

import contextlib
import io
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.machine import Machine
from pallascope.program import Kind, Role
from pallascope.verifying import BlockChoice
from pipelib_book import asks as book_asks
from pipelib_book.asks import Answer, Ask, Said
from pipelib_book.beside import beside_of
from pipelib_book.grading import Fails, Grade, asked, expect_inside, graded, or_fails, verified
from pipelib_book.in_flight import report_name
from pipelib_book.judging import judge
from pipelib_book.notebook import say
from pipelib_book.progressing import expect_exercise
from pipelib_book.races import Race, races_of

type Kernel = Callable[..., Any]

COUNTERS = 256
_PARAMS = plgpu.InterpretGPUParams(detect_races=True, num_tma_threads_per_device=COUNTERS)
#: The primitives that make arrays, of any type and with any axes, in a jaxpr's text.
_ARRAYS = re.compile(r":\w+\[[\d,]+\] = (\w+)")


class Interpreted(NamedTuple):
    """What came of a kernel: its result, if it came to its end, and the races, each once."""

    result: Any
    races: tuple[Race, ...]


def interpret(kernel: Kernel, *args: Any) -> Interpreted:
    """Runs a kernel in the interpreter, on the CPU, with race detection."""
    said, result = io.StringIO(), None
    operands = jax.device_put(args, jax.devices("cpu")[0])
    with _interpreting(), contextlib.redirect_stdout(said):
        try:
            result = jax.block_until_ready(_anew(kernel)(*operands))
        except jax.errors.JaxRuntimeError as error:  # JAX 0.12's way to report a race
            if "RACE" not in str(error):
                raise
            said.write(str(error))
    return Interpreted(result, races_of(said.getvalue()))


def run(kernel: Kernel, *args: Any) -> Any:
    """The result of a kernel that should have no race.

    Raises:
      AssertionError: the interpreter reports one.
    """
    result, races = interpret(kernel, *args)
    assert not races, races
    return result


def show_races(kernel: Kernel, *args: Any) -> None:
    """Shows the lines of the races that the interpreter reports, two races at most."""
    races = interpret(kernel, *args).races
    text = "\n\n".join("\n".join(race) for race in races[:2])
    say(f"````text\n{text or 'no race reported'}\n````")


def lowered(kernel: Kernel, *args: Any) -> str:
    """What JAX hands on to be compiled for a GPU, as text."""
    with plgpu.force_gpu_interpret_mode(cast(Any, None)):
        return _anew(kernel).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def instructions(kernel: Kernel, *args: Any, family: str = "tcgen05") -> str:
    """The names of a family's instructions in what JAX makes of a kernel, as Markdown."""
    found = re.findall(rf"{family}\.[a-z_]+(?:\.cg2|\.mc\.cg2)?", lowered(kernel, *args))
    return ", ".join(f"`{name}`" for name in sorted({*found}))


def grade(
    answer: Kernel,
    *args: Any,
    expected: Any,
    tolerance: float,
    exercise: str = "",
    without: Iterable[str] = (),
    asks: Iterable[Ask] = (),
) -> Grade:
    """The grade of a kernel for Blackwell: clean, a right result, lowered, none of it XLA's.

    What stops it from being run or lowered is said in a line, and the grade is printed in a script,
    as `book.grade` does.

    Args:
      answer: a function of `args` that calls one kernel.
      args: arrays.
      expected: the array that it must return.
      tolerance: the largest relative error that the result may have.
      exercise: the exercise's number, as in `book.grade`.
      without: names of JAX's primitives that the kernel must not compute arrays by, as "add".
      asks: as in `book.grade`.
    """
    expect_exercise(exercise)
    return graded(_look(answer, args, expected, tolerance, without, asks), exercise)


def grade_unrun(
    answer: Kernel,
    *args: Any,
    makes: Any,
    asks: Iterable[Ask] = (),
    machine: Machine = pallascope.B200,
    exercise: str = "",
) -> Grade:
    """The grade of a kernel that the interpreter cannot run, such as one with products of pairs.

    The strict check finds nothing in any block, no copy is of a tile behind the end of an array,
    JAX lowers it, it makes `makes` of its arguments, of which it reads each element, and it does as
    asked. No values are compared.

    Args:
      answer: a function of `args` that calls one kernel.
      args: arrays.
      makes: an array of the shape and dtype of the result; its numbers do not count.
      asks: as in `book.grade`.
      machine: of simulations.
      exercise: the exercise's number, as in `book.grade`.
    """
    expect_exercise(exercise)
    return graded(_look_unrun(answer, args, makes, asks, machine), exercise)


def begins_sums(times: int) -> Ask:
    """Asks that so many products begin new sums; all others add to what is there."""

    def ask(answer: Answer) -> Said:
        products = (op for op in answer.program.ops if op.kind is Kind.TCGEN05_MMA)
        begun = sum(not {*op.writes} <= {*op.reads} for op in products)
        return Said(begun == times, f"Products that begin new sums: {begun}, of {times}.")

    return ask


def products_apart() -> Ask:
    """Asks that no thread that starts products reads TMEM: another thread stores the sums."""

    def ask(answer: Answer) -> Said:
        kinds = [{op.kind for op in ops} for ops in answer.program.threads]
        if any({Kind.TCGEN05_MMA, Kind.LOAD_TMEM} <= each for each in kinds):
            return Said(False, "A thread that starts products reads the sums itself.")
        return Said(True, "The thread that reads the sums starts no products.")

    return ask


def reads_all() -> Ask:
    """Asks that the kernel reads each element of its inputs, in all of its blocks together."""

    def ask(answer: Answer) -> Said:
        for buffer in (each for each in answer.program.buffers if each.role is Role.IN):
            is_read = np.zeros(buffer.shape, bool)
            for op in itertools.chain.from_iterable(each.ops for each in answer.programs):
                for region in op.reads:
                    if region.buffer == buffer.id:
                        is_read[tuple(slice(*side) for side in region.box)] = True
            if not is_read.all():
                unread = f"{is_read.size - is_read.sum():,} elements of `{buffer.name}`"
                return Said(False, f"It never reads {unread}.")
        return Said(True, "It reads each element of its arguments.")

    return ask


def tiles_fit(a: str, b: str, out: str) -> Ask:
    """Asks that a block stores the rows of `a` that it loads, and loads the rows of `b` with them.

    The rows of `b` are the columns of `a`. All are compared in the order of the block's copies, by
    the names that a report gives.
    """

    def ask(answer: Answer) -> Said:
        program = answer.program
        found: dict[tuple[int, str], list[Any]] = {}
        for op in program.ops:
            for region in (*op.reads, *op.writes) if op.kind.is_copy else ():
                name = report_name(program.buffers[region.buffer])
                found.setdefault((program.block_of(op.thread), name), []).append(region.box)
        for block in range(program.blocks):
            boxes, others, stored = (found.get((block, name), []) for name in (a, b, out))
            rows, made = ([*dict.fromkeys(box[0] for box in each)] for each in (boxes, stored))
            if rows != made:
                said = f"loads rows {rows} of `{a}`, and stores rows {made} of `{out}`."
                return Said(False, f"Block {block} of the cluster {said}")
            if [box[1] for box in boxes] != [box[0] for box in others]:
                said = f"loads other columns of `{a}` than rows of `{b}`."
                return Said(False, f"Block {block} of the cluster {said}")
        return Said(True, f"Each block stores the rows of `{a}` that it loads, with their `{b}`.")

    return ask


def _look_unrun(
    answer: Kernel, args: tuple[Any, ...], makes: Any, asks: Iterable[Ask], machine: Machine
) -> Iterator[str]:
    """As `_look`, without a result."""
    together = BlockChoice.TOGETHER
    expect_inside(verified(answer, args, strict=True, blocks=together, is_run=False))
    yield "The checker finds nothing in any order of the threads."
    returned, wanted = (str(jax.typeof(x)) for x in (jax.eval_shape(_anew(answer), *args), makes))
    if returned != wanted:
        raise Fails(f"It returns {returned}, not {wanted}.")
    yield "JAX lowers it for a GPU."
    beside = beside_of(_anew(answer), args)
    seen = Answer(pallascope.trace(answer, *args), args, machine, beside, answer)
    yield from asked(seen, (book_asks.makes_all_of(makes), *asks, reads_all()))
    for fault in beside.faults():
        raise Fails(f"It is right, but {fault}.")
    yield "It was not run, so its values are compared with nothing."


def _look(
    answer: Kernel,
    args: tuple[Any, ...],
    expected: Any,
    tolerance: float,
    without: Iterable[str],
    asks: Iterable[Ask],
) -> Iterator[str]:
    """A line for each thing that is well; `Fails` for the first that is not."""
    program = verified(answer, args, strict=False).program
    yield "The checker finds nothing."
    result, races = or_fails("It cannot be run", interpret, answer, *args)
    if races:
        raise Fails(f"The interpreter reports a race: {races[0]}.")
    yield "The interpreter reports no race."
    is_right, said = judge("Its result", [(result, expected)], tolerance)
    if not is_right:
        raise Fails(said)
    yield said
    yield "JAX lowers it for a GPU."
    for fault in beside_of(_anew(answer), args).faults():
        raise Fails(f"It is right, but {fault}.")
    yield "Its kernel makes the result, of the arguments."
    if program.has(Kind.WGMMA) or not program.has(Kind.TCGEN05_MMA):
        made = "by `wgmma`, which only Hopper has" if program.has(Kind.WGMMA) else "in no TMEM"
        raise Fails(f"It is right, but multiplies {made}.")
    jaxpr = cast(Any, jax.make_jaxpr(_anew(answer))(*args))
    computed = _ARRAYS.findall(jaxpr.pretty_print(use_color=False))  # a notebook's text has colours
    if found := sorted({*computed} & {*without}):
        raise Fails(f"It is right, but in registers it computes `{', '.join(found)}` of a tile.")
    seen = Answer(program, args, pallascope.B200)
    yield from asked(seen, asks, but="It is right, but not as asked: ")


def _anew(kernel: Kernel) -> Any:
    """A new function: what JAX has traced of the kernel may be for another mode."""
    return jax.jit(lambda *operands: kernel(*operands))


@contextlib.contextmanager
def _interpreting() -> Iterator[None]:
    before = jax.config.jax_default_device
    jax.config.update("jax_default_device", jax.devices("cpu")[0])  # in all threads
    logging.disable()  # what JAX raises, it logs as well
    try:
        with plgpu.force_gpu_interpret_mode(_PARAMS):
            yield
    finally:
        logging.disable(logging.NOTSET)
        jax.config.update("jax_default_device", before)
