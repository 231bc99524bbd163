"""Kernels that were not written for the tracer: the emitters' contract, and JAX's own."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu

import pipelib
from pipelib.schedule import Program
from tests.schedule import corpus
from tests.schedule.kernels import like

KERNELS = corpus.clean() + corpus.suspect()


@pytest.mark.parametrize("kernel", KERNELS, ids=[kernel.name for kernel in KERNELS])
def test_a_program_is_sound_in_itself(kernel):
    """Regions lie in their buffers, every op says where it was written, JSON keeps it all."""
    program = kernel.trace()
    assert not program.truncated
    for op in (op for ops in program.threads for op in ops):
        assert op.line is not None or op.kind.startswith("scope_")
        for region in op.reads + op.writes:
            shape = program.buffers[region.buffer].shape
            assert all(0 <= a <= b <= n for (a, b), n in zip(region.box, shape, strict=True))
    assert Program.from_json(program.to_json()) == program


def test_names_are_unique():
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)


def test_upstream_s_ragged_dot_wants_its_group_sizes():
    options = dict(block_m=64, block_n=64, block_k=64, max_concurrent_steps=2, grid_block_n=2)
    call = lambda a, b, sizes: ragged_dot_mgpu.ragged_dot(a, b, group_sizes=sizes, **options)
    args = like(256, 128), like(2, 128, 128)
    assert pipelib.trace(call, *args, np.array([100, 156], np.int32)).threads[0]
    with pytest.raises(ValueError, match="depends on what a tensor holds"):
        pipelib.trace(call, *args, like(2, dtype=jnp.int32))
