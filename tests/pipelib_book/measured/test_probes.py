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
