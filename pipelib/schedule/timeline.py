"""`Timeline`: who was busy when, in cycles; simulated or measured, drawn by the same code.

The model. A lane is something that works: a Pallas thread, the TMA engine, the tensor core. A span
is one thing that a lane did from `start` to `stop`. Spans of one thread do not overlap and are in
order; copies of the TMA lane may overlap. A thread without a span is idle. A wait's `cause` is the
span whose end let it go on.

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

Source: this project's own.
"""

from typing import NamedTuple


class Span(NamedTuple):
    """One thing that a lane did; `lane` is an index into `Timeline.lanes`, times are in cycles.

    `thread` and `op` say which op of the program it is, None if it was measured; `slot` of the
    ring it touches, if one; `text` is a sentence on it; `cause` is an index into `Timeline.spans`.
    """

    lane: int
    start: float
    stop: float
    kind: str
    text: str = ""
    slot: int | None = None
    step: tuple[int, ...] = ()
    line: str | None = None
    thread: int | None = None
    op: int | None = None
    cause: int | None = None
    scope: str = ""


class Timeline(NamedTuple):
    """Spans on lanes; `cycles` is the whole's length at `clock_hz`.

    `source` is "simulated" or "measured", `machine` the name of what it ran on. `truncated` says
    that the end is missing, `notes` what else the reader of a figure must know.
    """

    name: str
    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    cycles: float
    clock_hz: float
    source: str
    machine: str
    truncated: bool = False
    notes: tuple[str, ...] = ()
