"""Diagrams of many tiles and blocks: waves, the order of tiles, chains, and multicast."""

import functools

import jax
import jax.numpy as jnp

import pallascope
from pallascope.spans import SpanKind
from pipelib.kernels import MatmulConfig, matmul
from pipelib_book.diagrams.figure import sketch
from pipelib_book.diagrams.shapes import (
    LOAD,
    PHONE,
    PLAIN,
    SOLID,
    STORE,
    WGMMA,
    Clock,
    Drawing,
    Part,
    Work,
    arrow,
    box,
    drawing,
    grid,
    heading,
    key,
    panel,
    text,
    text_before,
    wait,
)


@sketch(
    10,
    "A block for each tile, and persistent blocks",
    caption="Ten tiles of 256 x 128 with K = 1,024 on four multiprocessors, with simulated lengths:"
    " persistent blocks start once and go through their tiles in a loop. The tail stays: half of"
    " the multiprocessors have no third tile.",
)
def persistent() -> Drawing:
    """Two timelines with a row for each of four multiprocessors. Above, a block for each tile:
    tiles 0 to 3, then 4 to 7, then 8 and 9, each with a start of a block and a filling of its ring
    before it, and an epilogue behind it; in the third wave the multiprocessors 2 and 3 are idle.
    Below, one persistent block on each: block 0 makes tiles 0, 4 and 8, block 1 tiles 1, 5 and 9,
    block 2 tiles 2 and 6, block 3 tiles 3 and 7. Each block starts once, but fills its ring for
    each tile; the third wave is half empty as well.
    """
    clock = Clock(48, 102)
    parts: list[Part] = []
    for y, title, anew in ((0, "a block for each tile", True), (128, "persistent blocks", False)):
        rows = [_tiles_of(sm, anew) for sm in range(4)]
        last = rows[0][-1].stop
        parts.append(heading(0, y + 8, title))
        for sm, row in enumerate(rows):
            idle = [wait(row[-1].stop, last, "idle")] if row[-1].stop < last else []
            parts.append(clock.lane(y + 22 + 22 * sm, f"SM {sm}", row + idle, 18))
    return drawing(
        PHONE,
        286,
        *parts,
        clock.axis(252, 3.29),
        key(8, 280, "block starts", shade=PLAIN),
        key(114, 280, "ring fills", kind=LOAD),
        key(208, 280, "products", kind=WGMMA),
        key(298, 280, "epilogue", kind=STORE),
    )


@functools.cache
def _lengths() -> tuple[float, float, float, float]:
    """A block's start, its first loads, its products and its epilogue, in parts of their sum."""
    a, b = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((256, 1024), (1024, 128)))
    config = MatmulConfig(
        form="specialized", tile_m=256, tile_n=128, tile_k=64, slots=4, compute_threads=2
    )
    program = pallascope.trace(functools.partial(matmul, config=config), a, b)
    timeline = pallascope.simulate(program, pallascope.H200)
    products = [span for span in timeline.spans if span.kind is SpanKind.WGMMA]
    first, last = min(s.start for s in products), max(s.stop for s in products)
    starts = pallascope.H200.block_start_cycles
    whole = starts + timeline.cycles
    return starts / whole, first / whole, (last - first) / whole, (timeline.cycles - last) / whole


def _tiles_of(sm: int, starts_anew: bool) -> list[Work]:
    """What a multiprocessor does: every fourth tile of ten."""
    works, now = [], 0.0
    for tile in range(sm, 10, 4):
        for length, word, kind, shade in zip(
            _lengths(), ("", "", str(tile), ""), (None, LOAD, WGMMA, STORE), (PLAIN, *[SOLID] * 3)
        ):
            if kind is not None or starts_anew or not works:
                works.append(Work(now, now + length, word, kind, shade))
                now += length
    return works


@sketch(
    10,
    "The order of tiles",
    caption="Twelve tiles that are made at one time (orange), and the rows of `a` and the columns"
    " of `b` that they load (blue). Thirteen lines in one order, seven in the other: what tiles"
    " share is in the L2.",
)
def tile_order() -> Drawing:
    """Two grids of 6 x 12 tiles of the output. Row by row: the twelve tiles of the first row are
    marked; they need one row of a and twelve columns of b. In strips three tiles high: three rows
    of four columns are marked; they need three rows of a and four columns of b. Arrows show that
    the next tiles lie in the next row, or further along the strip and then back in the next strip.
    """
    cell, y = 13, 50
    parts: list[Part] = []
    for x, title, high in ((16, "row by row", 1), (228, "in strips of 3", 3)):
        wide = 12 // high
        wave = {(i, j): (WGMMA, SOLID, "") for i in range(high) for j in range(wide)}
        parts += [
            heading(x, 8, title),
            grid(x, y - 16, 1, 12, cell, 10, {(0, j): (LOAD, SOLID, "") for j in range(wide)}),
            grid(x - 16, y, 6, 1, 10, cell, {(i, 0): (LOAD, SOLID, "") for i in range(high)}),
            grid(x, y, 6, 12, cell, cell, wave),
            text(x + 78, 146, f"{high} of a + {wide} of b"),
        ]
    return drawing(
        PHONE,
        152,
        *parts,
        arrow((26, y + 1.5 * cell), (162, y + 1.5 * cell)),
        arrow((290, y + 1.5 * cell), (374, y + 1.5 * cell)),
        arrow((374, y + 4.5 * cell), (238, y + 4.5 * cell)),
    )


@sketch(
    10,
    "A pipeline that goes on from tile to tile",
    caption="Two tiles of one block. In a chain the ring goes on: the loads of the next tile lie"
    " under the epilogue of this one, and its products begin right after.",
)
def chain() -> Drawing:
    """Two timelines with rows for loads and for the compute threads. A pipeline for each tile:
    loads of tile 0, its products, its epilogue; only then the loads of tile 1 begin, and its
    products wait for them. A chain: the loads of tile 1 follow those of tile 0 and run while the
    products and the epilogue of tile 0 do; the products of tile 1 begin when the epilogue of tile 0
    is over.
    """
    clock, first, tile = Clock(68, 19.8), 1.6, 6.0
    parts: list[Part] = []
    cases = (
        (0, "a pipeline for each tile", tile + first, tile + 2 * first),
        (96, "a chain", 4, tile + first),
    )
    for y, title, loads, products in cases:
        lane, compute = [Work(0, 4, "tile 0", LOAD), Work(loads, loads + 4, "tile 1", LOAD)], []
        for number, begin in enumerate((first, products)):
            end = compute[-1].stop if compute else 0
            compute += [wait(end, begin)] if end < begin else []
            compute += [
                Work(begin, begin + 4, f"tile {number}", WGMMA),
                Work(begin + 4, begin + tile, "", STORE),
            ]
        parts += [heading(0, y + 8, title), clock.lane(y + 22, "loads", lane)]
        parts += [clock.lane(y + 46, "compute", compute)]
    return drawing(
        PHONE,
        238,
        *parts,
        clock.brace(2 * tile + first, 2 * (tile + first), 168, "saved"),
        clock.axis(206, 15.8),
        key(68, 232, "loads", kind=LOAD),
        key(158, 232, "products", kind=WGMMA),
        key(268, 232, "epilogue", kind=STORE),
    )


@sketch(
    11,
    "Multicast",
    caption="Both blocks of a cluster need the same tile of `b`: block 0 asks the L2 for half 0,"
    " block 1 for half 1 (broken lines), and each half lands in the SMEM of both. The L2 is asked"
    " for less; each block receives as much as without.",
)
def multicast() -> Drawing:
    """Above, the L2. Below, block 0 and block 1, each with a tile of a and a tile of b in two
    halves in its SMEM. Block 0 loads its own a and half 0 of b; half 0 goes to both blocks. Block 1
    loads its own a and half 1 of b, which goes to both blocks as well. Asked of the L2 by each
    block: 32 + 8 KiB. Received by each block: 32 + 16 KiB.
    """
    parts: list[Part] = []
    for block, x, a, b in ((0, 0, 10, 78), (1, 200, 110, 10)):
        parts += [
            panel(x, 104, 184, 118),
            text(x + 92, 208, f"SMEM of block {block}"),
            box(x + a, 120, 64, 72, f"a{block}", kind=LOAD),
            box(x + b, 120, 48, 72, "half 0", "of b", kind=LOAD),
            box(x + b + 48, 120, 48, 72, "half 1", "of b", kind=LOAD),
        ]
    half = [
        arrow((102, 30), (102, 120), bytes_of=LOAD),
        arrow((102, 56), (234, 56), (234, 120), bytes_of=LOAD),
        arrow((282, 30), (282, 120), pending=True, bytes_of=LOAD),
        arrow((282, 84), (150, 84), (150, 120), pending=True, bytes_of=LOAD),
    ]
    return drawing(
        PHONE,
        272,
        box(0, 0, 384, 30, "L2"),
        *parts,
        *half,
        arrow((42, 30), (42, 120), bytes_of=LOAD),
        arrow((342, 30), (342, 120), bytes_of=LOAD),
        text(192, 246, "each block asks the L2 for 32 + 8 KiB,", "and receives 32 + 16 KiB"),
    )


@sketch(
    18,
    "One grid becomes two",
    caption="The points of a `pallas_call` with one parallel and one sequential axis, and where"
    " they go: each row becomes a block, and the points of a row become the steps of its pipeline.",
)
def two_grids() -> Drawing:
    """Above, the grid of a pallas_call: three rows, i from 0 to 2, and four columns, k from 0 to 3.
    The axis i is parallel, the axis k sequential. All points of row i add to output tile i. Below,
    three blocks, 0 to 2. Each has a pipeline of four steps, 0 to 3, and stores its output tile
    once, after step 3.
    """
    parts: list[Part] = []
    for y, row, points in ((44, "i = {}", "{}, {}"), (206, "block {}", "step {1}")):
        for i in range(3):
            top = y + 34 * i
            cells = [
                mark
                for k in range(4)
                for mark in box(
                    64 + 60 * k,
                    top,
                    54 if "," in points else 60,
                    24,
                    points.format(i, k),
                    kind=LOAD,
                    rounded=False,
                )
            ]
            parts += [
                text_before(56, top + 12, row.format(i)),
                tuple(cells),
                arrow((306, top + 12), (326, top + 12), bytes_of=STORE),
                box(328, top, 56, 24, f"tile {i}", kind=STORE),
            ]
    return drawing(
        PHONE,
        304,
        heading(0, 8, "`pallas_call`: one grid of points (i, k)"),
        text(181, 32, "k is sequential, i is parallel"),
        *parts,
        arrow((181, 142), (181, 162)),
        heading(0, 176, "`plgpu.kernel`, `emit_pipeline`: two grids"),
        text(181, 194, "each block has its own pipeline"),
    )
