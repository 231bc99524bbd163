"""Primitives without effects: scalars are computed, arithmetic on tensors only costs.

The model. A scalar is a Python number. What the device computes of scalars is computed here, in
Python for integers and booleans, by JAX for all else; of a value that is OPAQUE the result is, too.
On the host, around kernels, integers in arrays are computed as well, by JAX.

`trace` says what arithmetic on tensors costs; here are the tables of names that decide it.

Not covered: arrays on the host of more than 16,777,216 integers, and floating-point arrays; both
are OPAQUE. Source: for integers, `arithmetic`; else JAX's own evaluation of the primitive.
"""

# What it asks of JAX has no types.
# pyright: basic

import math
import operator
from collections.abc import Callable, Iterable

import numpy as np

from pallascope.tracing.arithmetic import Cost, divide, remainder, wrapping
from pallascope.tracing.code import Compiler, Silent, Step, is_ref, set_all, value_of
from pallascope.tracing.jaxprs import Atom, Aval, Env, Eqn, Value, primitives
from pallascope.tracing.state import MOST_INTEGERS, OPAQUE, Thread
from pipelib import targets


def scalars(compiler: Compiler, eqn: Eqn, name: str) -> Silent | None:
    """A step that computes a scalar of scalars; None if the equation is about tensors."""
    outs = compiler.outputs(eqn)
    if not (len(outs) == 1 and all(map(_is_scalar, (*eqn.outvars, *eqn.invars)))):
        return None
    inputs, (out,) = compiler.inputs(eqn), outs
    if name == "select_n":
        which, *cases = inputs

        def select(thread: Thread, env: Env) -> None:
            chosen = env[which]
            env[out] = OPAQUE if chosen is OPAQUE else env[cases[int(chosen)]]

        return Silent(select)
    function = _scalar_function(eqn, name)
    if len(inputs) == 2:
        first, second = inputs

        def binary(thread: Thread, env: Env) -> None:
            x, y = env[first], env[second]
            env[out] = OPAQUE if x is OPAQUE or y is OPAQUE else function(x, y)

        return Silent(binary)

    def step(thread: Thread, env: Env) -> None:
        values = [env[slot] for slot in inputs]
        env[out] = OPAQUE if OPAQUE in values else function(*values)

    return Silent(step)


def integers(compiler: Compiler, eqn: Eqn) -> Step | None:
    """Arrays of integers that the host makes of concrete ones are concrete too."""
    avals = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    if not all(map(is_known, avals)):
        return None
    inputs, outs = compiler.inputs(eqn), compiler.outputs(eqn)

    def step(thread: Thread, env: Env) -> None:
        values = [env[slot] for slot in inputs]
        if any(value is OPAQUE for value in values):
            return
        results = bound(eqn, values)
        set_all(env, outs, [value_of(np.asarray(result)) for result in results])

    return step


def is_known(aval: Aval) -> bool:
    """Whether the host knows arrays of this type."""
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "biu" and aval.size <= MOST_INTEGERS


def bound(eqn: Eqn, values: Iterable[Value]) -> list[Value]:
    """The results of a primitive as JAX computes them."""
    operands = [np.asarray(x, atom.aval.dtype) for x, atom in zip(values, eqn.invars)]
    with targets.present():
        results = eqn.primitive.bind(*operands, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


def cost(compiler: Compiler, eqn: Eqn, name: str) -> Cost:
    """The cost of an equation on tensors."""
    if name in _FREE or _is_fused(compiler, eqn, name):
        return Cost()
    reduces = name.startswith(_REDUCTIONS)
    counted = eqn.invars if reduces else eqn.outvars[:1]
    elements = sum(math.prod(getattr(atom.aval, "shape", ())) for atom in counted)
    transcendental = elements if name in _TRANSCENDENTAL else 0
    flops = elements * _additions(eqn, name)
    return Cost(flops, transcendental, compiler.exchanges(eqn), compiler.scratch(eqn))


def _is_fused(compiler: Compiler, eqn: Eqn, name: str) -> bool:
    """Whether a multiplication becomes part of the addition of its result, its only use."""
    if name != "mul" or _dtypes(eqn)[0].kind != "f":
        return False
    uses = compiler.uses.get(id(eqn.outvars[0]), [])
    return len(uses) == 1 and uses[0] is not None and uses[0].primitive.name in ("add", "sub")


def _additions(eqn: Eqn, name: str) -> int:
    """How many additions of float32s take as long as one element of this equation."""
    if name in _TRANSCENDENTAL:
        return 1
    dtypes = _dtypes(eqn)
    if name == "convert_element_type":
        return 1 if all(dtype.kind in "fV" for dtype in dtypes) else 2
    is_float = bool(dtypes) and dtypes[0].kind in "fV"
    return 1 if is_float and name in _FULL_RATE else 2


def _dtypes(eqn: Eqn) -> list[np.dtype]:
    return [np.dtype(atom.aval.dtype) for atom in (eqn.invars[0], eqn.outvars[0])]


def _is_scalar(atom: Atom) -> bool:
    aval = atom.aval
    return (
        not getattr(aval, "shape", (1,))
        and not is_ref(atom)
        and isinstance(aval.dtype, np.dtype)
        and aval.dtype.kind in "biuf"
    )


def _scalar_function(eqn: Eqn, name: str) -> Callable[..., object]:
    """Python's arithmetic for integers and booleans; JAX's for all else."""
    dtypes = [atom.aval.dtype for atom in (*eqn.invars, *eqn.outvars)]
    integers = all(dtype.kind in "biu" for dtype in dtypes)
    if integers and name in ("not", "convert_element_type"):
        is_bool = dtypes[-1].kind == "b"
        if name == "not":
            return operator.not_ if is_bool else wrapping(lambda x: ~x, dtypes[-1])
        return bool if is_bool else wrapping(int, dtypes[-1])
    if integers and name in _INTEGERS:
        function, grows = _INTEGERS[name]
        return wrapping(function, dtypes[-1]) if grows else function
    if name in _IDENTITIES:
        return lambda x: x
    return lambda *values: np.asarray(bound(eqn, values)[0]).item()


# Functions of Python integers; whether a result can leave the dtype.
_INTEGERS: dict[str, tuple[Callable[..., int], bool]] = {
    **{name: (getattr(operator, name), True) for name in ("add", "sub", "mul", "neg", "abs")},
    **{name: (getattr(operator, name), False) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": (operator.and_, False),
    "or": (operator.or_, False),
    "xor": (operator.xor, False),
    "max": (max, False),
    "min": (min, False),
    "div": (divide, True),
    "rem": (remainder, False),
    "clamp": (lambda low, x, high: min(max(x, low), high), False),
}

# Primitives that leave a scalar as it is, and primitives that only move elements of a tensor.
_IDENTITIES = primitives(
    "broadcast_in_dim copy layout_cast multiple_of optimization_barrier reshape squeeze"
    " stop_gradient transpose"
)
_FREE = _IDENTITIES | primitives(
    "bitcast_convert_type concatenate dynamic_slice expand_dims iota pad rev slice split"
)
#: Of floats, as many elements in a cycle as additions, and so are conversions to another float (the
#: probe "to float16 and back"). All else, comparisons and minima among them, takes twice as long.
#: Source: CUDA C++ Programming Guide, throughput of native arithmetic instructions of compute
#: capability 9.0.
_FULL_RATE = primitives("add sub mul neg abs reduce_sum square integer_pow div cumsum")
_REDUCTIONS = ("reduce_", "argmax", "argmin", "cum")
_TRANSCENDENTAL = primitives(
    "acos acosh asin asinh atan atan2 atanh cos cosh sin sinh tan tanh"
    " cbrt exp exp2 expm1 log log1p logistic pow reciprocal rsqrt sqrt"
    " digamma erf erf_inv erfc lgamma"
)
#: Each element of a result is made of the operands' elements at its place.
ELEMENTWISE = (
    frozenset(_INTEGERS)
    | _TRANSCENDENTAL
    | primitives(
        "bitcast_convert_type ceil convert_element_type copy floor integer_pow is_finite"
        " layout_cast not round shift_left shift_right_arithmetic shift_right_logical sign square"
    )
)
