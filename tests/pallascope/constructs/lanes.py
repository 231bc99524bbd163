"""Threads without automatic barriers, whose lanes meet where something makes them."""

from dataclasses import replace

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.pallascope import kernels
from tests.pallascope.strategies import Writer

X = kernels.like(64, 64)
PAIRS, SINGLES = (plgpu.Layout.WG_STRIDED((64, 64), vec_size=size) for size in (2, 1))


def nothing(barrier):
    pass


def arrive_and_wait(barrier):
    plgpu.barrier_arrive(barrier)
    plgpu.barrier_wait(barrier)


def passed(between=nothing, write=PAIRS, read=SINGLES, auto=False):
    """A thread writes a tile and reads it, in two layouts, with something in between."""

    def cast(value, layout):
        return value if layout is None else plgpu.layout_cast(value, layout)

    def kernel(x, o, tile, barrier):
        tile[...] = cast(x[...], write)
        between(barrier)
        o[...] = cast(tile[...], read)

    return kernels.of(
        kernel,
        X,
        scratch_types=[plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier()],
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=not auto),
    )


def refilled(between=nothing, auto=False):
    """A thread reads a tile that it loaded, and loads it anew."""

    def kernel(x, o, tile, barrier, more):
        for half in (0, 1):
            plgpu.copy_gmem_to_smem(x, tile, barrier)
            plgpu.barrier_wait(barrier)
            o[half] = plgpu.layout_cast(tile[...], PAIRS)
            between(more)

    scratch = [plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier(), plgpu.Barrier()]
    return kernels.of(
        kernel,
        kernels.like(2, 64, 64),
        scratch_types=scratch,
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=not auto),
    )


def commit(barrier):
    plgpu.commit_smem()


def one_thread(ops):
    """A thread that does these ops, in layouts `a` and `b`."""
    writer = Writer(1)
    x, s = writer.buffer("x", "gmem", role="in"), writer.buffer("s", scope_id=0)
    loaded, turn = writer.barrier(), writer.barrier()
    for op in ops:
        match op:
            case "read" | "write" as kind, layout:
                memory = ([s], []) if kind == "read" else ([], [s])
                writer.op(kind, 0, *memory, layout=layout)
            case "load":
                writer.load(x, s, loaded).wait(loaded)
            case "turn":
                writer.arrive(turn).wait(turn)
            case kind:
                writer.op(kind)
    return replace(writer.program(), auto_barriers=False)


ACCESSES = [(kind, layout) for kind in ("read", "write") for layout in "ab"]
OPS = [*ACCESSES, "load", "load", "turn", "fence"]
