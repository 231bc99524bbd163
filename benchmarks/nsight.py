"""`profile`: one launch of a kernel, by Nsight Compute: its counters, and where its warps stood.

The model. `ncu` runs a command, lets a number of launches of kernels whose names match go by, and
runs the next one several times, each time with other counters. At every so many cycles each
multiprocessor notes at which instruction one of its warps stands, and why it does not go on: a
*sample*. Clocks are left alone, so a launch runs as fast as the GPU's power allows.

Not covered: kernels of several GPUs; that a launch under `ncu` is slower than by itself.
"""

import csv
import pathlib
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_STALL, _EXECUTED, _SAMPLES = "stall_", "Instructions Executed", "# Samples"


class Line(NamedTuple):
    """An instruction of the machine code.

    Attributes:
      opcode: its name with its modifiers, as "HGMMA.64x128x16.F32.BF16", without operands.
      executed: how often warps executed it, all together.
      samples: how many samples found a warp there.
      stalls: those whose reason is known, by the reason why the warp stood.
    """

    opcode: str
    executed: int
    samples: int
    stalls: dict[str, int]


class Profile(NamedTuple):
    """What `ncu` found of a launch.

    Attributes:
      kernel: its name.
      counters: by the names of `ncu`, in seconds, bytes, cycles, or per cent.
      lines: its instructions, in the order of their addresses.
    """

    kernel: str
    counters: dict[str, float]
    lines: tuple[Line, ...]


def profile(command: Sequence[str], kernels: str, skip: int, timeout_s: float) -> Profile:
    """Profiles a launch of a command's.

    Args:
      command: the program and its arguments.
      kernels: a regular expression for the names of kernels that count.
      skip: how many launches of these go by first.
      timeout_s: how long it may take.

    Raises:
      RuntimeError: `ncu` is not there, or it profiled nothing; with the last lines that it printed.
      subprocess.TimeoutExpired: it took longer.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.ncu-rep"
        options = ["--clock-control", "none", "--set", "full", "--target-processes", "all"]
        options += ["-k", f"regex:{kernels}", "--launch-skip", str(skip), "--launch-count", "1"]
        printed = _ncu([*options, "-o", str(report.with_suffix("")), *command], timeout_s)
        if not report.exists():
            last = " / ".join(printed.splitlines()[-3:])
            raise RuntimeError(f"ncu profiled no kernel like {kernels!r}; it printed: {last}")
        pages = (
            _ncu(["--import", str(report), "--page", page, "--csv"], timeout_s).splitlines()
            for page in ("raw", "source")
        )
        return read(*pages)


def read(raw: Iterable[str], source: Iterable[str]) -> Profile:
    """Reads the two pages that `ncu --csv` prints of a report with one launch.

    Args:
      raw: the lines of the page "raw": names, units, values.
      source: those of the page "source": the kernel's name, the heads of columns, instructions.
    """
    names, units, values = list(csv.reader(raw))[:3]
    counters = {
        name: number * _scale(unit)
        for name, unit, value in zip(names, units, values, strict=True)
        if (number := _number(value)) is not None
    }
    _, head, *rows = csv.reader(source)
    columns = {name: i for i, name in enumerate(head)}
    stalls = [name for name in head if name.startswith(_STALL) and "(" not in name]
    lines = []
    for row in rows:
        opcode, *_ = (w for w in row[columns["Source"]].split() if not w.startswith("@"))
        counts = {name.removeprefix(_STALL): int(row[columns[name]] or 0) for name in stalls}
        found = {name: count for name, count in counts.items() if count}
        executed, samples = (int(row[columns[name]] or 0) for name in (_EXECUTED, _SAMPLES))
        lines.append(Line(opcode, executed, samples, found))
    return Profile(values[names.index("Kernel Name")], counters, tuple(lines))


def _ncu(arguments: Sequence[str], timeout_s: float) -> str:
    """What `ncu` prints."""
    try:
        done = subprocess.run(
            ["ncu", *arguments],
            timeout=timeout_s,
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except FileNotFoundError as error:
        raise RuntimeError("There is no `ncu`, NVIDIA's Nsight Compute, on the PATH.") from error
    return done.stdout


def _number(text: str) -> float | None:
    """A number with commas; None of what is none, as "n/a"."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _scale(unit: str) -> float:
    """What a unit is of seconds, bytes or hertz; 1 of all others."""
    for base in ("byte/s", "byte", "hz", "s"):
        prefix = unit.removesuffix(base)
        if unit.endswith(base) and prefix in _PREFIXES:
            return _PREFIXES[prefix]
    return 1.0
