"""The table of tuned products: which entry is nearest, and when none counts."""

import functools
import json
import math

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelib.kernels import MatmulConfig
from pipelib.kernels.matmul import tuned


def entry_of(m, n, k, dtype="bfloat16", transposed=(False, False), config=None):
    config = config or MatmulConfig(width=m % 31 + 1)
    return tuned.Entry(m, n, k, dtype, *transposed, "bfloat16", config, 1.0, 1, {})


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
        found = tuned.nearest_config(*shape, "bfloat16", gpu="NVIDIA H200")
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
    nearest = functools.partial(tuned.nearest_config, gpu="NVIDIA H200")
    assert nearest(4096, 4096, 4096, jnp.float16) == plain
    assert nearest(4095, 4089, 4033, jnp.bfloat16) == plain, "as many tiles and steps"
    assert nearest(4096, 4096, 4032, jnp.bfloat16) is None, "a step less"
    assert nearest(3968, 4096, 4096, jnp.bfloat16) is None, "a row of tiles less"
    assert nearest(48, 64, 64, "bfloat16", transpose_b=True) == turned
    assert nearest(47, 64, 64, "bfloat16", transpose_b=True) is None, "many rows less"
    assert nearest(4096, 4096, 4096, "bfloat16", transpose_a=True) is None
    assert nearest(4096, 4096, 4096, "float8_e4m3fn") is None


def test_a_configuration_that_does_not_fit_the_result_is_passed_over(tables):
    large, small = MatmulConfig(slots=4, epilogue_n=128), MatmulConfig(slots=3)
    near, far = (
        entry_of(*shape, config=config)
        for shape, config in (((4096,) * 3, large), ((4096, 4096, 4090), small))
    )
    tables(nvidia_h200=[near, far])
    with pytest.raises(ValueError, match="shared memory"):
        large.check("bfloat16", "float32")
    nearest = functools.partial(tuned.nearest_config, *(4096,) * 3, "bfloat16", gpu="NVIDIA H200")
    assert nearest(out_dtype="float32") == small


def test_another_gpu_s_table_is_better_than_none(tables):
    mine, other = MatmulConfig(width=2), MatmulConfig(width=3)
    tables(
        nvidia_h100=[entry_of(64, 64, 64, config=mine)],
        nvidia_h200=[entry_of(64, 64, 64, config=other)],
    )
    nearest = functools.partial(tuned.nearest_config, 64, 64, 64, "bfloat16")
    assert nearest(gpu="NVIDIA H100") == mine
    assert nearest(gpu="NVIDIA H200") == other
    assert nearest(gpu="NVIDIA H20") == mine, "the first of the others"
    assert nearest() == mine, "no GPU here"


def test_without_a_table_there_is_no_answer(tables):
    assert tuned.nearest_config(64, 64, 64, "bfloat16") is None


def test_a_table_is_read_once(tables, monkeypatch):
    tables(nvidia_h200=[entry_of(64, 64, 64)])
    counted = []
    read = tuned.read
    monkeypatch.setattr(tuned, "read", lambda path: counted.append(path) or read(path))
    for _ in range(3):
        tuned.nearest_config(64, 64, 64, "bfloat16", gpu="NVIDIA H200")
    assert len(counted) == 1
