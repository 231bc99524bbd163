"""The steady state of a timeline, and its cycles a step, made by hand and of simulated rings."""

import itertools
import random
import re
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallascope.simulating.simulate import simulate
from pallascope.spans import Span
from pallascope.timeline import LaneUse, Steady, Timeline, percent
from tests.pallascope.timelines import ring as drawn_ring
from tests.pallascope.toy import TOY, ring

GAPS = st.lists(st.integers(20, 3000), min_size=1, max_size=6)
FEW = st.lists(st.integers(20, 3000), max_size=2)


def thread(gaps, counters=None, slots=1, source="simulated"):
    """A thread that waits and works at each step, with these gaps between the starts of steps."""
    starts = [0, *itertools.accumulate(gaps)]
    counters = counters or [(i,) for i in range(len(starts))]
    spans = []
    for start, step in zip(starts, counters, strict=True):
        slot = step[0] % slots
        spans.append(Span(0, start, start + 5, "wait", slot=slot, step=step, line="k.py:1"))
        spans.append(Span(0, start + 5, start + 20, "compute", step=step, line="k.py:2"))
    end = starts[-1] + 20.0
    return Timeline("hand", ("thread 0",), tuple(spans), end, 1e9, source, "none")


def rate(*args, **options):
    return thread(*args, **options).steady().cycles_per_step


@pytest.mark.parametrize("steps", range(8, 26))
def test_steps_that_take_turns_cost_their_mean(steps):
    gaps = [(665, 732)[i % 2] for i in range(steps - 1)]
    assert rate(gaps, slots=2) == 698.5
    # Without slots, as in a measured timeline, the turn is not known.
    assert rate(gaps) == pytest.approx(698.5, rel=0.01)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(turn=GAPS, more=st.integers(0, 40), rest=st.integers(0, 5))
def test_a_turn_of_the_ring_costs_its_mean(turn, more, rest):
    slots = len(turn)
    count = 3 * slots + 1 + more + rest
    gaps = [*itertools.islice(itertools.cycle(turn), count)]
    assert rate(gaps, slots=slots) == pytest.approx(statistics.mean(turn))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(turn=GAPS, before=FEW, after=FEW, data=st.data())
def test_prologue_and_drain_change_nothing(turn, before, after, data):
    """As many steps as there are slots are left out at each end; two more may still be unlike."""
    slots = len(turn)
    ends = st.lists(st.integers(20, 3000), min_size=slots, max_size=slots)
    gaps = [*data.draw(ends), *before, *turn * (2 * slots + 12), *after, *data.draw(ends)]
    assert rate(gaps, slots=slots) == pytest.approx(statistics.mean(turn))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(gaps=st.lists(st.integers(20, 3000), min_size=2, max_size=60))
def test_a_rate_is_between_the_shortest_and_the_longest_step(gaps):
    assert min(gaps) <= rate(gaps) <= max(gaps)


@pytest.mark.parametrize("seed", range(20))
def test_uneven_steps_cost_about_their_mean(seed):
    """Three short steps of four, and a long one, in no order: not what most of them take."""
    gaps = [100] * 60 + [400] * 20
    random.Random(seed).shuffle(gaps)
    assert rate(gaps) == pytest.approx(175, rel=0.2)


def tiles(count, steps, step, boundary):
    """Gaps and counters of a persistent kernel, whose tiles have an epilogue between them."""
    gaps = ([step] * (steps - 1) + [boundary]) * count
    return gaps[:-1], [(k, t) for t in range(count) for k in range(steps)]


@pytest.mark.parametrize("count, steps", [(2, 8), (4, 4), (16, 3), (3, 40)])
def test_what_lies_between_tiles_is_in_no_step(count, steps):
    gaps, counters = tiles(count, steps, 100, 900)
    timeline = thread(gaps, counters, slots=1)
    assert timeline.steady().cycles_per_step == 100
    # Its window has the epilogues, and so has what is said of it.
    window = timeline.steady()
    assert window.stop - window.start == sum(gaps[1:-1])


@pytest.mark.parametrize("steps", [1, 2])
def test_tiles_too_short_for_a_rate_are_one_run(steps):
    gaps, counters = tiles(24, steps, 100, 900)
    mean = (100 * (steps - 1) + 900) / steps
    assert rate(gaps, counters, slots=2) == mean


def test_a_long_step_counts_if_it_comes_often():
    often, once = [100, 100, 100, 500] * 8, [100] * 9 + [500] + [100] * 20
    assert rate(often) == 200
    assert rate(once) == 100


def test_loops_in_a_step_belong_to_it():
    """A step of 100 cycles computes in a loop of its own, in which nothing waits."""
    spans = []
    for k in range(12):
        at = 100 * k
        spans.append(Span(0, at, at + 30, "wait", step=(k,), line="k.py:1"))
        for j in range(8):
            start = at + 30 + 5 * j
            spans.append(Span(0, start, start + 5, "compute", step=(j, k), line="k.py:2"))
        spans.append(Span(0, at + 70, at + 72, "issue", step=(k,), line="k.py:3"))
    found = Timeline("nested", ("thread 0",), tuple(spans), 1200, 1e9, "simulated", "none").steady()
    assert found == Steady(0, 100, 1000, 100)


def test_what_only_some_steps_do_is_not_looked_at():
    """Five stores in each second step, 200 cycles apart."""
    spans = []
    for k in range(16):
        at = 100 * k
        spans.append(Span(0, at, at + 30, "wait", step=(k,), line="k.py:1"))
        for j in range(5 * (k % 2)):
            start = at + 30 + 5 * j
            spans.append(Span(0, start, start + 5, "access", step=(k,), line=f"k.py:{2 + j}"))
    found = Timeline("odd", ("thread 0",), tuple(spans), 1600, 1e9, "simulated", "none").steady()
    assert found.cycles_per_step == 100


@settings(max_examples=100, deadline=None, derandomize=True)
@given(steps=st.integers(3, 40), slots=st.integers(1, 6))
def test_the_steady_state_has_whole_turns_of_the_ring(steps, slots):
    """Each step is as long as its slot is high; so turns of the ring are equally long."""
    gaps = [100 * (i % slots + 1) for i in range(steps - 1)]
    steady, starts = thread(gaps, slots=slots).steady(), [0, *itertools.accumulate(gaps)]
    first, last = starts.index(steady.start), starts.index(steady.stop)
    assert last > first
    turn = 100 * slots * (slots + 1) / 2
    if steps > 3 * slots:
        assert first >= slots and last <= steps - 1 - slots
        assert (steady.stop - steady.start) % turn == 0
    if (last - first) >= slots:
        assert (last - first) % slots == 0


def test_what_begins_at_once_is_in_the_order_of_the_ops():
    """The wait that ends a step takes no time, and the next step begins with a wait there."""
    spans = []
    for k in range(12):
        at, op = 100.0 * k, 3 * k
        spans.append(Span(0, at, at + 60, "wait", step=(k,), thread=0, op=op))
        spans.append(Span(0, at + 60, at + 100, "compute", step=(k,), thread=0, op=op + 1))
        spans.append(Span(0, at + 100, at + 100, "wait", step=(k,), thread=0, op=op + 2))
    found = Timeline("at once", ("thread 0",), tuple(spans), 1200, 1e9, "simulated", "none")
    assert found.steady() == Steady(0, 100, 1000, 100)


def test_all_numbers_are_of_one_interval():
    """A prologue of 1,000 cycles, in which only memory works, and a steady state of products."""
    timeline = thread([1000] + [100] * 20, slots=2)
    core = [Span(1, at + 20, at + 90, "wgmma") for at in range(1000, 3000, 100)]
    found = replace(
        timeline,
        lanes=("thread 0", "tensor core"),
        spans=(*timeline.spans, *core),
        gmem=(((0.0, 1000.0),),),
    )
    start, stop, name = found.interval()
    assert (start, (stop - start) % 200, name) == (1200, 0, "the steady state")
    (_, use), (unit, port) = found.uses(), found.units()
    assert use == LaneUse("tensor core", pytest.approx(0.7), 0, pytest.approx(0.3))
    assert unit == ("tensor core", "tensor core", use.busy)
    assert port == ("GMEM port", "GMEM port", 0)
    assert found.uses(0) == found.uses(0, found.cycles) != found.uses()
    said = found.summary()
    assert f"Of the steady state, cycles {start:,.0f} to {stop:,.0f}:" in said
    assert re.search(r"tensor core +busy +70.0%", said)
    assert re.search(r"GMEM port +busy +0.0%  moving bytes in or out", said)


def test_without_a_steady_state_all_numbers_are_of_the_whole():
    found = thread([100])
    assert found.interval() == (0, found.cycles, "the whole")
    assert found.bound() == f"thread 0: busy {percent(30 / 120)} of the whole with its own work"
    assert "Of the whole, cycles 0 to 120:" in found.summary()


def test_bandwidth_is_not_blamed_while_the_port_is_idle():
    """Two loads that are asked for at once: the second starts later, at a port with room."""
    spans = []
    for k in range(12):
        at, line = 100.0 * k, "k.py:1"
        spans.append(Span(0, at, at + 80, "wait", "waits on x", step=(k,), cause=3 * k + 1))
        spans.append(Span(1, at + 10, at + 80, "load", "load x", thread=0, op=k))
        spans.append(Span(0, at + 80, at + 100, "issue", step=(k,), line=line, thread=0, op=k + 1))
    few = tuple((100.0 * k, 100.0 * k + 20) for k in range(12))
    many = tuple((100.0 * k, 100.0 * k + 70) for k in range(12))
    lanes = ("thread 0", "TMA loads")
    found = Timeline("late", lanes, tuple(spans), 1200, 1e9, "simulated", "none")
    for uses, what in (((), "bandwidth"), (few, "latency"), (many, "bandwidth")):
        assert replace(found, gmem=(uses,)).bound().startswith(f"memory {what}: 80% of the steady")


@pytest.mark.parametrize(
    "fraction, said",
    [(0, "0%"), (0.124, "12%"), (0.994, "99%"), (0.9949, "99%"), (0.999, "99%"), (1, "100%")],
)
def test_nothing_is_rounded_to_all(fraction, said):
    assert percent(fraction) == said


def test_less_than_three_steps_have_no_steady_state():
    assert thread([100]).steady() is None
    assert thread([100, 300]).steady() == Steady(0, 0, 400, 200)
    assert Timeline("none", (), (), 0, 1e9, "simulated", "none").steady() is None


def test_a_thread_that_computes_is_looked_at():
    """The memory thread has more steps: it waits for the last releases too."""
    found = drawn_ring(slots=2, steps=12)
    last = [Span(0, 9000 + k, 9001 + k, "wait", step=(k,)) for k in range(4)]
    more = replace(found, spans=(*found.spans, *last), cycles=9010.0)
    assert more.steady() == found.steady()


def test_the_thread_with_most_steps_is_looked_at():
    found = drawn_ring(slots=2, steps=12, latency=300, multiply=250)
    steady = found.steady()
    assert found.lanes[steady.lane] == "compute thread 0"
    assert steady.cycles_per_step == (20 + 300 + 10 + 15 + 250 + 10 + 5 + 10) / 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    slots=st.integers(1, 4),
    flops=st.integers(0, 60),
    size=st.sampled_from([4, 20, 64]),
    threads=st.integers(1, 3),
)
def test_cycles_a_step_are_what_more_steps_cost(slots, flops, size, threads):
    """Of a simulated ring: 24 steps, turns of each ring, make it longer by 24 times the rate."""
    short, long = (
        simulate(ring(steps, slots, flops, size, threads), TOY, l2_hits=1) for steps in (48, 72)
    )
    assert short.steady().cycles_per_step * 24 == pytest.approx(long.cycles - short.cycles)
