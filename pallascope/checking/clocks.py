"""`Clock`: what is known to be over at a moment, of each thread of a program.

The model. A clock counts, for each thread, how many of its ops are known to be over (vector clocks:
Mattern, Virtual Time and Global States, 1989). Beside each count stands another one, of those ops
that also had a fence after them on the way here; `order` says what the fence is. A third one counts
those ops whose accesses of TMEM come before what follows here. Clocks are changed in place. They
are plain lists: programs have 3 to 48 threads, too few for arrays to be faster, and a web page that
runs the checker has nothing to load for them.
"""

from collections.abc import Sequence


class Clock:
    """Three counts for each thread: of its ops that are over, of those with a fence after them, and
    of those that the tensor core knows to be over.

    Attributes:
      over, fenced, ordered: the counts, by the thread's number.
    """

    __slots__ = ("fenced", "ordered", "over")

    def __init__(self, over: Sequence[int], fenced: Sequence[int], ordered: Sequence[int]):
        self.over, self.fenced, self.ordered = [*over], [*fenced], [*ordered]

    @classmethod
    def zero(cls, threads: int) -> "Clock":
        """The clock of a moment when nothing is over."""
        return cls([0] * threads, [0] * threads, [0] * threads)

    def copy(self) -> "Clock":
        """A clock that stays as this one is now."""
        return Clock(self.over, self.fenced, self.ordered)

    def join(self, other: "Clock", orders_tensor_core: bool = False) -> None:
        """Adds what is over by another clock, for the tensor core too if this is what orders it."""
        self.over = later(self.over, other.over)
        if self.fenced != other.fenced:  # most threads know of the same fences
            self.fenced = later(self.fenced, other.fenced)
        if orders_tensor_core:
            self.ordered = later(self.ordered, other.ordered)

    def advance(self, thread: int, count: int) -> None:
        """Notes that a thread has come through so many of its ops, whose clock this is."""
        self.over[thread] = self.ordered[thread] = count

    def fence(self) -> None:
        """Notes a fence: it comes after all that is over."""
        self.fenced = [*self.over]

    def has(self, thread: int, index: int) -> bool:
        """Whether this op of this thread is over."""
        return self.over[thread] > index

    def has_ordered(self, thread: int, index: int) -> bool:
        """Whether this op of this thread is over for the tensor core."""
        return self.ordered[thread] > index

    def has_fenced(self, thread: int, index: int) -> bool:
        """Whether this op of this thread is over, with a fence after it."""
        return self.fenced[thread] > index


def later(counts: Sequence[int], others: Sequence[int]) -> list[int]:
    """For each thread, the larger of two counts."""
    return [a if a > b else b for a, b in zip(counts, others)]
