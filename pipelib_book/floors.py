"""The floors under a kernel's time: what a machine's units do in a cycle, and how long work takes.

The model. A `Work` is the bytes that a computation moves between GMEM and the GPU, and its
operations by the unit that does them. Each unit needs a time for its part, and the longest of these
times is the *floor*: no schedule is faster. A multiplication and an addition that one instruction
does are `fused`; they take the time of one operation and count as two. All rates are those of a
`Machine`, at its own clock. Not covered: bytes that move more than once, latency, a clock that
falls under load (`Machine.loaded`).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pallascope.machine import Machine
from pipelib_book.measured import results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Points = Mapping[str, tuple[Sequence[float], Sequence[float]]]


class Work(NamedTuple):
    """What a computation moves and computes, in all.

    Attributes:
      moved: bytes from and to GMEM.
      adds: operations on single numbers, one an instruction.
      fused: multiplications with an addition, two operations an instruction.
      exponentials: and logarithms, sines, square roots.
      products: operations of the tensor core, on 16-bit numbers.

    Example:
      >>> floors.Work(moved=8, adds=1).intensity
      0.125
    """

    moved: float
    adds: float = 0
    fused: float = 0
    exponentials: float = 0
    products: float = 0

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return (self.adds + 2 * self.fused + self.exponentials + self.products) / self.moved


def bandwidths(machine: Machine) -> dict[str, float]:
    """Bytes that each level of memory gives one multiprocessor in a cycle.

    GMEM and the L2 are shared out to all multiprocessors.

    Example:
      >>> [*floors.bandwidths(pallascope.H200)]
      ['GMEM', 'L2', 'SMEM']
    """
    share = 1 / machine.sms / machine.clock_hz
    return {
        "GMEM": machine.hbm_bytes_per_second * share,
        "L2": machine.l2_bytes_per_second * share,
        "SMEM": machine.smem_bytes_per_cycle,
    }


def rates(machine: Machine) -> dict[str, float]:
    """Operations that one multiprocessor does in a cycle, by kind.

    Example:
      >>> round(floors.rates(pallascope.H200)["tensor core, 16 bits"] / 4096, 2)
      1.0
    """
    return {
        "tensor core, 16 bits": machine.wgmma_rate("float16"),
        "multiply and add, 32 bits": 2 * machine.alu_ops_per_cycle,
        "exponentials and the like": machine.transcendental_ops_per_cycle,
    }


def times_us(work: Work, machine: Machine) -> dict[str, float]:
    """Microseconds that each unit of the whole GPU needs for its part of the work.

    Example:
      >>> times = floors.times_us(floors.Work(moved=8e9, adds=1e9), pallascope.H200)
      >>> max(times, key=times.get)
      'to move'
    """
    cycles = machine.sms * machine.clock_hz / 1e6
    return {
        "to move": work.moved / machine.hbm_bytes_per_second * 1e6,
        "single numbers": (work.adds + work.fused) / machine.alu_ops_per_cycle / cycles,
        "exponentials": work.exponentials / machine.transcendental_ops_per_cycle / cycles,
        "tensor core": work.products / machine.wgmma_rate("float16") / cycles,
    }


def floor_us(work: Work, machine: Machine) -> float:
    """The longest of `times_us`: the floor.

    Example:
      >>> floors.floor_us(floors.Work(moved=4.303e6), pallascope.H200)
      1.0
    """
    return max(times_us(work, machine).values())


# ---- Tables and a figure -------------------------------------------------------------------------


def rates_table(machine: Machine) -> str:
    """A row for each level of memory and each kind of operation: how much in a cycle."""
    rows = [[f"bytes from {name}", f"{width:.1f}"] for name, width in bandwidths(machine).items()]
    rows += [[f"operations: {name}", f"{rate:,.0f}"] for name, rate in rates(machine).items()]
    return results.table(("one multiprocessor, in a cycle", "how many"), rows)


def intensity_table(machine: Machine) -> str:
    """A row for each kind of operation: how many there are for each byte, by level of memory."""
    widths = bandwidths(machine)
    rows = [
        [name, *(f"{rate / width:,.1f}" for width in widths.values())]
        for name, rate in rates(machine).items()
    ]
    return results.table(("operations for each byte from", *widths), rows)


def work_table(works: Mapping[str, Work], machine: Machine) -> str:
    """A row for each computation: its intensity, and the time of each unit; the floor is bold."""
    rows, head = [], [*times_us(Work(1), machine)]
    for name, work in works.items():
        times = times_us(work, machine)
        floor = max(times.values())
        cells = (f"**{us:,.0f}**" if us == floor else f"{us:,.0f}" for us in times.values())
        rows.append([name, f"{work.moved / 1e6:,.0f}", f"{work.intensity:,.2f}", *cells])
    units = [f"{head[0]}, µs", *head[1:]]
    return results.table(("computation", "MB", "operations for each byte", *units), rows)


def tiles_table(tiles: Sequence[tuple[int, int]], machine: Machine) -> str:
    """A row for each tile of a product: its intensities, and the rate that its loads allow."""
    rows = [
        [
            f"{tm} x {tn}",
            f"{tm * tn / (tm + tn):.1f}",
            f"{64 * tn / (64 + tn):.1f}",
            f"{loads_allow(tm, tn, machine) / 1e12:,.0f}",
        ]
        for tm, tn in tiles
    ]
    head = "operations for a byte loaded", "for a byte of SMEM", "the loads allow, TFLOP/s"
    return results.table(("tile", *head), rows)


def loads_allow(tm: int, tn: int, machine: Machine) -> float:
    """Operations a second of a product in tiles of tm x tn, whose loads the L2 serves.

    Example:
      >>> small = floors.loads_allow(64, 64, pallascope.H200)
      >>> floors.loads_allow(128, 128, pallascope.H200) / small
      2.0
    """
    return tm * tn / (tm + tn) * machine.l2_shared_bytes_per_second


def roofline(points: _Points, machine: Machine) -> "Figure":
    """The roofs of a machine, and points below them: intensities and operations a second.

    The tensor core has two levels, at the machine's clock and at that of all tensor cores busy.
    """
    from matplotlib import pyplot as plt

    across = np.geomspace(0.05, 6000, 200)
    slope = across * machine.hbm_bytes_per_second / 1e12
    figure, axes = plt.subplots(figsize=(6, 3.6))
    loaded = machine.loaded(1.0)
    roofs = [
        ("tensor core", peak(machine), "-"),
        ("tensor core, clock under load", peak(loaded), "--"),
        ("multiply and add", rates(machine)["multiply and add, 32 bits"] * _hertz(machine), ":"),
    ]
    for name, level, style in roofs:
        axes.plot(across, np.minimum(slope, level / 1e12), style, color="grey", label=name)
    for (name, (intensities, achieved)), marker in zip(points.items(), "os"):
        axes.plot(intensities, np.array(achieved) / 1e12, marker, label=name)
    axes.set(xlabel="operations for each byte of GMEM", ylabel="TFLOP/s")
    axes.set(xscale="log", yscale="log", ylim=(0.05, 3000))
    axes.legend(loc="upper left", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def peak(machine: Machine) -> float:
    """Operations a second of all tensor cores, on 16-bit numbers, at the machine's clock.

    Example:
      >>> floors.peak(pallascope.H200) > floors.peak(pallascope.H200.loaded(1.0))
      True
    """
    return machine.wgmma_rate("float16") * _hertz(machine)


def _hertz(machine: Machine) -> float:
    """Cycles a second of all multiprocessors together."""
    return machine.sms * machine.clock_hz
