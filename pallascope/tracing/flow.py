"""Control flow, calls and scopes of memory, and where a thread is on the kernel's axes.

Each function takes the compiler and an equation of one kind of primitive, and returns its step.
"""

# What it asks of JAX has no types.
# pyright: basic

from collections.abc import Callable

import numpy as np

from pallascope.program import Kind, Space
from pallascope.tracing.arithmetic import Cost
from pallascope.tracing.branches import follow
from pallascope.tracing.code import (
    Compiler,
    Env,
    Handler,
    Silent,
    Step,
    is_tensor,
    set_all,
    value_of,
)
from pallascope.tracing.jaxprs import Eqn, Value
from pallascope.tracing.source import UNKNOWN, leaf_names
from pallascope.tracing.state import OPAQUE, Other, Ref, Thread, space_of
from pallascope.tracing.views import data_dependent


def _labelled(eqn: Eqn, step: Step) -> Step:
    """The step, run within the named scopes of its equation."""
    label = str(eqn.source_info.name_stack)
    if not label:
        return step

    def inside(thread: Thread, env: Env) -> None:
        outer = thread.scope
        thread.scope = f"{outer}/{label}" if outer else label
        step(thread, env)
        thread.scope = outer

    return inside


def call(name: str) -> Handler:
    """Runs the jaxpr in this parameter on the operands; its cost, if it is arithmetic only."""

    def handler(compiler: Compiler, eqn: Eqn) -> Step | Cost:
        code, inputs = compiler.sub(eqn, eqn.params[name]), compiler.inputs(eqn)
        outs = compiler.outputs(eqn)
        if code.cost is not None and not eqn.effects and all(map(is_tensor, eqn.outvars)):
            return code.cost

        def step(thread: Thread, env: Env) -> None:
            results = code.run(thread, [env[slot] for slot in inputs])
            set_all(env, outs, results)

        return _labelled(eqn, step)

    return handler


def cond(compiler: Compiler, eqn: Eqn) -> Step:
    """Runs the branch that is taken; if the trace cannot know which, follows all (`branches`)."""
    codes = [compiler.sub(eqn, branch) for branch in eqn.params["branches"]]
    which, *inputs = map(compiler.slot, eqn.invars)
    outs, line, last = compiler.outputs(eqn), compiler.line(eqn), len(codes) - 1

    def step(thread: Thread, env: Env) -> None:
        if env[which] is OPAQUE:
            results = follow(codes, thread, [env[i] for i in inputs], line)
        else:
            code = codes[min(max(int(env[which]), 0), last)]
            results = code.run(thread, [env[i] for i in inputs])
        set_all(env, outs, results)

    return _labelled(eqn, step)


def platform_index(compiler: Compiler, eqn: Eqn) -> Silent:
    """Which branch of `lax.platform_dependent` a GPU takes: JAX here may run on a CPU."""
    (out,), platforms = compiler.outputs(eqn), eqn.params["platforms"]
    takes = [each is None or "cuda" in each for each in platforms]
    line = compiler.line(eqn) or UNKNOWN

    def step(thread: Thread, env: Env) -> None:
        if True not in takes:
            raise ValueError(
                f"{line}: platform_dependent has no function for a GPU, only for"
                f" {', '.join(name for each in platforms for name in each)}, so JAX compiles none"
                " there: give it cuda=... or default=...."
            )
        env[out] = takes.index(True)

    return Silent(step)


def while_loop(compiler: Compiler, eqn: Eqn) -> Step:
    """Runs the body while the condition holds; each time is a step."""
    params = eqn.params
    test, body = (compiler.sub(eqn, params[f"{name}_jaxpr"]) for name in ("cond", "body"))
    inputs, outs = compiler.inputs(eqn), compiler.outputs(eqn)
    first, line = params["cond_nconsts"], compiler.line(eqn)
    second = first + params["body_nconsts"]

    def step(thread: Thread, env: Env) -> None:
        values = [env[slot] for slot in inputs]
        test_consts, consts, carry = values[:first], values[first:second], values[second:]
        outer, index = thread.step, 0
        while (goes_on := test.run(thread, test_consts + carry)[0]) is not OPAQUE and goes_on:
            thread.begin_step(index, outer)
            carry, index = body.run(thread, consts + carry), index + 1
            thread.step = outer
        if goes_on is OPAQUE:
            raise data_dependent("The end of a loop", line)
        set_all(env, outs, carry)

    return _labelled(eqn, step)


def scan(compiler: Compiler, eqn: Eqn) -> Step:
    """Runs the body once for each row, or as often as the count says; each time is a step."""
    length, body = eqn.params["length"], compiler.sub(eqn, eqn.params["jaxpr"])
    stacked = lambda outer, inner: tuple(outer.aval.shape) == (length, *inner.aval.shape)
    inputs, outs = compiler.inputs(eqn), compiler.outputs(eqn)
    xs = sum(map(stacked, eqn.invars, body.invars))
    ys = sum(map(stacked, eqn.outvars, getattr(body.jaxpr, "jaxpr", body.jaxpr).outvars))
    carried = len(outs) - ys
    first, second = len(inputs) - xs - carried, len(inputs) - xs
    order = range(length - 1, -1, -1) if eqn.params["reverse"] else range(length)

    def step(thread: Thread, env: Env) -> None:
        values = [env[slot] for slot in inputs]
        consts, carry, rows = values[:first], values[first:second], values[second:]
        outer = thread.step
        for count, index in enumerate(order):
            thread.begin_step(count, outer)
            row = [value_of(x[index]) if isinstance(x, np.ndarray) else OPAQUE for x in rows]
            carry = body.run(thread, consts + carry + row)[:carried]
        thread.step = outer
        set_all(env, outs, carry + [OPAQUE] * ys)

    return _labelled(eqn, step)


def run_scoped(compiler: Compiler, eqn: Eqn) -> Step:
    """A scope of memory; where all threads of a block share it, they meet at its beginning."""
    jaxpr, inputs = eqn.params["jaxpr"], compiler.inputs(eqn)
    code, outs = compiler.sub(eqn, jaxpr, is_open=True), compiler.outputs(eqn)
    names = leaf_names(jaxpr.debug_info, len(jaxpr.invars))
    avals = tuple(v.aval for v in jaxpr.invars)
    transforms = eqn.params.get("ref_transforms") or ((),) * len(avals)
    axes = eqn.params["collective_axes"]
    axes = axes if isinstance(axes, tuple) else (axes,)
    begin, end = (compiler.emitter(k, eqn) for k in (Kind.SCOPE_BEGIN, Kind.SCOPE_END))

    def step(thread: Thread, env: Env) -> None:
        cluster = thread.home
        shared = cluster.threads > 1 and cluster.thread_name in axes
        made = cluster.allocate(thread, avals, names, transforms, shared)
        thread.enter(made)
        begin(thread, size=made.size, scope_id=made.number, shared=shared)
        results = code.run(thread, [env[slot] for slot in inputs] + made.refs)
        end(thread, size=made.size, scope_id=made.number, shared=shared)
        thread.leave(made)
        set_all(env, outs, results)

    return _labelled(eqn, step)


def run_state(compiler: Compiler, eqn: Eqn) -> Step:
    """Refs to the operands: a new accumulator that begins as its operand, or a scalar."""
    code, inputs = compiler.sub(eqn, eqn.params["jaxpr"]), compiler.inputs(eqn)
    outs = compiler.outputs(eqn)
    emit = compiler.emitter(Kind.ACC_INIT, eqn)
    read = compiler.emitter(Kind.ACC_READ, eqn, pending=0)
    avals = [var.aval for var in code.invars]

    def step(thread: Thread, env: Env) -> None:
        refs = []
        for i, (aval, slot) in enumerate(zip(avals, inputs, strict=True)):
            value = env[slot]
            if type(value) is Ref:
                ref = value
            elif space_of(aval) == Space.ACC:
                (ref,) = thread.home.allocate(thread, (aval,), [f"acc{i}"], [()]).refs
                size = thread.home.buffers[ref.id].bytes
                emit(thread, (), (ref.whole,), size=size)
            else:
                ref = Ref(-1, tuple(aval.shape), Other.REGISTERS, OPAQUE if aval.shape else value)
            refs.append(ref)
        code.run(thread, refs)
        for ref in (ref for ref in refs if ref.space == Space.ACC):
            # The accumulator's value in the end: products in flight are waited for.
            read(thread, (ref.whole,), size=thread.home.buffers[ref.id].bytes)
        for slot, ref in zip(outs, refs):
            env[slot] = ref.value

    return _labelled(eqn, step)


def new_ref(compiler: Compiler, eqn: Eqn) -> Step:
    """An array that the host may change, full or empty; a kernel that gets it reads and writes it.

    A kernel must fill an empty one before it reads it.
    """
    held, (out,) = compiler.inputs(eqn), map(compiler.slot, eqn.outvars)
    shape = tuple(eqn.outvars[0].aval.shape)

    def step(thread: Thread, env: Env) -> None:
        value = env[held[0]] if held else OPAQUE
        env[out] = Ref(-1, shape, Other.REGISTERS, value, is_empty=not held)

    return step


def freeze(compiler: Compiler, eqn: Eqn) -> Step:
    """The value that an array of `new_ref` holds in the end."""
    (ref,), (out,) = map(compiler.slot, eqn.invars), map(compiler.slot, eqn.outvars)

    def step(thread: Thread, env: Env) -> None:
        env[out] = env[ref].value

    return step


def nothing(compiler: Compiler, eqn: Eqn) -> None:
    """Has no effect that a program shows."""
    compiler.outputs(eqn)


def _where(compiler: Compiler, eqn: Eqn, value: Callable[[Thread], Value]) -> Silent:
    """The step that looks up a value which the thread's place decides."""
    (out,) = compiler.outputs(eqn)

    def step(thread: Thread, env: Env) -> None:
        env[out] = value(thread)

    return Silent(step)


def axis_index(compiler: Compiler, eqn: Eqn) -> Silent:
    """Where the thread is on axes of the grid, of the cluster and of the block's threads."""
    names = eqn.params["axis_name"]
    names = names if isinstance(names, tuple) else (names,)

    def index(thread: Thread) -> Value:
        if thread.cluster is None:  # on the host, of the devices that it runs on
            return OPAQUE
        flat = 0
        for name in names:
            flat = flat * thread.home.sizes[name] + thread.axes[name]
        return flat

    return _where(compiler, eqn, index)


def program_id(compiler: Compiler, eqn: Eqn) -> Silent:
    """The block's index on an axis of the grid."""
    axis = eqn.params["axis"]
    return _where(compiler, eqn, lambda thread: thread.axes[thread.home.grid_names[axis]])


def num_programs(compiler: Compiler, eqn: Eqn) -> Silent:
    """The grid's size on an axis."""
    axis = eqn.params["axis"]
    return _where(compiler, eqn, lambda thread: thread.home.grid[axis])


def shard_map(compiler: Compiler, eqn: Eqn) -> Step:
    """What the host does on each device of a mesh; parts of arrays are not looked into."""
    code, inputs = compiler.sub(eqn, eqn.params["jaxpr"]), compiler.inputs(eqn)
    outs, shape = compiler.outputs(eqn), eqn.params["mesh"].shape
    axes = {name: size for name, size in shape.items() if name in eqn.params["newly_manual_axes"]}
    is_whole = [not any(spec) for spec in eqn.params["in_specs"]]

    def step(thread: Thread, env: Env) -> None:
        values = [env[slot] if whole else OPAQUE for slot, whole in zip(inputs, is_whole)]
        outer, thread.devices = thread.devices, thread.devices | axes
        results = code.run(thread, values)
        thread.devices = outer
        for slot, value in zip(outs, results, strict=True):
            env[slot] = OPAQUE if type(value) is not Ref else value

    return step
