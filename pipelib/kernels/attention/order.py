"""The order in which the blocks of an attention kernel begin.

The model. A GPU gives the next block, by its number, to the first SM that is free. The blocks of
one head go through the same columns, so one after the other they find these in L2. This is a good
order if all blocks take equally long. If a mask leaves some blocks fewer steps, the longest block
of the last head begins late, and runs on when the other SMs have nothing left to do. For causal
blocks of 128 rows, 16 heads and 132 SMs this costs a tenth of the time with 8192 rows in a head,
and a fifth with 4096.

So the blocks of several heads are taken *together*, the longest blocks of all these heads first. No
other division of the work is more than a third faster than this rule (R. L. Graham, "Bounds on
Multiprocessing Timing Anomalies", 1969); here it is within 2% of no SM being idle. The number of
heads taken together is about as many as have room for their columns in L2, and divides the number
of all heads. Then the grid gives each block its place without a division, which would cost
registers. FlashAttention's schedulers for Hopper use the same two ideas
(`hopper/tile_scheduler.hpp` in its repository).

A kernel can be *persistent*. It has one block on each SM. Block b of B *visits* a place of each
round of B places, and loads for the next place while it works at one. If all places take equally
long, it takes place b of each round. In an order by length, the first block would get the longest
place of each round; so there the rounds go forth and back: block b takes place b of one round, and
place B - 1 - b of the next. This is persistent only if no block then gets much more than its share
(`IMBALANCE`), and if what the heads read together has room in L2. Else the GPU's own way, the next
place to the first that is free, is the better one: with all of 16 heads of 128 and 16,384 rows
together, it was faster by 5% on an H100.

Short blocks are an exception, by measurement: for them it is better to load ahead, even from HBM.
So if no number of heads within L2's room leaves each SM its share, more heads are taken
together (`SHORT`, `MOST_BYTES`). Of causal heads of 128 on an H200, that saved 3 to 8% with 768 to
1536 rows in a head (`tuned` has the times). It is no use in itself: 256 heads of 1024 rows, which
8 heads together balance, took 19% longer with all of them together.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pipelib import ring
from pipelib.kernels.choosing import H200
from pipelib.kernels.hopper import H100_SMS
from pipelib.refs import Int

#: A batch, a head, and a block of its rows: each an int32 scalar.
Place = tuple[Int, Int, Int]
#: The most bytes of columns of the heads that are taken together.
L2_BYTES = H200.l2_bytes
#: How much more than its share of the steps the block that has the most may have, of a persistent
#: kernel whose blocks have different numbers of steps.
IMBALANCE = 1.05
#: The most steps of a short block, and the most bytes of columns of the heads taken together if
#: blocks are short: the largest that were measured and gained.
SHORT, MOST_BYTES = 12, 72 * 2**20
#: The names of the axes of the grid. Blocks begin in the order of their indices.
AXES = ("slowest", "slower", "fastest")


@dataclasses.dataclass(frozen=True)
class BlockVisits:
    """The places that a block goes through.

    Attributes:
      count: how many there are: the int 1, or a traced number.
      place: gives the place of a visit, by the visit's number.
      vary: whether the visits of a block have different rows of a mask, and so other steps. Then
        the grid of `grid` is ragged.
    """

    count: Int
    place: Callable[[Int], Place]
    vary: bool = False

    @property
    def are_many(self) -> bool:
        """Whether there can be more than one."""
        return not isinstance(self.count, int)

    def grid(self, steps: ring.Size) -> tuple[ring.Size, ...]:
        """The grid of a pipeline with this many steps in each visit, or what it says of each."""
        return (self.count, steps) if self.are_many else (steps,)

    def split(self, indices: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        """The visit and the step in it, at an index of that grid."""
        visit, step = indices[:2] if self.are_many else (jnp.int32(0), *indices)
        return visit, step


class BlockOrder(NamedTuple):
    """The order of all blocks of a kernel.

    Attributes:
      batch, heads, blocks: the numbers of batches, of heads in a batch, of blocks in a head.
      together: how many heads, of any batches, have their blocks taken together; it divides the
        number of all heads.
      last_is_longest: whether the last block of a head takes the longest, and not the first.
      persistent: the number of blocks of a persistent kernel; None if it is not persistent.
      by_length: whether a persistent kernel takes the places in the order by length.
    """

    batch: int
    heads: int
    blocks: int
    together: int = 1
    last_is_longest: bool = False
    persistent: int | None = None
    by_length: bool = False

    @classmethod
    def of(
        cls,
        batch: int,
        heads: int,
        blocks: int,
        sides: tuple[int | None, int | None],
        bytes_per_head: int,
    ) -> "BlockOrder":
        """The order of blocks that run once each.

        Args:
          batch, heads, blocks: as the attributes.
          sides: how many columns a row sees, (behind, ahead): see `band`.
          bytes_per_head: bytes of the columns of a head.
        """
        behind, ahead = sides
        together, every = 1, batch * heads
        if sides != (None, None) and every * blocks > H100_SMS:  # else all run at once
            room = L2_BYTES / bytes_per_head
            together = min(_divisors(every), key=lambda size: max(size / room, room / size))
        last_is_longest = ahead is not None and (behind is None or behind > ahead)
        return cls(batch, heads, blocks, together, last_is_longest)

    def on(self, sms: int) -> "BlockOrder":
        """The order of a persistent kernel, unless these SMs hold all blocks at once."""
        persistent = sms if self.batch * self.heads * self.blocks > sms else None
        return self._replace(persistent=persistent)

    def by_length_on(
        self, sms: int, steps: tuple[int, ...], bytes_per_head: int | None = None
    ) -> "BlockOrder":
        """The order of a persistent kernel whose blocks take different numbers of steps.

        It takes as many heads together as this order does, or fewer, or else more if blocks are
        short, such that no SM has much more than its share. If there is no such number, it is this
        order.

        Args:
          sms: the number of SMs.
          steps: how many steps each block of a head takes.
          bytes_per_head: bytes of the columns of a head; None: no more heads.
        """
        every = self.batch * self.heads
        if every * self.blocks <= sms:
            return self
        divisors = _divisors(every)
        numbers = [n for n in reversed(divisors) if n <= self.together]
        if bytes_per_head is not None and max(steps) <= SHORT:
            most = MOST_BYTES // bytes_per_head
            numbers += [n for n in divisors if self.together < n <= most]
        if len(set(steps)) == 1:  # then each number is as good as another
            numbers = numbers[:1]
        for together in numbers:
            order = self._replace(together=together, persistent=sms, by_length=True)
            if order.imbalance(sms, steps) <= IMBALANCE:
                return order
        return self

    def imbalance(self, sms: int, steps: tuple[int, ...]) -> float:
        """The steps of the block that has the most, over the mean, of a kernel by length.

        Args:
          sms, steps: as `by_length_on` takes them.
        """
        every = self.batch * self.heads
        return _imbalance(sms, steps, self.together, every, self.last_is_longest)

    @property
    def grid(self) -> tuple[int, int, int]:
        """The grid of the kernel, along `AXES`."""
        if self.persistent is not None:
            return 1, 1, self.persistent
        if self.together == 1:
            return self.batch, self.heads, self.blocks
        return self.batch * self.heads // self.together, self.blocks, self.together

    def place(self, slowest: jax.Array, slower: jax.Array, fastest: jax.Array) -> Place:
        """The place of a block, by its index in the grid."""
        batch, head, block = slowest, slower, fastest
        if self.together > 1:
            block, head = slower, slowest * self.together + fastest
            batch, heads = jnp.int32(0), jnp.int32(self.heads)
            if self.batch > 1:
                batch, head = lax.div(head, heads), lax.rem(head, heads)
        return batch, head, self.blocks - 1 - block if self.last_is_longest else block

    def visits(self, slowest: jax.Array, slower: jax.Array, fastest: jax.Array) -> BlockVisits:
        """The visits of the block at an index of the grid."""
        if self.persistent is None:
            here = self.place(slowest, slower, fastest)

            def only_place(visit: Int) -> Place:
                del visit
                return here

            return BlockVisits(1, only_place)
        if self.by_length:
            return self._visits_by_length(fastest, self.persistent)
        heads, blocks, every = map(jnp.int32, (self.heads, self.blocks, self.persistent))
        count = self.batch * self.heads * self.blocks

        def place(visit: Int) -> Place:
            number = fastest + visit * every
            head = lax.div(number, blocks)
            return lax.div(head, heads), lax.rem(head, heads), lax.rem(number, blocks)

        return BlockVisits(lax.div(count - 1 - fastest, every) + 1, place)

    def _visits_by_length(self, index: jax.Array, every: int) -> BlockVisits:
        """The visits of the block `index` of `every`: the rounds go forth and back."""
        rounds, rest = divmod(self.batch * self.heads * self.blocks, every)

        def in_round(visit: Int) -> Int:
            return jnp.where(lax.rem(visit, jnp.int32(2)) == 0, index, every - 1 - index)

        together, heads = jnp.int32(self.together), jnp.int32(self.heads)
        in_group = jnp.int32(self.together * self.blocks)

        def place(visit: Int) -> Place:
            number = visit * every + in_round(visit)
            group, number = lax.div(number, in_group), lax.rem(number, in_group)
            block = lax.div(number, together)
            head = group * together + lax.rem(number, together)
            block = self.blocks - 1 - block if self.last_is_longest else block
            return lax.div(head, heads), lax.rem(head, heads), block

        last = jnp.where(in_round(jnp.int32(rounds)) < rest, 1, 0)
        count = rounds + last.astype(jnp.int32)
        return BlockVisits(count, place, vary=True)


@functools.lru_cache(maxsize=256)
def _divisors(number: int) -> tuple[int, ...]:
    """All divisors of a number, the least first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


@functools.lru_cache(maxsize=256)
def _imbalance(
    sms: int, steps: tuple[int, ...], together: int, heads: int, last_is_longest: bool
) -> float:
    """The most steps of a persistent kernel's block over the mean, in the order by length."""
    lengths = np.repeat(steps[::-1] if last_is_longest else steps, together)
    lengths = np.tile(lengths, heads // together)
    rounds = np.zeros((-(-len(lengths) // sms), sms), lengths.dtype)
    rounds.flat[: len(lengths)] = lengths
    rounds[1::2] = rounds[1::2, ::-1]
    return float(rounds.sum(axis=0).max() / (lengths.sum() / sms))
