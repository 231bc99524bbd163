"""The recorder: what each lane did, as spans.

The model. Each block has a lane for each of its threads and their warps, then one for each engine.
An engine's spans are on its lane, and all other spans on their thread's. Only the first copy of a
block is recorded. At the end each named scope of a thread becomes a span too: one for each run of
the thread's spans in one scope and one step, outer scopes before those within.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pipelib.schedule.frozen import maker
from pipelib.schedule.program import Engine, Op, Program
from pipelib.schedule.simulating.threads import Thread
from pipelib.schedule.timeline import ENGINES, Span, SpanKind

_make_span = maker(Span)


class Recorder:
    """The `spans` so far, in the order in which they became known, and the names of the `lanes`."""

    def __init__(self, program: Program) -> None:
        self.spans: list[Span] = []
        self.lanes: list[str] = []
        self._program = program
        # Of each block; the lane of None, which no op of an engine has, is not there.
        self._engine_lane: list[dict[Engine | None, int]] = []
        self._thread_lane = [0] * len(program.threads)
        for block in range(program.blocks):
            prefix = f"block {block} " if program.blocks > 1 else ""
            for thread, name in _named_threads(program, block):
                self._thread_lane[thread] = len(self.lanes)
                self.lanes.append(prefix + name)
            self._engine_lane.append({e: len(self.lanes) + i for i, e in enumerate(Engine)})
            self.lanes += [prefix + engine for engine in Engine]

    def span(
        self,
        thread: Thread,
        op: Op,
        kind: SpanKind,
        start: float,
        stop: float,
        text: str = "",
        cause: int | None = None,
    ) -> int | None:
        """Records what an op does from `start` to `stop`, in cycles.

        Args:
          thread: whose op it is; it is at the op.
          op: the op.
          kind: what the lane does.
          start, stop: in cycles.
          text: a few words; by default the op's label.
          cause: the number of the span whose end ended this one, which is a wait.

        Returns:
          The span's number; None for further copies of the block, which no figure shows.
        """
        if thread.copy:
            return None
        if kind in ENGINES:
            lane = self._engine_lane[thread.block][op.kind.engine]
        else:
            lane = self._thread_lane[thread.index]
        self.spans.append(
            _make_span(
                lane, start, stop, kind, text or self._program.label(op), self._slot(op), op.step,
                op.line, thread.index, thread.at, cause, op.scope,
            )
        )  # fmt: skip
        return len(self.spans) - 1

    def _slot(self, op: Op) -> int | None:
        """The slot of the ring that an op touches, or whose barrier it is on."""
        for region in op.writes + op.reads:
            if self._program.buffers[region.buffer].slots:
                return region.box[0][0]
        if op.barrier is not None and self._program.barriers[op.barrier].count > 1:
            return op.index
        return None

    def cycles(self) -> float:
        """The end of the last span."""
        return max((span.stop for span in self.spans), default=0.0)

    def finished(self) -> tuple[Span, ...]:
        """All spans, the named scopes' last."""
        return *self.spans, *_scopes(self.spans)


def _named_threads(program: Program, block: int) -> Iterator[tuple[int, str]]:
    """A block's threads, each before its warps, and the names of their lanes."""
    warps = list(enumerate(program.warps, len(program.threads) - len(program.warps)))
    for local, thread in enumerate(program.threads_of(block)):
        yield thread, f"thread {local}"
        for number, warp in warps:
            if warp.thread == thread:
                yield number, f"thread {local} warp {warp.number}"


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
                found.append(
                    Span(
                        span.lane, span.start, span.stop, SpanKind.SCOPE, path, step=span.step,
                        thread=span.thread, scope=path,
                    )
                )  # fmt: skip
            now[path] = number
    return found
