"""How the lanes of a thread reach shared memory: layouts of memory and of registers.

The model. An access of SMEM is charged by its wavefronts (`banks`), which follow from
where memory has each element and from which elements a lane moves at once.

*Memory.* A ref's transforms say where its elements are: tiles, a swizzle, indices, transposes and
reshapes. An index that only the run of a thread knows counts as 0: it moves all addresses by a
multiple of a tile. Without tiles and swizzle, elements are in row-major order.

*Registers.* The layout of a value is known in three cases: the kernel says it (`layout_cast`,
`load(layout=...)`); the value is an accumulator's (WGMMA); it is computed from such values element
by element, by a reduction or through a loop. Elsewhere Mosaic GPU chooses: WGMMA for memory in
tiles, and else 8 bytes side by side for each lane in turn (WG_STRIDED).

*What Mosaic GPU makes of both.* For values in a tiled layout (WGMMA and its kin) the compiler
proves that no banks conflict, or refuses. If need be, it lets half of the lanes go to another tile
first. By default, under warpgroup semantics, it also gives tiles to memory that is declared without
them, if such a value meets it: 8 rows of 128, 64 or 32 bytes, swizzled. So banks conflict if a
kernel asks for it (`optimized=False`) and, in JAX 0.11, if a value is written to memory without
tiles: under lane semantics, or because no tiles fit the shape. The compiler does not check rows
side by side, as in a transposed view; here their conflicts count too.

*Reductions.* Each lane reduces what it has. Lanes of a warp that have parts of one result then
pass these to each other by shuffles, and each round halves what is left to combine: the 4 lanes of
a row of WGMMA take two rounds, for each row that they hold. Parts of several warps go through SMEM:
each lane writes its part and reads the parts of all these warps. All 128 lanes reduce an array to
one number in this way. To reduce it to several, Mosaic GPU needs a tiled layout: WGMMA, unless the
kernel says another.

*The scratch of reductions.* The parts of several warps go through a scratch that begins where the
SMEM of the scopes ends that are open there, at the same place for every Pallas thread of the block
(`offset` in `_reduce_lowering_rule_wg`, `scratch_view` in `_reduce_lowering_rule`). A warpgroup
barrier on either side keeps the lanes of one thread in order, and nothing keeps two threads in
order. Mosaic GPU reserves `reduction_scratch_bytes` of `plgpu.CompilerParams` for it where there is
any reduction, also one that stays within warps (`_reduce_resource_estimator`), and rounds them up
to 1,024. Where a layout is not known, an array of two axes or more that is reduced to one number
counts as spread over the warps: of the layouts that Mosaic GPU chooses itself, only those of
`plgpu.mma` are not. Of other arrays it is not known.

Not covered, and then None: elements of less than a byte, bitcasts, unions of refs, slices whose
sizes depend on the run, and layouts that do not fit the shape. Not covered either: memory to which
two accesses of one ref would give different swizzles; layouts that only a later use of a value
says; two values of 16 bits side by side that lanes pass as one word.
Source: `layout_inference.py`, `constraints.py`, `dialect_lowering.py` and `fragmented_array.py` of
`jax.experimental.mosaic.gpu` and `jax/_src/pallas/mosaic_gpu/lowering.py` in JAX 0.11.2 and
0.12.0.1, and the layouts that they gave to the accesses of the kernels in
`tests/pallascope/corpus.py`, all of which take what is counted here.
"""

import enum
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallascope.machine import THREAD_LANES, WARP_LANES
from pallascope.tracing import banks
from pallascope.tracing.arithmetic import Scratch
from pallascope.tracing.jaxprs import Atom, Aval, Eqn, Layout, Transforms
from pallascope.tracing.state import bits_of

_STRIDED_BYTES = 8
_SWIZZLES, _TILE_ROWS = (128, 64, 32), 8


class Change(enum.Enum):
    """How a transform rearranges an array of addresses."""

    UNTILE = enum.auto()
    INDEX = enum.auto()
    TRANSPOSE = enum.auto()
    RESHAPE = enum.auto()


class Addressing(NamedTuple):
    """Where a view of SMEM has its elements.

    Memory of a `shape` is in row-major order, its elements of `itemsize` bytes, swizzled by
    `swizzle` bytes (0 if it is not). `steps` say what was done to it, from first to last: a change,
    and the tile, the indices, the order or the shape for it.
    """

    shape: tuple[int, ...]
    itemsize: int
    swizzle: int
    steps: tuple[tuple[Change, tuple[Any, ...]], ...]

    @property
    def is_tiled(self) -> bool:
        """Whether the memory is in tiles."""
        return any(change is Change.UNTILE for change, _ in self.steps)

    def addresses(self) -> np.ndarray:
        """The addresses of the view's elements, int64 of its shape, in bytes from the start of the
        memory."""
        flat = np.arange(math.prod(self.shape), dtype=np.int64) * self.itemsize
        array = banks.swizzled(flat, self.swizzle).reshape(self.shape)
        for change, value in self.steps:
            array = _changed(array, change, value)
        return array

    def with_tiles(self) -> "Addressing | None":
        """This memory, which has none, in the tiles that the compiler gives; None if none fit."""
        if len(self.shape) < 2 or self.shape[-2] % _TILE_ROWS:
            return None
        for swizzle in _SWIZZLES:
            columns = swizzle // self.itemsize
            if self.shape[-1] % columns == 0:
                *outer, rows, width = self.shape
                shape = (*outer, rows // _TILE_ROWS, width // columns, _TILE_ROWS, columns)
                steps = ((Change.UNTILE, (_TILE_ROWS, columns)), *self.steps)
                return Addressing(shape, self.itemsize, swizzle, steps)
        return None


def _changed(array: np.ndarray, change: Change, value: tuple[Any, ...]) -> np.ndarray:
    """An array of addresses after a change."""
    match change:
        case Change.UNTILE:
            return banks.untiled(array, value)
        case Change.INDEX:
            return array[tuple(slice(*index) if index else 0 for index in value)]
        case Change.TRANSPOSE:
            return array.transpose(value)
        case Change.RESHAPE:
            return array.reshape(value)
        case _:
            assert_never(change)


def addressing(aval: Aval, transforms: Transforms) -> Addressing | None:
    """Where a ref under these transforms has its elements; None if the transforms do not tell."""
    swizzle = 0
    steps: list[tuple[Change, tuple[Any, ...]]] = []
    for transform in transforms:
        name = type(transform).__name__
        if name == "UnswizzleRef":
            swizzle = transform.swizzle
        elif name == "UntilingTransform":
            steps.append((Change.UNTILE, tuple(transform.tiling)))
        elif name == "TransposeTransform":
            steps.append((Change.TRANSPOSE, tuple(transform.permutation)))
        elif name == "ReshapeTransform":
            steps.append((Change.RESHAPE, tuple(transform.shape)))
        elif name == "NDIndexer":
            indices = tuple(map(_index, transform.indices))
            if None in indices:
                return None
            steps.append((Change.INDEX, indices))
        elif name != "ClusterRefTransform":
            return None
    itemsize, rest = divmod(bits_of(aval.dtype), 8)
    if rest or not itemsize:
        return None
    return Addressing(tuple(aval.shape), itemsize, swizzle, tuple(steps))


def _index(index: Any) -> tuple[Any, ...] | None:
    """A slice as (start, stop, stride), one element as (); None if its size is not known."""
    if not hasattr(index, "stride"):
        return ()
    if not isinstance(index.size, int):
        return None
    start = index.start if isinstance(index.start, int) else 0
    return start, start + index.size * index.stride, index.stride


def name(layout: Layout) -> str:
    """A layout as text: the name that `plgpu.Layout` has for it, if it has one; empty for None."""
    if layout is None:
        return ""
    named = (each for each in _NAMED if each.to_mgpu() == layout)  # pyright: ignore[reportUnknownMemberType]
    return next((each.name for each in named), repr(layout))


def wavefronts(
    memory: Addressing, layout: Layout = None, optimized: bool | None = True, inferred: bool = True
) -> int | None:
    """What an access of this memory by the 128 lanes of a thread takes; None if it is not known.

    Args:
      memory: the memory.
      layout: of the registers, as `plgpu.Layout.to_mgpu()` gives it; None if the kernel says none.
      optimized: whether the compiler proves that banks do not conflict; None if it does so for
        memory in tiles only.
      inferred: whether the compiler gives tiles to memory that is declared without.
    """
    kind = type(layout).__name__
    if kind == "TiledLayout" and inferred and not memory.is_tiled and not memory.swizzle:
        memory = memory.with_tiles() or memory
    if kind not in ("TiledLayout", "WGStridedFragLayout"):
        layout = _WGMMA if memory.is_tiled else None
    return _count(memory, layout, memory.is_tiled if optimized is None else optimized)


_WGMMA: Layout = plgpu.Layout.WGMMA.to_mgpu()  # pyright: ignore[reportUnknownMemberType]
_NAMED = (
    plgpu.Layout.WGMMA,
    plgpu.Layout.WGMMA_TRANSPOSED,
    plgpu.Layout.WGMMA_8BIT,
    plgpu.Layout.WGMMA_UPCAST_2X,
    plgpu.Layout.WGMMA_UPCAST_4X,
)


@functools.lru_cache(maxsize=1024)
def _count(memory: Addressing, layout: Layout, optimized: bool) -> int | None:
    addresses, itemsize = memory.addresses(), memory.itemsize
    if addresses.size == 1:
        return THREAD_LANES // WARP_LANES  # each warp on its own
    try:
        if type(layout).__name__ != "TiledLayout":
            elements = getattr(layout, "vec_size", None) or _side_by_side(addresses.size, itemsize)
            return banks.wavefronts(banks.strided_lanes(addresses, elements), itemsize)
        lanes = [getattr(axis, "times", axis) for axis in layout.lane_dims]
        found = banks.tiled_lanes(addresses, layout.tiling.tiles, lanes, layout.vector_dim)
    except ValueError:  # the shape is no multiple of the layout's tiles
        return None
    copies = _holders(layout.warp_dims)
    if optimized:
        return copies * banks.fewest(found.shape[0], found.shape[2], itemsize)
    return copies * banks.wavefronts(found, itemsize)


def _side_by_side(size: int, itemsize: int) -> int:
    """The elements that a lane moves at once of an array of this size, if nothing says another."""
    elements = max(1, _STRIDED_BYTES // itemsize)
    while elements > 1 and size % (elements * THREAD_LANES):
        elements //= 2
    return elements


def exchanges(shape: tuple[int, ...], axes: Sequence[int], layout: Layout = None) -> int:
    """How many words of 32 bits lanes pass each other to reduce an array.

    Args:
      shape: the array's.
      axes: those that are reduced.
      layout: of the registers, as `plgpu.Layout.to_mgpu()` gives it; None if it is not known.
    """
    if len(axes) == len(shape):
        return THREAD_LANES * _rounds(WARP_LANES, THREAD_LANES // WARP_LANES)
    before = layout if type(layout).__name__ == "TiledLayout" else _WGMMA
    after = _reduced(before, shape, axes)
    results = math.prod(size for axis, size in enumerate(shape) if axis not in axes)
    lanes = _holders(after.lane_dims) // _holders(before.lane_dims)
    warps = _holders(after.warp_dims) // _holders(before.warp_dims)
    held = results * _holders(after.lane_dims) * _holders(after.warp_dims)
    return held * _rounds(lanes, warps)


def scratch(shape: tuple[int, ...], axes: Sequence[int], layout: Layout = None) -> Scratch:
    """Whether a reduction passes parts of results from warp to warp; arguments as `exchanges`."""
    name, is_full = type(layout).__name__, len(axes) == len(shape)
    if name == "WGSplatFragLayout":
        return Scratch.RESERVED
    is_tiled = name == "TiledLayout"
    if is_tiled or not is_full:
        before = layout if is_tiled else _WGMMA
        after = _reduced(before, shape, axes)
        if _holders(after.warp_dims) == _holders(before.warp_dims):
            return Scratch.RESERVED
        return Scratch.USED if is_tiled else Scratch.PERHAPS
    is_sure = name == "WGStridedFragLayout" or len(shape) > 1
    return Scratch.USED if is_sure else Scratch.PERHAPS


def _reduced(layout: Layout, shape: tuple[int, ...], axes: Sequence[int]) -> Layout:
    """The tiled layout of what is left; its tiles have the last axes of an array."""
    outer = len(shape) - len(layout.tiling.tiles[0])
    return layout.reduce([axis - outer for axis in axes if axis >= outer])


def _rounds(lanes: int, warps: int) -> int:
    """The words that each lane passes for a result that `lanes` of each of `warps` share."""
    return lanes.bit_length() - 1 + (1 + warps if warps > 1 else 0)


def _holders(axes: Sequence[Any]) -> int:
    """How many lanes, or warps, have the same elements, by these axes of a layout."""
    return math.prod(getattr(axis, "times", 1) for axis in axes)


def reduces(eqn: Eqn) -> bool:
    """Whether an equation reduces an array along some axes."""
    name = eqn.primitive.name.removeprefix("mosaic_gpu_")
    return name.startswith("reduce_") and "axes" in eqn.params


def of_results(eqn: Eqn, known: dict[Atom, Layout]) -> list[Layout]:
    """The layout of each result of an equation, None where nothing says it.

    `known` has the layouts of variables so far. A result has the layout of the operands of its
    shape; a reduction's result has what the reduction leaves of its operand's layout.
    """
    name = eqn.primitive.name.removesuffix("_p")
    if name == "layout_cast":
        return [eqn.params["new_layout"].to_mgpu()]
    if name == "wgmma_accumulator_deref":
        return [_WGMMA]
    if name in _OTHERS:
        return []
    held = [a for a in eqn.invars if not hasattr(a, "val") and a in known]
    if reduces(eqn) and held and hasattr(known[held[0]], "reduce"):
        return [_reduced(known[held[0]], held[0].aval.shape, eqn.params["axes"])]
    shapes = {a.aval.shape: known[a] for a in held}
    return [shapes.get(getattr(out.aval, "shape", ())) for out in eqn.outvars]


_OTHERS = {"transpose", "rev", "reshape", "get", "swap", "load"}  # whose results have layouts anew
