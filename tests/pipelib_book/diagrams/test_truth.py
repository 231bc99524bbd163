"""What the diagrams draw is so: read off their boxes, and held against rules and the package."""

import itertools
from typing import NamedTuple

import jax
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs
from pipelib_book import layouts
from pipelib_book.diagrams import barriers, blocks, limits, machine, rings, tensor_core
from pipelib_book.diagrams.shapes import (
    ACCESS,
    COMPUTE,
    LOAD,
    SOLID,
    STORE,
    TINT,
    WAIT,
    WGMMA,
    Path,
    Rect,
    Words,
)


class Box(NamedTuple):
    """A box of a lane: its word, and where it begins, ends and stands."""

    word: str
    start: float
    stop: float
    y: float


def boxes(sketch, kind, shade=SOLID, above=0, below=1000):
    """The boxes of a kind, from left to right, without those of the legend, which are low."""
    marks = sketch.draw().marks
    words = {id(mark.room): mark.words for mark in marks if isinstance(mark, Words)}
    found = [
        Box(words.get(id(mark), ""), round(mark.x, 2), round(mark.x + mark.width, 2), mark.y)
        for mark in marks
        if isinstance(mark, Rect)
        and (mark.kind, mark.shade) == (kind, shade)
        and mark.height > 12
        and above <= mark.y < below
    ]
    return sorted(found, key=lambda box: box.start)


def by_word(found):
    assert len({box.word for box in found}) == len(found)
    return {int(box.word): box for box in found}


def join(found):
    """Whether boxes follow each other without a gap."""
    return all(
        one.stop == pytest.approx(other.start, abs=0.02) for one, other in itertools.pairwise(found)
    )


def test_a_ring_loads_a_slot_when_its_product_is_over():
    loads, products = by_word(boxes(rings.ring, LOAD)), by_word(boxes(rings.ring, WGMMA))
    assert [*products] == [*range(7)] and {*loads} == {*range(7)}
    assert join([*products.values()])
    for k, product in products.items():
        assert loads[k].y == product.y == products[k % 3].y
        assert loads[k].stop <= product.start
        if k >= 3:
            assert loads[k].start == products[k - 3].stop
    assert len({loads[k].start for k in range(3)}) == 1


def test_the_ring_s_states_are_those_of_step_5():
    text = {mark.words for mark in rings.slots.draw().marks if isinstance(mark, Words)}
    steps = {5, 6, 7, 8}
    assert {f"step {k}" for k in steps} <= text
    sectors = [m for m in rings.slots.draw().marks if isinstance(m, Path)]
    assert [(m.look, m.kind) for m in sectors] == [
        ("q", LOAD),
        ("t", WGMMA),
        ("t", LOAD),
        ("t", LOAD),
    ]


def test_latency_is_hidden_by_as_many_loads_as_the_law_says():
    arriving = boxes(limits.latency, LOAD, below=245, above=225)
    assert len(arriving) == 11 and join(arriving)
    for box in arriving:
        flying = [b for b in _loads(limits.latency) if b.start <= box.start < b.stop]
        assert len(flying) == 4  # three units of latency and one of bytes, a tile in each unit


def _loads(sketch):
    """Of the lower lanes, each load from its start to the end of its bytes."""
    pale = boxes(sketch, LOAD, TINT, above=110, below=225)
    return [box._replace(stop=round(box.stop + 22.4, 2)) for box in pale]


def test_a_product_in_flight_keeps_its_slot():
    core = by_word(boxes(tensor_core.delay_release, WGMMA, below=70))
    loads = boxes(tensor_core.delay_release, LOAD)
    assert [box.word for box in loads] == ["load 3", "load 4", "load 5"]
    reads = by_word(boxes(tensor_core.delay_release, WGMMA, above=70))
    for k, load in enumerate(loads):
        assert load.start == core[k].stop and load.y == reads[k].y
    for k, read in reads.items():
        assert (read.start, read.stop) == (core[k].start, core[k].stop)


def test_an_output_s_slot_is_written_when_its_store_has_read_it():
    writes = by_word(boxes(rings.stores, ACCESS))
    stores = by_word(boxes(rings.stores, STORE))
    assert {*writes} == {*stores} == {0, 1, 2, 3} and join([*stores.values()])
    for k in range(4):
        assert writes[k].stop <= stores[k].start
        if k >= 2:
            assert writes[k].start == stores[k - 2].stop
    assert boxes(rings.stores, None, WAIT)[-1].stop == stores[3].stop


def test_a_phase_ends_when_the_load_has_landed():
    loads = by_word(boxes(barriers.phases, LOAD))
    waits, bits = boxes(barriers.phases, None, WAIT), boxes(barriers.phases, "issue")
    assert [*loads] == [0, 3, 6, 9] and [box.word for box in bits] == [*"0101"]
    for load, bit, wait in zip(loads.values(), bits, waits, strict=True):
        assert load.stop == bit.stop == wait.stop and wait.start < wait.stop
        assert wait.word == f"until {1 - int(bit.word)}"


def test_swizzled_chunks_lie_in_all_banks():
    plain = boxes(tensor_core.swizzle, LOAD, above=50)
    columns = [[box.start for box in plain if box.start < 230], []]
    columns[1] = [box.start for box in plain if box.start >= 230]
    assert [len({*places}) for places in columns] == [1, 8]
    assert [len(places) for places in columns] == [8, 8]


def test_the_strips_are_those_of_planar_snake():
    order = [plgpu.planar_snake(jax.numpy.int32(i), (6, 12), 0, 3) for i in range(12)]
    expected = {(int(i), int(j)) for i, j in order}
    cells = [
        mark
        for mark in blocks.tile_order.draw().marks
        if isinstance(mark, Rect) and mark.kind == WGMMA
    ]
    left, right = (
        {(round((m.y - 50) / 13), round((m.x - x) / 13)) for m in cells if (m.x >= 228) == late}
        for x, late in ((16, False), (228, True))
    )
    assert right == expected and left == {(0, j) for j in range(12)}


def test_persistent_blocks_take_tiles_in_turn():
    for above, below in ((0, 128), (128, 260)):
        tiles = by_word(boxes(blocks.persistent, WGMMA, above=above, below=below))
        assert {*tiles} == {*range(10)}
        assert all(tiles[k].y == tiles[k % 4].y for k in tiles)
    starts = [
        [
            m
            for m in blocks.persistent.draw().marks
            if isinstance(m, Rect) and m.shade == "p" and m.height > 12 and (m.y < 128) == first
        ]
        for first in (True, False)
    ]
    assert [len(found) for found in starts] == [10, 4]


def test_a_chain_s_second_tile_begins_when_the_epilogue_is_over():
    products = boxes(blocks.chain, WGMMA, above=100)
    epilogues, loads = boxes(blocks.chain, STORE, above=100), boxes(blocks.chain, LOAD, above=100)
    assert products[1].start == epilogues[0].stop == pytest.approx(products[0].stop + 2 * 19.8)
    assert join(loads) and loads[1].stop < products[1].start + 4 * 19.8
    apart = boxes(blocks.chain, LOAD, below=90)
    assert apart[1].start == boxes(blocks.chain, STORE, below=90)[0].stop


def test_in_turns_the_tensor_core_never_rests():
    core = boxes(tensor_core.ping_pong, WGMMA, above=185)
    assert join(core) and [box.word for box in core] == ["0", "1"] * 6
    for thread, y in (("0", 138), ("1", 162)):
        mine = boxes(tensor_core.ping_pong, WGMMA, above=y, below=y + 1)
        assert [box[1:3] for box in mine] == [box[1:3] for box in core if box.word == thread]
        softmax = boxes(tensor_core.ping_pong, COMPUTE, above=y, below=y + 1)
        assert all(s.start in {box.stop for box in mine} for s in softmax)
    shared = boxes(tensor_core.ping_pong, WGMMA, above=70, below=80)
    assert not join(shared)


def test_bounds_name_who_never_waits():
    loads = boxes(limits.bounds, LOAD, below=40)
    products = boxes(limits.bounds, WGMMA, above=150, below=160)
    assert join(loads) and len(loads) == 4 and join(products) and len(products) == 4
    for row in (218, 250):
        kind = LOAD if row == 218 else WGMMA
        assert not join(boxes(limits.bounds, kind, above=row, below=row + 1))


def test_each_row_of_points_becomes_a_block_s_steps():
    points = boxes(blocks.two_grids, LOAD, TINT, below=150)
    steps = boxes(blocks.two_grids, LOAD, TINT, above=150)
    rows = [{box.word for box in points if box.y == y} for y in sorted({b.y for b in points})]
    assert rows == [{f"{i}, {k}" for k in range(4)} for i in range(3)]
    for y in {box.y for box in steps}:
        mine = [box for box in steps if box.y == y]
        assert join(mine) and [box.word for box in mine] == [f"step {k}" for k in range(4)]


def test_numbers_of_the_registers_are_the_package_s():
    equal, more = specs.begin_registers(3), specs.compute_registers(40, 2)
    assert (equal, more, 3 * equal) == (168, 232, 40 + 2 * 232)
    for number in (equal, more, 3 * equal, 40, 192):
        assert str(number) in machine.registers.alt
    assert equal < 192 <= more


def test_numbers_of_the_roofline_are_the_data_sheet_s():
    corner = limits.PEAK_TFLOPS / limits.TERABYTES
    product = 2 * 4096**3 / (3 * 2 * 4096**2)
    assert f"{corner:.0f} operations" in limits.roofline.alt
    assert f"{product:,.0f}" in limits.roofline.alt
    assert f"{limits.PEAK_TFLOPS} TFLOP/s" in limits.roofline.caption
    assert f"{limits.TERABYTES} TB/s" in limits.roofline.caption


def test_lanes_are_those_of_the_layout():
    rows, columns = 64, 16
    elements, warps = layouts.held((rows, columns), plgpu.Layout.WGMMA.to_mgpu())
    owner = {int(e): lane for of_op in elements for lane, es in enumerate(of_op) for e in es}
    warp = {int(es.flat[0]) // columns: int(w) for es, w in zip(elements, warps, strict=True)}
    assert {row // 16 for row in warp} == {*range(4)} and all(w == r // 16 for r, w in warp.items())
    drawn = [*boxes(machine.lanes, COMPUTE), *boxes(machine.lanes, COMPUTE, TINT)]
    cells = sorted((box.y, box.start, box.word) for box in drawn if box.word.isdigit())
    pairs = [[owner[columns * row + 2 * pair + i] for i in (0, 1)] for row, pair in ORDER]
    assert [[int(word)] * 2 for _, _, word in cells] == pairs
    # As the drawing says, rows 8 to 15 and the next eight columns are in the same lanes.
    same = [owner[columns * (row + 8) + 8 + 2 * pair] for row, pair in ORDER]
    assert same == [one for one, _ in pairs]


ORDER = [*itertools.product(range(8), range(4))]
