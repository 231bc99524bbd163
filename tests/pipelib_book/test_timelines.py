"""`pipelib_book.timelines`: a scope that is not there; chapter 13 shows all else of its tables."""

import pallascope
from pallascope.spans import Span
from pallascope.timeline import Source, Timeline
from pipelib_book import timelines
from pipelib_book.gallery import GALLERY


def test_a_scope_that_a_timeline_lacks_has_no_row():
    lengths = enumerate([(0, 10), (20, 50), (60, 80)])
    spans = [Span(0, *times, "scope", step=(step,), scope="load") for step, times in lengths]
    found = Timeline("ring", ("thread",), tuple(spans), 1000.0, 1e9, Source.SIMULATED, "H200")
    assert timelines.scope_table(found, ["load", "never"]).splitlines() == [
        "| scope | cycles, simulated |",
        "|---|--:|",
        "| load | 20 |",
    ]


def test_a_slot_is_held_from_a_load_to_the_next_and_read_in_between():
    program = GALLERY["missing-wgmma-wait"].program(fixed=True)
    timeline = pallascope.simulate(program, pallascope.H200)
    found = timelines.slots({"mended": (program, timeline)}, "a", "b")
    assert found.lanes == ("mended: a", "mended: b")
    for lane in range(2):
        loads, held, reads = (
            [s for s in found.spans if (s.lane, s.kind) == (lane, kind)]
            for kind in ("load", "wait", "wgmma")
        )
        assert len(loads) == len(held) == len(reads) > 1
        for load, after, read in zip(loads, held, reads):
            assert load.stop == after.start <= read.start
        assert all(after.stop == load.start for after, load in zip(held, loads[1:]))
        assert held[-1].stop == found.cycles
