"""`CollectiveConfig`: how a collective product is divided, and what it takes of an SM.

The model. That of `MatmulConfig`, and a ring of *pieces* in SMEM, through which a block sends its
share of the shard: `send_slots` pieces of `send_rows` rows and up to `SENT_COLUMNS` columns.

A tile of 128 x 256 with four slots leaves 35,840 bytes of SMEM. Two staging slots for each compute
thread take 32,768, and a ring of two pieces 16,384. So by default there is one staging slot.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp
from jax.typing import DTypeLike

from pipelib.kernels.matmul.config import MatmulConfig

#: The most columns of a piece, which TMA copies as one box. Source: CUDA driver API,
#: `cuTensorMapEncodeTiled`, `boxDim`.
SENT_COLUMNS = 256

#: Operations to each byte sent, from which on 48 blocks send while their device multiplies: 680
#: TFLOP/s over 173 GB/s. Source: `benchmarks.collective` on two H200s, 8192 x 2048 x 8192.
_HIDDEN_BY_48 = 3930


@dataclasses.dataclass(frozen=True)
class CollectiveConfig(MatmulConfig):
    """How `collective_matmul` divides its work.

    Attributes:
      order, width: as in `MatmulConfig`. With "m", a device multiplies `width` rows of tiles with
        all its columns before it needs the next rows, which may be on their way until then.
      staging: slots through which a compute thread stores its rows of a tile, 1 or 2; 2 only if it
        stores them in an even number of parts, so that each tile begins with the same slot.
      send_slots: pieces that a block has in SMEM while it sends them, 2 or more.
      send_rows: rows of a piece, a multiple of 8 that divides `tile_m`.
      senders: blocks that send, each an equal share of the shard, the first ones of all; None: all
        blocks. Fewer disturb fewer, and take longer. The default was the fastest of 8, 16, 48 and
        132 (all) on two H200s (geometric mean over six layers of `benchmarks.collective`).
      blocks: blocks that share the tiles, no more than SMs: they wait for each other, so all must
        run at once. None: as few as go through the tiles in as many rounds as one for each SM.

    The others are those of `MatmulConfig`, but that `form` is "chained", and that there are no
    clusters, no `splits` and no `swapped` products.

    Raises:
      ValueError, TypeError: for values, and types of them, that are not as above.

    Example:
      >>> config = pipelib.kernels.CollectiveConfig(send_rows=32)
      >>> config.smem_bytes(jnp.bfloat16, jnp.bfloat16)
      245840
      >>> config.check(jnp.bfloat16, jnp.bfloat16)
      Traceback (most recent call last):
      ValueError: CollectiveConfig: slots of a 4 x 16,384 B + ...
    """

    order: Literal["m", "n"] = "m"
    staging: int = 1
    send_slots: int = 2
    send_rows: int = 16
    senders: int | None = 48

    def _problems(self) -> dict[str, object]:
        """As `MatmulConfig._problems`."""
        is_plain = self.form == "chained" and self.cluster_size == self.splits == 1
        more = {
            f"{self.form=}, {self.cluster_m=} x {self.cluster_n=}, {self.splits=} and"
            f" {self.swapped=} are not 'chained', 1 x 1, 1 and False, the only form that waits for"
            " other devices' rows: leave them out": not is_plain or self.swapped,
            f"{self.staging=} is not 1, or 2 with an even number of parts, so two tiles' stores"
            " would meet in a slot": self.staging not in (1, 2) or self.parts % self.staging,
            f"{self.send_slots=} is under 2, so no piece would be loaded while another is sent":
                self.send_slots < 2,
            f"{self.send_rows=} is not a multiple of 8 that divides {self.tile_m=}, so a piece"
            " would be of two rows of tiles":
                self.send_rows < 8 or self.send_rows % 8 or self.tile_m % self.send_rows,
            f"{self.senders=} is not at least 1, so no block would send":
                self.senders is not None and self.senders < 1,
        }  # fmt: skip
        problems = super()._problems()
        return problems if any(problems.values()) else more

    @property
    def staging_slots(self) -> int:
        """Slots through which a compute thread stores."""
        return self.staging

    def _smem_terms(
        self, dtype: DTypeLike, out_dtype: DTypeLike, operands: Sequence[DTypeLike]
    ) -> list[tuple[str, int, int]]:
        """As `MatmulConfig._smem_terms`."""
        piece = self.send_rows * SENT_COLUMNS * jnp.dtype(dtype).itemsize
        *terms, (name, barriers, size) = super()._smem_terms(dtype, out_dtype, operands)
        ring = "sent pieces", self.send_slots, piece
        return [*terms, ring, (name, barriers + self.send_slots, size)]


def default_config(columns: int, devices: int, out_dtype: DTypeLike) -> CollectiveConfig:
    """What `collective_matmul` takes.

    All blocks send where 48 would send for longer than a device multiplies. Results of float32 take
    twice the SMEM until they are stored, so one slot fewer is left to load.

    Args:
      columns, devices: each device multiplies `devices` shards by so many columns, and sends its
        own to the others.
      out_dtype: the results' dtype.
    """
    sent = devices - 1  # shards; a byte of a shard takes part in `columns` operations
    is_shorter = columns * devices < _HIDDEN_BY_48 * sent
    return CollectiveConfig(
        slots=4 if jnp.dtype(out_dtype).itemsize <= 2 else 3,
        senders=None if is_shorter else CollectiveConfig.senders,
    )
