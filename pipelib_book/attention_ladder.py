"""`RUNGS`: the ladder of `attention`, from products and softmax in turn to both at once.

The model. Each rung is a configuration of the forward kernel for a size of a head; those of rungs 1
and 3 are of `attention_forms`. The first has
one overlap only, that of threads which nothing orders; each of the next adds an idea. Rung 4 is for
heads of 64, where a product is half as long and the softmax is not. Rung 5 is rung 3 with `p` in
registers, less what most steps need not do. None is persistent, so that they differ in nothing
else. What each buys is measured by `benchmarks/attention.py`, and is in no place here.

Which steps of rung 5 make a maximum depends on data. A trace has both ways of such a step, and a
simulation takes the short one.
"""

from typing import NamedTuple

from pipelib.kernels.attention.config import AttentionConfig
from pipelib_book.attention_forms import RungConfig


class Rung(NamedTuple):
    """A step of the ladder: its number, name, idea, the size of a head, its configuration."""

    number: int
    name: str
    idea: str
    head_dim: int
    config: AttentionConfig


RUNGS: tuple[Rung, ...] = (
    Rung(
        0, "no overlap", "Multiply, wait, take the softmax, multiply again, wait.",
        128, AttentionConfig(schedule="plain"),
    ),
    Rung(
        1, "overlap within a thread",
        "Queue the next scores before the product with V, and take their softmax beside it.",
        128, RungConfig(schedule="overlap", probabilities="shared", persistent=False),
    ),
    Rung(
        2, "ping-pong between two",
        "Take turns in the tensor core, so that one thread's softmax meets the other's products.",
        128, AttentionConfig(schedule="pingpong", persistent=False),
    ),
    Rung(
        3, "both", "Take turns, and let a thread's softmax meet its own product with V, too.",
        128, RungConfig(schedule="both", probabilities="shared", persistent=False),
    ),
    Rung(
        4, "three compute threads",
        "With heads of 64 a product is half as long, so let the products of two meet a softmax.",
        64,
        AttentionConfig(schedule="pingpong", compute_threads=3, slots=4, persistent=False),
    ),
    Rung(
        5, "no maximum",
        "Use the maximum so far, and make a new one only where the sums of a step say so.",
        128, AttentionConfig(schedule="optimistic", persistent=False),
    ),
)  # fmt: skip
