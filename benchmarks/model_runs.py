"""How one pair of kernel and configuration is measured, in a worker process.

The model. A call launches the pair's kernels on sets of operands in turn, together more than L2
holds. After each call come two kernels of one block, which count cycles: one to CYCLES, one to
nothing. CUPTI times all of them, so the difference of these two is CYCLES at the clock of just
then. Before the bursts the same calls keep the GPU busy for so long that the power limit has set
the clock.
"""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks import probes
from benchmarks.model_pairs import Pair, pairs
from pipelib.bench.cupti import Kernel, kernel_times

#: Seconds that come before the first burst, and of each; how many bursts.
WARM_S, BURST_S, ROUNDS = 0.3, 0.01, 8
#: Calls kept of each burst.
SAMPLES = 6
#: The names of the kernels that count cycles.
LONG, SHORT = "long_count", "short_count"
#: So many bytes of operands are taken in turn that none is in L2 (50 MB) from the launch before.
ROTATED_BYTES, MOST_SETS = 128 << 20, 8
#: All that this process compiled: CUPTI has wrong names of kernels after others are unloaded.
_KEPT: list[Any] = []
#: What the longer of the kernels that count cycles counts to: 20 us.
CYCLES = 40_000


def counting(cycles: int, name: str) -> Callable[[], jax.Array]:
    """A kernel of one block that ends when the SM's counter has gone so far."""

    def body(out):
        start = probes.clock()
        out[0] = lax.while_loop(
            lambda now: now - start < cycles, lambda now: probes.clock(), probes.clock()
        )

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((1,), jnp.int32), kernel_name=name)


def prepare(name: str) -> Callable[[], dict[str, Any]]:
    """A task for `Workers`: compiles a pair's kernels; what it returns measures them."""
    pair = pairs()[name]
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in pair.args)
    sets = [pair.args] * max(1, min(MOST_SETS, -(-ROTATED_BYTES // size)))
    draw = jax.jit(functools.partial(_draw, pair, len(sets)))
    compiled, drawn = rotation(pair).lower(sets).compile(), draw.lower().compile()
    _KEPT.append(compiled)
    return lambda: _measured(compiled, drawn())


def rotation(pair: Pair) -> Any:
    """The jitted call: of sets of operands to all results, the counts of cycles among them."""
    counts = counting(CYCLES, LONG), counting(0, SHORT)
    return jax.jit(
        lambda sets: [[pair.function(*operands) for operands in sets], [run() for run in counts]]
    )


def _draw(pair: Pair, count: int) -> list[tuple[jax.Array, ...]]:
    """Sets of operands, normal random numbers; those of attention with scores of about 1."""
    scale = 0.35 if "attention" in pair.family else 1.0
    keys = jax.random.split(jax.random.key(0), (count, len(pair.args)))
    normal = lambda key, x: (scale * jax.random.normal(key, x.shape, jnp.float32)).astype(x.dtype)
    return [tuple(map(normal, of_set, pair.args)) for of_set in keys]


def _measured(call: Any, sets: list[Any]) -> dict[str, Any]:
    """For each call that is kept: microseconds of each kernel, and the clock in MHz."""
    jax.block_until_ready(call(sets))
    one_s = _seconds(call, sets, 1)
    calls = max(2, round(BURST_S / one_s))
    _seconds(call, sets, max(1, round(WARM_S / one_s)))
    bursts = [kernel_times(call, sets, calls=calls) for _ in range(ROUNDS)]
    kept = itertools.chain(*(burst[:: -(-calls // SAMPLES)] for burst in bursts))
    return dict(sets=len(sets), **by_kernel(list(kept), len(sets)))


def _seconds(call: Any, sets: list[Any], calls: int) -> float:
    """Makes one call behind the other; how long they take."""
    start, result = time.monotonic(), None
    for _ in range(calls):
        result = call(sets)
    jax.block_until_ready(result)
    return time.monotonic() - start


def by_kernel(calls: Sequence[Sequence[Kernel]], launches: int) -> dict[str, Any]:
    """For each kernel by name how often a launch runs it, and its mean time in each call; the clock
    in each call.

    A compiler may have put the kernels of several launches in any order.
    """
    found: dict[str, list[list[float]]] = {}
    for call in calls:
        for name in {kernel.name: None for kernel in call}:
            times = [1e3 * kernel.ms for kernel in call if kernel.name == name]
            found.setdefault(name, []).append(times)
    counts = [[name for name in found if name.startswith(each)] for each in (LONG, SHORT)]
    if [len(names) for names in counts] != [1, 1]:
        raise RuntimeError(f"CUPTI named these kernels, so there is no clock: {list(found)}")
    long, short = (found.pop(name) for [name] in counts)
    return dict(
        kernels={
            name: dict(
                runs=len(times[0]) / launches, us=[round(statistics.fmean(us), 3) for us in times]
            )
            for name, times in found.items()
        },
        mhz=[round(CYCLES / (more - less), 1) for [more], [less] in zip(long, short)],
    )
