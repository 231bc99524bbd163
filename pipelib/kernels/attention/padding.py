"""`Padding`: arrays with zeros at their ends, so that copies can address them.

The model. The kernels have heads of 64, 128 and 256, and copies address sequences of multiples of 8
(`pipelib.tiles`). In 16 bits, but not in JAX's interpreter, copies see rows instead: of the forward
kernel any, of the gradients those of heads that are as many pieces wide as one of these. All else
is filled up with zeros, and cut off from the results::

    more of a head of q and k       adds 0 to each score
    more of a head of v             makes numbers of the result that are cut off
    more queries                    make rows of the result that are cut off
    more keys                       are masked: the kernels are told how many there are (`keys`)

Filling and cutting read and write each array once.
"""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from pipelib.kernels.attention.config import HEAD_DIMS
from pipelib.refs import Shaped
from pipelib.tiles import PIECE_ROWS, piece_columns


class Padding(NamedTuple):
    """What is added to the arrays of a problem.

    Attributes:
      queries, keys: the tokens of q, and of k and v.
      values: the size of a head of v, and of the result.
      head_dim: the size of a head that the kernels get.
    """

    queries: int
    keys: int
    values: int
    head_dim: int

    @classmethod
    def of(cls, q: Shaped, k: Shaped, v: Shaped) -> Self | None:
        """The padding of a problem; None if its heads are larger than the kernels' largest."""
        largest = max(q.shape[-1], v.shape[-1], piece_columns(q.dtype))
        fitting = [head_dim for head_dim in HEAD_DIMS if head_dim >= largest]
        return cls(q.shape[1], k.shape[1], v.shape[-1], fitting[0]) if fitting else None

    def filled(self, array: jax.Array) -> jax.Array:
        """q, k or v, [batch, seq, heads, head_dim], or segments [batch, seq], filled up."""
        widths = [(0, 0), (0, -array.shape[1] % PIECE_ROWS), *[(0, 0)] * (array.ndim - 2)]
        if array.ndim == 4:
            widths[3] = 0, self.head_dim - array.shape[3]
        return jnp.pad(array, widths) if any(more for _, more in widths) else array  # pyright: ignore[reportUnknownMemberType]

    def cut(self, out: jax.Array, lse: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The result and the log-sum-exp, as large as they were asked for."""
        return out[:, : self.queries, :, : self.values], lse[:, :, : self.queries]
