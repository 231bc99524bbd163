"""`Target`: the kernel that a command is about, as words of a shell name it, and its programs.

The model. A function is `module:function` or `file.py:function`; each of its arguments is
dtype[shape] or a number. What the caller's code raises is a refusal: a ValueError in words, with
the caller's line. Everything else that is raised is pallascope's own fault.
"""

import contextlib
import importlib
import importlib.util
import pathlib
import re
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax

import pallascope
from pallascope import Program
from pallascope.failing import in_words, is_ours
from pallascope.verifying import Block, BlockChoice

#: What says in its own words what the caller can mend.
REFUSALS = (ValueError, ImportError, OSError)
_SHORT = {"f": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint"}


@dataclass(frozen=True, slots=True)
class Target:
    """A kernel by the names of its function and arguments, and what to check of it.

    `block` is the index of a block, or several by a choice; None is for what the command usually
    takes.
    """

    function: str
    args: tuple[str, ...] = ()
    block: Block | BlockChoice | None = None
    strict: bool = False
    call: int | None = None
    max_steps: int | None = None

    def __str__(self) -> str:
        return " ".join([self.function, *self.args])


def tracer(target: Target) -> Callable[[Block | None], Program]:
    """Loads the target's function; what is returned traces one of its blocks."""
    function, args = loaded(target)
    steps, call = target.max_steps, target.call

    def traced(block: Block | None) -> Program:
        with callers():
            return pallascope.trace(function, *args, block=block, max_steps=steps, call=call)

    return traced


def loaded(target: Target) -> tuple[Callable[..., object], list[object]]:
    """The target's function, and its arguments."""
    args: list[object] = list(map(argument, target.args))
    with callers():
        return _function(target.function), args


def block_or_choice(text: str) -> Block | BlockChoice:
    """What `--block` says, where it may be several blocks."""
    return BlockChoice(text) if text in [*BlockChoice] else block_of(text)


def block_of(text: str) -> Block:
    """A block's index on each axis of the grid; ValueError if the text is none."""
    try:
        return _integers(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no block: give its index on each axis of the grid, as 0,1."
        ) from None


@contextlib.contextmanager
def callers() -> Generator[None]:
    """Around the caller's code and its trace: what they raise becomes a refusal, with its line."""
    try:
        yield
    except Exception as error:
        if is_ours(error):
            raise
        raise ValueError(in_words(error)) from error


def _function(name: str) -> Callable[..., object]:
    """The function that `module:function` or `file.py:function` names."""
    (found,) = named(name)
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}: name a function that calls a kernel.")
    return found


def named(*names: str) -> list[Any]:
    """What each `module:name` or `file.py:name` names; a module of several is loaded once."""
    modules: dict[str, ModuleType] = {}
    found: list[Any] = []
    for name in names:
        module_name, colon, path = name.rpartition(":")
        if not colon or not path or not module_name.strip("."):
            raise ValueError(
                f"{name!r} names no function: write module:function, or file.py:function."
            )
        if module_name not in modules:
            modules[module_name] = _module(module_name)
        found.append(_attribute(modules[module_name], module_name, path))
    return found


def _attribute(module: ModuleType, module_name: str, path: str) -> Any:
    """What a module defines under a name, which may have dots."""
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise AttributeError(f"{module_name} has no {path!r}: it is not defined there.")
        found = getattr(found, part)
    return found


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = pathlib.Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {name}.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # as for `python file`, whose imports are found beside it
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "files that end with .py have a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def argument(text: str) -> float | jax.ShapeDtypeStruct:
    """An argument without contents from dtype[shape], or a number."""
    match = re.fullmatch(r"(\w+)\[((?:\d+(?:,\d+)*)?)\]", text.replace(" ", ""))
    if not match:
        try:
            return float(text) if re.search(r"[.e]", text) else int(text)
        except ValueError:
            raise ValueError(
                f"the argument {text!r} is neither dtype[shape], as bfloat16[4096,4096], nor a"
                " number."
            ) from None
    dtype, shape = match.groups()
    short = re.fullmatch(r"(bf|[fisu])(\d+)_?(e\w+)?", dtype)
    kind = short and f"_{short[3]}" * bool(short[3])  # of float8
    name = f"{_SHORT[short[1]]}{short[2]}{kind}" if short else dtype.replace("pred", "bool")
    try:
        return jax.ShapeDtypeStruct(_integers(shape), jax.numpy.dtype(name))
    except TypeError:
        raise ValueError(
            f"the argument {text!r} is of {name!r}, which is no dtype: write it as"
            " bfloat16[4096,4096]."
        ) from None


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)
