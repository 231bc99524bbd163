"""Threads that reduce arrays across their warps, in the scratch that they share."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.pallascope.strategies import Writer

F32 = jnp.float32
X = jax.ShapeDtypeStruct((2, 64, 64), F32)
TILES = plgpu.SMEM((2, 64, 64), F32)


def to_a_number(x):
    return x - jnp.sum(x)


def reduced(body, threads=2, in_turn=False, extra=(), **params):
    """Each thread reduces a tile of its own; in turn, if a barrier makes the second one wait."""

    def kernel(x, o, smem, loaded, first, *_):
        wg = lax.axis_index("wg") if threads > 1 else 0
        plgpu.copy_gmem_to_smem(x.at[wg], smem.at[wg], loaded.at[wg])
        plgpu.barrier_wait(loaded.at[wg])
        if in_turn:
            pl.when(wg == 1)(lambda: plgpu.barrier_wait(first))
        o[wg] = body(smem[wg])
        if in_turn:
            pl.when(wg == 0)(lambda: plgpu.barrier_arrive(first))

    scratch = [TILES, plgpu.Barrier(num_barriers=2), plgpu.Barrier(), *extra]
    mesh = dict(num_threads=2, thread_name="wg") if threads > 1 else {}
    return plgpu.kernel(
        kernel,
        out_type=X,
        scratch_types=scratch,
        compiler_params=plgpu.CompilerParams(**params),
        **mesh,
    )


def reductions(*places, blocks=1, links=()):
    """Threads that reduce at these places; each link lets a thread go on after another one's."""
    writer = Writer(len(places))
    barriers = [(writer.barrier(), first, second) for first, second in links]
    for thread, place in enumerate(places):
        for barrier, _, second in barriers:
            if second == thread:
                writer.wait(barrier, thread=thread)
        writer.op("compute", thread, scratch=place)
        for barrier, first, _ in barriers:
            if first == thread:
                writer.arrive(barrier, thread=thread)
    return replace(writer.program(), blocks=blocks)
