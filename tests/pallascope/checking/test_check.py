"""What `check` finds in small programs, and in which words."""

import html
from dataclasses import replace

import jax
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope import check
from pallascope.checking import registers, resources
from pallascope.program import Barrier, Buffer, Op, Region
from pipelib import specs
from tests.pallascope import build, kernels
from tests.pallascope.build import (
    ACC,
    BUFFERS,
    CONSUMED,
    OUT,
    PRODUCED,
    SMEM,
    WIDTH,
    arrive,
    at,
    barriers,
    just,
    load,
    program,
    read,
    store,
    wait,
    wgmma,
    write,
)
from tests.pallascope.checking.explorer import explore
from tests.pallascope.kernels import like

STORED = (just("commit_group"), just("wait_store", 0))


def ring(steps, slots=2, release=True, consumed=True, body=read):
    """A memory thread and a compute thread."""
    memory, compute = [], []
    for step in range(steps):
        slot = step % slots
        if step >= slots and consumed:
            memory.append(wait(CONSUMED, slot, "k.py:1"))
        memory.append(load(step, slot, line="k.py:2"))
        compute += [wait(PRODUCED, slot, "k.py:3"), body(slot, "k.py:4")]
        if release:
            compute.append(arrive(CONSUMED, slot, "k.py:5"))
    return memory, compute


# A ring's memory thread need not wait for the last releases.
UNOBSERVED = (
    "nobody waits for the last 2 phases of `consumed`: harmless here, since the kernel ends, but"
    " JAX 0.11's interpreter stops."
)


def only(found, kind):
    """The one finding of a report, which is of this kind."""
    assert [finding.kind for finding in found] == [kind], str(found)
    return found[0]


def lines(finding):
    return [op.line for op in finding.ops]


def test_a_right_program_has_no_finding():
    report = check(program(*ring(7)))
    assert report.ok and len(report) == 0 and list(report) == []
    assert report.verdict == "hand-made: no finding (33 ops of 2 threads checked)"
    assert str(report) == f"note: {UNOBSERVED}\n\n{report.verdict}"


def test_the_verdict_says_where_in_the_grid_the_program_is_from():
    where = dict(grid=(4, 2), block=(3, 1))
    found = check(replace(program([load(0, 0, line="k.py:2")]), **where))
    assert found.verdict == (
        "hand-made: 1 finding in block (3, 1) of grid (4, 2) (1 op of 1 thread checked)"
    )
    assert html.escape(found.verdict) in found._repr_html_()
    several = dict(cluster=(2,), block=(3, 1, 0), blocks=2)
    found = check(replace(program(*ring(7)), **where | several))
    assert "no finding in cluster (3, 1) of grid (4, 2) (" in found.verdict
    alone = check(replace(program(*ring(7)), grid=(1, 1), block=(0, 0)))
    assert alone.verdict == "hand-made: no finding (33 ops of 2 threads checked)"


# Races.


def test_a_read_before_its_load_has_landed():
    finding, late = check(program([load(0, 0, line="k.py:2"), read(0, "k.py:4")]))
    assert (finding.kind, late.kind) == ("race", "barrier-misuse")
    assert finding.cause == (
        "slot 0 of `ring` is read by thread 0 while it may still be written by the load of thread"
        " 0: the copy has landed when phase 0 of `produced[0]` is over, and thread 0 has not"
        " waited for that."
    )
    assert finding.remedy == "Call barrier_wait on that barrier in thread 0, before the access."
    assert lines(finding) == ["k.py:4", "k.py:2"]
    assert (finding.where, finding.slot, finding.count) == ("ring", 0, 1)
    assert (late.where, late.slot) == ("produced", 0)
    assert late.cause == (
        "Nothing waits for this copy: its bytes may land on `produced[0]` and in SMEM when both"
        " have ceased to exist."
    )


def test_a_wait_that_comes_too_late_is_not_asked_for_anew():
    ops = load(0, 0, line="k.py:2"), read(0, "k.py:4"), wait(PRODUCED, 0, "k.py:5")
    assert only(check(program([*ops])), "race").remedy == (
        "Let thread 0 wait for phase 0 before the access: its barrier_wait on that barrier comes"
        " later, or is for another phase."
    )


def test_a_write_that_overtakes_the_read_of_the_write_before_overwrites():
    writer = [write(0, "k.py:1"), arrive(CONSUMED, 0, "k.py:2")] * 2
    reader = [wait(CONSUMED, 0, "k.py:3"), read(0, "k.py:4")] * 2
    race = next(f for f in check(program(writer, reader)) if f.kind == "race")
    said = "slot 0 of `ring` is overwritten by thread 0 while it may still be read by thread 1: "
    assert race.cause.startswith(said) and lines(race) == ["k.py:1", "k.py:4"]
    race = next(f for f in check(program(writer, [read(0, "k.py:4")])) if f.kind == "race")
    assert " is read by thread 1 while it may still be written by thread 0: " in race.cause


def test_a_slot_that_is_loaded_while_it_may_be_read():
    memory, compute = ring(6, consumed=False)
    found = check(program(memory, compute))
    race = next(f for f in found if f.kind == "race")
    assert race.cause == (
        "slot 0 of `ring` is overwritten by the load of thread 0 while it may still be written by"
        " the load of thread 0: the copy has landed when phase 0 of `produced[0]` is over, and"
        " thread 0 has not waited for that."
    )
    assert {f.kind for f in found} == {"race", "barrier-misuse"}
    assert "meant for its phase 1, but nothing makes it come after phase 0 is" in str(found)


def test_a_product_in_flight_reads_its_operands():
    memory, compute = ring(4, body=wgmma)
    end = [just("wgmma_wait", 0), Op("acc_read", 0, (at(ACC, 0, 64),), pending=0)]
    finding = only(check(program(memory, compute + end)), "race")
    assert finding.cause == (
        "slot 0 of `ring` is overwritten by the load of thread 0 while it may still be read by the"
        " wgmma of thread 1: the product is over once a wgmma_wait of thread 1 that covers"
        " it returns, and nothing makes that come first."
    )
    assert finding.remedy == (
        "Call wgmma_wait(0) in thread 1, then arrive on a barrier on which thread 0 waits, before"
        " the access; in a pipeline, leave as many products in flight as delay_release says, and no"
        " more."
    )
    assert finding.count == 2
    late = [
        op
        for op in compute
        for op in ([just("wgmma_wait", 1), op] if op.kind == "arrive" else [op])
    ]
    assert not check(program(memory, late + end)).ok
    waited = [
        op
        for op in compute
        for op in ([just("wgmma_wait", 0), op] if op.kind == "arrive" else [op])
    ]
    assert check(program(memory, waited + end)).ok


def test_the_silent_race_of_the_introduction():
    """wgmma_wait(1) with delay_release=0, which neither JAX nor the hardware complains of."""

    def silent(a, b, waits, delay):
        return kernels.matmul(a, b, waits=waits, delay=delay)

    args = like(64, 256), like(256, 64)
    for waits, delay, kinds in ((0, 0, []), (1, 0, ["race", "race"]), (1, 1, []), (0, 1, [])):
        program = pallascope.trace(lambda a, b: silent(a, b, waits, delay), *args)
        assert [finding.kind for finding in pallascope.check(program)] == kinds


def test_a_staging_buffer_that_a_store_still_reads():
    body = [write(0, "k.py:1"), just("fence"), store(0, 0, line="k.py:2"), just("commit_group")]
    again = [write(0, "k.py:3"), just("fence"), store(0, 1), just("commit_group")]
    end = [just("wait_store", 0)]
    finding = only(check(program(body + again + end)), "race")
    assert (
        "may still be read by the store of thread 0: the copy is over once a wait_sm"
        in finding.cause
    )
    assert finding.remedy == "Call wait_smem_to_gmem(0) in thread 0, before the access."
    assert check(program([*body, just("wait_store", 0, read_only=True), *again, *end])).ok
    assert not check(program([*body, just("wait_store", 1), *again, *end])).ok


def test_two_stores_of_one_place():
    stores = [write(0), just("fence"), store(0, 3, line="a"), store(0, 3, line="b"), *STORED]
    assert only(check(program(stores)), "race").cause.startswith(
        "`out` is overwritten by the store"
    )
    again = store(0, 3)  # by hand, one op may stand twice
    twice = [write(0), just("fence"), again, again, *STORED]
    assert only(check(program(twice)), "race").count == 1
    adds = [replace(op, combines="add") if op.kind == "store" else op for op in stores]
    assert check(program(adds)).ok


TOTAL = Buffer(OUT, "total", "gmem", (64, WIDTH), "float16", 1024, role="in/out")


def atomic(line=None):
    return Op("write", 0, (at(OUT, 0),), (at(OUT, 0),), line=line, combines="add")


def totalled(*threads):
    """The report on threads that share a total, which is there from the start."""
    return check(program(*threads, buffers=(*BUFFERS[:OUT], TOTAL, *BUFFERS[OUT + 1 :])))


def from_registers(row, combines="", line=None):
    """Registers copied to a peer's SMEM, as async_store_smem does."""
    reads = (at(SMEM, row),) if combines else ()
    return replace(load(0, row, line=line), reads=reads, from_registers=True, combines=combines)


def test_two_additions_of_registers_to_a_peer_s_memory():
    """Their barrier takes both arrivals; the bytes land in any order, and add up."""
    written = [write(0), just("fence"), arrive(CONSUMED), wait(PRODUCED), read(0)]
    adds = [[wait(CONSUMED), from_registers(0, "add", line)] for line in "ab"]
    two = barriers(produced=2)
    assert check(program(written, *adds, barriers=two)).ok
    sets = [[wait(CONSUMED), from_registers(0, "", line)] for line in "ab"]
    race = only(check(program(written, *sets, barriers=two)), "race")
    assert lines(race) == ["b", "a"]
    bare = [arrive(CONSUMED), wait(PRODUCED), read(0)]
    kinds = {finding.kind for finding in check(program(bare, *adds, barriers=two))}
    assert kinds == {"uninitialized-read"}
    # An ordinary atomic addition goes another way to memory: nothing makes the two one by one.
    place = (at(SMEM, 0),)
    ordinary = [wait(CONSUMED), Op("write", 0, place, place, combines="add"), arrive(PRODUCED)]
    assert only(check(program(written, adds[0], ordinary, barriers=two)), "race")


def test_atomic_accesses_do_not_harm_each_other():
    assert totalled([atomic()], [atomic(), atomic()]).ok


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([Op("write", 0, (), (at(OUT, 0),), line="other")], id="write"),
        pytest.param([Op("read", 0, (at(OUT, 0),), line="other")], id="read"),
        # What it adds to is in doubt, since others' additions need not wait for its own.
        pytest.param([Op("write", 0, (), (at(OUT, 0),), line="other"), atomic()], id="write-add"),
        pytest.param([Op("read", 0, (at(OUT, 0),), line="other"), atomic()], id="read-add"),
        pytest.param([atomic(), Op("read", 0, (at(OUT, 0),), line="other")], id="add-read"),
    ],
)
def test_an_ordinary_access_beside_an_atomic_one(other):
    for threads in (([atomic("add")], other), (other, [atomic("add")])):
        found = totalled(*threads)
        assert {finding.kind for finding in found} == {"race"}
        assert all({*lines(finding)} == {"add", "other"} for finding in found)
        assert "`total` is " in found[0].cause
    met = [atomic("add"), arrive(PRODUCED)], [wait(PRODUCED), *other]
    assert totalled(*met).ok


def test_a_store_that_adds_beside_an_atomic_access():
    store_adds = [write(0), just("fence"), store(0, 0, "add", "other"), *STORED]
    assert only(totalled(store_adds, [atomic("add")]), "race")


def test_the_atomic_accesses_of_a_kernel_s_threads():
    def sums(ordinary):
        def kernel(x, o):
            plgpu.atomic_add(o.at[0], x[0])
            if ordinary:
                o[0] = x[1]

        def call(x, o):
            o = jax.new_ref(o)
            plgpu.kernel(kernel, out_type=(), num_threads=2, thread_name="t")(x, o)
            return o[...]

        return check(pallascope.trace(call, like(4, 64), like(4, 64)))

    assert sums(ordinary=False).ok
    assert {finding.kind for finding in sums(ordinary=True)} == {"race"}


def test_two_threads_with_nothing_between():
    finding = only(check(program([write(0, "a"), read(0)], [read(0, "b")])), "race")
    assert "nothing that thread 0 does after it is waited for by thread 1 before" in finding.cause
    assert "Let thread 0, after its access, arrive on a barrier on which thread 1" in finding.remedy


def test_where_threads_meet_they_are_in_order():
    meet = just("scope_begin", scope_id=0, shared=True)
    assert check(program([write(0), meet], [meet, read(0)])).ok
    assert not check(program([meet, write(0)], [meet, read(0)])).ok


# Fences.


@pytest.mark.parametrize("fence_of", [0, 1])
def test_a_fence_anywhere_on_the_way_will_do(fence_of):
    fence = lambda thread: [just("fence")] * (thread == fence_of)
    writer = [write(0, "a"), *fence(0), arrive(PRODUCED)]
    storer = [wait(PRODUCED), *fence(1), store(0, 0, line="b"), *STORED]
    assert check(program(writer, storer)).ok
    too_early = [just("fence"), write(0, "a"), arrive(PRODUCED)]
    too_late = [wait(PRODUCED), store(0, 0, line="b"), just("fence"), *STORED]
    finding = only(check(program(too_early, too_late)), "missing-commit")
    assert finding.cause == (
        "the store of thread 1 reads slot 0 of `ring`, which thread 0 wrote with ordinary accesses,"
        " and no commit_smem stands between: the two may be seen in another order."
    )
    assert (
        finding.remedy == "Call commit_smem after the ordinary access, before others are let at it."
    )
    assert lines(finding) == ["b", "a"]


def test_the_proxy_question():
    """A load over what was read: a finding if strict; over what was written: always."""
    assert check(program(*ring(4))).ok
    finding = only(check(program(*ring(4)), strict=True), "missing-commit")
    assert finding.cause.startswith(
        "the load of thread 0 overwrites slot 0 of `ring`, which thread 1 read"
    )
    memory, compute = ring(4)
    changed = [
        op
        for op in compute
        for op in (
            [op, write(op.reads[0].box[0][0]), read(op.reads[0].box[0][0])]
            if op.kind == "read"
            else [op]
        )
    ]
    assert only(check(program(memory, changed)), "missing-commit").count == 2
    fenced = [op for op in changed for op in ([just("fence"), op] if op.kind == "arrive" else [op])]
    assert check(program(memory, fenced), strict=True).ok


def test_gmem_has_no_fence():
    put = Op("write", 0, (), (at(OUT, 0),))
    fetch = Op("load", 0, (at(OUT, 0),), (at(SMEM, 0),), PRODUCED, 0)
    ops = [put, just("fence"), fetch, wait(PRODUCED), read(0)]
    assert "commit_smem is for SMEM only" in only(check(program(ops)), "missing-commit").remedy


# Deadlocks.


def test_an_arrival_that_nobody_makes():
    finding = only(check(program(*ring(5, release=False))), "deadlock")
    assert finding.cause == (
        "2 threads wait for ever: thread 0 waits for phase 0 of `consumed[0]`, which has 0 of 1"
        " arrival, and no thread makes another; thread 1 waits for phase 1 of `produced[0]`, which"
        " has 0 of 1 arrival, and the next comes from thread 0 at k.py:2, which is stuck."
    )
    assert lines(finding) == ["k.py:1", "k.py:3"]
    assert "note: what stuck threads would do next was not checked." in str(
        check(program(*ring(5, release=False)))
    )


def test_threads_that_wait_for_each_other():
    first = [wait(PRODUCED, line="a"), arrive(CONSUMED, line="b")]
    second = [wait(CONSUMED, line="c"), arrive(PRODUCED, line="d")]
    cause = only(check(program(first, second)), "deadlock").cause
    assert (
        "the next comes from thread 1 at d, which is stuck; thread 1 waits for phase 0 of" in cause
    )


def test_a_meeting_that_not_all_come_to():
    begin = just("scope_begin", scope_id=0, shared=True)
    cause = only(check(program([begin], [])), "deadlock").cause
    assert cause.startswith(
        "1 thread waits for ever: thread 0 begins a scope that all threads share"
    )


def test_a_truncated_end_is_no_deadlock():
    memory, compute = ring(6)
    cut = memory[: memory.index(wait(CONSUMED, 0, "k.py:1"))]
    report = check(program(cut, compute, truncated=(0,)))
    assert report.ok
    assert "truncated: the end of thread 0 is missing, and so are the faults there." in str(report)
    hopeless = [*compute, wait(CONSUMED, 1)]
    assert only(check(program(cut, hopeless, truncated=(1,))), "deadlock")


# Barriers.


def test_arrivals_too_many_for_a_phase():
    threads = [arrive(CONSUMED, line="a")], [arrive(CONSUMED, line="b")], [wait(CONSUMED)]
    finding = only(check(program(*threads, barriers=barriers(consumed=1))), "barrier-misuse")
    assert finding.cause == (
        "This arrival on `consumed[0]` is meant for its phase 1, but nothing makes it come after"
        " phase 0 is complete: it takes 1 arrival, which others may not have made by then, so this"
        " one may count there, and whoever waits is let go too early."
    )
    assert check(program(*threads, barriers=barriers(consumed=2))).ok


def test_two_loads_on_a_barrier_for_one():
    ops = [
        load(0, 0),
        replace(load(1, 1), index=0),
        wait(PRODUCED),
        wait(PRODUCED),
        read(0),
        read(1),
    ]
    cause = only(check(program(ops)), "barrier-misuse").cause
    assert (
        "1 arrival, while the bytes of that phase may still be on their way, so this one" in cause
    )
    assert check(program(ops[:3] + ops[4:], barriers=barriers(produced=2))).ok


def test_a_waiter_that_can_be_lapped():
    ahead = [arrive(CONSUMED, line="a"), arrive(CONSUMED, line="a")]
    behind = [wait(CONSUMED, line="b"), wait(CONSUMED, line="b")]
    finding = only(check(program(ahead, behind)), "barrier-misuse")
    assert finding.cause == (
        "thread 1 can be lapped: its wait for phase 0 of `consumed[0]` may come when phase 1 is"
        " complete too, and since a wait sees the parity of a phase only (0 and 2 look alike), it"
        " then waits for a phase 2 that has not come."
    )
    paced = (
        [arrive(CONSUMED), wait(PRODUCED), arrive(CONSUMED)],
        [wait(CONSUMED), arrive(PRODUCED), wait(CONSUMED)],
    )
    assert check(program(*paced)).ok


def test_arrivals_that_are_left_over():
    finding = only(
        check(program([arrive(CONSUMED)], barriers=barriers(consumed=3))), "barrier-misuse"
    )
    assert finding.cause == (
        "`consumed[0]` is left with 1 arrival of the 3 that a phase takes: they complete none."
    )


# What was never written, never read, too large.


def test_a_read_of_what_nothing_wrote():
    half = Op("write", 0, (), (at(SMEM, 0, columns=(0, 4)),))
    rest = Op("write", 0, (), (at(SMEM, 0, columns=(4, 8)),))
    finding = only(check(program([half, read(0)])), "uninitialized-read")
    assert finding.cause == (
        "thread 0 reads slot 0 of `ring`, of which at least a part has been written by nothing"
        " before."
    )
    assert check(program([half, rest, read(0)])).ok
    assert only(check(program([Op("read", 0, (at(OUT, 0),))])), "uninitialized-read")


def test_a_result_that_is_never_stored():
    finding = only(check(program([write(1, "a")])), "lost-store")
    assert finding.cause == (
        "thread 0 writes slot 1 of `ring`, and nothing reads it before it is written over or ceases"
        " to exist: the result is lost."
    )
    assert finding.remedy == "Store it with copy_smem_to_gmem, or leave the write out."
    rotated = [write(0, "a"), write(1, "a"), read(1)]  # as an output whose block stays does
    assert check(program(rotated)).ok
    filled = check(program([write(0, "a"), read(0), write(1, "a")]))
    assert filled.ok
    assert filled.notes == (
        "a: what is written to `ring` is not read before it is written anew or gone, 1 time: it"
        " does no harm if once too often, or a read is missing.",
    )
    stored = [write(0, "a"), just("fence"), store(0, 0), *STORED]
    last = only(check(program([*stored, write(1, "a")])), "lost-store")
    assert last.cause.endswith(
        "the result is lost. What this line writes at other steps is read: so a last read is"
        " missing, or the line runs once too often, which does no harm."
    )
    assert last.remedy == "Store it with copy_smem_to_gmem, or leave out this write (pl.when)."
    loaded_over = [write(1, "a"), just("fence"), load(0, 1), wait(PRODUCED, 1), read(1)]
    filled = check(program(loaded_over))  # perhaps what the load leaves out
    assert filled.ok and filled.notes[0].startswith("a: what is written to `ring` is not read")
    again = [*loaded_over, write(1, "b"), *loaded_over[1:]]
    assert lines(only(check(program(again)), "lost-store")) == ["b"]
    overwritten = check(program([write(1, "a"), write(1, "b"), read(1)]))
    assert overwritten.ok
    assert overwritten.notes == (
        "a: what is written to `ring` is not read before it is written anew, 1 time: right if only"
        " the last is meant to count.",
    )


def stored(rows, **fields):
    """The report on a program that stores so many rows, of eight of which the output is."""
    buffers = list(BUFFERS)
    buffers[OUT] = replace(buffers[OUT], shape=(8, WIDTH))
    stores = [store(0, row) for row in range(rows)]
    ops = [write(0), just("fence"), *stores, *STORED] if stores else []
    return check(program(ops, buffers=tuple(buffers), **fields))


def test_an_output_that_is_not_all_written_by_the_only_block():
    said = (
        "the output `out` is not all written, at least not `out[{}, 0:8]`, and the grid has no"
        " other block to do so: right if the caller does not read that.",
    )
    for grid in ((), (1, 1)):
        for rows, part in ((0, "0:8"), (3, "3:8"), (7, "7")):
            report = stored(rows, grid=grid)
            assert report.ok
            assert report.notes == (said[0].format(part),)
        assert not stored(8, grid=grid).notes
    assert not stored(3, grid=(2,)).notes
    cut = stored(3, grid=(), truncated=(0,))
    assert "not all written" not in str(cut)


def test_what_is_loaded_and_waited_for_but_never_read():
    memory, compute = ring(5)
    in_slot_0 = [read(0, op.line) if op.kind == "read" else op for op in compute]
    unread = (
        "k.py:2: what is copied into `ring` is not read, 2 times: right if nothing is meant to come"
        " of it.",
    )
    found = check(program(memory, in_slot_0))
    assert found.notes == (*unread, UNOBSERVED)
    alone = [load(0, 0, line="k.py:2"), wait(PRODUCED), load(1, 1, line="k.py:2")]
    assert check(program([*alone, wait(PRODUCED, 1)])).notes == unread
    assert check(program(memory, compute)).notes == (UNOBSERVED,)


def test_a_product_that_nobody_reads():
    ops = [write(0), just("fence"), wgmma(0, "k.py:1"), wgmma(0, "k.py:2"), just("wgmma_wait", 0)]
    report = check(program(ops))
    assert report.ok
    assert report.notes == (
        "k.py:2: the product in `acc` is not read, 1 time: right if nothing is meant to come of"
        " it.",
    )
    assert not check(program([*ops, Op("acc_read", 0, (at(ACC, 0, 64),), pending=0)])).notes


@pytest.mark.parametrize("end", [[], [just("commit_group")], [just("wait_store", 0)]])
def test_a_store_that_is_not_awaited(end):
    finding = only(check(program([write(0), just("fence"), store(0, 0), *end])), "lost-store")
    assert finding.cause == (
        "`ring` ceases to exist while this copy of thread 0 may still read it: no wait_smem_to_gmem"
        " after it covers it."
    )


OTHER = Buffer(4, "other", "smem", (8,), "float16", 16, scope_id=2)
GIVEN_AWAY = [just("scope_end", scope_id=0), just("scope_begin", scope_id=2, line="next")]


def test_a_store_that_outlives_its_scope():
    """It may, until its memory is given to another scope."""
    ops, wait_0 = [write(0), just("fence"), store(0, 0)], just("wait_store", 0)
    ops.append(just("commit_group"))
    made = lambda *end: program([*ops, *end], buffers=(*BUFFERS, OTHER))
    assert check(made(GIVEN_AWAY[0], wait_0)).ok
    assert check(made(wait_0, *GIVEN_AWAY)).ok
    finding = only(check(made(*GIVEN_AWAY, wait_0)), "lost-store")
    assert finding.cause.startswith("`ring` is given to the next scope while this copy of thread 0")


def test_a_product_that_outlives_its_scope():
    made = lambda *end: program(
        [write(0), just("fence"), wgmma(0), *end], buffers=(*BUFFERS, OTHER)
    )
    finding = only(check(made(*GIVEN_AWAY)), "race")
    assert finding.cause == (
        "`ring` is given to the next scope while this product of thread 0 may still read it: no"
        " wgmma_wait after it covers it."
    )
    assert check(made(just("wgmma_wait", 0), *GIVEN_AWAY)).ok


def test_more_shared_memory_than_a_block_can_have():
    big = Buffer(0, "tile", "smem", (2, 60_000), "float16", 240_000)
    finding = only(check(program([], buffers=(big,), smem_bytes=240_656)), "resource")
    assert finding.cause == (
        "The block allocates 240,656 bytes of SMEM at once, and a block can have 232,448: 240,000"
        " (tile) + 32 (4 barriers), each buffer rounded up to 1,024; it cannot be launched."
    )


def test_more_registers_than_there_are():
    asking = lambda *registers: check(program(*[[]] * len(registers), registers=registers))
    assert only(asking(240, 240, 32), "resource").cause == (
        "The threads ask for 240 + 240 + 32 = 512 registers of a lane, and the block begins with"
        " 3 x 168 = 504: who asks last waits for ever."
    )
    assert only(asking(240, 240, None), "resource").cause.startswith(
        "The threads ask for 240 + 240 + 168 = 648"
    )
    assert asking(240, 240, 24).ok and asking(160, 160, 160, 32).ok and asking(256, 256).ok
    assert asking(None, None, None).ok
    wide = replace(BUFFERS[ACC], shape=(128, 512), bytes=128 * 512 * 4)
    ops = [just("scope_begin", scope_id=1), just("scope_end", scope_id=1)]
    cause = only(check(program(ops, buffers=(*BUFFERS[:ACC], wide))), "resource").cause
    assert cause == (
        "The accumulators of thread 0 take 512 registers a lane at once, and it has 255: they spill"
        " to local memory."
    )


def test_the_checker_s_limits_are_the_emitters():
    """Neither imports the other, so each has the numbers; here they are held to each other."""
    assert resources.SMEM_BYTES == specs.SMEM_BYTES
    assert registers.REGISTERS == specs.REGISTERS * 128
    most = lambda size: check(program([], smem_bytes=size)).ok
    assert most(specs.SMEM_BYTES) and not most(specs.SMEM_BYTES + 1)


@pytest.mark.parametrize("threads", range(1, 9))  # of 128 lanes, so 1,024 at most
def test_a_block_begins_with_as_many_registers_for_the_checker_as_for_the_emitters(threads):
    begin = specs.begin_registers(threads)
    asking = lambda *registers: check(program(*[[]] * threads, registers=registers))
    equally = (begin,) * (threads - 1)
    assert asking(*equally, begin).ok and asking(*[None] * threads).ok
    cause = only(asking(*equally, begin + 8), "resource").cause
    assert f"begins with {threads} x {begin} = {threads * begin}: who asks last" in cause
    # A thread that asks for none keeps what it began with.
    cause = only(asking(*[None] * (threads - 1), begin + 8), "resource").cause
    assert f"for {' + '.join(map(str, (*equally, begin + 8)))} = {threads * begin + 8} reg" in cause


@pytest.mark.parametrize("memory_registers", [24, 32, 40, 48, 64, 256])
@pytest.mark.parametrize("threads", range(1, 8))
def test_an_emitter_s_threads_ask_for_no_more_than_a_block_begins_with(threads, memory_registers):
    own = specs.compute_registers(memory_registers, threads)
    registers = (own,) * threads + (memory_registers,)
    assert check(program(*[[]] * (threads + 1), registers=registers)).ok
    more = (own + 8,) * threads + (memory_registers,)
    assert own == 256 or not check(program(*[[]] * (threads + 1), registers=more)).ok


# Clusters.


def cluster(*, waits=True, both=True, last=True):
    """Two blocks that load halves of a slot for each other; each releases to both."""
    slot = lambda block, half: Region(2 * block + 1, ((0, 1), (4 * half, 4 * half + 4)))
    buffers = (
        BUFFERS[0],
        *(
            replace(b, id=2 * block + i, block=block)
            for block in range(2)
            for i, b in ((1, BUFFERS[1]), (2, replace(BUFFERS[1], name="other")))
        ),
    )
    made = tuple(
        Barrier(2 * block + i, name, arrivals, 1, block=block, peers=peers)
        for block in range(2)
        for i, (name, arrivals, peers) in enumerate((("produced", 1, ()), ("consumed", 2, (1, 3))))
    )
    threads = []
    for block in range(2):
        regions, peers = (slot(0, block), slot(1, block)), (0, 2)
        ops = []
        for step in range(3):
            ops += [wait(2 * block + 1)] * (waits and step > 0)
            if both or block == 0:
                ops.append(Op("load", 0, (at(0, step),), regions, 2 * block, 0, peers=peers))
            ops += [wait(2 * block), Op("read", 0, (Region(2 * block + 1, ((0, 1), (0, 8))),))]
            ops.append(arrive(2 * block + 1))
        ops += [wait(2 * block + 1)] * (
            waits and last
        )  # else it may end before its peer arrives there
        threads.append(ops)
    return program(*threads, buffers=buffers, barriers=made, blocks=2, cluster=(2,))


def test_multicast_copies():
    assert check(cluster()).ok
    found = check(cluster(waits=False))
    assert {f.kind for f in found} == {"race", "barrier-misuse"}
    assert "block 1 of the cluster, thread 0" in str(found)
    cause = only(check(cluster(both=False)), "deadlock").cause
    assert "has its arrivals but not the peers' parts of its multicast copy" in cause


# The report.


def test_a_report_reads_like_a_compiler_s_error(tmp_path):
    source = tmp_path / "k.py"
    source.write_text("first\n  x_smem[...] = value  # <&>\n")
    again = [write(slot, f"{source}:2") for slot in (0, 1)]
    report = check(program(again[:1], again[1:]))
    assert str(report) == (
        "lost-store: thread 0 writes slot 0 of `ring`, and nothing reads it before it is written"
        " over or ceases to exist: the result is lost.\n"
        f"  --> {source}:2, thread 0\n"
        "      x_smem[...] = value  # <&>\n"
        "      (write writes ring[0, 0:8])\n"
        "  remedy: Store it with copy_smem_to_gmem, or leave the write out.\n"
        "  (1 more of the same)\n\n"
        "hand-made: 1 finding (2 ops of 2 threads checked)"
    )
    assert "<code>x_smem[...] = value  # &lt;&amp;&gt;</code>" in report._repr_html_()


def test_a_finding_alone_has_its_sentences():
    finding = only(check(program([write(1, "a")])), "lost-store")
    assert str(finding) == f"lost-store: {finding.cause} {finding.remedy}"


def test_what_is_left_out_is_said():
    opaque = Op("opaque", 0, (at(SMEM, 0, 2),), (at(SMEM, 0, 2),), function="magic")
    report = check(program([opaque, read(1), Op("test", 0, barrier=PRODUCED, index=0)]))
    assert report.ok
    assert report.notes == (
        "opaque code was taken on trust: magic.",
        "a barrier test orders nothing here, whatever it answers.",
    )


def test_the_hand_made_numbers_are_those_of_a_trace():
    traced = pallascope.trace(lambda x: kernels.specialized(x, 2, 0), like(256, 64))
    for ops in traced.threads:
        bare = [replace(op, phase=0) for op in ops]
        again = build.program(*[[]] * ops[0].thread, bare, barriers=traced.barriers).threads[-1]
        assert again == ops


# Registers, scopes and clusters.


def asks(registers, action):
    return just("registers", registers=registers, action=action)


def test_threads_that_wait_for_registers_for_ever():
    """The memory thread gives up its registers only after the compute thread has asked for more."""
    memory = [wait(CONSUMED), asks(40, "decrease")]
    compute = [asks(232, "increase"), arrive(CONSUMED)]
    idle = [asks(40, "decrease")]
    fields = dict(registers=(40, 232, 152))
    stuck = only(check(program(memory, compute, [], **fields)), "deadlock")
    assert (
        "thread 1 has 168 registers a lane and waits for 232, of which 0 are free: no other thread"
        " comes to give up some"
    ) in stuck.cause
    in_time = program(memory, compute, idle, **fields | dict(registers=(40, 232, 40)))
    assert check(in_time).ok  # the third thread's are enough
    assert explore(in_time).kinds == frozenset()
    assert explore(program(memory, compute, [], **fields)).kinds == {"deadlock"}


def test_who_waits_for_registers_need_not_see_what_was_written_before():
    """Who reads waits for registers that who writes gives up later; that orders no memory."""
    writing, reading = [write(0), asks(40, "decrease")], [asks(232, "increase"), read(0)]
    assert only(check(program(writing, reading, [], registers=(40, 232, None))), "race")


@pytest.mark.parametrize(
    ("registers", "action", "told"),
    [(160, "increase", "decrease"), (176, "decrease", "increase"), (240, "increase", "")],
)
def test_registers_that_are_asked_for_the_wrong_way(registers, action, told):
    ops = [[asks(40, "decrease")], [asks(40, "decrease")], [asks(registers, action)]]
    found = check(program(*ops, registers=(40, 40, registers)))
    assert found.ok == (not told)
    if told:
        wrong = only(found, "resource")
        assert wrong.cause == (
            f"thread 2 asks for {registers} registers a lane as {'an' * (action[0] == 'i') or 'a'}"
            f" {action}, and it has 168: PTX gives that no meaning."
        )
        assert wrong.remedy == f'Ask with action="{told}", or for another number.'


def test_a_copy_that_lands_in_the_next_scope_s_memory():
    other = (*BUFFERS, Buffer(4, "other", "smem", (8,), "float16", 16, scope_id=2))
    begins = [just("scope_end", scope_id=0), just("scope_begin", scope_id=2, line="next")]
    late = [load(0, 0, line="load"), *begins, wait(PRODUCED)]
    finding = only(check(program(late, buffers=other)), "race")
    assert finding.cause == (
        "`ring` is given to the next scope while this copy of thread 0 may still land in it: thread"
        " 0 does not know that its phase of `produced[0]` is over."
    )
    assert finding.remedy == "Wait on `produced[0]` before the scope of `ring` ends."
    assert lines(finding) == ["next", "load"]
    assert check(program([load(0, 0), wait(PRODUCED), *begins], buffers=other)).ok


def test_a_block_of_a_cluster_that_ends_too_early():
    found = check(cluster(last=False))
    finding = only(found, "barrier-misuse")
    assert finding.cause == (
        "Block 0 of the cluster may have ended when block 1 of the cluster, thread 0 arrives on its"
        " `consumed` of block 0: the memory may be another block's by then."
    )
    assert finding.remedy == (
        "Let a thread of block 0 wait for the last phase of `consumed` of block 0 before it ends."
    )
    assert explore(cluster(last=False)).kinds == {"barrier-misuse"}
    assert explore(cluster()).kinds == frozenset()


def test_more_barriers_in_an_array_than_a_word_has_bits():
    ring = (replace(barriers()[0], count=33), barriers()[1])
    finding = only(check(program([], barriers=ring)), "resource")
    assert finding.cause == (
        "`produced` has 33 barriers, and Mosaic GPU takes up to 32 in one array, since their"
        " parities are the bits of one word: it does not compile."
    )
    assert finding.remedy == "Take several arrays."
