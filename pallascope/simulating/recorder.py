"""The recorder: what each lane did, as spans; or only when the last of it ended.

The model. `lanes` says which lanes there are. Only the first copy of a block is recorded. At the
end each named scope of a thread becomes a span too: one for each run of the thread's spans in one
scope and one step, outer scopes before those within.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from pallascope.frozen import maker
from pallascope.lanes import Lanes
from pallascope.program import Op, Program
from pallascope.simulating.threads import Thread
from pallascope.spans import ENGINES, Span, SpanKind

#: Numbers of spans, None for what is not recorded, and cycles.
Room = Iterable[tuple[int | None, float]]

_make_span = maker(Span)


class Recorder:
    """The `spans` so far, in the order in which they became known, and the names of the `lanes`.

    If it `keeps` no spans, it knows only when the last of all copies' spans ended.
    """

    def __init__(self, program: Program, keeps: bool = True) -> None:
        self.spans: list[Span] = []
        self._program, self._lanes = program, Lanes(program) if keeps else None
        self._last = 0.0
        self._latest: dict[int, int] = {}  # the span of each thread that ended last

    @property
    def lanes(self) -> list[str]:
        """The lanes' names; none if it keeps no spans."""
        return self._lanes.names if self._lanes else []

    def span(
        self,
        thread: Thread,
        op: Op,
        kind: SpanKind,
        start: float,
        stop: float,
        text: str = "",
        cause: int | None = None,
        after: int | None = None,
        room: Room = (),
    ) -> int | None:
        """Records what an op does from `start` to `stop`, in cycles.

        Args:
          thread: whose op it is; it is at the op.
          op: the op.
          kind: what the lane does.
          start, stop: in cycles.
          text: a few words; by default the op's label.
          cause: the number of the span whose end ended this one, which is a wait.
          after: that of the span that this one was late for; by default, the thread's before it.
          room: the others that it comes after, and how many cycles later each could have been.

        Returns:
          The span's number; None if no spans are kept, and for further copies of the block, which
          no figure shows.
        """
        if self._lanes is None:
            self._last = max(self._last, stop)
            return None
        if thread.copy:
            return None
        if kind in ENGINES:
            lane = self._lanes.of_engine(thread.block, op)
        else:
            lane = self._lanes.of_thread(thread.index)
        buffer, slot = self._lanes.part(op)
        number, after = len(self.spans), self.latest(thread) if after is None else after
        others = tuple([(other, cycles) for other, cycles in room if other is not None])
        if kind not in ENGINES:
            self._latest[thread.index] = number
        self.spans.append(
            _make_span(
                lane, start, stop, kind, text or self._program.label(op), slot, op.step, op.line,
                thread.index, thread.at, cause, op.scope, buffer, after, others,
            )
        )  # fmt: skip
        return number

    def latest(self, thread: Thread) -> int | None:
        """The number of the thread's span before; None if there is none, or none is kept."""
        return None if thread.copy else self._latest.get(thread.index)

    def cycles(self) -> float:
        """The end of the last span."""
        return max((span.stop for span in self.spans), default=self._last)

    def finished(self) -> tuple[Span, ...]:
        """All spans, the named scopes' last."""
        return *self.spans, *_scopes(self.spans)


def _scopes(spans: Iterable[Span]) -> list[Span]:
    """A span for each run of a thread's spans in one named scope and one step, outer ones first."""
    found: list[Span] = []
    current: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for span in spans:
        if span.kind in ENGINES:
            continue
        names = span.scope.split("/") if span.scope else []
        paths = ["/".join(names[: i + 1]) for i in range(len(names))]
        before = current[span.lane]
        current[span.lane] = now = {}
        for path in paths:
            number = before.get(path)
            if number is not None and found[number].step == span.step:
                found[number] = replace(found[number], stop=span.stop)
            else:
                number = len(found)
                made = Span(span.lane, span.start, span.stop, SpanKind.SCOPE, path, step=span.step)
                found.append(replace(made, thread=span.thread, scope=path))
            now[path] = number
    return found
