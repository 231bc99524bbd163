"""The primitives by name: which function makes the step of an equation.

The model. `_HANDLERS` has the function for each primitive that touches memory, synchronises or
directs the flow. Each other primitive that has effects is refused, and so is what the GPU lacks
that the kernel is traced for (`targets`): JAX's compiler may end the process where it meets that.
So is what the host calls a kernel by without a function here, as the kernel would be passed over.
All others are pure, and `pure` has them. Code that no thread reaches is not refused: the error
comes where a thread runs the step. Not covered: kernels that the host calls in a Python function
which JAX keeps as it is, as in `jax.pure_callback`.
"""

from collections.abc import Mapping
from typing import Any, cast

from pallascope.program import Kind
from pallascope.tracing import (
    calls,
    claims,
    copies,
    device,
    flow,
    masks,
    multimem,
    pure,
    semaphores,
    sync,
    tcgen05,
    tensor_core,
)
from pallascope.tracing.arithmetic import Cost
from pallascope.tracing.code import Compiler, Handler, Silent, Step
from pallascope.tracing.jaxprs import Env, Eqn, primitives
from pallascope.tracing.source import UNKNOWN
from pallascope.tracing.state import Thread
from pipelib import targets


def of_kernel(compiler: Compiler, eqn: Eqn) -> Step | Silent | Cost | None:
    """The step, or the cost, of an equation of a kernel."""
    name = eqn.primitive.name.removesuffix("_p").removeprefix("mosaic_gpu_")
    if handler := _handler(eqn, name):
        masks.note(compiler, eqn)
        return handler(compiler, eqn)
    masks.note(compiler, eqn)
    return pure.scalars(compiler, eqn, name) or pure.cost(compiler, eqn, name)


def of_host(compiler: Compiler, eqn: Eqn) -> Step | Silent | Cost | None:
    """The step, or the cost, of an equation that the host computes around kernels."""
    name = eqn.primitive.name.removesuffix("_p")
    if handler := _handler(eqn, name):
        return handler(compiler, eqn)
    if _has_kernel(eqn.params):
        return _refusing(_HIDES)(compiler, eqn)
    return pure.scalars(compiler, eqn, name) or pure.integers(compiler, eqn)


def _has_kernel(held: Any) -> bool:
    """Whether a kernel is called in what an equation holds: jaxprs, in whatever they are kept."""
    if isinstance(held, Mapping):
        return any(map(_has_kernel, cast(Mapping[object, Any], held).values()))
    if isinstance(held, tuple | list):
        return any(map(_has_kernel, cast(list[Any], held)))
    jaxpr = getattr(held, "jaxpr", held)
    if not hasattr(jaxpr, "eqns"):  # perhaps a primitive that is an object, as `custom_root` makes
        return isinstance(params := getattr(held, "params", None), dict) and _has_kernel(params)
    return any(eqn.primitive.name in _KERNELS or _has_kernel(eqn.params) for eqn in jaxpr.eqns)


def _handler(eqn: Eqn, name: str) -> Handler | None:
    """The function for a primitive that has effects or runs others; None if it does neither."""
    if name in _HOPPERS and not targets.has_tma():
        return _refusing(_LATER)
    if handler := _HANDLERS.get(name):
        return handler
    return _refusing(_UNKNOWN) if eqn.effects else None


def _refusing(reason: str) -> Handler:
    """A function that makes a step which fails: code that no thread reaches does no harm."""

    def handler(compiler: Compiler, eqn: Eqn) -> Step:
        line, name = compiler.line(eqn), _name(eqn)

        def step(thread: Thread, env: Env) -> None:
            raise NotImplementedError(f"{line or UNKNOWN}: the primitive {name!r} {reason}.")

        return step

    return handler


def _name(eqn: Eqn) -> str:
    """What an equation's primitive is called: by its class, if it is an object of its own."""
    own = eqn.params.get("_prim")
    return eqn.primitive.name if own is None else type(own).__name__


def _load(compiler: Compiler, eqn: Eqn) -> Step | Silent | Cost | None:
    """A load by TMA, or by `cp.async`, which has no barrier."""
    has_barrier = eqn.params.get("has_barrier", True)
    if has_barrier is not targets.has_tma():
        return _refusing(_LATER if has_barrier else _EARLIER)(compiler, eqn)
    if not has_barrier:
        return copies.cp_async(compiler, eqn)
    return copies.load(compiler, eqn)


def _wait_for_load(compiler: Compiler, eqn: Eqn) -> Step | Silent | Cost | None:
    """A wait for `cp.async`."""
    wait = sync.simple(Kind.WAIT_CP_ASYNC, pending="n")
    return (_refusing(_EARLIER) if targets.has_tma() else wait)(compiler, eqn)


_UNKNOWN = (
    "has effects that the trace does not know, so ops would be missing: take it out of what is"
    " traced"
)
_HIDES = (
    "has a kernel in it, and the trace does not know how JAX calls the kernel there, so the kernel"
    " would not be checked: trace the function that calls the kernel, without this around it"
)
_EARLIER = (
    "is for copies without a barrier, as only GPUs before Hopper make them, and the kernel is"
    " traced for Hopper or a later GPU: give the copy a barrier and wait for that, or trace the"
    ' kernel with pipelib.target("8.0")'
)
_LATER = (
    "needs a Hopper GPU (compute capability 9.0), but the kernel is traced for an earlier one,"
    " where it would not compile: copy without a barrier, store by ordinary writes, multiply by"
    " plgpu.mma and leave out commit_smem"
)
# What GPUs before Hopper lack. They have mbarriers, but no load that arrives there.
_HOPPERS = primitives(
    "async_prefetch async_store_smem commit_group commit_smem copy_smem_to_gmem"
    " griddepcontrol_launch_dependents griddepcontrol_wait set_max_registers wait_smem_to_gmem"
    " wgmma_accumulator_deref wgmma_accumulator_store wgmma_ref wgmma_wait"
)

# By which a kernel is called, also for another compiler.
_KERNELS = primitives("mpmd_map pallas_call")

_HANDLERS: dict[str, Handler] = {
    "get": copies.get,
    "load": copies.get,
    "swap": copies.put,
    "store": copies.put,
    "mgpu_atomic_store": copies.atomic,
    "copy_gmem_to_smem": _load,
    "wait_gmem_to_smem": _wait_for_load,
    "copy_smem_to_gmem": copies.store,
    "async_prefetch": copies.prefetch,
    "async_store_smem": copies.store_to_peer,
    "commit_group": sync.simple(Kind.COMMIT_GROUP),
    "wait_smem_to_gmem": sync.simple(Kind.WAIT_STORE, pending="n", read_only="wait_read_only"),
    "barrier_arrive": sync.barrier(Kind.ARRIVE),
    "barrier_wait": sync.barrier(Kind.WAIT),
    "barrier_test": sync.barrier(Kind.TEST),
    "barrier_arrive_and_wait": sync.arrive_and_wait,
    "commit_smem": sync.simple(Kind.FENCE),
    "set_max_registers": sync.registers,
    "wgmma_ref": tensor_core.wgmma,
    "wgmma_wait": sync.simple(Kind.WGMMA_WAIT, pending="n"),
    "wgmma_accumulator_deref": copies.access(Kind.ACC_READ),
    "wgmma_accumulator_store": copies.access(Kind.ACC_WRITE, is_write=True),
    "mma": tensor_core.mma,
    "tcgen05_mma": tcgen05.mma,
    "tcgen05_commit_arrive": tcgen05.commit,
    "async_load": copies.access(Kind.LOAD_TMEM, "tree"),
    "async_store_tmem": copies.access(Kind.STORE_TMEM, "tree", is_write=True),
    "wait_load_tmem": sync.simple(Kind.WAIT_LOAD_TMEM),
    "commit_tmem": sync.simple(Kind.WAIT_STORE_TMEM),
    "async_copy_smem_to_tmem": tcgen05.copy,
    "async_copy_scales_to_tmem": tcgen05.copy,
    "async_copy_sparse_metadata_to_tmem": tcgen05.copy,
    "try_cluster_cancel": claims.attempt,
    "query_cluster_cancel": claims.answer,
    "inline_mgpu": device.code,
    "print_layout": calls.opaque,
    "debug_print": calls.opaque,
    "delay": calls.opaque,
    "griddepcontrol_wait": sync.simple(Kind.GRID_WAIT),
    "griddepcontrol_launch_dependents": sync.simple(Kind.GRID_SIGNAL),
    "run_scoped": flow.run_scoped,
    "run_state": flow.run_state,
    "new_ref": flow.new_ref,
    "empty_ref": flow.new_ref,
    "freeze": flow.freeze,
    "free_ref": flow.nothing,
    "check": flow.nothing,
    "get_global": semaphores.get_global,
    "semaphore_signal": semaphores.signal,
    "semaphore_signal_multicast": multimem.signal,
    "multimem_store": multimem.store,
    "multimem_load_reduce": multimem.load_reduce,
    "semaphore_signal_parallel": semaphores.signals,
    "semaphore_wait": semaphores.wait,
    "semaphore_read": flow.nothing,
    "cond": flow.cond,
    "while": flow.while_loop,
    "scan": flow.scan,
    "jit": flow.call("jaxpr"),
    "pjit": flow.call("jaxpr"),
    "closed_call": flow.call("call_jaxpr"),
    "core_call": flow.call("call_jaxpr"),
    "eval_jaxpr": flow.call("call_jaxpr"),
    "checkpoint": flow.call("jaxpr"),
    "remat2": flow.call("jaxpr"),  # what JAX calls jax.checkpoint's
    "composite": flow.call("call_jaxpr"),
    "custom_jvp_call": flow.call("call_jaxpr"),
    "custom_vjp_call": flow.call("call_jaxpr"),
    "custom_vmap_call": flow.call("call"),
    "platform_index": flow.platform_index,
    "axis_index": flow.axis_index,
    "shard_map": flow.shard_map,
    "program_id": flow.program_id,
    "num_programs": flow.num_programs,
    "mpmd_map": calls.kernel,
    "pallas_call": calls.pallas_call,
}
