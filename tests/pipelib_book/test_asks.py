"""`pipelib_book.asks`: what each ask says of answers that the chapters' exercises do not have.

That an ask holds of a solution and fails a wrong answer, in words, is held where the chapters run:
`tests/book/test_chapters.py` and `test_wrong_answers.py`.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
from pipelib_book import asks, grade
from pipelib_book.beside import beside_of

STEPS, ROWS, COLUMNS = 6, 64, 64
X = jax.ShapeDtypeStruct((ROWS, STEPS * COLUMNS), jnp.float32)
HALVES = jax.ShapeDtypeStruct((STEPS * 64, 64), jnp.float16)
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def answer(kernel, *args):
    program, beside = pallascope.trace(kernel, *args), beside_of(kernel, args)
    return asks.Answer(program, args, pallascope.H200, beside, kernel)


def said(ask, kernel, *args):
    return ask(answer(kernel, *args))


def adding(slots=1, reads=1):
    """A pipeline that adds one."""

    def kernel(x_gmem, o_gmem):
        block = pl.BlockSpec((ROWS, COLUMNS), lambda k: (0, k))

        def body(_, x_smem, *others):
            others[-1][...] = x_smem[...] + 1.0

        inputs = dict(in_specs=[block] * reads, max_concurrent_steps=slots)
        pipelib.emit_pipeline(body, grid=(STEPS,), out_specs=[block], **inputs)(
            *[x_gmem] * reads, o_gmem
        )

    return lambda x: plgpu.kernel(kernel, out_type=x, grid=(1,), grid_names=("i",))(x)


def test_a_launch_is_faster_than_another_and_no_faster_than_light():
    ask = functools.partial(asks.launches_faster_than, [adding(), adding(slots=2)], [X])
    assert said(ask(by=0.9, light_us=0.1), adding(slots=2), X).holds
    too_slow = said(ask(by=1.1, light_us=0.1), adding(slots=2), X)
    assert not too_slow.holds and "at most. The speed of light is 0.1 µs." in too_slow.text
    too_fast = said(ask(by=0.9, light_us=1e6), adding(slots=2), X)
    assert not too_fast.holds and too_fast.text.endswith("it leaves out a part of the work.")
    with pytest.raises(ValueError, match="by=0 is not above 0"):
        ask(by=0, light_us=0.1)


def test_another_s_bytes_are_a_limit():
    ask = asks.loads_less_than(adding(reads=2), by=2.0)
    size = 4 * ROWS * STEPS * COLUMNS
    limit = f"of {size:,} at most."
    assert said(ask, adding(), X) == (True, f"It loads little enough: {size:,} bytes, {limit}")
    text = f"It is right, but loads too much: {2 * size:,} bytes, {limit}"
    assert said(ask, adding(reads=2), X) == (False, text)

    def directly(x_gmem, o_gmem):
        o_gmem[...] = x_gmem[...] + x_gmem[...]

    assert said(ask, lambda x: plgpu.kernel(directly, out_type=x)(x), X) == (False, text)


def uneven(x):
    """Two blocks that copy tiles of 8 x 128, the first one and all others."""

    def kernel(x_gmem, o_gmem, x_smem, landed):
        def copy(k, _):
            plgpu.copy_gmem_to_smem(x_gmem.at[k], x_smem, landed)
            plgpu.barrier_wait(landed)
            plgpu.copy_smem_to_gmem(x_smem, o_gmem.at[k])
            plgpu.wait_smem_to_gmem(0)

        i = lax.axis_index("i")
        lax.fori_loop(i, 1 + i * (len(x) - 1), copy, None)

    scratch = [plgpu.SMEM((8, 128), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(kernel, out_type=x, grid=(2,), grid_names=("i",), scratch_types=scratch)(x)


def test_bytes_are_of_all_blocks_or_of_the_block_with_most():
    tile, x = 4 * 8 * 128, jax.ShapeDtypeStruct((4, 8, 128), jnp.float32)
    line = f"It loads {4 * tile:,} bytes, of {4 * tile:,} at most."
    assert said(asks.loads_at_most(4 * tile), uneven, x) == (True, line)
    line = f"It is right, but loads {3 * tile:,} bytes in a block, of {2 * tile:,} at most."
    assert said(asks.block_loads_at_most(2 * tile), uneven, x) == (False, line)
    assert said(asks.loads_less_than(uneven), uneven, x).holds


def two_ahead_in(blocks):
    """Four blocks that copy two tiles each: some load both before they wait, the others do not."""

    def kernel(x_gmem, o_gmem, x_smem, landed):
        i = lax.axis_index("i")
        is_ahead = i < blocks

        def load(k):
            plgpu.copy_gmem_to_smem(x_gmem.at[i, k], x_smem.at[k], landed.at[k])

        load(0)
        pl.when(is_ahead)(lambda: load(1))
        plgpu.barrier_wait(landed.at[0])
        pl.when(~is_ahead)(lambda: load(1))
        plgpu.barrier_wait(landed.at[1])
        plgpu.copy_smem_to_gmem(x_smem, o_gmem.at[i])
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((2, 8, 128), jnp.float32), plgpu.Barrier(num_barriers=2)]
    return lambda x: plgpu.kernel(
        kernel, out_type=x, grid=(4,), grid_names=("i",), scratch_types=scratch
    )(x)


def test_loads_are_in_flight_in_each_block():
    x = jax.ShapeDtypeStruct((4, 2, 8, 128), jnp.float32)
    ask = asks.loads_in_flight(2)
    assert said(ask, two_ahead_in(4), x).holds
    text = "It is right, but has 1 load in flight at most in block (1,), and 2 could be."
    assert said(ask, two_ahead_in(1), x) == (False, text)


@pytest.mark.parametrize(
    ("ask", "consequence"),
    [
        (asks.faster_than, "time would be too long"),
        (asks.loads_less_than, "bytes would be too many"),
    ],
)
def test_a_limit_that_none_exceeds_is_an_error(ask, consequence):
    with pytest.raises(
        ValueError, match=f"{ask.__name__}: by=0 is not above 0, so no {consequence}"
    ):
        ask(adding(), by=0)


def products(wait, early=True, cluster=False, b_first=False):
    """Two threads, one slot for each factor, which the second frees in turn or at the end.

    With a `cluster` one factor's slots are freed by both blocks: b's if it is "b", else a's.
    """

    def kernel(a_gmem, b_gmem, o_gmem, a_smem, b_smem, here, a_free, b_free):
        thread = lax.axis_index("thread")

        @pl.when(thread == 1)
        def load():
            for k in range(STEPS):
                if k and b_first:
                    plgpu.barrier_wait(b_free)
                if k:
                    plgpu.barrier_wait(a_free)
                part = pl.ds(k * 64, 64)
                plgpu.copy_gmem_to_smem(a_gmem.at[part], a_smem, here)
                if k and not b_first:
                    plgpu.barrier_wait(b_free)
                plgpu.copy_gmem_to_smem(b_gmem.at[part], b_smem, here)

        @pl.when(thread == 0)
        def multiply():
            def compute(left, right):
                for k in range(STEPS):
                    plgpu.barrier_wait(here)
                    plgpu.wgmma(left, a_smem, a_smem)
                    plgpu.wgmma(right, b_smem, b_smem)
                    plgpu.wgmma_wait(wait(k) if callable(wait) else wait)
                    if early:
                        plgpu.barrier_arrive(a_free)
                        plgpu.wgmma_wait(0)
                        plgpu.barrier_arrive(b_free)
                    else:
                        plgpu.wgmma_wait(0)
                        plgpu.barrier_arrive(a_free)
                        plgpu.barrier_arrive(b_free)
                return left[...] + right[...]

            acc = plgpu.ACC((64, 64), jnp.float32)
            o_gmem[...] = pl.run_scoped(compute, acc, acc)

    tile = plgpu.SMEM((64, 64), jnp.float16, transforms=SWIZZLED)
    own = plgpu.Barrier()
    both = plgpu.ClusterBarrier(collective_axes=("pair",)) if cluster else own
    free = (own, both) if b_first or cluster == "b" else (both, own)
    scratch = tile, tile, plgpu.Barrier(num_arrivals=2), *free
    names = dict(cluster=(2,), cluster_names=("pair",)) if cluster else {}
    out = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return lambda a, b: plgpu.kernel(
        kernel,
        out_type=out,
        grid=(1,),
        grid_names=("i",),
        num_threads=2,
        thread_name="thread",
        scratch_types=scratch,
        **names,
    )(a, b)


def test_one_wait_in_three_has_to_leave_a_product_running():
    ask = asks.products_in_flight(1)
    now_and_then = lambda k: 1 if k == 1 else 0
    assert not said(ask, products(wait=now_and_then), HALVES, HALVES).holds
    assert not said(ask, products(wait=1, early=False), HALVES, HALVES).holds  # 1 and 0 in a row


def one_sum(before, behind, copies=0):
    """Products, with a wait before each and one behind it, and then as many stores as asked."""

    def kernel(a_gmem, o_gmem, a_smem, here):
        plgpu.copy_gmem_to_smem(a_gmem, a_smem, here)
        plgpu.barrier_wait(here)

        def compute(acc):
            for _ in range(STEPS):
                plgpu.wgmma_wait(before)
                plgpu.wgmma(acc, a_smem, a_smem)
                o_gmem[...] = jnp.zeros((64, 64), jnp.float32)  # so the waits are not in a row
                plgpu.wgmma_wait(behind)
            for _ in range(copies):
                plgpu.copy_smem_to_gmem(a_smem, a_gmem)
            return acc[...]

        o_gmem[...] = pl.run_scoped(compute, plgpu.ACC((64, 64), jnp.float32))

    tile = plgpu.SMEM((64, 64), jnp.float16, transforms=SWIZZLED)
    out = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return plgpu.kernel(kernel, out_type=out, scratch_types=[tile, plgpu.Barrier()])


def test_a_wait_that_ends_no_product_does_not_count():
    a = jax.ShapeDtypeStruct((64, 64), jnp.float16)
    no = "It is right, but leaves 0 products in flight when it waits for some, and 1 could be."
    assert said(asks.products_in_flight(1), one_sum(before=0, behind=1), a) == (False, no)
    assert said(asks.products_in_flight(1), one_sum(before=1, behind=1), a).holds


def test_more_products_or_loads_than_are_allowed():
    a = jax.ShapeDtypeStruct((64, 64), jnp.float16)
    no = "It is right, but leaves 2 products in flight, whose slots stay full: 1 would do."
    assert said(asks.products_in_flight(1, most=1), one_sum(2, 2), a) == (False, no)
    assert said(asks.products_in_flight(1, most=2), one_sum(2, 2), a).holds
    no = "It is right, but has 2 loads in flight at most, and 1 is the limit."
    assert said(asks.loads_in_flight(1, most=1), adding(slots=2), X) == (False, no)
    assert said(asks.loads_in_flight(1, most=1), adding(), X).holds


@pytest.mark.parametrize(("behind", "share"), [(0, "0%"), (1, "100%")])
def test_stores_beneath_a_product(behind, share):
    a = jax.ShapeDtypeStruct((64, 64), jnp.float16)
    holds, text = said(asks.stores_beneath(), one_sum(1, behind, copies=2), a)
    assert holds is bool(behind)
    assert text.endswith(f"starts {share} of its stores while a product is in flight.")


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_slot_that_is_filled_when_another_is_free(ahead):
    """A ring of two slots, whose writer waits for its own slot or for the next one."""

    def kernel(x_gmem, o_gmem, o_smem, full, free):
        @pl.when(lax.axis_index("thread") == 0)
        def write():
            for k in range(4):
                if k >= 2:
                    plgpu.barrier_wait(free.at[(k + ahead) % 2])
                o_smem[k % 2] = x_gmem[k]
                plgpu.commit_smem()
                plgpu.barrier_arrive(full.at[k % 2])

        @pl.when(lax.axis_index("thread") == 1)
        def read():
            for k in range(4):
                plgpu.barrier_wait(full.at[k % 2])
                o_gmem[k] = o_smem[k % 2]
                plgpu.barrier_arrive(free.at[k % 2])

    x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
    barriers = plgpu.Barrier(num_barriers=2)
    scratch = dict(o_smem=plgpu.SMEM((2, 128), jnp.float32), full=barriers, free=barriers)
    run = plgpu.kernel(
        kernel, out_type=x, num_threads=2, thread_name="thread", scratch_types=scratch
    )
    no = "It is right, but fills a slot of `o_smem` when it has waited for another one."
    yes = "It waits for one slot of `o_smem` at a time."
    assert said(asks.frees_slot_by_slot("o_smem"), run, x) == (not ahead, no if ahead else yes)


@pytest.mark.parametrize("cluster", [False, True])
def test_threads_that_start_products(cluster):
    kernel, does = products(wait=1, cluster=cluster), "starts products in 1 thread of a block"
    assert said(asks.multiplies_in(1), kernel, HALVES, HALVES) == (True, f"It {does}.")
    no = f"It is right, but {does}, and 2 are asked for."
    assert said(asks.multiplies_in(2), kernel, HALVES, HALVES) == (False, no)


def test_exponentials_beneath_a_product():
    for wait, share in ((0, 0), (1, 100)):

        def kernel(x_gmem, o_gmem, x_smem, wait=wait):
            def scope(acc):
                plgpu.wgmma(acc, x_smem, x_smem)
                plgpu.wgmma_wait(wait)
                o_gmem[...] = jnp.exp(x_gmem[...])
                return acc[...]

            pl.run_scoped(scope, plgpu.ACC((64, 64), jnp.float32))

        tile = plgpu.SMEM((64, 64), jnp.float16, transforms=SWIZZLED)
        x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        run = plgpu.kernel(kernel, out_type=x, scratch_types=[tile])
        holds, text = said(asks.exponentials_beneath(), run, x)
        assert holds is bool(share), text
        assert f"computes {share}% of its exponentials while a product is in flight." in text


def test_operations_on_the_tensor_core():
    of_a_product = 2 * 64 * 64 * 64
    least = 2 * STEPS * of_a_product
    for cluster in (False, True):  # each of its blocks does all of them
        kernel = products(wait=1, cluster=cluster)
        assert said(asks.block_multiplies(least), kernel, HALVES, HALVES) == (
            True,
            f"It does {least:,} operations on the tensor core in a block.",
        )
    assert said(asks.block_multiplies(least + 1), products(wait=1), HALVES, HALVES) == (
        False,
        f"It is right, but a block does {least:,} operations on the tensor core, of"
        f" {least + 1:,} at least.",
    )


def test_what_is_asked_of_other_arrays():
    size, wide = 4 * ROWS * STEPS * COLUMNS, jax.ShapeDtypeStruct((ROWS, 512), jnp.float32)
    ask = asks.loads_at_most(size)
    assert said(ask, adding(), X).holds
    assert said(asks.also_with((X,), ask), adding(), X).holds
    reading = lambda x: adding(reads=1 if x.shape == X.shape else 2)(x)
    assert not said(asks.also_with((wide,), ask), reading, X).holds


@pytest.mark.parametrize("cluster", [False, True])
def test_threads_of_a_block(cluster):
    kernel = products(wait=1, cluster=cluster)
    assert said(asks.has_threads(2), kernel, HALVES, HALVES) == (
        True,
        "It has 2 threads in a block.",
    )
    assert said(asks.has_threads(3), kernel, HALVES, HALVES) == (
        False,
        "It is right, but a block has 2 threads, and 3 are asked for.",
    )


@pytest.mark.parametrize(("cluster", "blocks"), [(False, "1 block"), (True, "2 blocks")])
def test_blocks_of_a_grid(cluster, blocks):
    kernel = products(wait=1, cluster=cluster)
    number = 1 + cluster
    assert said(asks.has_blocks(number), kernel, HALVES, HALVES) == (True, f"It has {blocks}.")
    no = f"It is right, but its kernel has {blocks}, and 4 are asked for."
    assert said(asks.has_blocks(4), kernel, HALVES, HALVES) == (False, no)


def test_blocks_of_a_grid_without_clusters():
    def kernel(x_gmem, o_gmem):
        o_gmem[lax.axis_index("i")] = x_gmem[lax.axis_index("i")]

    x = jnp.ones((6, 128))
    answer = plgpu.kernel(kernel, out_type=x, grid=(6,), grid_names=("i",))
    assert said(asks.has_blocks(6), answer, x).holds
    assert not said(asks.has_blocks(1), answer, x).holds


def test_blocks_with_unequal_shares():
    def kernel(x_gmem, o_gmem):
        i = lax.axis_index("i")
        first, steps = 2 * i, 2 + 2 * i

        def step(k, _):
            o_gmem[first + k] = x_gmem[first + k]

        lax.fori_loop(0, steps, step, None)

    x = jnp.ones((6, 128))
    answer = plgpu.kernel(kernel, out_type=x, grid=(2,), grid_names=("i",))
    no = "It is right, but one of its blocks stores 2,048 bytes, and another 1,024."
    assert said(asks.has_blocks(2), answer, x) == (False, no)


def test_a_slot_that_is_freed_while_a_product_runs():
    yes = "It frees each slot of `a_smem` while other work is in flight."
    assert said(asks.frees_once_read("a_smem"), products(wait=1), HALVES, HALVES) == (True, yes)
    no = (
        "It is right, but frees a slot of `a_smem` when nothing that the thread started is in"
        " flight any more: it was done with that slot before."
    )
    late = products(wait=1, early=False)
    assert said(asks.frees_once_read("a_smem"), late, HALVES, HALVES) == (False, no)
    assert not said(asks.frees_once_read("b_smem"), products(wait=1), HALVES, HALVES).holds


def test_a_slot_that_is_freed_while_it_is_read_even_if_nothing_comes_of_it():
    text = (
        "It is right, but frees a slot of `a_smem` while it may still be read: only another barrier"
        " keeps the next load away."
    )
    early = products(wait=2)
    assert said(asks.frees_once_read("a_smem"), early, HALVES, HALVES) == (False, text)


def test_a_slot_that_is_freed_while_a_product_reads_it():
    ask = asks.frees_after_reads("a_smem")
    yes = "It frees each slot of `a_smem` when its reads are over."
    for late in (products(wait=1), products(wait=1, early=False)):
        assert said(ask, late, HALVES, HALVES) == (True, yes)
    last = lambda k: 2 if k == STEPS - 1 else 1  # no load comes behind it
    no = "It is right, but frees a slot of `a_smem` 1 time while it may still be read."
    assert said(ask, products(last), HALVES, HALVES) == (False, no)


def test_a_slot_that_is_freed_sooner_and_loaded_sooner():
    late, early = products(wait=1, early=False), products(wait=1)
    for ask, does in (
        (asks.frees_sooner_than, "frees a slot of `a_smem`"),
        (asks.loads_sooner_than, "starts a load of `a_smem`"),
    ):
        holds, text = said(ask(late, "a_smem", by=10.0), early, HALVES, HALVES)
        assert holds and text.startswith(f"It {does} at cycle "), text
        holds, text = said(ask(early, "a_smem", by=0.0), late, HALVES, HALVES)
        assert not holds and text.startswith(f"It is right, but {does} at cycle "), text
        assert text.endswith(" at the latest is asked."), text
        assert said(ask(early, "a_smem"), early, HALVES, HALVES).holds  # no sooner than itself
        assert not said(ask(early, "a_smem", by=1.0), early, HALVES, HALVES).holds


def test_a_slot_that_waits_for_its_own_block_alone():
    ask = asks.frees_within_block("a_smem")
    assert said(ask, products(wait=1), HALVES, HALVES) == (
        True,
        "It waits for its own block alone before it loads `a_smem` again.",
    )
    assert said(ask, products(wait=1, cluster=True), HALVES, HALVES) == (
        False,
        "It is right, but waits for other blocks, too, before it loads `a_smem` again.",
    )
    assert said(ask, products(wait=1, cluster="b"), HALVES, HALVES).holds
    beside = products(wait=1, cluster=True, b_first=True)  # waits for both, its own block's last
    assert not said(ask, beside, HALVES, HALVES).holds
    behind = products(wait=1, cluster=True)  # loads a first, for which it waits for both blocks
    assert not said(asks.frees_within_block("b_smem"), behind, HALVES, HALVES).holds


@pytest.mark.parametrize("waits", [2, 1, 0])
def test_slots_that_are_freed_when_nobody_waits(waits):
    """A ring of two slots, whose last two releases are seen, or some of them."""

    def kernel(x_gmem, o_gmem, x_smem, produced, consumed):
        @pl.when(lax.axis_index("thread") == 0)
        def _():
            for k in range(4):
                plgpu.barrier_wait(produced.at[k % 2])
                o_gmem[k] = x_smem[k % 2]
                plgpu.commit_smem()
                plgpu.barrier_arrive(consumed.at[k % 2])

        @pl.when(lax.axis_index("thread") == 1)
        def _():
            for k in range(4):
                if k >= 2:
                    plgpu.barrier_wait(consumed.at[k % 2])
                plgpu.copy_gmem_to_smem(x_gmem.at[k], x_smem.at[k % 2], produced.at[k % 2])
            for slot in range(waits):
                plgpu.barrier_wait(consumed.at[slot])

    x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
    barriers = plgpu.Barrier(num_barriers=2)
    scratch = dict(x_smem=plgpu.SMEM((2, 128), jnp.float32), produced=barriers, consumed=barriers)
    run = lambda x: plgpu.kernel(
        kernel, out_type=x, num_threads=2, thread_name="thread", scratch_types=scratch
    )(x)
    holds, text = said(asks.sees_all_frees("x_smem"), run, x)
    assert holds is (waits == 2), text
    times = {1: "1 time", 0: "2 times"}
    assert text == (
        "It waits each time that a slot of `x_smem` is freed."
        if holds
        else f"It is right, but frees slots of `x_smem` {times[waits]} when nobody waits for it:"
        " the barriers are in no state to be used again."
    )


@pytest.mark.parametrize("early", [True, False])
def test_a_slot_that_is_freed_right_after_its_product(early):
    # `wgmma_wait(1)` ends the product with `a`: `early` frees its slot before the next wait.
    holds, text = said(asks.frees_at_once("a_smem"), products(1, early), HALVES, HALVES)
    assert holds is early
    assert text == (
        "It frees each slot of `a_smem` as soon as its product is over."
        if early
        else "It is right, but frees a slot of `a_smem` 6 times after other work: it was done with"
        " that slot before."
    )


@pytest.mark.parametrize(
    ("ask", "lacks"),
    [
        (asks.frees_once_read("c_smem"), "frees no slot of `c_smem`"),
        (asks.frees_within_block("c_smem"), "frees no slot of `c_smem`"),
        (asks.frees_after_reads("c_smem"), "frees no slot of `c_smem`"),
        (asks.sees_all_frees("c_smem"), "frees no slot of `c_smem`"),
        (asks.frees_slot_by_slot("c_smem"), "frees no slot of `c_smem`"),
        (asks.frees_at_once("c_smem"), "frees no slot of `c_smem`"),
        (asks.products_beneath("c_smem"), "waits for no load of `c_smem` beside products"),
        (asks.shares("c_smem"), "loads no `c_smem`"),
        (asks.goes_through_once("c_smem"), "multiplies with no `c_smem`"),
        (asks.loads_sooner_than(products(wait=1), "c_smem"), "never starts a load of `c_smem`"),
        (asks.frees_sooner_than(products(wait=1), "c_smem"), "never frees a slot of `c_smem`"),
    ],
)
def test_an_answer_without_the_buffer_fails(ask, lacks):
    assert said(ask, products(wait=1), HALVES, HALVES) == (
        False,
        f"It is right, but {lacks}; its shared memory is `a_smem`, `b_smem`.",
    )


def storing(left, read_only=False, empty_groups=0):
    def kernel(x_gmem, o_gmem, o_smem):
        for k in range(STEPS):
            now = left(k) if callable(left) else left
            plgpu.wait_smem_to_gmem(now, wait_read_only=read_only)
            o_smem[k % 3] = x_gmem[...] * (k + 1.0)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(o_smem.at[k % 3], o_gmem.at[k])
            for _ in range(empty_groups):
                plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0)

    out = jax.ShapeDtypeStruct((STEPS, 64, 64), jnp.float32)
    scratch = [plgpu.SMEM((3, 64, 64), jnp.float32)]
    return lambda x: plgpu.kernel(
        kernel, out_type=out, grid=(1,), grid_names=("i",), scratch_types=scratch
    )(x)


@pytest.mark.parametrize("read_only", [False, True])
def test_stores_that_a_wait_leaves(read_only):
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    ask = asks.stores_in_flight(2)
    yes = "It leaves 2 stores in flight when it waits for some."
    assert said(ask, storing(2, read_only), x) == (True, yes)
    no = "It is right, but leaves 1 store in flight when it waits for some, and 2 could be."
    assert said(ask, storing(1, read_only), x) == (False, no)


def test_one_wait_for_all_stores_is_too_many():
    """But for those after a thread's last store, even if no more are in flight than are asked."""
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    assert said(asks.stores_in_flight(1), storing(lambda k: 0 if k == 3 else 1), x) == (
        False,
        "It is right, but leaves 0 stores in flight when it waits for some, and 1 could be.",
    )


def test_a_group_without_stores_is_not_in_flight():
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    no = "It is right, but leaves 0 stores in flight when it waits for some, and 1 could be."
    assert said(asks.stores_in_flight(1), storing(1, empty_groups=1), x) == (False, no)
    assert said(asks.stores_in_flight(1), storing(2, empty_groups=1), x).holds


def test_an_input_that_is_copied_before_the_kernel():
    ask = asks.takes_its_arguments()
    yes = "It takes its arguments as they are."
    assert said(ask, adding(), X) == (True, yes)
    assert said(ask, lambda x: adding()(x[None][0]), X) == (True, yes)  # nothing moves
    wide = jax.ShapeDtypeStruct((X.shape[0], *X.shape[1:-1], 2 * X.shape[-1]), X.dtype)
    assert said(ask, lambda x: adding()(x[..., : X.shape[-1]]), wide) == (
        False,
        f"It is right, but its kernel's input `x_gmem` of shape {X.shape} is no argument: it was"
        " copied before the kernel began.",
    )


def test_work_that_is_left_to_xla():
    ask = asks.makes_all_of(X)
    yes = "It makes its results itself, of all arguments."
    assert said(ask, adding(), X) == (True, yes)
    assert said(ask, lambda x: adding()(x)[None][0], X) == (True, yes)  # nothing moves
    no = f"It is right, but its kernel reads no argument {X.shape} float32: XLA does a part."
    assert said(ask, lambda x, y: adding()(x) + y, X, X) == (False, no)
    half = jax.ShapeDtypeStruct((ROWS,), jnp.float16)
    no = f"its kernel gives {X.shape} float32, not ({ROWS},) float16: XLA does the rest."
    holds, text = said(asks.makes_all_of(half), lambda x: adding()(x).sum(axis=1), X)
    assert not holds and text == f"It is right, but {no}"
    turned = X.update(shape=X.shape[::-1])
    assert "is no argument" in said(ask, lambda x: adding()(x.T), turned).text


@pytest.mark.parametrize(
    ("change", "by"),
    [(lambda made, x: made * 0 + x, "`add` and `mul`"), (lambda made, x: x + 1.0, "`add`")],
)
def test_a_result_that_xla_makes_beside_a_kernel(change, by):
    text = f"It is right, but XLA makes its result, by {by}, after the kernel."
    assert said(asks.makes_all_of(X), lambda x: change(adding()(x), x), X) == (False, text)


def test_a_result_that_the_kernel_did_not_make():
    no = "It is right, but it returns an array that its kernel did not make."
    assert said(asks.makes_all_of(X), lambda x: (adding()(x), x)[1], X) == (False, no)


def test_a_reshape_moves_nothing():
    flat = X.update(shape=(ROWS * STEPS * COLUMNS,))
    reshaped = lambda x: adding()(x.reshape(X.shape)).reshape(-1)
    assert said(asks.makes_all_of(flat), jax.jit(reshaped), flat).holds
    assert said(asks.takes_its_arguments(), reshaped, flat).holds


def test_an_input_that_only_looks_like_an_argument():
    ask = asks.takes_its_arguments()
    array = jnp.ones(X.shape)
    for lazy in (lambda x: adding()(x + 1.0), lambda x: adding()(array)):
        assert "is no argument" in said(ask, lazy, X).text
    square = X.update(shape=(COLUMNS, COLUMNS))
    kernel = plgpu.kernel(doubling, out_type=square)
    assert said(ask, kernel, square).holds
    assert "is no argument" in said(ask, lambda x: kernel(x.T), square).text


def doubling(x_gmem, o_gmem):
    o_gmem[...] = 2 * x_gmem[...]


def test_an_ask_that_fails_is_the_grade_s_last_line():
    x = jnp.ones((ROWS, STEPS * COLUMNS))
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams()):
        given = functools.partial(grade, adding(slots=2), x, expected=x + 1)
        got = given(asks=[asks.loads_in_flight(2), asks.faster_than(adding(slots=1))])
        assert got.passed and len(got.lines) == 4
        got = given(asks=[asks.loads_in_flight(9), asks.faster_than(adding(slots=1))])
    assert not got.passed and len(got.lines) == 3
    assert got.lines[-1].endswith("has 2 loads in flight at most, and 9 could be.")
