"""`expect`: the error for an argument of the wrong type; `expect_range`: and for one out of range.

The model. One sentence says what the function takes, what type the value has, and what to do.
Numbers are numbers by the standard library's `numbers`, so NumPy's are numbers too. NaN is in no
range.
"""

from numbers import Integral, Real

from pallascope.machine import Machine
from pallascope.program import Program
from pallascope.timeline import Timeline

# The type, its name with an article, and how to come by one.
PROGRAM = Program, "a Program", "make one with pallascope.trace(kernel, *args)"
MACHINE = Machine, "a Machine", "give pallascope.H100, pallascope.H200 or one that you made of them"
TIMELINE = Timeline, "a Timeline", "make one with pallascope.simulate(program, machine)"


def expect(function: str, value: object, kind: type, noun: str, remedy: str) -> None:
    """Raises a TypeError unless the value is of this type, which `noun` names."""
    if not isinstance(value, kind):
        raise wrong_type(function, value, noun, remedy)


def wrong_type(function: str, value: object, noun: str, remedy: str) -> TypeError:
    """The error itself, for a caller who tests the value in another way."""
    given = type(value).__name__
    return TypeError(f"{function} takes {noun}, not a value of type {given}: {remedy}.")


def expect_range(
    function: str,
    least: float,
    most: float,
    why: str,
    *,
    kind: type = Integral,
    **values: object,
) -> None:
    """Raises a TypeError or ValueError unless each value is None or a number from least to most.

    `why` says what the range comes from, or what a number outside of it would do.
    """
    noun = "an integer" if kind is Integral else "a number"
    for name, value in values.items():
        if value is None:
            continue
        expect(function, value, kind, f"{noun} for {name}=", "give one, or leave it out")
        if not least <= value <= most:  # pyright: ignore[reportOperatorIssue]
            raise ValueError(f"{function}: {name}={value!r} is not {least:,} to {most:,}, {why}.")


def expect_flags(function: str, **flags: object) -> None:
    """Raises a TypeError unless each is True or False; a string, as "no", would count as True."""
    for name, flag in flags.items():
        try:
            is_flag = flag in (False, True)  # NumPy's, too
        except (TypeError, ValueError):  # an array
            is_flag = False
        if not is_flag:
            raise wrong_type(function, flag, f"True or False for {name}=", "give one of the two")


def expect_l2_hits(function: str, l2_hits: object) -> None:
    """Raises a TypeError or ValueError unless it is None, or a fraction from 0 to 1."""
    if l2_hits is not None:
        expect_fraction(function, "bytes loaded", l2_hits=l2_hits)


def expect_fraction(function: str, whole: str, **values: object) -> None:
    """Raises a TypeError or ValueError unless each value is a fraction of the whole, 0 to 1."""
    for name, value in values.items():
        expect(function, value, Real, f"a number for {name}=", f"0 is none of the {whole}, 1 all")
        if not 0 <= value <= 1:  # pyright: ignore[reportOperatorIssue]
            raise ValueError(f"{name}={value!r} is not a fraction from 0 to 1 of the {whole}.")
