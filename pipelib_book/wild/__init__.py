"""Faults that the checker found in public kernels: small kernels of our own that have them.

The model. Each module here has one kernel, which takes `fixed`, and calls it as `wrong`, with the
fault, and as `right`, without. It needs JAX and nothing else, so that a report for the authors
(`docs/upstream`) can hand it on as it is. `WILD` has these kernels as hazards, as
`pipelib_book.gallery` has its own, but for one thing: their shapes are those of the reports,
however many blocks `arguments` is asked for. `many` makes a hazard of as many copies as that.

A case is for one generation of GPUs (`Hazard.gpu`). Those for Hopper, `RUN`, ran on a GPU, with the
fault and without, and in JAX's interpreter. Those for Blackwell ran nowhere: no such GPU is at
hand, and the interpreter has no products of two blocks. They are checked and compiled.

A faulty kernel may hang the GPU: run it in a process that can be killed (`benchmarks/wild.py`).
"""

import functools

import jax
import numpy as np

from pipelib_book.gallery import Gpu, Hazard, integers, matmul
from pipelib_book.wild import (
    attention_epilogue,
    causal_ring,
    causal_start,
    copy_order,
    counted_signals,
    early_release,
    grouped_heads,
    next_tile,
    other_epilogue,
    two_askers,
    whole_store,
)


def many(hazard: Hazard) -> Hazard:
    """A hazard whose `arguments(rng, n)` and results are those of n copies.

    They are launched together; those of a whole grid, whose blocks wait for each other and have
    one set of semaphores in a launch, one after another.
    """

    def arguments(rng: np.random.Generator, copies: int) -> tuple[np.ndarray, ...]:
        return tuple(map(np.stack, zip(*(hazard.arguments(rng, 1) for _ in range(copies)))))

    def reference(*args: np.ndarray) -> np.ndarray:
        return np.stack([hazard.reference(*each) for each in zip(*args)])

    def kernel(*args: jax.Array, fixed: bool) -> jax.Array:
        one = functools.partial(hazard.kernel, fixed=fixed)
        if hazard.whole_grid:
            return jax.lax.map(lambda each: one(*each), args)
        return jax.vmap(one)(*args)

    return hazard._replace(arguments=arguments, reference=reference, kernel=kernel)


def _tiles(rng: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
    """So many tiles in a row, as both causal kernels take them."""
    return (integers(rng, count * causal_ring.TILE),)


def _pair(rng: np.random.Generator, _: int) -> tuple[np.ndarray, ...]:
    """The operands of both kernels in which two blocks make each product together."""
    return integers(rng, 512, 64, dtype=np.float16), integers(rng, 64, 128, dtype=np.float16)


def _sums_from(start: int, x: np.ndarray) -> np.ndarray:
    """For each tile, the sum of the tiles from `start` up to it."""
    rows = x.reshape(-1, causal_ring.TILE)
    return np.cumsum([*(0 * rows[:start]), *rows[start:]], 0)


_FOUND = (
    Hazard(
        "grouped-heads",
        "A wrong head",
        "out-of-bounds",
        "The copy takes one head of queries, the body reads the bias of another.",
        "Use one formula for the head, in the copy and in the body.",
        lambda rng, _: (integers(rng, 4, 128), integers(rng, 4, 128)),
        lambda x, bias: (x + bias).reshape(-1, grouped_heads.GROUP, grouped_heads.ROWS).sum(1),
        grouped_heads.sums,
    ),
    Hazard(
        "causal-start",
        "A tile that nobody loads",
        "deadlock",
        "The compute thread takes a tile that comes before the first one to be loaded.",
        "Begin both loops of the compute thread no earlier than the loads begin.",
        lambda rng, _: _tiles(rng, 8),
        lambda x: _sums_from(causal_start.START, x),
        causal_start.sums,
    ),
    Hazard(
        "attention-epilogue",
        "Results over operands",
        "race",
        "Thread 0 writes its results where the product of thread 1 may still read.",
        "Let thread 0 wait until the product of thread 1 is over.",
        lambda rng, _: (
            integers(rng, 2, 64, 64, dtype=np.float16),
            integers(rng, 128, 64, dtype=np.float16),
        ),
        lambda q, k: matmul(q, k.T).astype(np.float16),
        attention_epilogue.all_scores,
    ),
    Hazard(
        "whole-store",
        "A tile that is stored twice",
        "race",
        "Each thread writes one half of the tile and stores both.",
        "Let one thread store the tile, once both threads have written.",
        lambda rng, _: (integers(rng, 64, 256, dtype=np.float16),),
        lambda x: x * 2,
        whole_store.doubled,
    ),
    Hazard(
        "causal-ring",
        "More slots than steps",
        "barrier-misuse",
        "The memory thread fills every slot, and the first block has fewer steps than slots.",
        "Load up front only the tiles that the block has steps for.",
        lambda rng, _: _tiles(rng, 4),
        lambda x: _sums_from(0, x),
        causal_ring.sums,
    ),
    Hazard(
        "early-release",
        "A product that nobody waits for",
        "race",
        "A slot is filled again while the product of the step before may still read it.",
        "Wait for the product of the step before: `wgmma_wait(1)`.",
        lambda rng, _: (
            integers(rng, 64, 256, dtype=np.float16),
            integers(rng, 256, 64, dtype=np.float16),
        ),
        matmul,
        early_release.product,
    ),
    Hazard(
        "next-tile",
        "The last slot of a tile",
        "race",
        "A tile's first loads do not wait for the last product of the tile before.",
        "Give each tile slots and barriers of its own, or let the last step arrive too.",
        lambda rng, _: (
            integers(rng, 128, 256, dtype=np.float16),
            integers(rng, 256, 64, dtype=np.float16),
        ),
        matmul,
        next_tile.product,
    ),
    Hazard(
        "counted-signals",
        "Signals that are only counted",
        "race",
        "One semaphore counts the signals of all steps, and does not know which block sent them.",
        "A semaphore for each step.",
        lambda rng, _: (
            integers(rng, counted_signals.STATIONS, counted_signals.PARTS, counted_signals.WIDTH),
        ),
        lambda x: np.broadcast_to(x.sum(0), x.shape).copy(),
        counted_signals.sums,
        whole_grid=True,
    ),
    Hazard(
        "other-epilogue",
        "The other block's sums",
        "race",
        "A block of a pair multiplies again when its own sums have been read, not the other's.",
        "Let both blocks arrive on a barrier of the first: a `ClusterBarrier`.",
        _pair,
        lambda a, b: matmul(a, b).astype(np.float16),
        other_epilogue.product,
        gpu=Gpu.BLACKWELL,
    ),
    Hazard(
        "copy-order",
        "A copy that is to order sums",
        "race",
        "That the other block's copy has landed is to say that its sums have been read.",
        "Let both blocks also arrive on a barrier with `orders_tensor_core`.",
        _pair,
        lambda a, b: matmul(a, b).astype(np.float16),
        copy_order.product,
        gpu=Gpu.BLACKWELL,
    ),
    Hazard(
        "two-askers",
        "Two blocks that ask",
        "race",
        "Each block of a cluster asks for the next tile, and each answer lands in both blocks.",
        "Tell `dynamic_scheduling_loop` its `cluster_axes`.",
        lambda rng, _: (integers(rng, 1024, 64, dtype=np.float16),),
        lambda x: x,
        two_askers.copied,
        gpu=Gpu.BLACKWELL,
    ),
)
WILD: dict[str, Hazard] = {hazard.name: hazard for hazard in _FOUND}
#: The cases that ran on this project's GPUs.
RUN: dict[str, Hazard] = {name: hazard for name, hazard in WILD.items() if hazard.gpu is Gpu.HOPPER}
