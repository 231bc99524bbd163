"""Branches."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.typing import ArrayLike

def __getattr__(name: str) -> Any: ...
def cond[T](
    pred: ArrayLike, true_fun: Callable[..., T], false_fun: Callable[..., T], *operands: Any
) -> T: ...
def switch[T](index: ArrayLike, branches: Sequence[Callable[..., T]], *operands: Any) -> T: ...
