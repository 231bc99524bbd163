"""The structure of a pytree."""

from collections.abc import Iterable
from typing import Any

def __getattr__(name: str) -> Any: ...

class PyTreeDef:
    num_leaves: int
    def unflatten(self, leaves: Iterable[Any], /) -> Any: ...
