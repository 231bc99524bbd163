"""The boxes of one buffer: which overlap, which are covered, in a time that does not explode."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallascope import check
from pallascope.checking import cells
from pallascope.checking.cells import Cells
from pallascope.program import Buffer, Op, Program, Region
from tests.pallascope.checking.boxes import elements

INTERVALS = st.tuples(st.integers(-2, 9), st.integers(1, 9)).map(lambda x: (x[0], x[0] + x[1]))
BOXES = st.lists(st.tuples(INTERVALS, INTERVALS, st.booleans()), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(boxes=BOXES)
def test_cells_know_what_they_overlap_and_what_covers_them(boxes):
    made, written = Cells(is_given=False), set()
    for *box, is_write in boxes:
        cell = made.at(tuple(box))
        assert made.at(tuple(box)) is cell
        if is_write:
            made.cover(cell)
            written |= elements(box)
    for cell in made:
        mine = elements(cell.box)
        near = {other.box for other in made if elements(other.box) & mine}
        assert {other.box for other in cell.near} == near
        assert len(cell.near) == len(near)
        within = {box for box in near if elements(box) <= mine}
        assert {other.box for other in cell.within} == within
        assert len(cell.within) == len(within)
    for cell in made:
        bare = made.bare(cell)
        assert made.is_covered(cell) == (elements(cell.box) <= written) == (bare is None)
        if bare is not None:
            assert elements(bare) <= elements(cell.box) - written
            given = Cells(is_given=True)
            assert given.bare(given.at(cell.box)) is None


ROWS = [((i, i + 1), (0, 16)) for i in range(3000)]
TILES = [((i, i + 8), (j, j + 8)) for i in range(0, 400, 8) for j in range(0, 400, 8)]
SINGLES = [((i, i + 1),) for i in range(3000)]


@pytest.mark.parametrize("boxes", [ROWS, TILES, SINGLES], ids=["rows", "tiles", "singles"])
@pytest.mark.parametrize("is_whole_first", [False, True])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_many_boxes_are_compared_with_few_others(boxes, is_whole_first, is_sorted, monkeypatch):
    """Not each with each, which would be a thousand times as often; and without recursion."""
    compared, overlap = [0], cells.overlap

    def counting(first, second):
        compared[0] += 1
        return overlap(first, second)

    monkeypatch.setattr(cells, "overlap", counting)
    if not is_sorted:
        boxes = random.Random(0).sample(boxes, len(boxes))
    whole = tuple((0, max(stop for _, stop in axis)) for axis in zip(*boxes))
    made = Cells(is_given=False)
    first = [made.at(whole)] if is_whole_first else []
    for box in boxes[1:]:
        made.cover(made.at(box))
    cell = made.at(whole)
    assert first in ([], [cell])
    assert made.bare(cell) == boxes[0]
    made.cover(made.at(boxes[0]))
    assert made.is_covered(cell)
    assert compared[0] < 16 * len(boxes)


def test_a_buffer_that_is_written_row_by_row():
    """A store of all reads what more writes have made than Python calls nest."""
    number = 2000
    buffers = (
        Buffer(0, "s", "smem", (number, 8), "float16", 16 * number, scope_id=0),
        Buffer(1, "o", "gmem", (number, 8), "float16", 16 * number, role="out"),
    )
    rows = [Op("write", 0, (), (Region(0, ((i, i + 1), (0, 8))),)) for i in range(number)]
    whole = ((0, number), (0, 8))
    store = Op("store", 0, (Region(0, whole),), (Region(1, whole),))
    end = [Op("fence", 0), store, Op("commit_group", 0), Op("wait_store", 0, pending=0)]
    stored = lambda rows: check(Program("rows", ((*rows, *end),), buffers))
    assert stored(rows).ok
    assert [finding.kind for finding in stored(rows[1:])] == ["uninitialized-read"]
