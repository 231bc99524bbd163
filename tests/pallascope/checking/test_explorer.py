"""The explorer, on programs so small that what can happen is known by hand."""

from dataclasses import replace

import pytest

from pallascope.program import Barrier, Program
from tests.pallascope.checking.explorer import Bad, TooLarge, explore
from tests.pallascope.strategies import Writer, ring, with_thread


def made(threads=1, **arrivals):
    """A writer with two inputs' rows in x, two slots in s, an output o, and barriers so named."""
    writer = Writer(threads)
    x, s = writer.buffer("x", "gmem", role="in"), writer.buffer("s", scope_id=0)
    o = writer.buffer("o", "gmem", role="out")
    return writer, x, s, o, *(writer.barrier(count) for count in arrivals.values())


def bad(writer):
    return explore(writer.program()).bad


def test_a_load_that_is_waited_for_is_right():
    writer, x, s, _, b = made(b=1)
    assert not bad(writer.load(x, s, b).wait(b).read(s))


def test_the_states_of_a_load_and_a_wait():
    """Not begun; in flight; landed; waited for. The read concerns no one once it may be made."""
    writer, x, s, _, b = made(b=1)
    assert explore(writer.load(x, s, b).wait(b).program()).states == 4


def test_a_read_with_no_wait():
    writer, x, s, _, b = made(b=1)
    assert bad(writer.load(x, s, b).read(s).wait(b)) == {
        Bad("race", ((0, 0), (0, 1))),
        Bad("uninitialized-read", ((0, 1),)),
    }


def test_two_threads_write():
    writer, _, s, *_ = made(2)
    writer.write((s, 0, 1), 0).write(s, 1).read(s, 1)
    assert bad(writer) == {Bad("race", ((0, 0), (1, 0))), Bad("race", ((0, 0), (1, 1)))}
    writer, _, s, *_ = made(2)
    writer.write((s, 0, 1), 0).read((s, 0, 1), 0).write((s, 1, 1), 1).read((s, 1, 1), 1)
    assert not bad(writer)


def test_an_arrival_orders_what_comes_before_it():
    writer, _, s, _, b = made(2, b=1)
    writer.write(s).arrive(b).wait(b, thread=1).read(s, 1)
    assert not bad(writer)
    late, _, s, _, b = made(2, b=1)
    late.arrive(b).write(s).wait(b, thread=1).read(s, 1)
    assert Bad("race", ((0, 1), (1, 1))) in bad(late)


def test_a_phase_takes_all_its_arrivals():
    writer, _, s, _, b = made(3, b=2)
    for thread in (0, 1):
        writer.write((s, thread, 1), thread).arrive(b, thread=thread)
    assert not bad(writer.wait(b, thread=2).read(s, 2))


def test_a_store_reads_until_it_is_waited_for():
    def stored(read_only, then):
        writer, _, s, o = made()
        writer.write(s).fence().store(s, o)
        writer.wait_store(0, read_only=read_only)
        return bad(then(writer, s, o).wait_store(0))

    assert not stored(True, lambda w, s, o: w.write(s).read(s))
    assert stored(True, lambda w, s, o: w.write(o)) == {Bad("race", ((0, 2), (0, 5)))}
    assert not stored(False, lambda w, s, o: w.write(o).read(o))


def test_groups_of_stores_are_counted():
    def staged(n):
        writer, _, s, o = made()
        for slot in (0, 1, 0):
            writer.wait_store(n).write((s, slot, 1)).fence().store((s, slot, 1), (o, slot, 1))
        return {found.kind for found in bad(writer.wait_store(0))}

    assert staged(0) == set()
    assert staged(1) == set()
    assert staged(2) == {"race"}  # with the third write, and between the two stores of o's row


def test_two_copies_of_registers_to_one_place_but_additions():
    for combines, kinds in (("", {"race"}), ("add", set())):
        writer = Writer(2)
        s = writer.buffer("s", scope_id=0)
        barrier = writer.barrier(2)
        writer.write(s).fence().arrive(start := writer.barrier())
        for thread in (0, 1):
            if thread:
                writer.wait(start, thread=thread)
            fields = dict(barrier=barrier, index=0, from_registers=True, combines=combines)
            writer.op("load", thread, [s] if combines else (), [s], **fields)
        writer.wait(barrier).read(s)
        assert {found.kind for found in bad(writer)} == kinds


def test_two_stores_of_one_place_but_reductions():
    for combines, kinds in (("", {"race"}), ("add", set())):
        writer, _, s, o = made()
        writer.write(s).fence()
        for slot in (0, 1):
            writer.store((s, slot, 1), (o, 0, 1), combines=combines)
        assert {found.kind for found in bad(writer.wait_store(0))} == kinds


def test_a_product_reads_its_operand_until_it_is_retired():
    def product(n):
        writer, x, s, _, b = made(b=1)
        acc = writer.accumulator()
        writer.load(x, s, b).wait(b).wgmma(acc, (s, 0, 1)).wgmma(acc, (s, 1, 1)).wgmma_wait(n)
        return bad(writer.load((x, 0, 1), (s, 0, 1), b).wait(b).acc_read(acc))

    assert not product(0) and not product(1)
    assert product(2) == {Bad("race", ((0, 2), (0, 5)))}


def test_an_accumulator_that_is_read_too_early():
    def product(n):
        writer, _, s, *_ = made()
        acc = writer.accumulator()
        return bad(writer.write(s).fence().wgmma(acc, s).acc_read(acc, n).wgmma_wait(0))

    assert not product(0)
    assert product(1) == {Bad("race", ((0, 2), (0, 3)))}


@pytest.mark.parametrize("fence", [0, 1, None])
def test_a_fence_of_any_thread_on_the_way(fence):
    writer, _, s, o, b = made(2, b=1)
    writer.fence().write(s)
    if fence == 0:
        writer.fence()
    writer.arrive(b).wait(b, thread=1)
    if fence == 1:
        writer.fence(1)
    writer.store(s, o, 1).wait_store(0, 1).fence(1)
    expected = {Bad("missing-commit", ((0, 1), (1, 1)))} if fence is None else set()
    assert bad(writer) == expected


def test_a_fence_that_may_come_too_early():
    """Another thread's fence, in no order with the write, does not count."""
    writer, _, s, o, b = made(3, b=1)
    writer.write(s).arrive(b).fence(2).wait(b, thread=1).store(s, o, 1).wait_store(0, 1)
    assert bad(writer) == {Bad("missing-commit", ((0, 0), (1, 1)))}


def test_a_load_over_what_was_written_needs_a_fence_and_over_what_was_read_does_not():
    for access, kinds in (("write", {"missing-commit", "lost-store"}), ("read", set())):
        writer, x, s, _, b = made(b=1)
        writer.load(x, s, b).wait(b)
        getattr(writer, access)(s).load(x, s, b).wait(b).read(s)
        assert {found.kind for found in bad(writer)} == kinds


def test_gmem_has_no_fence():
    writer, _, s, o, b = made(b=1)
    writer.write(o).fence().load(o, s, b).wait(b).read(s)
    assert bad(writer) == {Bad("missing-commit", ((0, 0), (0, 2)))}


def test_deadlocks():
    writer, _, _, _, b, c = made(2, b=1, c=1)
    writer.wait(b).arrive(c).wait(c, thread=1).arrive(b, thread=1)
    assert bad(writer) == {Bad("deadlock", ((0, 0), (1, 0)))}
    writer, _, _, _, b = made(2, b=2)
    writer.arrive(b).wait(b)
    assert bad(writer) == {Bad("deadlock", ((0, 1),))}


def test_a_meeting_that_one_does_not_come_to():
    writer, _, s, *_ = made(2)
    meet = dict(scope_id=0, shared=True)
    writer.write(s).op("scope_begin", 0, **meet).op("scope_begin", 1, **meet).read(s, 1)
    assert not bad(writer)
    program = writer.program()
    assert explore(with_thread(program, 1, ())).kinds == {"deadlock"}
    early = with_thread(program, 1, program.threads[1][::-1])
    assert explore(early).kinds == {"race", "uninitialized-read"}


def test_an_arrival_too_many():
    """The second load arrives while the first is in flight."""
    writer, x, s, _, b = made(b=1)
    for slot in (0, 1):
        writer.load((x, slot, 1), (s, slot, 1), b)
    assert Bad("barrier-misuse", ((0, 1),)) in bad(writer.wait(b).wait(b))


def test_arrivals_that_may_change_places():
    writer, _, _, _, b = made(2, b=1)
    assert bad(writer.arrive(b).arrive(b, thread=1)) == {Bad("barrier-misuse", ((0, 0), (1, 0)))}
    writer, _, _, _, b = made(2, b=2)
    assert not bad(writer.arrive(b).arrive(b, thread=1))


def test_a_waiter_that_is_lapped():
    writer, _, _, _, b = made(2, b=1)
    writer.arrive(b).arrive(b).wait(b, thread=1).wait(b, thread=1)
    assert Bad("barrier-misuse", ((1, 0),)) in bad(writer)
    writer, _, _, _, b, c = made(2, b=1, c=1)
    writer.arrive(b).wait(c).arrive(b).wait(b, thread=1).arrive(c, thread=1).wait(b, thread=1)
    assert not bad(writer)


def test_what_is_left_on_a_barrier():
    writer, _, _, _, b = made(b=3)
    assert bad(writer.arrive(b)) == {Bad("barrier-misuse", ((0, 0),))}
    writer, x, s, _, b = made(b=1)
    assert bad(writer.load(x, s, b)) == {Bad("barrier-misuse", ((0, 0),))}


def test_a_read_of_what_is_written_in_part():
    writer, _, s, *_ = made()
    assert bad(writer.write((s, 0, 1)).read(s)) == {Bad("uninitialized-read", ((0, 1),))}
    assert not bad(made()[0].read(0))
    assert bad(made()[0].read(2)) == {Bad("uninitialized-read", ((0, 0),))}


def test_writes_that_are_never_read():
    writer, _, s, *_ = made()
    assert bad(writer.write(s)) == {Bad("lost-store", ((0, 0),))}
    writer, _, s, *_ = made()
    assert not bad(writer.write(s).write(s).read((s, 0, 1)))  # only the last is meant to count
    writer, _, s, _, b = made(2, b=1)
    writer.write(s).arrive(b).wait(b, thread=1).write(s, 1).read(s, 1)
    assert bad(writer) == {Bad("lost-store", ((0, 0),))}


def test_a_store_that_is_never_waited_for():
    writer, _, s, o = made()
    assert bad(writer.write(s).fence().store(s, o)) == {Bad("lost-store", ((0, 2),))}


@pytest.mark.parametrize("space", ["smem", "acc"])
def test_a_store_that_outlives_its_memory(space):
    """It may do so until another scope takes the memory."""
    writer, _, s, o = made()
    writer.buffer("other", space, scope_id=1)
    writer.write(s).fence().store(s, o).op("scope_end", scope_id=0)
    writer.op("scope_begin", scope_id=1).wait_store(0)
    assert bad(writer) == ({Bad("lost-store", ((0, 2), (0, 5)))} if space == "smem" else set())


def test_a_product_that_outlives_its_memory():
    for n, expected in ((0, set()), (1, {Bad("race", ((0, 2), (0, 5)))})):
        writer, _, s, *_ = made()
        writer.buffer("other", scope_id=1)
        acc = writer.accumulator()
        writer.buffers[acc] = replace(writer.buffers[acc], scope_id=2)
        writer.write(s).fence().wgmma(acc, s).wgmma_wait(n)
        writer.op("scope_end", scope_id=0).op("scope_begin", scope_id=1).acc_read(acc)
        assert bad(writer) == expected


def test_multicast_copies():
    """Two blocks load half a row each, for both: a read must wait for the other's half too."""

    def cluster(waits):
        writer = Writer(2)
        x = writer.buffer("x", "gmem", role="in")
        s = [writer.buffer(f"s{block}", block=block) for block in (0, 1)]
        b = [writer.barrier(1) for _ in (0, 1)]
        for me in (0, 1):
            targets = [(where, me, 1) for where in s]
            writer.op("load", me, [(x, me, 1)], targets, barrier=b[me], index=0, peers=tuple(b))
            if waits:
                writer.wait(b[me], thread=me)
            writer.read(s[me], me)
        return explore(replace(writer.program(), blocks=2))

    assert not cluster(waits=True).bad
    assert "race" in cluster(waits=False).kinds


def test_an_arrival_on_all_peers():
    writer = Writer(2)
    s = writer.buffer("s")
    for block in (0, 1):
        barrier = Barrier(block, f"b{block}", 2, 1, ("c",), block=block, peers=(0, 1))
        writer.barriers.append(barrier)
    writer.write((s, 0, 1), 0).write((s, 1, 1), 1)
    for me in (0, 1):
        writer.arrive(me, thread=me).wait(me, thread=me).read(s, me)
    program = replace(writer.program(), blocks=2)
    assert not explore(program).bad
    alone = [replace(barrier, peers=(), arrivals=1) for barrier in program.barriers]
    assert "race" in explore(replace(program, barriers=tuple(alone))).kinds


@pytest.mark.parametrize(
    ("given", "asked", "expected"),
    [
        (104, 232, set()),
        (104, 240, {Bad("deadlock", ((0, 0),))}),  # 8 more than the other gives up
        (176, 160, {Bad("resource", ((0, 0),)), Bad("resource", ((1, 0),))}),
    ],
)
def test_registers_that_one_thread_gives_up_and_one_gets(given, asked, expected):
    """Each of three begins with 168: a decrease to 176 and an increase to 160 have no meaning."""
    writer = Writer(3)
    writer.op("registers", registers=asked, action="increase")
    writer.op("registers", 1, registers=given, action="decrease")
    assert bad(writer) == expected


def test_the_race_that_no_one_complained_of():
    """A product left unfinished, a slot refilled at once: `wgmma_wait(1)`, `delay_release=0`."""
    right = ring(2, 4, specialized=False, delay=1, products=True)
    assert not explore(right).bad
    hasty = ring(2, 4, specialized=False, delay=0, products=True)
    ops = [replace(op, pending=1) if op.kind == "wgmma_wait" else op for op in hasty.threads[0]]
    assert explore(with_thread(hasty, 0, ops)).kinds == {"race"}


def test_a_limit_is_an_error():
    with pytest.raises(TooLarge, match="ring has more than 50 states: explore a smaller one"):
        explore(ring(3, 4), limit=50)


def test_nothing_at_all():
    assert explore(Program("empty", ((), ()))) == (frozenset(), 1)
