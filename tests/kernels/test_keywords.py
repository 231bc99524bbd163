"""Names that others have for arguments: what is said of each, and that it is so."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipelib.kernels as made
from pipelib.kernels import keywords
from tests.emitters.contract import interpreted
from tests.kernels import printed

#: The functions, each with its table.
TABLES = {
    made.attention: keywords.ATTENTION,
    made.attention_reference: keywords.ATTENTION,
    made.decode_attention: keywords.DECODE,
    made.matmul: keywords.MATMUL,
    made.ragged_dot: keywords.RAGGED,
    made.scaled_matmul: keywords.SCALED_PRODUCT,
    made.collective_matmul: keywords.PRODUCT,
    made.softmax: keywords.SOFTMAX,
    made.rms_norm: keywords.RMS_NORM,
}
ENTRIES = [
    pytest.param(function, name, sentence, id=f"{function.__name__}-{name}")
    for function, table in TABLES.items()
    for names, sentence in table.items()
    for name in names.split()
]


@pytest.mark.parametrize(("function", "name", "sentence"), ENTRIES)
def test_a_name_of_others_is_refused_in_one_sentence(function, name, sentence):
    with pytest.raises(TypeError) as error:
        function(**{name: 1})
    text = str(error.value)
    assert text == f"{function.__name__}: {name} {sentence}"
    assert len(text.split()) >= 6 and text.endswith(".") and not re.search(r"\. [A-Z]", text)
    parameters = inspect.signature(function).parameters
    assert name not in parameters, "it is ours, too"
    assert {*re.findall(r"is called (\w+) here", text)} <= {*parameters}
    for there in printed.dotted(text):
        assert callable(printed.meaning(there))


def test_each_public_function_that_takes_arrays_has_a_table():
    others = {"attention_space", "row_space", "matmul_space", "dot_product_attention"}
    functions = {name for name in made.__all__ if inspect.isfunction(getattr(made, name))}
    assert functions - others == {function.__name__ for function in TABLES}


@pytest.mark.parametrize(("function", "wrong", "near"), [
    (made.attention, "casual", "causal"), (made.attention, "segment_id", "segment_ids"),
    (made.decode_attention, "length", "lengths"), (made.matmul, "transposed_b", "transpose_b"),
])  # fmt: skip
def test_another_unknown_name_comes_with_the_nearest(function, wrong, near):
    said = f"{function.__name__}() got an unexpected keyword argument {wrong!r}."
    with pytest.raises(TypeError, match=f"^{re.escape(said)} Did you mean {near!r}\\?$"):
        function(**{wrong: 1})


def test_what_is_near_nothing_is_python_s_error():
    x = jnp.ones((8, 128))
    with pytest.raises(TypeError, match=r"^softmax\(\) got an unexpected keyword argument 'foo'$"):
        made.softmax(x, foo=1)


@pytest.mark.parametrize("function", TABLES)
def test_a_function_is_still_itself(function):
    assert inspect.isfunction(function) and inspect.getdoc(function)
    assert "options" not in inspect.signature(function).parameters
    assert function.__module__.startswith("pipelib.kernels.")


# What the sentences give as a remedy.


def remedy(table, name, pattern):
    """The code in the sentence of a name."""
    (sentence,) = [text for names, text in table.items() if name in names.split()]
    return re.search(pattern, sentence)[1]


def test_sizes_of_groups_by_their_ends():
    code = remedy(keywords.RAGGED, "offs", r"group_sizes=(jnp\.diff\(.*\))\.")
    assert eval(code, dict(jnp=jnp, offs=jnp.array([3, 3, 8]))).tolist() == [3, 0, 5]


def test_an_epilogue_of_a_bias_and_of_an_activation():
    a, bias = jnp.ones((64, 64), jnp.bfloat16), jnp.ones(64)
    options = remedy(keywords.MATMUL, "bias", r"as in (.*)\.$")
    activation = remedy(keywords.MATMUL, "activation", r"as in (.*)\.$")
    call = dict(matmul=made.matmul, a=a, bias=bias, jnp=jnp)
    with interpreted():
        sums = eval(f"matmul(a, a, {options})", call)
        waves = eval(f"matmul(a, a / 64, {activation})", call)
    assert float(sums[0, 0]) == 65.0 and abs(float(waves[0, 0]) - np.tanh(1.0)) < 4e-3


def test_sliding_window_of_n_keys():
    code, n = remedy(keywords.ATTENTION, "sliding_window", r"where (\(.*?\)) are"), 3
    k = v = jnp.eye(8, 64, dtype=jnp.float16)[None, :, None]
    with interpreted():
        out = made.attention(jnp.zeros_like(k), k, v, window=eval(code, dict(n=n)))
    expected = [0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 0, 0]
    np.testing.assert_allclose(np.asarray(out[0, 5, 0, :8]), expected, 0, 1e-3)


def test_what_is_called_under_jit_is_refused_too():
    x = jnp.ones((1, 64, 1, 64), jnp.bfloat16)
    with pytest.raises(TypeError, match=r"^attention: sm_scale is called scale here\."):
        jax.jit(lambda q: made.attention(q, q, q, sm_scale=1.0))(x)
