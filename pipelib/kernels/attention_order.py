"""In which order the blocks of a kernel of attention begin.

The model. A GPU gives an SM that is free the block that is next by number. The blocks of a head go
through the same columns: one after the other, they find them in L2. That is the order as long as
all take equally long. Where a mask leaves some of them fewer steps, the longest of the last head
would begin late, and run on when the other SMs have nothing left. Of causal blocks of 128 rows, of
16 heads on 132 SMs, that is a tenth of the time if heads have 8192 rows, and a fifth if 4096.

So the blocks of some heads are taken *together*, the longest of all of them first. By this rule no
division of the work is more than a third faster (R. L. Graham, "Bounds on Multiprocessing Timing
Anomalies", 1969); here it is within 2% of no SM being idle. Together are as many heads as have room
for their columns in L2. FlashAttention's kernels for Hopper order causal blocks by the same two
thoughts.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

#: Of columns that heads taken together may have: two thirds of the L2 of an H100 or H200, 50 MB.
L2_BYTES = 32 * 2**20


class Order(NamedTuple):
    """The blocks of a kernel: so many of each head of each batch.

    Attributes:
      batch, heads, blocks: how many there are.
      together: heads, of any batches, whose blocks are taken together; of the first, maybe fewer.
      last_is_longest: whether of a head the last block takes the longest, and not the first.
    """

    batch: int
    heads: int
    blocks: int
    together: int = 1
    last_is_longest: bool = False

    @classmethod
    def of(cls, batch: int, heads: int, blocks: int, sides: tuple, bytes_per_head: int) -> "Order":
        """For rows that see so many columns (behind, ahead) of them: `attention_band`."""
        behind, ahead = sides
        if behind is None and ahead is None:
            return cls(batch, heads, blocks)
        together = min(max(L2_BYTES // bytes_per_head, 1), batch * heads)
        return cls(
            batch, heads, blocks, together, ahead is not None and (behind is None or behind > ahead)
        )

    @property
    def count(self) -> int:
        """Of all blocks."""
        return self.batch * self.heads * self.blocks

    def place(self, number: Any) -> tuple[Any, Any, Any]:
        """The batch, the head and the block which begins as that number; int32."""
        # Counted from the end, so that the fewer heads, if some are left over, are the first.
        later = self.count - 1 - number
        section, later = _divided(later, self.together * self.blocks)
        size = jnp.minimum(self.together, self.batch * self.heads - section * self.together)
        shorter, head = _divided(later, size)
        block = shorter if self.last_is_longest else self.blocks - 1 - shorter
        head = self.batch * self.heads - 1 - (section * self.together + head)
        return *_divided(head, self.heads), block


def _divided(number: Any, by: Any) -> tuple[Any, Any]:
    by = jnp.int32(by)
    return lax.div(number, by), lax.rem(number, by)
