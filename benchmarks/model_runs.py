"""How one pair of kernel and configuration is measured, in a worker process.

The model. Launches take sets of operands in turn, together more than L2 holds. A burst is so long
that the power limit has set the clock; the second half of its launches counts. CUPTI times each
kernel. A burst of the same length then ends with a kernel of one block that stamps the SM's
counter and the GPU's timer, which gives the clock that the burst ended with.
"""

import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import probes
from benchmarks.model_pairs import Pair, pairs
from pipelib.bench.cupti import Kernel, kernel_times

BURST_S, ROUNDS, MOST_CALLS, SAMPLES = 0.02, 3, 200, 30
#: So many bytes of operands are taken in turn that none is in L2 (50 MB) from the launch before.
ROTATED_BYTES, MOST_SETS = 128 << 20, 8
_TICKS = 1000


def _ticks(timed: Any, block: Any) -> None:
    """Reads the counter over and over, for about 50 us."""
    timed(lambda first, count: probes.loop(first, count, lambda i: probes.clock()))


@functools.cache
def _clock() -> Callable[[], jax.Array]:
    """A kernel of one block that stamps the counter and the timer."""
    return jax.jit(probes.kernel(probes.Probe("clock", (_ticks,), _TICKS))).lower().compile()


def prepare(name: str) -> Callable[[], dict[str, Any]]:
    """A task for `Workers`: compiles a pair's kernels; what it returns measures them."""
    pair = pairs()[name]
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in pair.args)
    sets = [pair.args] * max(1, min(MOST_SETS, -(-ROTATED_BYTES // size)))
    rotation = jax.jit(lambda sets: [pair.function(*operands) for operands in sets])
    draw = jax.jit(functools.partial(_draw, pair, len(sets)))
    compiled, drawn, clock = rotation.lower(sets).compile(), draw.lower().compile(), _clock()
    return lambda: _measured(compiled, drawn(), clock)


def _draw(pair: Pair, count: int) -> list[tuple[jax.Array, ...]]:
    """Sets of operands, normal random numbers; those of attention with scores of about 1."""
    scale = 0.35 if "attention" in pair.family else 1.0
    keys = jax.random.split(jax.random.key(0), (count, len(pair.args)))
    normal = lambda key, x: (scale * jax.random.normal(key, x.shape, jnp.float32)).astype(x.dtype)
    return [tuple(map(normal, of_set, pair.args)) for of_set in keys]


def _measured(rotation: Any, sets: list[Any], clock: Any) -> dict[str, Any]:
    """Microseconds of each kernel of a launch, of the second half of each burst; the clocks."""
    jax.block_until_ready(rotation(sets))
    start = time.monotonic()
    jax.block_until_ready(rotation(sets))
    calls = max(2, min(MOST_CALLS, round(BURST_S / (time.monotonic() - start))))
    bursts, mhz = [], []
    for _ in range(ROUNDS):
        bursts.append(kernel_times(rotation, sets, calls=calls)[calls // 2 :])
        for _ in range(calls):
            rotation(sets)
        stamps = np.asarray(clock())
        mhz.append(round(probes.slopes(stamps, _TICKS)["clock_hz"] / 1e6, 1))
    return dict(launches=calls * len(sets), kernels=by_kernel(bursts, len(sets)), mhz=mhz)


def by_kernel(bursts: list[list[list[Kernel]]], sets: int) -> list[dict[str, Any]]:
    """For each kernel of a launch its name and times, of calls that make `sets` launches each."""
    each = len(bursts[0][0]) // sets
    found: list[dict[str, Any]] = [dict(name=k.name, us=[]) for k in bursts[0][0][:each]]
    for call in itertools.chain(*bursts):
        for index, kernel in enumerate(call):
            found[index % each]["us"].append(round(1e3 * kernel.ms, 3))
    return [dict(kernel, us=_few(kernel["us"])) for kernel in found]


def _few(us: list[float]) -> list[float]:
    """Not more than SAMPLES of them, as far apart as they can be."""
    return us[:: -(-len(us) // SAMPLES)]
