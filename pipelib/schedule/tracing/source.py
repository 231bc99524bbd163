"""Where an equation of a kernel was written, and what its author calls the kernel's arguments.

JAX keeps the frames of each equation, and the file and line of each function, but the names of a
kernel's first arguments are lost on the way to its jaxpr. They are read in the source again; where
there is none, or where they do not fit (a kernel of `*refs`, a tree of refs), there are no names.
"""

import ast
import linecache
import os
import re
from collections.abc import Sequence
from typing import Any

import jax

from pipelib.schedule.tracing.jaxprs import Eqn

_HIDDEN = (
    os.path.join(os.path.dirname(jax.__file__), "_src", ""),
    os.path.join(os.path.dirname(os.__file__), ""),
)
# Where no frame is known, what an error begins with instead of a line.
UNKNOWN = "At an unknown line"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_EMITTERS = {
    os.path.join(_PACKAGE, f"{module}.py")
    for module in ("pipeline", "ring", "specs", "warp_specialized")
}


def line_of(eqn: Eqn) -> str | None:
    """ "file:line" of the innermost frame that is neither JAX's nor an emitter's."""
    traceback = eqn.source_info.traceback
    for frame in traceback.frames if traceback else ():
        path = frame.file_name
        if path.startswith((*_HIDDEN, "<")) and "site-packages" not in path.replace(_HIDDEN[0], ""):
            continue
        if path.startswith(_HIDDEN[0]) or path in _EMITTERS:
            continue
        return _line(path, frame.line_num)
    return None


def _line(path: str, number: int | str) -> str:
    here = os.path.join(os.getcwd(), "")
    return f"{path.removeprefix(here)}:{number}"


def argument_names(debug_info: Any, count: int) -> Sequence[str] | None:
    """The names of a kernel's first `count` arguments; None if they cannot be told.

    `debug_info` belongs to the scope that gives the kernel its scratch memory: it has the names of
    what comes after those arguments, and the place of the function.
    """
    place = _place(debug_info)
    if place is None:
        return None
    names = _parameters(*place.groups())
    known = [re.split(r"\W", name or "", maxsplit=1)[0] for name in debug_info.arg_names or ()]
    positional = [name for name in known if name in names]
    if positional:
        names = names[: names.index(positional[0])]
    names = names[-count:] if positional else names
    return names if len(names) == count > 0 else None


def function_name(debug_info: Any) -> str | None:
    """The name of a kernel's function, also where it was bound to some of its arguments."""
    place = _place(debug_info)
    return place and place.group(1)


def line_of_function(debug_info: Any) -> str | None:
    """ "file:line" of where a kernel's function is defined."""
    place = _place(debug_info)
    return place and _line(place.group(2), place.group(3))


def _place(debug_info: Any) -> re.Match[str] | None:
    """The function, the file and the line of what was traced."""
    return re.fullmatch(r"(\S+) at (.+):(\d+)", getattr(debug_info, "func_src_info", None) or "")


def leaf_names(debug_info: Any, count: int) -> list[str]:
    """Names for the memory of a scope: the argument's, or of a tree the last key and places in it.

    JAX calls a leaf `buffers['smem'][0]`, say; it is then `smem.0`.
    """
    paths = list(getattr(debug_info, "arg_names", None) or ())
    paths += [None] * (count - len(paths))
    keys = [re.sub(r".*\['?(?=[^\d'\]])([^'\]]*)'?\]", r"\1", path or "") for path in paths]
    return [re.sub(r"\[(\d+)\]", r".\1", key) or f"scratch{i}" for i, key in enumerate(keys)]


def _parameters(name: str, path: str, line: str) -> list[str]:
    """The positional parameters of the function that is defined there."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == int(line):
                return [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    return []
