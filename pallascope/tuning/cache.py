"""`Cache`: what searches found, in a SQLite file, so that the next one does not find it again.

The model. Each result is kept under a key, a digest of all that it depends on: the jaxpr of the
kernel, and the machine of the simulation and the code that simulates; or the GPU, the version of
JAX and of the way of measuring, and what results are compared with. Who changes a kernel gets other
keys, so a cache is never wrong and needs no care; it only grows. What failed is kept too: delete
the file to try it again.

A result is one row, and one transaction puts it there: searches in several processes share one
file and lose nothing, and a process that is ended half way leaves all that it had put. SQLite locks
the file as long as a row takes to write, and the others wait for it.

`FromCache` is a measurer that asks another one only for what a cache lacks. What was measured of a
kernel is kept under the kernel's key. The last round is kept for the set of kernels that took turns
in it, since its times are to be compared with each other only.

Not covered: a driver of another version, a GPU that others use; folders of a network that lock no
files.
"""

import contextlib
import enum
import json
import os
import pathlib
import sqlite3
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import Any

from pallascope.bench.jaxprs import digest_of
from pallascope.program import path_of
from pallascope.tuning.results import Measurer, Row

#: The number of the file's format, SQLite's `user_version`. What was JSON had 1.
FORMAT = 2
#: SQLite's `application_id`: "pipe" in ASCII.
_OURS = 0x70697065
#: The first bytes of SQLite's files.
_HEAD = b"SQLite format 3\0"
#: Seconds to wait for another process that writes.
_WAIT_S = 60.0
_TABLE = "CREATE TABLE results (kind TEXT, key TEXT, value TEXT, PRIMARY KEY (kind, key))"
_REMEDY = "so nothing can be added to it: name another file, or delete this one"


class Kind(enum.StrEnum):
    """The kinds of result."""

    LOOKED = "looked"
    MEASURED = "measured"
    IN_TURN = "in turn"


class Cache:
    """The results of a file, or of this search alone; a context manager that closes the file.

    Args:
      path: the file; None for none. If there is none of that name yet, it is made.

    Raises:
      ValueError: the file is no cache, or of another format, or cannot be written; it is left as it
        is.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else path_of("search: cache=", path)
        with self._explained():
            if self._path is not None:
                self._check_file(self._path)
            file = self._path or ":memory:"
            self._rows = sqlite3.connect(file, timeout=_WAIT_S, isolation_level=None)
            try:
                self._begin()
            except BaseException:
                self._rows.close()
                raise

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def get(self, kind: Kind, key: str) -> Any:
        """What is kept, as JSON has it; None if nothing is."""
        query = "SELECT value FROM results WHERE kind = ? AND key = ?"
        with self._explained():
            row = self._rows.execute(query, (kind, key)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, kind: Kind, key: str, value: object) -> None:
        """Keeps a value of plain data, in place of an earlier one."""
        command = "INSERT OR REPLACE INTO results VALUES (?, ?, ?)"
        with self._explained():
            self._rows.execute(command, (kind, key, json.dumps(value)))

    def _check_file(self, path: pathlib.Path) -> None:
        """Raises ValueError if a file is none of SQLite's, which may write over small ones."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        with path.open("rb") as file:
            head = file.read(len(_HEAD))
        if head[:1] == b"{":
            raise self._refusal("is JSON, as earlier versions kept it, and not SQLite")
        if head not in (b"", _HEAD):
            raise self._refusal("is not a SQLite database")

    def _begin(self) -> None:
        """Makes the table in a new file; looks whether another one is a cache, and can be written.

        In one transaction, since another process may be doing the same.
        """
        self._rows.execute("BEGIN IMMEDIATE")
        (tables,) = self._rows.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            self._rows.execute(f"PRAGMA application_id = {_OURS}")
            self._rows.execute(f"PRAGMA user_version = {FORMAT}")
            self._rows.execute(_TABLE)
        (owner,) = self._rows.execute("PRAGMA application_id").fetchone()
        (found,) = self._rows.execute("PRAGMA user_version").fetchone()
        if owner != _OURS:
            raise self._refusal("is a database of another program's")
        if found != FORMAT:
            raise self._refusal(f"has format {found}, and this pallascope reads {FORMAT}")
        self._rows.execute("COMMIT")
        (state,) = self._rows.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise self._refusal(f"is damaged ({state})")

    @contextlib.contextmanager
    def _explained(self) -> Generator[None]:
        """A context in which errors of the file say which file it is, and what to do."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._refusal(f"cannot be read or written ({error})") from error
        except OSError as error:
            raise self._refusal(f"cannot be read or written ({error.strerror})") from error

    def _refusal(self, fact: str) -> ValueError:
        return ValueError(f"search: cache={str(self._path)!r} {fact}, {_REMEDY}.")


class FromCache[C: Hashable]:
    """Measures configurations, each kernel once.

    Args:
      measurer: measures what is not kept.
      cache: keeps it.
      key_of: the key of a configuration's kernel; empty for one that cannot be kept.
    """

    def __init__(self, measurer: Measurer[C], cache: Cache, key_of: Callable[[C], str]) -> None:
        self._measurer, self._cache, self._key_of = measurer, cache, key_of

    def each(self, configs: Sequence[C]) -> Iterator[Row[C]]:
        """Rows: first those that are kept."""
        new: list[C] = []
        for config in configs:
            key = self._key_of(config)
            kept = self._cache.get(Kind.MEASURED, key) if key else None
            if kept is None:
                new.append(config)
            else:
                yield _row(config, kept)
        for row in self._measurer.each(new):
            if key := self._key_of(row.config):
                self._cache.put(Kind.MEASURED, key, _plain(row))
            yield row

    def in_turn(self, configs: Sequence[C]) -> list[Row[C]]:
        """Rows of samples that were taken in turn."""
        keys = {config: self._key_of(config) for config in configs}
        together = digest_of(sorted(keys.values()))
        kept = self._cache.get(Kind.IN_TURN, together)
        if kept is None:
            rows = self._measurer.in_turn(configs)
            kept = {keys[row.config]: _plain(row) for row in rows}
            self._cache.put(Kind.IN_TURN, together, kept)
        return [_row(config, kept[key]) for config, key in keys.items()]


def _plain[C: Hashable](row: Row[C]) -> list[object]:
    """A row without its configuration, as JSON has it."""
    return [list(row.us), row.error, row.reason]


def _row[C: Hashable](config: C, kept: Sequence[Any]) -> Row[C]:
    us, error, reason = kept
    return Row(config, tuple(us), error, reason)
