"""What the probes and kernels of `benchmarks/machine.py` took, for the chapters that quote them.

The model. `machine.json` has probes: kernels that do one thing in a long loop, with samples of the
cycles of a turn each, of which the median counts.
"""

import pathlib
import statistics
from collections.abc import Mapping
from typing import Any

from pipelib_book.measured import results

_KEYS = "block_cycles", "clock_hz", "microseconds"


def record(
    name: str = "machine.json", folders: tuple[pathlib.Path, ...] = results.FOLDERS
) -> dict[str, Any]:
    """A record of the GPU; empty if there is none."""
    found = results.read(f"{results.GPU}/{name}", folders)
    return found[0] if found else {}


def median_cycles(name: str, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> float | None:
    """The cycles of one turn of a probe, the median of its samples; None if no record has it."""
    probe = record(folders=folders).get("probes", {}).get(name)
    return statistics.median(probe["cycles"]) if probe else None


def cycles(name: str, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> float:
    """The cycles of one repetition of a probe: the median of the record's launches.

    Raises:
      FileNotFoundError: the package came without the record.
      ValueError: the record has no such probe.

    Example:
      >>> probes.cycles("store 1024 bytes, read") > 100
      True
    """
    if not record(folders=folders):
        raise FileNotFoundError(
            f"The record of the probes is in none of {', '.join(map(str, folders))}, so there is"
            " nothing to quote: use a checkout of the repository, or a wheel built from one."
        )
    if (found := median_cycles(name, folders)) is None:
        raise ValueError(
            f"The record of the probes has no {name!r}, so there are no cycles of it: see the page"
            " of all measurements for their names."
        )
    return found


def clocks_table(
    names: Mapping[str, str], folders: tuple[pathlib.Path, ...] = results.FOLDERS
) -> str:
    """Kernels of the same record, by what to call them: cycles of a block, clock, time.

    The last row is the first kernel's numbers over the last one's.

    Example:
      >>> names = {"waits": "matmul 128x128x64, 4 slots, delay 0"}
      >>> print(probes.clocks_table(names | {"in flight": "matmul 128x128x64, 4 slots, delay 1"}))
      | kernel | cycles of a block | clock, GHz | µs |
      |---|--:|--:|--:|
      | waits | ...
    """
    if not (found := record(folders=folders)):
        return results.missing("kernel", "A record of the machine")
    numbers = [
        [statistics.median(found["kernels"][name][key]) for key in _KEYS] for name in names.values()
    ]
    rows = [
        [said, f"{cycles:,.0f}", f"{clock / 1e9:.2f}", f"{us:.0f}"]
        for said, (cycles, clock, us) in zip(names, numbers, strict=True)
    ]
    ratios = [f"{one / other:.2f}" for one, other in zip(numbers[0], numbers[-1], strict=True)]
    head = "kernel", "cycles of a block", "clock, GHz", "µs"
    return results.table(head, [*rows, ["first over last", *ratios]])
