"""Diagrams of barriers: counts, phases, parity, the two proxies, and who tells whom."""

from pipelib_book.diagrams.figure import sketch
from pipelib_book.diagrams.shapes import (
    COMPUTE,
    ISSUE,
    LOAD,
    PHONE,
    PLAIN,
    SOLID,
    WAIT,
    WGMMA,
    Clock,
    Drawing,
    Part,
    Work,
    arrow,
    barrier,
    box,
    drawing,
    heading,
    key,
    line,
    panel,
    text,
    text_after,
    text_before,
    wait,
)


@sketch(
    4,
    "What a barrier counts",
    caption="What a barrier lacks while two copies arrive at it: a copy arrives when it starts,"
    " and announces its bytes. When neither arrivals nor bytes are lacking, the phase is complete:"
    " the bit turns, and the count of arrivals begins anew.",
)
def counts() -> Drawing:
    """A table with five columns: at first, copy x of 32 KiB starts, copy y of 16 KiB starts, x has
    landed, y has landed. Arrivals that are lacking: 2, 1, 0, 0, and 2 again. KiB that are lacking:
    0, 32, 48, 16, 0. Bit: 0, 0, 0, 0, 1.
    """
    states = {
        ("at first",): (2, 0, 0),
        ("x starts:", "32 KiB"): (1, 32, 0),
        ("y starts:", "16 KiB"): (0, 48, 0),
        ("x has", "landed"): (0, 16, 0),
        ("y has", "landed"): (2, 0, 1),
    }
    clock, parts = Clock(64, 64), []
    for i, (event, (arrivals, kib, bit)) in enumerate(states.items()):
        parts += [text(clock.at(i + 0.5), 8, *event)]
        for y, count in ((36, arrivals), (64, kib)):
            parts += [clock.lane(y, "", [Work(i, i + 1, str(count), None, PLAIN)], 28)]
        parts += [clock.lane(92, "", [Work(i, i + 1, str(bit), ISSUE)], 28)]
    names = [
        text_before(56, 50 + 28 * i, name) for i, name in enumerate(("arrivals", "KiB", "bit"))
    ]
    return drawing(PHONE, 120, *parts, *names)


@sketch(
    4,
    "Phases of one barrier",
    caption="The produced barrier of slot 0, in a ring of three; numbers are steps. Each load"
    " completes a phase and turns the bit; a wait knows its phase, and returns when the bit is the"
    " other one.",
)
def phases() -> Drawing:
    """Rows over time. Slot 0: load of step 0, read, load of step 3, read, load of step 6, read,
    load of step 9. Phase: 0 until step 0 has landed, 1 until step 3 has, 2 until step 6 has, 3
    until step 9 has. Bit: 0, 1, 0, 1, the phase modulo 2. Wait: for phase 0 until the bit is 1, for
    phase 1 until it is 0, for phase 2 until it is 1, for phase 3 until it is 0; each wait ends when
    the load has landed, and the read follows.
    """
    clock = Clock(50, 82)
    slot, phase, bits, waits = [], [], [], []
    for p in range(4):
        if p:
            slot.append(Work(p, p + 0.35, str(3 * p - 3), WGMMA))
        slot.append(Work(p + 0.35 * (p > 0), p + 1, str(3 * p), LOAD))
        phase.append(Work(p, p + 1, f"phase {p}", None, PLAIN))
        bits.append(Work(p, p + 1, str(p % 2), ISSUE))
        waits.append(wait(p + 0.35, p + 1, f"until {1 - p % 2}"))
    return drawing(
        PHONE,
        168,
        clock.lane(0, "slot 0", slot, 24),
        clock.lane(34, "", phase, 24),
        clock.lane(58, "bit", bits, 24),
        clock.lane(92, "wait", waits, 24),
        clock.axis(132, 4.06),
        key(50, 161, "load", kind=LOAD),
        key(150, 161, "read", kind=WGMMA),
    )


@sketch(
    4,
    "A waiter that is lapped",
    caption="A thread waits for phase 0. After one phase the bit has turned, and the thread goes"
    " on; after two the bit is what it was, and the thread waits for a turn that has been.",
)
def lapping() -> Drawing:
    """Twice the same row: phase 0 with bit 0, phase 1 with bit 1, phase 2 with bit 0. Above, the
    thread looks during phase 1 and sees 1, not 0: it goes on. Below, it looks during phase 2 and
    sees 0, as in phase 0: it waits.
    """
    clock = Clock(50, 110)
    cells = [Work(p, p + 1, f"phase {p}: bit {p % 2}", ISSUE) for p in range(3)]
    parts: list[Part] = []
    for y, looks, title in ((0, 1.4, "one phase ahead"), (124, 2.25, "two phases ahead: lapped")):
        parts += [
            heading(0, y + 8, title),
            clock.lane(y + 22, "bit", cells, 24),
            arrow((clock.at(looks), y + 74), (clock.at(looks), y + 46)),
        ]
    looks = lambda at: Work(at - 0.12, at + 0.12, "?", ISSUE)
    return drawing(
        PHONE,
        220,
        *parts,
        clock.lane(74, "wait", [looks(1.4)], 22),
        text_after(clock.at(1.6), 85, "1, not 0: goes on"),
        clock.lane(198, "wait", [looks(2.25), wait(2.37, 3)], 22),
        text_before(clock.at(2.05), 209, "0 still: waits for ever"),
    )


@sketch(
    4,
    "Two ways to SMEM",
    caption="Ordinary accesses take one way to SMEM, TMA and the tensor core another."
    " `commit_smem` makes an order from the first to the second, a wait for the copy or product"
    " from the second to the first.",
)
def proxies() -> Drawing:
    """SMEM at the bottom. The 128 lanes of a Pallas thread reach it by the generic proxy, TMA and
    the tensor core by the async proxy. Between the two ways there are two arrows. From the generic
    to the async proxy leads commit_smem: lanes first, then a copy or product. From the async to the
    generic proxy leads a wait, such as barrier_wait, wgmma_wait or wait_smem_to_gmem: a copy or
    product first, then lanes.
    """
    return drawing(
        PHONE,
        270,
        box(0, 0, 140, 44, "128 lanes:", "read and write", kind=COMPUTE),
        box(244, 0, 140, 44, "TMA,", "tensor core", kind=LOAD),
        arrow((40, 44), (40, 234), both=True, bytes_of=COMPUTE),
        arrow((344, 44), (344, 234), both=True, bytes_of=LOAD),
        box(0, 234, 384, 36, "SMEM"),
        text_after(54, 62, "generic proxy"),
        text_before(330, 62, "async proxy"),
        line((54, 102), (136, 102)),
        barrier(136, 90, 112, "`commit_smem`"),
        arrow((248, 102), (330, 102)),
        text(192, 126, "lanes first, then a copy or product"),
        line((330, 178), (248, 178)),
        barrier(136, 166, 112, "a wait"),
        arrow((136, 178), (54, 178)),
        text(192, 202, "a copy or product first, then lanes"),
    )


@sketch(
    7,
    "Two programs, one ring",
    caption="The memory thread fills slots, a compute thread empties them, and each tells the"
    " other at a barrier of the slot. The first loads, one for each slot, wait for nobody.",
)
def two_programs() -> Drawing:
    """On the left the memory thread: it loads step s, then waits at the consumed barrier of the
    next slot, and goes on with step s + 1. On the right a compute thread: it waits at the produced
    barrier, multiplies, releases the slot, and goes on with step s + 1. Between them is slot s mod
    S: bytes flow from the load into the slot and from the slot into the product. When the bytes
    have landed the slot's produced barrier opens for the compute thread. The release arrives at the
    consumed barrier, for which the memory thread waits.
    """
    return drawing(
        PHONE,
        202,
        text(72, 8, "memory thread", bold=True),
        text(312, 8, "compute thread", bold=True),
        box(18, 82, 108, 34, "load step s", kind=LOAD, shade=SOLID),
        box(18, 142, 108, 34, "wait: consumed", shade=WAIT),
        arrow((72, 116), (72, 142)),
        arrow((72, 176), (72, 200), (4, 200), (4, 99), (18, 99)),
        text(38, 189, "s + 1"),
        box(258, 28, 108, 34, "wait: produced", shade=WAIT),
        box(258, 82, 108, 34, "product", kind=WGMMA, shade=SOLID),
        box(258, 142, 108, 34, "release", kind=ISSUE, shade=SOLID),
        arrow((312, 62), (312, 82)),
        arrow((312, 116), (312, 142)),
        arrow((312, 176), (312, 200), (380, 200), (380, 45), (366, 45)),
        text(346, 189, "s + 1"),
        barrier(150, 33, 84, "produced"),
        box(150, 78, 84, 42, "slot", "s mod S", kind=LOAD),
        barrier(150, 147, 84, "consumed"),
        arrow((126, 99), (150, 99), bytes_of=LOAD),
        arrow((234, 99), (258, 99), bytes_of=WGMMA),
        arrow((192, 78), (192, 57)),
        arrow((234, 45), (258, 45)),
        arrow((258, 159), (234, 159)),
        arrow((150, 159), (126, 159)),
    )


@sketch(
    11,
    "The consumed barriers of a cluster",
    caption="A slot that both blocks fill is free when both have read theirs. So each arrival at a"
    " `ClusterBarrier` arrives in both blocks, and each consumed barrier expects the compute"
    " threads of both.",
)
def cluster_barrier() -> Drawing:
    """Two blocks side by side, each with a compute thread above, the consumed barrier of a slot in
    the middle and the memory thread below. From each compute thread arrows lead to the consumed
    barriers of both blocks. From each consumed barrier an arrow leads to the memory thread of its
    own block, which waits there and then loads into the SMEM of both.
    """
    parts: list[Part] = []
    for x, name in ((0, "block 0"), (204, "block 1")):
        parts += [
            panel(x, 0, 180, 244, name),
            box(x + 20, 30, 140, 40, "compute thread:", "arrives", kind=WGMMA),
            barrier(x + 20, 128, 140, "consumed"),
            arrow((x + 90, 152), (x + 90, 190)),
            box(x + 20, 190, 140, 40, "memory thread:", "waits, then loads", kind=LOAD),
        ]
    return drawing(
        PHONE,
        244,
        *parts,
        arrow((90, 70), (90, 128)),
        arrow((294, 70), (294, 128)),
        arrow((110, 70), (274, 128)),
        arrow((274, 70), (110, 128)),
    )
