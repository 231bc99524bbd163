"""`pipelib_book.beside`: what an answer leaves to XLA is found, and what moves nothing is not."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib_book import grade
from pipelib_book.beside import Made, beside_of

X = jnp.arange(64.0 * 128).reshape(64, 128)
OTHER = X + 1


def doubled(x):
    def kernel(x_gmem, o_gmem):
        o_gmem[...] = 2.0 * x_gmem[...]

    return plgpu.kernel(kernel, out_type=x)(x)


@pytest.mark.parametrize(
    "answer",
    [
        doubled,
        jax.jit(doubled),
        lambda x: doubled(x[None][0]),
        lambda x: doubled(x.reshape(-1)).reshape(x.shape),
        lambda x: lax.fori_loop(0, 1, lambda i, y: doubled(y), x),
        lambda x: (x + 1, doubled(x))[1],  # nobody needs the sum
        lambda x: doubled(jnp.zeros_like(x) if x.ndim > 2 else x),
        lambda x: plgpu.kernel(lambda x, o: None, out_type=jnp.zeros_like(x))(x),
    ],
)
def test_a_kernel_alone(answer):
    assert beside_of(answer, [X]).faults() == []


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (lambda x: doubled(x) * 0 + 2 * x, "XLA does `add` and `mul` beside the kernel"),
        (lambda x: doubled(x * 2), "XLA does `mul` beside the kernel"),
        (jax.jit(lambda x: jax.jit(doubled)(jnp.exp(x))), "XLA does `exp` beside the kernel"),
        (lambda x: doubled(x.T).T, "XLA does `transpose` beside the kernel"),
        (lambda x: doubled(jnp.zeros_like(x)), "XLA does `broadcast_in_dim` beside the kernel"),
        (lambda x: doubled(OTHER), "the kernel takes an array that is no argument"),
        (lambda x: (doubled(x), OTHER)[1], "it returns an array that the kernel did not make"),
        (lambda x: (doubled(x), x), "it returns an array that the kernel did not make"),
    ],
)
def test_what_is_left_to_xla(answer, fault):
    assert fault in beside_of(answer, [X]).faults()


def test_what_xla_may_do():
    answer = lambda x: doubled(x).sum(0)
    fault = "XLA does `reduce_sum` beside the kernel"
    assert beside_of(answer, [X]).faults() == [fault]
    assert beside_of(answer, [X]).faults(["reduce_sum"]) == []
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams()):
        got = grade(answer, X, expected=2 * X.sum(0))
        assert not got.passed and got.lines[-1] == f"It is right, but {fault}."
        assert grade(answer, X, expected=2 * X.sum(0), xla_does=["reduce_sum"]).passed


ARGUMENT, KERNEL = Made(of_arguments=True), Made(by_kernel=True)


@pytest.mark.parametrize(
    ("answer", "inputs", "results"),
    [
        (doubled, ARGUMENT, KERNEL),
        (lambda x: doubled(x.reshape(32, 256).reshape(X.shape)).reshape(-1), ARGUMENT, KERNEL),
        (lambda x: doubled(x[:, None].transpose((1, 0, 2))[0]), ARGUMENT, KERNEL),
        (lambda x: doubled(x + 1), Made(True, False, frozenset({"add"})), KERNEL),
        (lambda x: doubled(OTHER), Made(), KERNEL),
        (lambda x: doubled(x)[:2], ARGUMENT, Made(False, True, frozenset({"slice"}))),
        (lambda x: (doubled(x), x)[1], ARGUMENT, ARGUMENT),
    ],
)
def test_how_arrays_were_made(answer, inputs, results):
    assert beside_of(answer, [X]) == ((inputs,), (results,))
    assert (inputs.is_argument, results.is_kernel_s) == (inputs == ARGUMENT, results == KERNEL)
