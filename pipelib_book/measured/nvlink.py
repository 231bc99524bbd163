"""The record of NVLink between two GPUs: how long a step of each kernel takes, and the simulated.

The model. `benchmarks.nvlink` measures kernels that repeat a step, each with two numbers of steps.
The difference of the two times, over the difference of the steps, is the time of a **step**:
launches and beginnings drop out. A time is the fastest of the samples.
"""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipelib_book.measured import results

SIGNALS, WAITS, OWN, SIGNAL = "signals", "waits", "own signal", "signal"
TILE, STREAM, RING = "tile", "stream", "ring"
#: What sends no tile in its steps.
WITHOUT_TILES = SIGNALS, WAITS, OWN, SIGNAL
COLUMNS, ITEM_BYTES = 128, 4  # of a tile, in float32
#: How many times as many steps the longer kernel has.
LONGER = 3


class Problem(NamedTuple):
    """A kernel, how many blocks of it each GPU runs, its tiles' rows, and its fewer steps."""

    kernel: str
    blocks: int = 1
    rows: int = 64
    steps: int = 1000

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile."""
        return self.rows * COLUMNS * ITEM_BYTES

    @property
    def sent(self) -> int:
        """Bytes that a GPU sends in a step."""
        return 0 if self.kernel in WITHOUT_TILES else self.blocks * self.tile_bytes

    def step_us(self, times: Mapping[str, Iterable[float]]) -> float | None:
        """Microseconds of a step, of the samples of each number of steps; None if one lacks."""
        both = [times.get(f"{n * self.steps} steps") for n in (1, LONGER)]
        few, many = (min(samples, default=None) if samples else None for samples in both)
        if few is None or many is None:
            return None
        return (many - few) / ((LONGER - 1) * self.steps)

    def __str__(self) -> str:
        sent = f", {self.tile_bytes:,} bytes" if self.sent else ""
        return f"{self.kernel}{sent}, {self.blocks} block{'s' * (self.blocks > 1)}"


def steps_us(groups: Iterable[dict[str, Any]]) -> dict[Problem, float]:
    """Microseconds of a step of each problem that was timed."""
    found = dict[Problem, float]()
    for group in groups:
        problem, kept = Problem(**group["problem"]), group["contenders"]
        times = {name: each.get("burst_microseconds", ()) for name, each in kept.items()}
        if (us := problem.step_us(times)) is not None:
            found[problem] = us
    return found


def steps(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> dict[Problem, float]:
    """The record's, in its order; none where there is no record."""
    records = results.read(f"{results.GPU}/nvlink.json", folders)
    return steps_us(group for record in records for group in record["groups"])


def table(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """A row for each kernel."""
    rows = [
        [
            str(problem),
            f"{us:.2f}",
            f"{problem.sent / us / 1e3:.0f}" if problem.sent else "-",
        ]
        for problem, us in steps(folders).items()
    ]
    return results.table(("kernel", "us a step", "GB/s that a GPU sends"), rows)


def beside(simulated: float, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """The ring's step as simulated, microseconds, beside the measured one."""
    measured = [us for problem, us in steps(folders).items() if problem.kernel == RING]
    if not measured:
        return results.missing("ring")
    (us,) = measured
    row = [f"{simulated:.2f}", f"{us:.2f}", f"{simulated / us - 1:+.0%}"]
    return results.table(("us a step, simulated", "measured", "error"), [row], words=())
