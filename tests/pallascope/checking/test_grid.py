"""Blocks of one grid: what two of them do to one place, and what none of them writes."""

import itertools
from dataclasses import replace

import pytest

from pallascope.checking import grid
from pallascope.checking.grid import check_grid
from pallascope.program import Op, Region
from tests.pallascope import build

ROWS = 64


def kernel(*blocks, **fields):
    """The programs of a grid's blocks, from the ops of each."""
    return [
        build.program(ops, grid=(len(blocks),), block=(i,), **fields)
        for i, ops in enumerate(blocks)
    ]


def copies(first, rows, **fields):
    """Stores to rows of the output."""
    return [build.store(0, row, line="k.py:1", **fields) for row in range(first, first + rows)]


def access(kind, buffer, row, rows=1, combines="", **fields):
    """An ordinary access of GMEM, atomic if it combines."""
    region = build.at(buffer, row, rows)
    reads = (region,) if kind == "read" or combines else ()
    writes = (region,) if kind == "write" else ()
    return Op(kind, 0, reads, writes, line="k.py:2", combines=combines, **fields)


def found(programs):
    return [(f.kind, f.where, f.count) for f in check_grid(programs)]


def test_blocks_that_share_nothing_are_clean():
    report = check_grid(kernel(copies(0, 32), copies(32, 32)))
    assert str(report) == "hand-made, between blocks: no finding in all 2 blocks of grid (2,)"


def test_two_blocks_that_write_one_place_race():
    report = check_grid(kernel(copies(0, 33), copies(32, 32)))
    (race,) = report
    assert (race.kind, race.where, race.count) == ("race", "out", 1)
    assert race.cause == (
        "`out` is written by the store of thread 0 of block (1,), and a part of the same place is"
        " written too by the store of thread 0 of block (0,): nothing orders the blocks of one"
        " launch, so either may come first."
    )
    assert race.remedy.startswith("Let each block write a part of its own (the block's index on")
    assert "  --> k.py:1, block (1,), thread 0\n" in str(report)
    assert "  --> k.py:1, block (0,), thread 0\n" in str(report)
    assert report.verdict == "hand-made, between blocks: 1 finding in all 2 blocks of grid (2,)"
    assert "block (1,), thread 0" in report._repr_html_()


def test_the_same_race_of_many_blocks_is_counted():
    assert found(kernel(*[copies(0, 1)] * 5, copies(1, 63))) == [("race", "out", 4)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_read_of_what_another_block_writes_is_a_race(first):
    pair = [copies(0, 64), [access("read", build.OUT, 5)]]
    ((kind, where, _),) = found(kernel(pair[first], pair[1 - first]))
    assert (kind, where) == ("race", "out")


def test_what_one_block_does_alone_is_not_between_blocks():
    assert found(kernel([*copies(0, 64), *copies(0, 64)], [])) == []


def test_additions_of_one_kind_commute():
    add = [access("write", build.OUT, 0, ROWS, combines="add")]
    assert found(kernel(add, add)) == []
    assert found(kernel(*[copies(0, 64, combines="add")] * 2)) == []
    assert {kind for kind, *_ in found(kernel(add, copies(0, 64, combines="add")))} == {"race"}
    assert {kind for kind, *_ in found(kernel(add, copies(0, 64)))} == {"race"}


def test_inputs_and_memory_of_the_block_are_no_race():
    assert found(kernel(*[[build.load(0, 0), build.write(0)]] * 2, copies(0, 64))) == []


def test_a_copy_is_clipped_to_its_array():
    reaching = replace(build.store(0, 0), writes=(build.at(build.OUT, 60, 8),))
    assert found(kernel(copies(0, 60), [reaching])) == []


def test_what_no_block_writes_of_an_output():
    (fault,) = check_grid(kernel(copies(0, 20), copies(24, 40)))
    assert (fault.kind, fault.where) == ("unwritten-output", "out")
    assert str(fault) == (
        "unwritten-output: No block of grid (2,) writes all of the output `out`, at least not"
        " `out[20:24, 0:8]`: the caller gets there what the memory held before. Let the grid, or a"
        " block's loop, also cover that part (pl.cdiv rounds up a number of tiles), or make the"
        " output smaller."
    )


def test_where_blocks_are_missing_nobody_knows_what_is_unwritten():
    programs = kernel(copies(0, 20), copies(20, 20), copies(40, 24))
    report = check_grid(programs[:2])
    assert str(report) == "hand-made, between blocks: no finding in 2 of 3 blocks of grid (3,)"
    assert check_grid(programs).ok
    assert check_grid([replace(program, truncated=(0,)) for program in programs[:1] * 3]).ok is (
        False  # the same rows three times: a race all the same
    )
    cut = [replace(program, truncated=(0,)) for program in kernel(copies(0, 20), copies(20, 20))]
    assert check_grid(cut).ok


def rounded(row):
    op = build.store(0, row, line="k.py:1")
    return replace(op, writes=(replace(op.writes[0], is_exact=False),))


def test_what_is_rounded_up_gives_a_note():
    report = check_grid(kernel(copies(0, 64), [rounded(3)]))
    assert report.ok and report.notes == (
        "k.py:1: two blocks of the grid may access the same part of `out`, one to write it,"
        " 1 time: not judged, since what is accessed is no box, and was rounded up to one.",
    )


def test_opaque_code_with_gmem_may_order_the_blocks():
    code = Op("opaque", 0, (build.at(build.GMEM, 0),), function="lock")
    report = check_grid(kernel([*copies(0, 64), code], copies(3, 2)))
    assert report.ok and report.notes == (
        "k.py:1: two blocks of the grid may access the same part of `out`, one to write it,"
        " 2 times: not judged, since the blocks may wait for each other in a way that is not"
        " followed here.",
    )
    of_smem = replace(code, reads=(build.at(build.SMEM, 0),))
    assert not check_grid(kernel([*copies(0, 64), of_smem], copies(3, 2))).ok


def test_a_kind_by_which_blocks_meet(monkeypatch):
    programs = kernel(copies(0, 64), [*copies(0, 1), build.just("fence")])
    assert not check_grid(programs).ok
    monkeypatch.setattr(grid, "_MEETS", frozenset({"fence"}))
    assert check_grid(programs).ok and len(check_grid(programs).notes) == 1


def test_a_cluster_is_one_program():
    of = dict(grid=(2,), blocks=2, cluster=(2,))
    pair = [
        build.program(copies(32 * i, 32), copies(32 * i, 32), block=(i, 0), **of) for i in range(2)
    ]
    assert str(check_grid(pair)).endswith("no finding in all 2 clusters of grid (2,)")
    race, _ = check_grid([pair[0], replace(pair[0], block=(1, 0))])  # the rest is unwritten
    assert "of cluster (1,)" in race.cause and "of cluster (0,)" in race.cause


def tiled(n, shift=0):
    """A grid of n x n blocks that each store one tile, whose last columns may be the next's."""
    size = 8 * n
    out = replace(build.BUFFERS[build.OUT], shape=(size, size))
    buffers = (*build.BUFFERS[: build.OUT], out, *build.BUFFERS[build.OUT + 1 :])
    for i, j in itertools.product(range(n), range(n)):
        rows, columns = (8 * i, 8 * i + 8), (8 * j, 8 * j + 8 + shift)
        op = replace(build.store(0, 0), writes=(Region(build.OUT, (rows, columns)),))
        yield build.program([op], buffers=buffers, grid=(n, n), block=(i, j))


def test_a_large_grid_compares_boxes_that_are_near_only(monkeypatch):
    compared = []
    collide = grid._collide
    monkeypatch.setattr(grid, "_collide", lambda *pair: compared.append(pair) or collide(*pair))
    assert check_grid(tiled(32)).ok and len(compared) == 0
    report = check_grid(tiled(32, shift=1))
    assert [finding.kind for finding in report] == ["race"]
    assert len(compared) < 4 * 32 * 32


def test_many_blocks_in_one_place_are_compared_with_two_of_them(monkeypatch):
    compared = []
    collide = grid._collide
    monkeypatch.setattr(grid, "_collide", lambda *pair: compared.append(pair) or collide(*pair))
    assert found(kernel(*[copies(0, 64)] * 40)) == [("race", "out", 39 * 64)]
    assert len(compared) == 39 * 64
