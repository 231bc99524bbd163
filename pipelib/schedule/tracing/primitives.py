"""The primitives by name: which function makes the step of an equation.

The model. `_HANDLERS` has the function for each primitive that touches memory, synchronises or
directs the flow. Primitives with a part of their name in `_REFUSED` are refused, and so is each
other primitive that has effects. All others are pure, and `pure` has them. Code that no thread
reaches is not refused: the error comes where a thread runs the step.
"""

from pipelib.schedule.program import Kind
from pipelib.schedule.tracing import (
    calls,
    claims,
    copies,
    device,
    flow,
    multimem,
    pure,
    semaphores,
    sync,
    tcgen05,
    tensor_core,
)
from pipelib.schedule.tracing.arithmetic import Cost
from pipelib.schedule.tracing.code import Compiler, Env, Handler, Silent, Step
from pipelib.schedule.tracing.jaxprs import Eqn
from pipelib.schedule.tracing.source import UNKNOWN
from pipelib.schedule.tracing.state import Thread


def of_kernel(compiler: Compiler, eqn: Eqn) -> Step | Silent | Cost | None:
    """What to do at an equation of a kernel."""
    name = eqn.primitive.name.removesuffix("_p").removeprefix("mosaic_gpu_")
    if handler := _handler(eqn, name):
        return handler(compiler, eqn)
    return pure.scalars(compiler, eqn, name) or pure.cost(compiler, eqn, name)


def of_host(compiler: Compiler, eqn: Eqn) -> Step | Silent | Cost | None:
    """What to do at an equation around kernels."""
    name = eqn.primitive.name.removesuffix("_p")
    if handler := _handler(eqn, name):
        return handler(compiler, eqn)
    return pure.scalars(compiler, eqn, name) or pure.integers(compiler, eqn)


def _handler(eqn: Eqn, name: str) -> Handler | None:
    """The function for a primitive that has effects or runs others; None if it does neither."""
    if handler := _HANDLERS.get(name):
        return handler
    for part, reason in _REFUSED.items():
        if part in name:
            return _refusing(reason)
    return _refusing(_UNKNOWN) if eqn.effects else None


def _refusing(reason: str) -> Handler:
    """A function that makes a step which fails: code that no thread reaches does no harm."""

    def handler(compiler: Compiler, eqn: Eqn) -> Step:
        line, name = compiler.line(eqn), eqn.primitive.name

        def step(thread: Thread, env: Env) -> None:
            raise NotImplementedError(f"{line or UNKNOWN}: the primitive {name!r} {reason}.")

        return step

    return handler


def _load(compiler: Compiler, eqn: Eqn) -> Step | Silent | Cost | None:
    """A load, if it is by TMA."""
    if not eqn.params.get("has_barrier", True):
        return _refusing(_EARLIER)(compiler, eqn)
    return copies.load(compiler, eqn)


_UNKNOWN = (
    "has effects that the trace does not know, so ops would be missing: take it out of what is"
    " traced"
)
_EARLIER = (
    "is for copies without a barrier, as only GPUs before Hopper make them, which are not traced:"
    " give the copy a barrier and wait for that"
)
# Parts of the names of primitives that are refused, and why.
_REFUSED = {"wait_gmem_to_smem": _EARLIER}

_HANDLERS: dict[str, Handler] = {
    "get": copies.get,
    "load": copies.get,
    "swap": copies.put,
    "store": copies.put,
    "mgpu_atomic_store": copies.atomic,
    "copy_gmem_to_smem": _load,
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
    "wgmma_accumulator_deref": tensor_core.accumulator_read,
    "wgmma_accumulator_store": tensor_core.accumulator_write,
    "mma": tensor_core.mma,
    "tcgen05_mma": tcgen05.mma,
    "tcgen05_commit_arrive": tcgen05.commit,
    "async_load": tcgen05.load,
    "async_store_tmem": tcgen05.store,
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
    "custom_jvp_call": flow.call("call_jaxpr"),
    "custom_vjp_call": flow.call("call_jaxpr"),
    "custom_vmap_call": flow.call("call"),
    "axis_index": flow.axis_index,
    "shard_map": flow.shard_map,
    "program_id": flow.program_id,
    "num_programs": flow.num_programs,
    "mpmd_map": calls.kernel,
    "pallas_call": calls.pallas_call,
}
