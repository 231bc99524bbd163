"""Arithmetic of integers as the device does it, and the cost of arithmetic on tensors.

Source: XLA's semantics of division and of overflow.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Scratch(enum.IntEnum):
    """What arithmetic does with the scratch in SMEM by which warps pass each other parts of sums.

    NONE: there is no reduction. RESERVED: there is one, for which Mosaic GPU reserves the scratch,
    but no warp passes anything. PERHAPS: that depends on a layout which is not known. USED: they
    pass parts.
    """

    NONE = enum.auto()
    RESERVED = enum.auto()
    PERHAPS = enum.auto()
    USED = enum.auto()


class Cost(NamedTuple):
    """The cost of arithmetic in registers: operations, how many of them are transcendental, and
    words of 32 bits that lanes pass each other; and what it does with the scratch of reductions.
    `Op` has fields of the first three names."""

    flops: int = 0
    transcendental: int = 0
    exchanges: int = 0
    scratch: Scratch = Scratch.NONE

    def plus(self, other: "Cost") -> "Cost":
        """The cost of both."""
        return Cost(
            self.flops + other.flops,
            self.transcendental + other.transcendental,
            self.exchanges + other.exchanges,
            max(self.scratch, other.scratch),
        )


def wrapping(function: Callable[..., int], dtype: np.dtype[Any]) -> Callable[..., int]:
    """The function, with results that overflow as the dtype's do."""
    if dtype.kind == "b":
        return function
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def wrapped(*values: int) -> int:
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
