"""Lanes of one thread without automatic barriers, which race where they do not meet."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope import check
from pallascope.program import Program
from pallascope.tracing import layouts
from tests.pallascope.checking.agreement import quick
from tests.pallascope.checking.explorer import explore
from tests.pallascope.checking.lanes_apart import apart
from tests.pallascope.constructs.lanes import (
    ACCESSES,
    OPS,
    PAIRS,
    SINGLES,
    X,
    arrive_and_wait,
    commit,
    one_thread,
    passed,
    refilled,
)


@plgpu.inline_mgpu()
def lanes_meet(_):
    mgpu.warpgroup_barrier()


def test_what_is_read_in_another_layout():
    report = check(pallascope.trace(passed(), X))
    (finding,) = report
    assert (finding.kind, finding.where) == ("race", "tile")
    assert [op.kind for op in finding.ops] == ["read", "write"]
    assert finding.cause == (
        "`tile` is read by thread 0 while other lanes of that thread may not have written it yet:"
        " the first access is in WGStridedFragLayout(shape=(64, 64), vec_size=2), the"
        " second in WGStridedFragLayout(shape=(64, 64), vec_size=1), and the lanes do not meet in"
        " between, since the kernel is compiled with unsafe_no_auto_barriers."
    )
    assert finding.remedy == (
        "Call commit_smem in thread 0 between the two, where the lanes meet, or compile without"
        " unsafe_no_auto_barriers."
    )
    assert not report.notes


def test_what_is_loaded_over_what_is_read():
    (finding,) = check(pallascope.trace(refilled(), X))
    assert (finding.kind, [op.kind for op in finding.ops]) == ("race", ["load", "read"])
    assert finding.cause == (
        "`tile` is overwritten by the load of thread 0 while other lanes of that thread may not"
        " have read it yet: one lane issues a load for all, and the lanes do not meet in between,"
        " since the kernel is compiled with unsafe_no_auto_barriers."
    )


@pytest.mark.parametrize("kernel", [passed, refilled])
@pytest.mark.parametrize(
    "options",
    [
        dict(between=commit),
        dict(between=arrive_and_wait),
        dict(between=lambda _: lanes_meet()),
        dict(auto=True),
    ],
    ids=["commit", "barrier", "inline", "auto"],
)
def test_where_lanes_meet(kernel, options):
    report = check(pallascope.trace(kernel(**options), X))
    assert report.ok and "lanes" not in str(report.notes)


def test_each_lane_has_its_own():
    report = check(pallascope.trace(passed(read=PAIRS), X))
    assert report.ok and not report.notes


@pytest.mark.parametrize(("write", "read"), [(None, SINGLES), (PAIRS, None), (None, None)])
def test_layouts_that_are_not_known(write, read):
    report = check(pallascope.trace(passed(write=write, read=read), X))
    program = report.program
    first, second = (op.line for op in program.threads[0] if "tile" in where(program, op))
    assert report.ok and report.notes == (
        f"{first} and {second}: one thread accesses `tile` twice, and its lanes do not meet between"
        " (unsafe_no_auto_barriers): right if each lane accesses the same elements both times,"
        " which depends on layouts that are not known here.",
    )


def where(program, op):
    return [program.buffers[region.buffer].name for region in op.reads + op.writes]


def test_the_field_is_traced():
    program = pallascope.trace(passed(), X)
    assert not program.auto_barriers and Program.from_json(program.to_json()) == program
    assert pallascope.trace(passed(auto=True), X).auto_barriers
    ops = [op for op in program.threads[0] if "tile" in where(program, op)]
    assert [op.layout for op in ops] == [layouts.name(each.to_mgpu()) for each in (PAIRS, SINGLES)]


@pytest.mark.parametrize("kernel", [passed, refilled])
@pytest.mark.parametrize("auto", [True, False])
def test_mosaic_gpu_has_barriers_of_lanes_only_by_default(kernel, auto):
    text = jax.jit(kernel(auto=auto)).trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert ("bar.sync" in text) == auto
    text = jax.jit(kernel(commit)).trace(X).lower(lowering_platforms=("cuda",)).as_text()
    assert "bar.sync" in text


def test_names_of_layouts():
    assert layouts.name(None) == ""
    assert layouts.name(plgpu.Layout.WGMMA_8BIT.to_mgpu()) == "WGMMA_8BIT"
    strided = plgpu.Layout.WG_STRIDED((64, 64), vec_size=2).to_mgpu()
    assert layouts.name(strided) == repr(strided)


# The explorer's judgement: each of two lanes is a thread to it, and has one row of `s`.


@quick
@given(st.lists(st.sampled_from(OPS), max_size=6))
def test_lanes_as_threads(ops):
    """Of a load over what was written, without a fence, the checker says that instead."""
    found = {finding.kind for finding in check(one_thread(ops))}
    races = "race" in explore(apart(one_thread(ops)).program).kinds
    assert races or "race" not in found, ops
    assert not races or found & {"race", "missing-commit"}, ops


@pytest.mark.parametrize("first", ACCESSES)
@pytest.mark.parametrize("second", ACCESSES)
@pytest.mark.parametrize("between", [(), ("turn",), ("fence",)])
def test_two_accesses(first, second, between):
    ops = [("write", "a"), "fence", first, *between, second]
    is_race = not between and first[1] != second[1] and "write" in (first[0], second[0])
    assert ("race" in explore(apart(one_thread(ops)).program).kinds) == is_race
    assert ("race" in {finding.kind for finding in check(one_thread(ops))}) == is_race
