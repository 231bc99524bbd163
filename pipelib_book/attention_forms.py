"""`RungConfig`: a schedule of `attention`, and a place of probabilities, that only its ladder has.

The model. `pipelib.kernels.attention` has what its defaults and searches pick. The ladder and its
experiments have two things more, of which a `RungConfig` makes kernels:

- the schedule "both": a thread's softmax runs beside its own product with V, as in "overlap", and
  beside the products of another thread, since threads take turns. "optimistic" is this, less most
  maxima.
- probabilities "shared": the forward kernel writes them to SMEM, from where `wgmma` reads them.
"""

import contextlib
import dataclasses
import itertools
from typing import ClassVar, Literal, override

from pipelib.kernels.attention.config import PROBABILITIES, SCHEDULES, AttentionConfig
from pipelib.kernels.attention.queries import QueryThread
from pipelib.kernels.attention.schedules import Overlap


@dataclasses.dataclass(frozen=True)
class RungConfig(AttentionConfig):
    """An `AttentionConfig` that may have the ladder's schedule and place of probabilities, too.

    Attributes:
      schedule: "both", or one of `AttentionConfig`'s.
      probabilities: "shared", or one of `AttentionConfig`'s.

    Raises:
      ValueError, TypeError: as `AttentionConfig`.
    """

    schedule: Literal["plain", "overlap", "pingpong", "both", "optimistic"] = "pingpong"  # pyright: ignore[reportIncompatibleVariableOverride]
    probabilities: Literal["registers", "shared", "interpreted"] = "registers"  # pyright: ignore[reportIncompatibleVariableOverride]
    schedules: ClassVar[tuple[str, ...]] = (*SCHEDULES, "both")
    places: ClassVar[tuple[str, ...]] = (*PROBABILITIES, "shared")

    @property
    @override
    def thread_class(self) -> type[QueryThread] | None:
        return Overlap if self.schedule == "both" else None

    @property
    @override
    def overlaps(self) -> bool:
        return self.schedule == "both" or super().overlaps

    @property
    @override
    def takes_turns(self) -> bool:
        return self.schedule == "both" or super().takes_turns


def space(head_dim: int) -> list[AttentionConfig]:
    """The configurations of the forward kernel that a search of the ladder tries, if they fit.

    "optimistic" is not among them; `pipelib.kernels.attention_space` has it.

    Args:
      head_dim: elements of a head.
    """
    found: list[AttentionConfig] = []
    schedules: tuple[Literal["pingpong", "both", "overlap", "plain"], ...] = (
        "pingpong",
        "both",
        "overlap",
        "plain",
    )
    grid = itertools.product((64, 128, 192, 256), (2, 3, 4), (2, 3), schedules)
    for block_kv, slots, threads, schedule in grid:
        where = "shared" if schedule in ("overlap", "both") else "registers"
        config = RungConfig(
            block_kv=block_kv,
            slots=slots,
            compute_threads=threads,
            schedule=schedule,
            probabilities=where,
        )
        with contextlib.suppress(ValueError):
            config.check(head_dim)
            found.append(config)
    return found
