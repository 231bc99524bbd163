"""`trace`: from a Mosaic GPU kernel to a `Program`, on no GPU.

The algorithm. `jax.make_jaxpr` gives the kernel's jaxpr. Each jaxpr in it is compiled once, to a
list of Python closures over an array of values; the list is run once for each Pallas thread, for
one block. Scalars are Python numbers and so are exact; a tensor is OPAQUE, without its contents;
pure code on tensors costs nothing. What touches memory or synchronises appends an `Op`.

Covered: `plgpu.kernel` with threads and clusters; the primitives in `_HANDLERS`, which has one
function for each by name; scalars read from a concrete integer argument that nothing has written.

Not covered:

- flow, indices and predicates that depend on what tensors hold, `barrier_test` among it: refused;
- `pl.pallas_call`, Blackwell, semaphores, several kernels, unknown effects: refused;
- regions behind a reshape, a bitcast, a union of refs or an untiling after an index, and those of
  `inline_mgpu`: taken as the whole that was selected until then;
- memory of a scope that is entered again: it is new each time, with barriers at phase 0;
- the other blocks of a cluster: what they do to this one's barriers is not listed;
- arithmetic in registers: no op says that it takes time;
- lines within JAX's and pipelib's emitters: an op of theirs has the line where they were called.

`max_steps` ends a thread where one of its loops would begin that many steps and one: the program is
then a prefix of each thread, without its drain. Source: the jaxprs of JAX 0.11.2 and 0.12.0.1.
"""

import functools
import gc
import math
import operator
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from pipelib.schedule.program import Barrier, Buffer, Op, Program, Region

_SMEM_ALIGNMENT, _BARRIER_BYTES = 1024, 8
_HIDDEN = (
    os.path.join(os.path.dirname(jax.__file__), "_src", ""),
    os.path.join(os.path.dirname(os.__file__), ""),
)
_INDEXES = tuple(map(np.dtype, ("bool", "int32", "int64", "uint32", "uint64")))
_MOST_INTEGERS = 2**16
_EMITTERS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def trace(
    kernel: Callable[..., Any],
    *args: Any,
    block: tuple[int, ...] | None = None,
    max_steps: int | None = None,
) -> Program:
    """What each Pallas thread of one block of a Mosaic GPU kernel does, in order.

    Args:
      kernel: a function that calls one `plgpu.kernel`, or that kernel.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Nothing is run. Control flow may
        depend on integers in arrays, which a ShapeDtypeStruct does not have.
      block: the block's index on each axis of the grid, and then of the cluster; by default zeros.
      max_steps: no loop runs for more steps. A thread ends there, and the program is `truncated`.

    Raises:
      ValueError: no kernel or several, a block outside the grid, flow that depends on tensors.
      NotImplementedError: a primitive that has effects and is not known.
    """
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"{max_steps=} is less than 1: no step would be traced, so ask for one.")
    closed = jax.make_jaxpr(kernel)(*args)
    codes: dict[Any, Any] = {}
    host = _Thread(0, None, None)
    code = _compile(closed, codes)
    code.run(host, [_value(leaf) for leaf in jax.tree.leaves(args)])
    if len(host.kernels) != 1:
        raise ValueError(
            f"The function calls {len(host.kernels)} Mosaic GPU kernels, but a program is that of"
            " one: pass a function that calls plgpu.kernel(...) once."
        )
    (eqn, values), *_ = host.kernels
    traced = _Kernel(eqn, values, block, max_steps, codes)
    collects = gc.isenabled()
    gc.disable()  # ops are many, in no cycles, and all kept: to look for garbage takes a third
    try:
        return traced.program()
    finally:
        if collects:
            gc.enable()


class _Opaque:
    """A value that depends on what tensors hold."""

    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE = _Opaque()


class _Ended(Exception):
    """A thread reached max_steps."""


class _Ref:
    """A buffer or an array of barriers; `value` is what a scalar or a concrete argument holds."""

    __slots__ = ("id", "shape", "space", "value", "whole")

    def __init__(self, id: int, shape: tuple[int, ...], space: str, value: Any = OPAQUE):
        self.id, self.shape, self.space, self.value = id, shape, space, value
        self.whole = Region(id, tuple((0, size) for size in shape))


class _Thread:
    """The state of one thread as it is traced; the host's has no kernel around it."""

    def __init__(self, index: int, kernel: "_Kernel | None", max_steps: int | None):
        self.index, self.kernel, self.max_steps = index, kernel, max_steps
        self.ops: list[Op] = []
        self.step: tuple[int, ...] = ()
        self.scope = ""
        self.waits: Counter = Counter()
        self.arrivals: Counter = Counter()
        self.scopes = self.smem_bytes = self.peak_bytes = 0
        self.registers: int | None = None
        self.axes = dict(kernel.axes) if kernel else {}
        self.kernels: list[tuple[Any, list]] = []

    def begin_step(self, index: int, outer: tuple[int, ...]) -> None:
        if index == self.max_steps:
            raise _Ended
        self.step = (index, *outer)


class _Kernel:
    """One kernel and one of its blocks: what its threads share."""

    def __init__(self, eqn, values, block, max_steps, codes):
        self.params = params = eqn.params
        self.max_steps = max_steps
        meshes = params["meshes"]
        mesh = meshes[0]
        if len(meshes) != 1 or not hasattr(mesh, "cluster"):
            raise ValueError(
                f"The kernel {params['name']!r} runs on {type(mesh).__name__}s, not on one mesh of"
                " Mosaic GPU: pass one that was made by plgpu.kernel."
            )
        self.grid, self.cluster = tuple(mesh.grid), tuple(mesh.cluster)
        self.threads, self.thread_name = mesh.num_threads or 1, mesh.thread_name
        names = (*mesh.grid_names, *mesh.cluster_names)
        self.block = self._checked(block, names)
        self.axes = dict(zip(names, self.block))
        self.sizes = dict(zip(names, self.grid + self.cluster)) | {self.thread_name: self.threads}
        self.buffers: list[Buffer] = []
        self.barriers: list[Barrier] = []
        self.shared: list[tuple[int, tuple, list[_Ref]]] = []
        self.num_scopes = 0
        self.code = _compile(params["jaxprs"][0], codes)
        avals = [v.aval for v in self.code.invars]
        names = [f"in{i}" for i in range(len(values))]
        names += [f"out{i}" for i in range(len(avals) - len(values))]
        values = [value.value if type(value) is _Ref else value for value in values]
        roles = ["in/out" if _is_ref(v) else "in" for v in eqn.invars]
        roles += ["out"] * (len(avals) - len(values))
        values = values + [OPAQUE] * (len(avals) - len(values))
        self.arguments = list(map(self._argument, names, avals, values, roles))

    def _checked(self, block, names) -> tuple[int, ...]:
        """The block's index on all axes, those of the cluster included."""
        sizes = self.grid + self.cluster
        if block is None:
            return (0,) * len(sizes)
        block = tuple(map(int, block))
        if len(block) == len(self.grid):
            block += (0,) * len(self.cluster)
        if len(block) != len(sizes):
            raise ValueError(
                f"{block=} has {len(block)} indices, but the grid {self.grid} has"
                f" {len(self.grid)} axes and the cluster {len(self.cluster)}: give one for each."
            )
        for name, index, size in zip(names, block, sizes):
            if not 0 <= index < size:
                raise ValueError(
                    f"{block=} is not in the grid: axis {name!r} has the blocks 0 to {size - 1},"
                    f" and {index} is none of them."
                )
        return block

    def _argument(self, name: str, aval: Any, value: Any, role: str) -> _Ref:
        return self.allocate(name, aval, (), None, None, value, role)

    def allocate(
        self, name, aval, transforms, thread, scope, value: Any = OPAQUE, role: str = ""
    ) -> _Ref:
        """A new buffer or array of barriers of this type; in GMEM if it has a role."""
        space, dtype = "gmem" if role else _space(aval), aval.dtype
        if space == "barrier":
            cluster = tuple(map(str, getattr(dtype, "collective_axes", ())))
            ref = _Ref(len(self.barriers), tuple(aval.shape), space)
            count = math.prod(aval.shape)
            arrivals = dtype.num_arrivals
            barrier = Barrier(ref.id, name, arrivals, count, cluster, thread, scope)
            self.barriers.append(barrier)
            return ref
        shape, _ = _logical(tuple(aval.shape), transforms)
        ref = _Ref(len(self.buffers), shape, space, value)
        size = math.prod(shape) * dtype.itemsize
        role = role or ("scratch" if space == "gmem" else "")
        buffer = Buffer(
            ref.id, name, space, shape, str(dtype), size, None, thread, scope, role=role
        )
        self.buffers.append(buffer)
        return ref

    def scope(self, thread: _Thread, eqn: Any, names) -> tuple[int, list[_Ref]]:
        """The refs of a `run_scoped`: its own or, if collective, those that all threads have."""
        avals = tuple(v.aval for v in eqn.params["jaxpr"].invars)
        axes = eqn.params["collective_axes"]
        axes = axes if isinstance(axes, tuple) else (axes,)
        collective, place = self.thread_name in axes and self.threads > 1, thread.scopes
        if collective:
            thread.scopes += 1
            if place < len(self.shared):
                number, others, refs = self.shared[place]
                if others != avals:
                    raise ValueError(
                        f"Thread {thread.index} allocates {list(map(str, avals))} where another"
                        f" allocates {list(map(str, others))}, though together: all threads must"
                        " reach the same run_scoped."
                    )
                return number, refs
        number, refs = self.num_scopes, []
        self.num_scopes += 1
        transforms = eqn.params.get("ref_transforms") or ((),) * len(avals)
        for name, aval, transform in zip(names, avals, transforms, strict=True):
            alone = self.threads == 1 and _space(aval) != "acc"
            owner = None if collective or alone else thread.index
            refs.append(self.allocate(name, aval, transform, owner, number))
        if collective:
            self.shared.append((number, avals, refs))
        return number, refs

    def smem_bytes(self, refs: list[_Ref]) -> int:
        """What refs take of shared memory, each buffer aligned."""
        total = 0
        for ref in refs:
            if ref.space == "barrier":
                total += _BARRIER_BYTES * self.barriers[ref.id].count
            elif ref.space == "smem":
                total += -(-self.buffers[ref.id].bytes // _SMEM_ALIGNMENT) * _SMEM_ALIGNMENT
        return total

    def program(self) -> Program:
        """Runs all threads."""
        threads, ended = [], []
        for index in range(self.threads):
            thread = _Thread(index, self, self.max_steps)
            thread.axes[self.thread_name] = index
            try:
                self.code.run(thread, self.arguments)
            except _Ended:
                ended.append(index)
            threads.append(thread)
        ops = tuple(tuple(thread.ops) for thread in threads)
        return Program(
            self.params["name"], ops, _with_slots(self.buffers, ops), tuple(self.barriers),
            self.grid, self.cluster, self.block, max(t.peak_bytes for t in threads),
            tuple(t.registers for t in threads), tuple(ended),
        )  # fmt: skip


def _with_slots(buffers, threads) -> tuple[Buffer, ...]:
    """SMEM whose first dimension is only ever taken one at a time is a ring of slots."""
    rings = {b.id for b in buffers if b.space == "smem" and len(b.shape) > 1}
    for ops in threads:
        for op in ops:
            for region in op.reads + op.writes:
                if region.buffer in rings:
                    start, stop = region.box[0]
                    if stop - start != 1:
                        rings.discard(region.buffer)
    return tuple(b._replace(slots=b.shape[0]) if b.id in rings else b for b in buffers)


def _space(aval: Any) -> str:
    """gmem, smem, acc, barrier or regs."""
    if "Barrier" in type(aval.dtype).__name__:
        return "barrier"
    if "Accumulator" in type(aval).__name__:
        return "acc"
    space = str(getattr(aval, "memory_space", None) or "regs").lower()
    return "gmem" if space in ("any", "hbm") else space


def _logical(shape: tuple[int, ...], transforms) -> tuple[tuple[int, ...], int]:
    """A ref's shape without tiles, and how many of the transforms say how it is laid out."""
    for done, transform in enumerate(transforms):
        name = type(transform).__name__
        if name == "UntilingTransform":
            rank = len(transform.tiling)
            tiles, inner = shape[-2 * rank : -rank], shape[-rank:]
            shape = shape[: -2 * rank] + tuple(map(operator.mul, tiles, inner))
        elif name not in ("UnswizzleRef", "MulticastRef"):
            return shape, done
    return shape, len(transforms)


def _value(x: Any) -> Any:
    """A constant or an argument as the trace holds it."""
    for kind in (bool, int, float):
        if isinstance(x, kind):
            return kind(x)
    if isinstance(x, jax.ShapeDtypeStruct) or not hasattr(x, "dtype"):
        return OPAQUE
    if not isinstance(x.dtype, np.dtype) or x.dtype.kind not in "biuf":
        return OPAQUE
    if x.ndim == 0:
        return np.asarray(x).item()
    return np.asarray(x) if x.dtype.kind in "biu" else OPAQUE


def _line(eqn: Any) -> str | None:
    """Where the innermost frame is that is neither JAX's nor an emitter's."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback else ():
        path = frame.file_name
        if path.startswith((*_HIDDEN, "<")) and "site-packages" not in path.replace(_HIDDEN[0], ""):
            continue
        if path.startswith(_HIDDEN[0]) or os.path.dirname(path) == _EMITTERS:
            continue
        here = os.path.join(os.getcwd(), "")
        return f"{path.removeprefix(here)}:{frame.line_num}"
    return None


class _Code(NamedTuple):
    """A jaxpr, compiled: `steps` are run in order on a copy of `template`."""

    invars: list
    template: list
    inputs: list[int]
    outputs: list[int]
    steps: list[Callable]
    jaxpr: Any  # kept alive, since the cache knows it by its id

    def run(self, thread: _Thread, values: list) -> list:
        env = self.template.copy()
        for slot, value in zip(self.inputs, values, strict=True):
            env[slot] = value
        for step in self.steps:
            step(thread, env)
        return [env[slot] for slot in self.outputs]


def _compile(
    jaxpr: Any, codes: dict[Any, Any], is_open: bool = False, line: str | None = None
) -> _Code:
    """Compiles a jaxpr and all within it, once; if it is open, constants are its first inputs.

    JAX knows the frames of an equation up to the loop or branch that it is in only: `line` is where
    that is, for equations that an emitter made.
    """
    key = id(jaxpr), line
    if key not in codes:
        codes[key] = _Compiler(jaxpr, codes, line).code(is_open)
    return codes[key]


class _Compiler:
    """Gives each variable of a jaxpr a slot, and each equation a closure."""

    def __init__(self, jaxpr: Any, codes: dict[Any, Any], outer: str | None):
        self.outer = outer
        self.whole, self.jaxpr, self.codes = jaxpr, getattr(jaxpr, "jaxpr", jaxpr), codes
        self.template: list = []
        self.slots: dict[Any, int] = {}

    def slot(self, atom: Any) -> int:
        if isinstance(atom, Literal):
            return self.constant(_value(atom.val))
        if atom not in self.slots:
            self.slots[atom] = self.constant(OPAQUE)
        return self.slots[atom]

    def constant(self, value: Any) -> int:
        self.template.append(value)
        return len(self.template) - 1

    def code(self, is_open: bool) -> _Code:
        jaxpr = self.jaxpr
        invars = [*(jaxpr.constvars if is_open else ()), *jaxpr.invars]
        if not is_open:
            for var, const in zip(jaxpr.constvars, getattr(self.whole, "consts", ()), strict=True):
                self.template[self.slot(var)] = _value(const)
        inputs = list(map(self.slot, invars))
        steps = [step for eqn in jaxpr.eqns if (step := self.compile(eqn)) is not None]
        outputs = list(map(self.slot, jaxpr.outvars))
        return _Code(invars, self.template, inputs, outputs, steps, self.whole)

    def compile(self, eqn: Any) -> Callable | None:
        """The closure of one equation; None if there is nothing to do."""
        name = eqn.primitive.name.removesuffix("_p")
        if handler := _HANDLERS.get(name):
            return handler(self, eqn)
        if eqn.effects:
            return _refuse_unknown(name, self.line(eqn))
        return _pure(self, eqn, name)

    def sub(self, eqn: Any, jaxpr: Any, is_open: bool = False) -> _Code:
        return _compile(jaxpr, self.codes, is_open, self.line(eqn))

    def line(self, eqn: Any) -> str | None:
        """Where the equation is, or what it is in."""
        return _line(eqn) or self.outer

    def emitter(self, kind: str, eqn: Any) -> Callable[..., None]:
        """A function that appends an op of this kind and this equation."""
        line, label, make = self.line(eqn), str(eqn.source_info.name_stack), Op

        def emit(
            thread, reads=(), writes=(), barrier=None, index=None, phase=None, size=0, flops=0,
            n=None, note="",
        ) -> None:  # fmt: skip
            scope = f"{thread.scope}/{label}" if thread.scope and label else thread.scope or label
            op = make(
                kind, thread.index, reads, writes, barrier, index, phase, thread.step, line, scope,
                size, flops, n, note,
            )  # fmt: skip
            thread.ops.append(op)

        return emit

    def view(self, eqn: Any, ref: Any, leaves: list, tree: Any) -> "_View":
        """A ref with the transforms whose leaves these atoms are."""
        transforms = () if tree is None else tree.unflatten(map(_At, map(self.slot, leaves)))
        if not isinstance(transforms, (tuple, list)):
            transforms = (transforms,)
        return _View(self, eqn, ref, transforms)

    def predicate(self, eqn: Any, atom: Any) -> Callable[[list], bool]:
        """A function of the values that says whether the equation is to be run."""
        if atom is None:
            return lambda env: True
        slot, line = self.slot(atom), self.line(eqn)

        def holds(env):
            if env[slot] is OPAQUE:
                raise _data_dependent("The predicate of a copy or an arrival", line)
            return bool(env[slot])

        return holds


def _data_dependent(what: str, line: str | None) -> ValueError:
    return ValueError(
        f"{line or 'At an unknown line'}: {what} depends on what a tensor holds or a barrier"
        " answers, which is not known without running: let it depend on program ids, loop counters,"
        " shapes or a concrete integer argument."
    )


def _refuse_unknown(name: str, line: str | None) -> Callable:
    def step(thread, env):
        raise NotImplementedError(
            f"{line or 'At an unknown line'}: the primitive {name!r} has effects that the trace"
            " does not know, so ops would be missing: take it out of what is traced."
        )

    return step


class _At(NamedTuple):
    """In a transform, the value in this slot."""

    slot: int


class _Dim(NamedTuple):
    """An interval: start + the sum of value * factor; a size, or the slot that has it."""

    start: int
    terms: tuple[tuple[int, int], ...]
    size: Any
    stride: int

    def take(self, start: Any, size: Any, stride: int) -> "_Dim":
        if isinstance(start, _At):
            terms = (*self.terms, (start.slot, self.stride))
            return _Dim(self.start, terms, size, self.stride * stride)
        return _Dim(self.start + start * self.stride, self.terms, size, self.stride * stride)


class _View:
    """A ref under transforms: `region(env)` in the coordinates of its buffer."""

    def __init__(self, compiler: _Compiler, eqn: Any, ref: Any, transforms):
        aval = ref.aval
        self.slot, self.line = compiler.slot(ref), compiler.line(eqn)
        self.base, done = _logical(tuple(aval.shape), transforms)
        self.dims = [_Dim(0, (), size, 1) for size in self.base]
        self.axes, self.exact = list(range(len(self.dims))), True
        for transform in transforms[done:]:
            self._apply(transform)
        self.itemsize = getattr(aval.dtype, "itemsize", 0)
        self.shape = tuple(self.dims[axis].size for axis in self.axes)
        self.static = not any(d.terms or isinstance(d.size, _At) for d in self.dims)
        sized = not any(isinstance(d.size, _At) for d in self.dims)
        self.elements = math.prod(d.size for d in self.dims) if sized else None
        ends = lambda d: (d.start, d.start + (d.size - 1) * d.stride + 1)
        self.box = tuple(map(ends, self.dims)) if self.static else ()
        slots = [slot for d in self.dims for slot, _ in d.terms]
        slots += [d.size.slot for d in self.dims if isinstance(d.size, _At)]
        self.key = operator.itemgetter(self.slot, *dict.fromkeys(slots))
        self.regions: dict[Any, Region] = {}
        self.places: dict[Any, tuple[int, int]] = {}

    def _apply(self, transform: Any) -> None:
        name = type(transform).__name__
        if name == "NDIndexer" and self.exact:
            self._index(transform.indices)
        elif name.startswith("Transpose") and self.exact:
            self.axes = [self.axes[axis] for axis in transform.permutation]
        elif name not in ("UnswizzleRef", "MulticastRef", "PeerMemRef"):
            self.exact = False

    def _index(self, indices) -> None:
        axes = []
        for axis, index in zip(self.axes, indices, strict=True):
            dim = self.dims[axis]
            if hasattr(index, "stride"):
                self.dims[axis] = dim.take(index.start, index.size, index.stride)
                axes.append(axis)
            else:
                index = index if isinstance(index, _At) else int(index)
                self.dims[axis] = dim.take(index, 1, 1)
        self.axes = axes

    def ref(self, env: list) -> _Ref:
        ref = env[self.slot]
        if type(ref) is not _Ref:
            raise NotImplementedError(
                f"{self.line}: this access has a ref that the trace lost in an unknown primitive,"
                " so its region is not known: use refs as they were given, or by `.at`."
            )
        return ref

    def intervals(self, env: list) -> tuple[tuple[int, int], ...]:
        """(start, stop) for each dimension, not clipped."""
        if self.static:
            return self.box
        box = []
        for start, terms, size, stride in self.dims:
            for slot, factor in terms:
                value = env[slot]
                if value.__class__ is not int:
                    if not isinstance(value, (int, np.integer)):
                        raise _data_dependent("An index", self.line)
                    value = int(value)
                start += value * factor
            if size.__class__ is not int and isinstance(size, _At):
                size = env[size.slot]
                if size is OPAQUE:
                    raise _data_dependent("The size of a slice", self.line)
            box.append((start, start + (size - 1) * stride + 1))
        return tuple(box)

    def region(self, env: list) -> Region:
        """The region in the buffer, clipped to it; equal regions are one object."""
        key = self.key(env)
        try:
            return self.regions[key]
        except (KeyError, TypeError):
            self.regions[key] = region = self._region(env)
            return region

    def _region(self, env: list) -> Region:
        ref = self.ref(env)
        box = self.intervals(env)
        if ref.shape != self.base:
            return ref.whole
        for (start, stop), size in zip(box, ref.shape):
            if start < 0 or stop > size:
                clip = lambda x, size: max(0, min(x, size))
                box = tuple((clip(a, n), clip(b, n)) for (a, b), n in zip(box, ref.shape))
                break
        return Region(ref.id, box)

    def bytes(self, region: Region) -> int:
        """What an access to this region moves."""
        if self.elements is not None:
            return self.elements * self.itemsize
        return math.prod(stop - start for start, stop in region.box) * self.itemsize

    def barrier(self, env: list) -> tuple[int, int]:
        """The id and the flat index, if this is a barrier."""
        key = self.key(env)
        try:
            return self.places[key]
        except (KeyError, TypeError):
            self.places[key] = place = self._barrier(env)
            return place

    def _barrier(self, env: list) -> tuple[int, int]:
        ref, flat = self.ref(env), 0
        for (start, _), size in zip(self.intervals(env), self.base):
            flat = flat * size + start
        return ref.id, flat


def _split(atoms, *trees) -> list[list]:
    """The leaves of each tree, and what is left over."""
    parts, atoms = [], list(atoms)
    for tree in trees:
        count = getattr(tree, "num_leaves", 0)
        parts.append(atoms[:count])
        atoms = atoms[count:]
    return [*parts, atoms]


# Accesses and copies.


def _get(compiler: _Compiler, eqn: Any) -> Callable:
    """A read; the value is known if it is a scalar of a concrete argument or of the registers."""
    ref, *leaves = eqn.invars
    view = compiler.view(eqn, ref, leaves, eqn.params["tree"])
    emit, acc = compiler.emitter("read", eqn), compiler.emitter("acc_read", eqn)
    (out,), scalar = map(compiler.slot, eqn.outvars), not eqn.outvars[0].aval.shape

    def step(thread, env):
        source = view.ref(env)
        value = source.value
        if value is not OPAQUE and isinstance(value, np.ndarray):
            index = tuple(start for start, _ in view.intervals(env))
            value = value[index].item() if scalar and view.exact else OPAQUE
        env[out] = value
        if source.space != "regs":
            region = view.region(env)
            if source.space == "acc":
                acc(thread, (region,), size=view.bytes(region), n=0)
            else:
                emit(thread, (region,), size=view.bytes(region))

    return step


def _put(compiler: _Compiler, eqn: Any, accumulates: bool = False) -> Callable:
    """A write, and a read too if what was there is used."""
    ref, value, *leaves = eqn.invars
    view, value = compiler.view(eqn, ref, leaves, eqn.params["tree"]), compiler.slot(value)
    emit, acc = compiler.emitter("write", eqn), compiler.emitter("acc_write", eqn)
    old = next((v for v in eqn.outvars if type(v).__name__ != "DropVar"), None)
    out = None if old is None else compiler.slot(old)
    accumulates |= _is_used(compiler.jaxpr, old)

    def step(thread, env):
        target = view.ref(env)
        if out is not None:
            env[out] = OPAQUE if isinstance(target.value, np.ndarray) else target.value
        held = env[value]
        plain = target.space == "regs" and not target.shape and not accumulates
        target.value = held if plain and not isinstance(held, np.ndarray) else OPAQUE
        if target.space != "regs":
            region = view.region(env)
            reads = (region,) if accumulates else ()
            (acc if target.space == "acc" else emit)(
                thread, reads, (region,), size=view.bytes(region)
            )

    return step


def _is_used(jaxpr: Any, var: Any) -> bool:
    """Whether any equation or output of a jaxpr has this variable."""
    if var is None:
        return False
    return any(v is var for eqn in jaxpr.eqns for v in eqn.invars) or any(
        v is var for v in jaxpr.outvars
    )


def _load(compiler: _Compiler, eqn: Any) -> Callable:
    params, (src, dst, *rest) = eqn.params, eqn.invars
    barrier = rest.pop(0) if params.get("has_barrier", True) else None
    trees = [params[f"{name}_transforms_treedef"] for name in ("src", "dst", "barrier")]
    *leaves, predicate = _split(rest, *trees)
    source = compiler.view(eqn, src, leaves[0], trees[0])
    target = compiler.view(eqn, dst, leaves[1], trees[1])
    on = None if barrier is None else compiler.view(eqn, barrier, leaves[2], trees[2])
    holds = compiler.predicate(eqn, predicate[0] if predicate else None)
    emit, note = compiler.emitter("load", eqn), _collective(params)

    def step(thread, env):
        if not holds(env):
            return
        place, phase = (None, None), None
        if on is not None:
            place = on.barrier(env)
            phase = thread.arrivals[place]
            thread.arrivals[place] += 1
        region = target.region(env)
        emit(
            thread, (source.region(env),), (region,), *place, phase, target.bytes(region), note=note
        )

    return step


def _collective(params: dict) -> str:
    axes = params.get("collective_axes") or ()
    axes = (axes,) if isinstance(axes, str) else axes
    return "collective " + ", ".join(map(str, axes)) if axes else ""


def _store(compiler: _Compiler, eqn: Any) -> Callable:
    params, (src, dst, *rest) = eqn.params, eqn.invars
    trees = params["src_transforms_treedef"], params["dst_transforms_treedef"]
    *leaves, predicate = _split(rest, *trees)
    source = compiler.view(eqn, src, leaves[0], trees[0])
    target = compiler.view(eqn, dst, leaves[1], trees[1])
    holds = compiler.predicate(eqn, predicate[0] if predicate else None)
    emit, commit = compiler.emitter("store", eqn), compiler.emitter("commit_group", eqn)
    grouped, reduction = params["commit_group"], params.get("reduction_op")

    def step(thread, env):
        if holds(env):
            region, to = source.region(env), target.region(env)
            target.ref(env).value = OPAQUE
            size, note = source.bytes(region), f"reduces by {reduction}" if reduction else ""
            emit(thread, (region,), (to,), size=size, note=note)
        if grouped:  # predicated off, the group is there and empty
            commit(thread)

    return step


def _prefetch(compiler: _Compiler, eqn: Any) -> Callable:
    ref, *rest = eqn.invars
    tree = eqn.params["ref_transforms_treedef"]
    leaves, predicate = _split(rest, tree)
    view, emit = compiler.view(eqn, ref, leaves, tree), compiler.emitter("prefetch", eqn)
    holds = compiler.predicate(eqn, predicate[0] if predicate else None)
    note = _collective(eqn.params)

    def step(thread, env):
        if holds(env):
            region = view.region(env)
            emit(thread, (region,), size=view.bytes(region), note=note)

    return step


# Barriers, fences, registers.


def _barrier(*kinds: str) -> Callable:
    """An op of each of these kinds on one barrier, in turn."""

    def handler(compiler: _Compiler, eqn: Any) -> Callable:
        ref, *rest = eqn.invars
        tree = eqn.params["transforms_treedef"]
        leaves, predicate = _split(rest, tree)
        view = compiler.view(eqn, ref, leaves, tree)
        holds = compiler.predicate(eqn, predicate[0] if predicate else None)
        emits = [(kind, compiler.emitter(kind, eqn)) for kind in kinds]

        def step(thread, env):
            if not holds(env):
                return
            place = view.barrier(env)
            for kind, emit in emits:
                counts = thread.arrivals if kind == "arrive" else thread.waits
                emit(thread, (), (), *place, counts[place])
                if kind != "test":
                    counts[place] += 1

        return step

    return handler


def _simple(kind: str, note: Callable[[dict], str] = lambda params: "") -> Callable:
    """An op that has nothing but perhaps a count `n`."""

    def handler(compiler: _Compiler, eqn: Any) -> Callable:
        emit, n, said = compiler.emitter(kind, eqn), eqn.params.get("n"), note(eqn.params)
        return lambda thread, env: emit(thread, n=n, note=said)

    return handler


def _registers(compiler: _Compiler, eqn: Any) -> Callable:
    emit, n, action = compiler.emitter("registers", eqn), eqn.params["n"], eqn.params["action"]

    def step(thread, env):
        thread.registers = n
        emit(thread, n=n, note=str(action))

    return step


# The tensor core.


def _wgmma(compiler: _Compiler, eqn: Any) -> Callable:
    params, (acc, a, b, *rest) = eqn.params, eqn.invars
    trees = [params[f"{name}_transforms_tree"] for name in ("acc", "a", "b")]
    views = [
        compiler.view(eqn, ref, leaves, tree) if _is_ref(ref) else None
        for ref, leaves, tree in zip((acc, a, b), _split(rest, *trees), trees)
    ]
    out, left, right = views
    inner = right.shape[0] if right.exact else a.aval.shape[-1]
    flops = 2 * (out.elements or math.prod(acc.aval.shape)) * inner
    emit = compiler.emitter("wgmma", eqn)

    def step(thread, env):
        target = out.region(env)
        reads = [view.region(env) for view in (left, right) if view is not None]
        emit(thread, (*reads, target), (target,), flops=flops)

    return step


def _is_ref(atom: Any) -> bool:
    return "Ref" in type(atom.aval).__name__


def _accumulator_read(compiler: _Compiler, eqn: Any) -> Callable:
    (ref,), emit, n = eqn.invars, compiler.emitter("acc_read", eqn), eqn.params.get("wait_n", 0)
    view = compiler.view(eqn, ref, [], None)

    def step(thread, env):
        region = view.region(env)
        emit(thread, (region,), size=view.bytes(region), n=n)

    return step


def _accumulator_write(compiler: _Compiler, eqn: Any) -> Callable:
    view, emit = compiler.view(eqn, eqn.invars[0], [], None), compiler.emitter("acc_write", eqn)

    def step(thread, env):
        region = view.region(env)
        emit(thread, (), (region,), size=view.bytes(region))

    return step


# Code that only the device understands.


def _opaque(compiler: _Compiler, eqn: Any) -> Callable:
    refs = [compiler.slot(atom) for atom in eqn.invars if _is_ref(atom)]
    emit, function = compiler.emitter("opaque", eqn), eqn.params.get("mgpu_fn")
    note = getattr(function, "__name__", None) or eqn.primitive.name
    outs = list(map(compiler.slot, eqn.outvars))

    def step(thread, env):
        found = [env[slot] for slot in refs]
        regions = tuple(ref.whole for ref in found if ref.space not in ("barrier", "regs"))
        for ref in found:
            ref.value = OPAQUE
        for slot in outs:
            env[slot] = OPAQUE
        emit(thread, regions, regions, note=note)

    return step


# Control flow, scopes and calls.


def _labelled(eqn: Any, step: Callable) -> Callable:
    """Runs a step within the named scopes of its equation."""
    label = str(eqn.source_info.name_stack)
    if not label:
        return step

    def inside(thread, env):
        outer = thread.scope
        thread.scope = f"{outer}/{label}" if outer else label
        step(thread, env)
        thread.scope = outer

    return inside


def _call(name: str) -> Callable:
    """Runs the jaxpr in this parameter on the operands."""

    def handler(compiler: _Compiler, eqn: Any) -> Callable:
        code, inputs = compiler.sub(eqn, eqn.params[name]), list(map(compiler.slot, eqn.invars))
        outs = list(map(compiler.slot, eqn.outvars))

        def step(thread, env):
            results = code.run(thread, [env[slot] for slot in inputs])
            for slot, value in zip(outs, results, strict=True):
                env[slot] = value

        return _labelled(eqn, step)

    return handler


def _cond(compiler: _Compiler, eqn: Any) -> Callable:
    codes = [compiler.sub(eqn, branch) for branch in eqn.params["branches"]]
    which, *inputs = map(compiler.slot, eqn.invars)
    outs, line, last = list(map(compiler.slot, eqn.outvars)), compiler.line(eqn), len(codes) - 1

    def step(thread, env):
        if env[which] is OPAQUE:
            raise _data_dependent("The branch that is taken", line)
        code = codes[min(max(int(env[which]), 0), last)]
        for slot, value in zip(outs, code.run(thread, [env[i] for i in inputs]), strict=True):
            env[slot] = value

    return _labelled(eqn, step)


def _while(compiler: _Compiler, eqn: Any) -> Callable:
    params = eqn.params
    test, body = (compiler.sub(eqn, params[f"{name}_jaxpr"]) for name in ("cond", "body"))
    inputs, outs = list(map(compiler.slot, eqn.invars)), list(map(compiler.slot, eqn.outvars))
    first, line = params["cond_nconsts"], compiler.line(eqn)
    second = first + params["body_nconsts"]

    def step(thread, env):
        values = [env[slot] for slot in inputs]
        test_consts, consts, carry = values[:first], values[first:second], values[second:]
        outer, index = thread.step, 0
        while (goes_on := test.run(thread, test_consts + carry)[0]) is not OPAQUE and goes_on:
            thread.begin_step(index, outer)
            carry, index = body.run(thread, consts + carry), index + 1
            thread.step = outer
        if goes_on is OPAQUE:
            raise _data_dependent("The end of a loop", line)
        for slot, value in zip(outs, carry, strict=True):
            env[slot] = value

    return _labelled(eqn, step)


def _scan(compiler: _Compiler, eqn: Any) -> Callable:
    length, body = eqn.params["length"], compiler.sub(eqn, eqn.params["jaxpr"])
    stacked = lambda outer, inner: tuple(outer.aval.shape) == (length, *inner.aval.shape)
    inputs, outs = list(map(compiler.slot, eqn.invars)), list(map(compiler.slot, eqn.outvars))
    xs = sum(map(stacked, eqn.invars, body.invars))
    ys = sum(map(stacked, eqn.outvars, getattr(body.jaxpr, "jaxpr", body.jaxpr).outvars))
    carried = len(outs) - ys
    first, second = len(inputs) - xs - carried, len(inputs) - xs
    order = range(length - 1, -1, -1) if eqn.params["reverse"] else range(length)

    def step(thread, env):
        values = [env[slot] for slot in inputs]
        consts, carry, rows = values[:first], values[first:second], values[second:]
        outer = thread.step
        for count, index in enumerate(order):
            thread.begin_step(count, outer)
            row = [_value(x[index]) if isinstance(x, np.ndarray) else OPAQUE for x in rows]
            carry = body.run(thread, consts + carry + row)[:carried]
        thread.step = outer
        for slot, value in zip(outs, carry + [OPAQUE] * ys, strict=True):
            env[slot] = value

    return _labelled(eqn, step)


def _run_scoped(compiler: _Compiler, eqn: Any) -> Callable:
    jaxpr, inputs = eqn.params["jaxpr"], list(map(compiler.slot, eqn.invars))
    code, outs = compiler.sub(eqn, jaxpr, is_open=True), list(map(compiler.slot, eqn.outvars))
    names = getattr(jaxpr.debug_info, "arg_names", None) or ()
    names = [name or f"scratch{i}" for i, name in enumerate(names)]
    names += [f"scratch{i}" for i in range(len(names), len(jaxpr.invars))]
    begin, end = (compiler.emitter(f"scope_{what}", eqn) for what in ("begin", "end"))

    def step(thread, env):
        kernel = thread.kernel
        number, refs = kernel.scope(thread, eqn, names)
        size = kernel.smem_bytes(refs)
        thread.smem_bytes += size
        thread.peak_bytes = max(thread.peak_bytes, thread.smem_bytes)
        begin(thread, size=size, n=number)
        results = code.run(thread, [env[slot] for slot in inputs] + refs)
        end(thread, size=size, n=number)
        thread.smem_bytes -= size
        for slot, value in zip(outs, results, strict=True):
            env[slot] = value

    return _labelled(eqn, step)


def _run_state(compiler: _Compiler, eqn: Any) -> Callable:
    code, inputs = compiler.sub(eqn, eqn.params["jaxpr"]), list(map(compiler.slot, eqn.invars))
    outs = list(map(compiler.slot, eqn.outvars))
    emit, read = compiler.emitter("acc_init", eqn), compiler.emitter("acc_read", eqn)
    avals = [var.aval for var in code.invars]

    def step(thread, env):
        refs = []
        for i, (aval, slot) in enumerate(zip(avals, inputs, strict=True)):
            value, space = env[slot], _space(aval)
            if type(value) is _Ref:
                ref = value
            elif space == "acc":
                ref = thread.kernel.allocate(f"acc{i}", aval, (), thread.index, None)
                size = thread.kernel.buffers[ref.id].bytes
                emit(thread, (), (ref.whole,), size=size)
            else:
                ref = _Ref(-1, tuple(aval.shape), "regs", OPAQUE if aval.shape else value)
            refs.append(ref)
        code.run(thread, refs)
        for ref in (ref for ref in refs if ref.space == "acc"):
            # What is left in flight is waited for, to have the accumulator's value in the end.
            read(thread, (ref.whole,), size=thread.kernel.buffers[ref.id].bytes, n=0)
        for slot, ref in zip(outs, refs):
            env[slot] = ref.value

    return _labelled(eqn, step)


def _new_ref(compiler: _Compiler, eqn: Any) -> Callable:
    """An array that the host may change; a kernel that gets it reads and writes it."""
    (held,), (out,) = map(compiler.slot, eqn.invars[:1]), map(compiler.slot, eqn.outvars)
    shape = tuple(eqn.outvars[0].aval.shape)

    def step(thread, env):
        env[out] = _Ref(-1, shape, "regs", env[held])

    return step


def _axis_index(compiler: _Compiler, eqn: Any) -> Callable:
    (out,), names = map(compiler.slot, eqn.outvars), eqn.params["axis_name"]
    names = names if isinstance(names, tuple) else (names,)

    def step(thread, env):
        flat = 0
        for name in names:
            flat = flat * thread.kernel.sizes[name] + thread.axes[name]
        env[out] = flat

    return step


def _program(compiler: _Compiler, eqn: Any) -> Callable:
    (out,), axis = map(compiler.slot, eqn.outvars), eqn.params["axis"]
    sized = eqn.primitive.name == "num_programs"

    def step(thread, env):
        env[out] = (thread.kernel.grid if sized else thread.kernel.block)[axis]

    return step


def _kernel(compiler: _Compiler, eqn: Any) -> Callable:
    inputs = list(map(compiler.slot, eqn.invars))

    def step(thread, env):
        if thread.kernel is not None:
            raise NotImplementedError(
                f"{compiler.line(eqn)}: a kernel within a kernel is not traced, since a program is"
                " that of one: call it on the host, or inline its body."
            )
        thread.kernels.append((eqn, [env[slot] for slot in inputs]))

    return step


def _pallas_call(compiler: _Compiler, eqn: Any) -> Callable:
    def step(thread, env):
        raise NotImplementedError(
            f"{compiler.line(eqn)}: a pl.pallas_call (Mosaic GPU, Triton or TPU) is not traced,"
            " since the compiler adds its copies: write the kernel with plgpu.kernel."
        )

    return step


# Pure code.


def _pure(compiler: _Compiler, eqn: Any, name: str) -> Callable | None:
    """Scalars of scalars are computed; all else stays OPAQUE, and costs nothing."""
    if not (len(eqn.outvars) == 1 and all(map(_is_scalar, (*eqn.outvars, *eqn.invars)))):
        list(map(compiler.slot, eqn.outvars))
        return _on_host(compiler, eqn)
    inputs, out = list(map(compiler.slot, eqn.invars)), compiler.slot(eqn.outvars[0])
    if name == "select_n":
        which, *cases = inputs

        def select(thread, env):
            chosen = env[which]
            env[out] = OPAQUE if chosen is OPAQUE else env[cases[int(chosen)]]

        return select
    function = _scalar_function(eqn, name)
    if len(inputs) == 2:
        first, second = inputs

        def binary(thread, env):
            x, y = env[first], env[second]
            env[out] = OPAQUE if x is OPAQUE or y is OPAQUE else function(x, y)

        return binary

    def step(thread, env):
        values = [env[slot] for slot in inputs]
        env[out] = OPAQUE if OPAQUE in values else function(*values)

    return step


def _on_host(compiler: _Compiler, eqn: Any) -> Callable | None:
    """Arrays of integers that the host makes of concrete ones are concrete too."""
    avals = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    known = lambda a: getattr(a, "dtype", None) in _INDEXES and a.size <= _MOST_INTEGERS
    if eqn.effects or not all(map(known, avals)):
        return None
    inputs, outs = list(map(compiler.slot, eqn.invars)), list(map(compiler.slot, eqn.outvars))
    dtypes = [atom.aval.dtype for atom in eqn.invars]

    def step(thread, env):
        values = [env[slot] for slot in inputs]
        if thread.kernel is not None or any(value is OPAQUE for value in values):
            return
        operands = [np.asarray(x, dtype) for x, dtype in zip(values, dtypes)]
        results = eqn.primitive.bind(*operands, **eqn.params)
        results = results if eqn.primitive.multiple_results else [results]
        for slot, result in zip(outs, results, strict=True):
            env[slot] = _value(np.asarray(result))

    return step


def _is_scalar(atom: Any) -> bool:
    aval = atom.aval
    return (
        not getattr(aval, "shape", (1,))
        and not _is_ref(atom)
        and isinstance(aval.dtype, np.dtype)
        and aval.dtype.kind in "biuf"
    )


def _scalar_function(eqn: Any, name: str) -> Callable:
    """Python's arithmetic for integers and booleans; JAX's for all else."""
    dtypes = [atom.aval.dtype for atom in (*eqn.invars, *eqn.outvars)]
    integers = all(dtype.kind in "biu" for dtype in dtypes)
    if integers and name in ("not", "convert_element_type"):
        is_bool = dtypes[-1].kind == "b"
        if name == "not":
            return operator.not_ if is_bool else _wrapping(operator.invert, dtypes[-1])
        return bool if is_bool else _wrapping(int, dtypes[-1])
    if integers and name in _INTEGERS:
        function, grows = _INTEGERS[name]
        return _wrapping(function, dtypes[-1]) if grows else function
    if name in ("broadcast_in_dim", "reshape", "squeeze", "multiple_of", "copy", "stop_gradient"):
        return lambda x: x

    def bind(*values):
        operands = [np.asarray(x, dtype) for x, dtype in zip(values, dtypes)]
        result = eqn.primitive.bind(*operands, **eqn.params)
        (result,) = result if eqn.primitive.multiple_results else (result,)
        return np.asarray(result).item()

    return bind


def _wrapping(function: Callable, dtype: np.dtype) -> Callable:
    """The function, with results that overflow as the dtype's do."""
    if dtype.kind == "b":
        return function
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def wrapped(*values):
        result = function(*values)
        return result if low <= result <= high else (result - low) % (high - low + 1) + low

    return wrapped


def _div(x: int, y: int) -> int:
    """Rounds towards zero; by zero, as XLA does, gives -1."""
    if y == 0:
        return -1
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _rem(x: int, y: int) -> int:
    return x if y == 0 else x - _div(x, y) * y


# Functions of Python integers; whether a result can leave the dtype.
_INTEGERS: dict[str, tuple[Callable, bool]] = {
    "add": (operator.add, True), "sub": (operator.sub, True), "mul": (operator.mul, True),
    "neg": (operator.neg, True), "abs": (operator.abs, True),
    "div": (_div, True), "rem": (_rem, False), "max": (max, False), "min": (min, False),
    "and": (operator.and_, False), "or": (operator.or_, False), "xor": (operator.xor, False),
    "eq": (operator.eq, False), "ne": (operator.ne, False), "lt": (operator.lt, False),
    "le": (operator.le, False), "gt": (operator.gt, False), "ge": (operator.ge, False),
    "clamp": (lambda low, x, high: min(max(x, low), high), False),
}  # fmt: skip

_HANDLERS: dict[str, Callable] = {
    "get": _get,
    "swap": _put,
    "addupdate": functools.partial(_put, accumulates=True),
    "copy_gmem_to_smem": _load,
    "copy_smem_to_gmem": _store,
    "async_prefetch": _prefetch,
    "commit_group": _simple("commit_group"),
    "wait_smem_to_gmem": _simple(
        "wait_store", lambda params: "read_only" if params["wait_read_only"] else ""
    ),
    "barrier_arrive": _barrier("arrive"),
    "barrier_wait": _barrier("wait"),
    "barrier_arrive_and_wait": _barrier("arrive", "wait"),
    "barrier_test": _barrier("test"),
    "commit_smem": _simple("fence"),
    "set_max_registers": _registers,
    "wgmma_ref": _wgmma,
    "wgmma_wait": _simple("wgmma_wait"),
    "wgmma_accumulator_deref": _accumulator_read,
    "wgmma_accumulator_store": _accumulator_write,
    "inline_mgpu": _opaque,
    "print_layout": _opaque,
    "debug_print": _opaque,
    "run_scoped": _run_scoped,
    "run_state": _run_state,
    "new_ref": _new_ref,
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    "jit": _call("jaxpr"),
    "pjit": _call("jaxpr"),
    "closed_call": _call("call_jaxpr"),
    "core_call": _call("call_jaxpr"),
    "checkpoint": _call("jaxpr"),
    "custom_jvp_call": _call("call_jaxpr"),
    "custom_vjp_call": _call("call_jaxpr"),
    "custom_vmap_call": _call("call"),
    "axis_index": _axis_index,
    "program_id": _program,
    "num_programs": _program,
    "mpmd_map": _kernel,
    "pallas_call": _pallas_call,
}
