"""`pipelib.kernels.attention` against float64: interpreted, traced and checked, lowered; on a GPU.

Interpreted cases are tiny, with one or two compute threads: JAX's interpreter hands each thread's
work to a pool of as many as the machine has cores, and larger ones can starve each other.
"""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pipelib import specs
from pipelib.kernels import AttentionConfig, attention
from pipelib.kernels.attention import (
    attention_kernel,
    attention_reference,
    band,
    default_config,
    forward,
    order,
)
from pipelib.kernels.attention.arguments import segments_of
from pipelib.kernels.attention.config import SCHEDULES
from pipelib.kernels.attention.reference import CHUNK
from pipelib.kernels.hopper import H100_SMS
from tests.emitters.contract import interpreted
from tests.kernels.attention.cases import (
    BRAIN,
    CASES,
    HALF,
    SHAPES,
    check_close,
    config_of,
    exact,
    ids,
    operands,
    small,
    uses_kernel,
)

# Interpreted, with race detection.

_SOME = [("ragged keys", schedule) for schedule in SCHEDULES]
_SOME += [(case, schedule) for case in list(CASES)[1:] for schedule in ("plain", "both")]


@pytest.mark.parametrize(("case", "schedule"), _SOME)
def test_result(case, schedule):
    shape, options = CASES[case]
    arrays, config = operands(*shape), small(schedule)
    assert uses_kernel(*arrays, config=config, **options)
    with interpreted():
        found = attention(*arrays, config=config, return_residuals=True, **options)
    check_close(found, exact(*arrays, **options), HALF)


def test_more_steps_than_slots_in_bfloat16():
    arrays, config = operands(64, 384, dtype=BRAIN, batch=2), small("overlap", slots=3)
    with interpreted():
        found = attention(*arrays, config=config, scale=0.3, return_residuals=True)
    check_close(found, exact(*arrays, scale=0.3), BRAIN)


def test_large_scores():
    """exp of the scores themselves would be infinite, and exp of less all of them 0."""
    q, k, v = operands(64, 128)
    q = q * 60.0
    with interpreted():
        found = attention(q, k, v, config=small("overlap"), return_residuals=True)
    check_close(found, exact(q, k, v), HALF)


def on_two_sms(monkeypatch):
    """Where three blocks are enough for a persistent kernel."""
    monkeypatch.setattr(forward, "num_sms", lambda: 2)


@pytest.mark.parametrize("schedule", ["pingpong", "overlap", "both", "optimistic"])
@pytest.mark.parametrize(
    "shape", [(320, 200, 2, 1), (192, 64, 2, 2)], ids=["ragged", "a step in each visit"]
)
def test_persistent(shape, schedule, monkeypatch):
    """Several visits of a block, as many of each or not."""
    on_two_sms(monkeypatch)
    arrays, config = operands(*shape), small(schedule)
    with interpreted():
        found = attention(*arrays, config=config, return_residuals=True)
    check_close(found, exact(*arrays), HALF)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((640, 640, 2, 1), {"causal": True}),
        ((320, 200, 2, 1), {"causal": True}),
        ((384, 512, 2, 2), {"window": (100, 30)}),
        ((384, 512, 2, 2), {"window": (511, 100)}),
        ((384, 384, 2, 2), {"window": (100, 383)}),
    ],
    ids=["causal", "ragged", "window", "ahead", "behind"],
)
def test_persistent_by_length(shape, options, monkeypatch):
    """Visits of different numbers of steps, forth and back through the order by length."""
    on_two_sms(monkeypatch)
    monkeypatch.setattr(order, "IMBALANCE", 2.0)
    arrays, config = operands(*shape), small("optimistic")
    call = functools.partial(attention, config=config, return_residuals=True, **options)
    program = pallascope.trace(call, *arrays)
    assert program.grid == (1, 1, 2)
    assert pallascope.check(program, strict=True).ok
    with interpreted():
        found = call(*arrays)
    check_close(found, exact(*arrays, **options), HALF)


def test_persistent_by_length_of_more_heads_than_l2_has_room_for(monkeypatch):
    """Whose blocks are short; of one head, whose blocks no two SMs share well."""
    on_two_sms(monkeypatch)
    monkeypatch.setattr(order, "L2_BYTES", 1)
    arrays, config = operands(384, 384, 2, 1), small("optimistic")
    call = functools.partial(attention, config=config, causal=True, return_residuals=True)
    program = pallascope.trace(call, *arrays)
    assert program.grid == (1, 1, 2)
    assert pallascope.check(program, strict=True).ok
    with interpreted():
        found = call(*arrays)
    check_close(found, exact(*arrays, causal=True), HALF)


def test_persistent_under_vmap(monkeypatch):
    """Each element of the axis has blocks of its own."""
    on_two_sms(monkeypatch)
    arrays, config = operands(192, 64, batch=2), small("overlap")
    one = lambda *arrays: attention(*(x[None] for x in arrays), config=config)
    with interpreted():
        out = jax.vmap(one)(*arrays)[:, 0]
    np.testing.assert_allclose(np.asarray(out), exact(*arrays)[0], 0, 2e-3)


def test_vmap_and_jit():
    q, k, v = operands(64, 64, batch=2)
    one = lambda q: attention(q[None], k[:1], v[:1], config=small("plain"))
    with interpreted():
        out = jax.jit(jax.vmap(one))(q)[:, 0]
    again = lambda x: jnp.repeat(x[:1], 2, 0)
    expected, _ = exact(q, again(k), again(v))
    np.testing.assert_allclose(np.asarray(out), expected, 0, 2e-3)


def test_default_configuration_is_one_that_the_interpreter_runs():
    arrays = operands(64, 64)
    with interpreted():
        found = attention(*arrays, return_residuals=True)
    check_close(found, exact(*arrays), HALF)


@pytest.mark.parametrize("function", [attention, attention_reference])
def test_what_is_not_finite_where_nothing_is_seen(function):
    """Of k it reaches only what sees it; of v all queries of a step with it, as JAX's own."""
    q, k, v = (np.array(x) for x in operands(64, 64, 2, 2))
    k[0, 40, 0], v[0, 40, 1] = np.nan, np.nan
    with interpreted(detect_races=False):
        out = function(q, k, v, causal=True)
    of_k, of_v = np.moveaxis(np.isfinite(np.asarray(out[0])).all(2), 1, 0)
    assert of_k[:40].all() and not of_k[40:].any() and not of_v.any()


def test_the_last_query_with_the_last_key():
    """A causal mask as flash_attn's, which the book's table writes as a window."""
    q, k, v = map(np.asarray, operands(16, 40))
    out = attention_reference(q, k, v, window=(None, 40 - 16))
    alone = [exact(q[:, i : i + 1], k[:, : 25 + i], v[:, : 25 + i])[0] for i in range(16)]
    np.testing.assert_allclose(np.asarray(out), np.concatenate(alone, 1), 0, 2e-3)


# Plain JAX: the reference, which the kernel is not needed for, and gradients.


@pytest.mark.parametrize("case", CASES)
def test_reference(case):
    shape, options = CASES[case]
    arrays = operands(*shape)
    found = attention_reference(*arrays, return_residuals=True, **options)
    check_close(found, exact(*arrays, **options), HALF)


def test_reference_in_chunks():
    arrays = operands(2 * CHUNK + 3, 37, 2, 1, 24)
    found = attention_reference(*arrays, causal=True, return_residuals=True)
    check_close(found, exact(*arrays, causal=True), HALF)


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ((64, 64), True),
        ((8, 72), True),
        ((63, 64), True),
        ((64, 63), True),
        ((64, 64, 1, 1, 80), True),
        ((64, 64, 1, 1, 128), True),
        ((64, 64, 1, 1, 256), True),
        ((64, 64, 1, 1, 264), False),
    ],
)
def test_fallback(shape, kernel):
    """The kernel takes all heads up to 256."""
    arrays = operands(*shape)
    assert uses_kernel(*arrays) == kernel
    if not kernel:
        check_close(attention(*arrays, return_residuals=True), exact(*arrays), HALF)


# Traced and checked, and the arithmetic of what it takes.


@pytest.mark.compiler
@pytest.mark.parametrize("schedule", ["overlap", "both"])
@pytest.mark.parametrize("causal", [False, True])
def test_ptxas_waits_for_no_product_of_probabilities_in_registers(causal, schedule):
    """They are rounded late, or else they would overwrite those that the product before reads."""
    config = config_of(128, schedule=schedule, probabilities="registers")
    call = functools.partial(attention, causal=causal, config=config)
    found = pallascope.compiled(call, *operands(512, 512, 2, 1, 128))
    assert not found.serialized and not found.spill_stores


PERSISTENT = [(head_dim, schedule) for head_dim in (64, 128) for schedule in SCHEDULES[1:]]


@pytest.mark.parametrize(("head_dim", "schedule"), PERSISTENT)
def test_check_finds_nothing_in_a_persistent_kernel(head_dim, schedule):
    """Of a block with most visits, and of one with fewest; each loads all of K and V in each."""
    config = config_of(head_dim, schedule=schedule)
    assert config.is_persistent(head_dim)
    arrays = operands(1000, 200, 40, 8, head_dim)
    call = functools.partial(attention, config=config)
    places, steps = 40 * math.ceil(1000 / config.block_q), math.ceil(200 / config.block_kv)
    for block in (0, H100_SMS - 1):
        program = pallascope.trace(call, *arrays, block=(0, 0, block))
        assert list(pallascope.check(program, strict=True)) == []
        visits = math.ceil((places - block) / H100_SMS)
        loads = sum(op.kind == "load" for thread in program.threads for op in thread)
        assert loads == visits * (2 * steps + config.compute_threads)
        assert program.smem_bytes <= config.smem_bytes(head_dim) <= specs.SMEM_BYTES


@pytest.mark.parametrize(
    ("head_dim", "schedule", "causal"),
    [(head_dim, "plain", False) for head_dim in SHAPES]
    + [(head_dim, "pingpong", True) for head_dim in SHAPES]
    + [(256, schedule, False) for schedule in SCHEDULES[1:]],
)
def test_what_no_persistent_kernel_is_for(head_dim, schedule, causal):
    """A schedule that does nothing ahead, a mask, heads for which SMEM has no room."""
    config = config_of(head_dim, schedule=schedule)
    assert config.is_persistent(head_dim) == causal & (head_dim < 256)
    call = functools.partial(attention, config=config, causal=causal)
    with pytest.raises(ValueError, match="is not in the grid"):
        pallascope.trace(call, *operands(1000, 200, 40, 8, head_dim), block=(0, 0, H100_SMS - 1))


def test_not_persistent():
    """With as many blocks as there are places, each of one visit."""
    arrays, config = operands(1024, 128, 40, 40, 128), config_of(128, persistent=np.bool_(False))
    assert not config.is_persistent(128)
    assert config.smem_bytes(128) == config_of(128).smem_bytes(128) - 128 * 128 * 2
    call = lambda *args: attention(*args, config=config)
    program = pallascope.trace(call, *arrays, block=(0, 39, 7))
    assert sum(op.kind == "load" for thread in program.threads for op in thread) == 4


def test_blocks_skip_what_other_documents_have():
    """Of four documents of one block each: the loads of K and V, and no mask in any step."""
    config, arrays = config_of(128), operands(512, 512, 1, 1, 128)
    segments = jnp.repeat(jnp.arange(4), config.block_q)[None, :512]
    call = lambda *args: attention(*args, config=config, segment_ids=segments)
    program = pallascope.trace(call, *arrays, block=(0, 0, 1))
    loads = sum(op.kind == "load" for thread in program.threads for op in thread)
    assert loads == 2 * config.block_q // config.block_kv + config.compute_threads


@pytest.mark.parametrize("lengths", [(40, 32), (40, 0, 32), (72,), (30, 20)])
def test_cumulative_lengths_are_segments(lengths):
    """Behind the end of the last document is another."""
    q, k, _ = operands(72, 72, batch=2)
    ends = jnp.cumsum(jnp.array([0, *lengths]))
    expected = ids(2, *lengths, 72 - sum(lengths))
    for found in segments_of(q, k, None, ends):
        np.testing.assert_array_equal(found - 1, expected)
    own, others = segments_of(q, k, None, (ends, np.asarray([0, 72])))
    np.testing.assert_array_equal(own - 1, expected)
    np.testing.assert_array_equal(others, jnp.ones((2, 72)))


def test_packed_documents_are_computed_apart():
    q, k, v = operands(72, 72)
    options = dict(causal=True, cu_seqlens=jnp.array([0, 40, 72]))
    with interpreted():
        out = attention(q, k, v, **options)
    apart = [exact(*(x[:, a:b] for x in (q, k, v)), causal=True)[0] for a, b in ((0, 40), (40, 72))]
    np.testing.assert_allclose(np.asarray(out), np.concatenate(apart, 1), 0, 2e-3)
    np.testing.assert_allclose(attention_reference(q, k, v, **options), out, 0, 2e-3)


@pytest.mark.parametrize("is_packed", [True, False])
def test_spans_of_segments(is_packed):
    """No block beyond a span has a segment of the rows, and none in its run has another."""
    draw = np.random.default_rng(0)
    for _ in range(20):
        rows, columns = (draw.integers(0, 6, (2, size)) for size in (90, 70))
        if is_packed:
            rows, columns = np.sort(rows), np.sort(columns)
        found = np.asarray(band.spans(jnp.asarray(rows), jnp.asarray(columns), 8, 16))
        assert found.shape == (2, 12, 4)
        for batch, block in np.ndindex(found.shape[:2]):
            own = rows[batch, 8 * block : 8 * block + 8]
            others = [columns[batch, i : i + 16] for i in range(0, 70, 16)]
            seen = [i for i, ids in enumerate(others) if np.isin(ids, own).any()]
            first, end, whole, rest = found[batch, block]
            assert set(seen) <= set(range(first, end))
            assert all({*own, *others[i]} == {own[0]} for i in range(whole, rest))
            if is_packed:
                assert [*range(first, end)] == seen or not seen
                assert rest > whole or not any({*own, *ids} == {own[0]} for ids in others)


def test_causal_blocks_skip_what_is_masked():
    """The loads of K and V: of 1, 2, 3 and 4 blocks, the last queries first."""
    config, arrays = config_of(128), operands(512, 512, 1, 1, 128)
    call = lambda *args: attention(*args, config=config, causal=True)
    counts = []
    for block in range(4):
        program = pallascope.trace(call, *arrays, block=(0, 0, block))
        loads = sum(op.kind == "load" for thread in program.threads for op in thread)
        counts.append(loads - config.compute_threads)
    assert counts == [8, 6, 4, 2]


@pytest.mark.usefixtures("traced_anew")
def test_next_queries_wait_for_the_store(monkeypatch):
    """They are loaded where it reads."""
    wait = plgpu.wait_smem_to_gmem
    monkeypatch.setattr(
        plgpu, "wait_smem_to_gmem", lambda n, wait_read_only=False: wait(9 if wait_read_only else n)
    )
    on_two_sms(monkeypatch)
    arrays = operands(2048, 128, 1, 1, 128)
    program = pallascope.trace(lambda *args: attention(*args, config=config_of(128)), *arrays)
    races = [finding for finding in pallascope.check(program) if finding.kind == "race"]
    assert any("next_q" in finding.cause for finding in races)


MUTATIONS = {
    "K released too early": (
        "wgmma_accumulator_load",
        lambda load: lambda acc, wait_n: load(acc, wait_n=wait_n + 1),
    ),
    "a result that is not committed": ("commit_smem", lambda _: lambda: None),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.usefixtures("traced_anew")
def test_check_finds_what_is_missing(mutation, monkeypatch):
    name, change = MUTATIONS[mutation]
    monkeypatch.setattr(plgpu, name, change(getattr(plgpu, name)))
    arrays = operands(256, 640, 1, 1, 128)
    config = config_of(128, schedule="both")
    report = pallascope.check(
        pallascope.trace(lambda *args: attention(*args, config=config, scale=0.7), *arrays)
    )
    assert not report.ok


@pytest.mark.parametrize("head_dim", SHAPES)
def test_default_configuration_fits(head_dim, monkeypatch):
    default_config(head_dim).check(head_dim)
    gpu = type("Gpu", (), dict(platform="gpu"))
    monkeypatch.setattr(jax, "devices", lambda *_: [gpu])
    assert default_config(head_dim).probabilities == "registers"
    default_config(head_dim).check(head_dim)


# Lowered, without a GPU.


def test_sizes_that_need_more_than_the_kernel():
    message = "attention_kernel: 200 queries are not a multiple of 128 (rows x compute_threads), so"
    with pytest.raises(ValueError, match=re.escape(message)):
        attention_kernel(*operands(200, 64, head_dim=128), config=config_of(128))
    with pytest.raises(ValueError, match="sequences of multiples of 8, which copies can address"):
        attention_kernel(*operands(128, 63, head_dim=128))


# Errors.


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_persistent_is_a_flag(value):
    with pytest.raises(TypeError) as error:
        AttentionConfig(persistent=value)
    assert str(error.value) == (
        f"AttentionConfig: persistent={value!r} has type {type(value).__name__}, but either a block"
        " goes on to other queries or it does not."
    )


@pytest.mark.parametrize("name", ["dq", "dkv", "fused"])
def test_wrong_configurations_of_gradients(name):
    with pytest.raises(TypeError) as error:
        AttentionConfig(**{name: 64})
    assert str(error.value) == (
        f"AttentionConfig: {name}=64 has type int, but a GradientConfig says how a kernel of the"
        " backward pass is divided."
    )


_FLAG = "but what is computed depends on it, so it must be True or False, known before."
_NUMBER = "but a kernel is compiled for it, so it must be a number that is known before."
_WINDOW = (
    "but a kernel is compiled for it, so it must be an integer, or a tuple (left, right) of two"
    " integers, that is known before."
)


@pytest.mark.parametrize(
    ("name", "because"),
    [("causal", _FLAG), ("return_residuals", _FLAG), ("window", _WINDOW), ("scale", _NUMBER)],
)
def test_options_that_are_traced(name, because):
    call = lambda option: attention(*operands(16, 24), **{name: option})
    with pytest.raises(TypeError) as error:
        jax.jit(call)(1)
    assert str(error.value).startswith(f"attention: {name}=")
    assert str(error.value).endswith(because)


@pytest.mark.parametrize("scalar", [np.int64, np.int32, jnp.int32])
@pytest.mark.parametrize("keys", [24, 23])
def test_options_of_numpy_and_jax(scalar, keys):
    """With and without rows of zeros behind the keys."""
    q, k, v = operands(16, keys)
    segments = ids(1, 9, 7), ids(1, 10, keys - 10)
    plain = dict(causal=True, window=(5, None), scale=0.5, segment_ids=segments)
    turned = dict(
        causal=np.bool_(True),
        window=(scalar(5), None),
        scale=np.float32(0.5),
        segment_ids=tuple(map(np.asarray, segments)),
        return_residuals=jnp.bool(False),
    )
    with interpreted():
        expected = attention(q, k, v, config=small("plain"), **plain)
        found = attention(*map(np.asarray, (q, k, v)), config=small("plain"), **turned)
    np.testing.assert_array_equal(found, expected)


# On a Hopper GPU.


@pytest.mark.gpu
def test_large_scores_on_gpu():
    q, k, v = operands(256, 1024, head_dim=128)
    q = q * 60.0
    check_close(attention(q, k, v, return_residuals=True), exact(q, k, v), HALF)


@pytest.mark.gpu
def test_many_launches_agree():
    """A race would show as a difference, now and then."""
    arrays = operands(2048, 2048, 16, 16, 128)
    for causal in (False, True):
        call = functools.partial(attention, *arrays, causal=causal)
        first = call()
        assert all(bool(jnp.array_equal(call(), first)) for _ in range(50))


def test_replaced_configurations_are_equal():
    """A configuration is hashable, so that JAX compiles each once."""
    assert hash(dataclasses.replace(AttentionConfig(), slots=2)) == hash(AttentionConfig())
