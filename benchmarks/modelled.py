"""What the model says of a probe beside what was measured: a table of the probes of `later`.

    python -m benchmarks.machine probed RECORD [WORD...]

RECORD is that of `benchmarks.machine`; the words choose the probes whose names contain one of them.
A probe that the record lacks has the model's figure alone.

The model. `stamps` runs a probe's kernel in the simulator and has its threads read the simulated
clock wherever the kernel reads the clock. So `clocked.slopes` makes the same figures of both, and a
figure is a probe's inner part, if it has one, else a step of its second run.
"""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

import numpy as np

import pallascope
from benchmarks import clocked
from pallascope.machine import H200, Machine
from pallascope.program import Kind, Op
from pallascope.simulating.run import Run
from pallascope.simulating.threads import Thread
from pallascope.simulating.traffic import best_l2_hits

#: The name of the device code that reads a register (`clocked._register`).
_READS = "value"


def stamps(probe: clocked.Probe, machine: Machine = H200) -> np.ndarray:
    """A probe's stamps (block, thread, stamp) of one block, on the simulated clock.

    L2 has all that is loaded, unless the probe is cold: then as much of it as it can.
    """
    program = pallascope.trace(clocked.kernel(probe), *clocked.inputs(probe))
    hits = best_l2_hits(program) if probe.cold else 1.0
    read: defaultdict[tuple[int, bool], list[float]] = defaultdict(list)

    def clock(thread: Thread, op: Op, now: float) -> float:
        if op.function == _READS:
            read[thread.index, bool(op.step)].append(now)
        return now

    run = Run(program, machine, 1, hits, records=False)
    run.operations.handlers[Kind.OPAQUE] = clock
    run.cycles()
    threads = range(len(program.threads))
    return np.array([[_stamps(read[i, False], read[i, True], machine) for i in threads]], np.uint32)


def _stamps(around: list[float], within: list[float], machine: Machine) -> list[float]:
    """A thread's stamps, from the times at which it read a register around its steps and within."""
    first, clock0, clock1, clock2, last, _ = around
    pairs = np.array(within).reshape(-1, 2)
    pairs = pairs[pairs[:, 0] >= clock1]
    nanoseconds = 1e9 / machine.clock_hz
    inner = float((pairs[:, 1] - pairs[:, 0]).sum())
    return [clock0, clock1, clock2, inner, first * nanoseconds, last * nanoseconds, 0.0]


def simulated(probe: clocked.Probe, machine: Machine = H200) -> float:
    """The probe's figure as the model has it, in cycles."""
    found = clocked.slopes(clocked.shown(probe, stamps(probe, machine)), probe.repeats)
    return found[_key(found["inner"])]


def measured(probe: clocked.Probe, record: dict[str, Any]) -> float | None:
    """The probe's figure in a record, in cycles; None if the record lacks it."""
    found = record["probes"].get(probe.name)
    if found is None:
        return None
    key = _key(median(found["inner"]))
    read = median(record["probes"]["clock"]["inner"]) if key == "inner" else 0.0
    return median(found[key]) - read


def _key(inner: float) -> str:
    return "inner" if inner else "second_run"


def table(record: dict[str, Any], chosen: Iterable[clocked.Probe], machine: Machine = H200) -> str:
    """A line for each probe: cycles, and how much of its work is done in a measured cycle."""
    lines = ["| probe | simulated | measured | ratio | in a cycle |", "|---|--:|--:|--:|---|"]
    for probe in chosen:
        model, found = simulated(probe, machine), measured(probe, record)
        told = "not yet | | |"
        if found is not None:
            rates = (f"{amount / found:,.4g} {unit}" for unit, amount in probe.work.items())
            told = f"{found:,.1f} | {model / found:.2f} | {', '.join(rates)} |"
        lines.append(f"| {probe.name} | {model:,.1f} | {told}")
    return "\n".join(lines)
