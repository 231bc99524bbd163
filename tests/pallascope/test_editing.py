"""Edits of a program: what they change, what they refuse, and that any of them can be looked at."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallascope import H200, check, simulate
from pallascope.editing import (
    FIXED,
    Expect,
    Move,
    Remove,
    Repeat,
    edited,
    site,
)
from tests.pallascope.strategies import Writer, ring, where

COMPUTE, MEMORY = 0, 1


@pytest.fixture
def program():
    """A ring of two slots, its memory thread and a compute thread, six steps."""
    return ring(2, 6)


def kinds(program):
    return {str(finding.kind) for finding in check(program).findings}


def phases(program, thread, kind, index=0):
    ops = program.threads[thread]
    return [op.phase for op in ops if op.kind == kind and op.index == index]


def test_no_edit_leaves_a_program_as_it_is(program):
    assert edited(program, []) is program and check(program).ok


def test_a_wait_that_is_taken_away_leaves_earlier_phases_to_the_waits_after_it(program):
    waits = where(program, COMPUTE, "wait")
    faulty = edited(program, [Remove(COMPUTE, waits[:1])])
    assert phases(program, COMPUTE, "wait") == [0, 1, 2]
    assert phases(faulty, COMPUTE, "wait") == [0, 1]
    assert "race" in kinds(faulty)


def test_a_site_is_one_place_in_the_source_at_every_step():
    writer = Writer(1)
    barrier, x = writer.barrier(), writer.buffer("x")
    for _ in range(3):
        writer.arrive(barrier, line="k.py:1").wait(barrier, line="k.py:2").read(x, line="k.py:3")
    program = writer.program()
    waits = where(program, 0, "wait")
    assert site(program, 0, waits[1]) == waits and len(waits) == 3
    assert where(edited(program, [Remove(0, waits)]), 0, "wait") == ()


def test_an_op_that_is_repeated_stands_twice(program):
    (first, *_) = where(program, COMPUTE, "arrive")
    twice = edited(program, [Repeat(COMPUTE, (first,))]).threads[COMPUTE]
    assert [op.kind for op in twice[first : first + 2]] == ["arrive", "arrive"]
    assert [op.phase for op in twice[first : first + 2]] == [0, 1]
    assert len(twice) == len(program.threads[COMPUTE]) + 1


def test_an_op_moves_past_others_and_back(program):
    first, *_ = where(program, COMPUTE, "arrive")
    early = edited(program, [Move(COMPUTE, (first,), -2)])  # past a fence and what it read
    assert early.threads[COMPUTE][first - 2].kind == "arrive" and "race" in kinds(early)
    assert edited(early, [Move(COMPUTE, (first - 2,), 2)]) == program


def test_ops_that_move_together_keep_their_order(program):
    pair = (2, 3)  # a fence and an arrival
    moved = edited(program, [Move(COMPUTE, pair, 2)]).threads[COMPUTE]
    as_before = program.threads[COMPUTE]
    same = [
        (op.kind, op.reads, op.writes, op.place if op.barrier is not None else None) for op in moved
    ]
    assert same[4:6] == [
        (op.kind, op.reads, op.writes, op.place if op.barrier is not None else None)
        for op in as_before[2:4]
    ]


@pytest.mark.parametrize("by", [-1000, 1000])
def test_an_op_goes_no_further_than_its_thread(program, by):
    moved = edited(program, [Move(MEMORY, where(program, MEMORY, "load")[:1], by)])
    ops = moved.threads[MEMORY]
    assert len(ops) == len(program.threads[MEMORY])
    free = [op for op in ops if op.kind not in FIXED]
    assert free[0 if by < 0 else -1].kind == "load"


def test_values_in_registers_keep_their_order():
    writer = Writer(1)
    x, y, barrier = writer.buffer("x"), writer.buffer("y"), writer.barrier()
    writer.read(x).op("compute").arrive(barrier).write(y)
    program = writer.program()
    for index, by in ((1, -1), (0, 1), (3, -9)):
        moved = edited(program, [Move(0, (index,), by)]).threads[0]
        order = [op.kind for op in moved if op.kind != "arrive"]
        assert order == ["read", "compute", "write"]
    assert edited(program, [Move(0, (2,), -2)]).threads[0][0].kind == "arrive"


def test_a_product_and_what_reads_its_sums_keep_their_order():
    """Products of other accumulators pass."""
    writer = Writer(1)
    x, y = writer.buffer("x"), writer.buffer("y")
    one, other = writer.accumulator(), writer.accumulator()
    writer.wgmma(one, x, y).wgmma(other, x, y).acc_read(one).acc_read(other)
    program = writer.program()
    names = lambda program: [(op.kind[0], op.reads[-1].buffer) for op in program.threads[0]]
    up = names(edited(program, [Move(0, (2,), -9)]))
    assert up == [("w", one), ("a", one), ("w", other), ("a", other)]
    for index, by in ((3, -9), (1, 1), (1, 9)):
        moved = names(edited(program, [Move(0, (index,), by)]))
        assert moved.index(("w", other)) < moved.index(("a", other))


def test_a_barrier_that_expects_more_is_a_deadlock(program):
    consumed = next(op.barrier for op in program.threads[COMPUTE] if op.kind == "arrive")
    assert "deadlock" in kinds(edited(program, [Expect(consumed, 2)]))


def test_edits_follow_one_another(program):
    edits = [Remove(COMPUTE, where(program, COMPUTE, "arrive")[:1]), Expect(0, 2)]
    assert edited(program, edits) == edited(edited(program, edits[:1]), edits[1:])


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (Remove(7, (0,)), "ring has no thread 7, since it has 2 threads"),
        (Repeat(0, (900,)), "ring has no op 900 of thread 0, since it has"),
        (Move(0, (-1,), 1), "ring has no op -1 of thread 0"),
        (Expect(9, 1), "ring has no barrier 9, since it has 2 barriers"),
        (Expect(0, 0), "A phase of b0 cannot take 0 arrivals, since it would be over before"),
    ],
)
def test_what_is_not_there_is_refused(program, edit, text):
    with pytest.raises(ValueError, match="^" + text):
        edited(program, [edit])


def test_an_op_that_others_depend_on_stays():
    writer = Writer(1)
    x = writer.buffer("x", scope_id=0)
    writer.op("scope_begin", scope_id=0).write(x).op("scope_end", scope_id=0)
    program = writer.program()
    with pytest.raises(ValueError, match="Op 0 of thread 0 is scope_begin, which other ops depend"):
        edited(program, [Remove(0, (0,))])
    assert edited(program, [Move(0, (1,), -1)]) == program


def test_phases_that_are_not_those_of_its_ops_are_refused(program):
    thread = [dataclasses.replace(op, phase=op.phase + 1) for op in program.threads[COMPUTE]]
    apart = dataclasses.replace(program, threads=(tuple(thread), program.threads[MEMORY]))
    with pytest.raises(ValueError, match="ring has warps that wait apart, so the ops"):
        edited(apart, [Expect(0, 2)])


@st.composite
def edits(draw, program):
    """A few edits, each of the program after those before it."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        thread = draw(st.integers(0, len(program.threads) - 1))
        free = [i for i, op in enumerate(program.threads[thread]) if op.kind not in FIXED]
        if not free:
            continue
        index = draw(st.sampled_from(free))
        chosen = site(program, thread, index) if draw(st.booleans()) else (index,)
        edit = draw(st.sampled_from([
            Remove(thread, chosen), Repeat(thread, chosen), Move(thread, chosen, 1),
            Move(thread, chosen, -2), Expect(draw(st.integers(0, 1)), draw(st.integers(1, 3))),
        ]))  # fmt: skip
        found.append(edit)
        program = edited(program, [edit])
    return found


@given(st.data(), st.integers(1, 3), st.integers(1, 2), st.booleans(), st.booleans())
def test_what_is_edited_can_be_checked_and_simulated(data, slots, compute, products, stores):
    program = ring(slots, 4, compute=compute, products=products, stores=stores)
    halves = tuple(dataclasses.replace(b, dtype="float16") for b in program.buffers)
    program = dataclasses.replace(program, buffers=halves)  # the tensor core takes these
    changed = edited(program, data.draw(edits(program)))
    report, timeline = check(changed, strict=True), simulate(changed, H200)
    assert str(report) and timeline.cycles >= 0
    assert any(str(f.kind) == "deadlock" for f in report.findings) or not timeline.stuck
