"""`pipelib_book.floors`: the floors under a kernel's time."""

import pytest

from pallascope import H200

pytest.importorskip("matplotlib.pyplot", reason="matplotlib draws these figures")

from pipelib_book import floors


def test_a_fused_instruction_counts_as_two_operations_and_takes_the_time_of_one():
    fused, added = floors.Work(moved=8, fused=4), floors.Work(moved=8, adds=4)
    assert (fused.intensity, added.intensity) == (1.0, 0.5)
    assert floors.times_us(fused, H200) == floors.times_us(added, H200)


@pytest.mark.parametrize(
    ("work", "unit"),
    [
        (floors.Work(moved=1e9), "to move"),
        (floors.Work(moved=1, adds=1e9), "single numbers"),
        (floors.Work(moved=1, exponentials=1e9), "exponentials"),
        (floors.Work(moved=1, products=1e12), "tensor core"),
    ],
)
def test_the_floor_is_the_longest_time(work, unit):
    times = floors.times_us(work, H200)
    assert max(times, key=times.__getitem__) == unit
    assert floors.floor_us(work, H200) == times[unit]


def test_the_whole_gpu_shares_its_memory():
    width = floors.bandwidths(H200)["GMEM"]
    assert width * H200.sms * H200.clock_hz == pytest.approx(H200.hbm_bytes_per_second)


def test_a_busy_gpu_has_a_lower_peak():
    assert floors.peak(H200.loaded(1.0)) < floors.peak(H200)
