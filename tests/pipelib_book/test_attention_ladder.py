"""The rungs of `attention`'s ladder: checked, and what their simulated timelines show."""

import itertools

import pytest

import pallascope
from pallascope.machine import H200
from pipelib.kernels import attention
from pipelib.kernels.attention import attention_kernel
from pipelib_book.attention_ladder import RUNGS
from tests.kernels.attention.cases import operands

STEPS = 8


def program(rung):
    """Of a block that goes through so many steps."""
    config = rung.config
    arrays = operands(config.block_q, STEPS * config.block_kv, head_dim=rung.head_dim)
    return pallascope.trace(lambda *args: attention_kernel(*args, config=config), *arrays)


def simulated(rung):
    """Simulated; all blocks of a head load the same keys, so that L2 has them."""
    return pallascope.simulate(program(rung), H200, l2_hits=1.0)


def products(timeline):
    """(thread, start, stop) of each in the tensor core."""
    lane = timeline.lanes.index("tensor core")
    return [(x.thread, x.start, x.stop) for x in timeline.spans if x.lane == lane]


def turns(timeline):
    """Threads whose products follow each other, with the times in which they do."""
    found = []
    for thread, group in itertools.groupby(products(timeline), lambda x: x[0]):
        group = list(group)
        found.append((thread, group[0][1], group[-1][2], len(group)))
    return found


def softmaxes(timeline):
    """(thread, start, stop) of arithmetic."""
    return [(x.thread, x.start, x.stop) for x in timeline.spans if x.kind == "compute"]


def beside(timeline, is_own):
    """The part of all arithmetic that has products of its own thread beside it, or of others."""
    common = total = 0.0
    for thread, start, stop in softmaxes(timeline):
        total += stop - start
        for other, first, last in products(timeline):
            if (other == thread) == is_own:
                common += max(0.0, min(stop, last) - max(start, first))
    return common / total


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_rungs(rung):
    """Numbered, with one sentence each, and nothing to find."""
    assert RUNGS[rung.number] is rung
    assert rung.idea.endswith(".") and rung.idea.count(".") == 1
    rung.config.check(rung.head_dim)
    assert list(pallascope.check(program(rung), strict=True)) == []


def test_the_ladder():
    schedules = [rung.config.schedule for rung in RUNGS]
    assert schedules == ["plain", "overlap", "pingpong", "both", "pingpong", "optimistic"]
    assert not any(rung.config.is_persistent(rung.head_dim) for rung in RUNGS)
    assert [rung.config.compute_threads for rung in RUNGS] == [2, 2, 2, 2, 3, 2]


@pytest.mark.parametrize("number", [2, 3, 4])
def test_threads_take_turns(number):
    """In the tensor core: each with the product of a step and the scores of the next.

    While one does, another has its softmax.
    """
    timeline = simulated(RUNGS[number])
    spans = products(timeline)
    for (_, _, stop), (_, start, _) in itertools.pairwise(spans):
        assert start >= stop
    threads = RUNGS[number].config.compute_threads
    found = turns(timeline)[threads:-threads]  # but for the first scores and the last products
    assert [thread for thread, *_ in found] == [i % threads for i in range(len(found))]
    assert len(found) == (STEPS - 1) * threads and {count for *_, count in found} == {2}
    assert beside(timeline, is_own=False) > {2: 0.5, 3: 0.25, 4: 0.35}[number]


def test_what_overlaps():
    """With no overlap only what threads that nothing orders happen to do at the same time."""
    own = [beside(simulated(rung), is_own=True) for rung in RUNGS]
    assert own[0] == own[2] == own[4] == 0.0 and min(own[1], own[3]) > 0.2


@pytest.mark.compiler
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_ptxas_waits_for_no_product(rung, causal):
    """Where it cannot keep products in flight it says that they are serialized."""
    call = lambda *arrays: attention(*arrays, causal=causal, config=rung.config)
    assert pallascope.compiled(call, *operands(512, 512, head_dim=rung.head_dim)).serialized == ()
