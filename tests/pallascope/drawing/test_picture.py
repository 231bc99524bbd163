"""What is drawn where, and whether everybody can see it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from pallascope import spans
from pallascope.drawing import picture as pictures
from pallascope.drawing.picture import EDGE, LOOKS, picture
from pallascope.spans import Span
from tests.pallascope.timelines import ring

# The pages that figures stand on: the book's light and dark (sphinx-book-theme), JupyterLab's
# dark, and that of other themes made like the book's (pydata-sphinx-theme).
PAGES = ("#FFFFFF", "#121212", "#111111", "#14181E")
FILLS = {name: kind.fill for name, kind in LOOKS.items() if kind.fill}
# A colour as people with protanopia and deuteranopia see it: G. Machado, M. Oliveira and
# L. Fernandes, "A physiologically-based model for simulation of color vision deficiency", 2009.
VISION = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}


def linear(colour):
    """The light of a "#RRGGBB", 0 to 1 each of red, green and blue."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """The ratio of WCAG 2, 1 to 21."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    """CIELAB, in which a distance of about 2 is just seen."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = np.cbrt(to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("page", PAGES)
def test_boxes_stand_out_from_every_page(page):
    assert contrast(EDGE, page) >= 3


def test_labels_are_read_on_their_boxes():
    for kind in LOOKS.values():
        assert kind.fill is None or contrast(kind.label, kind.fill) >= 4.5


@pytest.mark.parametrize("vision", VISION)
def test_colours_are_told_apart(vision):
    seen = {name: lab(VISION[vision] @ linear(fill)) for name, fill in FILLS.items()}
    near = {
        pair: round(float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])))
        for pair in itertools.combinations(seen, 2)
    }
    assert len(seen) == 6
    assert {pair: distance for pair, distance in near.items() if distance < 15} == {}


def test_every_kind_of_a_timeline_has_its_looks():
    table = spans.__doc__.split("=\n")[2]
    assert {line.split()[0] for line in table.splitlines() if line[:1].isalpha()} == {*LOOKS}


def test_a_thread_has_one_row_and_copies_in_flight_one_each():
    drawn = picture(ring(slots=3))
    rows = {
        lane: [row for row in drawn.rows if row.lane == i]
        for i, lane in enumerate(drawn.timeline.lanes)
    }
    assert {lane: len(found) for lane, found in rows.items()} == {
        "memory thread": 1,
        "compute thread 0": 2,  # the other one is for its scopes
        "TMA": 3,
        "tensor core": 1,
    }
    for one, other in itertools.combinations(drawn.boxes, 2):
        if one.row == other.row:
            assert one.span.stop <= other.span.start or other.span.stop <= one.span.start


def test_what_takes_no_time_takes_no_row():
    spans = (Span(0, 0, 9, "issue"), Span(0, 9, 9, "wait"), Span(0, 9, 12, "access"))
    for order in itertools.permutations(spans):
        drawn = picture(ring(spans=order))
        assert len(drawn.rows) == 1


def test_a_lane_with_no_span_is_left_out():
    spans = (Span(2, 0, 9, "load"),)
    drawn = picture(ring(spans=spans, cycles=9.0))
    assert [name for name, *_ in drawn.lanes()] == ["TMA"]


def test_short_work_that_follows_at_once_is_one_box():
    work = [Span(1, i, i + 1, ("access", "compute")[i % 3 == 0], f"{i}", 1) for i in range(9)]
    apart = [Span(1, 100, 101, "access", "later", 1), Span(0, 3, 4, "access", "other", 0)]
    long = [Span(1, 400, 900, "compute", "long")]
    drawn = picture(ring(spans=(*work, *apart, *long), cycles=1000.0))
    boxes = {box.span.text: box for box in drawn.boxes}
    first = "9 operations: reads, writes and arithmetic; the first: 0"
    assert boxes.keys() == {first, "later", "other", "long"}
    merged = boxes[first].span
    assert (merged.start, merged.stop, merged.kind, merged.slot) == (0, 9, "access", 1)
    near = picture(ring(spans=tuple(work), cycles=9.0))
    assert len(near.boxes) == 9
    waits = Span(2, 0, 5, "wait", cause=4)
    assert len(picture(ring(spans=(*work, waits), cycles=1000.0)).boxes) == 4


def test_rows_are_below_each_other_in_the_lanes_order():
    drawn = picture(ring())
    ends = [(row.top, row.top + row.height) for row in drawn.rows]
    assert all(a < b for a, b in itertools.pairwise(itertools.chain(*ends)))
    assert ends[-1][1] < drawn.height
    assert [name for name, _, _ in drawn.lanes()] == [*drawn.timeline.lanes]
    assert [row.lane for row in drawn.rows] == sorted(row.lane for row in drawn.rows)


def test_arrows_lead_from_the_end_of_a_cause_to_the_end_of_the_wait():
    timeline = ring(slots=2, steps=4)
    drawn = picture(timeline)
    assert len(drawn.arrows) > 8
    for arrow in drawn.arrows:
        cause, wait = drawn.boxes[arrow.cause], drawn.boxes[arrow.wait]
        assert timeline.spans[wait.span.cause] is cause.span
        x0, y0, x1, y1 = drawn.ends(arrow)
        assert (x0, x1) == (cause.span.stop, wait.span.stop)
        from_row, to_row = drawn.rows[cause.row], drawn.rows[wait.row]
        downwards = from_row.top < to_row.top
        assert (y0 - from_row.top, y1 - to_row.top) == (
            (from_row.height, 0) if downwards else (0, to_row.height)
        )


def test_a_wait_for_what_is_over_has_no_arrow():
    timeline = ring(slots=2, steps=2)
    index = next(i for i, s in enumerate(timeline.spans) if s.kind == "wait" and s.cause)
    wait = timeline.spans[index]
    late = replace(wait, start=wait.stop, stop=wait.stop + 10)
    spans = (*timeline.spans[:index], late, *timeline.spans[index + 1 :])
    assert len(picture(replace(timeline, spans=spans)).arrows) == len(picture(timeline).arrows) - 1


def test_a_label_is_a_buffer_and_a_slot_or_the_slot_alone():
    timeline = ring(slots=3)
    spans = [replace(s, buffer="a") if s.kind == "load" else s for s in timeline.spans]
    spans = [replace(s, buffer="o") if s.kind == "store" else s for s in spans]
    drawn = picture(replace(timeline, spans=tuple(spans)))
    labels = {kind: {b.labels for b in drawn.boxes if b.span.kind == kind} for kind in LOOKS}
    assert labels["load"] == {("a 0", "0"), ("a 1", "1"), ("a 2", "2")}
    assert labels["wgmma"] == {("0",), ("1",), ("2",)}
    assert labels["store"] == {("o",)}
    assert labels["access"] == {()}
    assert labels["scope"] == {("body",)}
    (box, *_) = (box for box in drawn.boxes if box.labels == ("a 0", "0"))
    share = (box.stop - box.start) / (drawn.stop - drawn.start)
    found = [drawn.label(box, pixels / share) for pixels in (40, 15, 5)]
    assert found == ["a 0", "0", ""]


def test_a_bracket_marks_the_steady_state_that_texts_speak_of():
    timeline = ring(slots=2, steps=12)
    interval, bracket = timeline.interval(), picture(timeline).steady
    assert interval.name == "the steady state"
    assert bracket == (interval.start, interval.stop, True, True)
    middle = (interval.start + interval.stop) / 2
    cut = picture(timeline, start=middle).steady
    assert cut == (middle, interval.stop, False, True)
    assert picture(timeline, stop=interval.start).steady is None


def test_without_a_steady_state_there_is_no_bracket():
    for timeline in (ring(steps=2), ring(stuck=True), ring(source="order")):
        assert picture(timeline).steady is None
    assert picture(ring(steps=2)).rows[0].top < picture(ring()).rows[0].top


def test_a_window_of_steps_has_their_spans_and_cuts_others():
    timeline = ring(steps=20)
    drawn = picture(timeline, steps=range(6, 9))
    chosen = [s for s in timeline.spans if s.step and s.step[0] in (6, 7, 8)]
    assert drawn.start == min(s.start for s in chosen)
    assert drawn.stop == max(s.stop for s in chosen)
    assert {box.index for box in drawn.boxes} == {
        i for i, s in enumerate(timeline.spans) if s.start < drawn.stop and s.stop > drawn.start
    }
    assert all(drawn.start <= box.start < box.stop <= drawn.stop for box in drawn.boxes)


def test_a_window_of_cycles_is_as_asked():
    drawn = picture(ring(), start=1000, stop=2000)
    assert (drawn.start, drawn.stop) == (1000, 2000)
    assert all(s.span.start < 2000 and s.span.stop > 1000 for s in drawn.boxes)


def test_the_shortest_span_can_be_seen():
    timeline = ring()
    at = timeline.cycles
    timeline = replace(timeline, spans=(*timeline.spans, Span(0, at, at, "issue")))
    box = picture(timeline).boxes[-1]
    assert box.stop == at
    assert box.stop - box.start >= at / 1500


@pytest.mark.parametrize(
    ("start", "stop", "places", "us"),
    [
        (0, 4000, ["0", "1,000", "2,000", "3,000", "4,000"], ["0.0", "1.0", "2.0", "3.0", "4.0"]),
        (130, 170, ["130", "140", "150", "160", "170"], ["0.13", "0.14", "0.15", "0.16", "0.17"]),
        (0, 2.2, ["0", "0.5", "1", "1.5", "2"], ["0.0000", "0.0005", "0.0010", "0.0015", "0.0020"]),
    ],
)
def test_ticks_are_round_in_cycles_and_said_in_both_units(start, stop, places, us):
    drawn = picture(ring(clock_hz=1e9), start=start, stop=stop)
    ticks = drawn.ticks(most=5)
    assert [cycles for _, (cycles, _) in ticks] == places
    assert [float(text) for _, (_, text) in ticks] == [float(text) for text in us]


def test_a_truncated_timeline_says_so_once():
    said = "Truncated: the kernel goes on after the end of this timeline."
    assert pictures.remarks(ring(truncated=True)) == [said, "One of 132 blocks."]
    assert pictures.remarks(ring(truncated=True, notes=("truncated: a",))) == ["truncated: a"]
    assert pictures.remarks(ring()) == ["One of 132 blocks."]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 9, "stop": 9}, "The window from cycle 9 to 9 is empty: nothing to draw."),
        ({"steps": [99]}, r"No span is of the steps \[99\]...: there is nothing to draw."),
        ({"steps": [1], "stop": 9}, "each choose the window: pass one of them"),
    ],
)
def test_a_window_without_spans_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        picture(ring(), **options)


def test_more_spans_than_can_be_seen_are_refused():
    timeline = ring(steps=500)
    with pytest.raises(ValueError, match=r"There are 4\d{3} spans .* more than 4000 are too small"):
        picture(timeline)
    assert picture(timeline, steps=range(10))


def test_spans_that_have_no_place_are_refused():
    span = Span(4, 0, 1, "load")
    with pytest.raises(ValueError, match="Span 0 is on lane 4, but there are 4 lanes"):
        picture(replace(ring(), spans=(span,)))
