"""What a report says of the order that shows a fault, and the timeline that plays it."""

import json
from dataclasses import replace

import pytest

import pallascope
from pallascope import check, playing
from pallascope.interleaving import Turn
from pallascope.playing import steps
from pallascope.program import Action, Kind
from tests.pallascope import build
from tests.pallascope.constructs import lanes, launches, reductions
from tests.pallascope.strategies import Writer, ring, with_thread


def refilled():
    """A ring of two slots whose memory thread refills a slot without waiting for its release."""
    right = ring(2, 4)
    return with_thread(right, 1, [op for op in right.threads[1] if op.kind != "wait"])


def test_a_race_in_text():
    report = check(refilled())
    race = next(f for f in report if f.kind == "race" and f.ops[0].kind == "read")
    assert race.interleaving.turns == (Turn(1, 0, 3), Turn(0, 0, 1))
    assert race.interleaving.coming == ((0, 1),) and race.interleaving.in_flight == ((1, 2),)
    text = str(report)
    assert (
        "  an order that shows it (4 ops):\n"
        "      thread 1: 3 ops, up to load x_smem[0] on b0[0] #1 [k.py:4]\n"
        "      thread 0: wait on b0[0] #0 [k.py:7]\n"
        "      then the load of thread 1 is in flight, and thread 0 goes on to its access.\n"
        "  remedy: "
    ) in text


def test_a_long_order_shows_its_last_turns():
    program = ring(1, 12)
    last = [i for i, op in enumerate(program.threads[1]) if op.kind == "wait"][-1]
    ops = [op for i, op in enumerate(program.threads[1]) if i != last]
    (race,) = (
        f
        for f in check(with_thread(program, 1, ops))
        if f.kind == "race" and f.ops[0].kind == "read"
    )
    order, report = race.interleaving, check(with_thread(program, 1, ops))
    assert len(order.turns) > 7
    hidden = sum(turn.stop - turn.start for turn in order.turns[:-6])
    assert f"      {hidden} ops in {len(order.turns) - 6} turns\n      thread" in str(report)


def test_the_same_in_json_and_in_html():
    report = check(refilled())
    fields = json.loads(report.to_json())["findings"]
    order = next(f["counterexample"] for f in fields if f["ops"][0]["kind"] == "read")
    assert [(turn["thread"], turn["ops"], turn["last"]["line"]) for turn in order["turns"]] == [
        (1, 3, 4),
        (0, 1, 7),
    ]
    assert order["ops"] == 4 and order["then"].startswith("the load of thread 1 is in flight")
    shown = report._repr_html_()
    assert "<details><summary>An order that shows it (4 ops)</summary><ol><li>thread 1:" in shown


def test_the_other_faults_in_words():
    writer = Writer(2)
    b, c = writer.barrier(), writer.barrier()
    writer.wait(b).arrive(c).wait(c, thread=1).arrive(b, thread=1)
    (stuck,) = report = check(writer.program())
    assert stuck.interleaving.turns == () and stuck.interleaving.then == "no thread can go on."
    assert steps(report).summary().startswith("k, an order of 1 step\n")
    writer = Writer(2)
    b = writer.barrier()
    writer.arrive(b).arrive(b).wait(b, thread=1).wait(b, thread=1)
    (lapped,) = check(writer.program())
    assert lapped.interleaving.turns == (Turn(0, 0, 2),)
    assert lapped.interleaving.then == (
        "phase 1 of `b0` is complete, and thread 1 has yet to wait for phase 0."
    )


def test_an_order_with_registers():
    """Who asks for more goes on only once another has given up some: the order has that."""
    writer = Writer(3)
    s = writer.buffer("s")
    asked = {0: (240, Action.INCREASE), 1: (24, Action.DECREASE)}
    for thread, (number, action) in asked.items():
        writer.op("registers", thread, registers=number, action=action)
    writer.write(s, 0).write(s, 2)
    program = replace(writer.program(), registers=(240, 24, None))
    (race,) = (f for f in check(program) if f.kind == "race")
    assert race.interleaving.turns == (Turn(1, 0, 1), Turn(0, 0, 1))
    assert race.interleaving.coming == ((2, 0), (0, 1))


def test_an_order_with_a_meeting():
    """A thread comes to the meeting by ops that nobody else can notice, before others go on."""
    writer = Writer(2)
    s = writer.buffer("s")
    for thread in (0, 1):
        writer.op("prefetch", thread).op("scope_begin", thread, scope_id=5, shared=True)
        writer.write(s, thread)
    (race,) = (f for f in check(writer.program()) if f.kind == "race")
    order = [spot for turn in race.interleaving.turns for spot in made(turn)]
    assert sorted(order[:2]) == [(0, 0), (1, 0)] and sorted(order[2:]) == [(0, 1), (1, 1)]


def made(turn):
    return [(turn.thread, index) for index in range(turn.start, turn.stop)]


def test_the_other_races_in_words():
    program = lanes.one_thread([("write", "a"), ("read", "b")])
    assert then(program) == (
        "one lane of thread 0 goes on to its access, and another has yet to make the write at"
        " k.py:1."
    )
    program = lanes.one_thread(["load", ("read", "a"), "load"])
    assert then(program) == (
        "the load of thread 0 is in flight, and one of the thread's lanes has yet to make the read"
        " at k.py:3."
    )
    assert then(reductions.reductions(0, 0)) == (
        "thread 0 and thread 1 go on to their reductions, and may use the scratch at once."
    )
    program = launches.early(launches.specialized([]))
    assert [then(program, number) for number in (0, -1)] == [
        "the load of thread 0 is in flight, and the kernel before has not ended.",
        "thread 1 goes on to its access, and the kernel before has not ended.",
    ]


def then(program, number=0):
    """The last sentence of an order that shows a race."""
    races = [finding for finding in check(program) if finding.kind == "race"]
    return races[number].interleaving.then


def test_the_timeline_of_a_race():
    report = check(refilled())
    number = next(i for i, f in enumerate(report) if f.ops[0].kind == "read")
    timeline = steps(report, number)
    assert (timeline.source, timeline.is_timed, timeline.cycles) == ("order", False, 5)
    assert timeline.notes == (
        "The load of thread 1 is in flight, and thread 0 goes on to its access.",
    )
    lanes = [(timeline.lanes[s.lane], s.kind, s.start, s.stop) for s in timeline.spans]
    assert lanes == [
        ("thread 1", "issue", 0, 1),
        ("TMA loads", "load", 1, 4),  # till thread 0 waits for it
        ("thread 1", "issue", 1, 2),
        ("TMA loads", "load", 2, 5),
        ("thread 1", "issue", 2, 3),
        ("TMA loads", "load", 3, 5),  # in flight
        ("thread 0", "wait", 3, 4),
        ("thread 0", "access", 4, 5),
    ]
    assert timeline.summary() == (
        "ring, an order of 5 steps\n"
        "The load of thread 1 is in flight, and thread 0 goes on to its access."
    )
    spans = timeline.spans
    assert spans[-1].line == "k.py:8" and spans[-1].text == "read reads x_smem[0]"


def test_a_figure_counts_steps():
    report = check(refilled())
    figure = str(pallascope.play(report))
    assert ">steps</text>" in figure and "µs" not in figure
    assert 'toLocaleString("en")} step${Math.round(time) === 1 ? "" : "s"}`' in figure
    assert '} step${Math.round(stop - start) === 1 ? "" : "s"}, ' in figure
    assert "} cycles" not in figure
    assert "one order of the ops, a step each" in figure
    axes = pallascope.plot(steps(report)).axes[0]
    assert {text.get_text() for text in axes.texts} & {"steps", "cycles"} == {"steps"}
    assert all(float(label.get_text()).is_integer() for label in axes.get_xticklabels())


def test_a_long_order_is_played_from_its_last_hundred_steps():
    right = ring(1, 60)
    last = [i for i, op in enumerate(right.threads[1]) if op.kind == "wait"][-1]
    ops = [op for i, op in enumerate(right.threads[1]) if i != last]
    report = check(with_thread(right, 1, ops))
    number = next(i for i, f in enumerate(report) if f.ops[0].kind == "read")
    assert steps(report, number).cycles > 250
    assert 100 <= str(pallascope.play(report, number)).count("<rect") < 200


def test_what_cannot_be_played():
    report = check(build.program([build.read(0)]))
    with pytest.raises(ValueError) as error:
        pallascope.play(report, 0)
    assert str(error.value) == (
        "Finding 0 (uninitialized-read) has no order of ops, so there is nothing to play: it shows"
        " in every order, or takes two blocks, or follows from another finding; read its ops."
    )
    for asked, words in (
        (lambda: steps(report, 1), "Finding 1 is asked for, but hand-made has 1 finding, none"),
        (
            lambda: pallascope.play(report),
            "A finding with an order of ops is asked for, but hand-made has 1 finding, n",
        ),
        (
            lambda: pallascope.play(check(ring(1, 1))),
            "ring has 0 findings: there is nothing to play.",
        ),
    ):
        with pytest.raises(IndexError, match=words):
            asked()


def test_every_kind_of_op_has_a_kind_of_span():
    assert all(playing._kind(kind) for kind in Kind)
