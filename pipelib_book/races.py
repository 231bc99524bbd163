"""`races_of`: what JAX's interpreter prints of races, as pairs of accesses.

The model. With race detection the interpreter prints two accesses for each race that it sees in the
one order in which it runs: what they do, and the line of each. A kernel that has races has many of
the same, so each pair of lines counts once. Source: JAX 0.11.2's text, "RACE DETECTED".
"""

import linecache
import re
from typing import NamedTuple

_ACCESS = re.compile(r"(read|write) of .*? from .*?([^\s,]+):(\d+):\d+ \(")
#: What the interpreter's text on a race begins with.
MARK = "RACE DETECTED"


class Race(NamedTuple):
    """Two accesses that nothing orders: "read" or "write", and the line."""

    one: str
    other: str

    def __str__(self) -> str:
        """The race in short: a grade gives no line of an answer."""
        return f"{_in_short(self.one)}, and {_in_short(self.other)}"


def races_of(said: str) -> tuple[Race, ...]:
    """The races that the detector printed, in the order of their lines' texts."""
    lines = [
        f"{kind:5} {linecache.getline(path, int(line)).strip()}"
        for kind, path, line in _ACCESS.findall(said)
    ]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return tuple(sorted({Race(*sorted(pair)) for pair in pairs}))


def _in_short(access: str) -> str:
    """An access by its call, without its arguments."""
    kind, _, line = access.partition(" ")
    calls = re.findall(r"plgpu\.(\w+)\(", line)
    return f"a {kind} by `{calls[-1]}`" if calls else f"an ordinary {kind}"
