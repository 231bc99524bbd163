"""`Span`: one thing that something in an SM did, from one moment to another.

The model. A *lane* is something that works: a Pallas thread, the TMA engine, the tensor core. A
span is one thing that a lane did from `start` to `stop`; its kind says what:

=========  =========================================================================================
kind       what the lane does
=========  =========================================================================================
issue      a thread starts something asynchronous or arrives on a barrier
wait       a thread waits: for a barrier, the tensor core or its stores
access     a thread reads or writes memory ordinarily
compute    a thread does arithmetic in registers
load       the TMA engine copies GMEM to SMEM
store      the TMA engine copies SMEM to GMEM
wgmma      the tensor core multiplies
scope      a named scope of a thread, around other spans
=========  =========================================================================================
"""

import enum
from dataclasses import dataclass


class SpanKind(enum.StrEnum):
    """What a lane does in a span; equal to its name, so `span.kind == SpanKind.WAIT` holds."""

    LOAD = "load"
    STORE = "store"
    WGMMA = "wgmma"
    COMPUTE = "compute"
    ACCESS = "access"
    ISSUE = "issue"
    WAIT = "wait"
    SCOPE = "scope"

    __repr__ = str.__repr__

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(
            f"{value!r} is not a kind of span, so there is no colour for it: give one of"
            f" {', '.join(cls)}."
        )


# What TMA and the tensor core do, while the thread that asked for it goes on.
ENGINES = (SpanKind.LOAD, SpanKind.STORE, SpanKind.WGMMA)


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that a lane did; `lane` is an index into `Timeline.lanes`, times are in cycles.

    `thread` and `op` say which op of the program it is, None if it was measured; `buffer` the short
    name of the one buffer that it is about, if one, and `slot` the slot of the ring; `text` is a
    sentence on it; `cause` is an index into `Timeline.spans`. So is `after`: the span but for which
    this one would have begun earlier, or, of a wait, ended earlier; None if there is none. `room`
    has the others that it comes after, and how many cycles later each could have been.

    Example:
      >>> load = Span(lane=1, start=50.0, stop=900.0, kind="load", slot=0)
      >>> load.stop - load.start
      850.0
    """

    lane: int
    start: float
    stop: float
    kind: SpanKind
    text: str = ""
    slot: int | None = None
    step: tuple[int, ...] = ()
    line: str | None = None
    thread: int | None = None
    op: int | None = None
    cause: int | None = None
    scope: str = ""
    buffer: str = ""
    after: int | None = None
    room: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if type(self.kind) is not SpanKind:
            object.__setattr__(self, "kind", SpanKind(self.kind))
