"""Branches that data choose: all are followed, unless one puts threads in order."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.program import Kind
from pallascope.tracing import branches
from tests.pallascope import kernels
from tests.pallascope.kernels import TRANSFORMS, like
from tests.pallascope.tracing.told import refused, words

pytestmark = pytest.mark.both_jax

FLAG = like(4, dtype=jnp.int32)
ACC = plgpu.ACC((64, 64), jnp.float32)
SMEM = plgpu.SMEM((64, 64), jnp.float16, transforms=TRANSFORMS)
TAKEN = (
    r"tests/pallascope/tracing/test_branches\.py:\d+: The branch that is taken depends on what a"
    r" tensor holds or a barrier answers, and one of its branches {}"
    r" \(tests/pallascope/tracing/test_branches\.py:\d+\), so {} would depend on data: {}, or let"
    r" the branch depend on program ids, loop counters, shapes or a concrete integer argument of up"
    r" to 16,777,216 elements\."
)
BESIDE = "put the {} before or after the branch"
OVER = "which products are over after it"


def product(smem, acc=None):
    """The square of what a slot holds, by the tensor core."""

    def multiply(acc):
        plgpu.wgmma(acc, smem, smem)
        return acc[...]

    return pl.run_scoped(multiply, ACC) if acc is None else multiply(acc)


def consumer(early):
    """A slot that is loaded three times; a step multiplies it only if a flag in GMEM says so.

    If `early`, the compute thread releases the slot before the branch.
    """

    def kernel(x, flag, o, x_smem, produced, consumed):
        def load(step, _):
            pl.when(step > 0)(lambda: plgpu.barrier_wait(consumed))
            plgpu.copy_gmem_to_smem(x.at[pl.ds(step * 64, 64)], x_smem, produced)

        def compute(step, total):
            plgpu.barrier_wait(produced)
            release = lambda: plgpu.barrier_arrive(consumed)
            if early:
                release()
            fast, slow = (lambda total: total + 1), (lambda total: total + product(x_smem))
            total = lax.cond(flag[0] > 0, fast, slow, total)
            if not early:
                pl.when(step < 2)(release)
            return total

        @pl.when(lax.axis_index("wg") == 1)
        def _():
            lax.fori_loop(0, 3, load, None)

        @pl.when(lax.axis_index("wg") == 0)
        def _():
            o[...] = lax.fori_loop(0, 3, compute, jnp.zeros((64, 64), jnp.float32))

    scratch = [SMEM, plgpu.Barrier(), plgpu.Barrier()]
    made = kernels.of(
        kernel,
        like(64, 64, dtype=jnp.float32),
        scratch_types=scratch,
        num_threads=2,
        thread_name="wg",
    )
    return pallascope.trace(made, like(192, 64), FLAG)


def test_a_slot_that_one_branch_reads_is_read():
    program = consumer(early=False)
    kinds = [op.kind for op in program.threads[0]]
    assert kinds.count("wgmma") == 3 and kinds.count("compute") >= 3
    assert pallascope.check(program).ok and pallascope.check(program, strict=True).ok


def test_a_slot_that_is_released_before_the_branch_is_a_race():
    report = pallascope.check(consumer(early=True))
    race = next(finding for finding in report if finding.kind == "race")
    assert sorted(op.kind for op in race.ops) == ["load", "wgmma"]


def traced(body, *scratch, **options):
    """The program of a kernel whose body gets a flag and then its scratch memory."""
    made = kernels.of(lambda flag, o, *refs: body(flag, *refs), scratch_types=scratch, **options)
    return pallascope.trace(made, FLAG)


def either(flag, one, other):
    """One of two branches, by a flag in GMEM."""
    return lax.cond(flag[0] > 0, one, other)


def perhaps(flag, work, is_first=True):
    """A branch that does this work, and one that does nothing; neither has a result."""

    def branch():
        work()

    ways = branch, lambda: None
    either(flag, *(ways if is_first else ways[::-1]))


def test_all_of_nested_branches_are_followed_from_the_same_values():
    def body(flag, smem):
        def inner():
            at = lambda row: lambda: smem[row, 0]
            return either(flag, at(1), at(2))

        either(flag, inner, lambda: smem[3, 0])

    lines = words(traced(body, plgpu.SMEM((4, 4), jnp.float32)))
    assert [line for line in lines if "smem" in line or "refs" in line] == [
        f"read reads refs.0[{row}, 0]" for row in (3, 2, 1)
    ]


def test_a_scalar_is_known_if_all_branches_give_the_same():
    def body(flag, smem):
        pair = lambda *values: lambda: tuple(map(jnp.int32, values))
        same, other = either(flag, pair(2, 3), pair(2, 4))
        smem[same] = smem[0]
        smem[other] = smem[0]

    ops = traced(body, plgpu.SMEM((8,), jnp.float32)).threads[0]
    first, second = (op.writes[0] for op in ops if op.kind == "write")
    assert (first.box, first.is_placed) == (((2, 3),), True)
    assert (second.box, second.is_placed) == (((0, 8),), False)


@pytest.mark.parametrize(("values", "known"), [((2, 2), True), ((2, 3), False)], ids=str)
def test_a_scalar_that_branches_leave_in_a_ref(values, known):
    def body(flag, smem):
        ref = jax.new_ref(jnp.int32(1))

        def leave(value):
            def branch():
                smem[ref[...] + 3]  # from the same value in each branch
                ref[...] = jnp.int32(value)

            return branch

        either(flag, *map(leave, values))
        smem[ref[...]] = jnp.float32(0)

    ops = traced(body, plgpu.SMEM((8,), jnp.float32)).threads[0]
    assert [op.reads[0].box for op in ops if op.kind == "read"][1:] == [((4, 5),)] * 2
    (write,) = (op.writes[0] for op in ops if op.kind == "write")
    assert write.is_placed == known and write.box == (((2, 3) if known else (0, 8)),)


def test_a_branch_reads_what_it_wrote_to_memory_of_its_own():
    def body(flag):
        def scope(mine):
            mine[...] = jnp.zeros((128,), jnp.float32)
            return mine[...].sum()

        either(flag, lambda: pl.run_scoped(scope, plgpu.SMEM((128,), jnp.float32)), lambda: 0.0)

    program = traced(body)
    assert pallascope.check(program).ok
    assert [line.split()[0] for line in words(program)[1:4]] == ["write", "read", "compute"]


REFUSED = {
    "arrive": (
        lambda o, smem, barrier: plgpu.barrier_arrive(barrier),
        "arrives at a barrier", "threads' order", BESIDE.format("arrival"),
    ),
    "wait": (
        lambda o, smem, barrier: plgpu.barrier_wait(barrier),
        "waits for a barrier", "threads' order", BESIDE.format("wait"),
    ),
    "load": (
        lambda o, smem, barrier: plgpu.copy_gmem_to_smem(o.at[0:64], smem, barrier),
        "starts a load", "threads' order", BESIDE.format("load"),
    ),
    "store": (
        lambda o, smem, barrier: plgpu.copy_smem_to_gmem(smem, o.at[0:64]),
        "starts a store", "threads' order", BESIDE.format("store"),
    ),
    "commit": (
        lambda o, smem, barrier: plgpu.commit_smem(),
        "commits SMEM", "threads' order", BESIDE.format("commit_smem"),
    ),
    "write of SMEM": (
        lambda o, smem, barrier: smem.__setitem__(..., jnp.zeros((64, 64), jnp.float16)),
        "writes 'smem'", "what the memory holds", "return the value, and write it after the branch",
    ),
    "write of GMEM": (
        lambda o, smem, barrier: o.__setitem__(0, jnp.zeros((64,), jnp.float16)),
        "writes 'o'", "what the memory holds", "return the value, and write it after the branch",
    ),
    "device code": (
        lambda o, smem, barrier: plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))(given)(smem),
        "gives 'smem' to device code, which may write it", "what the memory holds",
        "run that code before or after the branch",
    ),
    "wait for products": (
        lambda o, smem, barrier: plgpu.wgmma_wait(0),
        "waits for products with 1 older product in flight", OVER,
        "wait for these before the branch",
    ),
    "product": (
        lambda o, smem, barrier: product(smem),
        "starts a product with 1 older product in flight", OVER,
        "wait for these before the branch",
    ),
}  # fmt: skip


def given(_, smem):
    """Device code that nobody runs."""


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_may_not_be_in_a_branch(case, is_first):
    work, does, so, remedy = REFUSED[case]

    def kernel(flag, o, smem, barrier):
        def scope(acc):
            if "product" in case:
                plgpu.wgmma(acc, smem, smem)
            perhaps(flag, lambda: work(o, smem, barrier), is_first)

        pl.run_scoped(scope, ACC)

    text = refused(kernel, FLAG, scratch_types=[SMEM, plgpu.Barrier()])
    assert re.fullmatch(TAKEN.format(*map(re.escape, (does, so, remedy))), text), text


def test_products_are_over_where_a_branch_ends():
    def kernel(flag, o, smem):
        def scope(acc):
            plgpu.wgmma(acc, smem, smem)
            plgpu.wgmma(acc, smem, smem)
            plgpu.wgmma_wait(1)

        perhaps(flag, lambda: pl.run_scoped(scope, ACC))

    text = refused(kernel, FLAG, scratch_types=[SMEM])
    told = "leaves 1 product in flight", OVER, "wait for them in the branch"
    assert re.fullmatch(TAKEN.format(*told), text), text


@pytest.mark.parametrize("pending", [0, 1])
def test_products_before_a_branch(pending):
    """All must be over if the branch has products, and arithmetic asks for nothing."""

    def body(flag, smem):
        def scope(acc):
            for _ in range(2):
                plgpu.wgmma(acc, smem, smem)
            plgpu.wgmma_wait(pending)
            perhaps(flag, lambda: smem[0, 0])
            perhaps(flag, lambda: product(smem))

        pl.run_scoped(scope, ACC)

    if pending:
        with pytest.raises(ValueError, match="starts a product with 1 older product in flight"):
            traced(body, SMEM)
    else:
        assert sum(op.kind == "wgmma" for op in traced(body, SMEM).threads[0]) == 3


def test_a_product_for_an_accumulator_of_outside_is_refused():
    def body(flag, smem):
        pl.run_scoped(lambda acc: perhaps(flag, lambda: product(smem, acc)), ACC)

    with pytest.raises(ValueError, match="one of its branches writes 'acc'"):
        traced(body, SMEM)


def test_a_branch_in_which_max_steps_ends_the_thread():
    def body(flag, smem, barrier):
        def step(i, total):
            if barrier is not None:
                plgpu.barrier_arrive(barrier)
            return total + smem[i]

        either(flag, lambda: lax.fori_loop(0, 4, step, jnp.float32(0)), lambda: jnp.float32(0))

    smem = plgpu.SMEM((8,), jnp.float32)
    made = kernels.of(lambda flag, o, smem: body(flag, smem, None), scratch_types=[smem])
    program = pallascope.trace(made, FLAG, max_steps=2)
    assert program.truncated == (0,)
    assert [op.step for op in program.threads[0] if op.step] == [(0,), (1,)]
    made = kernels.of(
        lambda flag, o, *refs: body(flag, *refs), scratch_types=[smem, plgpu.Barrier()]
    )
    with pytest.raises(ValueError, match="one of its branches arrives at a barrier"):
        pallascope.trace(made, FLAG, max_steps=2)


@pytest.mark.parametrize("is_first", [False, True], ids=["reads", "computes at once"])
@pytest.mark.parametrize("is_off", [False, True], ids=["barriers", "no barriers"])
def test_lanes_meet_in_no_branch_of_a_kernel_without_automatic_barriers(is_off, is_first):
    def body(flag, smem):
        is_set = flag[0] > 0
        twice = smem[...] * 2

        def add():
            return (twice if is_first else smem[...]).sum()

        lax.cond(is_set, add, lambda: jnp.float32(0))

    params = plgpu.CompilerParams(unsafe_no_auto_barriers=is_off)
    smem = plgpu.SMEM((128,), jnp.float32)
    if is_off:
        told = "one of its branches lets the lanes of a thread meet .*so lanes' order would depend"
        with pytest.raises(ValueError, match=told):
            traced(body, smem, compiler_params=params)
    else:
        assert traced(body, smem, compiler_params=params).auto_barriers


def test_lanes_may_meet_before_a_branch_of_such_a_kernel():
    def body(flag, smem):
        is_set, total = flag[0] > 0, smem[...].sum()
        lax.cond(is_set, lambda: total + smem[0], lambda: total)

    params = plgpu.CompilerParams(unsafe_no_auto_barriers=True)
    assert traced(body, plgpu.SMEM((128,), jnp.float32), compiler_params=params).threads[0]


def test_the_host_may_choose_by_data_what_a_kernel_gets_and_not_which_kernel():
    x = like(64, 64)
    add = kernels.add_one

    def chosen(x, flag):
        return add(lax.cond(flag[0] > 0, lambda x: x + 1, lambda x: x, x))

    assert pallascope.check(pallascope.trace(chosen, x, FLAG)).ok
    told = "one of its branches calls the kernel 'kernel', so whether it runs would depend on data"
    with pytest.raises(ValueError, match=told):
        pallascope.trace(lambda x, flag: lax.cond(flag[0] > 0, add, lambda x: x, x), x, FLAG)


def test_each_kind_is_followed_or_is_refused_with_its_words():
    assert branches.FOLLOWED | {*branches.ORDERS} == {*Kind}
    assert not branches.FOLLOWED & {*branches.ORDERS}
