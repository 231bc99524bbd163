"""Diagrams of the machine: memories and threads, registers, and the generation after Hopper."""

from pipelib import specs
from pipelib_book.diagrams.figure import sketch
from pipelib_book.diagrams.shapes import (
    COMPUTE,
    LOAD,
    PHONE,
    PLAIN,
    SOLID,
    STORE,
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
    caption="Each block of the grid runs on one multiprocessor. It has SMEM of its own and a Pallas"
    " thread: 128 lanes in four warps, with registers.",
)
def who_runs() -> Drawing:
    """At the top GMEM, with both matrices and the output. At the left a grid of four by four
    blocks, one of which is marked; lines lead from it to the right, where this block is drawn
    large, inside a multiprocessor. In the block are SMEM, into which tiles come from GMEM, and one
    Pallas thread. The Pallas thread has four warps of 32 lanes each, lanes 0 to 127, and below
    them the registers, which hold values and sums.
    """
    left, top, size = 146, 74, 25
    marked = {(1, 3): (WGMMA, SOLID, "")}
    parts: list[Part] = [
        box(left + 34, 190 + 28 * i, 170, 24, f"warp {i}: lanes {32 * i} to {32 * i + 31}")
        for i in range(4)
    ]
    return drawing(
        PHONE,
        392,
        box(0, 0, PHONE, 30, "GMEM: `a`, `b` and the output"),
        heading(0, top, "grid of blocks"),
        grid(0, top + 16, 4, 4, size, size, marked),
        text_after(0, top + 134, "a block makes", "one tile of", "the output"),
        panel(left, 48, PHONE - left, 344, "multiprocessor"),
        line((4 * size, top + 16 + size), (left + 10, 76), pending=True),
        line((4 * size, top + 16 + 2 * size), (left + 10, 382), pending=True),
        box(left + 10, 76, 218, 306, shade=PLAIN),
        heading(left + 22, 92, "block"),
        box(left + 22, 108, 194, 34, "SMEM: tiles"),
        arrow((350, 30), (350, 108), bytes_of=LOAD),
        box(left + 22, 152, 194, 220, shade=PLAIN),
        text_after(left + 34, 172, "Pallas thread: 128 lanes"),
        *parts,
        box(left + 34, 312, 170, 48, "registers:", "values and sums", kind=COMPUTE),
    )


@sketch(
    3,
    "The memories and threads of a block",
    caption="A block runs on one multiprocessor. TMA copies tiles between GMEM and SMEM (blue) and"
    " the tensor core multiplies them (orange), while the lanes do something else.",
)
def memories() -> Drawing:
    """From top to bottom: GMEM, then the L2 that all multiprocessors share, then one of 132
    multiprocessors. In it is a block, with SMEM of at most 227 KiB and two Pallas threads. Each
    Pallas thread has four warps of 32 lanes, 128 lanes in all, and registers of its own. Beside the
    block are two units of the multiprocessor: TMA, which copies between L2 and
    SMEM in both directions; and the tensor core, which reads SMEM and adds its sums to registers.
    Lanes read and write SMEM by ordinary accesses.
    """
    unit = 333  # the middle of the units beside the block
    return drawing(
        PHONE,
        438,
        box(0, 0, 384, 30, "GMEM: 141 GB on an H200"),
        arrow((unit, 30), (unit, 62), both=True, bytes_of=LOAD),
        box(0, 62, 384, 30, "L2, shared by all multiprocessors"),
        panel(0, 114, 384, 324, "multiprocessor, one of 132"),
        arrow((unit, 92), (unit, 156), both=True, bytes_of=LOAD),
        box(10, 142, 258, 286, shade=PLAIN),
        heading(22, 157, "block"),
        box(22, 174, 234, 44, "SMEM: 227 KiB at most"),
        box(292, 156, 82, 62, "TMA,", "copies", kind=LOAD),
        arrow((292, 196), (256, 196), both=True, bytes_of=LOAD),
        arrow((60, 218), (60, 250), label="ordinary accesses", both=True),
        _thread(22, 250, "Pallas thread 0: 4 x 32 lanes"),
        _thread(22, 340, "Pallas thread 1: 4 x 32 lanes"),
        box(292, 272, 82, 62, "tensor core,", "products", kind=WGMMA),
        arrow((240, 218), (240, 236), (unit, 236), (unit, 272), bytes_of=WGMMA),
        arrow((292, 310), (248, 310), both=True, bytes_of=WGMMA),
        text(unit, 352, "adds to", "registers"),
    )


def _thread(x: float, y: float, name: str) -> Part:
    """A Pallas thread: four warps, and registers below."""
    warps = [mark for i in range(4) for mark in box(x + 8 + 55 * i, y + 24, 51, 20, "warp")]
    return (
        *box(x, y, 234, 80, shade=PLAIN),
        *text_after(x + 8, y + 13, name),
        *warps,
        *box(x + 8, y + 48, 216, 24, "registers", kind=COMPUTE),
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
