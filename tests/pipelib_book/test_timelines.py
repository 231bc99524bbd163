"""`pipelib_book.timelines`: a scope that is not there; chapter 13 shows all else of its tables."""

from pallascope.spans import Span
from pallascope.timeline import Source, Timeline
from pipelib_book import timelines


def test_a_scope_that_a_timeline_lacks_has_no_row():
    lengths = enumerate([(0, 10), (20, 50), (60, 80)])
    spans = [Span(0, *times, "scope", step=(step,), scope="load") for step, times in lengths]
    found = Timeline("ring", ("thread",), tuple(spans), 1000.0, 1e9, Source.SIMULATED, "H200")
    assert timelines.scope_table(found, ["load", "never"]).splitlines() == [
        "| scope | cycles, simulated |",
        "|---|--:|",
        "| load | 20 |",
    ]
