"""The trace file, by the rules of the Trace Event Format."""

import collections
import itertools
import json

import pallascope
from pallascope.spans import Span
from tests.pallascope.timelines import ring


def written(timeline, tmp_path):
    pallascope.to_perfetto(timeline, tmp_path / "trace.json")
    return json.loads((tmp_path / "trace.json").read_text("utf-8"))


def events(trace, kind):
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_the_file_says_what_it_shows_and_in_which_unit(tmp_path):
    trace = written(ring(truncated=True), tmp_path)
    assert trace["displayTimeUnit"] == "ns"
    assert trace["otherData"] == {
        "source": "simulated",
        "machine": "a machine of the tests",
        "clock_hz": 1.755e9,
        "cycles": ring().cycles,
        "time unit": "ts and dur are microseconds: cycles / clock_hz * 1e6",
        "notes": [
            "Truncated: the kernel goes on after the end of this timeline.",
            "One of 132 blocks.",
        ],
    }


def test_lanes_are_named_threads_of_one_named_process(tmp_path):
    meta = events(written(ring(slots=2), tmp_path), "M")
    names = {e["tid"]: e["args"]["name"] for e in meta if e["name"] == "thread_name"}
    assert [*names.values()] == [
        "memory thread",
        "compute thread 0",
        "TMA (1 of 2)",
        "TMA (2 of 2)",
        "tensor core",
    ]
    order = [event["args"]["sort_index"] for event in meta if event["name"] == "thread_sort_index"]
    assert order == [*names] == sorted(names)
    (process,) = [event["args"]["name"] for event in meta if event["name"] == "process_name"]
    assert process == "matmul (simulated on a machine of the tests)"


def test_each_span_is_a_complete_event_in_microseconds(tmp_path):
    timeline = ring()
    found = events(written(timeline, tmp_path), "X")
    assert len(found) == len(timeline.spans)
    for span, event in zip(timeline.spans, found, strict=True):
        assert abs(event["ts"] - 1e6 * span.start / 1.755e9) <= 0.0005
        assert abs(event["ts"] + event["dur"] - 1e6 * span.stop / 1.755e9) <= 0.0006
        assert event["cat"] == span.kind
        assert event["args"]["cycles"] == [span.start, span.stop]
        assert event["args"].get("line") == span.line
        assert event["args"].get("slot") == span.slot
    assert found[0]["name"] == "issue, arrive 0"
    assert {event["name"] for event in found if event["cat"] == "scope"} == {"body"}


def test_events_of_a_thread_nest(tmp_path):
    by_thread = collections.defaultdict(list)
    for event in events(written(ring(slots=4, steps=30), tmp_path), "X"):
        begin = round(event["ts"] * 1000)
        by_thread[event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
    assert len(by_thread) == 7
    for spans in by_thread.values():
        for (a, b), (c, d) in itertools.combinations(spans, 2):
            assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)


def test_flows_go_from_within_the_cause_to_within_the_wait(tmp_path):
    timeline = ring()
    trace = written(timeline, tmp_path)
    complete = events(trace, "X")
    starts = {event["id"]: event for event in events(trace, "s")}
    ends = {event["id"]: event for event in events(trace, "f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == sum(span.cause is not None for span in timeline.spans)
    for index, start in starts.items():
        end, cause = ends[index], complete[timeline.spans[index].cause]
        assert end["bp"] == "e"
        assert start["ts"] <= end["ts"]
        for point, event in ((start, cause), (end, complete[index])):
            assert point["tid"] == event["tid"]
            assert event["ts"] <= point["ts"] <= event["ts"] + event["dur"]


def test_any_text_is_kept(tmp_path):
    hostile = '"</script>\\ µs'
    timeline = ring(name=hostile, spans=(Span(0, 0, 1, "access", hostile),))
    trace = written(timeline, tmp_path)
    assert events(trace, "X")[0]["args"]["text"] == hostile
    assert events(trace, "M")[0]["args"]["name"].startswith(hostile)
