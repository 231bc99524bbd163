"""What the check finds, as typed facts: one class for each way in which a program can go wrong.

The model. A detector says which ops, which memory or which barrier a fact is about, and what it
counted there; it makes no sentence. The fact makes them: a `Fault` becomes a `Finding`, a `Remark`
becomes a note. A cause says who does what to which memory, and by what the two would have been in
order. A remedy names the call that is missing and the thread that has to make it. A barrier is
named by the id of its array and its index there.

A fault that some orders of the threads' ops bring out, and others do not, is `Fleeting`. It has a
`Clash`: which ops have to be where for it to show. `interleavings` makes an order of that.
"""

import abc
from dataclasses import dataclass

from pipelib.schedule.interleaving import Spot
from pipelib.schedule.program import Program
from pipelib.schedule.report import Finding


@dataclass(frozen=True, slots=True)
class Clash:
    """A moment at which a fault shows.

    The `done` ops are over, those `in_flight` have been issued and are not, the `coming` are next.
    Of a barrier, by id and index, a phase may have to be `incomplete`. No thread may have come to
    the `later` ops.
    """

    done: tuple[Spot, ...] = ()
    in_flight: tuple[Spot, ...] = ()
    coming: tuple[Spot, ...] = ()
    incomplete: tuple[tuple[int, int], int] | None = None
    later: tuple[Spot, ...] = ()

    @property
    def spots(self) -> tuple[Spot, ...]:
        """All ops that it names."""
        return self.done + self.in_flight + self.coming


#: Of a fault that shows in every order.
NO_CLASH = Clash()


class Fault(abc.ABC):
    """Something that is wrong with a program."""

    __slots__ = ()

    @abc.abstractmethod
    def finding(self, program: Program) -> Finding:
        """The fault in words."""


class Fleeting(Fault):
    """A fault that some orders of the ops bring out; every order does if `clash` names no op."""

    __slots__ = ()
    clash: Clash

    @abc.abstractmethod
    def moment(self, program: Program) -> str:
        """What happens at the moment at which the fault shows, as the end of a sentence."""


class Remark(abc.ABC):
    """Something that may be right or wrong, or that the check did not look at."""

    __slots__ = ()

    @abc.abstractmethod
    def note(self, program: Program) -> str:
        """The remark in words."""
