"""The check of kernels for Blackwell: what it says of each fault, and a fault of JAX's found again.

`test_mutants` takes each synchronisation of these kernels away, and
`test_interpreter_races` has what JAX's interpreter says of some.
"""

import dataclasses

import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope import check
from pallascope.editing import Remove, edited
from tests.pallascope import blackwell
from tests.pallascope.kernels import like, of


def told(call, *args):
    """The kinds of what is found in a kernel, and the first cause and remedy."""
    report = check(pallascope.trace(call, *args))
    return {str(finding.kind) for finding in report}, report[0].cause, report[0].remedy


def test_a_product_may_run_when_its_sums_are_read():
    program = blackwell.PROGRAMS["one slot"]()
    wait = next(i for i, op in reversed([*enumerate(program.threads[0])]) if op.kind == "wait")
    report = check(edited(program, [Remove(0, (wait,))]))
    assert {finding.kind for finding in report} == {"race", "barrier-misuse"}
    assert report[0].cause == (
        "`acc` is read by the load_tmem of thread 0 while it may still be written by the"
        " tcgen05_mma of thread 0: the product is over once a tcgen05_commit_arrive of thread 0"
        " after it has arrived on its barrier, and thread 0 has not waited for that."
    )
    assert report[0].remedy == (
        "Give tcgen05_mma a barrier, or call tcgen05_commit_arrive after it in thread 0, and call"
        " barrier_wait on that barrier in thread 0, before the access."
    )


def test_a_slot_is_released_by_hand():
    kinds, cause, _ = told(*blackwell.specialized(fault="releases a slot by hand"))
    assert kinds == {"race"}
    assert cause.startswith("slot 0 of `a_smem` is overwritten by the load of thread 0 while it")


def test_tmem_may_be_read_when_products_overwrite_it():
    kinds, cause, remedy = told(*blackwell.specialized(fault="drains before a read ends"))
    assert kinds == {"race"}
    assert cause.endswith(
        "the read is over once a wait_load_tmem of thread 2 returns, and nothing makes that come"
        " first."
    )
    assert remedy == (
        "Call wait_load_tmem in thread 2, then arrive on a barrier on which thread 1 waits, before"
        " the access."
    )


def test_tmem_may_be_written_when_a_product_reads_it():
    kinds, cause, remedy = told(*blackwell.chained(fault="hands over what it still writes"))
    assert kinds == {"race"}
    assert "the write is over once a commit_tmem of thread 1 returns" in cause
    assert remedy.startswith("Call commit_tmem in thread 1, then arrive on a barrier")


def test_sums_that_nobody_set():
    kinds, cause, _ = told(*blackwell.specialized(fault="adds to what nobody set"))
    assert kinds == {"uninitialized-read"}
    assert cause.startswith("the tcgen05_mma of thread 1 reads `acc`, of which at least a part")


def test_a_commit_that_nobody_waits_for():
    def kernel(a, b, o, a_smem, b_smem, acc, loaded, finished):
        plgpu.copy_gmem_to_smem(a, a_smem, loaded)
        plgpu.copy_gmem_to_smem(b, b_smem, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.tcgen05_mma(acc, a_smem, b_smem, finished, accumulate=False)

    scratch = [
        blackwell.tiles(128, 64),
        blackwell.tiles(64, 64),
        plgpu.TMEM((128, 64), jnp.float32),
        plgpu.Barrier(num_arrivals=2),
        blackwell.ordered(),
    ]
    kinds, cause, remedy = told(of(kernel, scratch_types=scratch), like(128, 64), like(64, 64))
    assert kinds == {"barrier-misuse"}
    assert cause == (
        "Nothing waits for this commit, nor for a later one of its thread: products may still run,"
        " and arrive on `finished`, when the block has ended."
    )
    assert remedy == "Wait on `finished`, or on the barrier of a later commit."


# What the tensor core makes in order, as PTX has it: "Pipelined tcgen05 Instructions".


def relayed(first, second, is_ordered=True):
    """Thread 0 starts something of the tensor core, and thread 1 something else after it began."""

    def kernel(a, b, o, a_smem, b_smem, x, y, acc, loaded, begun, copied, finished, ended):
        def start(what, at):
            match what:
                case "product":
                    plgpu.tcgen05_mma(acc, a_smem, b_smem, at, accumulate=False)
                case "half a product":
                    plgpu.tcgen05_mma(
                        acc.at[:, pl.ds(0, 32)],
                        a_smem,
                        b_smem.at[:, pl.ds(0, 32)],
                        at,
                        accumulate=False,
                    )
                case "product of x":
                    plgpu.tcgen05_mma(acc, x, b_smem, at, accumulate=False)
                case "product into y":
                    plgpu.tcgen05_mma(y, a_smem, b_smem, at, accumulate=False)
                case "copy to x":
                    plgpu.async_copy_smem_to_tmem(a_smem, x)
                    plgpu.tcgen05_commit_arrive(at)

        thread = lax.axis_index("thread")

        @pl.when(thread == 0)
        def _():
            plgpu.copy_gmem_to_smem(a, a_smem, loaded)
            plgpu.copy_gmem_to_smem(b, b_smem, loaded)
            plgpu.barrier_wait(loaded)
            start("copy to x", copied)
            plgpu.barrier_wait(copied)
            start(first, finished)
            plgpu.barrier_arrive(begun)
            plgpu.barrier_wait(finished)

        @pl.when(thread == 1)
        def _():
            plgpu.barrier_wait(begun)
            start(second, ended)
            plgpu.barrier_wait(ended)

    operand = plgpu.TMEM((128, 64), jnp.float16, packed=True)
    scratch = [
        blackwell.tiles(128, 64),
        blackwell.tiles(64, 64),
        plgpu.RefUnion(operand, plgpu.TMEM((128, 64), jnp.float32)),
        plgpu.TMEM((128, 64), jnp.float32),
        plgpu.Barrier(num_arrivals=2),
        plgpu.Barrier(orders_tensor_core=is_ordered),
        *[blackwell.ordered() for _ in range(3)],
    ]

    def in_pieces(a, b, o, a_smem, b_smem, memory, *rest):
        kernel(a, b, o, a_smem, b_smem, *memory, *rest)

    call = of(in_pieces, scratch_types=scratch, num_threads=2, thread_name="thread")
    return check(pallascope.trace(call, like(128, 64), like(64, 64)))


@pytest.mark.parametrize(
    ("first", "second", "is_in_order"),
    [
        ("product", "product", True),
        ("product", "half a product", False),
        ("copy to x", "product of x", True),
        ("product of x", "copy to x", True),
        ("product of x", "product into y", True),  # y lies where x does
        ("copy to x", "copy to x", False),
        ("product into y", "copy to x", False),
        ("product into y", "product of x", False),
    ],
)
def test_what_the_tensor_core_makes_in_the_order_of_issue(first, second, is_in_order):
    """Also if two threads issue it, one after the other, but not if nothing orders the two."""
    assert {finding.kind for finding in relayed(first, second)} == (
        set() if is_in_order else {"race"}
    )
    assert {finding.kind for finding in relayed(first, second, False)} == {"race"}


def test_a_copy_s_arrival_does_not_order_tmem():
    """Also on a barrier that would: Mosaic GPU has no fence before a copy arrives."""

    def kernel(a, b, o, a_smem, b_smem, acc, loaded, finished, read):
        thread = lax.axis_index("thread")

        @pl.when(thread == 0)
        def _():
            plgpu.copy_gmem_to_smem(b, b_smem, loaded)
            plgpu.barrier_wait(loaded)
            plgpu.barrier_wait(read)
            plgpu.tcgen05_mma(acc, a_smem, b_smem, finished, accumulate=False)
            plgpu.barrier_wait(finished)

        @pl.when(thread == 1)
        def _():
            plgpu.async_store_tmem(acc, jnp.zeros((128, 64), jnp.float32))
            plgpu.commit_tmem()
            plgpu.copy_gmem_to_smem(a, a_smem, read)

    scratch = [
        blackwell.tiles(128, 64),
        blackwell.tiles(64, 64),
        plgpu.TMEM((128, 64), jnp.float32),
        plgpu.Barrier(),
        blackwell.ordered(),
        blackwell.ordered(),
    ]
    call = of(kernel, scratch_types=scratch, num_threads=2, thread_name="thread")
    kinds, cause, remedy = told(call, like(128, 64), like(64, 64))
    assert kinds == {"race"}
    assert cause.endswith(
        "thread 0 waits for a copy that starts after thread 1 has gone on, and a copy's arrival"
        " puts no accesses of TMEM in order."
    )
    assert remedy == (
        "Let thread 1, once its access is over, arrive on a barrier made with"
        " orders_tensor_core=True on which thread 0 waits before."
    )


def test_a_pair_s_product_needs_the_loads_of_both():
    """As in CUTLASS's issue 3643, where compute-sanitizer calls it a missing wait, too."""
    report = check(pallascope.trace(*blackwell.paired(steps=1, tracks="own")))
    begun = [(str(finding.kind), finding.cause.partition(" of block 1")[0]) for finding in report]
    assert begun == [
        ("race", "slot 0 of `a_smem@1`"),
        ("race", "slot 0 of `b_smem@1`"),
        ("barrier-misuse", "Nothing waits for this copy: its bytes may land on `produced@1`"),
    ]
    assert all("read by the tcgen05_mma of block 0" in race.cause for race in report[:2])
    assert check(pallascope.trace(*blackwell.paired(tracks="tells"))).ok


@pytest.mark.parametrize("is_pair", [False, True])
def test_a_late_arrival_at_the_other_block_s_barrier(is_pair):
    """Also of blocks that give TMEM back as a pair: they meet at the end, by a relaxed barrier."""

    def kernel(o, sums, told):
        plgpu.barrier_arrive(told)
        pl.when(lax.axis_index("rank") == 0)(lambda: plgpu.barrier_wait(told))

    scratch = [
        plgpu.TMEM((128, 64), jnp.float32, collective=is_pair),
        plgpu.ClusterBarrier(collective_axes=("rank",)),
    ]
    call = of(kernel, scratch_types=scratch, cluster=(2,), cluster_names=("rank",))
    report = check(pallascope.trace(call))
    assert [finding.cause.partition(" when ")[0] for finding in report] == [
        "Block 1 of the cluster may have ended"
    ]


def test_a_commit_after_the_one_that_is_waited_for():
    """Its arrival may come when the block has ended, though the products are over."""
    program = blackwell.PROGRAMS["one slot"]()
    last = max(i for i, op in enumerate(program.threads[0]) if op.kind == "tcgen05_commit")
    barrier = dataclasses.replace(program.barriers[-1], id=len(program.barriers), name="late")
    ops = [*program.threads[0]]
    commit = dataclasses.replace(ops[last], barrier=barrier.id, peers=(barrier.id,))
    ops.insert(last + 1, commit)
    more = dataclasses.replace(
        program, threads=(tuple(ops),), barriers=(*program.barriers, barrier)
    )
    assert check(program).ok
    assert [finding.where for finding in check(more)] == ["late"]


@pytest.mark.parametrize(
    ("kernel", "needed"),
    [
        ("three threads", {"drained"}),
        ("two products in a row", {"consumed"}),  # as the trace calls what is `written` there
        ("two products in a row, apart", {"consumed"}),
        ("a pair of blocks", set()),
        ("tiles taken over", set()),
    ],
)
def test_which_barriers_have_to_order_the_tensor_core(kernel, needed):
    """Those by which a thread hands TMEM over to another. JAX commits products to no others."""
    program = blackwell.PROGRAMS[kernel]()
    found = set()
    for barrier in program.barriers:
        plain = dataclasses.replace(barrier, orders_tensor_core=False)
        barriers = [*program.barriers]
        barriers[barrier.id] = plain
        report = check(dataclasses.replace(program, barriers=tuple(barriers)))
        if not report.ok:
            found.add(barrier.name)
            assert {finding.kind for finding in report} == {"race"}
            assert report[0].remedy == "Make that barrier with orders_tensor_core=True."
            assert "but on a barrier without orders_tensor_core, which puts no" in report[0].cause
    assert found == needed


def test_too_many_columns():
    def kernel(x, o, sums, more):
        pass

    scratch = [plgpu.TMEM((128, 256), jnp.float32), plgpu.TMEM((128, 260), jnp.float32)]
    kinds, cause, remedy = told(of(kernel, scratch_types=scratch), like(256, 64))
    assert kinds == {"resource"}
    assert cause == (
        "The block allocates 516 columns of TMEM at once, and a block can have 512: 256 (sums) +"
        " 260 (more); it cannot be launched."
    )
    assert remedy.startswith("Take narrower tiles or fewer accumulators, or let some share memory")


# Cluster launch control.


def test_the_loop_that_jax_mended_is_found():
    """Nothing told who asks for the next cluster that the last answer had been read."""
    program = pallascope.trace(*blackwell.fetching(4, blocks=2, loop=blackwell.loop_as_it_was))
    report = check(program)
    assert {finding.kind for finding in report} == {"race"}
    causes = " ".join(finding.cause for finding in report)
    assert "slot 0 of `answers@1` of block 1 is overwritten by the load of block 0" in causes
    assert "while it may still be read by block 1 of the cluster, thread 1" in causes
    assert "the copy has landed when phase 0 of `answered@1[0]` of block 1 is over" in causes


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_mended_loop_is_clean(blocks):
    assert check(pallascope.trace(*blackwell.fetching(4, blocks)), strict=True).ok


def test_within_a_block_the_old_loop_races_with_nobody():
    """There each thread's arrival for an answer comes after its look at the one before the last."""
    program = pallascope.trace(*blackwell.fetching(4, loop=blackwell.loop_as_it_was))
    assert check(program).ok
    assert {finding.kind for finding in check(program, strict=True)} == {"missing-commit"}


def test_a_loop_that_does_not_know_of_its_cluster():
    """Each block asks, and both answers land in both: as JAX's collective matrix product does."""

    def loop(names, thread_axis, cluster_axes):
        return plgpu.dynamic_scheduling_loop(names, thread_axis=thread_axis)

    report = check(pallascope.trace(*blackwell.fetching(4, blocks=2, loop=loop)))
    assert "race" in {finding.kind for finding in report}
    assert "`try_cancel_buffer@0` is overwritten by the load of block 1" in report[0].cause
