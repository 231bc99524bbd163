"""Kernels whose devices, or all blocks of a grid, wait for each other by semaphores."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from pallascope import trace

X = P("x")
ROW = jax.ShapeDtypeStruct((128,), jnp.float32)


def on_devices(kernel, *sizes, specs=X):
    """A function that calls a kernel on each device of a mesh, which need not exist."""
    names = ("x", "y")[: len(sizes)]
    mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))
    options = dict(mesh=mesh, in_specs=specs, out_specs=X, check_vma=False)
    return jax.shard_map(kernel, **options)


def exchange(x, o, smem, waits=True, signals=True, finishes=True, keeps=False):
    """Each device writes its row into its neighbour's result, and says so."""
    semaphore = pl.get_global(plgpu.SemaphoreType.REGULAR)
    neighbour = 1 - lax.axis_index("x")
    smem[...] = x[...]
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(smem, plgpu.remote_ref(o.at[0], neighbour))
    if finishes:
        plgpu.wait_smem_to_gmem(0)
    if signals:
        pl.semaphore_signal(semaphore, device_id=neighbour)
    if waits:
        pl.semaphore_wait(semaphore, decrement=not keeps)
    o[1] = o[0] + 1.0
    if not finishes:
        plgpu.wait_smem_to_gmem(0)


def exchanged(**faults):
    kernel = plgpu.kernel(
        functools.partial(exchange, **faults),
        out_type=jax.ShapeDtypeStruct((2, 128), jnp.float32),
        scratch_types=[plgpu.SMEM((128,), jnp.float32)],
    )
    return trace(on_devices(kernel, 2), jax.ShapeDtypeStruct((256,), jnp.float32), whole_grid=True)


def summed(x, o, part, waits=True, gathers=True):
    """Each device adds up all devices' rows, once all are there, and gives the sum to all."""
    semaphore = pl.get_global(plgpu.SemaphoreType.REGULAR)
    part[...] = x[...] * 2.0
    plgpu.semaphore_signal_multicast(semaphore, collective_axes="x")
    if waits:
        pl.semaphore_wait(semaphore, value=2, decrement=False)
    half = pl.ds(lax.axis_index("x") * 64, 64)
    total = plgpu.multimem_load_reduce(part.at[half], collective_axes="x", reduction_op="add")
    plgpu.multimem_store(total, o.at[half], collective_axes="x")
    if gathers:
        plgpu.semaphore_signal_multicast(semaphore, collective_axes="x")
        pl.semaphore_wait(semaphore, value=4, decrement=False)
    o[...] = o[...] + 1.0


def summed_up(**faults):
    kernel = plgpu.kernel(functools.partial(summed, **faults), out_type=(ROW, ROW))
    arg = jax.ShapeDtypeStruct((256,), jnp.float32)
    return trace(on_devices(kernel, 2), arg, whole_grid=True)


def turns(x, o, waits=True, amount=1):
    """Each block of the grid adds to the result in its turn."""
    semaphore, block = pl.get_global(plgpu.SemaphoreType.REGULAR), lax.axis_index("i")
    if waits:

        @pl.when(block > 0)
        def _():
            pl.semaphore_wait(semaphore, value=block * amount, decrement=False)

    o[...] = o[...] + x[...]
    pl.semaphore_signal(semaphore)


def in_turns(blocks=4, **faults):
    def summed(x):
        o = jax.new_ref(jnp.zeros(128))
        kernel = functools.partial(turns, **faults)
        plgpu.kernel(kernel, out_type=(), grid=(blocks,), grid_names=("i",))(x, o)
        return o[...]

    return trace(summed, ROW, whole_grid=True)


def taken_off(waits=True, tells=True):
    """Blocks wait for block 0's row, and tell it; then it takes off what they have waited for."""

    def kernel(x, o):
        semaphores = pl.get_global(plgpu.SemaphoreType.REGULAR((2,)))
        there, passed, block = semaphores.at[0], semaphores.at[1], lax.axis_index("i")

        def first():
            o[0] = x[...]
            pl.semaphore_signal(there, 2)
            if waits:
                pl.semaphore_wait(passed, 2)
            pl.semaphore_wait(there, 2)

        def others():
            pl.semaphore_wait(there, 2, decrement=False)
            o[block] = o[0] + 1.0
            if tells:
                pl.semaphore_signal(passed)

        lax.cond(block == 0, first, others)

    out = jax.ShapeDtypeStruct((3, 128), jnp.float32)
    call = plgpu.kernel(kernel, out_type=out, grid=(3,), grid_names=("i",))
    return trace(call, ROW, whole_grid=True)
