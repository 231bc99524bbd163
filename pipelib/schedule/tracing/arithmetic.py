"""Arithmetic of integers as the device does it, and the cost of arithmetic on tensors.

Source: XLA's semantics of division and of overflow.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Cost(NamedTuple):
    """The cost of arithmetic in registers: operations, how many of them are transcendental, and
    words of 32 bits that lanes pass each other. `Op` has fields of these names."""

    flops: int = 0
    transcendental: int = 0
    exchanges: int = 0

    def plus(self, other: "Cost") -> "Cost":
        """The cost of both."""
        return Cost(*map(operator.add, self, other))


def wrapping(function: Callable[..., Any], dtype: np.dtype[Any]) -> Callable[..., Any]:
    """The function, with results that overflow as the dtype's do."""
    if dtype.kind == "b":
        return function
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def wrapped(*values: int) -> Any:
        result = function(*values)
        return result if low <= result <= high else (result - low) % (high - low + 1) + low

    return wrapped


def divide(x: int, y: int) -> int:
    """Rounds towards zero; by zero, as XLA does, gives -1."""
    if y == 0:
        return -1
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def remainder(x: int, y: int) -> int:
    """The remainder of `divide`; x if y is zero."""
    return x if y == 0 else x - divide(x, y) * y
