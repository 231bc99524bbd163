"""Rungs that a chapter writes out: they do what the measured ones do, or a climb says where not."""

import functools

import pytest

from pipelib import kernels
from pipelib_book import climbs
from pipelib_book.matmul_ladder import RUNGS
from pipelib_book.measured import ladder


def rung(number):
    return functools.partial(kernels.matmul, config=RUNGS[number].config)


# Another number of threads, also in a cluster; another operation, or another number of them.
@pytest.mark.parametrize(
    ("mine", "other", "says"),
    [
        (0, 3, "There are 1 threads, and 2"),
        (2, 3, "There are 1 threads"),
        (4, 3, "There are 3 threads"),
        (6, 7, "There are 3 threads, and 6 in the other kernel."),
        (0, 1, "Thread "),
        (1, 2, "Thread "),
        (5, 6, "Thread "),
    ],
)
def test_another_kernel_is_told_apart(mine, other, says):
    """That a climb takes the rungs themselves is held by the chapter."""
    assert climbs.difference(rung(mine), rung(other)).startswith(says)


def test_what_was_not_measured_is_refused():
    with pytest.raises(ValueError, match=r"rung 1 is not the kernel that was measured\. Thread 0 "):
        climbs.climb(1, {0: rung(0), 1: rung(2)}, [])


def test_a_predicted_rate_stands_beside_the_measured_one():
    problem = dict(m=4096, n=4096, k=4096, dtype="bfloat16")
    measured = {"rung 3": dict(burst_microseconds=[200.0, 200.0])}
    group = ladder.Group(problem, measured, {})
    head, _, *rows = climbs.predicted_table({3: rung(3), 4: rung(4)}, [group]).splitlines()
    three, four = (line.strip("| ").split(" | ") for line in rows)
    assert head == "| rung | 4096x4096x4096, TFLOP/s | of measured |"
    assert three[0] == "3" and three[2] == f"{int(three[1]) / 687.2:.0%}"
    assert four[::2] == ["4", "-"] and int(four[1]) > 687
