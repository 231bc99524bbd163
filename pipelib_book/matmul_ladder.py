"""`RUNGS`: the ladder of `matmul`, from one buffer to clusters; `IDEAS`: what went no further up.

The model. Each rung is a configuration of `pipelib.kernels.matmul` and adds one idea of pipelining
to the one before; nothing else changes but what the idea needs. The package has the forms of rungs
4, 6 and 7; the other rungs have those of `matmul_forms`. The last rung, 8, is what a search
over configurations found (`tuned`). An idea is a change of rung 7 in one thing, with fewer slots
where four do not fit then; its reason is what speaks for it or against before it is measured, for a
product of 8192^3 on 132 SMs. What each of them buys is measured by `benchmarks/matmul.py`, and is
in no place here.

Not covered, for no configuration says it: steps of 32 (a swizzled row has 64), tiles of 256 x 256
by two compute threads (an accumulator of 256 registers, where 232 are), stores of fewer than 64
columns, a thread for the stores.
"""

import dataclasses
from typing import Any, NamedTuple

from pipelib.kernels.matmul.config import MatmulConfig
from pipelib_book.matmul_forms import RungConfig


class Rung(NamedTuple):
    """A step of the ladder: its number, name, the idea that it adds, and its configuration."""

    number: int
    name: str
    idea: str
    config: MatmulConfig


class Idea(NamedTuple):
    """A change of the last rung: its name, what speaks for it or against, the configuration."""

    name: str
    reason: str
    config: MatmulConfig


# What rungs have in common: of one compute thread, of two, and of two in blocks that
# make tile after tile.
_ONE: dict[str, Any] = dict(
    tile_m=128, tile_n=128, tile_k=64, compute_threads=1, order="n", width=1
)
_TWO: dict[str, Any] = dict(
    tile_m=128,
    tile_n=256,
    tile_k=64,
    slots=4,
    compute_threads=2,
    delay_release=1,
    order="n",
    width=1,
)
_MANY: dict[str, Any] = _TWO | dict(order="m", width=8)

RUNGS: tuple[Rung, ...] = (
    Rung(
        0, "one buffer", "Load a step, wait for it, multiply it.",
        RungConfig(**_ONE, slots=1, delay_release=0, form="ring"),
    ),
    Rung(
        1, "a ring of slots", "Load the next steps while one is multiplied.",
        RungConfig(**_ONE, slots=2, delay_release=0, form="ring"),
    ),
    Rung(
        2, "a product in flight", "Issue the next wgmma before the last one is done.",
        RungConfig(**_ONE, slots=3, delay_release=1, form="ring"),
    ),
    Rung(
        3, "two compute threads", "Share the slots: a tile twice as large for the same a.",
        RungConfig(**_TWO, form="ring"),
    ),
    Rung(
        4, "a memory thread", "Leave the loads to a thread that never waits for a product.",
        MatmulConfig(**_TWO, form="specialized"),
    ),
    Rung(
        5, "persistent blocks", "One block for each SM, and neighbours in the L2.",
        RungConfig(**_MANY, form="persistent"),
    ),
    Rung(
        6, "no bubble", "One chain of pipelines: load the next tile while this one is stored.",
        MatmulConfig(**_MANY, form="chained"),
    ),
    Rung(
        7, "a cluster", "Two blocks share each load of b.",
        MatmulConfig(**_MANY, form="chained", cluster_m=2),
    ),
)  # fmt: skip

_BEST = RUNGS[-1].config
IDEAS: tuple[Idea, ...] = (
    # The shape of a tile.
    Idea(
        "tiles of 128 x 128", "Less to store at the end of a tile, but a third more bytes.",
        dataclasses.replace(_BEST, tile_n=128),
    ),
    Idea(
        "tiles of 128 x 192", "A fuller last wave of tiles, but a ninth more bytes.",
        dataclasses.replace(_BEST, tile_n=192),
    ),
    Idea(
        "tiles of 256 x 128", "They share loads of a, the larger; a wgmma reads a fifth more SMEM.",
        dataclasses.replace(_BEST, tile_m=256, tile_n=128, cluster_m=1, cluster_n=2),
    ),
    Idea(
        "tiles of 256 x 192", "A fifth fewer bytes for each product, in three slots.",
        dataclasses.replace(_BEST, tile_m=256, tile_n=192, slots=3),
    ),
    # Who multiplies.
    Idea(
        "one compute thread", "Tiles of 128 x 128; nobody multiplies while it stores.",
        dataclasses.replace(_BEST, tile_n=128, compute_threads=1),
    ),
    Idea(
        "three compute threads", "Of 64 x 192; for 64 x 256 four threads have too few registers.",
        dataclasses.replace(_BEST, tile_m=192, tile_n=192, compute_threads=3),
    ),
    # Steps and slots.
    Idea(
        "steps of 128", "Half as many barriers, but SMEM holds two of them, not four.",
        dataclasses.replace(_BEST, tile_k=128, slots=2),
    ),
    Idea(
        "steps of 128, 128 x 128", "Half as many barriers; of smaller tiles, SMEM holds three.",
        dataclasses.replace(_BEST, tile_n=128, tile_k=128, slots=3),
    ),
    Idea(
        "three slots", "A load has less time to arrive; how much does it need?",
        dataclasses.replace(_BEST, slots=3),
    ),
    Idea(
        "nothing in flight", "Each step's release no longer waits for the next step's wgmma.",
        dataclasses.replace(_BEST, delay_release=0),
    ),
    Idea(
        "two products in flight", "The tensor core's queue is longer; a slot is free a step later.",
        dataclasses.replace(_BEST, delay_release=2),
    ),
    # The end of a tile.
    Idea(
        "stores of 128 columns", "Half as many waits for a staging slot, but three slots are left.",
        dataclasses.replace(_BEST, epilogue_n=128, slots=3),
    ),
    Idea(
        "stores of 256 columns", "A tile is stored at once, but three slots are left.",
        dataclasses.replace(_BEST, epilogue_n=256, slots=3),
    ),
    Idea(
        "a pipeline for each tile", "Nothing is loaded while a tile is stored.",
        RungConfig(**_MANY, cluster_m=2, form="persistent"),
    ),
    Idea(
        "a block for each tile", "Blocks that start when others end go to the SMs that are ahead.",
        dataclasses.replace(_BEST, form="specialized"),
    ),
    # Who shares loads, and who runs together.
    Idea(
        "a cluster along n", "Two blocks share each load of a, half the size of one of b.",
        dataclasses.replace(_BEST, cluster_m=1, cluster_n=2),
    ),
    Idea(
        "four along m", "Four share each load of b, but need places for four at once.",
        dataclasses.replace(_BEST, cluster_m=4),
    ),
    Idea(
        "clusters of four", "They load less, but a GPU has places for fewer: some run afterwards.",
        dataclasses.replace(_BEST, cluster_n=2),
    ),
    Idea(
        "a block for every SM", "As many waves as with fewer blocks, and more SMs to feed.",
        dataclasses.replace(_BEST, blocks=132),
    ),
    Idea(
        "rows of tiles", "Blocks that run together share all of a, and none of b.",
        dataclasses.replace(_BEST, width=1),
    ),
    Idea(
        "groups of 4", "They share more of a, and less of b.",
        dataclasses.replace(_BEST, width=4),
    ),
    Idea(
        "groups of 16", "They share more of b, and less of a.",
        dataclasses.replace(_BEST, width=16),
    ),
    Idea(
        "groups along n", "As many bytes; from one wave to the next, b stays in the L2, not a.",
        dataclasses.replace(_BEST, order="n"),
    ),
)  # fmt: skip
