"""`Detector`: looks for faults of one family in a run of a program; `check` has the list of them.

The model. A detector is made before the run. It sees every event in turn, then the end, and gives
the facts that it finds. What may be right or wrong it notes by the way, as remarks.
"""

from collections.abc import Hashable, Iterable

from pallascope.checking.facts import Fault, Remark
from pallascope.checking.order import Event, Order


class Detector:
    """One that finds nothing: each detector overrides what it needs.

    `strict` asks for faults that only the letter of PTX makes faults (see `check`).
    """

    def __init__(self, order: Order, *, strict: bool = False) -> None:
        self.order, self.program, self.strict = order, order.program, strict
        self._remarks: dict[Hashable, Remark] = {}

    def see(self, event: Event) -> Iterable[Fault]:
        """The faults that one event shows, an access among them."""
        return ()

    def finish(self, is_whole: bool) -> Iterable[Fault]:
        """The faults that the end of the run shows; it `is_whole` if every thread has ended."""
        return ()

    def note(self, remark: Remark, key: Hashable = None) -> None:
        """Keeps a remark, unless there is one with the same key: by default, one that is equal."""
        self._remarks.setdefault(key or remark, remark)

    def remarks(self) -> Iterable[Remark]:
        """All that was noted, once the run is over."""
        return self._remarks.values()
