"""`predict`: how long a function's kernels take on a machine, every block of them, without a GPU.

The model. Each kernel that the function calls is traced at a few of its blocks: at the first, the
middle and the last one along each axis of the grid. If these do the same, one of them stands for
all. If they differ along an axis, more positions of that axis are traced. `simulating.launch` makes
the launch's time of them, and the kernels that XLA makes around them take the time of their bytes
(`tracing.around`). The clock falls with the work of the tensor cores (`Machine.loaded`), and
this work is known only once the time is, so a kernel with products is simulated twice.

Where blocks take over others of the grid (cluster launch control), each of those that run at once
is taken to make equally many of them, one after another, as the first does.

How near it comes: a prediction says the mean error of calls like it (`Likeness`), as measured on an
H200. The book's page of all measurements compares hundreds of launches, most of which no constant
of the model was chosen by.

Not covered: XLA's own products, sorts and loops; a machine that has just been idle, whose clock is
higher for some milliseconds; registers that spill, and products that ptxas serializes
(`pallascope.compiled` tells of both).
"""

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import NamedTuple

from pallascope.arguments import (
    MACHINE,
    expect,
    expect_fraction,
    expect_l2_hits,
    expect_range,
)
from pallascope.machine import H200, Machine
from pallascope.program import Program
from pallascope.simulating.launch import Index, Launch, launched, streamed, work
from pallascope.simulating.ways import SLOW_WAYS
from pallascope.tracing.trace import Tracer, hosted

#: Positions of an axis along which blocks differ, and if they do so along several axes; if all
#: blocks run at once, so that only the longest one counts.
_POSITIONS, _FEW = 9, 3
#: The use of the tensor cores before it is known.
_FIRST_USE = 0.7


class Likeness(enum.Enum):
    """What a call does, as far as predictions of some are nearer than those of others."""

    SHORT = enum.auto()  # up to SHORT_US
    ATTENTION = enum.auto()  # products, and exponentials or the like
    PRODUCT = enum.auto()  # products alone
    OTHER = enum.auto()


#: Microseconds of a short call, which is mostly its beginning and its end.
SHORT_US = 10
#: The mean errors of calls without a configuration on an H200. Source: the record of predictions,
#: `benchmarks/results/nvidia-h200/predicted.json`; a test holds the two together.
ERRORS: Mapping[Likeness, float] = {
    Likeness.SHORT: 0.12,
    Likeness.ATTENTION: 0.05,
    Likeness.PRODUCT: 0.07,
    Likeness.OTHER: 0.03,
}


class Prediction(NamedTuple):
    """The predicted time of a function's kernels: its `launches`, on the `machine` of that name.

    `around` has the microseconds of each kernel that XLA makes of what the function does besides;
    `error` is the mean of the relative errors that calls like it had, up or down; None for a
    machine on which none were measured.

    Example:
      >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
      >>> found = pallascope.predict(matmul, x, x, clock_hz=1.8e9)
      >>> len(found.launches), found.us == found.launches[0].us, found.machine
      (1, True, 'NVIDIA H200')
    """

    launches: tuple[Launch, ...]
    machine: str
    error: float | None = None
    around: tuple[float, ...] = ()

    @property
    def us(self) -> float:
        """Microseconds of all kernels together, without what is between them."""
        return sum(launch.us for launch in self.launches) + sum(self.around)

    def __str__(self) -> str:
        off = "" if self.error is None else f"; calls like it: {self.error:.0%} off in the mean"
        lines = [f"{self.us:,.1f} us, predicted on {self.machine}{off}"]
        lines += [f"- {launch}" for launch in self.launches]
        if self.around:
            us, count = sum(self.around), len(self.around)
            lines += [f"- around them: {us:,.1f} us; kernels that XLA makes: {count}"]
        return "\n".join(lines)

    __repr__ = __str__


def predict(
    kernel: Callable[..., object],
    *args: object,
    machine: Machine = H200,
    clock_hz: float | None = None,
    registers: int | None = None,
    l2_hits: float | None = None,
    slow_ways: float = SLOW_WAYS,
) -> Prediction:
    """How long the kernels of a function take, all blocks of them.

    Args:
      kernel: a function that calls one `plgpu.kernel` or several, or such a kernel.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Nothing is run.
      machine: by default `pallascope.H200`, which the book's numbers are of.
      clock_hz: the clock of all kernels; by default each kernel's under sustained load.
      registers: of a lane, as `pallascope.compiled` knows them; by default they are guessed.
      l2_hits: the fraction of loaded bytes that L2 has, 0 to 1; 1 for arrays that are still there
        from the launch before. By default HBM has every array, and L2 what is loaded again.
      slow_ways: as in `simulate`.

    Raises:
      TypeError: `kernel` is not a function, or `machine` is no machine.
      ValueError: no kernel, threads that wait for ever, or a number out of its range; and what
        `trace` raises.

    Example:
      >>> x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
      >>> print(pallascope.predict(matmul, x, x))
      17... us, predicted on NVIDIA H200; calls like it: ...% off in the mean
      - matmul: 17... us, 27... cycles at 1... GHz; 1 to an SM, 1 in turn; tensor cores busy 9...%
    """
    expect("predict", machine, *MACHINE)
    expect_l2_hits("predict", l2_hits)
    expect_range("predict", 1, 10**12, "cycles in a second", kind=Real, clock_hz=clock_hz)
    expect_range("predict", 1, 255, "the most that a lane has", registers=registers)
    expect_fraction("predict", "branches", slow_ways=slow_ways)
    kernels, host = hosted(kernel, args, "predict")
    samples = [_samples(tracer, machine.sms) for tracer in kernels]
    launches = [launch(each, machine, clock_hz, registers, l2_hits, slow_ways) for each in samples]
    around = tuple(1e6 * streamed(*fusion, machine, l2_hits) for fusion in host.fusions())
    found = Prediction(tuple(launches), machine.name, around=around)
    if machine.name != H200.name:
        return found
    programs = [program for each in samples for program in each.values()]
    return found._replace(error=ERRORS[likeness(programs, found.us)])


def likeness(programs: Iterable[Program], us: float) -> Likeness:
    """What a call of so many microseconds is like that has these blocks."""
    ops = [op for program in programs for op in program.ops]
    if us <= SHORT_US:
        return Likeness.SHORT
    if not any(op.kind.is_product for op in ops):
        return Likeness.OTHER
    return Likeness.ATTENTION if any(op.transcendental for op in ops) else Likeness.PRODUCT


def _samples(tracer: Tracer, sms: int) -> dict[Index, Program]:
    """The programs of some blocks; of a kernel whose blocks take over others, that of the first."""
    first = tracer.program(claims=1)
    if not any(op.claims for op in first.ops):
        return sampled(tracer.program, tracer.grid, sms)
    clusters, places = math.prod(tracer.grid), sms // first.blocks
    program = tracer.program(claims=-(-clusters // places) - 1)
    return {(0,): dataclasses.replace(program, grid=(min(clusters, places),))}


def launch(
    samples: Mapping[Index, Program],
    machine: Machine,
    clock_hz: float | None = None,
    registers: int | None = None,
    l2_hits: float | None = None,
    slow_ways: float = SLOW_WAYS,
) -> Launch:
    """The launch of one kernel, of which `sampled` blocks are known; the rest as in `predict`."""

    def at(use: float) -> Launch:
        here = machine.loaded(use) if clock_hz is None else machine.changed(clock_hz=clock_hz)
        return launched(samples, here, registers, l2_hits, slow_ways)

    found = at(_FIRST_USE if any(map(_multiplies, samples.values())) else 0.0)
    return at(found.use) if clock_hz is None and found.use else found


def _multiplies(program: Program) -> bool:
    return any(op.kind.is_product for op in program.ops)


def sampled(program: Callable[[Index], Program], grid: Index, sms: int) -> dict[Index, Program]:
    """The programs of some blocks, by index: one if the blocks at both ends and in the middle of
    each axis do the same, else some positions of each axis along which they do not.

    Args:
      program: gives the program of a block, or of a cluster.
      grid: how many there are along each axis.
      sms: the machine's.
    """
    origin = (0,) * len(grid)
    found: dict[Index, Program] = {origin: program(origin)}
    differ: list[int] = []
    for axis, size in enumerate(grid):
        for place in sorted({size // 2, size - 1} - {0}):
            index = (*origin[:axis], place, *origin[axis + 1 :])
            found[index] = program(index)
            if axis not in differ and work(found[index]) != work(found[origin]):
                differ.append(axis)
    if not differ:
        return {origin: found[origin]}
    at_once = math.prod(grid) * found[origin].blocks <= sms
    count = _FEW if at_once or len(differ) > 1 else _POSITIONS
    places = [_spread(size, count) if axis in differ else [0] for axis, size in enumerate(grid)]
    return {
        index: found[index] if index in found else program(index)
        for index in itertools.product(*places)
    }


def _spread(size: int, count: int) -> list[int]:
    """At most so many positions of an axis, both ends among them."""
    return sorted({round(number * (size - 1) / (count - 1)) for number in range(count)})
