"""The schedule "optimistic": when a step makes a maximum, and that it does where it must."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pipelib.kernels import AttentionConfig, attention
from pipelib.kernels.attention import optimistic
from tests.emitters.contract import interpreted
from tests.kernels.attention.cases import (
    BRAIN,
    CASES,
    HALF,
    check_close,
    exact,
    operands,
    small,
)

#: Of the scores of a row, in powers of 2: far above `LIMIT`, and far above what float32 holds.
LARGE, HUGE = 2.0 ** np.array([5, 9])


def on_gpu(head_dim):
    """With steps that a GPU has the registers and the memory for."""
    return AttentionConfig(block_kv=64 if head_dim == 256 else 128, schedule="optimistic")


def growing(largest, queries=128, keys=512, head_dim=64, dtype=HALF, place=None):
    """q, k and v whose scores grow with the keys, or only at one (query, key)."""
    q, k, v = operands(queries, keys, head_dim=head_dim, dtype=dtype)
    q, k = np.array(q, np.float32), np.array(k, np.float32)
    q[..., 0] = 1.0
    k[..., 0] = np.linspace(0.0, largest, keys)[:, None]
    if place is not None:
        query, key = place
        q[..., 0], k[..., 0] = 0.0, 0.0
        q[:, query, :, 0], k[:, key, :, 0] = 1.0, largest
    return jnp.asarray(q, dtype), jnp.asarray(k, dtype), v


def test_steps_of_normal_data_need_no_maximum():
    """Why `pallascope` takes the short way of such a branch by default."""
    q, k, _ = (np.asarray(x, np.float32)[0, :, 0] for x in operands(256, 8192, 1, 1, 128))
    scores = (q @ k.T / np.sqrt(128)).reshape(256, -1, 128)
    powers = np.exp(scores - scores[:, :1].max(2, keepdims=True))
    assert powers.sum(2).max() < optimistic.LIMIT / 2**6


@pytest.fixture
def limit(monkeypatch, traced_anew):
    """Sets `LIMIT`, for kernels that are traced from now on."""

    def put(value):
        monkeypatch.setattr(optimistic, "LIMIT", value)
        jax.clear_caches()

    return put


def run(arrays, scale=1.0):
    config = small("optimistic")
    with interpreted():
        return attention(*arrays, config=config, scale=scale, return_residuals=True)


@pytest.mark.parametrize("largest", [0.0, LARGE, HUGE])
def test_scores_that_grow(largest):
    arrays = growing(largest)
    check_close(run(arrays), exact(*arrays, scale=1.0), HALF)


@pytest.mark.parametrize("place", [(5, 300), (127, 511), (64, 64)])
def test_one_score_that_is_large(place):
    """One lane sees it, and all lanes of its thread make the maximum."""
    arrays = growing(HUGE, place=place)
    check_close(run(arrays), exact(*arrays, scale=1.0), HALF)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of infinities
def test_without_the_check_it_is_wrong(limit):
    """So the check is what makes the results above right."""
    arrays = growing(HUGE)
    limit(np.inf)
    with pytest.raises(AssertionError):
        check_close(run(arrays), exact(*arrays, scale=1.0), HALF)


@pytest.mark.parametrize("value", [-1.0, 2.0**15, 2.0**60])
def test_the_limit_changes_no_result_that_has_room(value, limit):
    """-1: every step makes its maximum. 2**60: none does."""
    limit(value)
    arrays = operands(128, 512, dtype=BRAIN)
    check_close(run(arrays), exact(*arrays, scale=1.0), BRAIN)


def test_a_maximum_only_where_it_must_be(limit, monkeypatch):
    """Counted as the interpreter goes through the steps."""
    counts, again = [], optimistic.Optimistic._with_maximum

    def counted(self, now, state):
        jax.debug.callback(lambda: counts.append(1))
        return again(self, now, state)

    monkeypatch.setattr(optimistic.Optimistic, "_with_maximum", counted)
    jax.clear_caches()
    for arrays, scale, expected in ((operands(128, 512), 0.1, 0), (growing(HUGE), 1.0, 2 * 7)):
        counts.clear()
        jax.block_until_ready(run(arrays, scale))
        jax.effects_barrier()
        assert len(counts) == expected  # of two threads, and all steps but the first


@pytest.mark.parametrize("case", CASES)
def test_masks(case):
    """Rows that see nothing at first have no maximum to begin with."""
    shape, options = CASES[case]
    arrays = operands(*shape)
    with interpreted():
        found = attention(*arrays, config=small("optimistic"), return_residuals=True, **options)
    check_close(found, exact(*arrays, **options), HALF)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_so(value):
    """In the rows that see it; an infinite score makes them so, too."""
    q, k, v = operands(128, 320)
    k = k.at[0, 200, 0, 0].set(value)
    q = q.at[0, :, 0, 0].set(1.0)
    out, _ = run((q, k, v))
    assert np.isnan(np.asarray(out, np.float32)).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [128, 256])
@pytest.mark.usefixtures("traced_anew")
def test_k_stays_until_the_sums_are_there(head_dim, causal, monkeypatch):
    """Else the scores that are made again are those of another step: the checker sees both ways."""
    arrays = operands(256, 1280, 1, 1, head_dim)
    call = functools.partial(attention, config=on_gpu(head_dim), causal=causal)
    assert pallascope.check(pallascope.trace(call, *arrays), strict=True).ok
    queue = optimistic.Optimistic.queue

    def early(self, now, p, result):
        scores = queue(self, now, p, result)
        plgpu.barrier_arrive(now.k_out)
        return scores

    monkeypatch.setattr(optimistic.Optimistic, "queue", early)
    jax.clear_caches()
    assert not pallascope.check(pallascope.trace(call, *arrays)).ok


def test_what_it_needs():
    with pytest.raises(ValueError, match="needs threads that take turns, but compute_threads=1"):
        AttentionConfig(compute_threads=1, schedule="optimistic")
    with pytest.raises(ValueError, match="slots=1 has no slot to load into"):
        AttentionConfig(slots=1, schedule="optimistic")


@pytest.mark.compiler
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_ptxas_waits_for_no_product_and_spills_nothing(head_dim, causal):
    """Else it is slower than what it takes the place of."""
    call = functools.partial(attention, causal=causal, config=on_gpu(head_dim))
    found = pallascope.compiled(call, *operands(512, 512, 2, 1, head_dim))
    assert not found.serialized and not found.spill_stores


# On a Hopper GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("largest", [0.0, LARGE, HUGE])
def test_scores_that_grow_on_gpu(largest, head_dim, dtype):
    arrays = growing(largest, 512, 2048, head_dim, dtype)
    found = attention(*arrays, config=on_gpu(head_dim), scale=1.0, return_residuals=True)
    check_close(found, exact(*arrays, scale=1.0), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_few_large_scores_on_gpu(seed, causal):
    """Of chance queries and keys: some lanes of some warps see one, in some steps."""
    draw = np.random.default_rng(seed)
    q, k, v = (np.array(x, np.float32) for x in operands(2048, 2048, 2, 2, 128))
    q[..., 0], k[..., 0] = 0.0, 0.0
    for _ in range(40):
        q[0, draw.integers(2048), draw.integers(2), 0] = 1.0
        k[0, draw.integers(2048), draw.integers(2), 0] = draw.choice([20.0, 100.0, 400.0])
    arrays = tuple(jnp.asarray(x, BRAIN) for x in (q, k, v))
    call = functools.partial(attention, config=on_gpu(128), causal=causal)
    found = call(*arrays, scale=1.0, return_residuals=True)
    check_close(found, exact(*arrays, causal=causal, scale=1.0), BRAIN)


@pytest.mark.gpu
def test_persistent_visits_with_large_scores_on_gpu():
    """More blocks than multiprocessors: each begins its next queries without a maximum."""
    q, k, v = growing(HUGE, 1024, 1024, 128, BRAIN)
    arrays = tuple(jnp.tile(x, (4, 1, 8, 1)) for x in (q, k, v))
    found = attention(*arrays, config=on_gpu(128), scale=1.0, return_residuals=True)
    expected = [np.tile(x, (4, *r)) for x, r in zip(exact(q, k, v, scale=1.0), ((1, 8, 1), (8, 1)))]
    check_close(found, expected, BRAIN)
