"""The tensor core: products.

Each function takes the compiler and an equation of one kind of primitive, and returns its step.
"""

import math

from pallascope.program import Kind
from pallascope.tracing.code import Compiler, Step, is_ref, split
from pallascope.tracing.jaxprs import Env, Eqn
from pallascope.tracing.state import Thread


def wgmma(compiler: Compiler, eqn: Eqn) -> Step:
    """The start of a product; a multiplication and an addition are two operations."""
    params, (acc, a, b, *rest) = eqn.params, eqn.invars
    trees = [params[f"{name}_transforms_tree"] for name in ("acc", "a", "b")]
    of_acc, of_a, of_b, _ = split(rest, *trees)
    out = compiler.view(eqn, acc, of_acc, trees[0])
    left = [compiler.view(eqn, a, of_a, trees[1])] if is_ref(a) else []  # it may be in registers
    right = compiler.view(eqn, b, of_b, trees[2])
    inner = right.shape[0] if right.exact else a.aval.shape[-1]
    flops = 2 * (out.elements or math.prod(acc.aval.shape)) * inner
    emit = compiler.emitter(Kind.WGMMA, eqn, flops=flops, dtype=right.retyped)

    def step(thread: Thread, env: Env) -> None:
        target = out.region(thread, env)
        reads = [view.region(thread, env) for view in (*left, right)]
        emit(thread, (*reads, target), (target,))

    return step


def mma(compiler: Compiler, eqn: Eqn) -> Step:
    """A product of values in registers, which is done when the instruction returns."""
    acc, a, _ = eqn.invars
    flops = 2 * math.prod(acc.aval.shape) * a.aval.shape[1]
    emit = compiler.emitter(Kind.OPAQUE, eqn, flops=flops, function="mma")
    compiler.outputs(eqn)
    return lambda thread, env: emit(thread)
