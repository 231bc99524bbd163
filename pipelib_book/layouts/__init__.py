"""Which lane holds which element of a tile, and what it costs to move the tile: the numbers of a
page on which a reader tries layouts.

The model. A **combination** is a choice from each of the page's menus: how wide a number is, the
tile's shape, the swizzle of its memory, the layout of the registers, and the access. `pallascope`
says of it which element each lane has, at which address each element lies, and how many wavefronts
the access takes. The page's script only draws these answers.

Every size here is a power of two, so each answer is a table that its entries at 1, 2, 4, 8, ...
give by exclusive or: entry 5 is entry 4 xor entry 1. The page gets these entries alone (`basis`),
and `basis` refuses a table of which this is not true.

| table | from | to |
| --- | --- | --- |
| elements | instruction, lane and the lane's element, in one | the element, in row-major order |
| warps | instruction | the warp that issues it |
| places | element | its address in SMEM, in bytes |
| turns | as elements | in which wavefront of its group of lanes the element is moved |

Lanes whose words the memory serves together are a **group**: all of a warp if each moves up to 4
bytes, half of them for 8, a quarter for 16 (`pallascope.tracing.banks`). Groups of one combination
all take the same number of wavefronts.

Not covered: tiles of more than 8 kB, instructions of more than 16 bytes a lane, memory in tiles
that are not swizzled, layouts of Blackwell's tensor memory and of `plgpu.mma`.
"""

import functools
import itertools
import json
import math
from typing import Any, NamedTuple

import numpy as np
from jax.experimental.mosaic.gpu import fragmented_array
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallascope.machine import THREAD_LANES, WARP_LANES, WAVEFRONT_BYTES
from pallascope.tracing import banks
from pallascope.tracing.layouts import Addressing, Change

BITS = {16: "float16, bfloat16", 32: "float32", 8: "int8, float8"}
SHAPES = {"64 x 64": (64, 64), "64 x 128": (64, 128), "64 x 32": (64, 32), "64 x 16": (64, 16)}
SWIZZLES = {0: "none", 32: "32 bytes", 64: "64 bytes", 128: "128 bytes"}
_WARPS, _TILE_ROWS, _MOST_BYTES, _NO_SWIZZLE = THREAD_LANES // WARP_LANES, 8, 8192, 16
_WHOLE = "WGMMA", "WGMMA_TRANSPOSED", "WGMMA_8BIT", "WGMMA_UPCAST_2X", "WGMMA_UPCAST_4X"
_VECTORS = {"WGMMA.reduce(1)": 0, "WGMMA.reduce(0)": 1}  # the axis of the tile that is left
_TILED: dict[str, Any] = {name: plgpu.Layout[name].to_mgpu() for name in _WHOLE}
_TILED |= {name: plgpu.Layout.WGMMA.reduce(1 - left).to_mgpu() for name, left in _VECTORS.items()}
LAYOUTS = (*_TILED, "WG_STRIDED", "WG_SPLAT")


class Combination(NamedTuple):
    """A choice from each menu.

    Attributes:
      bits: of an element.
      shape: of the tile.
      swizzle: of its memory, in bytes; 0 for memory without tiles.
      layout: of the registers, a name of `LAYOUTS`.
      width: the bytes that a lane moves at once.
      is_transposed: whether the memory holds the tile's transpose.
    """

    bits: int
    shape: tuple[int, int]
    swizzle: int
    layout: str
    width: int
    is_transposed: bool

    @property
    def array(self) -> tuple[int, ...]:
        """The shape of the array in registers: the tile's, or one axis of it."""
        axis = _VECTORS.get(self.layout)
        return self.shape if axis is None else (self.shape[axis],)

    @property
    def elements(self) -> int:
        """How many elements a lane moves at once."""
        return self.width * 8 // self.bits

    @property
    def memory(self) -> Addressing:
        """Where SMEM has the array's elements."""
        itemsize = self.bits // 8
        shape = self.array[::-1] if self.is_transposed else self.array
        steps = ((Change.TRANSPOSE, (1, 0)),) if self.is_transposed else ()
        if self.swizzle:
            tile = _TILE_ROWS, self.swizzle // itemsize
            shape = (shape[0] // tile[0], shape[1] // tile[1], *tile)
            steps = ((Change.UNTILE, tile), *steps)
        return Addressing(shape, itemsize, self.swizzle, steps)

    @property
    def registers(self) -> Any:
        """The layout by which lanes move the array. The compiler chooses it for a splat."""
        if self.layout in _TILED or self.swizzle:
            return _TILED.get(self.layout, _TILED["WGMMA"])
        return plgpu.Layout.WG_STRIDED(self.array, vec_size=self.elements).to_mgpu()

    @property
    def is_possible(self) -> bool:
        """Whether a kernel can have this combination, and the page shows it."""
        rows, columns = self.shape[::-1] if self.is_transposed else self.shape
        if rows * columns * self.bits // 8 > _MOST_BYTES or self.elements < 1:
            return False
        if self.swizzle and columns * self.bits // 8 % self.swizzle:
            return False
        if self.layout in _TILED:
            layout = _TILED[self.layout]
            fits = not any(n % t for n, t in zip(self.array, layout.tiling.tiles[0], strict=True))
            is_as_stored = self.is_transposed == (self.layout == "WGMMA_TRANSPOSED")
            has_memory = not (self.swizzle and self.layout in _VECTORS)
            return fits and is_as_stored and has_memory and self.elements == layout.vector_length
        if self.layout == "WG_SPLAT":  # a write of 8 bytes a lane, or as WGMMA
            width = self.bits // 4 if self.swizzle else 8
            return not self.is_transposed and self.width == width
        is_dealt_out = math.prod(self.shape) % (THREAD_LANES * self.elements) == 0
        return not self.swizzle and is_dealt_out and not (self.is_transposed and self.elements > 1)

    @property
    def access(self) -> str:
        """What the menu of accesses calls it."""
        what = "write" if self.layout == "WG_SPLAT" else "read or write"
        size = "1 byte" if self.width == 1 else f"{self.width} bytes"
        return f"{what}, {size} a lane{', transposed' if self.is_transposed else ''}"


@functools.cache
def combinations() -> tuple[Combination, ...]:
    """All combinations that the page shows."""
    menus = itertools.product(
        BITS, SHAPES.values(), SWIZZLES, LAYOUTS, (1, 2, 4, 8, 16), (False, True)
    )
    return tuple(c for c in itertools.starmap(Combination, menus) if c.is_possible)


def numbers(c: Combination) -> dict[str, Any]:
    """What the page's script draws of a combination: tables, as `basis` packs them, and counts."""
    addresses = c.memory.addresses()
    elements, warps = held(c.array, c.registers)
    moved = addresses.reshape(-1)[elements]
    group = WARP_LANES // max(1, c.width // banks.WORD_BYTES)
    turn = turns(moved, group)
    kept = _VECTORS.get(c.layout)
    return {
        "choice": [c.bits, f"{c.shape[0]} x {c.shape[1]}", c.swizzle, c.layout, c.access],
        "array": [n if kept in (None, axis) else 1 for axis, n in enumerate(c.shape)],
        "elements": basis(elements),
        "warps": basis(warps),
        "places": basis(addresses),
        "turns": basis(turn),
        "instructions": len(elements),
        "held": c.elements,
        "group": group,
        "turn": int(turn.max()) + 1,
        "wavefronts": banks.wavefronts(moved, c.bits // 8),
        "least": banks.fewest(len(elements), c.elements, c.bits // 8),
        "full": addresses.size * c.bits // 8 // WAVEFRONT_BYTES,
        "compiler": compiler(c),
    }


def held(shape: tuple[int, ...], layout: Any) -> tuple[np.ndarray, np.ndarray]:
    """Which elements each lane moves, and the warp of each instruction.

    Returns:
      int of shape (instructions, 32 lanes, elements of a lane), the elements numbered in row-major
      order; int of shape (instructions,).
    """
    array = np.arange(math.prod(shape)).reshape(shape)
    if not hasattr(layout, "tiling"):
        elements = banks.strided_lanes(array, layout.vec_size)
        return elements, np.arange(len(elements)) % _WARPS
    lanes = [getattr(axis, "times", axis) for axis in layout.lane_dims]
    elements = banks.tiled_lanes(array, layout.tiling.tiles, lanes, layout.vector_dim)
    (axis,) = layout.warp_dims
    if hasattr(axis, "times"):  # all warps have the same
        return np.tile(elements, (_WARPS, 1, 1)), np.repeat(np.arange(_WARPS), len(elements))
    warps = np.moveaxis(banks.tiled(array, layout.tiling.tiles), axis, 0).reshape(_WARPS, -1)
    return elements, np.argsort(warps, axis=None)[elements[:, 0, 0]] // warps.shape[1]


def turns(addresses: np.ndarray, group: int) -> np.ndarray:
    """In which wavefront of its group each element is moved, of the shape of `addresses`.

    Words of one bank come one after the other, in order of their addresses.
    """
    words = addresses.reshape(-1, group * addresses.shape[2]) // banks.WORD_BYTES
    mine, other = words[:, :, None], words[:, None, :]
    is_first = ~np.tril(mine == other, -1).any(axis=2)
    is_before = (other < mine) & ((mine - other) % banks.BANKS == 0) & is_first[:, None, :]
    return is_before.sum(axis=2).reshape(addresses.shape)


def basis(table: np.ndarray) -> list[int]:
    """The entries at 1, 2, 4, 8, ... of a table whose other entries are the exclusive or of these.

    Raises:
      ValueError: the table has other entries.
    """
    flat = table.reshape(-1)
    entries = [int(flat[1 << bit]) for bit in range(flat.size.bit_length() - 1)]
    both = lambda table, entry: np.concatenate([table, table ^ entry])
    spread = functools.reduce(both, entries, np.zeros(1, np.int64))
    if not np.array_equal(spread, flat):
        raise ValueError(f"A table of shape {table.shape} is no exclusive or of {entries}.")
    return entries


def compiler(c: Combination) -> str:
    """What Mosaic GPU makes of an access by default: "as drawn", "staggered" or "refused".

    Staggered, half of the lanes go to another tile first. The compiler looks for conflicts in tiled
    layouts only.
    """
    layout, itemsize = c.registers, c.bits // 8
    if not hasattr(layout, "tiling"):
        return "as drawn"
    tile = (_TILE_ROWS, c.swizzle // itemsize) if c.swizzle else c.array
    places = c.memory._replace(swizzle=0).addresses() // itemsize
    nested: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for axis, (size, part) in enumerate(zip(c.array, tile[::-1] if c.is_transposed else tile)):
        line = np.moveaxis(places, axis, 0).reshape(size, -1)[:, 0].tolist()
        parts = (size // part, part), (line[part % size], line[1])
        nested.append(parts if part < size else ((size,), (line[1],)))
    try:
        swizzle = c.swizzle or _NO_SWIZZLE
        shape, strides = zip(*nested)
        plan = fragmented_array.plan_tiled_transfer(shape, strides, layout, c.bits, swizzle)
    except fragmented_array.TransferPlanDerivationError:
        return "refused"
    return "as drawn" if type(plan).__name__ == "TrivialTransferPlan" else "staggered"


def data() -> str:
    """The numbers of all combinations, as JSON, with what the menus call them."""
    by_width = sorted(combinations(), key=lambda c: (c.is_transposed, c.width))
    plain = SHAPES, LAYOUTS, (c.access for c in by_width)
    shapes, names, accesses = ({name: name for name in menu} for menu in plain)
    menus = [[*menu.items()] for menu in (BITS, shapes, SWIZZLES, names, accesses)]
    made = {"menus": menus, "combinations": [numbers(c) for c in combinations()]}
    return json.dumps(made, separators=(",", ":"))
