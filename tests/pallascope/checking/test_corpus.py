"""Kernels that were not written for the tracer: the emitters' contract, and JAX's own.

Each is traced once, and asked all that is held of a program, of what is found in it, and of what
its blocks do to each other.
"""

import functools
import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu

import pallascope
from pallascope import Program
from pallascope.checking.grid import check_grid
from pallascope.editing import counted
from tests.pallascope import corpus
from tests.pallascope.kernels import like

CLEAN, SUSPECT = corpus.clean(), corpus.suspect()
KERNELS = CLEAN + SUSPECT


def named(kernels):
    return pytest.mark.parametrize("kernel", kernels, ids=[kernel.name for kernel in kernels])


@named(CLEAN)
def test_a_right_kernel_has_no_finding(kernel):
    """Not even by the letter of PTX, if pipelib emitted it: its fence is there."""
    program = kernel.trace()
    is_sound(program)
    by_upstream = "upstream" in kernel.name or kernel.name.startswith("jax/")
    report = pallascope.check(program, strict=not by_upstream)
    assert report.ok, str(report)
    blocks_compared(kernel, program)


@named(SUSPECT)
def test_what_is_wrong_with_a_kernel_of_jax_s_is_found(kernel):
    program = kernel.trace()
    is_sound(program)
    found = pallascope.check(program)
    assert {finding.kind for finding in found} == {*kernel.doubt}, str(found)
    assert all(kernel.doubt[finding.kind] in finding.cause for finding in found)
    blocks_compared(kernel, program)


def blocks_compared(kernel, program):
    """How many blocks there are, if several and not too many; they do nothing to each other."""
    size = program.grid
    if not (is_traced_by_block(kernel) and 1 < math.prod(size) <= 32):
        return 0
    blocks = itertools.product(*map(range, size))
    report = check_grid(kernel.trace(block=block) for block in blocks)
    assert report.ok and not report.notes, str(report)
    assert report.compared == math.prod(size)
    return report.compared


def is_traced_by_block(kernel):
    """Whether `trace` takes a block; other kernels are of one block."""
    return isinstance(kernel.trace, functools.partial)


def test_many_blocks_are_compared():
    """As each test of a kernel does: of these alone there are more than a hundred."""
    several = [k for k in KERNELS if "blackwell_matmul" in k.name and is_traced_by_block(k)]
    assert sum(blocks_compared(kernel, kernel.trace()) for kernel in several[:1]) == 32
    assert sum(math.prod(kernel.trace().grid) for kernel in several) > 100


def is_sound(program):
    """Regions lie in their buffers, or are a copy's in GMEM, which is clipped; every op says where
    it was written; JSON keeps it all; the phases traced are those that `counted` counts.
    """
    assert not program.truncated
    for op in program.ops:
        assert op.line is not None or op.kind.startswith("scope_")
        for region in op.reads + op.writes:
            buffer = program.buffers[region.buffer]
            may_reach = op.kind.is_copy and buffer.space == "gmem"
            for (a, b), n in zip(region.box, buffer.shape, strict=True):
                assert 0 <= a <= b and (b <= n or may_reach)
    assert Program.from_json(program.to_json()) == program
    assert program.warps or counted(program) == program


def test_names_are_unique():
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)


def test_upstream_s_ragged_dot_wants_its_group_sizes():
    options = dict(block_m=64, block_n=64, block_k=64, max_concurrent_steps=2, grid_block_n=2)
    call = lambda a, b, sizes: ragged_dot_mgpu.ragged_dot(a, b, group_sizes=sizes, **options)
    args = like(256, 128), like(2, 128, 128)
    assert pallascope.trace(call, *args, np.array([100, 156], np.int32)).threads[0]
    with pytest.raises(ValueError, match="depends on what a tensor holds"):
        pallascope.trace(call, *args, like(2, dtype=jnp.int32))
