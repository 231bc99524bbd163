"""Tables of a timeline, for chapters: how long each scope takes, and who waits for whom.

The model. A scope is a `jax.named_scope` of a thread. In a measured timeline each span is one; in a
simulated one scopes are spans around others. A wait's cause is the span whose end let it go on, so
a measured timeline, whose waits have none, has no table of waits.
"""

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from pallascope.program import Kind, Program
from pallascope.spans import Span, SpanKind
from pallascope.timeline import Source, Timeline
from pipelib_book.measured import results


def scope_table(timeline: Timeline, names: Iterable[str]) -> str:
    """A row for each scope of these names: the median of its lengths, in cycles; then a step's.

    A scope that the timeline lacks has no row.

    Example:
      >>> x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
      >>> timeline = pallascope.simulate(pallascope.trace(softmax, x), pallascope.H200)
      >>> print(timelines.scope_table(timeline, ["load"]))
      | scope | cycles, simulated |
      |---|--:|
      | a step | ... |
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for span in timeline.spans:
        if span.kind is SpanKind.SCOPE or timeline.source is Source.MEASURED:
            found[span.scope].append(span.stop - span.start)
    rows = [[name, f"{statistics.median(found[name]):,.0f}"] for name in names if name in found]
    steady = timeline.steady()
    rows += [["a step", f"{steady.cycles_per_step:,.0f}"]] if steady is not None else []
    return results.table(("scope", f"cycles, {timeline.source}"), rows)


def wait_table(timeline: Timeline) -> str:
    """A row for each two rows of the figure, the first of which waits for the second: cycles.

    Example:
      >>> x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
      >>> timeline = pallascope.simulate(pallascope.trace(softmax, x), pallascope.H200)
      >>> print(timelines.wait_table(timeline))
      | who waits | for | cycles |
      |---|---|--:|
      | thread 0 | TMA loads | ... |
    """
    waited: Counter[tuple[str, str]] = Counter()
    for span in timeline.spans:
        if span.kind is SpanKind.WAIT and span.cause is not None:
            cause = timeline.spans[span.cause]
            pair = timeline.lanes[span.lane], timeline.lanes[cause.lane]
            waited[pair] += span.stop - span.start  # pyright: ignore[reportArgumentType]
    rows = [[*pair, f"{cycles:,.0f}"] for pair, cycles in waited.most_common()]
    return results.table(("who waits", "for", "cycles"), rows, words=(0, 1))


def slots(cases: Mapping[str, tuple[Program, Timeline]], *inputs: str) -> Timeline:
    """What becomes of the slot of each ring of one slot, in some programs, for `pallascope.plot`.

    A slot is loaded, read by products, and held otherwise. A row is named after its case and its
    input; `inputs` has the names of what the thread with the most loads brings, in their order.

    Example:
      >>> hazard = gallery.GALLERY["missing-wgmma-wait"]
      >>> program = hazard.program(fixed=True)
      >>> timeline = pallascope.simulate(program, pallascope.H200)
      >>> timelines.slots({"one": (program, timeline)}, "a").lanes
      ('one: a',)
    """
    spans: list[Span] = []
    lanes: list[str] = []
    for case, (program, timeline) in cases.items():
        for buffer, word in zip(_loaded(program), inputs):
            loads, reads = _uses(program, timeline, buffer)
            ends = [*(load.start for load in loads[1:]), timeline.cycles]
            for load, end in zip(loads, ends):
                spans.append(Span(len(lanes), load.start, load.stop, SpanKind.LOAD))
                spans.append(Span(len(lanes), load.stop, end, SpanKind.WAIT))
            spans += [Span(len(lanes), each.start, each.stop, SpanKind.WGMMA) for each in reads]
            lanes.append(f"{case}: {word}")
    timeline = max((timeline for _, timeline in cases.values()), key=lambda each: each.cycles)
    return dataclasses.replace(timeline, lanes=tuple(lanes), spans=tuple(spans), notes=(), gmem=())


def _loaded(program: Program) -> list[int]:
    """The buffers into which the thread with the most loads has them, in their order."""
    each = ([op for op in ops if op.kind is Kind.LOAD] for ops in program.threads)
    return [*dict.fromkeys(op.writes[0].buffer for op in max(each, key=len))]


def _uses(program: Program, timeline: Timeline, buffer: int) -> tuple[list[Span], list[Span]]:
    """The loads into a buffer, and the products that read it, in order."""
    found: dict[SpanKind, list[Span]] = {SpanKind.LOAD: [], SpanKind.WGMMA: []}
    for span in sorted(timeline.spans, key=lambda span: span.start):
        if span.kind in found and span.thread is not None and span.op is not None:
            op = program.threads[span.thread][span.op]
            regions = op.writes if span.kind is SpanKind.LOAD else op.reads
            if any(region.buffer == buffer for region in regions):
                found[span.kind].append(span)
    return found[SpanKind.LOAD], found[SpanKind.WGMMA]
