"""What the tensor core and the clock do while all of a GPU works, and what power that takes.

    python -m benchmarks.loads    on the GPU: writes the record

The model. A load is a probe (`benchmarks.probes`) that is launched again and again until the power
limit has set the clock. Then come rounds of a few launches. Of each round the record has the cycles
of a step and the clock during the last launch, both by the SM's counter, and the clock right after
that launch, by a kernel of one block (`benchmarks.model` takes the clock of a pair in this
way); and of each load the power that the driver reports. Operands of products are zeros or normal
random numbers, since wires that do not change take no power. Some products pause after each step,
since a tensor core that is not always busy takes less.
"""

import functools
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks import clocked, probes, suite
from benchmarks.turns import OneByOne, suite_one_by_one

#: Seconds until the clock is steady; rounds; launches of a round.
WARM_S, ROUNDS, LAUNCHES = 0.5, 8, 4
#: Of a product: rows and columns of a thread's accumulator, the depth of a step, slots of operands.
M, N, K, SLOTS = 64, 256, 64, 2
_TICKS = 4000


def product(blocks: int, threads: int, pause: int) -> clocked.Probe:
    """Products of operands that come from GMEM once; after each step a thread does nothing for so
    many cycles."""

    def role(thread, timed, block, x, a, b, sink, barrier):
        if thread == 0:
            for slot in range(SLOTS):
                first = slot * (threads * M + K)
                for i in range(threads):
                    tile = x.at[pl.ds(first + i * M, M), pl.ds(0, K)]
                    plgpu.copy_gmem_to_smem(tile, a.at[slot, i], barrier)
                tile = x.at[pl.ds(first + threads * M, K)]
                plgpu.copy_gmem_to_smem(tile, b.at[slot], barrier)
        plgpu.barrier_wait(barrier)

        def scope(acc):
            def step(i):
                slot = lax.rem(i, np.int32(SLOTS))
                plgpu.wgmma(acc, a.at[slot, thread], b.at[slot])
                plgpu.wgmma_wait(1)
                if pause:
                    start = clocked.clock()
                    lax.while_loop(
                        lambda now: now - start < pause, lambda now: clocked.clock(), start
                    )

            def run(first, count):
                total = clocked.loop(first, count, step)
                plgpu.wgmma_wait(0)
                return total

            timed(run)
            return acc[...]

        found = pl.run_scoped(scope, plgpu.ACC((M, N), jnp.float32))
        sink[thread] = found.astype(jnp.float16)

    copies = SLOTS * (threads + 1)
    scratch = (
        clocked.swizzled(SLOTS, threads, M, K),
        clocked.swizzled(SLOTS, K, N),
        clocked.swizzled(threads, M, N),
        plgpu.Barrier(num_arrivals=copies),
    )
    name = f"products, {blocks} blocks, {threads} threads, pause of {pause}"
    return clocked.Probe(
        name,
        clocked.alike(role, threads),
        512,
        scratch,
        blocks=blocks,
        input=(SLOTS * (threads * M + K), N),
        work=dict(flops=2.0 * M * N * K * threads),
    )


class Load(NamedTuple):
    """A load of the GPU: a probe, and the standard deviation of its operands."""

    name: str
    probe: clocked.Probe
    deviation: float = 1.0

    def prepared(self) -> tuple[Callable[..., Any], list[jax.Array]]:
        """The probe's kernel, compiled, and normal random operands."""
        keys = jax.random.split(jax.random.key(0), 1)
        draw = lambda key, x: (self.deviation * jax.random.normal(key, x.shape)).astype(x.dtype)
        return clocked.compiled(self.probe), list(map(draw, keys, clocked.inputs(self.probe)))


def loads() -> Iterator[Load]:
    """All that is measured."""
    for pause in (0, 128, 256, 512, 1024, 2048):
        probe = product(132, 2, pause)
        yield Load(f"{probe.name}, normal", probe)
    for blocks in (1, 33, 66, 99):
        probe = product(blocks, 2, 0)
        yield Load(f"{probe.name}, normal", probe)
    for blocks in (1, 132):
        probe = product(blocks, 2, 0)
        yield Load(f"{probe.name}, zeros", probe, 0.0)
    probe = product(132, 1, 0)
    yield Load(f"{probe.name}, normal", probe)
    ring = "load ring of 8 x 16384 bytes, 132 blocks"
    wanted = (
        f"{ring}, L2",
        f"{ring}, HBM",
        "store ring of 16384 bytes, 132 blocks, HBM",
        "multiply and add, 2 threads",
        "exp2, approximate, 2 threads",
        "read 64x128, 2 threads",
    )
    every = {probe.name: probe for probe in probes.probes()}
    for name in wanted:
        probe = every[name]._replace(blocks=132)
        yield Load(f"{name}, on 132 SMs", probe)


def _ticks(timed: Any, block: Any) -> None:
    """Reads the counter over and over."""
    timed(lambda first, count: clocked.loop(first, count, lambda i: clocked.clock()))


@functools.cache
def _after() -> Callable[[], jax.Array]:
    """What reads the clock after a launch."""
    return clocked.compiled(clocked.Probe("clock", (_ticks,), _TICKS))


def measured(load: Load, prepared: tuple[Callable[..., Any], list[jax.Array]]) -> dict[str, Any]:
    """The samples of a load."""
    (call, args), probe, after = prepared, load.probe, _after()
    jax.block_until_ready(call(*args))
    start = time.monotonic()
    jax.block_until_ready([call(*args) for _ in range(10)][-1])
    calls = max(LAUNCHES, round(WARM_S * 10 / (time.monotonic() - start)))
    result = None
    for _ in range(2 * calls):
        result = call(*args)
    watts = _watts()
    columns: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for _ in range(LAUNCHES):
            result = call(*args)
        found = clocked.slopes(clocked.stamps_of(result), probe.repeats)
        found["clock_after_hz"] = clocked.slopes(np.asarray(after()), _TICKS)["clock_hz"]
        for name, value in found.items():
            columns.setdefault(name, []).append(round(value, 3))
    return dict(work=dict(probe.work), blocks=probe.blocks, watts=watts, **columns)


def _watts() -> float:
    """The power that the driver reports, while the GPU works."""
    command = ["nvidia-smi", "--query-gpu=power.draw.instant", "--format=csv,noheader,nounits"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _words(found: dict[str, Any]) -> str:
    keys = "cycles", "clock_hz", "clock_after_hz"
    cycles, clock, then = (statistics.median(found[key]) for key in keys)
    clocks = f"{clock / 1e6:.0f} MHz, then {then / 1e6:.0f} MHz"
    return f"{cycles:.1f} cycles, {clocks}, {found['watts']:.0f} W"


SUITE = suite_one_by_one(
    "loads",
    lambda: {load.name: load for load in loads()},
    OneByOne(Load.prepared, measured, _words),
    lambda load: clocked.traced(load.probe),
)

if __name__ == "__main__":
    suite.main("loads")
