"""`Kept`: a measurer that asks another one only for what a cache does not have.

The model. What was measured of a kernel is kept under the kernel's key. The last round is kept for
the set of kernels that took turns in it, since its times are to be compared with each other only.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pallascope.bench.jaxprs import digest_of
from pallascope.tuning.cache import Cache, Kind
from pallascope.tuning.rows import Measurer, Row


class Kept[C]:
    """Measures configurations, each kernel once.

    Args:
      measurer: measures what is not kept.
      cache: keeps it.
      key_of: the key of a configuration's kernel.
    """

    def __init__(self, measurer: Measurer[C], cache: Cache, key_of: Callable[[C], str]) -> None:
        self._measurer, self._cache, self._key_of = measurer, cache, key_of

    def each(self, configs: Sequence[C]) -> Iterator[Row[C]]:
        """Rows: first those that are kept."""
        new: list[C] = []
        for config in configs:
            kept = self._cache.get(Kind.MEASURED, self._key_of(config))
            if kept is None:
                new.append(config)
            else:
                yield _row(config, kept)
        for row in self._measurer.each(new):
            self._cache.put(Kind.MEASURED, self._key_of(row.config), _plain(row))
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


def _plain(row: Row[Any]) -> list[Any]:
    """A row without its configuration, as JSON has it."""
    return [list(row.us), row.error, row.reason]


def _row[C](config: C, kept: Sequence[Any]) -> Row[C]:
    us, error, reason = kept
    return Row(config, tuple(us), error, reason)
