"""`climb`: measures a few configurations, then neighbours of the best, then the best in turn.

The model. The first configurations are measured. Then, a few at a time, the neighbours of the best
three so far, or where these have none, what is left of the first, until there is nothing new, or
`limit` configurations were measured, or the time is over. A configuration counts by its median time
if it compiled, ran in time and was right; otherwise its row has the reason. The GPU's clock drifts
over a search, so the best few are measured once more, in turn, and the fastest of these wins.

Not covered: neighbourhoods with several valleys, of which the first configurations must have one
each.
"""

import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from pallascope.tuning.rows import Found, Measurer, Row


class Interrupted(KeyboardInterrupt):
    """A `KeyboardInterrupt` with what had been `found` by then."""

    def __init__(self, found: Found[Any]) -> None:
        super().__init__("the search was interrupted")
        self.found = found


def climb[C: Hashable](
    first: Sequence[C],
    near: Callable[[C], Iterable[C]],
    measurer: Measurer[C],
    *,
    limit: int = 60,
    at_once: int = 8,
    finalists: int = 6,
    log: Callable[[Row[C], float], None] = lambda row, best: None,
    deadline: float = math.inf,
) -> Found[C]:
    """Measures the first configurations, then neighbours of the best three, until none is new.

    Args:
      first: the configurations to begin with, at most half of `limit` if they have neighbours; the
        others come when no neighbour is new.
      near: gives the neighbours of a configuration.
      measurer: measures configurations.
      limit: the most configurations that are measured.
      at_once: how many neighbours are measured before the next ones are picked.
      finalists: how many of the best are measured again, in turn.
      log: called with each row and the best median so far.
      deadline: of `time.monotonic`; after it nothing begins but the last round.

    Raises:
      Interrupted: in place of a `KeyboardInterrupt`.
    """
    rows: dict[C, Row[C]] = {}
    batch, best = list(dict.fromkeys(first))[:limit], math.inf
    if any(True for config in batch for _ in near(config)):
        batch = batch[: max(1, limit // 2)]
    part = None if math.isinf(deadline) else at_once
    try:
        while batch and time.monotonic() < deadline:
            now, batch = batch[:part], batch[part:] if part else []
            for row in measurer.each(now):
                rows[row.config], best = row, min(best, row.median_us)
                log(row, best)
            if batch:
                continue
            around = [config for row in _ranked(rows.values())[:3] for config in near(row.config)]
            new = (config for config in dict.fromkeys([*around, *first]) if config not in rows)
            batch = list(itertools.islice(new, min(at_once, limit - len(rows))))
        finals = measurer.in_turn([row.config for row in _ranked(rows.values())[:finalists]])
    except KeyboardInterrupt:
        raise Interrupted(Found(tuple(rows.values()), ())) from None
    return Found(tuple(rows.values()), tuple(finals))


def _ranked[C: Hashable](rows: Iterable[Row[C]]) -> list[Row[C]]:
    """The rows that count, the fastest first."""
    return sorted((row for row in rows if row.median_us < math.inf), key=lambda row: row.median_us)
