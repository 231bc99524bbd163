"""What launching a kernel and starting its blocks costs, by kernels whose blocks only pass time.

    python -m benchmarks.starts    on the GPU: writes the record

The model. Each block waits until its SM's counter has gone so many cycles, and holds so much SMEM
that an SM has room for a known number of blocks. With one block on each SM a launch takes the wait
and what a launch costs; with more blocks, each further one adds the wait and what it costs to start
a block where another has ended. CUPTI times the launches. Barriers, a ring of them for a pipeline,
and registers that change hands are added in turn.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks import clocked, suite
from benchmarks.turns import OneByOne, suite_one_by_one
from pallascope.bench.cupti import kernel_times

CALLS = 30
#: Barriers of a ring.
RING_BARRIERS = 4
#: SMEM of one SM that blocks can have together; each takes 1 KB more than it asks for.
_SM_BYTES = 228 << 10


class Start(NamedTuple):
    """A kernel whose blocks pass `cycles`: how many blocks there are, and what they have.

    `crowd` is how many of them an SM has room for, `rings` how many arrays of four barriers a block
    has, `moves` whether its threads change their registers.
    """

    blocks: int
    threads: int
    cycles: int
    crowd: int = 1
    cluster: int = 1
    rings: int = 0
    moves: bool = False

    @property
    def name(self) -> str:
        """The name of the case: all of its fields in words."""
        words = f"{self.blocks} blocks of {self.threads} threads, {self.cycles} cycles"
        words += f", {self.crowd} on an SM, clusters of {self.cluster}, {self.rings} rings"
        return words + (", registers change hands" if self.moves else "")


def starts() -> Iterator[Start]:
    """All that is measured."""
    for turns, cycles in itertools.product((1, 2, 4, 8), (0, 2000)):
        yield Start(132 * turns, 1, cycles)
        yield Start(132 * turns, 3, cycles)
    for crowd, turns in itertools.product((2, 4, 8, 16), (1, 2, 8)):
        yield Start(132 * turns * crowd, 1, 2000, crowd=crowd)
    for turns in (1, 4, 8):
        yield Start(132 * turns, 3, 2000, cluster=2)
        yield Start(132 * turns, 3, 2000, rings=4)
        yield Start(132 * turns, 3, 2000, rings=4, moves=True)
    yield Start(1, 1, 0)
    yield Start(66, 1, 2000)


def kernel(start: Start) -> Callable[[], jax.Array]:
    """The kernel of a case; its one output is not written, but for a number of each block."""

    def body(out, *scratch):
        if start.moves:
            pl.when(lax.axis_index("thread") == 0)(
                functools.partial(plgpu.set_max_registers, 40, action="decrease")
            )
            pl.when(lax.axis_index("thread") != 0)(
                functools.partial(plgpu.set_max_registers, 232, action="increase")
            )
        first = clocked.clock()
        last = lax.while_loop(
            lambda now: now - first < start.cycles,
            lambda _: clocked.clock(),
            clocked.clock(),
        )
        block = lax.axis_index("block") * start.cluster
        if start.cluster > 1:
            block += lax.axis_index("rank")
        out[block] = last

    clusters: dict[str, Any] = (
        dict(cluster=(start.cluster,), cluster_names=("rank",)) if start.cluster > 1 else {}
    )
    size = _SM_BYTES // start.crowd - 2048
    scratch = [plgpu.SMEM((size // 128 * 128,), jnp.int8)]
    scratch += [plgpu.Barrier(num_barriers=RING_BARRIERS) for _ in range(start.rings)]
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((start.blocks,), jnp.int32),
        grid=(start.blocks // start.cluster,),
        grid_names=("block",),
        num_threads=start.threads,
        thread_name="thread",
        scratch_types=scratch,
        **clusters,
    )


def measured(start: Start, call: Callable[..., Any]) -> dict[str, Any]:
    """The times of its launches, in microseconds."""
    calls = kernel_times(call, calls=CALLS)
    us = [round(1e3 * sum(each.ms for each in call), 3) for call in calls]
    return dict(start._asdict(), us=us)


SUITE = suite_one_by_one(
    "starts",
    lambda: {start.name: start for start in starts()},
    OneByOne(
        lambda start: jax.jit(kernel(start)).lower().compile(),
        measured,
        lambda found: f"{sorted(found['us'])[CALLS // 2]} us",
    ),
    lambda start: (kernel(start), ()),
)

if __name__ == "__main__":
    suite.main("starts")
