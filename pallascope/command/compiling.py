"""`compile`: what ptxas and the machine code say of the kernels that a function calls.

The text comes kernel by kernel; then what costs time, a line each, and how many kernels have such a
fault. JSON has the same in one document, and nothing else is on stdout then.
"""

import contextlib
import json
import sys
from collections.abc import Iterator

import jax

import pallascope
from pallascope.command.targets import Target, callers, loaded
from pallascope.compiling import Compiled, compiled, compiled_all
from pallascope.report import Document, count

#: The format of the document; a change that breaks its readers adds 1.
FORMAT = 2


def compile_(target: Target, as_json: bool, with_sass: bool) -> int:
    """Tells what is found; returns the exit status: 1 for serialized products and spills.

    Raises:
      ValueError, ImportError, OSError: the kernel cannot be compiled, or something is missing.
    """
    quiet = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    found: list[Compiled] = []
    with quiet:
        for one in _kernels(target):
            found.append(one)
            if not as_json:
                print(one, end="\n\n")
                if with_sass:
                    print(one.sass)
    if as_json:
        print(json.dumps(_document(target, found, with_sass), indent=1))
    else:
        _tell(found)
    return 0 if all(one.ok for one in found) else 1


def _kernels(target: Target) -> Iterator[Compiled]:
    """The kernels of a target: all, or the one that it names."""
    function, args = loaded(target)
    with callers():
        if target.call is not None:
            yield compiled(function, *args, call=target.call)
        else:
            yield from compiled_all(function, *args)


def _tell(found: list[Compiled]) -> None:
    """The faults, and how many kernels have them."""
    for one in found:
        for fault in one.faults:
            print(fault)
    faulty = sum(not one.ok for one in found)
    print(
        f"{count(len(found), 'kernel')} compiled, {faulty or 'none'} with serialized products or"
        f" spilled registers{': exit status 1' if faulty else ''}"
    )


def _document(target: Target, found: list[Compiled], with_sass: bool) -> Document:
    kernels = [one.fields() | ({"sass": one.sass} if with_sass else {}) for one in found]
    return {
        "format": FORMAT,
        "pallascope": pallascope.__version__,
        "jax": jax.__version__,
        "function": target.function,
        "args": [*target.args],
        "ok": all(one.ok for one in found),
        "kernels": kernels,
    }
