"""`advise`: edits of a kernel's schedule that make it faster by simulation, and are right.

The model. All is `pallascope.advise`'s. JSON is one document, `advise.schema.json`: nothing else is
on stdout then. Progress is on stderr.
"""

import sys
from dataclasses import asdict

import pallascope
from pallascope.command.options import print_document
from pallascope.command.targets import Target, callers, loaded
from pallascope.verifying import BlockChoice

#: The format of the document; a change that breaks its readers adds 1.
FORMAT = 1


def advise(target: Target, machine: str, seconds: float, as_json: bool) -> int:
    """Tells the hints; returns the exit status."""
    function, args = loaded(target)
    assert not isinstance(target.block, BlockChoice), "advice is on one block"
    with callers():
        found = pallascope.advise(
            function,
            *args,
            machine=getattr(pallascope, machine),
            block=target.block,
            call=target.call,
            max_steps=target.max_steps,
            seconds=seconds,
            progress=sys.stderr.isatty() and _tell,
        )
    if not as_json:
        print(found)
        return 0
    hints = [{k: v for k, v in asdict(hint).items() if k != "edits"} for hint in found.hints]
    fields = {name: getattr(found, name) for name in _FIELDS}
    print_document(FORMAT, function=target.function, **fields, hints=hints)
    return 0


_FIELDS = "name", "machine", "cycles", "bound", "tried", "left"


def _tell(line: str) -> None:
    """Shows one line of progress in place of the last."""
    print(f"\r{line[:79]:79}", end="", file=sys.stderr, flush=True)
