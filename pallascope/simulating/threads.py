"""The threads of the simulated blocks: where each one is, and what it started.

The model. A thread does its ops in order. What it starts asynchronously (stores, products) goes on
without it; the thread keeps the end of each, so that a later wait finds it. Stores are in groups: a
group is over when all stores until its `commit_group` are, earlier groups' stores too, since waits
count groups from the last. With several blocks on an SM each thread of the program is there once
for each **copy** of the block.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from pallascope.program import Op
from pallascope.simulating.units import Sm


class Done(NamedTuple):
    """When something ends, in cycles, and the number of the span that ends; None if not shown."""

    time: float
    span: int | None


class Group(NamedTuple):
    """When stores have read their SMEM, and when they have written GMEM."""

    read: Done
    written: Done

    @classmethod
    def of(cls, parts: "list[Group]") -> "Group":
        """The group that is over when all its parts, one at least, are."""
        return cls(
            max((part.read for part in parts), key=_time),
            max((part.written for part in parts), key=_time),
        )


def _time(done: Done) -> float:
    return done.time


@dataclass(slots=True, eq=False)
class Thread:
    """A thread of one copy of a block, and what it started that may be unfinished.

    Attributes:
      number: among all threads of all copies; `index` is the thread's number in the program.
      copy: which of the resident copies, from 0; `block` is the block of the cluster.
      sm: the multiprocessor that it is on.
      ops: the thread's ops; `at` is the index of the next one, or of the one that it waits at.
      since: when it came to this op, in cycles.
      products: the end of each product on the tensor core.
      copies: the end of each copy without a barrier.
      open: the stores that are in no group yet.
      groups: the groups of stores, in order.
      answered: when its last signal to another device has been answered, in cycles.
    """

    number: int
    index: int
    copy: int
    block: int
    ops: tuple[Op, ...]
    sm: Sm
    at: int = 0
    since: float = 0.0
    answered: float = 0.0
    products: list[Done] = field(default_factory=list[Done])
    copies: list[Done] = field(default_factory=list[Done])
    open: list[Group] = field(default_factory=list[Group])
    groups: list[Group] = field(default_factory=list[Group])

    @property
    def op(self) -> Op:
        """The op that the thread is at."""
        return self.ops[self.at]
