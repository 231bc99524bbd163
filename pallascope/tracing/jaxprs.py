"""The part of JAX's jaxprs that the trace reads, as types.

The model. JAX's own types do not say that the type of a variable has a shape. So an equation has
here what the trace reads of it, and the types of variables (`aval`) are any. Not covered: what an
equation's parameters are, which depends on the primitive.
Source: `jax.extend.core` of JAX 0.11.2 and 0.12.0.1.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol


def primitives(text: str) -> frozenset[str]:
    """The names of primitives that a text has, with spaces between them."""
    return frozenset(text.split())


class Atom(Protocol):
    """A variable, or a literal."""

    @property
    def aval(self) -> Any:
        """The type of its value or ref: has `shape` and `dtype`, except for tokens."""
        ...


class Primitive(Protocol):
    """What an equation does."""

    name: str
    multiple_results: bool

    def bind(self, *args: Any, **params: Any) -> Any:
        """The results for these operands."""
        ...


class SourceInfo(Protocol):
    """Where an equation was written."""

    @property
    def name_stack(self) -> object:
        """The named scopes, as text if it is made a string."""
        ...

    @property
    def traceback(self) -> Any:
        """The frames, None if they were not kept."""
        ...


class Eqn(Protocol):
    """An equation: a primitive, its operands and its results."""

    @property
    def primitive(self) -> Primitive:
        """What it does."""
        ...

    @property
    def invars(self) -> Sequence[Atom]:
        """The operands."""
        ...

    @property
    def outvars(self) -> Sequence[Atom]:
        """The results."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """What else the primitive is told, by name."""
        ...

    @property
    def effects(self) -> Collection[object]:
        """What it does besides computing its results; empty if nothing."""
        ...

    @property
    def source_info(self) -> SourceInfo:
        """Where it was written."""
        ...
