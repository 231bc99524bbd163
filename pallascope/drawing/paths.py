"""`relative_paths`: files named as every reader of a page has them.

The model. A program names source lines by the paths of the machine that traced it, so that editors
and `linecache` find them. On a page these paths lead nowhere. There a file of the folder that holds
pallascope is named from that folder on (`pipelib/ring.py`), a notebook's cell is `cell`, and any
other file has its name alone. A path is known by the `.py` at its end. Not covered: paths with
white space or quotes in them.
"""

import pathlib
import re

_ROOT = pathlib.Path(__file__).parents[2]
# A path, from the root of the file system on; not a part of an address or of another path.
_PATH = re.compile(r"(?<![\w:/.<])/(?:[^\s\"'`(<>/]+/)*([^\s\"'`(<>/]+\.py)\b")


def relative_paths(text: str) -> str:
    """Text in which each file of Python has the name that a reader elsewhere knows it by."""
    return _PATH.sub(_known, text)


def _known(found: re.Match[str]) -> str:
    path = pathlib.Path(found[0])
    if path.parent.name.startswith("ipykernel_"):
        return "cell"
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else path.name
