"""`Cache`: what searches found, in a JSON file, so that the next one does not find it again.

The model. Each result is kept under a key, a digest of all that it depends on: the jaxpr of the
kernel, and the machine of the simulation and the code that simulates; or the GPU, the version of
JAX and of the way of measuring, and what results are compared with. Who changes a kernel gets other
keys, so a cache is never wrong and needs no care; it only grows. The file is written anew after
each result, whole or not at all, so an interruption loses nothing that was found. What failed is
kept too: delete the file to try it again.

Not covered: two searches that write one file at the same time, of which the last wins; a driver of
another version, a GPU that others use.
"""

import enum
import json
import os
import pathlib
from typing import Any, cast

#: The number of the file's format.
FORMAT = 1


class Kind(enum.StrEnum):
    """The kinds of result, each a part of the file."""

    LOOKED = "looked"
    MEASURED = "measured"
    IN_TURN = "in turn"


class Cache:
    """The results of a file, or of this search alone.

    Args:
      path: the file; None for none. If there is none of that name yet, it is made with the first
        result.

    Raises:
      ValueError: the file is no cache, or of another format; it is left as it is.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else pathlib.Path(path)
        self._kept: dict[str, dict[str, Any]] = {kind: {} for kind in Kind}
        if self._path is not None and self._path.exists():
            self._kept |= _read(self._path)

    def get(self, kind: Kind, key: str) -> Any:
        """What is kept, as JSON has it; None if nothing is."""
        return self._kept[kind].get(key)

    def put(self, kind: Kind, key: str, value: Any) -> None:
        """Keeps a value of plain data, and writes the file."""
        self._kept[kind][key] = value
        if self._path is None:
            return
        part = self._path.with_name(f"{self._path.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"format": FORMAT, **self._kept}, indent=1) + "\n", "utf-8")
        part.replace(self._path)


def _read(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    """The parts of a file; ValueError if it is no cache."""
    remedy = "so nothing can be added to it: name another file, or delete this one"
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(
            f"search: cache={str(path)!r} cannot be read ({error.strerror}), {remedy}."
        ) from error
    except ValueError as error:
        raise ValueError(f"search: cache={str(path)!r} is not JSON ({error}), {remedy}.") from error
    parts = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if not all(isinstance(parts.get(kind), dict) for kind in Kind):
        raise ValueError(
            f"search: cache={str(path)!r} lacks the parts {', '.join(Kind)} of a cache, {remedy}."
        )
    if parts.get("format") != FORMAT:
        raise ValueError(
            f"search: cache={str(path)!r} has format {parts.get('format')!r}, and this pallascope"
            f" reads {FORMAT}, {remedy}."
        )
    return {kind: parts[kind] for kind in Kind}
