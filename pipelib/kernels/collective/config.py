"""`CollectiveConfig`: how a collective product is divided, and what it takes of an SM.

The model. Some blocks multiply, as `MatmulConfig` says, and others only send. A block that sends
moves *pieces* of the shard, of `send_rows` rows and up to `SENT_COLUMNS` columns, through a ring in
SMEM. The ring lies where blocks that multiply have the slots of their factors, so it takes no more
than they do. It has as many pieces as there is room for, up to `_MOST_PIECES`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, override

from jax.typing import DTypeLike

from pipelib.kernels.dividing import Barriers, Memory
from pipelib.kernels.matmul.config import MatmulConfig

#: The most columns of a piece, which TMA copies as one box. Source: CUDA driver API,
#: `cuTensorMapEncodeTiled`, `boxDim`.
SENT_COLUMNS = 256
#: Bytes of an element of a factor.
_ITEM = 2
#: The most pieces of a ring; half of them are being loaded, half stored. Of pieces of 32 KiB that
#: is nearly all the SMEM of a block. Fewer or more were not measured.
_MOST_PIECES = 6


@dataclasses.dataclass(frozen=True)
class CollectiveConfig(MatmulConfig):
    """How `collective_matmul` divides its work.

    Attributes:
      order, width: as in `MatmulConfig`. With "m", a device multiplies `width` rows of tiles with
        all its columns before it needs the next rows, which may be on their way until then.
      senders: blocks that only send, each an equal share of the shard.
      send_rows: rows of a piece, a multiple of 8 that divides `tile_m`.
      blocks: blocks that multiply and share the tiles. With those that send they are no more than
        SMs: they wait for other devices' blocks, so all must run at once. None: as few as go
        through the tiles in as many rounds as one for each SM that does not send.

    The others are those of `MatmulConfig`, but that `form` is "chained", and that there are no
    clusters, no `splits` and no `swapped` products.

    Raises:
      ValueError, TypeError: for values, and types of them, that are not as above.

    Example:
      >>> config = pipelib.kernels.CollectiveConfig(senders=8)
      >>> config.send_slots, config.smem_bytes(jnp.bfloat16, jnp.bfloat16)
      (6, 229488)
      >>> config.multipliers(m=2048, n=7168, devices=2, num_sms=132)
      112
      >>> pipelib.kernels.CollectiveConfig(64, 64, slots=3, compute_threads=1)
      Traceback (most recent call last):
      ValueError: CollectiveConfig: a piece of send_rows=64 x 256 columns takes 32,768 B, ...
    """

    order: Literal["m", "n"] = "m"
    senders: int = 4
    send_rows: int = 64

    def problems(self) -> dict[str, object]:
        """What can be wrong with the fields of both classes."""
        problems = super().problems()
        if any(problems.values()):
            return problems
        is_plain = self.form == "chained" and self.cluster_size == self.splits == 1
        rows, room = self.send_rows, self.slots * (self.tile_m + self.tile_n) * self.tile_k * _ITEM
        is_whole = rows >= 8 and rows % 8 == 0 and self.tile_m % rows == 0
        piece = rows * SENT_COLUMNS * _ITEM
        return {
            f"{self.form=}, {self.cluster_m=} x {self.cluster_n=}, {self.splits=} and"
            f" {self.swapped=} are not 'chained', 1 x 1, 1 and False, the only form that waits for"
            " other devices' rows: leave them out": not is_plain or self.swapped,
            f"{self.senders=} is not at least 1, so no block would send": self.senders < 1,
            f"{self.send_rows=} is not a multiple of 8 that divides {self.tile_m=}, so a piece"
            " would be of two rows of tiles": not is_whole,
            f"a piece of {self.send_rows=} x {SENT_COLUMNS} columns takes {piece:,} B, and two of"
            f" them more than the {room:,} B of the slots of a and b, so no piece would be loaded"
            " while another is sent": 2 * piece > room,
        }

    @property
    def send_slots(self) -> int:
        """Pieces that a block that sends has in SMEM."""
        room = self.slots * (self.tile_m + self.tile_n) * self.tile_k
        return min(room // (self.send_rows * SENT_COLUMNS), _MOST_PIECES)

    def multipliers(self, m: int, n: int, devices: int, num_sms: int) -> int:
        """How many blocks multiply.

        Args:
          m, n: rows of a shard, and columns of a device.
          devices: how many shards there are.
          num_sms: SMs of a GPU.
        """
        rows = self.tiles(m, n)[0] * self.tile_m * devices
        return self.resident_blocks(rows, n, num_sms - self.senders)

    @override
    def memory(
        self, dtype: DTypeLike, out_dtype: DTypeLike, operands: Sequence[DTypeLike] = ()
    ) -> Memory:
        sending = Barriers(self.send_slots, is_emitted=True)
        return {**super().memory(dtype, out_dtype, operands), "sending": sending}
