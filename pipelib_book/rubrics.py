"""`rubric`: a kernel of one's own, judged by the checker, by its result, by the simulator, a GPU.

The model. A rubric has a row for each question. A row has a judge, what it found, and a mark: it is
met, it is not, or it is open, because nobody could ask. They are asked in this order; of a kernel
with a finding nothing is run, since it might never end.

=========  =========================================================================================
judge      a kernel meets the rubric if
=========  =========================================================================================
checker    its first, middle and last blocks have no finding, and every read of SMEM is ordered
result     it is within the tolerance of the reference
compiler   JAX lowers it for a Hopper GPU, which the interpreter does not ask of a kernel
simulator  its launch is predicted to be faster than the first version's
simulator  its launch is predicted to take at most `FLOOR` times the floor
GPU        it is faster than the reference, as XLA compiles it
GPU        the prediction is within `NEAR` of the measured time
=========  =========================================================================================

The **floor** is what no kernel can go below: the larger of two times. One is that of reading every
argument and writing every result once, at the GPU's bandwidth. The other is that of the products at
the rate of all tensor cores, at the predicted clock.
"""

import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

import pallascope
from pallascope.bench import provenance, timing
from pallascope.machine import Machine
from pallascope.predicting import Prediction
from pallascope.report import FindingKind
from pipelib_book.judging import judge
from pipelib_book.measured import results

FLOOR, NEAR = 2.0, 0.15
_MARKS = {True: "met", False: "not met", None: "open"}


class Row(NamedTuple):
    """A question of a rubric: who judges, what is asked, what was found, and whether it is met.

    `met` is None if the question is open.
    """

    judge: str
    question: str
    found: str
    met: bool | None


class Rubric(NamedTuple):
    """What all judges found.

    Example:
      >>> print(book.Rubric(()))
      | judge | asked | found |  |
      |---|---|---|---|
      <BLANKLINE>
      0 of 0 met.
    """

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        cells = [[row.judge, row.question, row.found, _MARKS[row.met]] for row in self.rows]
        table = results.table(("judge", "asked", "found", ""), cells, words=range(4))
        met, still_open = (sum(row.met is mark for row in self.rows) for mark in (True, None))
        said = f"{met} of {len(self.rows)} met" + f", {still_open} open" * bool(still_open)
        return f"{table}\n\n{said}."

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        """The rubric for a notebook."""
        return str(self)


def rubric(
    kernel: Callable[..., Any],
    first: Callable[..., Any],
    *args: Any,
    reference: Callable[..., Any],
    tolerance: float,
    full: tuple[Any, ...] = (),
    machine: Machine = pallascope.H200,
) -> Rubric:
    """Fills in the rubric of a kernel.

    Args:
      kernel: a function of `args` that calls one kernel.
      first: its first version, which is to be beaten.
      args: arrays that it is run with, and timed with where a GPU is.
      reference: computes the same in plain JAX.
      tolerance: the largest `relative_error` of its result.
      full: arrays or shapes that it is checked and predicted for; by default `args`.
      machine: what it is predicted for.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> with plgpu.force_gpu_interpret_mode():
      ...     found = book.rubric(softmax, softmax, x, reference=jax.nn.softmax, tolerance=1e-6)
      >>> [row.met for row in found.rows][:4]
      [True, True, True, False]
    """
    shapes = full or args
    checked, lowered = _verified(kernel, shapes)
    if not checked.met:
        return Rubric((checked,))
    rows = [checked, _right(kernel, args, reference, tolerance), lowered]
    rows += _predicted(kernel, first, shapes, machine)
    return Rubric((*rows, *_measured(kernel, args, reference, machine)))


def _verified(kernel: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Row, Row]:
    """What the checker finds in some blocks and between them, and whether JAX lowers the kernel."""
    (verdict,) = pallascope.verify(
        kernel, *args, strict=True, blocks="diagonal", compiler=False
    ).kernels
    said = {finding.kind: f"{finding.kind}: {finding.cause}" for finding in verdict.findings}
    unlowered = said.pop(FindingKind.NOT_LOWERED, "")
    fault = verdict.refusal or next(iter(said.values()), "")
    asked = "no finding in the first, middle and last block"
    return (
        Row("checker", asked, fault or "none", not fault),
        Row("compiler", "JAX lowers it for a Hopper GPU", unlowered or "it does", not unlowered),
    )


def _right(
    kernel: Callable[..., Any],
    args: tuple[Any, ...],
    reference: Callable[..., Any],
    tolerance: float,
) -> Row:
    pairs = zip(jax.tree.leaves(kernel(*args)), jax.tree.leaves(reference(*args)), strict=True)
    is_right, said = judge("it", pairs, tolerance)
    return Row("result", "that of plain JAX", said, is_right)


def _predicted(
    kernel: Callable[..., Any], first: Callable[..., Any], args: tuple[Any, ...], machine: Machine
) -> Iterator[Row]:
    own, old = (pallascope.predict(each, *args, machine=machine) for each in (kernel, first))
    speed, least = old.us / own.us, floor_us(own, kernel, args, machine)
    said = f"{own.us:,.1f} µs, {speed:.2f} times the speed"
    yield Row("simulator", "faster than the first version", said, speed > 1)
    said = f"{own.us / least:.2f} times the floor of {least:,.1f} µs"
    yield Row("simulator", f"at most {FLOOR:g} times the floor", said, own.us <= FLOOR * least)


def floor_us(
    predicted: Prediction, kernel: Callable[..., Any], args: tuple[Any, ...], machine: Machine
) -> float:
    """The time below which no kernel with these arguments, results and products can go."""
    arrays = jax.tree.leaves((args, jax.eval_shape(kernel, *args)))
    moved = sum(array.size * array.dtype.itemsize for array in arrays)
    products = sum(launch.us * launch.use for launch in predicted.launches)
    return max(1e6 * moved / machine.hbm_bytes_per_second, products)


def _measured(
    kernel: Callable[..., Any],
    args: tuple[Any, ...],
    reference: Callable[..., Any],
    machine: Machine,
) -> Iterator[Row]:
    faster, near = "faster than plain JAX", f"predicted within {NEAR:.0%}"
    if not provenance.on_hopper():
        yield from (Row("GPU", asked, "no Hopper GPU here", None) for asked in (faster, near))
        return
    functions = {"own": kernel, "plain": reference}
    found = timing.measure(functions, args, rounds=3, rest_s=timing.REST_S)
    own, plain = (statistics.median(found[name].microseconds) for name in functions)
    said = f"{own:,.1f} µs, {plain / own:.2f} times the speed"
    yield Row("GPU", faster, said, own < plain)
    off = pallascope.predict(kernel, *args, machine=machine).us / own - 1
    yield Row("GPU", near, f"off by {off:+.0%}", abs(off) <= NEAR)
