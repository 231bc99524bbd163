"""How long an access occupies shared memory, from the addresses that its lanes want.

The model. Shared memory has 32 banks. Each gives or takes one word of 4 bytes at a time, all
together one **wavefront** of 128 bytes at most. The memory serves the 32 lanes of a warp together
if each lane moves up to 4 bytes at once, by halves of the warp if each moves 8, by quarters if each
moves 16. Lanes that want the same word share it. Different words of one bank take one wavefront
each: a **bank conflict**. So a group of lanes takes as many wavefronts as it wants different words
of the bank that it wants most of.

A swizzle of 32, 64 or 128 bytes moves chunks of 16 bytes within their line of 128 bytes: the
chunk's number becomes its exclusive or with the lowest 1, 2 or 3 bits of the line's number.

Not covered: an access that begins where it is not a multiple of what a lane moves at once.
Source: NVIDIA, "CUDA C++ Programming Guide", shared memory of compute capability 5.x to 9.0 (banks,
words that are shared); the halves and quarters of a warp, and that a wavefront takes a cycle, are
measured: the probes "... bytes a lane" and "accumulator's ..." of `benchmarks/probes.py`, which
`tests/pallascope/test_machine.py` holds this arithmetic against.
"""

import math
from collections.abc import Sequence

import numpy as np

from pallascope.machine import WARP_LANES, WAVEFRONT_BYTES

WORD_BYTES, MOST_BYTES = 4, 16
BANKS = WAVEFRONT_BYTES // WORD_BYTES
_CHUNK_BYTES = 16


def wavefronts(addresses: np.ndarray, itemsize: int) -> int:
    """What accesses take one after another.

    Args:
      addresses: the elements' addresses in bytes, int of shape (accesses, 32 lanes, elements of a
        lane).
      itemsize: bytes of an element.
    """
    elements = addresses.shape[2]
    at_once = max(1, min(elements, MOST_BYTES // itemsize))
    # What a lane moves beyond 16 bytes is another instruction's.
    parts = addresses.reshape(-1, WARP_LANES, elements // at_once, at_once).swapaxes(1, 2)
    lanes = WARP_LANES // max(1, at_once * itemsize // WORD_BYTES)
    groups = parts.reshape(-1, lanes * at_once)
    first = groups // WORD_BYTES
    words = [first + i for i in range(max(1, itemsize // WORD_BYTES))]
    return int(_most_of_a_bank(np.concatenate(words, axis=1)).sum())


def _most_of_a_bank(words: np.ndarray) -> np.ndarray:
    """For each row of words, the most different words that it has of one bank."""
    words = np.sort(words, axis=1)
    new = np.ones(words.shape, bool)
    new[:, 1:] = words[:, 1:] != words[:, :-1]
    rows, _ = np.nonzero(new)
    counts = np.zeros((len(words), BANKS), np.int64)
    np.add.at(counts, (rows, words[new] % BANKS), 1)
    return counts.max(axis=1)


def fewest(accesses: int, elements: int, itemsize: int) -> int:
    """The wavefronts that accesses of a warp take without conflicts."""
    return accesses * max(1, elements * itemsize // WORD_BYTES)


def swizzled(addresses: np.ndarray, swizzle: int) -> np.ndarray:
    """Where memory with a swizzle in bytes, 0 for none, has what is at these addresses."""
    if not swizzle:
        return addresses
    line = addresses // WAVEFRONT_BYTES % (swizzle // _CHUNK_BYTES)
    return addresses ^ (line * _CHUNK_BYTES)


def tiled(array: np.ndarray, tiles: Sequence[Sequence[int]]) -> np.ndarray:
    """An array cut into tiles, these into the next and so on: each cuts the last axes, the sizes of
    the tiles themselves being the last axes of the result."""
    for tile in tiles:
        rank = len(tile)
        outer, cut = array.shape[:-rank], array.shape[-rank:]
        pairs = [size for whole, part in zip(cut, tile) for size in (whole // part, part)]
        first = len(outer)
        order = [*range(first), *range(first, first + 2 * rank, 2)]
        order += range(first + 1, first + 2 * rank, 2)
        array = array.reshape(*outer, *pairs).transpose(order)
    return array


def untiled(array: np.ndarray, tile: Sequence[int]) -> np.ndarray:
    """The array that `tiled` cut into such tiles."""
    rank = len(tile)
    first = array.ndim - 2 * rank
    order = [*range(first)]
    for axis in range(rank):
        order += [first + axis, first + rank + axis]
    sizes = array.shape[first : first + rank]
    whole = [size * part for size, part in zip(sizes, tile)]
    return array.transpose(order).reshape(*array.shape[:first], *whole)


def strided_lanes(addresses: np.ndarray, elements: int) -> np.ndarray:
    """What each lane has of an array that is dealt out in row-major order, `elements` at a time."""
    return addresses.reshape(-1, WARP_LANES, elements)


def tiled_lanes(
    addresses: np.ndarray, tiles: Sequence[Sequence[int]], lanes: Sequence[int], vector: int
) -> np.ndarray:
    """The addresses that each lane has of an array in tiles.

    Args:
      addresses: of the array's elements, in bytes.
      tiles: what the array is cut into, one after the other, as for `tiled`.
      lanes: for each axis of lanes, the axis of the tiled array along which they differ, a negative
        number; or, as a positive number, how many lanes have the same.
      vector: the axis of a lane's elements, a negative number.

    Returns:
      int of shape (accesses, 32 lanes, elements of a lane).
    """
    array = tiled(addresses, tiles)
    own = [axis for axis in lanes if axis < 0]
    array = np.moveaxis(array, [*own, vector], range(-1 - len(own), 0))
    sizes = iter(array.shape[-1 - len(own) : -1])
    spread = [next(sizes) if axis < 0 else 1 for axis in lanes]
    full = [size if axis < 0 else axis for axis, size in zip(lanes, spread)]
    outer = math.prod(array.shape[: -1 - len(own)])
    array = array.reshape(outer, *spread, array.shape[-1])
    return np.broadcast_to(array, (outer, *full, array.shape[-1])).reshape(
        outer, WARP_LANES, array.shape[-1]
    )
