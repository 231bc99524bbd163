"""What the probes of `benchmarks/machine.py` measured, for the chapters that quote one."""

import pathlib
import statistics

from pipelib_book.measured import results


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
