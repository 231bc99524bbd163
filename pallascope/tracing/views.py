"""A ref under transforms, as regions of its buffer.

The model. A view is a stack of frames. A **frame** is an array: indexing it selects an interval on
each axis, and transposing reorders the axes. A transform that makes another array of the same
bytes (a reshape, a bitcast, a member of a union, tiles put together) puts a new frame on top. A box
in a frame becomes the smallest box around its bytes in the frame below. That is exact if these
bytes are contiguous there, as the bytes of leading axes are, with a stride of 1. A region says
whether it is exact. What an ordinary access selects is cut along its first axes until all parts are
exact; if that gives too many parts, the region is the box around them.

Not covered: an index that leads out of a view of a reshaped ref and stays in the buffer; a
transform that is not known by name. From there on the region is all that was
selected before it.
"""

# What it asks of JAX has no types.
# pyright: basic

import dataclasses
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import ShapedArray

from pallascope.program import Region, Single, Space
from pallascope.tracing.jaxprs import Aval, Dtype, Env, Transform, Transforms
from pallascope.tracing.layouts import addressing
from pallascope.tracing.source import UNKNOWN
from pallascope.tracing.state import (
    MOST_INTEGERS,
    OPAQUE,
    Ref,
    Thread,
    bits_of,
    bytes_of,
    columns_of,
    logical,
    space_of,
    untiled,
)

Box = tuple[tuple[int, int], ...]
_MOST_BOXES = 64
_LANES, _COLUMN_BITS = 128, 32  # of TMEM
#: What flow may depend on, as errors say it.
KNOWN = (
    "program ids, loop counters, shapes or a concrete integer argument of up to"
    f" {MOST_INTEGERS:,} elements"
)


def data_dependent(what: str, line: str | None) -> ValueError:
    """The error for a value that the trace needs and cannot know."""
    return ValueError(
        f"{line or UNKNOWN}: {what} depends on what a tensor holds or a barrier"
        f" answers, which is not known without running: let it depend on {KNOWN}."
    )


def other_devices(which: str, line: str | None) -> NotImplementedError:
    """The error for an access of memory that no device of the program has."""
    return NotImplementedError(
        f"{line or UNKNOWN}: this access is to the memory of {which}, but a program is that of one"
        " block or cluster of one device: pass whole_grid=True to trace, within jax.shard_map, for"
        " all of them."
    )


class At(NamedTuple):
    """Stands in a transform for the value in this slot."""

    slot: int


def _is_held(value: object) -> bool:
    """Whether this stands for a value."""
    return isinstance(value, At)


class _Dim(NamedTuple):
    """An interval: start + the sum of value * factor; a size, or the slot that has it.

    `outer` are those that it was taken from, one from another, the whole axis first.
    """

    start: int
    terms: tuple[tuple[int, int], ...]
    size: Any
    stride: int
    outer: "tuple[_Dim, ...]" = ()

    def take(self, start: Any, size: Any, stride: int) -> "_Dim":
        outer = (*self.outer, self)
        if isinstance(start, At):
            terms = (*self.terms, (start.slot, self.stride))
            return _Dim(self.start, terms, size, self.stride * stride, outer)
        start = self.start + start * self.stride
        return _Dim(start, self.terms, size, self.stride * stride, outer)

    def left(self, env: Env, axis: int) -> tuple[int, int] | None:
        """The interval that it was taken from and leads out of, if that is not the whole axis."""
        own = self.interval(env, None, axis)
        outer = (each.interval(env, None, axis) for each in self.outer[1:])
        is_left = lambda each: own[0] < own[1] and (own[0] < each[0] or each[1] < own[1])
        return next(filter(is_left, outer), None)

    def slots(self) -> list[int]:
        """The slots of the values that it depends on."""
        slots = [slot for slot, _ in self.terms]
        return [*slots, self.size.slot] if isinstance(self.size, At) else slots

    def interval(self, env: Env, inner: tuple[int, int] | None, axis: int) -> tuple[int, int]:
        """(start, stop) of all of it, or of an interval in it; all `axis` if that is not known."""
        start, terms, size, stride, _ = self
        if isinstance(size, At):
            size = env[size.slot]
            if size is OPAQUE:
                return 0, axis
        for slot, factor in terms:
            value = env[slot]
            if value is OPAQUE:
                return 0, axis
            start += int(value) * factor
        if inner is None:
            inner = 0, int(size)
        first, stop = inner
        return start + first * stride, start + (stop - 1) * stride + 1


class _Frame:
    """An array and what is selected of it; `below` maps a box to a box in the frame below."""

    def __init__(self, shape: tuple[int, ...], dtype: Dtype, below: Callable[[Box], Box] | None):
        self.base, self.dtype, self.below = shape, dtype, below
        self.dims = [_Dim(0, (), size, 1) for size in shape]
        self.axes = list(range(len(shape)))

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.dims[axis].size for axis in self.axes)

    def index(self, indices: Sequence[Any]) -> None:
        axes = []
        for axis, index in zip(self.axes, indices, strict=True):
            dim = self.dims[axis]
            if hasattr(index, "stride"):
                self.dims[axis] = dim.take(index.start, index.size, index.stride)
                axes.append(axis)
            else:
                index = index if isinstance(index, At) else int(index)
                self.dims[axis] = dim.take(index, 1, 1)
        self.axes = axes

    def slots(self) -> list[int]:
        """The slots of the values that the selection depends on."""
        return [slot for dim in self.dims for slot in dim.slots()]

    def box(self, env: Env, inner: Box | None) -> Box:
        """The box in the array, perhaps beyond it, of a box `inner` in the selection."""
        sized = zip(self.dims, self.base)
        if inner is None:
            return tuple([dim.interval(env, None, size) for dim, size in sized])
        parts = dict(zip(self.axes, inner))
        return tuple(dim.interval(env, parts.get(i), size) for i, (dim, size) in enumerate(sized))


class View:
    """A ref under transforms: `region(env)` in the coordinates of its buffer.

    `shape` is the view's own; `exact` is False if its regions are larger than the view. `tiling` is
    the shape of the buffer's tiles in memory, () if it has none, and `is_swizzled` says whether
    they are swizzled. `addressing` is where SMEM has its elements, None if that is not known.
    """

    def __init__(self, slot: int, aval: Aval, transforms: Transforms, line: str | None):
        self.slot, self.line, self.exact = slot, line, True
        shape, done = logical(tuple(aval.shape), transforms)
        kinds = {type(t).__name__: t for t in transforms[:done]}
        tiles = kinds.get("UntilingTransform")
        self.tiling = () if tiles is None else tuple(tiles.tiling)
        self.is_swizzled = "UnswizzleRef" in kinds
        self.addressing = addressing(aval, transforms) if space_of(aval) == Space.SMEM else None
        self.peer: list[tuple[Any, Any]] = []
        self.device: Any = None
        self.frames = [_Frame(shape, aval.dtype, None)]
        self.stored_bits: int | None = None  # of an element, if TMEM pads it
        for transform in transforms[done:]:
            self._apply(transform)
        self.base, top = self.frames[0].base, self.frames[-1]
        is_nested = any(len(dim.outer) > 1 for dim in top.dims)
        self._is_nested = is_nested and len(self.frames) == 1
        self.bits = bits_of(top.dtype)
        self.shape = top.shape
        #: The elements' dtype, if the buffer has another; else empty.
        self.retyped = "" if top.dtype == self.frames[0].dtype else top.dtype.name
        sized = not any(isinstance(size, At) for size in self.shape)
        self.elements = math.prod(self.shape) if sized else None
        self._slots = [slot for frame in self.frames for slot in frame.slots()]
        held = (*(at for _, at in self.peer), *jax.tree.leaves(self.device, is_leaf=_is_held))
        peers = [at.slot for at in held if isinstance(at, At)]
        self._key = operator.itemgetter(slot, *dict.fromkeys(self._slots + peers))
        self._regions: dict[Hashable, Region] = {}
        self._parts: dict[Hashable, tuple[Region, ...]] = {}
        self._places: dict[Hashable, Single] = {}

    def _apply(self, transform: Transform) -> None:
        name, top = type(transform).__name__, self.frames[-1]
        if name == "ClusterRefTransform":
            self.peer += zip(transform.dims, transform.idxs, strict=True)
        elif name == "PeerMemRef":
            self.device = transform.device_id
        elif name == "MulticastRef":
            raise NotImplementedError(
                f"{self.line}: this access is to the memory of all devices at once ({name}), which"
                " is not traced: trace a kernel that writes to each device."
            )
        elif name == "UnswizzleRef" or not self.exact:
            pass
        elif name == "NDIndexer":
            top.index(transform.indices)
        elif name == "TransposeTransform":
            top.axes = [top.axes[axis] for axis in transform.permutation]
        elif name == "UntilingTransform":
            below = lambda box: _tiled(box, tuple(transform.tiling))
            self._push(untiled(top.shape, transform.tiling), top.dtype, below)
        elif name == "ExpandLeadingBatchDimensionsTransform":
            made = transform.transform_type(ShapedArray(top.shape, top.dtype))
            self._push(made.shape, made.dtype, lambda box: _side_by_side(box, made.shape))
        elif name == "ExtractAliasedRef" and transform.layout is not None:
            packed, made = transform.layout.vector_length, transform
            self.stored_bits = _COLUMN_BITS // packed
            is_plain = made.shape[0] == top.shape[0]
            columns = columns_of(made.layout, made.shape, bits_of(made.dtype))
            below = lambda box: _columns(box, made.offset, packed, columns, is_plain)
            self._push(made.shape, made.dtype, below)
        elif name in ("ReshapeTransform", "BitcastTransform", "ExtractAliasedRef"):
            made = transform.transform_type(ShapedArray(top.shape, top.dtype))
            sizes, offset = top.shape, 8 * getattr(transform, "offset", 0)
            width, unit = bits_of(made.dtype), bits_of(top.dtype)
            below = lambda box: _around(box, made.shape, width, offset, sizes, unit)
            self._push(made.shape, made.dtype, below)
        else:
            self.exact = False

    def _push(self, shape: tuple[int, ...], dtype: Dtype, below: Callable[[Box], Box]) -> None:
        if any(isinstance(size, At) for size in shape):
            self.exact = False
        else:
            self.frames.append(_Frame(tuple(shape), dtype, below))

    def ref(self, env: Env) -> Ref:
        """The buffer or the barriers."""
        ref = env[self.slot]
        if type(ref) is not Ref:
            raise NotImplementedError(
                f"{self.line}: this access has a ref that the trace lost in an unknown primitive,"
                " so its region is not known: use refs as they were given, or by `.at`."
            )
        return ref

    def is_placed(self, env: Env) -> bool:
        """Whether it is known where in its buffer the view is."""
        return all(env[slot] is not OPAQUE for slot in self._slots)

    def box(self, env: Env, inner: Box | None = None) -> Box:
        """The box in the buffer, perhaps beyond it, of a box `inner` in the view."""
        box: Box = ()
        for frame in reversed(self.frames):
            box = frame.box(env, inner)
            if frame.below is not None:
                box = frame.below(box)
            inner = box
        return box

    def region(self, thread: Thread, env: Env) -> Region:
        """The region in the buffer; equal regions are one object."""
        key = self._key(env)
        try:
            return self._regions[key]
        except (KeyError, TypeError):
            self._regions[key] = region = self.part(thread, env, None)
            return region

    def regions(self, thread: Thread, env: Env) -> tuple[Region, ...]:
        """The region; if it is not a box, the exact regions that make it up, if there are few."""
        region = self.region(thread, env)
        if region.is_exact or not (region.is_placed and self.exact) or self.elements is None:
            return (region,)
        key = self._key(env)
        if key not in self._parts:
            self._parts[key] = self._cut(thread, env) or (region,)
        return self._parts[key]

    def _cut(self, thread: Thread, env: Env) -> tuple[Region, ...]:
        """The exact parts; none if there are too many, or if a part cannot be exact."""
        boxes, parts = [tuple((0, size) for size in self.shape)], []
        while boxes:
            box = boxes.pop()
            part = self.part(thread, env, box)
            if part.is_exact:
                parts.append(part)
                continue
            axis = next((i for i, (start, stop) in enumerate(box) if stop - start > 1), None)
            if axis is None or box[axis][1] - box[axis][0] + len(boxes) + len(parts) > _MOST_BOXES:
                return ()
            boxes += [(*box[:axis], (at, at + 1), *box[axis + 1 :]) for at in range(*box[axis])]
        return tuple(sorted(parts))

    def part(self, thread: Thread, env: Env, inner: Box | None) -> Region:
        """The region of a box in the view."""
        ref = self.ref(env)
        if ref.shape != self.base:
            return dataclasses.replace(ref.whole, is_exact=False)
        box, is_placed = self.box(env, inner), self.is_placed(env)
        is_exact = is_placed and self._is_exact(box, inner)
        view = self._left(env) if is_placed and self._is_nested else ()
        return Region(self._id(thread, ref, env), box, is_exact, is_placed, view)

    def _left(self, env: Env) -> Box:
        """The box of a view that an index of it leads out of, on the axes on which it does."""
        sized = [*zip(self.frames[0].dims, self.base)]
        left = [dim.left(env, size) for dim, size in sized]
        whole = [(0, size) for _, size in sized]
        return tuple(a or b for a, b in zip(left, whole)) if any(left) else ()

    def _is_exact(self, box: Box, inner: Box | None) -> bool:
        """Whether a box in the buffer has no more bytes than the view selects."""
        count = lambda box: math.prod(stop - start for start, stop in box)
        elements = self.elements if inner is None else count(inner)
        if elements is None:
            return self.exact and len(self.frames) == 1
        width = bits_of(self.frames[0].dtype)
        return self.exact and count(box) * width == elements * (self.stored_bits or self.bits)

    def _id(self, thread: Thread, ref: Ref, env: Env) -> int:
        """The number of the ref's memory in this block, or in the peer that the view is in."""
        at = lambda index: env[index.slot] if isinstance(index, At) else index
        if self.device is not None:
            if not thread.home.devices:
                raise other_devices("another device", self.line)
            device = jax.tree.map(lambda index: int(at(index)), self.device, is_leaf=_is_held)
            return ref.ids[thread.home.on_device(thread.block, device)]
        if not self.peer:
            return ref.id
        indices = {name: at(index) for name, index in self.peer}
        if OPAQUE in indices.values():
            raise data_dependent("A block of the cluster", self.line)
        indices = {name: int(index) for name, index in indices.items()}
        return ref.ids[thread.home.block_at(thread.block, indices)]

    def bytes(self, region: Region) -> int:
        """The bytes that an access of this region moves."""
        if self.elements is not None:
            return bytes_of(self.elements, self.bits)
        return bytes_of(math.prod(stop - start for start, stop in region.box), self.bits)

    def barrier(self, thread: Thread, env: Env) -> Single:
        """The id and the flat index, if this is a barrier."""
        key = self._key(env)
        try:
            return self._places[key]
        except (KeyError, TypeError):
            ref, flat = self.ref(env), 0
            if not self.is_placed(env):
                raise data_dependent("The index of a barrier", self.line) from None
            if self.elements is not None and self.elements > 1:
                raise ValueError(
                    f"{self.line or UNKNOWN}: this op is on all {self.elements} barriers of an"
                    " array at once, and Mosaic GPU compiles it for one only: take one, as"
                    " barriers.at[0]."
                ) from None
            for (start, _), size in zip(self.box(env), self.base):
                flat = flat * size + start
            self._places[key] = place = self._id(thread, ref, env), flat
            return place


def _around(
    box: Box, shape: Sequence[int], width: int, offset: int, sizes: Sequence[int], unit: int
) -> Box:
    """The smallest box, in an array of `sizes`, around the bytes of a box in one of `shape`.

    The arrays have elements of `unit` and `width` bits; the second begins `offset` bits after the
    first.
    """
    if any(stop <= start for start, stop in box):
        return tuple((0, 0) for _ in sizes)
    first = last = 0
    for (start, stop), size in zip(box, shape):
        first, last = first * size + start, last * size + stop - 1
    first, last = (offset + first * width) // unit, (offset + (last + 1) * width - 1) // unit
    if math.prod(sizes) <= 0 or not 0 <= first <= last < math.prod(sizes):
        return tuple((0, size) for size in sizes)
    around: list[tuple[int, int]] = []
    for start, stop in zip(np.unravel_index(first, sizes), np.unravel_index(last, sizes)):
        if all(b - a == 1 for a, b in around):
            around.append((int(start), int(stop) + 1))
        else:
            around.append((0, sizes[len(around)]))
    return tuple(around)


def _side_by_side(box: Box, shape: Sequence[int]) -> Box:
    """A box of a batch of arrays, in the coordinates of TMEM, where they are side by side.

    All of the arrays from the first to the last one, if the box is in more than one.
    """
    *batch, rows, (start, stop) = box
    if any(begin >= end for begin, end in batch):
        return rows, (0, 0)
    first, last = 0, 0
    for (begin, end), size in zip(batch, shape):
        first, last = first * size + begin, last * size + end - 1
    if first != last:
        start, stop = 0, shape[-1]
    return rows, (first * shape[-1] + start, last * shape[-1] + stop)


def _columns(box: Box, offset: int, packed: int, columns: int, is_plain: bool) -> Box:
    """A box of a member of a union in TMEM, in columns of 32 bits from `offset` on.

    A column has `packed` elements of a lane. Where the array has not as many rows as TMEM has lanes
    (not `is_plain`), all lanes of all its `columns` are taken.
    """
    rows, (start, stop) = box
    if not is_plain:
        return (0, _LANES), (offset, offset + columns)
    return rows, (offset + start // packed, offset + -(-stop // packed))


def _tiled(box: Box, tiling: tuple[int, ...]) -> Box:
    """A box of an array, in the coordinates of the array that is cut into tiles."""
    rank = len(tiling)
    tiles, inner = [], []
    for (start, stop), size in zip(box[-rank:], tiling):
        first, last = start // size, (stop - 1) // size
        tiles.append((first, last + 1))
        inner.append((start % size, (stop - 1) % size + 1) if first == last else (0, size))
    return (*box[:-rank], *tiles, *inner)


def share(view: View, number: int, count: int) -> Box:
    """The box in a view that the block `number` of `count` loads of a copy that all of them share.

    The first axes of the memory, tiles before what is in them, are cut among the blocks, but never
    the last axis of swizzled tiles. The rule is Mosaic GPU's, which may cut no other way either.
    """
    rank, sizes = len(view.tiling), list(view.shape)
    units = [1] * (len(sizes) - rank) + list(view.tiling)
    cuts = [(axis, size // unit) for axis, (size, unit) in enumerate(zip(sizes, units))]
    box, left = [(0, size) for size in sizes], count
    for axis, size in cuts if rank or not view.is_swizzled else cuts[:-1]:
        if left == 1:
            break
        parts = left if size % left == 0 else size if left % size == 0 else 0
        if not parts:
            break
        number, mine = divmod(number, parts)
        step = sizes[axis] // parts
        box[axis], left = (mine * step, (mine + 1) * step), left // parts
    if left > 1:
        raise NotImplementedError(
            f"{view.line}: a load of {tuple(view.shape)} is shared by {count} blocks, whose parts"
            " are no boxes, since none of its first axes (or of its tiles) is a multiple of"
            f" {count}: make one of them so."
        )
    return tuple(box)
