"""Kernels that come with JAX, called as a test of JAX's would: what `make test-slow` collects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import attention_mgpu, hopper_matmul_mgpu, ragged_dot_mgpu

SQUARE = np.ones((256, 256), np.float16)


@pytest.mark.parametrize("cluster", [None, hopper_matmul_mgpu.MatmulDimension.M])
def test_matmul(cluster):
    config = hopper_matmul_mgpu.TuningConfig(64, 64, 64, 3, cluster_dimension=cluster)
    hopper_matmul_mgpu.matmul(SQUARE, SQUARE, None, config)


@pytest.mark.parametrize("block_kv", [64, 128])
def test_causal_attention(block_kv):
    config = attention_mgpu.TuningConfig(64, block_kv, max_concurrent_steps=2, causal=True)
    q = np.ones((1, 256, 2, 64), np.float16)
    attention_mgpu.attention(q, q, q, config)


def test_ragged_dot_under_jit():
    rhs = np.ones((2, 256, 256), np.float16)
    call = lambda sizes: ragged_dot_mgpu.ragged_dot(
        SQUARE,
        rhs,
        group_sizes=sizes,
        block_m=64,
        block_n=64,
        block_k=64,
        max_concurrent_steps=2,
        grid_block_n=2,
    )
    jax.jit(call)(jnp.array([100, 156], jnp.int32))
