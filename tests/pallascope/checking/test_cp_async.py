"""Copies without a barrier, in programs by hand; `test_mutants` has whole kernels."""

import dataclasses

from pallascope import check, simulate
from pallascope.checking.resources import EARLIER_SMEM_BYTES
from pallascope.program import Kind
from tests.pallascope import build


def by_hand(*ops, **fields):
    """A program of one thread that copies into two slots of a ring."""
    return build.program(list(ops), **fields)


def cp_async(row, slot):
    load = build.load(row, slot)
    return dataclasses.replace(load, kind=Kind.CP_ASYNC, barrier=None, index=0)


def wait(pending):
    return build.just("wait_cp_async", pending)


def test_the_words_of_a_race():
    ops = [cp_async(0, 0), cp_async(1, 1), wait(2), build.read(0), wait(0), build.read(1)]
    (finding,) = check(by_hand(*ops)).findings
    assert finding.kind == "race"
    told = "the copy has landed once a wait_gmem_to_smem of thread 0 that covers it returns, and"
    assert told in finding.cause
    assert finding.remedy == (
        "Call wait_gmem_to_smem(0) in thread 0, before the access; in a pipeline, leave as many"
        " copies in flight as have begun after the step's own, and no more."
    )


def test_a_copy_that_nobody_waits_for():
    ops = [cp_async(0, 0), cp_async(1, 1), wait(1), build.read(0)]
    (finding,) = check(by_hand(*ops)).findings
    assert finding.kind == "race"
    assert finding.cause == (
        "`ring` ceases to exist while this copy of thread 0 may still write it: no"
        " wait_gmem_to_smem after it covers it."
    )
    assert finding.remedy.startswith("Call wait_gmem_to_smem(0) before its memory is given to")


def test_no_fence_is_needed_between_a_read_and_a_copy():
    ops = [cp_async(0, 0), wait(0), build.read(0), cp_async(1, 0), wait(0), build.read(0)]
    assert check(by_hand(*ops), strict=True).ok


def test_a_copy_outside_of_its_array_is_not_clipped():
    report = check(by_hand(cp_async(64, 0), wait(0), build.read(0)))
    assert {finding.kind for finding in report.findings} == {"out-of-bounds"}


def test_a_block_has_less_memory():
    ops = [cp_async(0, 0), wait(0), build.read(0)]
    report = check(by_hand(*ops, smem_bytes=EARLIER_SMEM_BYTES + 1))
    assert {finding.kind for finding in report.findings} == {"resource"}
    assert check(by_hand(*ops, smem_bytes=EARLIER_SMEM_BYTES)).ok


def test_simulated_times_are_those_of_tma_and_say_so():
    """With the second slot, the second copy begins before the first is read."""
    turns = [cp_async(0, 0), wait(0), build.read(0), cp_async(1, 0), wait(0), build.read(0)]
    overlap = [cp_async(0, 0), cp_async(1, 1), wait(1), build.read(0), wait(0), build.read(1)]
    one, two = (simulate(by_hand(*ops)) for ops in (turns, overlap))
    assert two.cycles < one.cycles and two.lanes[-1] == "cp.async loads"
    assert "cp_async takes the times of loads by TMA on NVIDIA H200: no GPU before Hopper" in str(
        two.notes
    )


def test_figures_of_other_programs_have_no_lane_more():
    ops = [build.load(0, 0), build.wait(build.PRODUCED), build.read(0)]
    assert "cp.async loads" not in simulate(by_hand(*ops)).lanes
