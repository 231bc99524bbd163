"""Where an equation of a kernel was written, and what its author calls the kernel's arguments.

JAX keeps the frames of each equation, and the file and line of each function, but the names of a
kernel's first arguments are lost on the way to its jaxpr. They are read in the source again; where
there is none, or where they do not fit (arguments that were bound, a tree of refs), there are no
names, and for the refs in a kernel's `*refs` there never are. `names` finds others for these.
"""

import ast
import functools
import linecache
import os
import re
from typing import NamedTuple

import jax

from pallascope.sources import place
from pallascope.tracing.jaxprs import DebugInfo, Eqn
from pipelib import targets

_HIDDEN = (
    os.path.join(os.path.dirname(jax.__file__), "_src", ""),
    os.path.join(os.path.dirname(os.__file__), ""),
)
# Where no frame is known, what an error begins with instead of a line.
UNKNOWN = "At an unknown line"
_PIPELIB = os.path.dirname(os.path.abspath(targets.__file__))
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_EMITTERS = {
    os.path.join(_HERE, "launches.py"),
    *(
        os.path.join(_PIPELIB, f"{module}.py")
        for module in ("cp_async", "pipeline", "ring", "specs", "warp_specialized")
    ),
}


class Function(NamedTuple):
    """A function whose jaxpr is read: its name, its file, and the line where it is defined."""

    name: str
    path: str
    line: str


def line_of(eqn: Eqn, function: Function | None = None) -> str | None:
    """ "file:line" of the innermost frame that is neither JAX's nor an emitter's.

    Under `jax.grad`, JAX gives an equation the frames of where the gradient was asked for. So if
    none of the frames is in the file of the equation's `function`, this is where that is defined.
    """
    traceback = eqn.source_info.traceback
    frames = traceback.frames if traceback else ()
    if frames and function and all(frame.file_name != function.path for frame in frames):
        return None if _is_hidden(function.path) else place(function.path, function.line)
    for frame in frames:
        if not _is_hidden(frame.file_name):
            return place(frame.file_name, frame.line_num)
    return None


def _is_hidden(path: str) -> bool:
    """Whether a file is JAX's, Python's or an emitter's."""
    if path.startswith(_HIDDEN[0]) or path in _EMITTERS:
        return True
    return path.startswith((*_HIDDEN, "<")) and "site-packages" not in path


def argument_names(debug_info: DebugInfo, count: int, is_bound: bool) -> list[str | None]:
    """The names of a kernel's first `count` arguments; None for those that cannot be told.

    `debug_info` belongs to the scope that gives the kernel its scratch memory: it has the names of
    that memory, which comes last, and the place of the function. If the function has more
    parameters before those, some were bound or None, and which these are cannot be told. Nor can it
    be told of a function with `*refs` of which some may be bound (`is_bound`).
    """
    unknown: list[str | None] = [None] * count
    function = function_of(debug_info)
    definition = function and _definition(function)
    if definition is None:
        return unknown
    names = _parameters(definition)
    known = [re.split(r"\W", name or "", maxsplit=1)[0] for name in debug_info.arg_names or ()]
    places = [names.index(name) for name in known if name in names]
    if places:
        names = names[: min(places)]
    if definition.args.vararg and not is_bound:
        return [*names, *unknown][:count]
    return [*names] if len(names) == count else unknown


def function_name(debug_info: DebugInfo) -> str | None:
    """The name of a kernel's function, also where it was bound to some of its arguments."""
    function = function_of(debug_info)
    return function and function.name


def kernel_name(given: str, debug_info: DebugInfo, asked: str | None = None) -> str:
    """What a kernel is called: as its caller named it, or else as its function.

    A private function, and one called `kernel` or `run`, does not say which kernel it is. It has
    the name of the function that it is written in, or else of the function that was `asked` for.
    """
    function = function_of(debug_info)
    if function is None or given not in ("anonymous", function.name):
        return given
    names = [asked, *(node.name for node in _nested(function))]
    names += [function.name] if len(names) == 1 else []
    return next((name for name in reversed(names) if name and _says_which(name)), function.name)


def _says_which(name: str) -> bool:
    """Whether a function's name says which kernel it is."""
    return name not in ("kernel", "run") and name[0] not in "_<"


def line_of_function(debug_info: DebugInfo) -> str | None:
    """ "file:line" of where a kernel's function is defined."""
    function = function_of(debug_info)
    return function and place(function.path, function.line)


def function_of(debug_info: DebugInfo) -> Function | None:
    """The function that was traced, as JAX notes it."""
    text = getattr(debug_info, "func_src_info", None) or ""
    found = re.fullmatch(r"(\S+) at (.+):(\d+)", text)
    return found and Function(*found.groups())


def leaf_names(debug_info: DebugInfo, count: int) -> list[str]:
    """Names for the memory of a scope: the argument's, or of a tree the last key and places in it.

    JAX calls a leaf `buffers['smem'][0]`, say; it is then `smem.0`.
    """
    paths = list(getattr(debug_info, "arg_names", None) or ())
    paths += [None] * (count - len(paths))
    keys = [re.sub(r".*\['?(?=[^\d'\]])([^'\]]*)'?\]", r"\1", path or "") for path in paths]
    return [re.sub(r"\[(\d+)\]", r".\1", key) or f"scratch{i}" for i, key in enumerate(keys)]


def is_place(name: str) -> bool:
    """Whether `leaf_names` made this name of a place in a list: there is no name in the source."""
    return re.fullmatch(r"scratch\d+|.*\.\d+", name) is not None


def is_of_jax(debug_info: DebugInfo) -> bool:
    """Whether a function is JAX's or Python's own, whose names for arguments say nothing."""
    function = function_of(debug_info)
    return function is None or _is_hidden(function.path)


def _definition(function: Function) -> ast.FunctionDef | None:
    """The definition of a function in its file; None if it is not there."""
    return next(iter(reversed(_nested(function))), None)


def _nested(function: Function) -> list[ast.FunctionDef]:
    """The definitions that a function is written in, outer ones first, then its own; [] if none."""
    line = int(function.line)
    defined = _definitions("".join(linecache.getlines(function.path)))
    around = [n for n in defined if _first_line(n) <= line <= (n.end_lineno or n.lineno)]
    around.sort(key=_first_line)
    own = [i for i, n in enumerate(around) if (n.name, _first_line(n)) == (function.name, line)]
    return around[: own[0] + 1] if own else []


@functools.lru_cache(maxsize=64)
def _definitions(source: str) -> list[ast.FunctionDef]:
    """All definitions of functions in a file's source; [] if it is not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _first_line(node: ast.FunctionDef) -> int:
    """The line that a definition begins in, with its decorators."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _parameters(definition: ast.FunctionDef) -> list[str]:
    """The positional parameters of a function."""
    return [a.arg for a in (*definition.args.posonlyargs, *definition.args.args)]
