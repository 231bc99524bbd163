"""Blackwell's tensor core: products into TMEM, and copies to it.

The model. A product, a copy into TMEM and a commit are issued by one lane, and those of two blocks
by the first block of the two, for both: there the op has the regions of both blocks, and in the
other block nothing is done (`_collective_mma_predicate`, JAX's `mosaic_gpu/primitives.py`). What a
commit announces is done when all products and copies are that its thread started before; a commit
for two blocks arrives on the barrier of each (`commit_arrive`, JAX's `mosaic/gpu/tcgen05.py`). A
product that is given a barrier is a product and then a commit.

Each function takes the compiler and an equation of one kind of primitive, and returns its step.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from pallascope.program import Kind, Region
from pallascope.tracing.code import Compiler, Step, is_ref, split
from pallascope.tracing.jaxprs import Env, Eqn
from pallascope.tracing.state import OPAQUE, Thread
from pallascope.tracing.views import View

_OPERANDS: tuple[str, ...] = ("acc", "a", "b", "barrier", "a_scale", "b_scale", "a_sparse_metadata")


def mma(compiler: Compiler, eqn: Eqn) -> Step:
    """The start of a product; a multiplication and an addition are two operations."""
    params = eqn.params
    views = _operands(compiler, eqn)
    acc, a, b, on = (views.pop(name, None) for name in _OPERANDS[:4])
    assert acc is not None and a is not None and b is not None, "a product has these"
    axes = _axes(params)
    flops = 2 * math.prod(acc.shape) * b.shape[0] * (2 if axes else 1)
    emit = compiler.emitter(Kind.TCGEN05_MMA, eqn, flops=flops, collective=axes, dtype=b.retyped)
    arrive = compiler.emitter(Kind.TCGEN05_COMMIT, eqn, collective=axes)
    adds = compiler.slot(eqn.invars[3])

    def step(thread: Thread, env: Env) -> None:
        blocks = _blocks(thread, axes)
        if not blocks:
            return
        reads = [
            region for view in (a, b, *views.values()) for region in _of(view, thread, env, blocks)
        ]
        writes = _of(acc, thread, env, blocks)
        is_new = env[adds] is not OPAQUE and not env[adds]
        emit(thread, (*reads, *(() if is_new else writes)), writes)
        if on is not None:
            _arrive(arrive, thread, env, on, blocks)

    return step


def commit(compiler: Compiler, eqn: Eqn) -> Step:
    """An arrival when all that the thread started is over."""
    ref, *leaves = eqn.invars
    on = compiler.view(eqn, ref, leaves, eqn.params["barrier_transforms_tree"])
    axes = _axes(eqn.params)
    emit = compiler.emitter(Kind.TCGEN05_COMMIT, eqn, collective=axes)

    def step(thread: Thread, env: Env) -> None:
        if blocks := _blocks(thread, axes):
            _arrive(emit, thread, env, on, blocks)

    return step


def copy(compiler: Compiler, eqn: Eqn) -> Step:
    """A copy from SMEM to TMEM."""
    (smem, tmem, *rest), params = eqn.invars, eqn.params
    of_smem, of_tmem, _ = split(rest, params["smem_tree"], params["tmem_tree"])
    source = compiler.view(eqn, smem, of_smem, params["smem_tree"])
    target = compiler.view(eqn, tmem, of_tmem, params["tmem_tree"])
    axes = _axes(params)
    emit = compiler.emitter(Kind.TCGEN05_COPY, eqn, collective=axes)

    def step(thread: Thread, env: Env) -> None:
        if blocks := _blocks(thread, axes):
            region = source.region(thread, env)
            size = source.bytes(region) * len(blocks)
            emit(
                thread,
                _of(source, thread, env, blocks),
                _of(target, thread, env, blocks),
                size=size,
            )

    return step


def _operands(compiler: Compiler, eqn: Eqn) -> dict[str, View]:
    """The views of a product's operands, by name; some products lack some of them."""
    params, (acc, a, b, _, *rest) = eqn.params, eqn.invars
    has = params["arrive"], params["scaled"], params["scaled"], params["sparse"]
    names = [*_OPERANDS[:3], *(name for name, given in zip(_OPERANDS[3:], has) if given)]
    refs = [acc, a, b, *rest[: sum(has)]]
    assert all(map(is_ref, refs)), "the operands of a product are refs"
    trees = [params[f"{name}_transforms_tree"] for name in _OPERANDS]
    leaves = dict(zip(_OPERANDS, split(rest[sum(has) :], *trees)))
    views: dict[str, View] = {}
    for name, ref in zip(names, refs):
        tree = params[f"{name}_transforms_tree"]
        views[name] = compiler.view(eqn, ref, leaves[name], tree)
    return views


def _axes(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The cluster's axis along which two blocks work together."""
    axis = params.get("collective_axis")
    return () if axis is None else (str(axis),)


def _blocks(thread: Thread, axes: tuple[str, ...]) -> tuple[int, ...]:
    """The blocks that an op of this thread is for; none where another block does it."""
    if not axes:
        return (thread.block,)
    blocks = thread.home.peers(thread.block, axes)
    return blocks if thread.block == blocks[0] else ()


def _of(view: View, thread: Thread, env: Env, blocks: tuple[int, ...]) -> tuple[Region, ...]:
    """The region of a view in each of these blocks."""
    ids, mine = view.ref(env).ids, view.region(thread, env)
    if len(blocks) == 1:
        return (mine,)
    return tuple(Region(ids[block], mine.box, mine.is_exact, mine.is_placed) for block in blocks)


def _arrive(
    emit: Callable[..., None], thread: Thread, env: Env, on: View, blocks: tuple[int, ...]
) -> None:
    """The commit's arrival, on the barrier of each block."""
    place = on.barrier(thread, env)
    phase = thread.next_arrival(place)
    ids = on.ref(env).ids
    emit(thread, (), (), *place, phase, peers=tuple(ids[block] for block in blocks))
