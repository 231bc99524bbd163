"""In which order the blocks of a kernel of attention begin.

The model. A GPU gives an SM that is free the block that is next by number. The blocks of a head go
through the same columns: one after the other, they find them in L2. That is the order as long as
all take equally long. Where a mask leaves some of them fewer steps, the longest of the last head
would begin late, and run on when the other SMs have nothing left. Of causal blocks of 128 rows, of
16 heads on 132 SMs, that is a tenth of the time if heads have 8192 rows, and a fifth if 4096.

So the blocks of some heads are taken *together*, the longest of all of them first. By this rule no
division of the work is more than a third faster (R. L. Graham, "Bounds on Multiprocessing Timing
Anomalies", 1969); here it is within 2% of no SM being idle. Together are about as many heads as
have room for their columns in L2, and as divide them all: the grid then gives each block its place,
without a division that would cost registers. FlashAttention's schedulers for Hopper go by the same
two thoughts (`hopper/tile_scheduler.hpp` in its repository).

Where all take equally long, a kernel can be *persistent*: it has a block on each SM, which *visits*
one place after the other, every so many from its first, and loads for the next while it works at
one. In an order by length, that would leave the first SM the longest of each round.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from pipelib.kernels.device import H100_SMS

#: Of columns that heads taken together may have: two thirds of the L2 of an H100 or H200, 50 MB.
L2_BYTES = 32 * 2**20
#: Of the grid, by the name of each axis; blocks begin in the order of its indices.
AXES = ("slowest", "slower", "fastest")


class Visits(NamedTuple):
    """The places that a block goes through: how many, an int if it is one, and which is where."""

    count: Any
    place: Callable[[Any], tuple[Any, Any, Any]]

    @property
    def are_many(self) -> bool:
        """Whether there can be more than one."""
        return not isinstance(self.count, int)

    def grid(self, steps: Any) -> tuple[Any, ...]:
        """Of a pipeline that has so many steps in each."""
        return (self.count, steps) if self.are_many else (steps,)

    def split(self, indices: tuple) -> tuple[Any, Any]:
        """The visit and the step in it, at an index of that grid."""
        return indices if self.are_many else (jnp.int32(0), *indices)


class Order(NamedTuple):
    """The blocks of a kernel: so many of each head of each batch.

    Attributes:
      batch, heads, blocks: how many there are.
      together: how many heads, of any batches, have their blocks taken together; it divides them.
      last_is_longest: whether of a head the last block takes the longest, and not the first.
      persistent: of how many blocks the kernel is that go through all of these; None if each is a
        block of its own.
    """

    batch: int
    heads: int
    blocks: int
    together: int = 1
    last_is_longest: bool = False
    persistent: int | None = None

    @classmethod
    def of(cls, batch: int, heads: int, blocks: int, sides: tuple, bytes_per_head: int) -> "Order":
        """For rows that see so many columns (behind, ahead) of them: `attention_band`."""
        behind, ahead = sides
        together, every = 1, batch * heads
        if sides != (None, None) and every * blocks > H100_SMS:  # else all run at once
            room = L2_BYTES / bytes_per_head
            divisors = (size for size in range(1, every + 1) if every % size == 0)
            together = min(divisors, key=lambda size: max(size / room, room / size))
        last_is_longest = ahead is not None and (behind is None or behind > ahead)
        return cls(batch, heads, blocks, together, last_is_longest)

    def on(self, sms: int) -> "Order":
        """That of a persistent kernel, unless so many SMs have a block each at once."""
        persistent = sms if self.batch * self.heads * self.blocks > sms else None
        return self._replace(persistent=persistent)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Of the kernel, along `AXES`."""
        if self.persistent is not None:
            return 1, 1, self.persistent
        if self.together == 1:
            return self.batch, self.heads, self.blocks
        return self.batch * self.heads // self.together, self.blocks, self.together

    def place(self, slowest: Any, slower: Any, fastest: Any) -> tuple[Any, Any, Any]:
        """The batch, the head and the block which are at an index of the grid."""
        batch, head, block = slowest, slower, fastest
        if self.together > 1:
            block, head = slower, slowest * self.together + fastest
            batch, heads = jnp.int32(0), jnp.int32(self.heads)
            if self.batch > 1:
                batch, head = lax.div(head, heads), lax.rem(head, heads)
        return batch, head, self.blocks - 1 - block if self.last_is_longest else block

    def visits(self, slowest: Any, slower: Any, fastest: Any) -> Visits:
        """What the block at an index of the grid goes through."""
        if self.persistent is None:
            here = self.place(slowest, slower, fastest)
            return Visits(1, lambda _: here)
        heads, blocks, every = map(jnp.int32, (self.heads, self.blocks, self.persistent))
        count = self.batch * self.heads * self.blocks

        def place(visit):
            number = fastest + visit * every
            head = lax.div(number, blocks)
            return lax.div(head, heads), lax.rem(head, heads), lax.rem(number, blocks)

        return Visits(lax.div(count - 1 - fastest, every) + 1, place)
