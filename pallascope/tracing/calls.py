"""Calls of code that the trace does not look into: the device's own, and whole kernels.

Each function takes the compiler and an equation of one kind of primitive, and returns its step.
"""

from pallascope.program import Kind, Space
from pallascope.tracing.code import Compiler, Step, is_ref, set_all
from pallascope.tracing.jaxprs import Env, Eqn
from pallascope.tracing.source import UNKNOWN, line_of_function
from pallascope.tracing.state import OPAQUE, Call, Ref, Thread


def opaque(compiler: Compiler, eqn: Eqn) -> Step:
    """Code that only the device understands: it may read and write all of each ref it is given."""
    refs = [compiler.slot(atom) for atom in eqn.invars if is_ref(atom)]
    name = getattr(eqn.params.get("mgpu_fn"), "__name__", None) or eqn.primitive.name
    emit = compiler.emitter(Kind.OPAQUE, eqn, function=name)
    outs = compiler.outputs(eqn)

    def step(thread: Thread, env: Env) -> None:
        found = [env[slot] for slot in refs]
        regions = tuple(ref.whole for ref in found if ref.space in Space)
        for ref in found:
            ref.value = OPAQUE
        set_all(env, outs, [OPAQUE] * len(outs))
        emit(thread, regions, regions)

    return step


def kernel(compiler: Compiler, eqn: Eqn) -> Step:
    """A kernel that the host calls: noted with its operands, and traced later.

    Within a kernel it is what `plgpu.warp_map` makes.
    """
    if type(eqn.params["meshes"][0]).__name__ == "WarpMesh":
        return _each_warp(compiler, eqn)
    inputs = compiler.inputs(eqn)
    compiler.outputs(eqn)

    def step(thread: Thread, env: Env) -> None:
        if thread.cluster is not None:
            line = compiler.line(eqn) or UNKNOWN
            raise NotImplementedError(
                f"{line}: a kernel within a kernel is not traced, since Mosaic GPU has none: call"
                " it on the host, or write its body where it is called."
            )
        values = [env[slot] for slot in inputs]
        thread.kernels.append(Call(eqn, values, dict(thread.devices)))
        for slot, value in zip(inputs, values):
            if type(value) is Ref and value.is_empty:  # the kernel fills it
                env[slot] = Ref(-1, value.shape, value.space)

    return step


def _each_warp(compiler: Compiler, eqn: Eqn) -> Step:
    """Each warp of the thread does its own; all meet before and after, as Mosaic GPU lets them."""
    (mesh, *_), (jaxpr, *_) = eqn.params["meshes"], eqn.params["jaxprs"]
    code, inputs = compiler.sub(eqn, jaxpr), compiler.inputs(eqn)
    emit, axis = compiler.emitter(Kind.MEET, eqn), mesh.axis_name

    def step(thread: Thread, env: Env) -> None:
        warps, values = thread.each_warp(), [env[slot] for slot in inputs]
        thread.home.sizes[axis] = len(warps)
        members = thread.index, *(warp.index for warp in warps)
        for each in (thread, *warps):
            emit(each, members=members)
        for number, warp in enumerate(warps):
            warp.axes = thread.axes | {axis: number}
            code.run(warp, values)
        for each in (thread, *warps):
            emit(each, members=members)

    return step


def pallas_call(compiler: Compiler, eqn: Eqn) -> Step:
    """Refuses a `pl.pallas_call`, which is for another compiler than Mosaic GPU."""
    params = eqn.params.get("compiler_params")
    module = type(params).__module__
    names = {"mosaic_gpu": "Mosaic GPU", "mosaic": "a TPU", "triton": "Triton"}
    backend = next((name for part, name in names.items() if part in module), module)
    said = f"with compiler_params for {backend}"
    said = said if params is not None else "without compiler_params, which is Triton's on a GPU,"
    # A call that is traced as it is has no frame of the caller's: its kernel was written somewhere.
    line = compiler.line(eqn) or line_of_function(eqn.params["jaxpr"].debug_info) or UNKNOWN

    def step(thread: Thread, env: Env) -> None:
        raise NotImplementedError(
            f"{line}: a pl.pallas_call {said} is not traced, since the JAX that is"
            " installed compiles none by Mosaic GPU: what was expected is a kernel that was made by"
            " plgpu.kernel."
        )

    return step
