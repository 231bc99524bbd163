"""Diagrams of rings: slots in memory and over time, a slot's life, outputs, and carries."""

from pipelib_book.diagrams.figure import sketch
from pipelib_book.diagrams.shapes import (
    ACCESS,
    COMPUTE,
    LOAD,
    PENDING,
    PHONE,
    PLAIN,
    SOLID,
    STORE,
    TINT,
    WAIT,
    WGMMA,
    Clock,
    Drawing,
    Part,
    Work,
    arrow,
    barrier,
    box,
    brace,
    drawing,
    key,
    line,
    panel,
    sector,
    text,
    text_after,
    text_before,
    wait,
)


@sketch(
    3,
    "A ring of three slots over time",
    caption="Seven steps in three slots; numbers are steps. The prologue loads all slots, each"
    " product of the steady state makes room for the step that is three later, and the drain has"
    " nothing left to load.",
)
def ring() -> Drawing:
    """Three rows, one for each slot, over time. In the prologue all three slots are loaded, with
    steps 0, 1 and 2. In the steady state the products of steps 0 to 3 follow each other without a
    gap, each in the next slot; as soon as a product is over its slot is loaded again, with steps 3,
    4, 5 and 6. Each of these loads is over before its product is due. In the drain the products of
    steps 4, 5 and 6 run, and nothing more is loaded.
    """
    clock, slots, steps, first = Clock(46, 19.6), 3, 7, 3
    rows: list[list[Work]] = [[] for _ in range(slots)]
    for k in range(steps):
        product, is_first = first + 2 * k, k < slots
        load = 0 if is_first else first + 2 * (k - slots) + 2
        landed = load + 3 + (0.7 * k if is_first else 0)
        row = rows[k % slots]
        row.append(Work(load, landed, str(k), LOAD))
        if landed < product:
            row.append(Work(landed, product, "", LOAD, TINT))
        row.append(Work(product, product + 2, str(k), WGMMA))
    return drawing(
        PHONE,
        166,
        *(clock.lane(26 * i, f"slot {i}", row, 22) for i, row in enumerate(rows)),
        clock.brace(0, 2.9, 82, "prologue"),
        clock.brace(3.1, 10.9, 82, "steady state"),
        clock.brace(11.1, 17, 82, "drain"),
        clock.axis(126, 17.2),
        key(46, 158, "load", kind=LOAD),
        key(146, 158, "full", kind=LOAD, shade=TINT),
        key(246, 158, "product", kind=WGMMA),
    )


@sketch(
    3,
    "A ring of four slots in memory, at step 5",
    caption="The memory of a ring while step 5 runs. One slot is being read, the next ones are"
    " ready, and the one that step 4 has left is being filled for step 8.",
)
def slots() -> Drawing:
    """A ring of four sectors, slots 0 to 3 clockwise. Slot 1 has step 5 and is being read. Slot 2
    has step 6 and slot 3 step 7, both full. Slot 0 is being filled with step 8. Beside the ring:
    the slot is the step modulo 4, the phase is the step divided by 4.
    """
    states = (8, LOAD, PENDING), (5, WGMMA, TINT), (6, LOAD, TINT), (7, LOAD, TINT)
    sectors = [
        sector(
            (112, 112),
            (48, 110),
            (90 * i + 1, 90 * i + 89),
            f"slot {i}",
            f"step {step}",
            kind=kind,
            shade=shade,
        )
        for i, (step, kind, shade) in enumerate(states)
    ]
    return drawing(
        PHONE,
        224,
        *sectors,
        text(112, 104, "now:", "step 5"),
        text_after(248, 40, "slot = step mod 4"),
        text_after(248, 62, "phase = step div 4"),
        key(248, 134, "being read", kind=WGMMA, shade=TINT),
        key(248, 158, "full", kind=LOAD, shade=TINT),
        key(248, 182, "being filled", kind=LOAD, shade=PENDING),
    )


@sketch(
    7,
    "A slot's life",
    caption="The four states of a slot, once around for each step that uses it. What one thread"
    " has done, a barrier tells the other; its bit, 0 in the first round, turns in each.",
)
def slot_life() -> Drawing:
    """Four states in a circle. Free: the memory thread starts the copies, and the slot is being
    filled. When the bytes have landed, the produced barrier completes its phase and the slot is
    full. A compute thread, which waited for that, reads it: the slot is being read. When each
    compute thread has arrived, the consumed barrier completes its phase and the slot is free again.
    Beside its name each barrier has its bit, 0.
    """
    wide, high, right, low = 108, 44, 276, 146
    return drawing(
        PHONE,
        low + high,
        box(0, 0, wide, high, "free", shade=PLAIN),
        box(right, 0, wide, high, "being filled", kind=LOAD, shade=PENDING),
        box(right, low, wide, high, "full", kind=LOAD),
        box(0, low, wide, high, "being read", kind=WGMMA),
        arrow((wide, 22), (right, 22), label="memory thread"),
        text(192, 36, "starts the copies"),
        line((330, high), (330, 83)),
        barrier(277, 83, 106, "produced", 0),
        arrow((330, 107), (330, low)),
        text_before(270, 87, "bytes", "land"),
        arrow((right, 168), (wide, 168), label="compute thread"),
        text(192, 182, "waits, then reads"),
        line((54, low), (54, 107)),
        barrier(1, 83, 106, "consumed", 0),
        arrow((54, 83), (54, high)),
        text_after(114, 87, "readers", "arrive"),
    )


@sketch(
    5,
    "A ring of outputs",
    caption="Two slots of an output; numbers are steps. Before the thread writes a slot again, all"
    " stores but the newest must have read theirs: `wait_smem_to_gmem(1, wait_read_only=True)`.",
)
def stores() -> Drawing:
    """Three rows over time: the thread, slot 0 and slot 1. The thread writes step 0 into slot 0;
    its store then reads slot 0 while the thread writes step 1 into slot 1. Before it writes step 2
    into slot 0 the thread waits until store 0 has read that slot, and before step 3 it waits for
    store 1. Stores follow each other without a gap. After its last write the thread waits for the
    last two stores: the drain.
    """
    clock = Clock(58, 22.5)
    thread: list[Work] = []
    rows: list[list[Work]] = [[], []]
    free = [0, 0]
    now = stored = 0
    for k in range(4):
        row, slot = rows[k % 2], k % 2
        if free[slot] > now:
            thread.append(wait(now, free[slot]))
        begin = max(now, free[slot])
        now, start = begin + 2, max(stored, begin + 2)
        stored = free[slot] = start + 3
        thread.append(Work(begin, now, str(k), ACCESS))
        row += [Work(begin, start, "", ACCESS, TINT), Work(start, stored, str(k), STORE)]
    thread.append(wait(now, stored, "drain"))
    return drawing(
        PHONE,
        158,
        clock.lane(0, "thread", thread, 22),
        *(clock.lane(36 + 26 * i, f"slot {i}", row, 22) for i, row in enumerate(rows)),
        clock.axis(102, 14.2),
        key(58, 130, "writes", kind=ACCESS),
        key(58, 152, "waits", shade=WAIT),
        key(188, 130, "filled", kind=ACCESS, shade=TINT),
        key(188, 152, "store reads", kind=STORE),
    )


@sketch(
    9,
    "A carry from step to step",
    caption="A tile comes from the ring at each step; the carry goes on in registers, where no"
    " barrier and no fence concerns it. `compute_context` has room before the first step and after"
    " the last.",
)
def carries() -> Drawing:
    """In a row, within the registers of one compute thread: the first carry, step 0, a carry, step
    1, a carry, step 2, and the last carry, with arrows from each to the next; a carry is m and l.
    Below, slots of SMEM give each step its tile: slot 0, slot 1 and slot 0 again. A brace over the
    three steps is called pipeline(carry), and one over all compute_context.
    """
    y, middle = 98, 114
    parts: list[Part] = []
    for i in range(4):
        x = 8 + 110 * i
        parts.append(box(x, y, 38, 32, "m, l", kind=COMPUTE))
        if i < 3:
            parts += [
                arrow((x + 38, middle), (x + 50, middle)),
                box(x + 50, y, 48, 32, f"step {i}", kind=COMPUTE, shade=SOLID),
                arrow((x + 98, middle), (x + 110, middle)),
                box(x + 50, 172, 48, 32, f"slot {i % 2}", kind=LOAD),
                arrow((x + 74, 172), (x + 74, y + 32), bytes_of=LOAD),
            ]
    return drawing(
        PHONE,
        226,
        panel(0, 74, 384, 64),
        *parts,
        brace(8, 376, 30, "`compute_context`", above=True),
        brace(58, 326, 70, "`pipeline(carry)`", above=True),
        text_after(8, 86, "registers of one thread"),
        text(192, 219, "SMEM"),
    )
