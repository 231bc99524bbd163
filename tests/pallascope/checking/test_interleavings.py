"""Orders of ops that show a fault, of programs that hypothesis writes: `orders` judges each."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pallascope import check
from tests.pallascope import strategies
from tests.pallascope.checking import agreement
from tests.pallascope.checking.orders import judge, shown
from tests.pallascope.constructs import lanes
from tests.pallascope.constructs.reductions import reductions

quick = settings(agreement.quick, max_examples=300)


@quick
@given(strategies.spoiled_rings())
def test_rings_with_one_fault(program):
    judge(program)


@quick
@given(strategies.small_programs())
def test_programs_of_any_shape(program):
    judge(program)


@quick
@given(strategies.warped())
def test_warps_apart_from_each_other(program):
    judge(program)


@quick
@given(strategies.signalled() | strategies.signalled(mixed=True))
def test_threads_that_wait_for_semaphores(program):
    judge(program)


@quick
@given(strategies.early())
def test_accesses_before_the_kernel_before_has_ended(program):
    shown(program, "while the kernel before may")


def test_an_access_whose_registers_are_given_up_after_the_kernel_before_has_ended():
    """No order shows it: what the access needs has that kernel's end."""
    for waits in (True, False):
        writer = strategies.Writer(3)
        x = writer.buffer("x", "gmem", role="in")
        if waits:
            writer.op("grid_wait", 1)
        writer.op("registers", 1, registers=24, action="decrease")
        writer.op("registers", 0, registers=240, action="increase").read(x)
        asked = dict(registers=(240, 24, None), starts_early=True)
        (finding,) = check(replace(writer.program(), **asked))
        assert (finding.interleaving is None) == waits


PLACES = st.sampled_from([0, 0, 0, 1024, None])


@quick
@given(st.lists(PLACES, min_size=2, max_size=4), st.data())
def test_reductions_of_two_threads_in_one_scratch(places, data):
    threads = st.integers(0, len(places) - 1)
    links = data.draw(st.lists(st.tuples(threads, threads), max_size=3))
    shown(reductions(*places, links=links), "reduces an array across its warps")


@quick
@given(st.lists(st.sampled_from(lanes.OPS), max_size=6))
def test_lanes_of_one_thread(ops):
    shown(lanes.one_thread(ops), "the lanes do not meet")


def test_the_programs_have_orders_of_every_kind():
    """Else the tests above would say little."""
    seen = Counter()

    @quick
    @given(st.one_of(strategies.spoiled_rings(), strategies.small_programs()))
    def look(program):
        seen.update(str(f.kind) for f in check(program) if f.interleaving is not None)

    look()
    assert seen.keys() == {"race", "deadlock", "barrier-misuse", "lost-store"}
    assert min(seen[kind] for kind in ("race", "deadlock", "barrier-misuse")) >= 20, seen
