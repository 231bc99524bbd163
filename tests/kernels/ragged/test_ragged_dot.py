"""`ragged_dot` and its gradients against float64: interpreted, checked, compiled; on a GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import pallascope
from pipelib.kernels import MatmulConfig, ragged_dot
from pipelib.kernels.hopper import Gpu, assumed
from pipelib.kernels.ragged.visits import Visits, most_visits
from pipelib.kernels.ragged.weights import launch_weights
from tests.emitters.contract import interpreted
from tests.kernels.ragged.cases import (
    AT_ONCE,
    BRAIN,
    FLOAT,
    GROUPS,
    HALF,
    SMALL,
    TWO,
    UNEQUAL,
    close,
    expected,
    groups_of,
    operands,
)


@pytest.fixture
def on_an_h200():
    with assumed(Gpu("NVIDIA H200", "9.0")):
        yield


@pytest.fixture
def few_blocks(monkeypatch):
    """A block has several tiles, one after another; and interpreting many blocks takes long."""
    monkeypatch.setattr("pipelib.kernels.ragged.call.num_sms", lambda: 2)


# Visits.


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 70), min_size=1, max_size=6),
    rows=st.integers(1, 200),
    tile=st.sampled_from([16, 64]),
)
@pytest.mark.slow
def test_visits_have_all_rows_once_and_of_one_group(sizes, rows, tile):
    found = Visits.of(jnp.array(sizes, jnp.int32), rows, tile)
    count = int(found.number[0])
    assert 1 <= count <= len(found.group) == most_visits(rows, len(sizes), tile)
    seen = []
    for group, row, stop in list(zip(*map(np.asarray, found[1:])))[:count]:
        own = range(row, min(row + tile, stop))
        assert own
        seen += [(r, group) for r in own]
    wanted = np.full(rows, len(sizes))
    for group, own in enumerate(groups_of(rows, sizes)):
        wanted[own] = group
    assert seen == list(enumerate(wanted))


# Interpreted, with race detection.


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("config", [SMALL, TWO, None], ids=["small", "two", "default"])
@pytest.mark.usefixtures("few_blocks")
def test_products(name, config):
    rows, sizes = GROUPS[name]
    arrays = operands(rows, sizes)
    with interpreted():
        out = ragged_dot(*arrays, config=config)
    close(out, expected(*arrays))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("dtype", "out_dtype"), [(HALF, FLOAT), (BRAIN, HALF)])
@pytest.mark.usefixtures("few_blocks")
def test_dtypes_and_edges(transpose, dtype, out_dtype):
    """K and N that are no tiles."""
    arrays = operands(83, [40, 20, 23], 136, 192, dtype, transpose)
    with interpreted():
        out = ragged_dot(*arrays, config=TWO, out_dtype=out_dtype, transpose_rhs=transpose)
    close(out, expected(*arrays, transpose), out_dtype)


@pytest.mark.slow
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("rows", "sizes", "k"),
    [(160, [5, 0, 130, 3], 128), (40, [0, 0], 64), (83, [40, 43], 72)],  # the last in plain JAX
)
@pytest.mark.usefixtures("few_blocks")
def test_gradients(rows, sizes, k, transpose):
    lhs, rhs, sizes = operands(rows, sizes, k, 128, transpose=transpose)
    g = jnp.asarray(np.random.default_rng(1).standard_normal((rows, 128)), BRAIN)
    call = lambda lhs, rhs: ragged_dot(lhs, rhs, sizes, transpose_rhs=transpose)
    with interpreted():
        d_lhs, d_rhs = jax.vjp(call, lhs, rhs)[1](g)
    close(d_lhs, expected(g, rhs, sizes, not transpose))
    for out, own in zip(d_rhs, groups_of(rows, np.asarray(sizes))):
        left, right = (np.asarray(x[own]).astype(np.float64) for x in (lhs, g))
        close(out, right.T @ left if transpose else left.T @ right)


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("config", [SMALL, TWO, AT_ONCE], ids=["small", "two", "at once"])
def test_gradients_of_matrices_by_blocks_of_many_tiles(name, config):
    rows, sizes = GROUPS[name]
    lhs, _, sizes = operands(rows, sizes, 192)
    g = lhs[:, ::-1] * 0.5
    with interpreted():
        out = launch_weights(lhs, g, sizes, config, 2)
    for found, own in zip(out, groups_of(rows, np.asarray(sizes))):
        left, right = (np.asarray(x[own]).astype(np.float64) for x in (lhs, g))
        close(found, left.T @ right)


@pytest.mark.usefixtures("few_blocks")
def test_vmap_scan_and_jit():
    lhs, rhs, sizes = operands(72, [20, 30])
    many = jnp.stack([sizes, sizes[::-1]])
    with interpreted():
        found = jax.jit(jax.vmap(ragged_dot, (None, None, 0)))(lhs, rhs, many)
        _, again = jax.lax.scan(lambda _, s: (None, ragged_dot(lhs, rhs, s)), None, many)
    for out, same, sizes in zip(found, again, many):
        close(out, expected(lhs, rhs, sizes))
        np.testing.assert_array_equal(out, same)


@pytest.mark.slow
@pytest.mark.usefixtures("few_blocks")
def test_shard_map():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    lhs, rhs, sizes = operands(72, [20, 30])
    call = jax.shard_map(ragged_dot, mesh=mesh, in_specs=(P("x"), P(), P()), out_specs=P("x"))
    total = lambda lhs, rhs: call(lhs, rhs, sizes).astype(FLOAT).sum()
    with interpreted():
        close(jax.jit(call)(lhs, rhs, sizes), expected(lhs, rhs, sizes))
        d_lhs, _ = jax.jit(jax.grad(total, (0, 1)))(lhs, rhs)
    close(d_lhs, expected(jnp.ones((72, 128), BRAIN), rhs, sizes, transpose=True))


# Traced and checked, compiled.


@pytest.mark.usefixtures("on_an_h200", "traced_anew")
def test_check_finds_a_staging_slot_that_is_written_too_early(monkeypatch):
    from jax.experimental.pallas import mosaic_gpu as plgpu

    wait = plgpu.wait_smem_to_gmem
    monkeypatch.setattr(plgpu, "wait_smem_to_gmem", lambda n, **how: wait(n + 2 * bool(how), **how))
    monkeypatch.setattr("pipelib.kernels.ragged.call.num_sms", lambda: 1)  # many tiles for a block
    lhs, rhs, sizes = operands(160, [5, 0, 130, 3])
    config = MatmulConfig(64, 128, 64, slots=2, compute_threads=1, width=3)
    call = lambda lhs, rhs: ragged_dot(lhs, rhs, sizes, config=config)
    assert "race" in {
        finding.kind for finding in pallascope.check(pallascope.trace(call, lhs, rhs))
    }


@pytest.mark.compiler
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.usefixtures("on_an_h200")
def test_it_compiles(transpose):
    lhs, rhs, sizes = operands(300, [100, 200], 136, 192, transpose=transpose)
    call = functools.partial(ragged_dot, transpose_rhs=transpose)
    found = pallascope.compiled(call, lhs, rhs, sizes)
    assert found.kernel == "ragged_dot" and found.ok and found.spill_stores == 0


@pytest.mark.compiler
@pytest.mark.usefixtures("on_an_h200")
def test_a_step_of_the_gradients_of_matrices_asks_for_nothing_in_gmem():
    """Neither its loads nor its products: what a tile is, is found once for each tile."""
    lhs, _, sizes = operands(512, [100, 412], 256)
    call = lambda lhs, g, sizes: launch_weights(lhs, g, sizes, MatmulConfig(), 132)
    found = pallascope.compiled(call, lhs, lhs, sizes)
    assert found.kernel == "ragged_dot_weights" and found.ok and found.spill_stores == 0
    loads, products = (loop.instructions for loop in found.loops)
    assert loads["UTMALDG"] == 2 and products["HGMMA"] == 4
    assert loads["LDG"] == products["LDG"] == 0


# What is refused.


def test_sizes_that_no_copy_can_address_are_plain_jax_s():
    for k, n, transpose in ((132, 128, False), (128, 72, False), (128, 68, True)):
        arrays = operands(40, [10, 20], k, n, transpose=transpose)
        with pytest.raises(ValueError, match="calls 0 Mosaic GPU kernels"):
            pallascope.trace(functools.partial(ragged_dot, transpose_rhs=transpose), *arrays)
        close(ragged_dot(*arrays, transpose_rhs=transpose), expected(*arrays, transpose))


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("transpose", [False, True])
def test_gradients_on_gpu(transpose):
    lhs, rhs, sizes = operands(4104, UNEQUAL, 576, 1088, transpose=transpose)
    g = jnp.asarray(np.random.default_rng(1).standard_normal((4104, 1088)), BRAIN)
    call = lambda lhs, rhs: ragged_dot(lhs, rhs, sizes, transpose_rhs=transpose)
    d_lhs, d_rhs = jax.vjp(call, lhs, rhs)[1](g)
    close(d_lhs, expected(g, rhs, sizes, not transpose))
    for out, own in zip(d_rhs, groups_of(4104, UNEQUAL)):
        left, right = (np.asarray(x[own]).astype(np.float64) for x in (lhs, g))
        close(out, right.T @ left if transpose else left.T @ right)
