"""`maker`: a fast constructor for frozen dataclasses that are made by the million.

The model. The `__init__` of a frozen dataclass sets each field through `object.__setattr__`, which
takes 6 us for the 26 fields of an `Op`. The constructor here fills in a twin instead: a class with
the same fields and slots that is not frozen. Then it turns the twin into the frozen class, which
takes 1 us in all. Both classes come from one list of fields. Not covered: `__post_init__` does not
run, so callers give values that it would accept.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, cast


def maker[**Fields, Value](cls: Callable[Fields, Value]) -> Callable[Fields, Value]:
    """A function that makes values of a frozen, slotted dataclass from positional arguments."""
    assert isinstance(cls, type)
    found: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(cast(Any, cls))
    fields = [(field.name, object, _with_default(field)) for field in found]
    twin: Callable[..., object] = dataclasses.make_dataclass(
        cls.__name__, fields, slots=True, eq=False
    )

    def make(*values: object) -> object:
        made = twin(*values)
        made.__class__ = cls
        return made

    return cast(Callable[Fields, Value], make)


def _with_default(field: dataclasses.Field[Any]) -> dataclasses.Field[Any]:
    """A new field with the default of this one; a `Field` belongs to one class only."""
    if field.default is dataclasses.MISSING:
        return dataclasses.field()
    return dataclasses.field(default=field.default)
