"""`outside_of`: who makes the inputs of a kernel, and the results beside it."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib_book.outside import ARGUMENT, CONSTANT, KERNEL, Outside, outside_of

X = jax.ShapeDtypeStruct((4, 128), jnp.float32)
ONES = jnp.ones(X.shape)


def doubling(x_gmem, o_gmem):
    o_gmem[...] = 2 * x_gmem[...]


doubled = plgpu.kernel(doubling, out_type=X)


@pytest.mark.parametrize(
    ("answer", "maker", "result"),
    [
        (doubled, ARGUMENT, KERNEL),
        (jax.jit(doubled), ARGUMENT, KERNEL),
        (lambda x: doubled(x[None][0])[None], ARGUMENT, KERNEL),
        (lambda x: doubled(x.reshape(2, 256).reshape(4, 128)).reshape(-1), ARGUMENT, KERNEL),
        (lambda x: doubled(x[:, None].transpose((1, 0, 2))[0]), ARGUMENT, KERNEL),
        (lambda x: doubled(x.reshape(128, 4).T), "transpose", KERNEL),
        (lambda x: doubled(x[::-1]), "rev", KERNEL),
        (lambda x: doubled(x + 1), "add", KERNEL),
        (lambda x: doubled(ONES), CONSTANT, KERNEL),
        (lambda x: doubled(x) * 0 + ONES, ARGUMENT, "add"),
        (lambda x: doubled(x)[:2], ARGUMENT, "slice"),
        (lambda x: (doubled(x), ONES)[1], ARGUMENT, CONSTANT),
        (lambda x: (doubled(x), x)[1], ARGUMENT, ARGUMENT),
        (lambda x: jax.jit(lambda y: doubled(y) + 1)(x), ARGUMENT, "add"),
    ],
)
def test_makers(answer, maker, result):
    assert outside_of(answer, X) == Outside((maker,), (result,))


def test_a_loop_of_the_host_makes_all():
    loop = lambda x: jax.lax.fori_loop(0, 2, lambda _, y: doubled(y), x)
    (result,) = outside_of(loop, X).results
    assert result in ("scan", "while")
