"""The scratch of reductions: its bytes as Mosaic GPU counts them, and threads that share it."""

import pathlib
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope import check
from pallascope.program import Program
from pallascope.tracing import layouts
from pallascope.tracing.arithmetic import Scratch
from tests.pallascope import build
from tests.pallascope.checking.explorer import explore
from tests.pallascope.constructs.reductions import F32, X, reduced, reductions, to_a_number
from tests.pallascope.strategies import with_thread


def over_rows(x):
    x = plgpu.layout_cast(x, plgpu.Layout.WGMMA)
    return x - lax.broadcast_in_dim(jnp.max(x, axis=0), x.shape, (1,))


def within_rows(x):
    x = plgpu.layout_cast(x, plgpu.Layout.WGMMA)
    return x - lax.broadcast_in_dim(jnp.max(x, axis=1), x.shape, (0,))


def over_rows_of_some_layout(x):
    return x - lax.broadcast_in_dim(jnp.max(x, axis=0), x.shape, (1,))


def computes(program):
    ops = (op for op in program.ops if op.kind == "compute")
    return [(op.scratch, op.is_sure) for op in ops]


ROOT = pathlib.Path(__file__).parents[3]


# Which reductions use it, and what is reserved.


@pytest.mark.parametrize(
    ("shape", "axes", "layout", "use"),
    [
        ((64, 64), (1,), plgpu.Layout.WGMMA, Scratch.RESERVED),
        ((64, 64), (0,), plgpu.Layout.WGMMA, Scratch.USED),
        ((64, 64), (0, 1), plgpu.Layout.WGMMA, Scratch.USED),
        ((4, 64, 64), (0,), plgpu.Layout.WGMMA, Scratch.RESERVED),
        ((64,), (0,), plgpu.Layout.WGMMA.reduce(1), Scratch.USED),
        ((64,), (0,), plgpu.Layout.WGMMA.reduce(0), Scratch.RESERVED),
        ((64, 64), (0, 1), plgpu.Layout.WG_STRIDED((64, 64), vec_size=2), Scratch.USED),
        ((64, 64), (0, 1), plgpu.Layout.WG_SPLAT((64, 64)), Scratch.RESERVED),
        ((64, 64), (0, 1), None, Scratch.USED),
        ((512,), (0,), None, Scratch.PERHAPS),
        ((64, 64), (0,), None, Scratch.PERHAPS),
        ((64, 64), (1,), None, Scratch.RESERVED),
    ],
)
def test_which_reductions_are_across_warps(shape, axes, layout, use):
    assert layouts.scratch(shape, axes, layout and layout.to_mgpu()) is use


def test_where_the_scratch_begins():
    """Behind the SMEM of the scopes that are open."""
    program = pallascope.trace(reduced(to_a_number), X)
    assert computes(program) == [(2 * 64 * 64 * 4, True)] * 2
    assert computes(pallascope.trace(reduced(within_rows), X)) == [(None, True)] * 2
    unknown = pallascope.trace(reduced(over_rows_of_some_layout), X)
    assert computes(unknown) == [(2 * 64 * 64 * 4, False)] * 2
    assert Program.from_json(program.to_json()) == program
    (op,) = (op for op in program.threads[0] if op.kind == "compute")
    assert program.describe(op).startswith("compute 0 (across warps)")
    (op,) = (op for op in unknown.threads[0] if op.kind == "compute")
    assert program.describe(op).startswith("compute 0 (perhaps across warps)")


# More SMEM than there is: the error of Mosaic GPU says how much it is.
TOO_MUCH = plgpu.SMEM((240, 1024), jnp.int8)


@pytest.mark.parametrize("body", [to_a_number, within_rows, lambda x: x + 1])
@pytest.mark.parametrize(
    "params",
    [
        {},
        dict(reduction_scratch_bytes=6144),
        dict(reduction_scratch_bytes=100),
        dict(profile_space=5),
        dict(profile_space=5, profile_trace_scope=plgpu.TraceScope.WARP),
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_bytes_are_those_that_mosaic_gpu_counts(body, params, threads, tmp_path):
    params |= dict(profile_dir=str(tmp_path)) if "profile_space" in params else {}
    kernel = reduced(body, threads, extra=[TOO_MUCH], **params)
    program = pallascope.trace(kernel, X)
    with pytest.raises(ValueError, match="exceeds available shared memory") as error:
        jax.jit(kernel).trace(X).lower(lowering_platforms=("cuda",))
    assert f"smem_bytes={program.smem_bytes} " in str(error.value)


def test_a_kernel_that_needs_too_much_says_for_what(tmp_path):
    profile = dict(profile_space=5, profile_dir=str(tmp_path))
    (finding,) = check(pallascope.trace(reduced(within_rows, extra=[TOO_MUCH], **profile), X))
    assert finding.kind == "resource"
    assert re.search(
        r"24 \(3 barriers\) \+ 2,048 \(the scratch of reductions\) \+ 160 \(the profiler\), each",
        finding.cause,
    ), finding.cause
    (plain,) = check(pallascope.trace(reduced(lambda x: x + 1, extra=[TOO_MUCH]), X))
    assert "(3 barriers), each" in plain.cause


def test_no_bytes_for_reductions():
    """Mosaic GPU then refuses a reduction across warps: none is there to race."""
    kernel = reduced(over_rows, reduction_scratch_bytes=0)
    with pytest.raises(ValueError, match="Required reduction scratch size"):
        jax.jit(kernel).trace(X).lower(lowering_platforms=("cuda",))
    program = pallascope.trace(kernel, X)
    assert [scratch for scratch, _ in computes(program)] == [None, None]
    assert program.scratch_bytes == 0


# Two threads.


@pytest.mark.parametrize("body", [to_a_number, over_rows])
def test_two_threads_that_reduce_at_once(body):
    kernel = reduced(body)
    jax.jit(kernel).trace(X).lower(lowering_platforms=("cuda",))  # nothing else refuses it
    program = pallascope.trace(kernel, X)
    (finding,) = check(program)
    assert (finding.kind, finding.where) == ("race", "the scratch of reductions")
    assert [op.thread for op in finding.ops] == [0, 1]
    assert finding.cause == (
        "thread 0 reduces an array across its warps while thread 1 may still do so: both pass"
        " parts of their results through the scratch in SMEM that Mosaic GPU gives to reductions,"
        " one for all threads of a block, and nothing that thread 1 does after it is waited for by"
        " thread 0 before."
    )
    assert finding.remedy == (
        "Let thread 1, after its reduction, arrive on a barrier on which thread 0 waits before its"
        " own, and so in turn; or reduce within warps: the last axis of an array in"
        " plgpu.Layout.WGMMA."
    )
    assert explore(program).kinds == {"race"}
    assert {op.line for op in finding.ops} == {line_of(body)}


def line_of(body):
    """The last line of a body, where it reduces, as the trace names it."""
    last = max(number for *_, number in body.__code__.co_lines() if number)
    return f"{pathlib.Path(body.__code__.co_filename).relative_to(ROOT)}:{last}"


@pytest.mark.parametrize("body", [to_a_number, over_rows])
def test_two_threads_that_take_turns(body):
    program = pallascope.trace(reduced(body, in_turn=True), X)
    assert check(program).ok and not explore(program).bad
    for thread, kind in ((0, "arrive"), (1, "wait")):
        (at,) = (
            i
            for i, op in enumerate(program.threads[thread])
            if op.kind == kind
            and program.barriers[op.barrier].arrivals == 1
            and program.barriers[op.barrier].count == 1
        )
        ops = program.threads[thread]
        mutant = with_thread(program, thread, [*ops[:at], *ops[at + 1 :]])
        assert explore(mutant).kinds, mutant
        assert {finding.kind for finding in check(mutant)} >= explore(mutant).kinds


def test_what_is_no_race():
    """Reductions within warps, and those of one thread."""
    for kernel in (reduced(within_rows), reduced(to_a_number, threads=1)):
        report = check(pallascope.trace(kernel, X))
        assert report.ok and "reduce" not in str(report.notes)


def test_a_layout_that_is_not_known():
    report = check(pallascope.trace(reduced(over_rows_of_some_layout), X))
    line = line_of(over_rows_of_some_layout)
    assert report.ok and report.notes == (
        f"{line}: two threads reduce arrays, in no order: a race on the scratch that all threads of"
        " a block share, if the layout that Mosaic GPU chooses spreads the reduced axes over"
        " several warps. A plgpu.layout_cast before the reductions would say which layout it is.",
    )


def test_an_operand_of_mma_may_be_in_every_warp():
    def kernel(a, b, o):
        def reduce(_):
            weights = b[...]
            zero = plgpu.layout_cast(jnp.zeros((64, 8), F32), plgpu.Layout.WGMMA)
            o[...] = plgpu.mma(zero, a[...], weights) + jnp.sum(weights).astype(F32)

        reduce(None)

    out = jax.ShapeDtypeStruct((64, 8), F32)
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float16) for shape in ((64, 16), (16, 8))]
    made = plgpu.kernel(kernel, out_type=out, num_threads=2, thread_name="wg")
    program = pallascope.trace(made, *shapes)
    assert {is_sure for scratch, is_sure in computes(program) if scratch is not None} == {False}


# By hand: the explorer is the judge.


@pytest.mark.parametrize(
    ("program", "races"),
    [
        (reductions(0, 0), 1),
        (reductions(0, 1024), 0),
        (reductions(0, None), 0),
        (reductions(0, 0, blocks=2), 0),
        (reductions(0, 0, 0), 3),
        (reductions(0, 0, 0, links=[(0, 1)]), 2),
        (reductions(0, 0, 0, links=[(0, 1), (1, 2)]), 0),
        (reductions(0, 0, 0, 0, blocks=2), 2),
    ],
)
def test_places_and_turns(program, races):
    report = check(program)
    assert [finding.kind for finding in report] == ["race"] * races
    assert explore(program).kinds == ({"race"} if races else set())


def test_a_threads_own_reductions_are_in_order():
    ops = [build.just("compute", scratch=0, line=f"k.py:{line}") for line in range(3)]
    assert check(build.program(ops)).ok
    (finding,) = check(build.program(ops, ops[:1]))  # with the last of them
    assert [op.line for op in finding.ops] == ["k.py:0", "k.py:2"]


def test_a_reduction_that_is_not_sure_hides_none_that_is():
    sure, unsure = (build.just("compute", scratch=0, is_sure=is_sure) for is_sure in (True, False))
    for ops in ([sure, unsure], [unsure, sure]):
        report = check(build.program(ops, [sure]))
        assert len(report) == 1 and "two threads reduce arrays" in report.notes[-1]
    assert check(build.program([unsure], [unsure])).ok
