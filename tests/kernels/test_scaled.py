"""`scaled_matmul` against float64: interpreted, checked, compiled; on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import pallascope
from pipelib.kernels.hopper import Gpu, assumed
from pipelib.kernels.scaled import scaled_matmul
from tests.emitters.contract import interpreted
from tests.kernels.matmul.products import check_close
from tests.kernels.scaled_cases import (
    BRAIN,
    CONFIGS,
    E4M3,
    E5M2,
    FLOAT,
    expected,
    operands,
)


@pytest.fixture
def on_an_h200():
    with assumed(Gpu("NVIDIA H200", "9.0")):
        yield


@pytest.mark.parametrize(
    ("sizes", "dtypes", "out_dtype"),
    [
        ((128, 128, 128), (E4M3, E4M3), BRAIN),
        ((200, 264, 400), (E4M3, E5M2), BRAIN),  # edges of all three
        ((5, 8, 1680), (E5M2, E4M3), FLOAT),  # more steps than slots
    ],
)
def test_product(sizes, dtypes, out_dtype):
    arrays = operands(*sizes, dtypes)
    with interpreted():
        out = scaled_matmul(*arrays, out_dtype=out_dtype)
    check_close(out, expected(*arrays), out_dtype)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_configurations(config):
    arrays = operands(200, 264, 1168)  # 10 times 128, of which the last is short
    with interpreted():
        out = scaled_matmul(*arrays, out_dtype=FLOAT, config=config)
    check_close(out, expected(*arrays), FLOAT)


def test_vmap_jit_scan_and_shard_map():
    a, b, a_scales, b_scales = operands(40, 128, 256)
    many = jnp.stack([a_scales, 2 * a_scales])
    call = lambda scales: scaled_matmul(a, b, scales, b_scales)
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = P("x"), P()
    sharded = jax.shard_map(
        scaled_matmul, mesh=mesh, in_specs=(rows, whole, rows, whole), out_specs=rows
    )
    with interpreted():
        found = jax.jit(jax.vmap(call))(many)
        _, again = jax.lax.scan(lambda _, scales: (None, call(scales)), None, many)
        shards = jax.jit(sharded)(a, b, a_scales, b_scales)
    for out, same, scales in zip(found, again, many):
        check_close(out, expected(a, b, scales, b_scales), BRAIN)
        np.testing.assert_array_equal(out, same)
    np.testing.assert_array_equal(shards, found[0])


def test_it_has_no_gradient():
    a, b, a_scales, b_scales = operands(8, 128, 128)
    total = lambda scales: scaled_matmul(a, b, scales, b_scales).astype(FLOAT).sum()
    with pytest.raises(NotImplementedError, match=r"^scaled_matmul has no gradient: multiply"):
        jax.grad(total)(a_scales)
    with pytest.raises(NotImplementedError, match=r"^scaled_matmul has no gradient: multiply"):
        jax.jvp(total, (a_scales,), (a_scales,))


@pytest.mark.usefixtures("on_an_h200")
def test_check_finds_a_slot_released_too_early(monkeypatch):
    from pipelib import ring

    monkeypatch.setattr(ring.Channel, "wait_until_released", lambda self, slot: None)
    program = pallascope.trace(scaled_matmul, *operands(201, 264, 1680))  # not traced yet
    assert "race" in {finding.kind for finding in pallascope.check(program)}


@pytest.mark.compiler
@pytest.mark.usefixtures("on_an_h200")
def test_it_compiles():
    """All that a step adds to its two products: 64 multiplications with an addition for each."""
    shapes = (((2048, 2048), E4M3), ((2048, 2048), E4M3), ((2048, 16), FLOAT), ((16, 16), FLOAT))
    found = pallascope.compiled(scaled_matmul, *(jax.ShapeDtypeStruct(*shape) for shape in shapes))
    assert found.kernel == "scaled_matmul" and found.ok and not found.serialized
    assert (found.spill_stores, found.instructions["HGMMA"]) == (0, 8)
    (loop,) = (loop for loop in found.loops if loop.instructions["HGMMA"])
    counts = loop.instructions
    assert (counts["FFMA"], counts["FMUL"], counts["FADD"], counts["BAR"]) == (128, 4, 0, 0)


@pytest.mark.compiler
@pytest.mark.usefixtures("on_an_h200")
@pytest.mark.parametrize("sizes", [(1009, 1096, 2064), (1, 512, 1024), (100, 264, 400)], ids=str)
def test_it_compiles_for_float32(sizes):
    """Also where the result does not divide into pieces."""
    call = functools.partial(scaled_matmul, out_dtype=FLOAT)
    assert pallascope.compiled(call, *operands(*sizes)).ok
