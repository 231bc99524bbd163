"""Diagrams of what takes a kernel's time: overlap, the roofline, latency, and what bounds it."""

import math

from pipelib_book.diagrams.figure import sketch
from pipelib_book.diagrams.shapes import (
    COMPUTE,
    LOAD,
    PHONE,
    STORE,
    TINT,
    WGMMA,
    Clock,
    Drawing,
    Part,
    Work,
    arrow,
    dot,
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

# NVIDIA's data sheet of the H200 SXM: dense products of 16 bits, and the memory's bandwidth.
PEAK_TFLOPS, TERABYTES = 989, 4.8


@sketch(
    1,
    "The same four steps without and with overlap",
    caption="Four steps, a number each. With two slots, the load of a step runs beside the product"
    " of the step before; no box is shorter, but the whole is.",
)
def overlap() -> Drawing:
    """Two timelines of four steps, each step a load and a product of equal length. With one slot
    they alternate: load 0, product 0, load 1, product 1, and so on, eight units in all, and each of
    the two rows is empty half of the time. With two slots load 1 runs beside product 0, load 2
    beside product 1, and load 3 beside product 2: five units in all, three saved.
    """
    clock, steps = Clock(70, 38), range(4)
    apart = [Work(2 * k, 2 * k + 1, str(k), LOAD) for k in steps]
    after = [Work(2 * k + 1, 2 * k + 2, str(k), WGMMA) for k in steps]
    ahead = [Work(k, k + 1, str(k), LOAD) for k in steps]
    beside = [Work(k + 1, k + 2, str(k), WGMMA) for k in steps]
    return drawing(
        PHONE,
        206,
        heading(0, 8, "one slot"),
        clock.lane(22, "loads", apart),
        clock.lane(46, "products", after),
        heading(0, 96, "two slots"),
        clock.lane(110, "loads", ahead),
        clock.lane(134, "products", beside),
        clock.brace(5, 8, 158, "time saved"),
        clock.axis(200, 8.2),
    )


@sketch(
    2,
    "A roofline of an H200",
    caption="No kernel is above the roof: on the slope bytes are the bound, on the level"
    " operations. The rates are those of NVIDIA's data sheet for the H200, 4.8 TB/s and 989"
    " TFLOP/s for dense products of 16 bits.",
)
def roofline() -> Drawing:
    """A graph with two logarithmic axes: TFLOP/s over operations for each byte of GMEM. A slope of
    4.8 TB/s rises to the right until 206 operations for each byte; from there on a level runs at
    989 TFLOP/s. The part left of the corner is called memory-bound, the other compute-bound. On the
    slope, at a quarter of an operation for each byte, is x + 1 in 16 bits. On the level, at 1,365,
    is a product of 4096 x 4096 matrices. A kernel below the roof has an arrow up to it, called to
    win: what a better schedule can gain.
    """
    corner = PEAK_TFLOPS / TERABYTES
    x = lambda intensity: 48 + 62 * (math.log10(intensity) + 1)
    y = lambda tflops: 206 - 52 * math.log10(tflops)
    roof = lambda intensity: y(intensity * TERABYTES)
    left, right, top, bottom = x(0.1), x(10**4), y(PEAK_TFLOPS), y(0.3)
    ticks: list[Part] = []
    for tflops in (1, 10, 100, 1000):
        ticks += [line((left - 4, y(tflops)), (left, y(tflops)))]
        ticks += [text_before(left - 8, y(tflops), f"{tflops:,}")]
    for intensity in (0.1, 1, 10, 100, 1000, 10**4):
        ticks += [line((x(intensity), bottom), (x(intensity), bottom + 4))]
        ticks += [text(x(intensity), bottom + 14, f"{intensity:,}")]
    return drawing(
        PHONE,
        278,
        panel(x(corner), top, right - x(corner), bottom - top),
        *ticks,
        text_after(0, 22, "TFLOP/s"),
        text((left + right) / 2, bottom + 36, "operations for each byte of GMEM"),
        line((left, top - 20), (left, bottom), (right, bottom)),
        line((left, roof(0.1)), (x(corner), top), bytes_of=LOAD),
        line((x(corner), top), (right, top), bytes_of=WGMMA),
        line((x(corner), top + 8), (x(corner), bottom), pending=True),
        text_before(x(4), roof(7), "4.8 TB/s"),
        text((x(corner) + right) / 2, top - 16, "989 TFLOP/s"),
        dot(x(0.25), roof(0.25)),
        text_after(x(0.25) + 10, roof(0.25) + 8, "x + 1"),
        dot(x(1365), top),
        text(x(1365), top + 20, "product", "of 4096"),
        dot(x(25), y(5)),
        arrow((x(25), y(5) - 7), (x(25), roof(25) + 6), label="to win"),
        text(x(12), bottom - 14, "memory-bound"),
        text((x(corner) + right) / 2, bottom - 14, "compute-bound"),
    )


@sketch(
    2,
    "Latency, and bytes in flight",
    caption="With one slot a block waits through the latency of each load. With five, the"
    " latencies lie side by side and bytes arrive all the time: bytes in flight = bandwidth x"
    " latency.",
)
def latency() -> Drawing:
    """Two timelines of the same length. With one slot, a load has three units of latency and one of
    bytes, then its tile is used for one unit, and only then the next load begins: three tiles
    arrive, and bytes move for three units of fourteen. With five slots, five loads begin one after
    the other, and each slot is loaded again as soon as its tile was used. At any time four tiles
    are in flight and one is used. From the third unit on a tile arrives in each unit: eleven tiles
    in the same time.
    """
    clock, high = Clock(62, 22.4), 18
    alone = [work for n in range(3) for work in _load(5 * n, n)]
    rows = [[work for n in range(i, 14, 5) for work in _load(n, n)] for i in range(5)]
    few = [Work(5 * n + 3, 5 * n + 4, "", LOAD) for n in range(3)]
    many = [Work(n + 3, n + 4, "", LOAD) for n in range(11)]
    return drawing(
        PHONE,
        326,
        heading(0, 8, "one slot"),
        clock.lane(22, "slot 0", alone, high),
        clock.lane(48, "bytes", few, high),
        heading(0, 98, "five slots: four tiles in flight"),
        *(clock.lane(114 + 22 * i, f"slot {i}", row, high) for i, row in enumerate(rows)),
        clock.lane(232, "bytes", many, high),
        clock.brace(3, 14, 254, "all of the bandwidth"),
        clock.axis(294, 14.2),
        key(62, 320, "latency", kind=LOAD, shade=TINT),
        key(162, 320, "bytes", kind=LOAD),
        key(248, 320, "in use", kind=COMPUTE),
    )


def _load(start: int, number: int) -> list[Work]:
    """A load's latency and bytes, and the use of its tile; cut where the figure ends."""
    works = [
        Work(start, start + 3, "", LOAD, TINT),
        Work(start + 3, start + 4, str(number), LOAD),
        Work(start + 4, start + 5, str(number), COMPUTE),
    ]
    return [work._replace(stop=min(work.stop, 14)) for work in works if work.start < 14]


@sketch(
    13,
    "Three ways in which a timeline is bound",
    caption="Find who never waits: in the first timeline the loads, in the second the products. In"
    " the third each waits for the other, and their round is the bound.",
)
def bounds() -> Drawing:
    """Three pairs of rows, loads above and products below. Bound by memory: loads follow each other
    without a gap, and each product waits for its load. Bound by the tensor core: products follow
    each other without a gap, and loads wait for a free slot. Bound by latency: a load, then a gap,
    then a product, then a gap, then the next load; arrows lead from each load to the product that
    waits for it and from each product to the load that waits for its slot.
    """
    clock = Clock(70, 23.5)
    cases = {
        "bound by memory": _by_memory(),
        "bound by the tensor core": _by_tensor_core(),
        "bound by latency": _by_latency(),
    }
    parts: list[Part] = []
    for i, (title, (loads, products)) in enumerate(cases.items()):
        y = 98 * i
        parts += [heading(0, y + 8, title), clock.lane(y + 22, "loads", loads)]
        parts += [clock.lane(y + 54, "products", products)]
    for begin in (0, _ROUND):
        for start, stop, down in ((2, 2.5, True), (4.1, 4.6, False)):
            ends = [(clock.at(begin + start), 238), (clock.at(begin + stop), 250)]
            if not down:
                ends = [(ends[0][0], 250), (ends[1][0], 238)]
            parts.append(arrow(*ends))
    return drawing(PHONE, 300, *parts, clock.axis(294, 13.3))


_ROUND = 4.6  # units of time of a step that latency bounds


def _by_memory() -> tuple[list[Work], list[Work]]:
    """Loads without a gap, and products that wait for them."""
    loads = [Work(3 * k, 3 * k + 3, str(k), LOAD) for k in range(4)]
    products: list[Work] = []
    for k in range(4):
        ready = 3 * k + 3
        products += [wait(3 * k + (k > 0), ready), Work(ready, ready + 1, str(k), WGMMA)]
    return loads, products


def _by_tensor_core() -> tuple[list[Work], list[Work]]:
    """Products without a gap, and loads that wait for one of two slots."""
    loads = [Work(0, 1, "0", LOAD), Work(1, 2, "1", LOAD), wait(2, 4), Work(4, 5, "2", LOAD)]
    loads += [wait(5, 7), Work(7, 8, "3", LOAD)]
    return loads, [wait(0, 1), *(Work(3 * k + 1, 3 * k + 4, str(k), WGMMA) for k in range(4))]


def _by_latency() -> tuple[list[Work], list[Work]]:
    """One slot: each waits for the other, and for the message between them."""
    loads: list[Work] = []
    products: list[Work] = []
    for k in range(3):
        begin = _ROUND * k
        loads += [Work(begin, begin + 2, str(k), LOAD), wait(begin + 2, begin + _ROUND)]
        products += [wait(max(0, begin - 0.5), begin + 2.5)]
        products += [Work(begin + 2.5, begin + 4.1, str(k), WGMMA)]
    return loads[:-1], products


@sketch(
    14,
    "Two tiles on three rungs",
    caption="Two tiles of three steps each, and their stores. With one buffer each load waits for a"
    " product; with a ring the second tile begins from nothing; in a chain its loads run under the"
    " first tile's store.",
)
def rungs() -> Drawing:
    """Three timelines of two tiles, with rows for loads, products and stores. With one buffer, the
    loads and products of steps 0, 1 and 2 alternate, and then the tile is stored; the second tile,
    of steps 3 to 5, does not end within the figure. With a ring, loads 0, 1 and 2 follow each other
    and each product begins when its load has ended; load 3 begins after the first tile's store.
    With one chain, load 3 follows load 2 at once, so products 3 to 5 begin right after the store
    of the first tile, sooner by the time of a load.
    """
    clock, high = Clock(70, 25.4), 18
    load = lambda start, k: Work(start, start + 1, str(k), LOAD)
    product = lambda start, k: Work(start, start + 1, str(k), WGMMA)
    tile = lambda start: Work(start, start + 1.5, "", STORE)
    cases = {
        "rung 0: one buffer": (
            [load(2 * k, k) for k in range(3)] + [load(7.5 + 2 * k, k + 3) for k in range(2)],
            [product(2 * k + 1, k) for k in range(3)]
            + [product(8.5 + 2 * k, k + 3) for k in range(2)],
            [tile(6)],
        ),
        "rungs 1 to 5: a ring": (
            [load(k, k) for k in range(3)] + [load(5.5 + k, k + 3) for k in range(3)],
            [product(k + 1, k) for k in range(3)] + [product(6.5 + k, k + 3) for k in range(3)],
            [tile(4), tile(9.5)],
        ),
        "rungs 6 and 7: one chain": (
            [load(k, k) for k in range(6)],
            [product(k + 1, k) for k in range(3)] + [product(5.5 + k, k + 3) for k in range(3)],
            [tile(4), tile(8.5)],
        ),
    }
    parts: list[Part] = []
    for i, (title, works) in enumerate(cases.items()):
        y = 100 * i
        parts.append(heading(0, y + 8, title))
        for row, (name, each) in enumerate(zip(("loads", "products", "stores"), works)):
            parts.append(clock.lane(y + 22 + 22 * row, name, each, high))
    return drawing(PHONE, 304, *parts, clock.axis(298, 12.2))
