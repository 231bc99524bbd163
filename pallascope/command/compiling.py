"""`compile`: what ptxas and the machine code say of the kernels that a function calls.

The text comes kernel by kernel; then what costs time, a line each, and how many kernels have such a
fault. JSON has the same in one document, `compile.schema.json`: nothing else is on stdout then. A
function that cannot be compiled says so on stderr, and the next is compiled all the same.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence

from pallascope.command.options import print_document, refusing
from pallascope.command.targets import Target, callers, loaded
from pallascope.compiling import Compiled, compiled, compiled_all
from pallascope.report import Document, count

#: The format of the document; a change that breaks its readers adds 1.
FORMAT = 3


def compile_(targets: Sequence[Target], as_json: bool, with_sass: bool) -> int:
    """Tells what is found; returns the exit status.

    It is 1 for serialized products and spills, and 2 for what cannot be compiled.
    """
    quiet = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    functions: list[Document] = []
    with quiet:
        for target in targets:
            if len(targets) > 1 and not as_json:
                print(f"== {target}")
            found: list[Compiled] = []
            with refusing("compile") as errors:
                for one in _kernels(target):
                    found.append(one)
                    if not as_json:
                        print(one, end="\n\n")
                        if with_sass:
                            print(one.sass)
                if not as_json:
                    _tell(found)
            functions.append(_fields(target, found, with_sass, *errors))
    ok = all(each["ok"] for each in functions)
    if as_json:
        print_document(FORMAT, ok=ok, functions=functions)
    return 2 if any(each["error"] for each in functions) else int(not ok)


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


def _fields(
    target: Target, found: list[Compiled], with_sass: bool, error: str | None = None
) -> Document:
    """What came of one function, as JSON has it."""
    return {
        "function": target.function,
        "args": [*target.args],
        "ok": error is None and all(one.ok for one in found),
        "kernels": [one.fields() | ({"sass": one.sass} if with_sass else {}) for one in found],
        "error": error,
    }
