"""Diagrams of products: tiles, a wgmma's operands, swizzle, products in flight, and turns."""

from pipelib_book.diagrams.figure import sketch
from pipelib_book.diagrams.shapes import (
    COMPUTE,
    LOAD,
    PHONE,
    SOLID,
    TINT,
    WAIT,
    WGMMA,
    Clock,
    Drawing,
    Part,
    Work,
    arrow,
    drawing,
    grid,
    heading,
    key,
    line,
    text,
    text_after,
    wait,
)


@sketch(
    1,
    "A matrix product in tiles",
    caption="The work of one block is one tile of the output. At each step it loads the next tile"
    " of its strip of `a` and of its strip of `b`, and adds their product to the sums.",
)
def tiles() -> Drawing:
    """Three matrices: a at the lower left, b at the upper right, the output at the lower right. In
    a, one row of eight tiles of 128 x 64 is marked, in b one column of eight tiles of 64 x 128;
    where the two meet, one tile of 128 x 128 of the output. The fourth tile of each strip is
    stressed: the two that step 3 loads. Arrows say that steps go along both strips.
    """
    marks = {k: (LOAD, SOLID, "3") if k == 3 else (LOAD, TINT, "") for k in range(8)}
    return drawing(
        364,
        364,
        grid(12, 202, 4, 8, 18, 36, {(1, k): mark for k, mark in marks.items()}),
        grid(202, 12, 8, 4, 36, 18, {(k, 2): mark for k, mark in marks.items()}),
        grid(202, 202, 4, 4, 36, 36, {(1, 2): (WGMMA, SOLID, "")}),
        arrow((12, 192), (156, 192), label="steps"),
        arrow((192, 12), (192, 156)),
        text(84, 357, "a", bold=True),
        text(356, 84, "b", bold=True),
        text(274, 357, "output", bold=True),
        heading(12, 18, "one block"),
        key(12, 42, "its strips", kind=LOAD, shade=TINT),
        key(12, 66, "loaded at step 3:", "128 x 64 of a,", "64 x 128 of b", kind=LOAD),
        key(12, 122, "its output tile,", "128 x 128", kind=WGMMA),
    )


@sketch(
    6,
    "The operands of wgmma",
    caption="One `wgmma` instruction (strong colours) multiplies 64 rows of `a`, 16 numbers deep,"
    " by at most 256 columns of `b`. The sums lie in registers, 16 rows in each warp.",
)
def operands() -> Drawing:
    """b, at the upper right, is 64 deep in four pieces of 16, and up to 256 columns wide; it lies
    in SMEM. a, at the lower left, has 64 rows and the same depth; it lies in SMEM or in registers.
    At the lower right is the accumulator, 64 rows by up to 256 columns, in registers: rows 0 to 15
    in warp 0, 16 to 31 in warp 1, 32 to 47 in warp 2, 48 to 63 in warp 3. One piece of a and one of
    b are in strong colours: one instruction.
    """
    piece = lambda k, word: (WGMMA, SOLID, word) if k == 1 else (WGMMA, TINT, "")
    rows = [f"warp {i}: rows {16 * i} to {16 * i + 15}" for i in range(4)]
    return drawing(
        PHONE,
        308,
        text(276, 8, "b in SMEM: up to 256 columns"),
        grid(168, 22, 4, 1, 216, 26, {(k, 0): piece(k, "16 deep") for k in range(4)}),
        grid(16, 158, 1, 4, 31, 128, {(0, k): piece(k, "16") for k in range(4)}),
        grid(168, 158, 4, 1, 216, 32, {(i, 0): (COMPUTE, TINT, row) for i, row in enumerate(rows)}),
        heading(0, 30, "one wgmma"),
        text_after(0, 50, "reads a and b,", "adds to registers,", "runs by itself"),
        text(78, 124, "a in SMEM", "or registers"),
        text(78, 301, "64 rows"),
        text(276, 144, "accumulator in registers"),
    )


@sketch(
    6,
    "Swizzle",
    caption="Eight rows of 128 bytes, in chunks of 16, and the places where they lie. Plain, chunk"
    " 2 of all rows is in the same 4 banks; swizzled, chunk c of row r is in place c xor r, and"
    " the eight are in different banks.",
)
def swizzle() -> Drawing:
    """A tile of 128 x 64 numbers of 16 bits is cut into 16 pieces of 8 rows. Two pictures of a
    piece: 8 rows with 8 places of 16 bytes, each place 4 banks. Plain: chunk c is at place c, so
    that chunk 2 of the eight rows is one column. Swizzled: row r has at place p the chunk p xor r,
    so that chunk 2 is at places 2, 3, 0, 1, 6, 7, 4 and 5, each once.
    """
    cell, top = 18, 56
    parts: list[Part] = []
    for x, title, mask in ((76, "plain", 0), (236, "swizzled", 7)):
        chunks = {(row, place): place ^ (row & mask) for row in range(8) for place in range(8)}
        marks = {at: (LOAD, SOLID if c == 2 else TINT, str(c)) for at, c in chunks.items()}
        parts += [grid(x, top, 8, 8, cell, cell, marks), text(x + 72, top - 14, title, bold=True)]
    return drawing(
        PHONE,
        226,
        text_after(0, 8, "a tile of 128 x 64"),
        grid(8, 24, 16, 1, 36, 11, {(4, 0): (LOAD, SOLID, "")}),
        line((44, 68), (76, top), pending=True),
        line((44, 79), (76, top + 8 * cell), pending=True),
        *parts,
        text(148, 218, "4 banks, 8 turns"),
        text(308, 218, "32 banks, 1 turn"),
    )


@sketch(
    6,
    "What may be loaded while a product is in flight",
    caption="Three slots and `wgmma_wait(1)`: when it returns, the newest product still reads its"
    " slot. Only the product before is over, and only its slot is loaded again (broken lines):"
    " `delay_release=1`.",
)
def delay_release() -> Drawing:
    """Rows over time: the thread, the tensor core, and three slots. The products 0 to 3 follow each
    other without a gap. The thread queues product 1 while product 0 runs, and then waits until
    product 0 is over. At that moment slot 0 is loaded again, with step 3, while product 1 still
    reads slot 1. When product 1 is over, step 4 is loaded into slot 1, and so on: each load begins
    when the product that read its slot has ended.
    """
    clock, end, starts = Clock(84, 24.8), 12, (1, 4, 7, 10)
    products = [Work(t, min(t + 3, end), str(k), WGMMA) for k, t in enumerate(starts)]
    thread = [Work(0.4, 1, "", COMPUTE)]
    for t in starts:
        thread += [Work(t, t + 0.6, "", COMPUTE), wait(t + 0.6, min(t + 3, end))]
    rows = [
        [Work(0, 1, "", LOAD, TINT), products[0], *_loaded(4, 3, 8.5), products[3]],
        [Work(0, 4, "", LOAD, TINT), products[1], *_loaded(7, 4, 11.5)],
        [Work(0, 7, "", LOAD, TINT), products[2], Work(10, end, "load 5", LOAD)],
    ]
    over = [line((clock.at(t), 0), (clock.at(t), 150), pending=True) for t in starts[1:]]
    return drawing(
        PHONE,
        206,
        *over,
        clock.lane(0, "thread", thread, 22),
        clock.lane(36, "tensor core", products, 22),
        *(clock.lane(76 + 26 * i, f"slot {i}", row, 22) for i, row in enumerate(rows)),
        clock.axis(164, end + 0.1),
        key(0, 198, "queues a product", kind=COMPUTE),
        key(150, 198, "waits", shade=WAIT),
        key(226, 198, "full", kind=LOAD, shade=TINT),
        key(294, 198, "product", kind=WGMMA),
    )


def _loaded(start: float, step: int, landed: float) -> list[Work]:
    """A load, and the time for which its slot is full then."""
    used = 10 if step == 3 else 12
    return [Work(start, landed, f"load {step}", LOAD), Work(landed, used, "", LOAD, TINT)]


@sketch(
    15,
    "What a step of attention multiplies",
    caption="A step makes the scores of the next block of keys and multiplies the probabilities"
    " of this one with `v`: two products that do not depend on each other. The softmax stands"
    " between a step's scores and the next step's `p`.",
)
def attention_step() -> Drawing:
    """Three rows over time: products with k, softmaxes, and products with v, with the number of the
    block of keys in each box. First scores 0, then softmax 0. Step 0 has scores 1 and, at the same
    height in time, the product of p 0 and v 0, then softmax 1. Step 1 has scores 2 and p 1 times
    v 1, then softmax 2. In the end stands p 2 times v 2. Arrows lead from each scores box to its
    softmax and from there to the product with v.
    """
    clock, high = Clock(84, 41), 22
    scores = [Work(2 * k, 2 * k + 1, str(k), WGMMA) for k in range(3)]
    softmaxes = [Work(2 * k + 1, 2 * k + 2, str(k), COMPUTE) for k in range(3)]
    added = [Work(2 * k + 2, 2 * k + 3, str(k), WGMMA) for k in range(3)]
    parts: list[Part] = []
    for k in range(3):
        parts.append(arrow((clock.at(2 * k + 1), 58), (clock.at(2 * k + 1.4), 72)))
        parts.append(arrow((clock.at(2 * k + 2), 94), (clock.at(2 * k + 2.4), 108)))
    return drawing(
        PHONE,
        206,
        clock.brace(2, 4, 28, "step 0", above=True),
        clock.brace(4, 6, 28, "step 1", above=True),
        clock.lane(36, "q k", scores, high),
        clock.lane(72, "softmax", softmaxes, high),
        clock.lane(108, "p v", added, high),
        clock.axis(150, 7.1),
        key(84, 176, "products, by block of keys", kind=WGMMA),
        key(84, 200, "softmax", kind=COMPUTE),
    )


@sketch(
    15,
    "Two compute threads that take turns",
    caption="Two compute threads whose products take P and softmaxes S, here equally long. In"
    " step, the tensor core rests during both softmaxes; in turns, each softmax lies beside the"
    " other thread's products, and the tensor core never rests.",
)
def ping_pong() -> Drawing:
    """Two timelines with rows for thread 0, thread 1 and the tensor core. In step: the tensor core
    does the products of both threads for two units, then rests for one unit while both compute
    their softmax; a step takes 2P + S, three units. In turns: thread 0 has its products while
    thread 1 computes its softmax, then the other way round; the tensor core does products of thread
    0 and thread 1 alternately without a gap; a step takes the longer of 2P and P + S, two units.
    """
    clock, end = Clock(84, 24.6), 12
    in_step = _alternate(0, 2, end)
    shared = [Work(t, t + 2, "0, 1", WGMMA) for t in range(0, end, 3)]
    in_turn = [Work(t, t + 1, str(t % 2), WGMMA) for t in range(end)]
    return drawing(
        PHONE,
        262,
        heading(0, 8, "in step: 2P + S"),
        clock.lane(22, "thread 0", in_step),
        clock.lane(46, "thread 1", in_step),
        clock.lane(74, "tensor core", shared),
        heading(0, 124, "in turns: max(2P, P + S)"),
        clock.lane(138, "thread 0", _alternate(0, 1, end)),
        clock.lane(162, "thread 1", [wait(0, 1), *_alternate(1, 1, end)]),
        clock.lane(190, "tensor core", in_turn),
        clock.axis(228, end + 0.1),
        key(84, 256, "products, P", kind=WGMMA),
        key(210, 256, "softmax, S", kind=COMPUTE),
    )


def _alternate(start: int, products: int, end: int) -> list[Work]:
    """Products and softmaxes of one thread in turn; a softmax takes one unit."""
    works: list[Work] = []
    for t in range(start, end, products + 1):
        works += [
            Work(t, t + products, "", WGMMA),
            Work(t + products, t + products + 1, "", COMPUTE),
        ]
    return [work for work in works if work.stop <= end]


@sketch(
    16,
    "Which block begins first",
    caption="Causal blocks of three heads on four multiprocessors; a number is a head, a length"
    " its steps. Head by head, the last head's longest block begins late and ends alone; with heads"
    " together, the longest of all begin first.",
)
def block_order() -> Drawing:
    """Two pictures of four multiprocessors, SM 0 to SM 3, over time. Each head has blocks of 6, 4,
    2 and 1 steps. Head by head, each head's blocks are handed out before the next head's: the last
    long block ends when the other three multiprocessors have long been idle. With heads together,
    all blocks of 6 are handed out first, then those of 4, and the short ones fill what is left: the
    four multiprocessors end at nearly one time, and sooner.
    """
    lengths, heads = (6, 4, 2, 1), range(3)
    by_head = [(length, head) for head in heads for length in lengths]
    together = sorted(by_head, key=lambda block: -block[0])
    clock = Clock(62, 22)
    parts: list[Part] = []
    for i, (title, order) in enumerate({"head by head": by_head, "together": together}.items()):
        y = 120 * i
        parts.append(heading(0, y + 8, title))
        for sm, works in enumerate(_handed_out(order, 4)):
            parts.append(clock.lane(y + 22 + 22 * sm, f"SM {sm}", works, 18))
    return drawing(PHONE, 254, *parts, clock.axis(248, 14.2))


def _handed_out(blocks: list[tuple[int, int]], sms: int) -> list[list[Work]]:
    """Blocks, each a length and a head, given in their order to whoever is free first."""
    lanes: list[list[Work]] = [[] for _ in range(sms)]
    for length, head in blocks:
        ends = [lane[-1].stop if lane else 0 for lane in lanes]
        sm = ends.index(min(ends))
        lanes[sm].append(Work(ends[sm], ends[sm] + length, str(head), COMPUTE))
    return lanes
