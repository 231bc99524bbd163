"""`is_from_kernel`: whether a function returns what its kernels make, and computes nothing after.

The model. JAX traces the function. Kernels make their outputs, and so they make what comes of these
alone by moving elements: turned, cut, joined, or in another shape. What any other operation gives
is XLA's, even if it takes a kernel's output, as a sum does, or a product with zero. Not covered:
loops and branches around a kernel, whose results count as XLA's.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax.extend.core import Literal

_KERNEL = "mpmd_map"
#: What moves elements of its first operand; where to, other operands may say.
_MOVES = (
    "broadcast_in_dim",
    "dynamic_slice",
    "gather",
    "reshape",
    "slice",
    "split",
    "squeeze",
    "transpose",
)
_JOINS = "concatenate", "copy"
#: Calls, and the parameter that has what each calls.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vmap_call": "call",
}


def is_from_kernel(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether kernels make each array that a function returns."""
    jaxpr = cast(Any, jax.make_jaxpr)(function)(*args).jaxpr
    return all(_from_kernel(jaxpr, [False] * len(jaxpr.invars)))


def _from_kernel(jaxpr: Any, given: Sequence[bool]) -> list[bool]:
    """Whether kernels make each result of a jaxpr; `given` says it of its arguments."""
    made = dict(zip(jaxpr.invars, given, strict=True))
    of = lambda atoms: [not isinstance(atom, Literal) and made.get(atom, False) for atom in atoms]
    for eqn in jaxpr.eqns:
        name, operands = eqn.primitive.name, of(eqn.invars)
        if name in _CALLS:
            results = _from_kernel(eqn.params[_CALLS[name]].jaxpr, operands)
        else:
            is_made = name == _KERNEL or (name in _MOVES and operands[0])
            is_made = is_made or (name in _JOINS and all(operands))
            results = [is_made] * len(eqn.outvars)
        made |= zip(eqn.outvars, results, strict=True)
    return of(jaxpr.outvars)
