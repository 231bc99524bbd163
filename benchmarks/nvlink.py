"""Measures NVLink between two GPUs of one host: signals, tiles, streams, and chapter 22's ring.

    python -m benchmarks.nvlink          each problem with two numbers of steps
    python -m benchmarks.nvlink table    prints the record

The model. Both GPUs run one kernel, and each sends to the other. A kernel repeats a **step**, and
a problem's contenders differ only in how many. So the difference of their times, over the
difference of their steps, is the time of a step: launches and beginnings drop out.

==========  =======================================================================================
kernel      a step of each block
==========  =======================================================================================
signals     signals the block of its number on the other GPU, which waits once, at its end
waits       takes one off its own semaphore, which holds enough for all steps
own signal  signals its own semaphore, and waits for that signal
signal      signals the block of its number on the other GPU, and waits for that block's signal
tile        stores a tile over there, waits until it has landed, and does what `signal` does
stream      stores a tile over there while up to three earlier ones are on their way
ring        the chapter's own kernel, one tile: a load, a store over there, a signal, and the
            receiver's load, signal and store. **Held out**: no constant of the simulator comes from
            it, so `pallascope.simulate` can be held against it
==========  =======================================================================================

A tile lies in SMEM when the steps begin, but for those of `ring`. A sample is the time of a burst
by the host's clock, over the burst's launches, as in `benchmarks.collective`.
"""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import records, suite
from benchmarks.collective import bursts, devices_mesh, gpus_mesh
from benchmarks.suite import Part, Suite
from benchmarks.turns import Arrays, Contender, InTurns
from pallascope.machine import Machine
from pipelib_book.across import AXIS
from pipelib_book.measured import nvlink as recorded
from pipelib_book.measured.nvlink import Problem

GPUS = 2
#: Rows of a tile whose bytes take no time to speak of; others have 32 KiB, as the chapter's.
FEW_ROWS = 2
#: Stores of a stream that are on their way together, each to a slot of its own.
IN_FLIGHT = 4
LONGER = recorded.LONGER
SIGNALS, WAITS, OWN, SIGNAL = recorded.WITHOUT_TILES
TILE, STREAM, RING = recorded.TILE, recorded.STREAM, recorded.RING
CHAPTER = records.ROOT / "book" / "22_across_gpus.md"

#: A ring's arrays are larger than L2 together, so that each launch loads from HBM.
PROBLEMS = (
    *map(Problem, recorded.WITHOUT_TILES),
    Problem(TILE, rows=FEW_ROWS),
    Problem(TILE),
    *(
        Problem(STREAM, blocks, steps=max(64, 2048 // blocks))
        for blocks in (1, 2, 4, 8, 16, 32, 66, 132)
    ),
    Problem(RING, steps=2048),
)


# Kernels.


def contenders(problem: Problem) -> dict[str, Contender]:
    """The kernel with its fewer and with its more steps, by the number of steps."""
    make = _ring if problem.kernel == RING else functools.partial(_repeated, problem)
    return {
        f"{steps} steps": _on_gpus(make(steps)) for steps in (problem.steps, LONGER * problem.steps)
    }


def _on_gpus(kernel: Callable[..., Any]) -> Contender:
    """A function of whole arrays that calls a kernel on each GPU with its part."""
    mesh, rows = devices_mesh(GPUS, AXIS), P(AXIS)
    return jax.shard_map(kernel, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)


def _repeated(problem: Problem, steps: int) -> Callable[..., Any]:
    """A kernel that loads a tile, repeats its step, and waits for what the other GPU sends."""

    def body(x_gmem, inbox_gmem, tile_smem, loaded):
        block, me = lax.axis_index("block"), lax.axis_index(AXIS)
        arrived = pl.get_global(plgpu.SemaphoreType.REGULAR((problem.blocks,))).at[block]
        plgpu.copy_gmem_to_smem(x_gmem.at[block], tile_smem, loaded)
        plgpu.barrier_wait(loaded)
        inbox = inbox_gmem.at[block]
        step, finish = _STEPS[problem.kernel](tile_smem, inbox, arrived, 1 - me, steps)
        lax.fori_loop(0, steps, lambda k, _: step(k), None)
        finish()

    slots = IN_FLIGHT if problem.kernel == STREAM else 1
    tile = problem.rows, recorded.COLUMNS
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((problem.blocks, slots, *tile), jnp.float32),
        grid=(problem.blocks,),
        grid_names=("block",),
        scratch_types=[plgpu.SMEM(tile, jnp.float32), plgpu.Barrier()],
    )


def _signals(tile_smem, inbox, arrived, other, steps):
    """Signals the other GPU: a step, and what comes after the last one."""

    def finish():
        pl.semaphore_wait(arrived, steps)
        _store(tile_smem, inbox.at[0])

    return lambda _: pl.semaphore_signal(arrived, device_id=other), finish


def _waits(tile_smem, inbox, arrived, other, steps):
    """Waits for signals that were there before."""
    pl.semaphore_signal(arrived, steps)
    return lambda _: pl.semaphore_wait(arrived), lambda: _store(tile_smem, inbox.at[0])


def _signals_and_waits(tile_smem, inbox, arrived, other, steps):
    """Signals the other GPU, and waits for the other one's signal."""

    def step(_):
        pl.semaphore_signal(arrived, device_id=other)
        pl.semaphore_wait(arrived)

    return step, lambda: _store(tile_smem, inbox.at[0])


def _own_signals(tile_smem, inbox, arrived, other, steps):
    """Signals its own semaphore, and waits for that signal."""

    def step(_):
        pl.semaphore_signal(arrived)
        pl.semaphore_wait(arrived)

    return step, lambda: _store(tile_smem, inbox.at[0])


def _tiles(tile_smem, inbox, arrived, other, steps):
    """Stores a tile, then signals: the other GPU has the tile when it has the signal."""
    there = plgpu.remote_ref(inbox.at[0], other)

    def step(_):
        _store(tile_smem, there)
        pl.semaphore_signal(arrived, device_id=other)
        pl.semaphore_wait(arrived)

    return step, lambda: None


def _streams(tile_smem, inbox, arrived, other, steps):
    """Stores tiles one after the other, then signals once."""

    def step(k):
        there = plgpu.remote_ref(inbox.at[lax.rem(k, IN_FLIGHT)], other)
        plgpu.copy_smem_to_gmem(tile_smem, there)
        plgpu.wait_smem_to_gmem(IN_FLIGHT - 1)

    def finish():
        plgpu.wait_smem_to_gmem(0)
        pl.semaphore_signal(arrived, device_id=other)
        pl.semaphore_wait(arrived)

    return step, finish


_STEPS = {
    SIGNALS: _signals,
    WAITS: _waits,
    OWN: _own_signals,
    SIGNAL: _signals_and_waits,
    TILE: _tiles,
    STREAM: _streams,
}


def _store(tile_smem, there):
    """Stores a tile and waits until it has landed."""
    plgpu.copy_smem_to_gmem(tile_smem, there)
    plgpu.wait_smem_to_gmem(0)


def _ring(steps: int) -> Callable[..., Any]:
    """The chapter's ring, as its cells define it."""
    names = dict[str, Any]()
    for code in _CODE.findall(CHAPTER.read_text("utf-8")):
        if any(text in code for text in _OF_RING):
            exec(code, names)
    return names["stream"](steps=steps)


#: The code of a cell, behind its options.
_CODE = re.compile(r"^```\{code-cell\}.*\n(?::.*\n)*((?:.*\n)*?)```$", re.MULTILINE)
#: What tells the cells of the ring: its imports and types, its threads, its kernel.
_OF_RING = "ROWS, COLUMNS = ", "def send_all(", "def stream("


# Arrays, errors, times.


def _tiles_of(problem: Problem) -> int:
    """How many tiles a GPU has at first."""
    return problem.blocks if problem.kernel != RING else LONGER * problem.steps


def like(problem: Problem) -> jax.ShapeDtypeStruct:
    """The type of all tiles."""
    shape = GPUS * _tiles_of(problem), problem.rows, recorded.COLUMNS
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def operands(problem: Problem) -> Arrays:
    """Tiles on the GPUs, each a number of its own."""
    mesh = gpus_mesh("nvlink", problem, GPUS, AXIS)
    there, x = NamedSharding(mesh, P(AXIS)), like(problem)
    fill = lambda: jnp.broadcast_to(jnp.arange(x.shape[0], dtype=x.dtype)[:, None, None], x.shape)
    return (jax.jit(fill, out_shardings=there)(),)


def error(problem: Problem, args: Arrays, name: str, contender: Contender) -> float:
    """0.0 if all tiles have come to where they were sent, else 1.0."""
    got = jax.jit(contender)(*args)
    tiles = np.asarray(args[0][:, 0, 0]).reshape(GPUS, -1)
    kept = tiles if problem.kernel in recorded.WITHOUT_TILES else tiles[::-1]
    if problem.kernel == RING:
        kept = kept[:, : int(name.split()[0])]
    out = got[0] if problem.kernel == RING else got
    out = out.reshape(*kept.shape, -1)
    return float(not bool(jnp.all(out == kept[..., None])))


def _step_us(found: suite.Measured) -> float | None:
    return found.problem.step_us({name: each.microseconds for name, each in found.times.items()})


def _step(found: suite.Measured) -> str | None:
    """The time of a step."""
    return f"{us:8.4f} us a step" if (us := _step_us(found)) else None


def _sending(found: suite.Measured) -> str | None:
    """What a GPU sends."""
    us, sent = _step_us(found), found.problem.sent
    return f"{sent / us / 1e3:7.2f} GB/s of a GPU" if us and sent else None


# What the simulator takes of it.


def parameters(groups: Iterable[dict[str, Any]], machine: Machine) -> dict[str, float]:
    """The fields of a machine that are about semaphores and NVLink.

    They reproduce the kernels that they come from. The ring gives none of them, nor do tiles of 32
    KiB and streams of 2 to 32 blocks. But these rules were written when all times were known.

    What a signal costs its thread is from "own signal". Back to back, signals to the other GPU take
    longer: each waits until the one before it has been answered.
    """
    cycles = {p: us * 1e-6 * machine.clock_hz for p, us in recorded.steps_us(groups).items()}
    signals, waits, own, both = (cycles[Problem(kernel)] for kernel in recorded.WITHOUT_TILES)
    tile = Problem(TILE, rows=FEW_ROWS)
    streams = {p.blocks: p.sent / step for p, step in cycles.items() if p.kernel == STREAM}
    moved = machine.store_issue_cycles + tile.tile_bytes / streams[1]
    return dict(
        signal_cycles=own - waits,
        await_cycles=waits,
        nvlink_latency_cycles=both - own,
        nvlink_answer_cycles=signals - (own - waits),
        nvlink_store_latency_cycles=cycles[tile] - both - moved,
        nvlink_sm_bytes_per_cycle=streams[1],
        nvlink_bytes_per_second=max(streams.values()) * machine.clock_hz,
    )


SUITE = Suite(
    "nvlink",
    {
        "nvlink": Part(
            lambda problem, groups: contenders(problem),
            InTurns(operands, error, 0.0, bursts),
            lambda problem, name, contender: (contender, (like(problem),)),
            PROBLEMS,
            Problem,
        )
    },
    (_step, _sending),
    dict(distribution="tiles, each of one number"),
    xla_flags=suite.XLA_FLAGS,
)

if __name__ == "__main__":
    suite.main("nvlink")
