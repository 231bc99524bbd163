"""The contract in the GPU interpreter, with race detection; `contract` has the cases."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from tests.emitters import contract

PLAIN, _, TWO_THREADS = contract.PIPELIB
# With the second JAX, each function's last case is enough, by the emitters that differ most.
BOTH_JAX = {pair.id for pair in contract.pairs([PLAIN, TWO_THREADS], every_value=False)}


@pytest.mark.parametrize(
    ("case", "emitter"),
    [
        pytest.param(*pair.values, id=pair.id, marks=[pytest.mark.both_jax] * (pair.id in BOTH_JAX))
        for pair in contract.pairs(contract.PIPELIB)
    ],
)
def test_contract(case, emitter):
    with contract.interpreted():
        case.function(emitter)


# Those that count steps, indices and slots, which a wider default integer could disturb.
COUNTING = [
    pair
    for pair in contract.pairs(contract.PIPELIB, every_value=False)
    if pair.id.startswith(("few_dynamic_steps", "revisited_output", "delayed_slot", "chain"))
]


@pytest.mark.parametrize(("case", "emitter"), COUNTING)
def test_contract_with_64_bit_integers(case, emitter):
    with jax.enable_x64(True), contract.interpreted():
        case.function(emitter)


# Without race detection, which calls upstream's releases after ordinary reads a race.
@pytest.mark.parametrize(("case", "emitter"), contract.pairs(contract.UPSTREAM, stores=False))
def test_upstream_satisfies_the_contract_too(case, emitter):
    with contract.interpreted(detect_races=False):
        case.function(emitter)


@pytest.mark.parametrize("emitter", contract.PIPELIB, ids=lambda emitter: emitter.name)
def test_a_race_is_seen(emitter):
    """What the contract rests on: without `commit_smem` after ordinary reads, the suite fails."""
    with pytest.raises(Exception, match="RACE DETECTED"), contract.interpreted():
        contract.total(emitter, ordinary_reads=False)
    with contract.interpreted():
        contract.total(emitter)


@pytest.mark.parametrize("shape", [(16, 96), (5, 256), (5, 96)], ids=str)
@pytest.mark.parametrize("is_tiled", [False, True])
def test_a_block_that_is_longer_than_its_array_lowers(shape, is_tiled):
    """Its first index is 0, a number; from 0.12 on JAX refuses a slice that then ends beyond.

    A tiled axis asks for an index that is seen to be a multiple of the tile.
    """
    transforms = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128)) if is_tiled else ()

    def kernel(x_gmem, o_gmem, o_smem):
        def body(_, x_smem):
            # No registers have as few rows in tiles: there the copies alone are lowered.
            o_smem[...] = jnp.zeros(o_smem.shape, o_smem.dtype) if is_tiled else x_smem[...]

        spec = plgpu.BlockSpec(
            (8, 128),
            lambda i: (i, 0) if shape[0] > 8 else (0, i),
            transforms=transforms,
        )
        pipelib.emit_pipeline(body, grid=(2,), in_specs=[spec])(x_gmem)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    out = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    made = plgpu.kernel(kernel, out_type=out, scratch_types=[plgpu.SMEM((8, 128), jnp.float32)])
    types = jax.ShapeDtypeStruct(shape, jnp.float32)
    lowered = jax.jit(made).trace(types).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()
