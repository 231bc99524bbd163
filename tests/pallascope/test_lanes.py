"""What the rows of a figure are called, and which numbers in their boxes are slots."""

import functools
from dataclasses import replace

import pytest

import pallascope
from pallascope.lanes import Lanes, Part, thread_names
from pallascope.program import Barrier, Buffer, Op, Program, Region, Warp
from tests.pallascope import kernels
from tests.pallascope.kernels import like
from tests.pallascope.toy import arrive, compute, load, op, ring, wait

LOAD, STORE, READ, WRITE, WGMMA = map(op, ("load", "store", "read", "write", "wgmma"))


@pytest.mark.parametrize(
    "threads, names",
    [
        ([[LOAD, WGMMA, STORE]], ["thread 0"]),
        ([[LOAD], [WGMMA]], ["memory thread", "compute thread 0"]),
        (
            [[WGMMA], [compute(), STORE], [LOAD]],
            ["compute thread 0", "compute thread 1", "memory thread"],
        ),
        ([[WRITE], [STORE], [STORE]], ["compute thread 0", "store thread 0", "store thread 1"]),
        (
            [[LOAD], [LOAD, STORE], [WRITE]],
            ["memory thread 0", "memory thread 1", "compute thread 0"],
        ),
        # A memory thread may look up where to load from; whoever only reads and writes works.
        ([[READ, LOAD], [READ, WRITE]], ["memory thread", "compute thread 0"]),
        ([[LOAD], [], [WGMMA]], ["memory thread", "thread 1", "compute thread 0"]),
        # Nobody computes: there are no roles.
        ([[LOAD], [STORE]], ["thread 0", "thread 1"]),
        ([[LOAD, WGMMA], [LOAD, WGMMA]], ["compute thread 0", "compute thread 1"]),
    ],
)
def test_threads_are_called_by_what_they_do(threads, names):
    program = Program("roles", tuple(map(tuple, threads)))
    assert [*thread_names(program)] == names


def test_a_thread_has_one_role_in_all_blocks():
    """Only the first block's memory thread loads, for both; the other's is one all the same."""
    threads = (LOAD,), (WGMMA,), (), (WGMMA,)
    program = Program("pair", threads, blocks=2)
    assert thread_names(program) == ("memory thread", "compute thread 0") * 2
    assert Lanes(program).names[5:7] == ["block 1 memory thread", "block 1 compute thread 0"]


def test_warps_count_for_their_thread_and_have_its_name():
    """The load is a warp's: thread 1 loads and does no arithmetic."""
    threads = (WGMMA,), (), (LOAD,), ()
    program = Program("warps", threads, warps=(Warp(1, 0), Warp(1, 1)))
    names = ("compute thread 0", "memory thread", "memory thread warp 0", "memory thread warp 1")
    assert thread_names(program) == names
    assert Lanes(program).names[:4] == [*names]


def test_reports_call_threads_by_number_and_so_do_their_figures():
    program = ring(4, 2, 5)
    assert Lanes(program, by_number=True).names[:2] == ["thread 0", "thread 1"]
    assert Lanes(program).names[:2] == ["memory thread", "compute thread 0"]


def test_the_emitters_threads_have_their_roles():
    run = functools.partial(kernels.specialized, slots=2, delay=0, threads=2)
    program = pallascope.trace(run, like(64 * 4, 64))
    names = "compute thread 0", "compute thread 1", "memory thread"
    assert thread_names(program) == names


# ---- Slots ---------------------------------------------------------------------------------------


def test_a_ring_s_parts_are_slots():
    program = ring(6, 3, 5)
    lanes = Lanes(program)
    assert [lanes.part(load(step, 3)) for step in range(4)] == [
        Part("x", 0),
        Part("x", 1),
        Part("x", 2),
        Part("x", 0),
    ]
    assert lanes.part(wait(0, 4, 3)) == lanes.part(arrive(1, 4, 3)) == Part("", 1)


def test_parts_that_belong_to_threads_are_no_slots():
    """Each of two threads stores its own half of the tile at each step, and waits for its turn."""
    tile = Buffer(0, "o_smem", "smem", (2, 8), "float32", 64, slots=2)
    turn = Barrier(0, "turn", 1, 2)

    def half(thread, step):
        region = Region(0, ((thread, thread + 1), (0, 8)))
        fields = dict(thread=thread, step=(step,), line="k.py:1")
        yield Op("wait", barrier=0, index=thread, **fields)
        yield Op("store", reads=(region,), **fields)

    threads = tuple(
        tuple(each for step in range(4) for each in half(thread, step)) for thread in (0, 1)
    )
    lanes = Lanes(Program("halves", threads, (tile,), (turn,)))
    assert {lanes.part(each) for ops in threads for each in ops if each.kind == "store"} == {
        Part("o", None)
    }
    assert {lanes.part(each) for ops in threads for each in ops if each.kind == "wait"} == {Part()}


def test_a_load_of_all_parts_at_each_step_has_no_slot():
    program = ring(6, 2, 5)
    (memory, computes) = program.threads
    both = [replace(each, step=(each.step[0] // 2,)) for each in memory if each.kind == "load"]
    waits = [replace(each, step=(each.step[0] // 2,)) for each in computes]
    lanes = Lanes(replace(program, threads=(tuple(both), tuple(waits))))
    assert {lanes.part(each) for each in both} == {Part("x", None)}


def test_a_product_of_several_rings_has_the_slot_alone():
    run = functools.partial(kernels.matmul, slots=2)
    program = pallascope.trace(run, like(64, 64 * 4), like(64 * 4, 64))
    lanes = Lanes(program)
    parts = {
        kind: [lanes.part(op) for op in program.threads[0] if op.kind == kind]
        for kind in ("load", "wgmma")
    }
    assert parts["load"] == [Part(name, slot) for slot in (0, 1) * 2 for name in ("a", "b")]
    assert parts["wgmma"] == [Part("", slot) for slot in (0, 1) * 2]
