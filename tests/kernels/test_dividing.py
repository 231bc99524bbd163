"""What a block has in shared memory: allocated, added up, and refused, from one description."""

import re

import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs
from pipelib.kernels import AttentionConfig, GradientConfig, MatmulConfig
from pipelib.kernels.attention.config import ALL, DQ
from pipelib.kernels.choosing import fits, while_they_fit
from pipelib.kernels.dividing import (
    Barriers,
    Smem,
    allocations,
    check_registers,
    check_smem,
    smem_bytes,
    terms,
)

MEMORY = {
    "slots": Smem("slots", (3, 64, 64), jnp.bfloat16, 3, is_emitted=True),
    "operands": Smem("operands", (2, 64, 64), jnp.bfloat16, 4, copies=2),
    "lse": Smem("log-sum-exp", (2, 64), jnp.float32, is_tiled=False),
    "ring": Barriers(6, is_emitted=True),
    "loaded": Barriers(2, 3),
    "met": Barriers(arrivals=2),
}


def test_each_array_is_counted_and_rounded_up():
    kinds = [("slots", 3, 8192), ("operands", 4, 8192), ("log-sum-exp", 1, 1024)]
    assert terms(MEMORY) == [*kinds, ("barriers", 9, 8)]
    assert smem_bytes(MEMORY) == 7 * 8192 + 1024 + 9 * 8


def test_what_no_emitter_has_is_allocated():
    found = allocations(MEMORY)
    assert list(found) == ["operands", "lse", "loaded", "met"]
    assert [each.shape for each in found["operands"]] == [(2, 64, 64)] * 2
    assert (found["loaded"].num_barriers, found["loaded"].num_arrivals) == ((2,), 3)
    assert found["met"] == plgpu.Barrier(num_arrivals=2)


@pytest.mark.parametrize(
    ("memory", "names"),
    [
        (AttentionConfig().memory(128), {"q", "lse", "loaded", "turns"}),
        (AttentionConfig().memory(128, persistent=True), {"q", "next_q", "lse", "loaded", "turns"}),
        (GradientConfig().memory(DQ, 128), {"operands", "numbers", "loaded"}),
        (
            GradientConfig().memory(ALL, 128, interpreted=True),
            {"operands", "loaded", "d_s", "d_q", "exchanged", "queries", "factors"},
        ),
        (
            MatmulConfig().memory("bfloat16", "float32", ["float16"]),
            {"staging", "operand 0", "loaded"},
        ),
    ],
)
def test_kernels_have_their_fields(memory, names):
    assert allocations(memory).keys() == names


def test_errors_have_the_sum():
    more = [("partial results", 1, specs.SMEM_BYTES)]
    message = (
        "Config: slots 3 x 8,192 B + operands 4 x 8,192 B + log-sum-exp 1 x 1,024 B + barriers 9 x"
        f" 8 B + partial results 1 x {specs.SMEM_BYTES:,} B = {58_440 + specs.SMEM_BYTES:,} B of"
        f" shared memory, but a block has {specs.SMEM_BYTES:,} B, so the kernel could not start."
    )
    check_smem("Config", MEMORY)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_smem("Config", MEMORY, more)
    check_registers("Config", {"result": 64}, 2, 40)
    message = r"^Config: result 128 \+ scores 128 = 256 registers of a lane, but each of 2 compute"
    with pytest.raises(ValueError, match=message):
        check_registers("Config", {"result": 128, "scores": 128}, 2, 40)


def test_what_fits_comes_before_what_does_not():
    configs = [MatmulConfig(slots=slots) for slots in (2, 4, 8, 3)]
    problem = "bfloat16", "bfloat16"
    assert [fits(config, *problem) for config in configs] == [True, True, False, True]
    assert [config.slots for config in while_they_fit(configs, *problem)] == [2, 4]
