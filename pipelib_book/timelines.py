"""Tables of a timeline, for chapters: how long each scope takes, and who waits for whom.

The model. A scope is a `jax.named_scope` of a thread. In a measured timeline each span is one; in a
simulated one scopes are spans around others. A wait's cause is the span whose end let it go on, so
a measured timeline, whose waits have none, has no table of waits.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable

from pallascope.spans import SpanKind
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
