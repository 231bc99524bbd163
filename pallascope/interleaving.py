"""`Interleaving`: one order in which the ops of a program's threads can come, up to some moment.

The model. An order is a list of **turns**: in each, one thread makes some of its ops, one after
another. A copy or a product is issued in its thread's turn and goes on beside the turns after it.
The order ends at a moment at which a fault shows. This module needs nothing but Python.
Source: this project's own.
"""

from dataclasses import dataclass

Spot = tuple[int, int]  # a thread of a program, and the index of one of its ops


@dataclass(frozen=True, slots=True)
class Turn:
    """The ops of `thread` from index `start` up to, but not with, index `stop`."""

    thread: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Interleaving:
    """An order that brings a fault out, with no op that the fault can do without.

    Attributes:
      turns: the threads' turns, first to last; none if the fault shows at once.
      coming: the ops that threads are about to make then, which are part of the fault.
      in_flight: the copies and products that have been issued and are part of the fault.
      then: a sentence on what happens at that moment.

    Example:
      >>> program = gallery.GALLERY["lapped-waiter"].program(fixed=False)
      >>> order = pallascope.check(program)[0].interleaving
      >>> order.ops, len(order.turns)
      (..., ...)
    """

    turns: tuple[Turn, ...]
    coming: tuple[Spot, ...]
    in_flight: tuple[Spot, ...]
    then: str

    @property
    def ops(self) -> int:
        """How many ops the order has."""
        return sum(turn.stop - turn.start for turn in self.turns)
