"""Kernels that were not written for the tracer: the emitters' contract, and JAX's own."""

import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import attention_mgpu, hopper_matmul_mgpu, ragged_dot_mgpu

import pipelib
from pipelib.schedule import Program
from tests.emitters import contract
from tests.schedule.kernels import like


class _Traced(Exception):
    pass


class _Tracing(contract.Emitter):
    """An emitter whose kernels are traced, not run."""

    def kernel(self, function, outputs, **options):
        compiled = super().kernel(function, outputs, **options)

        def call(*args):
            raise _Traced(pipelib.trace(compiled, *args))

        return call


def check(program):
    """Sound in itself: regions within buffers, as many loads as a wait waits for."""
    assert not program.truncated
    for op in (op for ops in program.threads for op in ops):
        assert op.line is not None or op.kind.startswith("scope_")
        for region in op.reads + op.writes:
            shape = program.buffers[region.buffer].shape
            assert all(0 <= a <= b <= n for (a, b), n in zip(region.box, shape, strict=True))
    assert Program.from_json(program.to_json()) == program


EMITTERS = contract.PIPELIB + contract.UPSTREAM


@pytest.mark.parametrize(
    ("case", "emitter"),
    [p for p in contract.pairs(EMITTERS) if p.id != "static_grid-grid=()-upstream-specialized-1"],
)
def test_the_contract_s_kernels(case, emitter):
    fields = {f.name: getattr(emitter, f.name) for f in dataclasses.fields(emitter)}
    with pytest.raises(_Traced) as traced:
        case.function(_Tracing(**fields))
    (program,) = traced.value.args
    check(program)


@pytest.mark.parametrize("cluster", [None, *hopper_matmul_mgpu.MatmulDimension])
def test_upstream_s_matmul(monkeypatch, cluster):
    monkeypatch.setattr(hopper_matmul_mgpu, "get_num_sms", lambda: 132)
    config = hopper_matmul_mgpu.TuningConfig(64, 64, 64, 3, cluster_dimension=cluster)
    call = lambda a, b: hopper_matmul_mgpu.matmul(a, b, None, config)
    program = pipelib.trace(call, like(256, 256), like(256, 256))
    check(program)
    products = [[op.kind for op in ops].count("wgmma") for ops in program.threads]
    assert products == [4, 4, 0]


@pytest.mark.parametrize(
    ("name", "causal"),
    [("attention", False), ("attention", True), ("attention_with_pipeline_emitter", False)],
)
def test_upstream_s_attention(monkeypatch, name, causal):
    versions = types.SimpleNamespace(cuda_runtime_get_version=lambda: 13000)
    monkeypatch.setattr(attention_mgpu, "cuda_versions", versions)
    config = attention_mgpu.TuningConfig(64, 64, 2, causal=causal)
    call = lambda q, k, v: getattr(attention_mgpu, name)(q, k, v, config)
    program = pipelib.trace(call, *[like(1, 256, 2, 64, dtype=jnp.float16)] * 3)
    check(program)
    kinds = [op.kind for ops in program.threads for op in ops]
    assert {"load", "wgmma", "acc_init", "registers", "store"} <= set(kinds)


def test_upstream_s_ragged_dot_wants_its_group_sizes():
    options = dict(block_m=64, block_n=64, block_k=64, max_concurrent_steps=2, grid_block_n=2)
    call = lambda a, b, sizes: ragged_dot_mgpu.ragged_dot(a, b, group_sizes=sizes, **options)
    args = like(256, 128), like(2, 128, 128)
    check(pipelib.trace(call, *args, np.array([100, 156], np.int32)))
    with pytest.raises(ValueError, match="depends on what a tensor holds"):
        pipelib.trace(call, *args, like(2, dtype=jnp.int32))
