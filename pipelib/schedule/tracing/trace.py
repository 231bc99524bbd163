"""`trace`: from a Mosaic GPU kernel to a `Program`, on no GPU.

The algorithm. `jax.make_jaxpr` gives the kernel's jaxpr. Each jaxpr in it is compiled once, to a
list of Python closures over a list of values (`code`). This list is run once for each Pallas thread
of each block of one cluster. Scalars are Python numbers and so are exact; a tensor is OPAQUE,
without its contents. A primitive that touches memory or synchronises appends an `Op`, and so does
arithmetic on tensors, with its cost. This module has the function for each primitive, by its name,
in `_HANDLERS`; no other module knows any by name.

Covered: `plgpu.kernel` with threads and clusters; the primitives in `_HANDLERS`; scalars that the
kernel reads from a concrete integer argument that nothing has written, and integers that the host
computes from such arguments.

What arithmetic costs. Each primitive on tensors is one operation for each element of its result; a
reduction is one for each element of its operand. Transcendental functions are counted apart
(`_TRANSCENDENTAL`). Primitives that move or rename elements are free: broadcasts, reshapes,
transposes, slices, layout casts (though on the device a cast may go through SMEM). Scalars are
free. This counts the jaxpr's operations, not the instructions that the compiler makes of them. The
lanes of a reduction also exchange words, whose number depends on the layout of registers: `layouts`
counts them.

What accesses of SMEM cost. The `wavefronts` of a read or a write depend on the layouts of memory
and of registers: `layouts` says how they are found.

Not covered:

- flow, indices and predicates that depend on what tensors hold, `barrier_test` among it: refused;
- `pl.pallas_call`, which JAX compiles for TPUs and by Triton only (with `plgpu.CompilerParams` it
  runs in the interpreter, and nowhere else); Blackwell, semaphores, other devices: refused;
- a primitive that has effects and is not known: refused;
- regions of `inline_mgpu`, which are whole buffers, and regions that `views` says are not covered;
- memory of a scope that is entered again: it is new each time, with barriers at phase 0;
- lines within JAX's and pipelib's emitters: an op of theirs has the line where they were called.

`max_steps` ends a thread where one of its loops would begin a step more than that: the program is
then a prefix of each thread, without its drain. Source: the jaxprs of JAX 0.11.2 and 0.12.0.1, and
for clusters the lowering of `ClusterBarrier` and of collective copies in their
`jax.experimental.mosaic.gpu`.
"""

import gc
import inspect
import math
import operator
from collections.abc import Callable
from numbers import Integral
from typing import Any

import jax
import numpy as np

from pipelib.schedule.arguments import expect, wrong_type
from pipelib.schedule.program import Kind, Program
from pipelib.schedule.tracing import copies, flow
from pipelib.schedule.tracing.arithmetic import Cost, divide, remainder, wrapping
from pipelib.schedule.tracing.code import (
    Codes,
    Compiler,
    Silent,
    Step,
    is_ref,
    split,
    value_of,
)
from pipelib.schedule.tracing.source import (
    UNKNOWN,
    argument_names,
    function_name,
    line_of_function,
)
from pipelib.schedule.tracing.state import OPAQUE, Cluster, Ref, Thread

_INDEXES = tuple(map(np.dtype, ("bool", "int32", "int64", "uint32", "uint64")))
_MOST_INTEGERS = 2**16


def trace(
    kernel: Callable[..., Any],
    *args: Any,
    block: int | tuple[int, ...] | None = None,
    max_steps: int | None = None,
    call: int | None = None,
    **others: Any,
) -> Program:
    """What each Pallas thread of one cluster of a Mosaic GPU kernel does, in order.

    Args:
      kernel: a function that calls one `plgpu.kernel`, or that kernel.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`s. Nothing is run. Control flow may
        depend on integers in arrays, which a ShapeDtypeStruct does not have.
      block: the index on each axis of the grid, or a number if it has one axis; by default zeros.
        All blocks of its cluster are traced; indices on the cluster's axes may follow, but only
        zeros.
      max_steps: no loop runs for more steps. A thread ends there, and the program is `truncated`.
      call: which kernel, from 0, if the function calls several.
      **others: refused; bind the function's own keywords to it with `functools.partial`.

    Raises:
      TypeError: `kernel` is not a function; `block`, `max_steps` or `call` is not an integer or
        integers; other keywords.
      ValueError: no kernel or several, no arguments where it takes some, a block outside the grid,
        flow that depends on tensors.
      NotImplementedError: a kernel for a TPU, Triton or Blackwell; a primitive that has effects and
        is not known.

    Example:
      >>> x = jax.ShapeDtypeStruct((2, 128), jnp.float32)
      >>> program = pipelib.trace(softmax, x)
      >>> for op in program.threads[0][2:5]:
      ...     print(program.describe(dataclasses.replace(op, line=None)))
      load reads in0[0:2, 0, 0:128] writes smem.0[0, 0:2, 0, 0:128]
          on produced.0[0] #0 step 0
      wait on produced.0[0] #0 step 0
      read reads smem.0[0, 0, 0, 0:128] step 0
    """
    if others:
        bound = ", ".join(f"{name}=..." for name in others)
        raise TypeError(
            f"trace takes block=, max_steps= and call=, and hands no keywords on, so {bound} would"
            f" be lost: trace functools.partial(function, {bound})."
        )
    for name, value in (("max_steps", max_steps), ("call", call)):
        if value is not None:
            expect("trace", value, Integral, f"an integer for {name}=", "give one, or leave it out")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"{max_steps=} is less than 1: no step would be traced, so ask for one.")
    eqn, values = _called(_kernels(kernel, args), call)
    mesh, (jaxpr, *_) = _mesh(eqn.params), eqn.params["jaxprs"]
    code, info = Codes(_handle, _infers_tiles(eqn)).compile(jaxpr), _kernel_info(jaxpr)
    cluster = Cluster(function_name(info) or eqn.params["name"], mesh, block)
    arguments = _arguments(cluster, eqn, code.invars, values, info)
    collects = gc.isenabled()
    gc.disable()  # ops are many, in no cycles, and all kept: to look for garbage takes a third
    try:
        return cluster.program(code, arguments, max_steps)
    finally:
        if collects:
            gc.enable()


def _kernels(function: Callable[..., Any], args: tuple) -> list[tuple[Any, list]]:
    """The equations of the kernels that the function calls, and their operands."""
    remedy = "give one that calls plgpu.kernel(...), and its arguments after it"
    if not callable(function):
        raise wrong_type("trace", function, "a function", remedy)
    try:
        closed = jax.make_jaxpr(function)(*args)
    except TypeError as error:
        if args or "argument" not in str(error):
            raise
        try:
            expected = f" (it takes {', '.join(inspect.signature(function).parameters)})"
        except ValueError:
            expected = ""
        raise ValueError(
            f"The kernel was given no arguments{expected}, and without them it fails: {error}."
            " Give arrays or jax.ShapeDtypeStructs after it."
        ) from error
    host = Thread(0, 0, None, None)
    code = Codes(_handle_on_host).compile(closed)
    code.run(host, [value_of(leaf) for leaf in jax.tree.leaves(args)])
    return host.kernels


def _called(kernels: list[tuple[Any, list]], call: int | None) -> tuple[Any, list]:
    """The kernel that the caller means."""
    if len(kernels) == 1 if call is None else 0 <= call < len(kernels):
        return kernels[call or 0]
    remedy = "pass a function that calls plgpu.kernel(...)"
    if kernels:
        remedy = f"say which with call=0 to call={len(kernels) - 1}"
    asked = f", and {call=} is not one of them" if call is not None else ""
    raise ValueError(
        f"The function calls {len(kernels)} Mosaic GPU kernels, but a program is that of"
        f" one{asked}: {remedy}."
    )


def _mesh(params: dict) -> Any:
    """The mesh of a kernel's blocks and threads."""
    mesh = params["meshes"][0]
    if len(params["meshes"]) != 1 or not hasattr(mesh, "cluster"):
        raise ValueError(
            f"The kernel {params['name']!r} runs on {type(mesh).__name__}s, not on one mesh of"
            " Mosaic GPU: pass one that was made by plgpu.kernel."
        )
    return mesh


def _infers_tiles(eqn: Any) -> bool:
    """Whether Mosaic GPU infers where shared memory has its elements, as it does by default."""
    semantics = getattr(eqn.params.get("compiler_params"), "lowering_semantics", None)
    return getattr(semantics, "name", "") != "Lane"


def _kernel_info(jaxpr: Any) -> Any:
    """What JAX noted of the kernel's function: of the scope that gives it its scratch memory."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns[:1]:
        if eqn.primitive.name == "run_scoped":
            return eqn.params["jaxpr"].debug_info
    return None


def _arguments(cluster: Cluster, eqn: Any, invars: list, values: list, info: Any) -> list[Ref]:
    """The kernel's operands and then its results, in GMEM."""
    given, made = len(values), len(invars) - len(values)
    roles = ["in/out" if is_ref(atom) else "in" for atom in eqn.invars] + ["out"] * made
    names = [f"in{i}" for i in range(given)] + [f"out{i}" for i in range(made)]
    names = argument_names(info, len(invars)) or names
    values = [value.value if type(value) is Ref else value for value in values]
    return [
        cluster.argument(name, var.aval, value, role)
        for name, var, value, role in zip(names, invars, values + [OPAQUE] * made, roles)
    ]


def _handle(compiler: Compiler, eqn: Any) -> Step | Silent | Cost | None:
    """What to do at an equation of a kernel."""
    return _handled(
        compiler, eqn, lambda name: _scalars(compiler, eqn, name) or _cost(compiler, eqn, name)
    )


def _handle_on_host(compiler: Compiler, eqn: Any) -> Step | Silent | Cost | None:
    """What to do at an equation around kernels."""
    return _handled(
        compiler, eqn, lambda name: _scalars(compiler, eqn, name) or _integers(compiler, eqn)
    )


def _handled(compiler: Compiler, eqn: Any, pure: Callable[[str], Any]) -> Any:
    name = eqn.primitive.name.removesuffix("_p")
    if handler := _HANDLERS.get(name):
        return handler(compiler, eqn)
    for part, reason in _REFUSED.items():
        if part in name:
            return _refuse(compiler, eqn, reason)
    return _refuse(compiler, eqn, _UNKNOWN) if eqn.effects else pure(name)


def _refuse(compiler: Compiler, eqn: Any, reason: str) -> Step:
    """A step that fails when a thread reaches it: code that no thread reaches does no harm."""
    line, name = compiler.line(eqn), eqn.primitive.name

    def step(thread, env):
        raise NotImplementedError(f"{line or UNKNOWN}: the primitive {name!r} {reason}.")

    return step


def _load(compiler: Compiler, eqn: Any) -> Step:
    if not eqn.params.get("has_barrier", True):
        return _refuse(compiler, eqn, _EARLIER)
    if eqn.params.get("leader_tracked") is not None:
        return _refuse(compiler, eqn, f"with leader_tracked {_BLACKWELL}")
    return copies.load(compiler, eqn)


# Barriers, fences, registers.


def _barrier(kind: Kind) -> Callable:
    """An op of this kind on one barrier."""

    def handler(compiler: Compiler, eqn: Any) -> Step:
        ref, *rest = eqn.invars
        tree = eqn.params["transforms_treedef"]
        leaves, predicate = split(rest, tree)
        view, emit = compiler.view(eqn, ref, leaves, tree), compiler.emitter(kind, eqn)
        holds = compiler.predicate(eqn, predicate[0] if predicate else None)

        def step(thread, env):
            if not holds(env):
                return
            place = view.barrier(thread, env)
            counts = thread.arrivals if kind == Kind.ARRIVE else thread.waits
            emit(thread, (), (), *place, counts[place])
            if kind != Kind.TEST:
                counts[place] += 1

        return step

    return handler


def _simple(kind: Kind, **params: str) -> Callable:
    """An op without memory; `params` names the parameters of the equation that fields come from."""

    def handler(compiler: Compiler, eqn: Any) -> Step:
        fixed = {field: eqn.params[name] for field, name in params.items()}
        emit = compiler.emitter(kind, eqn, **fixed)
        return lambda thread, env: emit(thread)

    return handler


def _registers(compiler: Compiler, eqn: Any) -> Step:
    count, action = eqn.params["n"], str(eqn.params["action"])
    emit = compiler.emitter(Kind.REGISTERS, eqn, registers=count, action=action)

    def step(thread, env):
        thread.registers = count
        emit(thread)

    return step


# The tensor core.


def _wgmma(compiler: Compiler, eqn: Any) -> Step:
    params, (acc, a, b, *rest) = eqn.params, eqn.invars
    trees = [params[f"{name}_transforms_tree"] for name in ("acc", "a", "b")]
    of_acc, of_a, of_b, _ = split(rest, *trees)
    out = compiler.view(eqn, acc, of_acc, trees[0])
    left = [compiler.view(eqn, a, of_a, trees[1])] if is_ref(a) else []  # it may be in registers
    right = compiler.view(eqn, b, of_b, trees[2])
    inner = right.shape[0] if right.exact else a.aval.shape[-1]
    flops = 2 * (out.elements or math.prod(acc.aval.shape)) * inner
    emit = compiler.emitter(Kind.WGMMA, eqn, flops=flops)

    def step(thread, env):
        target = out.region(thread, env)
        reads = [view.region(thread, env) for view in (*left, right)]
        emit(thread, (*reads, target), (target,))

    return step


def _mma(compiler: Compiler, eqn: Any) -> Step:
    """A product of values in registers, which is done when the instruction returns."""
    acc, a, _ = eqn.invars
    flops = 2 * math.prod(acc.aval.shape) * a.aval.shape[1]
    emit = compiler.emitter(Kind.OPAQUE, eqn, flops=flops, function="mma")
    list(map(compiler.slot, eqn.outvars))
    return lambda thread, env: emit(thread)


def _accumulator_read(compiler: Compiler, eqn: Any) -> Step:
    (ref,), pending = eqn.invars, eqn.params.get("wait_n", 0)
    emit = compiler.emitter(Kind.ACC_READ, eqn, pending=pending)
    view = compiler.view(eqn, ref, [], None)

    def step(thread, env):
        region = view.region(thread, env)
        emit(thread, (region,), size=view.bytes(region))

    return step


# Code that only the device understands.


def _opaque(compiler: Compiler, eqn: Any) -> Step:
    refs = [compiler.slot(atom) for atom in eqn.invars if is_ref(atom)]
    name = getattr(eqn.params.get("mgpu_fn"), "__name__", None) or eqn.primitive.name
    emit = compiler.emitter(Kind.OPAQUE, eqn, function=name)
    outs = list(map(compiler.slot, eqn.outvars))

    def step(thread, env):
        found = [env[slot] for slot in refs]
        regions = tuple(ref.whole for ref in found if ref.space not in ("barrier", "regs"))
        for ref in found:
            ref.value = OPAQUE
        for slot in outs:
            env[slot] = OPAQUE
        emit(thread, regions, regions)

    return step


def _kernel(compiler: Compiler, eqn: Any) -> Step:
    inputs = list(map(compiler.slot, eqn.invars))
    list(map(compiler.slot, eqn.outvars))

    def step(thread, env):
        if thread.cluster is not None:
            line = compiler.line(eqn) or UNKNOWN
            raise NotImplementedError(
                f"{line}: a kernel within a kernel, as plgpu.warp_map makes one, is not traced,"
                " since a program is that of whole Pallas threads: call it on the host, or write"
                " its body where it is called."
            )
        thread.kernels.append((eqn, [env[slot] for slot in inputs]))

    return step


def _pallas_call(compiler: Compiler, eqn: Any) -> Step:
    params = eqn.params.get("compiler_params")
    module = type(params).__module__
    names = {"mosaic_gpu": "Mosaic GPU", "mosaic": "a TPU", "triton": "Triton"}
    backend = next((name for part, name in names.items() if part in module), module)
    said = f"with compiler_params for {backend}"
    said = said if params is not None else "without compiler_params, which is Triton's on a GPU,"
    # A call that is traced as it is has no frame of the caller's: its kernel was written somewhere.
    line = compiler.line(eqn) or line_of_function(eqn.params["jaxpr"].debug_info) or UNKNOWN

    def step(thread, env):
        raise NotImplementedError(
            f"{line}: a pl.pallas_call {said} is not traced, since the JAX that is"
            " installed compiles none by Mosaic GPU: what was expected is a kernel that was made by"
            " plgpu.kernel."
        )

    return step


# Pure code.


def _scalars(compiler: Compiler, eqn: Any, name: str) -> Silent | None:
    """A step that computes a scalar of scalars; None if the equation is about tensors."""
    outs = list(map(compiler.slot, eqn.outvars))
    if not (len(outs) == 1 and all(map(_is_scalar, (*eqn.outvars, *eqn.invars)))):
        return None
    inputs, (out,) = list(map(compiler.slot, eqn.invars)), outs
    if name == "select_n":
        which, *cases = inputs

        def select(thread, env):
            chosen = env[which]
            env[out] = OPAQUE if chosen is OPAQUE else env[cases[int(chosen)]]

        return Silent(select)
    function = _scalar_function(eqn, name)
    if len(inputs) == 2:
        first, second = inputs

        def binary(thread, env):
            x, y = env[first], env[second]
            env[out] = OPAQUE if x is OPAQUE or y is OPAQUE else function(x, y)

        return Silent(binary)

    def step(thread, env):
        values = [env[slot] for slot in inputs]
        env[out] = OPAQUE if OPAQUE in values else function(*values)

    return Silent(step)


def _integers(compiler: Compiler, eqn: Any) -> Step | None:
    """Arrays of integers that the host makes of concrete ones are concrete too."""
    avals = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    known = lambda a: getattr(a, "dtype", None) in _INDEXES and a.size <= _MOST_INTEGERS
    if not all(map(known, avals)):
        return None
    inputs, outs = list(map(compiler.slot, eqn.invars)), list(map(compiler.slot, eqn.outvars))
    dtypes = [atom.aval.dtype for atom in eqn.invars]

    def step(thread, env):
        values = [env[slot] for slot in inputs]
        if any(value is OPAQUE for value in values):
            return
        results = _bind(eqn, values, dtypes)
        for slot, result in zip(outs, results, strict=True):
            env[slot] = value_of(np.asarray(result))

    return step


def _bind(eqn: Any, values: Any, dtypes: list) -> list:
    """The results of a primitive as JAX computes them."""
    operands = [np.asarray(x, dtype) for x, dtype in zip(values, dtypes)]
    results = eqn.primitive.bind(*operands, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def _cost(compiler: Compiler, eqn: Any, name: str) -> Cost:
    """The cost of an equation on tensors."""
    size = lambda atoms: sum(math.prod(getattr(atom.aval, "shape", ())) for atom in atoms)
    if name in _FREE:
        return Cost()
    reduces = name.startswith(_REDUCTIONS)
    flops = size(eqn.invars if reduces else eqn.outvars[:1])
    return Cost(flops, flops if name in _TRANSCENDENTAL else 0, compiler.exchanges(eqn))


def _is_scalar(atom: Any) -> bool:
    aval = atom.aval
    return (
        not getattr(aval, "shape", (1,))
        and not is_ref(atom)
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
            return operator.not_ if is_bool else wrapping(operator.invert, dtypes[-1])
        return bool if is_bool else wrapping(int, dtypes[-1])
    if integers and name in _INTEGERS:
        function, grows = _INTEGERS[name]
        return wrapping(function, dtypes[-1]) if grows else function
    if name in _IDENTITIES:
        return lambda x: x
    return lambda *values: np.asarray(_bind(eqn, values, dtypes)[0]).item()


# Functions of Python integers; whether a result can leave the dtype.
_INTEGERS: dict[str, tuple[Callable, bool]] = {
    "add": (operator.add, True), "sub": (operator.sub, True), "mul": (operator.mul, True),
    "neg": (operator.neg, True), "abs": (operator.abs, True),
    "div": (divide, True), "rem": (remainder, False), "max": (max, False), "min": (min, False),
    "and": (operator.and_, False), "or": (operator.or_, False), "xor": (operator.xor, False),
    "eq": (operator.eq, False), "ne": (operator.ne, False), "lt": (operator.lt, False),
    "le": (operator.le, False), "gt": (operator.gt, False), "ge": (operator.ge, False),
    "clamp": (lambda low, x, high: min(max(x, low), high), False),
}  # fmt: skip

# Primitives that leave a scalar as it is, and primitives that only move elements of a tensor.
_IDENTITIES = {
    "broadcast_in_dim", "copy", "layout_cast", "multiple_of", "optimization_barrier", "reshape",
    "squeeze", "stop_gradient", "transpose",
}  # fmt: skip
_FREE = _IDENTITIES | {
    "bitcast_convert_type", "concatenate", "dynamic_slice", "expand_dims", "iota", "pad", "rev",
    "slice", "split",
}  # fmt: skip
_REDUCTIONS = ("reduce_", "argmax", "argmin", "cum")
_TRANSCENDENTAL = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "digamma",
    "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "lgamma", "log", "log1p", "logistic", "pow",
    "reciprocal", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
}  # fmt: skip

_UNKNOWN = (
    "has effects that the trace does not know, so ops would be missing: take it out of what is"
    " traced"
)
_EARLIER = (
    "is for copies without a barrier, as only GPUs before Hopper make them, which are not traced:"
    " give the copy a barrier and wait for that"
)
_BLACKWELL = "is Blackwell's, but only kernels for Hopper are traced: use wgmma and accumulators"
_OTHERS = (
    "is how blocks and devices reach each other, but a program is that of one cluster of one"
    " device: trace a kernel that needs no others"
)
# Parts of the names of primitives that are refused, and why.
_REFUSED = {
    "semaphore": _OTHERS, "multimem": _OTHERS, "get_global": _OTHERS,
    "tcgen05": _BLACKWELL, "tmem": _BLACKWELL, "cluster_cancel": _BLACKWELL,
    "async_load": _BLACKWELL, "wait_gmem_to_smem": _EARLIER,
}  # fmt: skip

_HANDLERS: dict[str, Callable] = {
    "get": copies.get,
    "load": copies.get,
    "swap": copies.put,
    "store": copies.put,
    "mgpu_atomic_store": copies.atomic,
    "copy_gmem_to_smem": _load,
    "copy_smem_to_gmem": copies.store,
    "async_prefetch": copies.prefetch,
    "async_store_smem": copies.store_to_peer,
    "commit_group": _simple(Kind.COMMIT_GROUP),
    "wait_smem_to_gmem": _simple(Kind.WAIT_STORE, pending="n", read_only="wait_read_only"),
    "barrier_arrive": _barrier(Kind.ARRIVE),
    "barrier_wait": _barrier(Kind.WAIT),
    "barrier_test": _barrier(Kind.TEST),
    "commit_smem": _simple(Kind.FENCE),
    "set_max_registers": _registers,
    "wgmma_ref": _wgmma,
    "wgmma_wait": _simple(Kind.WGMMA_WAIT, pending="n"),
    "wgmma_accumulator_deref": _accumulator_read,
    "mma": _mma,
    "inline_mgpu": _opaque,
    "print_layout": _opaque,
    "debug_print": _opaque,
    "delay": _opaque,
    "griddepcontrol_wait": _opaque,
    "griddepcontrol_launch_dependents": _opaque,
    "run_scoped": flow.run_scoped,
    "run_state": flow.run_state,
    "new_ref": flow.new_ref,
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
    "program_id": flow.program_id,
    "num_programs": flow.num_programs,
    "mpmd_map": _kernel,
    "pallas_call": _pallas_call,
}
