"""`LeftOut`: what the check does not look at, or takes on trust."""

from collections.abc import Iterable
from typing import override

from pallascope.checking.detector import Detector
from pallascope.checking.facts import Remark
from pallascope.checking.facts.left_out import Signalled, Tested, Trusted
from pallascope.program import BarrierType, Kind


class LeftOut(Detector):
    """Finds no fault; remarks on opaque code, on tests, and on semaphores that order nothing."""

    @override
    def remarks(self) -> Iterable[Remark]:
        program, places = self.program, self.order.semaphores.places
        opaque = {op.function for op in program.ops if op.kind == Kind.OPAQUE}
        if opaque:
            yield Trusted(tuple(sorted(opaque)))
        if program.has(Kind.TEST):
            yield Tested()
        signalled = tuple(
            barrier.name
            for barrier in program.barriers
            if barrier.type is BarrierType.SEMAPHORE
            and any((barrier.id, index) not in places for index in range(barrier.count))
        )
        if signalled:
            yield Signalled(signalled)
