"""Diagrams of the machine: who runs a block, lanes, registers, and the generation after Hopper."""

from pipelib import specs
from pipelib_book.diagrams.figure import sketch
from pipelib_book.diagrams.shapes import (
    COMPUTE,
    LOAD,
    PHONE,
    PLAIN,
    SOLID,
    STORE,
    TINT,
    WGMMA,
    Drawing,
    Part,
    arrow,
    box,
    drawing,
    grid,
    heading,
    line,
    panel,
    text,
    text_after,
    text_before,
)


@sketch(
    1,
    "From the grid to a lane",
    caption="Each block of the grid runs on one multiprocessor, with SMEM of its own and a Pallas"
    " thread. TMA copies tiles (blue) and the tensor core multiplies them (orange), while the lanes"
    " do something else.",
)
def who_runs() -> Drawing:
    """At the top GMEM, with both matrices and the output. Below it a grid of four by four blocks,
    one of which is marked; lines lead from it down to this block, drawn large inside a
    multiprocessor. In the block are SMEM with the tiles, and one Pallas thread: four warps of 32
    lanes each, and registers for values and sums. Beside the block are two units of the
    multiprocessor: TMA, which copies between GMEM and SMEM in both directions; and the tensor core,
    which reads SMEM and adds to the sums in registers. Lanes read and write SMEM by themselves.
    """
    top, cell, block, unit = 58, (25, 22), 184, 333  # the last: the middle of the units
    marked = {(3, 3): (WGMMA, SOLID, "")}
    below = top + 4 * cell[1]
    warps = [mark for i in range(4) for mark in box(30 + 55 * i, block + 118, 51, 22, "warp")]
    return drawing(
        PHONE,
        446,
        box(0, 0, 384, 30, "GMEM: `a`, `b` and the output"),
        heading(0, 46, "grid of blocks"),
        grid(0, top, 4, 4, *cell, marked),
        text_after(116, top + 26, "each block makes one", "tile of the output"),
        panel(0, 166, 384, 280),
        line((3 * cell[0], below), (10, block), pending=True),
        line((4 * cell[0], below), (268, block), pending=True),
        heading(10, 432, "multiprocessor, one of 132"),
        arrow((unit, 30), (unit, block + 14), both=True, bytes_of=LOAD),
        box(10, block, 258, 232, shade=PLAIN),
        heading(22, block + 15, "block"),
        box(22, block + 30, 234, 34, "SMEM: tiles, 227 KiB at most"),
        box(292, block + 14, 82, 50, "TMA,", "copies", kind=LOAD),
        arrow((292, block + 47), (256, block + 47), both=True, bytes_of=LOAD),
        arrow((60, block + 64), (60, block + 86), label="reads, writes", both=True),
        box(22, block + 86, 234, 134, shade=PLAIN),
        text_after(30, block + 102, "Pallas thread: 4 x 32 lanes"),
        tuple(warps),
        box(30, block + 150, 218, 58, "registers:", "values and sums", kind=COMPUTE),
        box(292, block + 110, 82, 50, "tensor core,", "products", kind=WGMMA),
        arrow(
            (232, block + 64),
            (232, block + 76),
            (unit, block + 76),
            (unit, block + 110),
            bytes_of=WGMMA,
        ),
        arrow(
            (unit, block + 160), (unit, block + 184), (248, block + 184), both=True, bytes_of=WGMMA
        ),
    )


@sketch(
    3,
    "Which lane holds which element",
    caption="The first eight rows and columns of a tile in registers, in `Layout.WGMMA`: a number"
    " is a lane, and each has two neighbouring columns. The four lanes of a row add it up in two"
    " exchanges.",
)
def lanes() -> Drawing:
    """At the left a tile of 64 rows in four parts: rows 0 to 15 are in warp 0, 16 to 31 in warp 1,
    32 to 47 in warp 2, 48 to 63 in warp 3. Lines lead from its upper left corner to eight rows and
    eight columns, drawn large: row 0 is in lanes 0 to 3, with columns 0 and 1, 2 and 3, 4 and 5, 6
    and 7; row 1 in lanes 4 to 7, which are marked; and so on to row 7, in lanes 28 to 31. Below
    stands how the four lanes of row 1 add it up.
    """
    x, y, width, height = 200, 50, 46, 20
    held = {
        (row, pair): (COMPUTE, SOLID if row == 1 else TINT, str(4 * row + pair))
        for row in range(8)
        for pair in range(4)
    }
    warps = [
        mark
        for i in range(4)
        for mark in box(
            *(0, y + 40 * i, 124, 40),
            f"warp {i}:",
            f"rows {16 * i} to {16 * i + 15}",
            kind=COMPUTE,
            rounded=False,
        )
    ]
    pairs = [text(x + width * (i + 0.5), y - 12, f"{2 * i}, {2 * i + 1}") for i in range(4)]
    rows = [text_before(x - 8, y + height * (i + 0.5), f"row {i}") for i in range(8)]
    return drawing(
        PHONE,
        300,
        heading(0, 8, "a tile of 64 rows"),
        tuple(warps),
        heading(x, 8, "columns"),
        *pairs,
        *rows,
        grid(x, y, 8, 4, width, height, held),
        text_after(0, y + 180, "Rows 8 to 15, and further columns: the same lanes."),
        heading(0, y + 206, "the sum of row 1"),
        text_after(0, y + 224, "Lanes 4 to 7 add the columns that they have. Then 4 and"),
        text_after(0, y + 240, "5 exchange, and 6 and 7; then 4 and 6, and 5 and 7."),
    )


@sketch(
    7,
    "Registers, moved between threads",
    caption="A block starts with equal shares; `set_max_registers` takes registers from the memory"
    " thread and gives them to the compute threads. Now an accumulator of 128 x 192 fits, which"
    " needs 192 registers in each lane.",
)
def registers() -> Drawing:
    """Two bars of equal length: the registers of one lane of each of three threads, 504 together.
    As the block starts, the memory thread and both compute threads have 168 each. After
    set_max_registers the memory thread has 40 and each compute thread 232. In each of the longer
    parts an accumulator of 192 is drawn, which is longer than 168.
    """
    few, computes, accumulator = 40, 2, 128 * 192 // 128
    equal, more = specs.begin_registers(computes + 1), specs.compute_registers(few, computes)
    scale = PHONE / (3 * equal)
    parts: list[Part] = []
    for i, name in enumerate(("memory", "compute 0", "compute 1")):
        kind = COMPUTE if i else LOAD
        before, after = i * equal * scale, max(0, few + (i - 1) * more) * scale
        parts.append(box(before, 22, equal * scale, 44, name, str(equal), kind=kind))
        parts.append(box(after, 126, (more if i else few) * scale, 70, kind=kind))
        if i:
            words = f"accumulator: {accumulator}"
            parts.append(text(after + more * scale / 2, 142, f"{name}: {more}"))
            parts.append(
                box(after + 6, 160, accumulator * scale, 28, words, kind=WGMMA, shade=SOLID)
            )
            parts.append(line((before, 70), (after, 122)))
    return drawing(
        PHONE,
        222,
        heading(0, 8, "as the block starts"),
        *parts,
        heading(0, 112, "after"),
        text_after(0, 214, f"memory: {few}"),
        text_before(PHONE, 214, f"{few} + {computes} x {more} = 3 x {equal}"),
    )


@sketch(
    19,
    "Hopper and Blackwell",
    caption="Where sums lie, who starts a product, and who hears of its end. Blackwell's sums have"
    " a memory of their own, so a store thread can take one tile away while the next one is summed"
    " up.",
)
def tensor_memory() -> Drawing:
    """Two columns. On Hopper: SMEM, then the tensor core, whose product 128 lanes start together
    with wgmma; the accumulator lies in the registers of the compute thread that started it, which
    waits with wgmma_wait and also stores the tile. On Blackwell: SMEM, then the tensor core, whose
    product one lane starts with tcgen05_mma; two accumulators lie in tensor memory, TMEM; the end
    of a product arrives at a barrier; a store thread loads the sums of a finished tile from TMEM
    into its registers and stores them.
    """
    parts: list[Part] = []
    for x, name in ((0, "Hopper"), (200, "Blackwell")):
        parts += [
            panel(x, 0, 184, 384, name),
            box(x + 12, 30, 160, 32, "SMEM: a, b"),
            arrow((x + 36, 62), (x + 36, 108), bytes_of=WGMMA),
            box(x + 12, 108, 160, 32, "tensor core", kind=WGMMA),
            arrow((x + 36, 140), (x + 36, 186), both=True, bytes_of=WGMMA),
            arrow((x + 36, 286), (x + 36, 332), bytes_of=STORE),
            box(x + 12, 332, 160, 32, "GMEM"),
        ]
    return drawing(
        PHONE,
        384,
        *parts,
        text_after(52, 77, "128 lanes start", "`wgmma`"),
        text_after(252, 77, "one lane starts", "`tcgen05_mma`"),
        text_after(52, 155, "`wgmma_wait`", "sees the end"),
        text_after(252, 155, "the end arrives", "at a barrier"),
        box(12, 186, 160, 100, "registers:", "one accumulator", kind=COMPUTE),
        box(212, 186, 160, 40, "TMEM:", "two accumulators", kind=WGMMA),
        arrow((236, 226), (236, 254), bytes_of=WGMMA),
        text_after(252, 240, "a tile's sums"),
        box(212, 254, 160, 32, "registers", kind=COMPUTE),
        text_after(52, 301, "the same thread", "stores"),
        text_after(252, 301, "a store thread", "stores"),
    )
