"""A head in SMEM as copies and products see it: whole, or piece by piece.

The model. Where the arrays of a problem divide into pieces (`pipelib.tiles`), a copy brings rows of
a head as they are, and one product multiplies all of its columns. Else copies see rows
(`Sizes.by_rows`): a head is some pieces wide, of which the last may be wider than the array. Each
piece has a copy, an array in SMEM, and a product of its own. A *piece* is named by its number; None
is the head as a whole.
"""

# What it asks of JAX has no types.
# pyright: basic

from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs, tiles
from pipelib.kernels.attention.band import Sizes
from pipelib.refs import Accumulator, Dtype, Ref


class InPieces:
    """What compute threads have in common that read rows of a head.

    Attributes:
      sizes: of the problem.
    """

    sizes: Sizes

    @property
    def dtype(self) -> Dtype:
        """That of the rows."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """The columns of a piece."""
        return tiles.piece_columns(self.dtype)

    def pieces(self, head_dim: int) -> tuple[int | None, ...]:
        """The pieces of a head."""
        return tuple(range(head_dim // self.width)) if self.sizes.by_rows else (None,)

    def columns(self, rows: Ref, piece: int | None) -> Ref:
        """A piece's columns of rows in GMEM, which the last piece may be wider than."""
        if piece is None:
            return rows
        return rows.at[:, specs.maybe_beyond(piece * self.width, self.width)]

    def cut(self, array: Any, piece: int | None) -> Any:
        """A piece's columns of an array in registers."""
        return array if piece is None else array[:, piece * self.width : (piece + 1) * self.width]

    def multiply_rows(self, acc: Accumulator, rows: Ref, slot: Ref) -> None:
        """Queues rows times a slot's rows, transposed: a product for each piece of a head."""
        for piece in self.pieces(self.sizes.head_dim):
            plgpu.wgmma(acc, piece_of(rows, piece), piece_of_slot(slot, piece).transpose((1, 0)))

    def multiply_columns(self, acc: Accumulator, factor: Any, slot: Ref, head_dim: int) -> None:
        """Queues a factor times a slot's columns, `head_dim` of them: a product for each piece."""
        for piece in self.pieces(head_dim):
            if piece is None:
                plgpu.wgmma(acc, factor, slot)
                continue
            columns = pl.ds(piece * self.width, self.width)
            plgpu.wgmma(acc.at[:, columns], factor, piece_of_slot(slot, piece))


def allocation(threads: int, rows: int, head_dim: int, dtype: Dtype) -> plgpu.RefUnion:
    """Rows of a head for each thread, in pieces, as products read them and as copies see them."""
    width = tiles.piece_columns(dtype)
    return tiles.by_rows((threads, head_dim // width, rows, width), dtype)


def piece_of(field: Ref, piece: int | None) -> Ref:
    """A piece of scratch memory."""
    return field if piece is None else field.at[piece]


def piece_of_slot(slot: Ref, piece: int | None) -> Ref:
    """A piece of a slot, which has no axis of pieces if it is one piece wide."""
    return piece_of(slot, piece if len(slot.shape) == 3 else None)
