"""`predicted`: the time of a whole launch, from the program of one of its blocks.

The model. Blocks run in waves: as many at once as there are multiprocessors, one on each, and each
takes as long as the block (or cluster) that was traced. The clock is the machine's.

Not covered: several blocks that share a multiprocessor, the end of one wave under the beginning of
the next, a clock that falls under load. All of these change the time; most change it alike for the
configurations of one kernel, so the ranking is better than the times are.
"""

import math
from typing import NamedTuple

from pipelib.schedule.machine import Machine
from pipelib.schedule.program import Program
from pipelib.schedule.simulating.simulate import simulate


class Prediction(NamedTuple):
    """A launch's time in microseconds, and what bounds it, in a few words."""

    us: float
    bound: str


def predicted(program: Program, machine: Machine) -> Prediction:
    """The time of the launch that a program is a block of.

    Raises:
      ValueError: the simulation never ends, or the machine lacks a rate.
    """
    timeline = simulate(program, machine)
    if timeline.stuck:
        raise ValueError(f"its simulation never ends: {' '.join(timeline.notes)}")
    at_once = machine.sms // math.prod(program.cluster)
    waves = math.ceil(math.prod(program.grid) / max(1, at_once))
    return Prediction(1e6 * waves * timeline.cycles / machine.clock_hz, timeline.bound())
