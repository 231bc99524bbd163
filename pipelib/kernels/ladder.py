"""`RUNGS`: the ladder of `matmul`, from one buffer to what its tuned kernel does.

The model. Each rung is a configuration of `pipelib.kernels.matmul` and adds one idea of pipelining
to the one before; nothing else changes but what the idea needs. What each buys is measured by
`benchmarks/matmul.py`, and is in no place here.
"""

from typing import NamedTuple

from pipelib.kernels.matmul_config import MatmulConfig


class Rung(NamedTuple):
    """A step of the ladder: its number, name, the idea that it adds, and its configuration."""

    number: int
    name: str
    idea: str
    config: MatmulConfig


_ONE = dict(tile_m=128, tile_n=128, tile_k=64, compute_threads=1, form="ring", order="n", width=1)
_TWO = dict(tile_m=128, tile_n=256, tile_k=64, slots=4, delay_release=1, compute_threads=2)
_ROWS, _SQUARES = dict(order="n", width=1), dict(order="m", width=8)

RUNGS: tuple[Rung, ...] = (
    Rung(
        0, "one buffer", "Load a step, wait for it, multiply it.",
        MatmulConfig(**_ONE, slots=1, delay_release=0),
    ),
    Rung(
        1, "a ring of slots", "Load the next steps while one is multiplied.",
        MatmulConfig(**_ONE, slots=2, delay_release=0),
    ),
    Rung(
        2, "a product in flight", "Issue the next wgmma before the last one is done.",
        MatmulConfig(**_ONE, slots=3, delay_release=1),
    ),
    Rung(
        3, "two compute threads", "Share the slots: a tile twice as large for the same b.",
        MatmulConfig(**_TWO, **_ROWS, form="ring"),
    ),
    Rung(
        4, "a memory thread", "Leave the loads to a thread that never waits for a product.",
        MatmulConfig(**_TWO, **_ROWS, form="specialized"),
    ),
    Rung(
        5, "persistent blocks", "One block for each SM, and neighbours in the L2.",
        MatmulConfig(**_TWO, **_SQUARES, form="persistent"),
    ),
    Rung(
        6, "no bubble", "One chain of pipelines: load the next tile while this one is stored.",
        MatmulConfig(**_TWO, **_SQUARES, form="chained"),
    ),
    Rung(
        7, "a cluster", "Two blocks share each load of b.",
        MatmulConfig(**_TWO, **_SQUARES, form="chained", cluster_m=2),
    ),
)  # fmt: skip
