"""`AttentionConfig`: how attention is divided, how its threads take turns, what it takes of an SM.

The model. A block has `compute_threads` Pallas threads, each with `rows` queries of one head, and
goes through the keys and values of that head in steps of `block_kv`. In SMEM it has the queries
(where the result is staged too), a ring of `slots` blocks of K and one of V, a row's log-sum-exp,
and barriers. In registers each thread has float32 accumulators of the result and of the scores of a
step, and the step's probabilities in 16 bits. All is added up here before anything is compiled.

Source of the hardware's constants: `pipelib.specs`.
"""

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp

from pipelib import specs

SCHEDULES = ("plain", "overlap", "pingpong", "both")
HEAD_DIMS = (64, 128, 256)
#: What Mosaic GPU reserves for a kernel with reductions, used or not (JAX's `CompilerParams`).
SCRATCH_BYTES = 2048


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """How `attention` divides its work; what cannot be is refused when it is made.

    Attributes:
      rows: queries of each compute thread, a multiple of 64, the rows of a `wgmma`.
      block_kv: keys of a step, a multiple of 64 to 256.
      slots: steps whose K and V are in SMEM at once, the most.
      compute_threads: Pallas threads that compute, 1 to 3; as many blocks of rows.
      schedule: "plain": a thread does one thing after the other; "overlap": its softmax runs beside
        its own product with V, of the step before; "pingpong": beside another thread's products;
        "both".
      probabilities: from where `wgmma` reads them: "registers", where the softmax left them, or
        "shared", through SMEM, which costs time but which JAX's interpreter can run.
    """

    rows: int = 64
    block_kv: int = 128
    slots: int = 2
    compute_threads: int = 2
    schedule: Literal["plain", "overlap", "pingpong", "both"] = "both"
    probabilities: Literal["registers", "shared"] = "registers"

    def __post_init__(self):
        for problem in (text for text, is_so in self._problems().items() if is_so):
            raise ValueError(f"AttentionConfig: {problem.replace('self.', '')}.")

    def _problems(self) -> dict[str, Any]:
        return {
            f"{self.rows=} is not a multiple of 64, the rows of a wgmma":
                self.rows < 1 or self.rows % 64,
            f"{self.block_kv=} is not a multiple of 64 up to 256, the most columns of a wgmma":
                self.block_kv not in (64, 128, 192, 256),
            f"{self.slots=} is not 1 to {specs.MAX_SLOTS}, which barriers can tell":
                not 1 <= self.slots <= specs.MAX_SLOTS,
            f"{self.compute_threads=} is not 1 to 3, so that a block has at most 512 lanes":
                not 1 <= self.compute_threads <= 3,
            f"{self.schedule=} is none of {', '.join(SCHEDULES)}": self.schedule not in SCHEDULES,
            f"{self.schedule=} overlaps two steps, so {self.slots=} has no slot to load into":
                self.overlaps and self.slots < 2,
            f"{self.schedule=} needs threads that take turns, but {self.compute_threads=}":
                self.takes_turns and self.compute_threads < 2,
            f"{self.probabilities=} is not 'registers' or 'shared'":
                self.probabilities not in ("registers", "shared"),
        }  # fmt: skip

    @property
    def overlaps(self) -> bool:
        """Whether a thread's softmax runs beside its own product."""
        return self.schedule in ("overlap", "both")

    @property
    def takes_turns(self) -> bool:
        """Whether compute threads take turns in the tensor core."""
        return self.schedule in ("pingpong", "both")

    @property
    def memory_registers(self) -> int:
        """Those of a lane of the memory thread: of 40, three compute threads would have 152 each."""
        return 40 if self.compute_threads < 3 else 32

    @property
    def block_q(self) -> int:
        """Queries of a block."""
        return self.compute_threads * self.rows

    def smem_bytes(self, head_dim: int) -> int:
        """Bytes of shared memory that a block of the kernel takes, with all slots."""
        return sum(count * size for _, count, size in self._smem_terms(head_dim))

    def check(self, head_dim: int) -> None:
        """Raises ValueError, with the sum, if an SM has too little for this head_dim."""
        terms = self._register_terms(head_dim)
        share = min(255, specs.compute_registers(self.memory_registers, self.compute_threads))
        if (total := sum(size for _, size in terms)) >= share:
            terms = " + ".join(f"{name} {size}" for name, size in terms)
            raise ValueError(
                f"AttentionConfig: {terms} = {total} registers of a lane, but each of"
                f" {self.compute_threads} compute threads has {share}, and needs some for the rest."
            )
        if (total := self.smem_bytes(head_dim)) > specs.SMEM_BYTES:
            terms = self._smem_terms(head_dim)
            terms = " + ".join(f"{name} {count} x {size:,} B" for name, count, size in terms)
            raise ValueError(
                f"AttentionConfig: {terms} = {total:,} B of shared memory, but a block has"
                f" {specs.SMEM_BYTES:,} B, so the kernel could not start."
            )

    def _register_terms(self, head_dim: int) -> list[tuple[str, int]]:
        scores = self.rows * self.block_kv // 128
        terms = [("result", self.rows * head_dim // 128), ("scores", scores)]
        # With no overlap the probabilities replace the scores.
        return [*terms, ("probabilities", scores // 2)] if self.overlaps else terms

    def _smem_terms(self, head_dim: int) -> list[tuple[str, int, int]]:
        threads, size = self.compute_threads, jnp.dtype(jnp.bfloat16).itemsize
        terms = [
            ("queries", threads, self.rows * head_dim * size),
            ("slots of K and V", 2 * self.slots, self.block_kv * head_dim * size),
            ("log-sum-exp", threads, self.rows * 4),
        ]
        if self.probabilities == "shared":
            terms.append(("probabilities", threads, self.rows * self.block_kv * size))
        turns = threads if self.takes_turns else 0
        barriers = 4 * self.slots + threads + turns
        return [*terms, ("barriers", barriers, 8), ("reductions", 1, SCRATCH_BYTES)]
