"""Accesses of memory and copies between memories: the ops that read and write regions.

Where one block tracks a load of two (`leader_tracked`), the block's own arrival announces the bytes
of both, and the other's copy lands on that block's barrier, without an arrival
(`jax/experimental/mosaic/gpu/launch_context.py`, `async_copy`).

A load whose predicate is off arrives on its barrier in JAX 0.11.2, and does not in 0.12.0.1
(`copy_gmem_to_smem`'s lowering in `jax/_src/pallas/mosaic_gpu/primitives.py`).

Each function takes the compiler and an equation of one kind of primitive, and returns its step.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from pallascope.program import Kind, Region, Space
from pallascope.tracing import masks
from pallascope.tracing.code import Compiler, Handler, Step, split
from pallascope.tracing.jaxprs import Env, Eqn, Value
from pallascope.tracing.state import OPAQUE, Other, Thread, bytes_of
from pallascope.tracing.views import Box, View, data_dependent, share


def get(compiler: Compiler, eqn: Eqn) -> Step:
    """A read. The value is known if it is a scalar of a concrete argument or of the registers."""
    ref, *leaves = eqn.invars
    view = compiler.view(eqn, ref, leaves, eqn.params["tree"])
    waves = compiler.wavefronts(view, eqn.outvars[0], eqn.params.get("optimized", True))
    layout = compiler.layout_name(eqn.outvars[0])
    emit = compiler.emitter(Kind.READ, eqn, wavefronts=waves, layout=layout)
    acc = compiler.emitter(Kind.ACC_READ, eqn, pending=0)
    (out,), scalar = map(compiler.slot, eqn.outvars), not eqn.outvars[0].aval.shape
    kept = masks.kept(compiler, eqn.outvars[0])

    def step(thread: Thread, env: Env) -> None:
        source = view.ref(env)
        value = source.value
        if value is not OPAQUE and isinstance(value, np.ndarray):
            is_known = scalar and view.exact and view.is_placed(env)
            value = _element(value, view.box(env)) if is_known else OPAQUE  # pyright: ignore[reportUnknownArgumentType]
        env[out] = value
        if source.space != Other.REGISTERS:
            regions = view.regions(thread, env)
            part = _part(kept(env), view, thread, env) if kept else None
            regions = regions if part is None else (part,)
            if source.space == Space.ACC:
                acc(thread, regions, size=view.bytes(regions[0]))
            else:
                emit(thread, regions, size=view.bytes(regions[0]))

    return step


def _part(box: Box | None, view: View, thread: Thread, env: Env) -> Region | None:
    """The region of a box in a read, if it is one, and all of the read is within the buffer."""
    whole, buffer = view.region(thread, env).box, view.ref(env).shape
    if box is None or any(a < 0 or b > n for (a, b), n in zip(whole, buffer)):
        return None
    part = view.part(thread, env, box)
    return part if part.is_exact and part.is_placed else None


def _element(array: np.ndarray, box: Box) -> Value:
    """The element that a box of one element selects, if it is within the array."""
    index = tuple(start for start, _ in box)
    inside = all(0 <= at < size for at, size in zip(index, array.shape))
    return array[index].item() if inside else OPAQUE


def put(compiler: Compiler, eqn: Eqn) -> Step:
    """A write, and also a read if the kernel uses the old value."""
    ref, held, *leaves = eqn.invars
    view, value = compiler.view(eqn, ref, leaves, eqn.params["tree"]), compiler.slot(held)
    waves = compiler.wavefronts(view, held, eqn.params.get("optimized"))
    layout = compiler.layout_name(held)
    emit = compiler.emitter(Kind.WRITE, eqn, wavefronts=waves, layout=layout)
    acc = compiler.emitter(Kind.ACC_WRITE, eqn)
    old = next((v for v in eqn.outvars if type(v).__name__ != "DropVar"), None)
    out = None if old is None else compiler.slot(old)
    is_used = id(old) in compiler.uses

    def step(thread: Thread, env: Env) -> None:
        target = view.ref(env)
        if out is not None:
            env[out] = OPAQUE if isinstance(target.value, np.ndarray) else target.value
        held = env[value]
        plain = target.space == Other.REGISTERS and not target.shape
        target.value = held if plain and not isinstance(held, np.ndarray) else OPAQUE
        if target.space != Other.REGISTERS:
            regions = view.regions(thread, env)
            reads = regions if is_used else ()
            write = acc if target.space == Space.ACC else emit
            write(thread, reads, regions, size=view.bytes(regions[0]))

    return step


def access(kind: Kind, tree: str | None = None, is_write: bool = False) -> Handler:
    """An access by an op of this kind: of an accumulator, or of TMEM.

    `tree` names the parameter that has the ref's transforms, if it may have some.
    """

    def handler(compiler: Compiler, eqn: Eqn) -> Step:
        ref, *rest = eqn.invars
        leaves = rest[1:] if is_write else rest  # after the value that is written
        view = compiler.view(eqn, ref, leaves, eqn.params[tree]) if tree else None
        view = view or compiler.view(eqn, ref, [], None)
        fixed = {"pending": eqn.params.get("wait_n", 0)} if kind is Kind.ACC_READ else {}
        emit = compiler.emitter(kind, eqn, **fixed)
        compiler.outputs(eqn)

        def step(thread: Thread, env: Env) -> None:
            region = view.region(thread, env)
            reads, writes = ((), (region,)) if is_write else ((region,), ())
            emit(thread, reads, writes, size=view.bytes(region))

        return step

    return handler


def atomic(compiler: Compiler, eqn: Eqn) -> Step:
    """An atomic operation: a write that also reads, harmless beside other atomic ones."""
    tree = eqn.params["args_tree"]
    at = jax.tree.unflatten(tree, eqn.invars)
    ref, transforms = at[0], at[1]
    leaves, structure = jax.tree.flatten(transforms)
    view, how = compiler.view(eqn, ref, leaves, structure), eqn.params["atomic_type"]
    emit = compiler.emitter(Kind.WRITE, eqn, combines=str(getattr(how, "value", how)))

    def step(thread: Thread, env: Env) -> None:
        view.ref(env).value = OPAQUE
        regions = view.regions(thread, env)
        emit(thread, regions, regions, size=view.bytes(regions[0]))

    return step


def _copied(compiler: Compiler, eqn: Eqn, *names: str) -> tuple[list[View], Callable[[Env], bool]]:
    """The refs of an asynchronous copy, and its predicate."""
    refs, rest = eqn.invars[: len(names)], eqn.invars[len(names) :]
    trees = [eqn.params[f"{name}_transforms_treedef"] for name in names]
    *leaves, predicate = split(rest, *trees)
    views = [compiler.view(eqn, *each) for each in zip(refs, leaves, trees)]
    return views, compiler.predicate(eqn, predicate[0] if predicate else None)


# What a copy with a predicate that is off still does: arrive, for no bytes, until JAX 0.12.
_ARRIVES_IF_OFF = jax.__version_info__ < (0, 12)


def _axes(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The cluster's axes along which blocks share a copy."""
    axes = params.get("collective_axes") or ()
    return (axes,) if isinstance(axes, str) else tuple(map(str, axes))


def load(compiler: Compiler, eqn: Eqn) -> Step:
    """A copy into SMEM, or a block's share of a copy into the SMEM of several blocks."""
    (source, target, on), holds = _copied(compiler, eqn, "src", "dst", "barrier")
    axes, tracked = _axes(eqn.params), eqn.params.get("leader_tracked")
    emit = compiler.emitter(Kind.LOAD, eqn, collective=axes)
    arrive = compiler.emitter(Kind.ARRIVE, eqn)

    def step(thread: Thread, env: Env) -> None:
        is_on = holds(env)
        blocks = thread.home.peers(thread.block, axes) if axes else (thread.block,)
        number = blocks.index(thread.block)
        is_tracked = tracked is not None and len(blocks) > 1
        if not is_on and (not _ARRIVES_IF_OFF or (is_tracked and number)):
            return
        place = on.barrier(thread, env)
        phase = thread.next_arrival(place)
        if not is_on:
            arrive(thread, (), (), *place, phase)
            return
        if len(blocks) < 2 or is_tracked:
            region, leader, parts, box = target.region(thread, env), (), None, None
            if is_tracked:
                leader, parts = (on.ref(env).ids[min(blocks)],), 0 if number else len(blocks)
                box = _partition(source, tracked, number, len(blocks))
            reads = (source.part(thread, env, box) if box else source.region(thread, env),)
            emit(thread, reads, (region,), *place, phase, target.bytes(region), leader, parts=parts)
            return
        box = share(target, number, len(blocks))
        reads, mine = (source.part(thread, env, box),), target.part(thread, env, box)
        smem, barriers = target.ref(env).ids, on.ref(env).ids
        writes = tuple(Region(smem[peer], mine.box) for peer in blocks)
        size = bytes_of(math.prod(stop - start for start, stop in box), target.bits)
        peers = tuple(barriers[peer] for peer in blocks)
        whole = source.region(thread, env), target.region(thread, env)
        emit(thread, reads, writes, *place, phase, size, peers, whole=whole)

    return step


def _partition(source: View, tracked: Any, number: int, count: int) -> Box | None:
    """The box that the block `number` of `count` loads of a copy that the first block tracks.

    None stands for all of it, which each block loads if the copy is replicated.
    """
    axis = getattr(tracked, "axis", None)
    if axis is None:
        return None
    box = [(0, size) for size in source.shape]
    step = source.shape[axis] // count
    box[axis] = number * step, (number + 1) * step
    return tuple(box)


def cp_async(compiler: Compiler, eqn: Eqn) -> Step:
    """A copy into SMEM without a barrier, as GPUs before Hopper make it."""
    (source, target), holds = _copied(compiler, eqn, "src", "dst")
    emit = compiler.emitter(Kind.CP_ASYNC, eqn)

    def step(thread: Thread, env: Env) -> None:
        if holds(env):
            region = target.region(thread, env)
            emit(thread, (source.region(thread, env),), (region,), size=target.bytes(region))

    return step


def store(compiler: Compiler, eqn: Eqn) -> Step:
    """A copy out of SMEM."""
    (source, target), holds = _copied(compiler, eqn, "src", "dst")
    grouped, reduction = eqn.params["commit_group"], eqn.params.get("reduction_op")
    emit = compiler.emitter(Kind.STORE, eqn, combines=str(reduction or ""))
    commit, skip = (compiler.emitter(kind, eqn) for kind in (Kind.COMMIT_GROUP, Kind.SKIP))

    def step(thread: Thread, env: Env) -> None:
        if not holds(env):
            skip(thread, (source.region(thread, env),))
        else:
            region, to = source.region(thread, env), target.region(thread, env)
            target.ref(env).value = OPAQUE
            emit(thread, (region,), (to,), size=source.bytes(region))
        if grouped:  # predicated off, the group is there and empty
            commit(thread)

    return step


def prefetch(compiler: Compiler, eqn: Eqn) -> Step:
    """A copy into the L2 cache."""
    (view,), holds = _copied(compiler, eqn, "ref")
    emit = compiler.emitter(Kind.PREFETCH, eqn, collective=_axes(eqn.params))

    def step(thread: Thread, env: Env) -> None:
        if holds(env):
            region = view.region(thread, env)
            emit(thread, (region,), size=view.bytes(region))

    return step


def store_to_peer(compiler: Compiler, eqn: Eqn) -> Step:
    """A copy of registers to a peer's SMEM. Like a load, it arrives and its bytes land there."""
    params, (_, ref, barrier, index, *rest) = eqn.params, eqn.invars
    trees = params["ref_transforms_treedef"], params["barrier_transforms_treedef"]
    *leaves, _ = split(rest, *trees)
    target = compiler.view(eqn, ref, leaves[0], trees[0])
    on = compiler.view(eqn, barrier, leaves[1], trees[1])
    index, line, axis = compiler.slot(index), compiler.line(eqn), params["cluster_dim"]
    how = str(params.get("atomic") or "")
    emit = compiler.emitter(Kind.LOAD, eqn, from_registers=True, combines=how)

    def step(thread: Thread, env: Env) -> None:
        if env[index] is OPAQUE:
            raise data_dependent("The block that is stored to", line)
        peer = thread.home.block_at(thread.block, {axis: int(env[index])})
        mine, (_, flat) = target.region(thread, env), on.barrier(thread, env)
        there = Region(target.ref(env).ids[peer], mine.box)
        place = on.ref(env).ids[peer], flat
        phase = thread.next_arrival(place)
        reads = (there,) if how else ()  # an addition reads what is there
        emit(thread, reads, (there,), *place, phase, target.bytes(mine))

    return step
