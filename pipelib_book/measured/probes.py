"""What the probes and kernels of `benchmarks/machine.py` took, for the chapters that quote them."""

import pathlib
import statistics
from collections.abc import Mapping

from pipelib_book.measured import results

_KEYS = "block_cycles", "clock_hz", "microseconds"


def cycles(name: str, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> float:
    """The cycles of one repetition of a probe: the median of the record's launches.

    Raises:
      FileNotFoundError: the package came without the record.
      ValueError: the record has no such probe.

    Example:
      >>> probes.cycles("store 1024 bytes, read") > 100
      True
    """
    found = results.read(f"{results.GPU}/machine.json", folders)
    if not found:
        raise FileNotFoundError(
            f"The record of the probes is in none of {', '.join(map(str, folders))}, so there is"
            " nothing to quote: use a checkout of the repository, or a wheel built from one."
        )
    if name not in found[0]["probes"]:
        raise ValueError(
            f"The record of the probes has no {name!r}, so there are no cycles of it: see the page"
            " of all measurements for their names."
        )
    return statistics.median(found[0]["probes"][name]["cycles"])


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
    found = results.read(f"{results.GPU}/machine.json", folders)
    if not found:
        return results.missing("kernel", "A record of the machine")
    numbers = [
        [statistics.median(found[0]["kernels"][name][key]) for key in _KEYS]
        for name in names.values()
    ]
    rows = [
        [said, f"{cycles:,.0f}", f"{clock / 1e9:.2f}", f"{us:.0f}"]
        for said, (cycles, clock, us) in zip(names, numbers, strict=True)
    ]
    ratios = [f"{one / other:.2f}" for one, other in zip(numbers[0], numbers[-1], strict=True)]
    head = "kernel", "cycles of a block", "clock, GHz", "µs"
    return results.table(head, [*rows, ["first over last", *ratios]])
