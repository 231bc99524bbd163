"""`outside_of`: what an answer leaves to XLA, before its kernel and after it.

The model. JAX traces the answer, and each array in its jaxpr has a **maker**: an argument, the
kernel, or else the primitive that XLA runs to make it. A reshape moves no byte, so a reshaped array
has the maker of what it was before. Nothing is run.

Not covered: a kernel within a loop or a branch of the host, of which XLA makes all.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax

ARGUMENT, KERNEL, CONSTANT = "an argument", "the kernel", "a constant"
_KERNEL = "mpmd_map"
_CALLS = "jaxpr", "call", "call_jaxpr"  # where the primitives that only call have their jaxpr
_ARE_CALLS = "jit", "pjit", "closed_call", "custom_vmap_call", "custom_jvp_call", "checkpoint"
# Of these, one that keeps the number of elements keeps their order.
_MOVES_NOTHING = "reshape", "squeeze", "broadcast_in_dim", "slice", "dynamic_slice"


class Outside(NamedTuple):
    """Who makes the kernel's inputs, and who makes the results: a maker for each."""

    inputs: tuple[str, ...]
    results: tuple[str, ...]


def outside_of(answer: Callable[..., Any], *args: Any) -> Outside:
    """What an answer, a function that calls one kernel, has outside of that kernel."""
    traced: Any = jax.make_jaxpr(answer)(*args)
    inputs = list[str]()
    makers = (ARGUMENT for _ in traced.jaxpr.invars)
    results = _run(traced.jaxpr, makers, inputs)
    return Outside(tuple(inputs), results)


def _run(jaxpr: Any, given: Iterable[str], inputs: list[str]) -> tuple[str, ...]:
    """The makers of a jaxpr's results; those of the kernel's inputs are appended to `inputs`."""
    made: dict[Any, str] = dict(zip(jaxpr.invars, given, strict=True))
    for eqn in jaxpr.eqns:
        found = [_maker(made, var) for var in eqn.invars]
        name, inner = eqn.primitive.name, _called(eqn)
        if name == _KERNEL:
            inputs += found
            outs = (KERNEL,) * len(eqn.outvars)
        elif inner is not None:
            outs = _run(inner, found[len(found) - len(inner.invars) :], inputs)
        else:
            outs = (found[0] if _moves_nothing(eqn) else name,) * len(eqn.outvars)
        made |= dict(zip(eqn.outvars, outs, strict=True))
    return tuple(_maker(made, var) for var in jaxpr.outvars)


def _maker(made: Mapping[Any, str], var: Any) -> str:
    return CONSTANT if hasattr(var, "val") else made.get(var, CONSTANT)


def _called(eqn: Any) -> Any:
    """The jaxpr that a call calls; None for what is no call."""
    if eqn.primitive.name not in _ARE_CALLS:
        return None
    jaxpr = next((eqn.params[name] for name in _CALLS if name in eqn.params), None)
    return getattr(jaxpr, "jaxpr", jaxpr)


def _moves_nothing(eqn: Any) -> bool:
    """Whether the result of an equation has the bytes of its first operand, in the same order."""
    if not eqn.invars or len(eqn.outvars) != 1:
        return False
    (before, after), name = (eqn.invars[0].aval, eqn.outvars[0].aval), eqn.primitive.name
    if math.prod(before.shape) != math.prod(after.shape) or before.dtype != after.dtype:
        return False
    if name == "transpose":
        moved = [axis for axis in eqn.params["permutation"] if before.shape[axis] != 1]
        return moved == sorted(moved)
    is_turned = name == "reshape" and eqn.params["dimensions"] is not None
    return name in _MOVES_NOTHING and not is_turned
