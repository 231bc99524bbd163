"""Loops."""

from collections.abc import Callable
from typing import Any

from jax import Array
from jax.typing import ArrayLike

def __getattr__(name: str) -> Any: ...
def fori_loop[T](
    lower: ArrayLike,
    upper: ArrayLike,
    body_fun: Callable[[Any, T], T],
    init_val: T,
    *,
    unroll: int | bool | None = None,
) -> T: ...
def scan[Carry](
    f: Callable[[Carry, Any], tuple[Carry, Any]],
    init: Carry,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Carry, Any]: ...
def while_loop[T](
    cond_fun: Callable[[T], ArrayLike], body_fun: Callable[[T], T], init_val: T
) -> T: ...
def cumsum(operand: Array, axis: int = 0, reverse: bool = False) -> Array: ...
