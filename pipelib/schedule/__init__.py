"""A kernel's schedule as plain values: trace it here, read it anywhere.

`trace` is the door from JAX; `Program` and `Op` are what comes through it. `check` looks for races,
deadlocks and misused barriers in a program, for every schedule of its threads.
"""

from pipelib.schedule.check import check
from pipelib.schedule.program import Op, Program
from pipelib.schedule.report import Finding, Report
from pipelib.schedule.trace import trace

__all__ = ["Finding", "Op", "Program", "Report", "check", "trace"]
