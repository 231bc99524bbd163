"""`predicted`: the time of a whole launch, and what bounds it.

The model. The time is that of `pallascope.predict`: all blocks, as many to a multiprocessor as fit,
at the clock under load. What bounds the launch is read off the timeline of its first block, with as
many copies of it on the multiprocessor, at the same clock.

Not covered: what bounds blocks that do something else than the first.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from pallascope.machine import Machine
from pallascope.predicting import predict
from pallascope.program import Program
from pallascope.simulating.simulate import simulate


class Prediction(NamedTuple):
    """A launch's time in microseconds, and what bounds it, in a few words."""

    us: float
    bound: str


def predicted(
    program: Program, function: Callable[..., Any], args: tuple[Any, ...], machine: Machine
) -> Prediction:
    """The time of the one launch of a function, and what bounds it.

    Args:
      program: its first block.
      function, args: what calls the kernel.
      machine: at the clock without load.

    Raises:
      ValueError: the kernel never ends, or the machine lacks a rate.
    """
    (launch,) = predict(function, *args, machine=machine).launches
    here = machine.changed(clock_hz=launch.clock_hz)
    timeline = simulate(program, here, blocks_per_sm=launch.blocks_per_sm)
    return Prediction(launch.us, timeline.bound())
