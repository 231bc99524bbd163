"""`target`: which GPU kernels are traced for, and what of a kernel that GPU lacks."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
from pallascope.program import Kind
from pipelib import targets
from tests.emitters.before_hopper import CASES


@pytest.mark.parametrize("text", ["8", "sm_80", "8.0a", "", 8.0])
def test_a_target_that_is_no_compute_capability(text):
    with pytest.raises(ValueError, match="is not a compute capability, two numbers with a point"):
        pipelib.target(text).__enter__()


def test_a_target_ends_and_may_be_within_another():
    assert targets.capability() == (9, 0)
    with pipelib.target("8.6"):
        with pipelib.target("9.0"):
            assert targets.has_tma() and targets.described() == "Hopper"
        assert targets.capability() == (8, 6) and not targets.has_tma()
        with targets.present():
            assert jnp.arange(3).sum() == 3
    assert targets.has_tma()


def test_a_kernel_is_traced_anew_for_another_target():
    """Though JAX keeps what `jax.jit` has traced."""
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    kernel = jax.jit(CASES[0].kernel())
    kinds = lambda: {op.kind for op in pallascope.trace(kernel, x).threads[0]}
    assert Kind.LOAD in kinds() and Kind.CP_ASYNC not in kinds()
    with pipelib.target("8.0"):
        assert Kind.CP_ASYNC in kinds() and Kind.LOAD not in kinds()
    assert Kind.LOAD in kinds()


def test_what_the_target_lacks_is_refused():
    def kernel(x, o, smem, barrier):
        plgpu.copy_gmem_to_smem(x, smem, barrier)

    def commits(x, o, smem, barrier):
        smem[...] = x[...]
        plgpu.commit_smem()

    x = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    scratch = [plgpu.SMEM((16, 128), jnp.float32), plgpu.Barrier()]
    for function, name in ((kernel, "copy_gmem_to_smem"), (commits, "commit_smem")):
        made = plgpu.kernel(function, out_type=x, scratch_types=scratch)
        told = f"the primitive '{name}' needs a Hopper GPU .compute capability 9.0., but the kernel"
        with pipelib.target("8.0"), pytest.raises(NotImplementedError, match=told):
            pallascope.trace(made, x)
