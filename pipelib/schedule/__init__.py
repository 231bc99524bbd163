"""A kernel's schedule as plain values: trace it here, read it anywhere.

`trace` is the door from JAX; `Program` and `Op` are what comes through it. `check` looks for races,
deadlocks and misused barriers in a program, for every schedule of its threads. `simulate` runs it
on a `Machine`, which gives a `Timeline` to draw: as a figure, as a `player` to step through, or
live, as its kernel's parameters change (`explore`, and `sweep` for pages without a kernel).
"""

from pipelib.schedule.check import check
from pipelib.schedule.explore import explore, sweep
from pipelib.schedule.machine import H100, H200, Machine
from pipelib.schedule.player import Setting, player
from pipelib.schedule.program import Op, Program
from pipelib.schedule.report import Finding, Report
from pipelib.schedule.simulate import simulate
from pipelib.schedule.timeline import Span, Timeline
from pipelib.schedule.trace import trace

__all__ = [
    "H100",
    "H200",
    "Finding",
    "Machine",
    "Op",
    "Program",
    "Report",
    "Setting",
    "Span",
    "Timeline",
    "check",
    "explore",
    "player",
    "simulate",
    "sweep",
    "trace",
]
