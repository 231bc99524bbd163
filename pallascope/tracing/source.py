"""Where an equation of a kernel was written, and what its author calls the kernel's arguments.

JAX keeps the frames of each equation, and the file and line of each function, but the names of a
kernel's first arguments are lost on the way to its jaxpr. They are read in the source again; where
there is none, or where they do not fit (arguments that may be bound by keyword, a tree of refs),
there are no names, and for the refs in a kernel's `*refs` there never are. `names` finds others.
"""

import ast
import functools
import linecache
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from pallascope.sources import place
from pallascope.tracing.jaxprs import DebugInfo, Eqn, Jaxpr
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


class Own(NamedTuple):
    """A kernel's own function: its file and its definition there.

    `is_batched` says that JAX called the function within one that it made, as `jax.vmap` does.
    """

    path: str
    definition: ast.FunctionDef | ast.Lambda
    is_batched: bool = False


def own_function(scope: Jaxpr) -> Own | None:
    """The function of a kernel; None if its source is not to be had.

    `scope` is the jaxpr of the scope that gives the kernel its scratch memory. JAX notes its
    function. Where that is JAX's own, it is the outermost of the frames that is not.
    """
    function = function_of(scope.debug_info)
    if function and not function.path.startswith(_HIDDEN[0]):
        definition = _definition(function) or _around(*function)
        return definition and Own(function.path, definition)
    frames = next((found for eqn in scope.eqns if (found := [*_frames(eqn)])), None)
    if frames is None:
        return None
    path, name = frames[-1].file_name, frames[-1].function_name.rpartition(".")[2]
    definition = _around(name, path, frames[-1].line_num)
    return definition and Own(path, definition, is_batched=True)


class Called(NamedTuple):
    """Where in a kernel's own function an equation is, and whether helpers are between.

    A helper is a function of a module or a class. A function within another one, as the body of a
    pipeline, was written for one place, and its line tells which.
    """

    line: str | None = None
    by_helper: bool = False


def called_from(eqn: Eqn, own: Own | None, outer: Called) -> Called:
    """Where the kernel's own function comes to an equation.

    `outer` is that of the loop or the branch around it, where the equation's frames end.
    """
    by_helper = False
    for frame in _frames(eqn):
        if own and frame.file_name == own.path and _has_line(own.definition, frame.line_num):
            return Called(place(frame.file_name, frame.line_num), by_helper)
        by_helper = by_helper or "<locals>" not in frame.function_name
    return Called(outer.line, outer.by_helper or by_helper)


def line_of(eqn: Eqn, function: Function | None = None) -> str | None:
    """ "file:line" of the innermost frame that is neither JAX's nor an emitter's.

    Under `jax.grad`, JAX gives an equation the frames of where the gradient was asked for. So if
    none of the frames is in the equation's `function`, this is where that is defined.
    """
    traceback = eqn.source_info.traceback
    frames = traceback.frames if traceback else ()
    if frames and function and not _is_in(function, frames):
        return None if _is_hidden(function.path) else place(function.path, function.line)
    return next((place(frame.file_name, frame.line_num) for frame in _frames(eqn)), None)


def _is_in(function: Function, frames: Sequence[Any]) -> bool:
    """Whether one of these frames is in a function, or in its file if no definition is found."""
    near = [frame for frame in frames if frame.file_name == function.path]
    names = (frame.function_name.rpartition(".")[2] for frame in near)
    if function.name != "<lambda>" and function.name in names:
        return True
    definition = _definition(function) if near else None
    return any(definition is None or _has_line(definition, frame.line_num) for frame in near)


def _frames(eqn: Eqn) -> Iterator[Any]:
    """The frames of an equation that are neither JAX's nor an emitter's, innermost first."""
    traceback = eqn.source_info.traceback
    frames = traceback.frames if traceback else ()
    return (frame for frame in frames if not _is_hidden(frame.file_name))


def _is_hidden(path: str) -> bool:
    """Whether a file is JAX's, Python's or an emitter's."""
    if path.startswith(_HIDDEN[0]) or path in _EMITTERS:
        return True
    return path.startswith((*_HIDDEN, "<")) and "site-packages" not in path


def argument_names(
    own: Own, leaves: Sequence[str | None], scratch: Sequence[str | None], is_bound: bool
) -> list[str | None]:
    """The names of a kernel's operands and results; None for those that cannot be told.

    JAX calls these `leaves` by their places, as `refs[0]`; parts of a tree, `refs[0][1]`, get no
    name. `scratch` is what it calls the memory of the kernel's scope, which comes last.

    If the function has more parameters before that than there are places, some were bound
    (`is_bound`). They are the first ones if the scratch was given by place. If it was given by
    keyword, by which JAX sorts it, others may be bound by keyword, and which these are cannot be
    told. Nor can it be told of a function with `*refs` of which some may be bound.
    """
    places = [re.fullmatch(r"\w+\[(\d+)\](.*)", leaf or "") for leaf in leaves]
    count = 1 + max((int(place[1]) for place in places if place), default=-1)
    names, by_place = _before_scratch(own, scratch)
    bound = len(names) - count
    is_told = bound == 0 or (bound > 0 and is_bound and by_place)
    if own.definition.args.vararg:
        is_told = not is_bound or (own.is_batched and bound == 0)
        bound = 0
    found = dict(enumerate(names[bound:])) if is_told else {}
    return [found.get(int(place[1])) if place and not place[2] else None for place in places]


def _before_scratch(own: Own, scratch: Sequence[str | None]) -> tuple[list[str], bool]:
    """The parameters before those of the scratch, and whether that is known to come by place."""
    found = own.definition.args
    names = [argument.arg for argument in (*found.posonlyargs, *found.args)]
    known = [re.split(r"\W", name or "", maxsplit=1)[0] for name in scratch]
    if own.is_batched and not found.vararg and {*known} == {"refs"}:  # as JAX's function calls it
        taken = len({(name or "").partition("]")[0] for name in scratch})
        return names[: len(names) - len(found.defaults) - taken], True
    cuts = [names.index(name) for name in known if name in names]
    return names[: min(cuts, default=len(names))], known != sorted(known)


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
    around = [n for n in defined if isinstance(n, ast.FunctionDef) and _has_line(n, line)]
    around.sort(key=_first_line)
    own = [i for i, n in enumerate(around) if (n.name, _first_line(n)) == (function.name, line)]
    return around[: own[0] + 1] if own else []


@functools.lru_cache(maxsize=64)
def _definitions(source: str) -> list[ast.FunctionDef | ast.Lambda]:
    """All definitions of functions in a file's source; [] if it is not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]


def _around(name: str, path: str, line: int | str) -> ast.FunctionDef | ast.Lambda | None:
    """The innermost definition of this name that has this line; None if there are two."""
    nodes = _definitions("".join(linecache.getlines(path)))
    named = (n for n in nodes if getattr(n, "name", "<lambda>") == name)
    found = [n for n in named if _has_line(n, int(line))]
    last = max(map(_first_line, found), default=None)
    innermost = [n for n in found if _first_line(n) == last]
    return innermost[0] if len(innermost) == 1 else None


def _has_line(node: ast.FunctionDef | ast.Lambda, line: int) -> bool:
    """Whether a line is one of a definition's."""
    return _first_line(node) <= line <= (node.end_lineno or node.lineno)


def _first_line(node: ast.FunctionDef | ast.Lambda) -> int:
    """The line that a definition begins in, with its decorators."""
    return min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
