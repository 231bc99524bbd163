"""`pipelib_book.timelines`: tables of scopes and of waits."""

from pallascope.timeline import Source, Span, Timeline
from pipelib_book import timelines


def timeline(*spans, source=Source.SIMULATED):
    lanes = ("compute thread 0", "memory thread", "tensor core")
    return Timeline("ring", lanes, spans, 1000.0, 1e9, source, "H200")


def scope(name, start, stop, step, kind="scope"):
    return Span(0, start, stop, kind, step=(step,), scope=name)


def test_a_scope_has_the_median_of_its_lengths():
    found = timeline(scope("load", 0, 10, 0), scope("load", 20, 50, 1), scope("load", 60, 80, 2))
    assert timelines.scope_table(found, ["load", "never"]).splitlines() == [
        "| scope | cycles, simulated |", "|---|--:|", "| load | 20 |",
    ]  # fmt: skip


def test_measured_scopes_are_spans_of_any_kind_and_have_steps():
    spans = [scope("wait product", 100 * k, 100 * k + 60, k, "wait") for k in range(6)]
    rows = timelines.scope_table(timeline(*spans, source=Source.MEASURED), ["wait product"])
    assert rows.splitlines()[2:] == ["| wait product | 60 |", "| a step | 100 |"]


def test_what_is_within_a_simulated_scope_is_none():
    inner = Span(0, 2.0, 4.0, "issue", step=(0,), scope="load")
    assert "| load | 10 |" in timelines.scope_table(
        timeline(scope("load", 0, 10, 0), inner), ["load"]
    )


def test_waits_add_up_by_who_and_for_whom():
    product = Span(2, 0, 500, "wgmma")
    waits = [Span(0, 100.0 * k, 100.0 * k + 30, "wait", cause=0) for k in range(3)]
    idle = Span(1, 0, 40, "wait")
    long = Span(1, 50, 300, "wait", cause=1)
    rows = timelines.wait_table(timeline(product, *waits, idle, long)).splitlines()
    assert rows[0] == "| who waits | for | cycles |"
    assert rows[2:] == [
        "| memory thread | compute thread 0 | 250 |", "| compute thread 0 | tensor core | 90 |",
    ]  # fmt: skip
