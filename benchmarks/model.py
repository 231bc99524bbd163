"""Measures the kernels and configurations that the simulator's error is worked out on.

    python -m benchmarks.model              on the GPU: writes the record
    python -m benchmarks.model --resume     measures the pairs that it lacks

`benchmarks.model_pairs` says which pairs of kernel and configuration there are, and which of them
are held out. Each pair is measured in a worker process.

The model. A call launches the pair's kernels on sets of operands in turn, together more than L2
holds, between two kernels of one small block on each SM, the **stamps**. A stamp reads the SM's
cycle counter and the GPU's timer. The counter goes on between kernels, so the cycles between two
stamps, over the time between them, are the mean clock while the pair's kernels ran. CUPTI times
each kernel of the same call. Before the bursts the same calls keep the GPU busy for so long that
the power limit has set the clock.

A clock that is read after a kernel is another one: the tensor core slows the clock while it works
(`benchmarks.loads`).
"""

import argparse
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks import clocked, suite
from benchmarks.model_pairs import UPSTREAM, Pair, pairs
from benchmarks.suite import OTHERS, Call, Fields, Part, Suite, Traced
from pallascope.bench.cupti import Kernel, kernel_times
from pallascope.tuning.workers import UNTIMED_FLAGS, Failed, Workers
from pipelib_book.measured.attention import OTHERS as THEIRS

#: Seconds that come before the first burst, and of each; how many bursts.
WARM_S, BURST_S, ROUNDS = 0.2, 0.01, 6
#: Calls kept of each burst; seconds that a call's launches take at least.
SAMPLES, CALL_S = 6, 2e-4
#: The name of the kernel that reads counter and timer.
STAMP = "stamp"
#: So many bytes of operands are taken in turn that none is in L2 (50 MB) from the launch before.
ROTATED_BYTES, MOST_SETS = 128 << 20, 8
#: All that this process compiled: CUPTI has wrong names of kernels after others are unloaded.
_KEPT: list[Any] = []
#: Of the GPU's memory, that all workers may take; the longest that one pair's bursts take.
GPU_SHARE, RUN_S = 0.85, 60.0


def in_turn(wanted: Iterable[Pair]) -> list[Pair]:
    """One of each family after the other, so that a record that was cut short has all of them."""
    families: dict[str, list[Pair]] = {}
    for pair in wanted:
        families.setdefault(pair.family, []).append(pair)
    return [pair for column in itertools.zip_longest(*families.values()) for pair in column if pair]


def measure(call: Call, part: Part, problem: Any, made: Mapping[str, Pair]) -> Iterator[Fields]:
    """Measures pairs, while there is time."""
    del part, problem
    some = in_turn(made.values())
    tasks = (
        functools.partial(prepare, pair.name)
        for pair in itertools.takewhile(lambda _: call.in_time(), some)
    )
    for number, result in call.pools[OTHERS].stream(tasks):
        name, shorter = some[number].name, some[number].longer_than
        if isinstance(result, Failed):
            call.say(f"{name}: {result}")
            result = dict(reason=str(result))
        elif shorter:
            result["longer_than"] = shorter
        yield dict(contenders={name: result})


def traced(problem: Any, name: str, pair: Pair) -> Traced:
    """What JAX traces for a pair of ours."""
    del problem, name
    if pair.family == UPSTREAM or pair.config.partition(",")[0] in THEIRS:
        return None
    return pair.function, pair.args


def pools(options: argparse.Namespace) -> dict[str, Workers]:
    """Processes that share the GPU's memory."""
    share = str(round(GPU_SHARE / options.jobs, 3))
    env = dict(XLA_FLAGS=UNTIMED_FLAGS, XLA_PYTHON_CLIENT_MEM_FRACTION=share)
    return {OTHERS: Workers(options.jobs, env=env, run_s=RUN_S)}


# In a worker: how one pair is measured.


def stamp() -> jax.Array:
    """Of each SM its number, its cycle counter and the GPU's timer (ns): int32 [SMs, 3]."""

    def body(out):
        block = lax.axis_index("block")
        number = functools.partial(clocked._register, mgpu_utils.smid)
        for i, read in enumerate((number, clocked.clock, clocked.nanoseconds)):
            out[block, i] = read()

    out = jax.ShapeDtypeStruct((clocked.SMS, 3), jnp.int32)
    return plgpu.kernel(
        body, out_type=out, grid=(clocked.SMS,), grid_names=("block",), kernel_name=STAMP
    )()


def clock_mhz(before: np.ndarray, after: np.ndarray) -> float:
    """The mean clock between two stamps, of the SMs that both are of."""
    first, last = ({row[0]: row[1:].astype(np.uint32) for row in each} for each in (before, after))
    rates = [
        1e3 * float(gone[0]) / float(gone[1])
        for gone in (last[sm] - first[sm] for sm in first if sm in last)
    ]
    return statistics.median(rates)


def prepare(name: str) -> Callable[[], dict[str, Any]]:
    """A task for `Workers`: compiles a pair's kernels; what it returns measures them."""
    pair = pairs()[name]
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in pair.args)
    sets = [pair.args] * max(1, min(MOST_SETS, -(-ROTATED_BYTES // size)))
    draw = jax.jit(functools.partial(_draw, pair, len(sets)))
    compiled, drawn = rotation(pair).lower(sets).compile(), draw.lower().compile()
    stamped = jax.jit(stamp).lower().compile()
    _KEPT.extend((compiled, stamped))
    return lambda: _measured(compiled, stamped, drawn())


def rotation(pair: Pair) -> Any:
    """The jitted call: of sets of operands to all results."""
    return jax.jit(lambda sets: [pair.function(*operands) for operands in sets])


class _Stamped:
    """Calls between stamps, which it keeps; to CUPTI it looks like a jitted function."""

    def __init__(self, call: Any, stamped: Any) -> None:
        self._call, self._stamped = call, stamped
        self.stamps: list[tuple[jax.Array, jax.Array]] = []

    def __call__(self, *args: Any) -> Any:
        before = self._stamped()
        result = self._call(*args)
        self.stamps.append((before, self._stamped()))
        return result, self.stamps[-1]

    def lower(self, *args: Any) -> Any:
        """Of the protocol; nobody calls it."""
        raise NotImplementedError

    trace = eval_shape = clear_cache = lower


def _draw(pair: Pair, count: int) -> list[tuple[jax.Array, ...]]:
    """Sets of operands, normal random numbers; those of attention with scores of about 1."""
    scale = 0.35 if "attention" in pair.family else 1.0
    keys = jax.random.split(jax.random.key(0), (count, len(pair.args)))
    normal = lambda key, x: (scale * jax.random.normal(key, x.shape, jnp.float32)).astype(x.dtype)
    return [tuple(map(normal, of_set, pair.args)) for of_set in keys]


def _measured(compiled: Any, stamped: Any, sets: list[Any]) -> dict[str, Any]:
    """For each call that is kept: microseconds of each kernel, and the clock in MHz."""
    jax.block_until_ready((compiled(sets), stamped()))
    one_s = _seconds(compiled, sets, 10) / 10
    turns = max(1, math.ceil(CALL_S / one_s))
    calls = max(2, round(BURST_S / one_s / turns))

    def call(sets: list[Any]) -> Any:
        for _ in range(turns - 1):
            compiled(sets)
        return compiled(sets)

    _seconds(call, sets, max(1, round(WARM_S / one_s / turns)))
    kept: list[Sequence[Kernel]] = []
    clocks: list[float] = []
    for _ in range(ROUNDS):
        timed = _Stamped(call, stamped)
        burst = kernel_times(timed, sets, calls=calls)
        every = -(-calls // SAMPLES)
        kept += burst[::every]
        # CUPTI makes one call before those that it times.
        stamps = [[np.asarray(each) for each in pair] for pair in timed.stamps[1:]]
        clocks += [clock_mhz(*pair) for pair in stamps[::every]]
    launches = turns * len(sets)
    return dict(
        sets=len(sets),
        launches=launches,
        kernels=by_kernel(kept, launches),
        mhz=[round(clock, 1) for clock in clocks],
    )


def _seconds(call: Any, sets: list[Any], calls: int) -> float:
    """Makes one call behind the other; how long they take."""
    start, result = time.monotonic(), None
    for _ in range(calls):
        result = call(sets)
    jax.block_until_ready(result)
    return time.monotonic() - start


def by_kernel(calls: Sequence[Sequence[Kernel]], launches: int) -> dict[str, Any]:
    """For each kernel by name, but for stamps: how often a launch runs it, its mean time in each
    call (us).

    A compiler may have put the kernels of several launches in any order.
    """
    found: dict[str, list[list[float]]] = {}
    for call in calls:
        names = dict.fromkeys(kernel.name for kernel in call if not kernel.name.startswith(STAMP))
        for name in names:
            times = [1e3 * kernel.ms for kernel in call if kernel.name == name]
            found.setdefault(name, []).append(times)
    return {
        name: dict(
            runs=len(times[0]) / launches, us=[round(statistics.fmean(us), 3) for us in times]
        )
        for name, times in found.items()
    }


SUITE = Suite(
    "model",
    {"pairs": Part(lambda problem, groups: pairs(), measure, traced, apart=True)},
    facts=dict(warm_s=WARM_S, burst_s=BURST_S),
    processes=pools,
)

if __name__ == "__main__":
    suite.main("model")
