"""What the probes of `benchmarks/machine.py` and `benchmarks/loads.py` saw, for chapter 2.

The model. A probe is a kernel that does one thing; its `cycles` are those of one turn of its loop,
a sample for each launch, of which the median counts. A record that is not there, or lacks a probe,
gives a sentence in place of a table.
"""

import pathlib
from statistics import median

from pipelib_book.measured import probes, results

#: NVIDIA's data sheet of the H200 SXM: dense products of 16 bits, operations a second.
DATA_SHEET_FLOPS = 989.4e12
#: Operations of a multiprocessor's tensor core in a cycle, on 16-bit numbers; multiprocessors.
FLOPS_A_CYCLE, SMS = 4096, 132

_CLOCKS = {
    "loads from the L2, all multiprocessors": (
        "load ring of 8 x 16384 bytes, 132 blocks, L2, on 132 SMs"
    ),
    "products, one multiprocessor": "products, 1 blocks, 2 threads, pause of 0, normal",
    "products of zeros, all": "products, 132 blocks, 2 threads, pause of 0, zeros",
    "products of random numbers, all": "products, 132 blocks, 2 threads, pause of 0, normal",
}
_SHARED = "shared ring of 8 x 16384 bytes, 132 blocks, L2, each tile by {}"
_ALONE = "load ring of 8 x 16384 bytes, 132 blocks, L2"
_SHARERS = "2 neighbours", "2 blocks apart", "4 neighbours", "4 blocks apart"


def clock_table(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """What runs for seconds, the clock and the power then, and what the tensor cores could do."""
    found = probes.record("loads.json", folders).get("loads", {})
    rows = [
        [what, f"{clock / 1e6:,.0f}", f"{found[name]['watts']:.0f}", _peak(clock)]
        for what, name in _CLOCKS.items()
        if name in found
        for clock in [median(found[name]["clock_hz"])]
    ]
    if not rows:
        return results.missing("clocks")
    clock = DATA_SHEET_FLOPS / FLOPS_A_CYCLE / SMS
    rows.insert(1, ["(what the data sheet reckons with)", f"{clock / 1e6:,.0f}", "-", _peak(clock)])
    head = "what runs, for seconds", "MHz", "W", "tensor cores at that clock, TFLOP/s"
    return results.table(head, rows)


def _peak(clock_hz: float) -> str:
    return f"{FLOPS_A_CYCLE * SMS * clock_hz / 1e12:,.0f}"


def latency_table(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """A row for each size of a copy: cycles from its start until the thread that waits goes on."""
    rows = []
    for size in (1024, 8192, 16384, 32768):
        names = (f"load {size} bytes, {level}" for level in ("L2", "HBM"))
        cycles = [probes.median_cycles(name, folders) for name in names]
        if None not in cycles:
            rows.append([f"{size // 1024} KiB", *(f"{each:,.0f}" for each in cycles)])
    head = "a copy of", "cycles from the L2", "cycles from HBM"
    return results.table(head, rows) if rows else results.missing("latencies")


def sharers_table(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """A row for each way to share tiles of 16 KiB: cycles for a tile, all multiprocessors busy."""
    names = {"nobody else": _ALONE} | {who: _SHARED.format(who) for who in _SHARERS}
    found = {who: probes.median_cycles(name, folders) for who, name in names.items()}
    rows = [[who, f"{cycles:.0f}"] for who, cycles in found.items() if cycles is not None]
    head = "each tile of 16 KiB is also loaded by", "cycles a tile"
    return results.table(head, rows) if rows else results.missing("shared loads")


def where(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """A sentence on when and on what the machine's numbers were measured."""
    found = probes.record(folders=folders).get("provenance")
    if not found:
        return results.missing("numbers of the machine")
    return f"Measured on an {found['gpu']}, {found['utc'][:10]}, by `benchmarks/machine.py`."
