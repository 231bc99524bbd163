"""`to_perfetto`: a `Timeline` as a file that ui.perfetto.dev and chrome://tracing open.

The model. The Trace Event Format: the timeline is a process, a lane a thread of it, a span a
complete event (`X`), the arrow from a wait's cause to the wait a flow (`s`, `f`). Viewers want the
events of one thread to nest, so copies in flight at the same time have a thread each, as they have
a row each in other drawings. `ts` and `dur` are in microseconds, as the format has it, in whole
nanoseconds so that what is end to end stays so; the cycles are among an event's arguments. Not
covered: counters, the threads' colours. Source: "Trace Event Format", Google, 2016.
"""

import json
import pathlib
from typing import Any

from pallascope.arguments import TIMELINE, expect
from pallascope.drawing.paths import relative_paths
from pallascope.drawing.picture import LOOKS, headline, pack, remarks
from pallascope.program import path_of
from pallascope.spans import Span, SpanKind
from pallascope.timeline import Timeline

_PROCESS = 1
type _Event = dict[str, Any]  # or another object of the format, as JSON writes it


def to_perfetto(timeline: Timeline, path: str | pathlib.Path) -> None:
    """Writes a timeline to a JSON file; open it at ui.perfetto.dev or in chrome://tracing.

    Example:
      >>> x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
      >>> timeline = pallascope.simulate(pallascope.trace(softmax, x), pallascope.H100)
      >>> pallascope.to_perfetto(timeline, "softmax.json")
    """
    text = json.dumps(trace(timeline), ensure_ascii=False)
    path_of("to_perfetto", path).write_text(text, "utf-8")


def trace(timeline: Timeline) -> _Event:
    """The file's contents: `traceEvents`, and in `otherData` where the times are from."""
    expect("A trace file", timeline, *TIMELINE)
    names, thread_of = _threads(timeline)
    title = f"{timeline.name} ({headline(timeline)})"
    events = [_meta("process_name", 0, name=title)]
    for thread, name in enumerate(names):
        events += [_meta("thread_name", thread, name=name)]
        events += [_meta("thread_sort_index", thread, sort_index=thread)]
    for index, span in enumerate(timeline.spans):
        events.append(_complete(timeline, span, thread_of[index]))
        if span.cause is not None:
            events += _flow(timeline, index, span.cause, thread_of)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "source": timeline.source,
            "machine": timeline.machine,
            "clock_hz": timeline.clock_hz,
            "cycles": timeline.cycles,
            "time unit": "ts and dur are microseconds: cycles / clock_hz * 1e6",
            "notes": remarks(timeline),
        },
    }


def _threads(timeline: Timeline) -> tuple[list[str], dict[int, int]]:
    """The threads' names, and the thread of each span: scopes are with what is in them."""
    names: list[str] = []
    thread_of: dict[int, int] = {}
    for lane, name in enumerate(timeline.lanes):
        here = [(i, span) for i, span in enumerate(timeline.spans) if span.lane == lane]
        packed = pack([pair for pair in here if pair[1].kind != SpanKind.SCOPE])
        count = max(packed.values(), default=0) + 1
        for index, span in here:
            thread_of[index] = len(names) + (0 if span.kind == SpanKind.SCOPE else packed[index])
        names += [name if count == 1 else f"{name} ({i + 1} of {count})" for i in range(count)]
    return names, thread_of


def _meta(kind: str, thread: int, **args: object) -> _Event:
    return {"ph": "M", "name": kind, "pid": _PROCESS, "tid": thread, "args": args}


def _nanoseconds(timeline: Timeline, cycles: float) -> int:
    return round(1e9 * cycles / timeline.clock_hz)


def _complete(timeline: Timeline, span: Span, thread: int) -> _Event:
    begin, end = _nanoseconds(timeline, span.start), _nanoseconds(timeline, span.stop)
    slot = "" if span.slot is None else str(span.slot)
    name = " ".join(filter(None, (LOOKS[span.kind].words, span.buffer, slot)))
    args = {
        "text": span.text,
        "slot": span.slot,
        "step": [*span.step],
        "line": relative_paths(span.line or ""),
        "cycles": [span.start, span.stop],
    }
    return {
        "ph": "X",
        "name": span.scope or "scope" if span.kind == SpanKind.SCOPE else name,
        "cat": span.kind,
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
        "pid": _PROCESS,
        "tid": thread,
        "args": {name: value for name, value in args.items() if value not in (None, "", [])},
    }


def _flow(timeline: Timeline, index: int, of: int, thread_of: dict[int, int]) -> list[_Event]:
    """From within the cause `of` a wait to within the wait: a viewer looks for the event there."""
    wait, cause = timeline.spans[index], timeline.spans[of]
    left = (_nanoseconds(timeline, cause.start) + _nanoseconds(timeline, cause.stop)) // 2
    right = max(left, (_nanoseconds(timeline, wait.start) + _nanoseconds(timeline, wait.stop)) // 2)
    common = {"name": "cause", "cat": "cause", "id": index, "pid": _PROCESS}
    return [
        {"ph": "s", "ts": left / 1000, "tid": thread_of[of], **common},
        {"ph": "f", "bp": "e", "ts": right / 1000, "tid": thread_of[index], **common},
    ]
