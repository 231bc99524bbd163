"""The diagram of what `pallascope.check` does."""

from pipelib_book.diagrams.figure import sketch
from pipelib_book.diagrams.shapes import (
    ACCESS,
    ISSUE,
    LOAD,
    PHONE,
    SOLID,
    STORE,
    WAIT,
    WGMMA,
    Drawing,
    Part,
    arrow,
    box,
    drawing,
    text,
    text_after,
)


@sketch(
    12,
    "From a trace to a finding",
    caption="`trace` lists the operations of each thread, and `check` finds what puts them in"
    " order (arrows). No arrows lead from the read to the load of step 2, or back: a race, whether"
    " or not a run shows it.",
)
def checker() -> Drawing:
    """Two columns of operations, from top to bottom. Memory thread: load slot 0 for step 0; wait
    for consumed; load slot 0 for step 2. Compute thread: wait for produced; arrive at consumed;
    read slot 0. Arrows for the order: down each column, from load 0 to the wait for produced, and
    from the arrival to the wait for consumed. Between the load of step 2 and the read of slot 0, a
    broken line: no order. Below, the finding: race, slot 0 is loaded while it is read.
    """
    right, wide, high = 224, 160, 30
    return drawing(
        PHONE,
        284,
        text(80, 8, "memory thread", bold=True),
        text(right + 80, 8, "compute thread", bold=True),
        box(0, 24, wide, high, "load slot 0, step 0", kind=LOAD, shade=SOLID),
        box(0, 132, wide, high, "wait: consumed", shade=WAIT),
        box(0, 192, wide, high, "load slot 0, step 2", kind=LOAD, shade=SOLID),
        box(right, 48, wide, high, "wait: produced", shade=WAIT),
        box(right, 108, wide, high, "arrive: consumed", kind=ISSUE, shade=SOLID),
        box(right, 192, wide, high, "read slot 0, step 0", kind=ACCESS, shade=SOLID),
        arrow((80, 54), (80, 132)),
        arrow((80, 162), (80, 192)),
        arrow((304, 78), (304, 108)),
        arrow((304, 138), (304, 192)),
        arrow((160, 39), (224, 63)),
        arrow((224, 123), (160, 147)),
        arrow((224, 207), (160, 207), label="no order", both=True, pending=True),
        box(0, 250, 384, 34, "race: slot 0 is loaded while it is read", kind=WGMMA),
    )


@sketch(
    20,
    "Where faults hide",
    caption="What a block does, from top to bottom, and the faults of this chapter that hide there."
    " Most are at the ends: before the steady state, after it, and on the way to the next tile.",
)
def hiding_places() -> Drawing:
    """A column of five boxes, with arrows from each to the next, and the titles of faults beside
    them. First loads: more slots than steps; a tile that nobody loads. Steps: a wrong head; a
    product that nobody waits for. Epilogue: results over operands; a tile that is stored twice.
    Next tile: the last slot of a tile. Other blocks and GPUs: signals that are only counted.
    """
    stages = (
        (("first loads",), LOAD, ("More slots than steps", "A tile that nobody loads")),
        (("steps",), WGMMA, ("A wrong head", "A product that nobody waits for")),
        (("epilogue",), STORE, ("Results over operands", "A tile that is stored twice")),
        (("next tile",), LOAD, ("The last slot of a tile",)),
        (("other blocks", "and GPUs"), ISSUE, ("Signals that are only counted",)),
    )
    wide, high, step = 112, 40, 60
    parts: list[Part] = []
    for i, (stage, kind, faults) in enumerate(stages):
        y = i * step
        first = y + high / 2 - 8 * (len(faults) - 1)
        parts += [box(0, y, wide, high, *stage, kind=kind), text_after(wide + 20, first, *faults)]
        if i:
            parts.append(arrow((wide / 2, y - step + high), (wide / 2, y)))
    return drawing(PHONE, 4 * step + high, *parts)
