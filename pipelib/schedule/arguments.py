"""What is said to a caller who gives an argument of the wrong type.

The model. One sentence: who takes what, of what type the value is, what to do. Numbers are those of
`numbers`, so NumPy's count too. Not covered: values of the right type that are out of range, which
each function refuses itself.
"""

from typing import Any

from pipelib.schedule.machine import Machine
from pipelib.schedule.program import Program
from pipelib.schedule.timeline import Timeline

# The type, its name with an article, and how to come by one.
PROGRAM = Program, "a Program", "make one with pipelib.trace(kernel, *args)"
MACHINE = Machine, "a Machine", "give pipelib.H100, pipelib.H200 or one that you made of them"
TIMELINE = Timeline, "a Timeline", "make one with pipelib.simulate(program, machine)"


def expect(function: str, value: Any, kind: type, noun: str, remedy: str) -> None:
    """Raises the TypeError for a value that is not of this kind, which `noun` names."""
    if not isinstance(value, kind):
        raise wrong_type(function, value, noun, remedy)


def wrong_type(function: str, value: Any, noun: str, remedy: str) -> TypeError:
    """The error, for who found out otherwise."""
    given = type(value).__name__
    return TypeError(f"{function} takes {noun}, not a value of type {given}: {remedy}.")
