"""What probes of copies and barriers found: what stores take, who wakes when.

The model. A cell is the median of a probe (`probes`). A record that is not there, or lacks a probe,
gives a sentence in place of a table.
"""

import pathlib

from pallascope.machine import Machine
from pipelib_book.measured import results
from pipelib_book.measured.probes import median_cycles

_STORES = 1024, 8192, 16384, 32768


def stores_table(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """Cycles of a store, until it has read its SMEM and until it has written GMEM, too.

    Example:
      >>> print(copies.stores_table())
      | KiB | until read | until written | difference |
      |--:|--:|--:|--:|
      | 1 | 193 | 194 | 1 |
      ...
    """
    name = "store {} bytes, {}".format
    rows = {
        size // 1024: [median_cycles(name(size, what), folders) for what in ("read", "written")]
        for size in _STORES
    }
    return _table(("KiB", "until read", "until written"), rows)


def costs_table(machine: Machine, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """What each means of synchronisation costs a thread, in cycles.

    All but one are the machine's. The waiter that has only just begun to wait is a probe's: half a
    round trip of two threads that answer each other at once, less the arrival.

    Example:
      >>> print(copies.costs_table(pallascope.H200))
      | NVIDIA H200 | cycles |
      |---|--:|
      | `barrier_arrive` | 7 |
      ...
    """
    trip = median_cycles("round trip", folders)
    costs = {
        "`barrier_arrive`": machine.arrive_cycles,
        "`barrier_wait`, phase complete before": machine.wait_cycles,
        "a phase's end, until a waiter goes on": machine.wake_cycles,
        "the same, if it has only just begun to wait": trip and trip / 2 - machine.arrive_cycles,
        "`commit_smem`": machine.fence_cycles,
        "a shared scope's meeting": machine.meet_cycles,
        "starting a load": machine.load_issue_cycles,
        "starting a store": machine.store_issue_cycles,
    }
    rows = ((what, f"{cycles:.0f}") for what, cycles in costs.items() if cycles is not None)
    return results.table((machine.name, "cycles"), rows)


def _table(head: tuple[str, str, str], rows: dict[int, list[float | None]]) -> str:
    """A row for each two cycles, and how far they are apart as printed."""
    lines = [
        [str(first), str(round(one)), str(round(other)), str(abs(round(one) - round(other)))]
        for first, (one, other) in rows.items()
        if one is not None and other is not None
    ]
    if not lines:
        return results.missing("probe of copies", "The record of the machine")
    return results.table((*head, "difference"), lines, words=())
