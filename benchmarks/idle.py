"""The GPU's clock in the first milliseconds of a load that comes after idleness.

    python -m benchmarks.idle    on the GPU: writes the record

The model. Nothing runs for two seconds. Then a kernel of a tenth of a millisecond is launched again
and again, as fast as the GPU takes it. The stamps of each launch say when it ran and what the clock
was meanwhile. One load is products on all SMs, the other copies from HBM. The record has, for each
round, launches that lie ever further apart: the time since the first, and the clock.

The prediction. The package's machine has one clock for each use of the tensor cores, from the first
cycle on (`Machine.loaded`): 1.55 GHz for products, 1.98 GHz for copies. If the power limit needs
time to act, products begin at a higher clock and come down to 1.55 GHz within 1, 10 or 100 ms. If
idleness lowers the clock, copies begin below 1.98 GHz.
"""

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import clocked, probes, suite
from benchmarks import loads as steady
from benchmarks.loads import Load
from benchmarks.turns import OneByOne, suite_one_by_one
from pallascope.machine import H200

IDLE_S, ROUNDS, LAUNCHES = 2.0, 2, 2000
#: Launches of a round that the record has.
KEPT = 100
#: Where the windows of the table end, in milliseconds since the first launch.
ENDS_MS = (1.0, 10.0, 100.0, math.inf)


def loads() -> list[tuple[Load, float]]:
    """Products and copies, in launches of a tenth of a millisecond; their use of tensor cores."""
    products = steady.product(clocked.SMS, 2, 0)._replace(repeats=48)
    ring = "load ring of 8 x 16384 bytes, 132 blocks, HBM"
    (copies,) = (probe for probe in probes.probes() if probe.name == ring)
    return [
        (Load(f"{products.name}, normal, after idleness", products), 1.0),
        (Load(f"{ring}, after idleness", copies._replace(repeats=64)), 0.0),
    ]


def series(stamps: list[np.ndarray], repeats: int) -> tuple[np.ndarray, np.ndarray]:
    """The milliseconds from the first launch's start to each launch's start; each one's clock, GHz.

    The timer's stamp has 32 bits, which last for four seconds.
    """
    began = clocked.STAMPS.index("ns0")
    starts = np.array([each[..., began].astype(np.uint32).reshape(-1)[0] for each in stamps])
    clocks = [clocked.slopes(each, repeats)["clock_hz"] * 1e-9 for each in stamps]
    return (starts - starts[0]).astype(np.uint32) * 1e-6, np.array(clocks)


def spread(count: int, kept: int = KEPT) -> np.ndarray:
    """Numbers of launches, ever further apart, the first and the last among them."""
    return np.unique(np.geomspace(1, count, kept).round().astype(int)) - 1


def measured(
    load: Load, use: float, prepared: tuple[Callable[..., Any], list[Any]]
) -> dict[str, Any]:
    """The rounds of a load; `use` is of the tensor cores."""
    call, args = prepared
    jax.block_until_ready(call(*args))
    rounds = [_round(call, args, load.probe.repeats) for _ in range(ROUNDS)]
    return dict(work=dict(load.probe.work), blocks=load.probe.blocks, use=use, rounds=rounds)


def _round(call: Callable[..., Any], args: list[Any], repeats: int) -> dict[str, list[float]]:
    """One round: idleness, then all launches."""
    time.sleep(IDLE_S)
    results = [call(*args) for _ in range(LAUNCHES)]
    ms, clocks = series([clocked.stamps_of(result) for result in results], repeats)
    kept = spread(LAUNCHES)
    return dict(ms=ms[kept].round(4).tolist(), ghz=clocks[kept].round(4).tolist())


def table(found: dict[str, Any]) -> str:
    """The mean clock of each load in each window, and the model's, in GHz."""
    windows = [*itertools.pairwise((0.0, *ENDS_MS))]
    head = [f"{a:g} to {b:g} ms" if b < math.inf else f"from {a:g} ms" for a, b in windows]
    lines = [f"| load | {' | '.join(head)} | the model |", "|---|" + "--:|" * (len(head) + 1)]
    for name, load in found.items():
        ms, ghz = (np.concatenate([each[key] for each in load["rounds"]]) for key in ("ms", "ghz"))
        means = [_mean(ghz[(ms >= start) & (ms < end)]) for start, end in windows]
        model = H200.loaded(load["use"]).clock_hz * 1e-9
        lines.append(f"| {name} | {' | '.join(means)} | {model:.3f} |")
    return "\n".join(lines)


def _mean(clocks: np.ndarray) -> str:
    return f"{clocks.mean():.3f}" if len(clocks) else "none"


SUITE = suite_one_by_one(
    "idle",
    lambda: {each[0].name: each for each in loads()},
    OneByOne(
        lambda each: each[0].prepared(),
        lambda each, prepared: measured(each[0], each[1], prepared),
        lambda found: table({"this": found}),
    ),
    lambda each: clocked.traced(each[0].probe),
    facts=dict(idle_s=IDLE_S, launches=LAUNCHES),
    shown=lambda group: table(group["contenders"]),
)

if __name__ == "__main__":
    suite.main("idle")
