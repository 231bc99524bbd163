"""What the probes measured, by name."""

import pathlib

import pytest

from pipelib_book.measured import probes


def test_a_probe_has_the_median_of_its_launches():
    name = "wgmma 128x128x64 float16, {} left, 1 threads"
    waits, leaves = (probes.cycles(name.format(left)) for left in (0, 1))
    assert 0 < leaves < waits


def test_an_unknown_probe_is_an_error():
    with pytest.raises(ValueError, match="The record of the probes has no 'nothing'"):
        probes.cycles("nothing")


def test_a_package_without_its_record_is_an_error():
    with pytest.raises(FileNotFoundError, match="is in none of /nowhere"):
        probes.cycles("fence", (pathlib.Path("/nowhere"),))


def test_the_clock_of_kernels_is_beside_their_cycles_and_times():
    kernels = {n: f"matmul 128x128x64, 4 slots, delay {n}" for n in "01"}
    lines = [line.strip("| ").split(" | ") for line in probes.clocks_table(kernels).splitlines()]
    assert [line[0] for line in lines[2:]] == ["0", "1", "first over last"]
    cycles, clock, us = map(float, lines[-1][1:])
    assert cycles > us > 1 < clock and us == pytest.approx(cycles / clock, rel=0.05)
