"""What the equation of a kernel says: its mesh, its arguments, how Mosaic GPU compiles it."""

from collections.abc import Mapping
from typing import Any

from jax.experimental.pallas import mosaic_gpu as plgpu

from pallascope.program import Role
from pallascope.tracing.code import is_ref
from pallascope.tracing.jaxprs import Atom, DebugInfo, Eqn, Jaxpr, Mesh, Value
from pallascope.tracing.source import Own, argument_names, function_name
from pallascope.tracing.state import OPAQUE, Call, Cluster, Ref, Reserved


def mesh_of(params: Mapping[str, Any]) -> Mesh:
    """The mesh of a kernel's blocks and threads; ValueError if Mosaic GPU has no such mesh."""
    mesh = params["meshes"][0]
    if len(params["meshes"]) != 1 or not hasattr(mesh, "cluster"):
        raise ValueError(
            f"The kernel {params['name']!r} runs on {type(mesh).__name__}s, not on one mesh of"
            " Mosaic GPU: pass one that was made by plgpu.kernel."
        )
    return mesh


def infers_tiles(eqn: Eqn) -> bool:
    """Whether Mosaic GPU infers where shared memory has its elements, as it does by default."""
    semantics = getattr(eqn.params.get("compiler_params"), "lowering_semantics", None)
    return getattr(semantics, "name", "") != "Lane"


def _compiler_params(eqn: Eqn) -> plgpu.CompilerParams:
    """How the kernel is to be compiled, or the defaults."""
    found: Any = eqn.params.get("compiler_params")
    return found if isinstance(found, plgpu.CompilerParams) else plgpu.CompilerParams()


def has_auto_barriers(eqn: Eqn) -> bool:
    """Whether Mosaic GPU puts barriers of a thread's lanes around its accesses."""
    return not _compiler_params(eqn).unsafe_no_auto_barriers


def reserved(eqn: Eqn) -> Reserved:
    """The SMEM that Mosaic GPU reserves for reductions and for the profiler.

    A trace of the profiler has a header of 3 words of 4 bytes within its `4 * profile_space` words;
    there is one for each Pallas thread, or one for each of its 4 warps. Source: `ProfilerSpec` in
    `jax/experimental/mosaic/gpu/profiler.py`.
    """
    params = _compiler_params(eqn)
    traces = 4 if params.profile_trace_scope.name == "WARP" else 1
    return Reserved(params.reduction_scratch_bytes, 16 * params.profile_space * traces)


def kernel_scope(jaxpr: Jaxpr) -> Jaxpr | None:
    """The jaxpr of the scope that gives the kernel's function its scratch memory."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns[:1]:
        if eqn.primitive.name == "run_scoped":
            return eqn.params["jaxpr"]
    return None


def kernel_info(jaxpr: Jaxpr) -> DebugInfo:
    """What JAX noted of the kernel's function."""
    scope = kernel_scope(jaxpr)
    return scope and scope.debug_info


def starts_early(jaxpr: Jaxpr) -> bool:
    """Whether Mosaic GPU lets the kernel start before the kernel before it has ended.

    It does so if `griddepcontrol_wait` is anywhere in the kernel, also where no thread comes, but
    not within `warp_map`, which hides the effect. `griddepcontrol_launch_dependents` has no such
    effect. Source: `uses_pdl` in `jax/_src/pallas/mosaic_gpu/lowering.py`.
    """
    return any(type(effect).__name__ == "PdlEffect" for effect in jaxpr.effects)


def _role(atom: Atom, value: Value) -> Role:
    """The role of an operand: whether the kernel reads it, fills it, or both."""
    if not is_ref(atom):
        return Role.IN
    return Role.OUT if type(value) is Ref and value.is_empty else Role.IN_OUT


def arguments(cluster: Cluster, call: Call, invars: list[Atom], own: Own | None) -> list[list[Ref]]:
    """The kernel's operands and then its results, in GMEM, each for all blocks.

    They are called as the kernel's function calls them, or else as the function around it does.
    """
    values, given, made = call.values, len(call.values), len(invars) - len(call.values)
    roles = [_role(atom, value) for atom, value in zip(call.eqn.invars, values)]
    roles += [Role.OUT] * made
    names: list[str] = []
    outer = [*call.names, *[None] * (len(invars) - len(call.names))]
    own_names: list[str | None] = [None] * len(invars)
    if own is not None:
        (jaxpr, *_), name = call.eqn.params["jaxprs"], call.eqn.params["name"]
        leaves, info = jaxpr.jaxpr.debug_info.arg_names or (), kernel_info(jaxpr)
        # What was bound to some of its arguments does not have its function's name.
        is_bound = own.is_batched or name != function_name(info)
        own_names = argument_names(own, leaves, info.arg_names or (), is_bound) + own_names
    for i, named in enumerate(zip(own_names, outer)):
        plain = f"in{i}" if i < given else f"out{i - given}"
        names.append(next((name for name in named if name and name not in names), plain))
    values = [value.value if type(value) is Ref else value for value in values]
    return [
        cluster.argument(name, var.aval, value, role)
        for name, var, value, role in zip(names, invars, values + [OPAQUE] * made, roles)
    ]
