"""The table of tuned products: which entry is nearest, and when none counts."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelib.kernels import MatmulConfig
from pipelib.kernels.hopper import Gpu, assumed
from pipelib.kernels.matmul import default_choice, default_config, tuned


def entry_of(m, n, k, dtype="bfloat16", transposed=(False, False), config=None, gpu="made up"):
    config, run = config or MatmulConfig(width=m % 31 + 1), dict(gpu=gpu)
    return tuned.Entry(m, n, k, dtype, *transposed, "bfloat16", config, 1.0, 1, run)


def nearest(*product, **more):
    """The configuration of the nearest entry."""
    entry = tuned.nearest_entry(*product, **more)
    return entry and entry.config


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Writes tables by file name, in place of the package's."""
    monkeypatch.setattr(tuned, "FOLDER", tmp_path)

    def write(**entries):
        for name, found in entries.items():
            lines = ",".join(json.dumps(entry.to_json()) for entry in found)
            path = tmp_path / f"{name.replace('_', '-')}.json"
            path.write_text(f'{{"entries": [{lines}]}}')
        tuned._tables.cache_clear()

    yield write
    tuned._tables.cache_clear()


sizes = st.integers(6, 14).map(lambda x: 2**x)
shapes = st.tuples(sizes, sizes, sizes)


@settings(max_examples=80)
@given(st.lists(shapes, min_size=1, unique=True), shapes, st.sampled_from([64, 128, 256]))
def test_the_nearest_entry_of_as_many_tiles_and_steps(recorded, shape, unit):
    """With tiles of unit x 64 and steps of 64, of sizes that are powers of two from 64 on."""
    configs = [MatmulConfig(unit, 64, compute_threads=1, width=i + 1) for i in range(len(recorded))]
    entries = [entry_of(*x, config=config) for x, config in zip(recorded, configs)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuned, "_tables", lambda gpu: (tuple(entries),))
        found = nearest(*shape, "bfloat16", gpu="NVIDIA H200")
    grid = lambda m, n, k: (math.ceil(m / unit), n, k)
    apart = {
        abs(math.log2(x[0] / shape[0])): config
        for x, config in reversed([*zip(recorded, configs)])
        if grid(*x) == grid(*shape) and 4 * shape[0] >= 3 * x[0]
    }
    assert found == (apart[min(apart)] if apart else None)


def test_only_the_same_size_of_factors_and_transpositions_count(tables):
    plain, turned = MatmulConfig(width=2), MatmulConfig(width=3)
    tables(
        nvidia_h200=[
            entry_of(64, 64, 64, transposed=(False, True), config=turned),
            entry_of(4096, 4096, 4096, config=plain),
        ]
    )
    near = functools.partial(nearest, gpu="NVIDIA H200")
    assert near(4096, 4096, 4096, jnp.float16) == plain
    assert near(4095, 4089, 4033, jnp.bfloat16) == plain, "as many tiles and steps"
    assert near(4096, 4096, 4032, jnp.bfloat16) is None, "a step less"
    assert near(3968, 4096, 4096, jnp.bfloat16) is None, "a row of tiles less"
    assert near(48, 64, 64, "bfloat16", transpose_b=True) == turned
    assert near(47, 64, 64, "bfloat16", transpose_b=True) is None, "many rows less"
    assert near(4096, 4096, 4096, "bfloat16", transpose_a=True) is None
    assert near(4096, 4096, 4096, "float8_e4m3fn") is None


def test_a_configuration_that_does_not_fit_the_result_is_passed_over(tables):
    large, small = MatmulConfig(slots=4, epilogue_n=128), MatmulConfig(slots=3)
    near, far = (
        entry_of(*shape, config=config)
        for shape, config in (((4096,) * 3, large), ((4096, 4096, 4090), small))
    )
    tables(nvidia_h200=[near, far])
    with pytest.raises(ValueError, match="shared memory"):
        large.check("bfloat16", "float32")
    near = nearest(*(4096,) * 3, "bfloat16", gpu="NVIDIA H200", out_dtype="float32")
    assert near == small


def test_another_gpu_s_table_is_better_than_none(tables):
    mine, other = MatmulConfig(width=2), MatmulConfig(width=3)
    tables(
        nvidia_h100=[entry_of(64, 64, 64, config=mine)],
        nvidia_h200=[entry_of(64, 64, 64, config=other)],
    )
    near = functools.partial(nearest, 64, 64, 64, "bfloat16")
    assert near(gpu="NVIDIA H100") == mine
    assert near(gpu="NVIDIA H200") == other
    assert near(gpu="NVIDIA H20") == mine, "the first of the others"
    assert near() == mine, "no GPU here"


def test_without_a_table_there_is_no_answer(tables):
    assert nearest(64, 64, 64, "bfloat16") is None


def test_a_table_is_read_once(tables, monkeypatch):
    tables(nvidia_h200=[entry_of(64, 64, 64)])
    counted = []
    read = tuned.read
    monkeypatch.setattr(tuned, "read", lambda path: counted.append(path) or read(path))
    for _ in range(3):
        nearest(64, 64, 64, "bfloat16", gpu="NVIDIA H200")
    assert len(counted) == 1


def test_the_default_says_which_gpu_was_measured_for_it(tables):
    """Of this GPU, if it has a table; else of another; and by a formula, whose rates it has."""
    mine, other = MatmulConfig(width=2), MatmulConfig(width=3)
    tables(
        nvidia_h100=[entry_of(64, 64, 64, config=mine, gpu="NVIDIA H100")],
        nvidia_h200=[entry_of(64, 64, 64, config=other, gpu="NVIDIA H200")],
    )
    factor = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    for here, config, there in (
        ("NVIDIA H100", mine, "NVIDIA H100"),
        ("NVIDIA H200", other, "NVIDIA H200"),
        ("NVIDIA H20", mine, "NVIDIA H100"),
    ):
        with assumed(Gpu(here, "9.0")):
            assert default_choice(factor, factor) == (config, there, True)
            larger = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
            formula = default_choice(larger, larger)
            assert formula.config == default_config(4096, 4096, 4096, jnp.bfloat16, jnp.bfloat16)
            assert formula[1:] == ("NVIDIA H200", False)


def test_the_default_of_factors_that_do_not_meet_is_refused():
    factor = jax.ShapeDtypeStruct((64, 128), jnp.bfloat16)
    with pytest.raises(ValueError, match="matmul: "):
        default_choice(factor, factor)
    with pytest.raises(TypeError, match="matmul: "):
        default_choice(*[jax.ShapeDtypeStruct((64, 64), jnp.int8)] * 2)
    with pytest.raises(TypeError, match="transpose_b"):
        default_choice(factor, factor, transpose_b="yes")
