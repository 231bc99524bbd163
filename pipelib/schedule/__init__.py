"""A kernel's schedule as plain values: trace it here, read it anywhere.

`trace` is the door from JAX; `Program` and `Op` are what comes through it.
"""

from pipelib.schedule.program import Op, Program
from pipelib.schedule.trace import trace

__all__ = ["Op", "Program", "trace"]
