"""`Visits`: the tiles of rows that a product of groups has.

The model. A *visit* is a tile of rows of one group. The visits of a group begin at its first row,
so a tile has rows of one group alone; the last one of a group may be cut short. The rows behind the
last group are a group of their own, whose result is zeros. How many visits there are depends on the
sizes, which only the GPU knows: the arrays have room for as many as there can be.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Visits(NamedTuple):
    """All visits, in the order of their rows.

    Attributes:
      number: int32 [1], how many there are.
      group: int32 [most], the group of each; the number of groups for rows of none.
      row, stop: int32 [most], its first row, and the row behind its group's last.
    """

    number: jax.Array
    group: jax.Array
    row: jax.Array
    stop: jax.Array

    @classmethod
    def of(cls, sizes: jax.Array, rows: int, tile: int) -> "Visits":
        """The visits of groups of these sizes.

        Args:
          sizes: int32 [groups]. Negative ones count as 0, and rows past the end are left out.
          rows: how many rows there are.
          tile: the rows of a tile.
        """
        stops = jnp.minimum(jnp.cumsum(jnp.maximum(sizes, 0)), rows)
        stops = jnp.append(stops, jnp.int32(rows)).astype(jnp.int32)
        starts = jnp.append(jnp.int32(0), stops[:-1])
        last = jnp.cumsum(-(-(stops - starts) // tile))  # the visits up to and with each group
        visit = jnp.arange(most_visits(rows, len(sizes), tile), dtype=jnp.int32)
        group = jnp.searchsorted(last, visit, side="right", method="compare_all").astype(jnp.int32)
        own = jnp.minimum(group, len(sizes))
        before = jnp.append(jnp.int32(0), last[:-1])[own]
        row = starts[own] + (visit - before) * tile
        return cls(last[-1:].astype(jnp.int32), own, row.astype(jnp.int32), stops[own])


def most_visits(rows: int, groups: int, tile: int) -> int:
    """The most visits that so many groups can have, with that of the rows of none."""
    return (rows + (groups + 1) * (tile - 1)) // tile
