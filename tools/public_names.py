"""The public names of the packages, and what is said of each where it is defined.

The model. A package's public names are its `__all__`; those of a module without one are the
functions and classes that it defines. A name that two of them offer is one name, of the first. A
constant has no docstring: what is said of it are the lines that begin with `#:` above it.
"""

import inspect
import re
import sys
from types import ModuleType
from typing import Any, NamedTuple

import pallascope
import pipelib
import pipelib_book
from pallascope import compiling, testing, tuning
from pallascope.bench import provenance, timing
from pipelib import kernels

MODULES = (
    pipelib, kernels, pallascope, tuning, compiling, testing, provenance, timing, pipelib_book,
    pipelib_book.asks,
)  # fmt: skip


class Public(NamedTuple):
    """A public name: in full, what it stands for, and what is said of it."""

    name: str
    value: Any
    text: str


def public_names() -> list[Public]:
    """All public names, in the order of `MODULES`."""
    offered = [(module, name) for module in MODULES for name in _names(module)]
    found: dict[int, Public] = {}
    for module, name in offered:
        value = getattr(module, name)
        full = f"{module.__name__}.{name}"
        found.setdefault(id(value), Public(full, value, text_of(name, value)))
    return list(found.values())


def text_of(name: str, value: Any) -> str:
    """The docstring of a function or class, or the comment above a constant."""
    if inspect.isfunction(value) or inspect.isclass(value):
        return inspect.getdoc(value) or ""
    source = inspect.getsource(sys.modules[type(value).__module__])
    above = re.search(rf"((?:^#:.*\n)+){name} = ", source, re.MULTILINE)
    return re.sub(r"^#: ?", "", above[1], flags=re.MULTILINE) if above else ""


def _names(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    is_own = lambda value: (
        getattr(value, "__module__", None) == module.__name__
        and (inspect.isfunction(value) or inspect.isclass(value))
    )
    return [name for name, value in vars(module).items() if name[0] != "_" and is_own(value)]
