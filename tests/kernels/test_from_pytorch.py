"""The kernels that PyTorch can call, by `plgpu.as_torch_kernel`: what it takes, and on a GPU."""

import functools
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib.kernels import matmul, softmax
from pipelib.kernels.attention import attention_kernel
from tests.kernels.attention.cases import (
    BRAIN,
    check_close,
    config_of,
    exact,
    lowered,
    operands,
)

PAGE = pathlib.Path(__file__).parents[2].joinpath("book/api_kernels.md").read_text("utf-8")
CODE = re.search(r"^## From PyTorch$.*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]


def beside_the_kernel(call, *arrays):
    """What a function is lowered to, but for calls, which JAX inlines."""
    text = lowered(call, *arrays)
    found = re.findall(r"^ +(?:%\S+ = )?([\w.]+)", text, re.MULTILINE)
    assert text.count("@mosaic_gpu_v2(") == found.count("stablehlo.custom_call")
    return [each for each in found if each not in ("func.func", "call", "return")]


def test_nothing_beside_the_kernel():
    """Which is all that `plgpu.as_torch_kernel` can run."""
    arrays = operands(256, 200, 2, 1, 128)
    attend = functools.partial(attention_kernel, causal=True, config=config_of(128))
    assert beside_the_kernel(attend, *arrays) == ["stablehlo.custom_call"]
    a, b = jnp.ones((2048, 2048), BRAIN), jnp.ones((2048, 4096), BRAIN)
    assert beside_the_kernel(matmul, a, b) == ["stablehlo.custom_call"]


@pytest.mark.parametrize(
    ("call", "arrays"),
    [
        (softmax, [jnp.ones((64, 128), BRAIN)]),
        (matmul, [jnp.ones((1000, 1024), BRAIN), jnp.ones((1024, 1001), BRAIN)]),
        (matmul, [jnp.ones((64, 8192), BRAIN), jnp.ones((8192, 1024), BRAIN)]),
    ],
)
def test_what_is_more_than_a_kernel(call, arrays):
    """As the page says: reshapes; XLA's product; a K whose parts are added up."""
    assert beside_the_kernel(call, *arrays) != ["stablehlo.custom_call"]


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal):
    torch = pytest.importorskip("torch")
    arrays = operands(1024, 1000, 12, 2, 128, BRAIN, batch=2)
    tensors = [torch.tensor(np.asarray(x, np.float32)).cuda().bfloat16() for x in arrays]
    call = plgpu.as_torch_kernel(functools.partial(attention_kernel, causal=causal))
    out, lse = call(*tensors)
    torch.cuda.synchronize()
    found = jnp.asarray(out.float().cpu().numpy(), BRAIN), lse.cpu().numpy()
    check_close(found, exact(*arrays, causal=causal), BRAIN)


@pytest.mark.gpu
def test_the_page():
    """Its lines, beside PyTorch's own results in float64; and what it says of gradients."""
    torch = pytest.importorskip("torch")
    names = {}
    exec(CODE, names)
    q, k, v, w, out, lse = map(names.get, ["q", "k", "v", "w", "out", "lse"])
    exact_ones = [x.double().transpose(1, 2) for x in (q, k, v)]
    attended = torch.nn.functional.scaled_dot_product_attention(*exact_ones, is_causal=True)
    torch.testing.assert_close(out.double(), attended.transpose(1, 2), rtol=2e-2, atol=2e-2)
    scores = exact_ones[0] @ exact_ones[1].mT / q.shape[-1] ** 0.5
    seen = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
    expected = scores.masked_fill(~seen, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(lse.double(), expected, rtol=1e-3, atol=1e-3)
    product = out.view(2048, 2048).double() @ w.double()
    torch.testing.assert_close(names["projected"].double(), product, rtol=1e-2, atol=5e-2)
    again = names["multiply"](out.view(2048, 2048).requires_grad_(), w)
    assert again.grad_fn is None
