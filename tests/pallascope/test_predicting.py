"""`predict`: which blocks of a grid it looks at, and what it says of a function's kernels."""

import functools
import re
from statistics import fmean

import jax
import jax.numpy as jnp
import pytest

import pallascope
from pallascope.machine import H200
from pallascope.predicting import ERRORS, SHORT_US, Likeness, sampled
from pallascope.tracing.trace import tracers
from pipelib.kernels import attention, matmul, softmax
from pipelib.kernels.hopper import Gpu, assumed
from pipelib_book.measured import model
from tests.pallascope import toy
from tests.pallascope.kernels import add_one, like

SMALL, LARGE = like(256, 64), like(64 * 4096, 64)


@pytest.fixture(scope="module", autouse=True)
def _on_an_h200():
    with assumed(Gpu("NVIDIA H200", "9.0")):
        yield


def heads(sequence):
    return like(1, sequence, 2, 64, dtype=jnp.bfloat16)


def gradients(q, k, v, deterministic):
    total = lambda *qkv: attention(*qkv, deterministic=deterministic).astype(jnp.float32).sum()
    return jax.grad(total, (0, 1, 2))(q, k, v)


# Which blocks are traced.


def samples_of(work, grid, sms=1):
    """The indices that are sampled of blocks with so many operations, and all that are traced."""
    traced = []

    def program(index):
        traced.append(index)
        return toy.program([toy.compute(flops=work(*index))], grid=grid)

    return list(sampled(program, grid, sms)), traced


def test_blocks_that_do_the_same_are_one():
    found, traced = samples_of(lambda i, j: 7, (5, 8))
    assert found == [(0, 0)]
    assert traced == [(0, 0), (2, 0), (4, 0), (0, 4), (0, 7)]


def test_more_positions_are_traced_along_an_axis_on_which_blocks_differ():
    found, traced = samples_of(lambda i, j: 7 + j, (5, 33))
    assert found == [(0, j) for j in range(0, 33, 4)]
    assert len(traced) == len(set(traced))
    # Only the longest block counts where all run at once.
    assert samples_of(lambda i, j: 7 + j, (5, 33), sms=200)[0] == [(0, 0), (0, 16), (0, 32)]


def test_of_several_such_axes_fewer_positions_are_traced():
    found, _ = samples_of(lambda i, j: 7 + i + j, (5, 33))
    assert found == [(i, j) for i in (0, 2, 4) for j in (0, 16, 32)]


def test_a_large_product_is_known_from_one_block():
    x = like(8192, 8192, dtype=jnp.bfloat16)
    (tracer,) = tracers(matmul, (x, x), "predict")
    assert len(sampled(tracer.program, tracer.grid, H200.sms)) == 1


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_causal_attention_differ_along_the_sequence(causal):
    q = heads(2048)
    (tracer,) = tracers(functools.partial(attention, causal=causal), (q, q, q), "predict")
    *_, last = tracer.grid
    found = sampled(tracer.program, tracer.grid, sms=4)
    places = {index[-1] for index in found}
    assert {index[:-1] for index in found} == {(0, 0)}
    assert places >= {0, last - 1} and len(places) > 3 if causal else places == {0}


# What is predicted.


@pytest.mark.parametrize(
    ("deterministic", "kernels"),
    [(False, ["attention_gradients"]), (True, ["attention_dq", "attention_dkv"])],
)
def test_each_kernel_of_a_function_has_a_launch(deterministic, kernels):
    q = heads(512)
    found = pallascope.predict(functools.partial(gradients, deterministic=deterministic), q, q, q)
    assert [launch.kernel for launch in found.launches] == ["attention", *kernels]
    kernels = sum(launch.us for launch in found.launches)
    assert found.us == pytest.approx(kernels + sum(found.around))
    assert all(0 < launch.use < 1 and launch.us > 1 for launch in found.launches)
    forward = pallascope.predict(attention, q, q, q)
    assert found.launches[0] == forward.launches[0]


def test_a_clock_that_is_given_is_that_of_all_kernels():
    x = like(1024, 1024)
    loaded, full = pallascope.predict(matmul, x, x), pallascope.predict(matmul, x, x, clock_hz=2e9)
    assert [launch.clock_hz for launch in full.launches] == [2e9]
    (launch,) = loaded.launches
    assert launch.clock_hz < H200.clock_hz
    # Work leaves a kernel the clock that its own use of the tensor cores says.
    assert launch.clock_hz == pytest.approx(H200.loaded(launch.use).clock_hz, rel=0.01)


def test_registers_decide_how_many_blocks_an_sm_has():
    found = {
        registers: pallascope.predict(add_one, LARGE, registers=registers).launches[0]
        for registers in (None, 32, 255)
    }
    assert [found[n].blocks_per_sm for n in (32, 255)] == [16, 2]
    assert found[255].rounds > found[32].rounds
    # Without them a guess: a lane reads 32 elements, and has 16 registers for all else.
    assert found[None] == pallascope.predict(add_one, LARGE, registers=16 + 16).launches[0]


def test_arrays_that_are_in_l2_are_loaded_sooner():
    cold, warm = (pallascope.predict(add_one, SMALL, l2_hits=hits).us for hits in (None, 1))
    assert cold - warm > 1e6 * H200.cold_seconds


def test_it_prints_a_line_for_each_launch():
    found = pallascope.predict(lambda x: add_one(add_one(x)), SMALL)
    first, *lines = str(found).splitlines()
    text = r"\d+\.\d us, predicted on NVIDIA H200; calls like it: 12% off in the mean"
    assert re.fullmatch(text, first)
    assert len(lines) == 2 and repr(found) == str(found)
    pattern = (
        r"- add_one%s: \d\.\d us, \d,\d{3} cycles at 1\.9\d GHz; 1 to an SM, 1 in turn; tensor"
        r" cores busy 0%%"
    )
    for line, number in zip(lines, ("", r" \(2\)")):
        assert re.fullmatch(pattern % number, line), line


def test_a_prediction_says_how_far_calls_like_it_were_off():
    square, rows, head = like(2048, 2048), like(8192, 8192), heads(2048)
    predict = lambda *call: pallascope.predict(*call).error
    assert predict(matmul, square, square) == ERRORS[Likeness.PRODUCT]
    assert predict(attention, head, head, head) == ERRORS[Likeness.ATTENTION]
    assert predict(softmax, rows) == ERRORS[Likeness.OTHER]
    assert predict(softmax, like(4, 64)) == ERRORS[Likeness.SHORT]


def test_the_errors_are_those_of_the_record():
    errors = dict[Likeness, list[float]]()
    known = {"matmul": Likeness.PRODUCT, "rms_norm": Likeness.OTHER, "softmax": Likeness.OTHER}
    for each in model.defaults():
        assert each.us_predicted is not None
        is_short = each.us_predicted <= SHORT_US
        kind = Likeness.SHORT if is_short else known.get(each.family, Likeness.ATTENTION)
        errors.setdefault(kind, []).append(abs(each.error))
    assert {kind: round(fmean(found), 2) for kind, found in errors.items()} == ERRORS


def test_another_machine_is_another_time():
    slow = H200.changed(name="slow", hbm_bytes_per_second=1e12)
    found = pallascope.predict(add_one, LARGE, machine=slow)
    assert (
        found.machine == "slow"
        and found.error is None
        and found.us > 2 * pallascope.predict(add_one, LARGE).us
    )


def test_what_cannot_be_predicted_is_refused():
    with pytest.raises(ValueError, match="predict: the function calls no Mosaic GPU kernel, so"):
        pallascope.predict(jnp.sin, like(8))
    with pytest.raises(TypeError, match=r"predict takes .*Machine.*, not a value of type str"):
        pallascope.predict(add_one, SMALL, machine="H200")
    with pytest.raises(TypeError, match="predict takes a function, not a value of type int"):
        pallascope.predict(3)
    with pytest.raises(TypeError, match="predict takes a number for l2_hits=, not a value of type"):
        pallascope.predict(add_one, SMALL, l2_hits="all")
    with pytest.raises(ValueError, match=r"^l2_hits=2 is not a fraction from 0 to 1 of the bytes"):
        pallascope.predict(add_one, SMALL, l2_hits=2)


# The tracer.


@pytest.mark.parametrize("block", [None, (1,), (3,)])
def test_a_kernel_that_is_traced_again_is_the_same_program(block):
    (tracer,) = tracers(add_one, (SMALL,), "predict")
    assert tracer.grid == (4,)
    first = tracer.program((2,))
    expected = pallascope.trace(add_one, SMALL, block=block)
    assert tracer.program(block) == tracer.program(block) == expected
    assert tracer.program((2,)) == first != expected
