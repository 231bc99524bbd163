"""Kernels that start before the kernel before has ended, and wait for it."""

from dataclasses import replace

import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from tests.pallascope import kernels
from tests.pallascope.strategies import Writer

X = kernels.like(64, 64)
TILE = plgpu.SMEM((64, 64), jnp.float16)


def copied(first=(), middle=(), last=()):
    """A kernel that loads `x` and stores it to `o`, with calls in three places."""

    def kernel(x, o, x_smem, barrier):
        for call in first:
            call()
        plgpu.copy_gmem_to_smem(x, x_smem, barrier)
        plgpu.barrier_wait(barrier)
        for call in middle:
            call()
        plgpu.copy_smem_to_gmem(x_smem, o)
        plgpu.wait_smem_to_gmem(0)
        for call in last:
            call()

    return kernels.of(kernel, X, scratch_types=[TILE, plgpu.Barrier()])


WAIT, SIGNAL = plgpu.griddepcontrol_wait, plgpu.griddepcontrol_launch_dependents


def early(writer, **fields):
    return replace(writer.program(), starts_early=True, **fields)


def specialized(waits=(0, 1)):
    """A memory thread (0) loads two rows, a compute thread (1) writes them to the output."""
    writer = Writer(2)
    x, s = writer.buffer("x", "gmem", role="in"), writer.buffer("s", scope_id=0)
    o, b = writer.buffer("o", "gmem", role="out"), writer.barrier(count=2)
    for thread in waits:
        writer.op("grid_wait", thread)
    for row in (0, 1):
        writer.load((x, row, 1), (s, row, 1), b, row)
        writer.wait(b, row, 1).read((s, row, 1), 1).write((o, row, 1), 1)
    return writer
