"""Memory in tiles, as `wgmma` reads it, and the same memory in rows, as a copy may write it.

The model. A *piece* is 8 rows x 128 bytes. `wgmma` reads SMEM that is *tiled*: divided into pieces,
and swizzled so that the rows of a piece lie in different banks. A copy of such memory takes the
array in GMEM for pieces, too, so JAX asks that the array divide into them: a multiple of 8 rows (or
at most 8), each of a multiple of 128 bytes.

Where a block is one piece wide, its pieces lie below each other, so its rows do: memory in tiles
has the same bytes as swizzled rows without tiles. As rows, a copy treats the array as what it is.
TMA then asks only that rows begin at multiples of 16 bytes, and fills what is beyond the array's
end with zeros, or leaves it out of a store. `by_rows` gives both refs of one memory.

JAX promises nothing about two refs of a union that are in use at the same time, and its interpreter
gives each its own memory. So this is for GPUs only.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple, cast

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike

from pipelib.refs import Ref

#: Rows of a piece, and bytes of its rows.
PIECE_ROWS, SWIZZLE = 8, 128
#: Bytes at whose multiples a row begins that TMA can address. Source: CUDA driver API,
#: `cuTensorMapEncodeTiled`, `globalStrides`.
TMA_BYTES = 16


class Both(NamedTuple):
    """Two refs of one memory: in tiles, for `wgmma`, and by rows, for copies."""

    tiles: Ref
    rows: Ref


def both(memory: Ref, is_by_rows: bool) -> Both:
    """Both refs of memory that may be allocated `by_rows`; else they are the same."""
    if not is_by_rows:
        return Both(memory, memory)
    return Both(*cast(Iterable[Ref], memory))  # a union gives its refs


def tiled(dtype: DTypeLike) -> tuple[plgpu.Transform, ...]:
    """The transforms of SMEM that is divided into pieces."""
    piece = PIECE_ROWS, piece_columns(dtype)
    # These classes leave out a method of their protocol, which JAX does not call for them.
    return (
        plgpu.TilingTransform(piece),  # pyright: ignore[reportAbstractUsage]
        plgpu.SwizzleTransform(SWIZZLE),  # pyright: ignore[reportAbstractUsage]
    )


def piece_columns(dtype: DTypeLike) -> int:
    """Elements of a piece's row."""
    return SWIZZLE // jnp.dtype(dtype).itemsize


def has_pieces(shape: tuple[int, ...], dtype: DTypeLike) -> bool:
    """Whether an array [rows, columns] divides into pieces."""
    rows, columns = shape
    return columns % piece_columns(dtype) == 0 and (rows <= PIECE_ROWS or rows % PIECE_ROWS == 0)


def whole_pieces(shape: tuple[int, int], dtype: DTypeLike) -> tuple[int, int]:
    """The smallest shape that has as many rows and columns, or more, and divides into pieces."""
    rows, columns = shape
    width = piece_columns(dtype)
    return math.ceil(rows / PIECE_ROWS) * PIECE_ROWS, math.ceil(columns / width) * width


def has_rows(shape: tuple[int, ...], dtype: DTypeLike) -> bool:
    """Whether TMA can address the rows of an array [rows, columns]."""
    return shape[1] * jnp.dtype(dtype).itemsize % TMA_BYTES == 0


def by_rows(shape: tuple[int, ...], dtype: DTypeLike) -> plgpu.RefUnion:
    """SMEM in tiles that copies see as rows: scratch memory, of which a kernel gets `Both` refs.

    Args:
      shape: [..., columns], one piece wide.
      dtype: of the elements.
    """
    tiles, rows = (plgpu.SMEM(shape, dtype, transforms=x) for x in (tiled(dtype), tiled(dtype)[1:]))
    return plgpu.RefUnion(tiles, rows)
