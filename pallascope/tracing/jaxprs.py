"""The part of JAX's jaxprs that the trace reads, as types; names for what JAX leaves without one.

The model. JAX's own types do not say that the type of a variable has a shape. So an equation has
here what the trace reads of it, and the types of variables (`aval`) are any. Not covered: what an
equation's parameters are, which depends on the primitive.
Source: `jax.extend.core` of JAX 0.11.2 and 0.12.0.1.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

type Aval = Any  # the type of a value or a ref: has `shape` and `dtype`, except for tokens
type Dtype = Any  # NumPy's, or one that JAX adds, as a barrier's
type Jaxpr = Any  # with constants (closed) or without
type Layout = Any  # of an array in registers, as `plgpu.Layout.to_mgpu()` gives it
type Mesh = Any  # of a kernel's blocks and threads, or of devices
type Transform = Any  # of a ref: a tile, an index, a reshape
type Transforms = Sequence[Transform]
type Tree = Any  # of JAX's pytrees: how leaves make up transforms
type DebugInfo = Any  # what JAX noted of a function: its name, its place, its arguments' names
type Value = Any  # a number, an array of integers, a `Ref` or OPAQUE
type Env = list[Value]  # the values of a jaxpr's variables, by their slots


def primitives(text: str) -> frozenset[str]:
    """The names of primitives that a text has, with spaces between them."""
    return frozenset(text.split())


class Atom(Protocol):
    """A variable, or a literal: `aval` is the type of its value or ref."""

    aval: Aval


class Primitive(Protocol):
    """A primitive of JAX: the operation of an equation."""

    name: str
    multiple_results: bool

    def bind(self, *args: Value, **params: Any) -> Any:
        """The results for these operands."""
        ...


class SourceInfo(Protocol):
    """Where an equation was written: its named scopes, and the frames, None if JAX kept none."""

    name_stack: object
    traceback: Any


class Eqn(Protocol):
    """An equation: a primitive, its operands and its results.

    `params` are what else the primitive is told, by name; `effects` what it does besides computing
    its results.
    """

    primitive: Primitive
    invars: Sequence[Atom]
    outvars: Sequence[Atom]
    params: Mapping[str, Any]
    effects: Collection[object]
    source_info: SourceInfo
