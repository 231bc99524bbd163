"""`pipelib.book`: what chapters rely on, on a machine without a Hopper GPU."""

import dataclasses
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import book

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def not_set_up(monkeypatch):
    """As before the first `setup()`, and JAX afterwards as it was."""
    monkeypatch.setattr(book, "_device", None)
    monkeypatch.setattr(book, "_interpret_on_cpu", lambda: None)


def found(monkeypatch, **device):
    monkeypatch.setattr(book, "_device", book.Device(**device))


def test_setup_says_in_one_line_what_it_found(not_set_up, capsys):
    device = book.setup()
    printed = capsys.readouterr().out
    assert printed == f"{device}\n"
    assert printed.count("\n") == 1
    for part in (
        "No Hopper GPU here (cpu)",
        jax.__version__,
        "interpreter",
        "race detection",
        "small sizes",
        "None is timed",
    ):
        assert part in printed


def test_setup_can_be_called_again(not_set_up, capsys):
    first, second = book.setup(), book.setup()
    assert first is second
    one, other = capsys.readouterr().out.splitlines()
    assert one == other


def test_a_hopper_gpu_is_named_with_its_capability():
    device = book.Device("NVIDIA H100", "9.0", native=True)
    assert str(device) == (
        f"NVIDIA H100 (compute capability 9.0), JAX {jax.__version__}:"
        " kernels run natively, at full size."
    )


@pytest.mark.parametrize("capability", ["8.0", "10.0", "12.0"])
def test_other_gpus_interpret(monkeypatch, capability):
    # Before Hopper there is no wgmma; after it, it is gone.
    @dataclasses.dataclass
    class Gpu:
        compute_capability: str
        device_kind: str = "NVIDIA Other"

    monkeypatch.setattr(jax, "devices", lambda: [Gpu(capability)])
    device = book._find_device()
    assert not device.native
    assert f"NVIDIA Other (compute capability {capability})" in str(device)


def test_pick_takes_the_size_for_the_device(monkeypatch):
    found(monkeypatch, name="cpu", compute_capability=None, native=False)
    assert book.pick(gpu=4096, cpu=128) == 128
    found(monkeypatch, name="H100", compute_capability="9.0", native=True)
    assert book.pick(gpu=4096, cpu=128) == 4096


def test_pick_before_setup_says_what_to_do(not_set_up):
    with pytest.raises(RuntimeError) as error:
        book.pick(gpu=1, cpu=2)
    assert "before setup()" in str(error.value)
    assert "run the chapter's first cell" in str(error.value)


def test_say_prints_outside_a_notebook(capsys):
    book.say("It took **3** steps.")
    assert capsys.readouterr().out == "It took **3** steps.\n"


def test_check_says_the_error(capsys):
    book.check("x", [3.0, 4.0], [3.0, 4.005], tolerance=2e-3)
    assert capsys.readouterr().out == "x: relative error 1.0e-03, within 2e-03.\n"


@pytest.mark.parametrize(
    ("actual", "said"),
    [
        ([3.0, 4.1], "relative error 2.0e-02, over 2e-03."),
        ([3.0, float("nan")], "relative error nan, over 2e-03."),
    ],
)
def test_check_stops_at_a_wrong_result(actual, said):
    with pytest.raises(AssertionError) as error:
        book.check("x", actual, [3.0, 4.0], tolerance=2e-3)
    assert str(error.value) == f"x is wrong: {said}"


@pytest.mark.parametrize(
    ("actual", "expected", "said"),
    [
        (  # broadcast, these would be equal
            jnp.ones((4, 1)), jnp.ones(4),
            "it is float32[4,1] where float32[4] is expected, and nothing is broadcast",
        ),
        (
            jnp.ones((), jnp.float16), jnp.ones(2),
            "it is float16[] where float32[2] is expected, and nothing is broadcast",
        ),
        (
            jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.float16),
            "it is bfloat16[2] where float16[2] is expected, and not every bfloat16 is a float16",
        ),
        (
            jnp.ones(2), jnp.ones(2, jnp.float16),
            "it is float32[2] where float16[2] is expected, and not every float32 is a float16",
        ),
        (
            jnp.ones(2, jnp.int32), jnp.ones(2),
            "it is int32[2] where float32[2] is expected, and not every int32 is a float32",
        ),
        (
            (jnp.ones((2, 2)), jnp.ones(2)), jnp.ones(2),
            "a tuple of 2 whose parts differ in shape is no array",
        ),
    ],
    ids=["broadcast", "one number", "other floats", "coarser reference", "integers", "two arrays"],
)  # fmt: skip
def test_check_needs_the_reference_s_shape_and_dtype(actual, expected, said):
    with pytest.raises(AssertionError) as error:
        book.check("x", actual, expected, tolerance=1.0)
    assert str(error.value) == f"x is wrong: {said}, so no error is measured."


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_check_takes_a_more_precise_reference(dtype, capsys):
    book.check("x", jnp.ones(2, dtype), jnp.ones(2), tolerance=0)
    assert capsys.readouterr().out == "x: relative error 0.0e+00, within 0e+00.\n"


def test_check_compares_with_zeros_absolutely(capsys):
    book.check("x", jnp.zeros(3), np.zeros(3), tolerance=0)
    with pytest.raises(AssertionError):
        book.check("x", jnp.ones(3), np.zeros(3), tolerance=0.5)


def test_compare_times_nothing_in_the_interpreter(monkeypatch, capsys):
    found(monkeypatch, name="cpu", compute_capability=None, native=False)
    assert book.compare({"f": jnp.sin}, 1.0, flops=1) is None
    assert "Not timed here" in capsys.readouterr().out


def test_compare_shows_a_table(monkeypatch, capsys):
    found(monkeypatch, name="H100", compute_capability="9.0", native=True)
    samples = {"cuBLAS": (10.0, 10.0, 10.0), "mine": (20.0, 20.0, 20.0)}
    samples = {n: book.timing.Samples(us) for n, us in samples.items()}
    monkeypatch.setattr(book.timing, "measure", lambda functions, args, **_: samples)
    assert book.compare(dict.fromkeys(samples), flops=4e9) is samples
    *_, cublas, mine = capsys.readouterr().out.splitlines()
    assert cublas == "| cuBLAS | 10.0 | 0.0 | 400 | 1.00x |"
    assert mine == "| mine | 20.0 | 0.0 | 200 | 0.50x |"


def timed(**microseconds):
    return {name: book.timing.Samples(us) for name, us in microseconds.items()}


def test_the_fastest_has_the_least_median():
    # The mean and the least time would name the other.
    times = timed(a=(1.0, 20.0, 20.0, 20.0), b=(10.0, 10.0, 10.0, 99.0), c=(30.0, 30.0, 30.0, 30.0))
    assert book.fastest(times)[0] == "b"


def test_one_that_is_clear_of_the_others_is_the_fastest():
    # Quartiles 10 and 12, and 12.5 and 14.5: the ranges are apart, though some times are not.
    times = timed(b=(12.5, 13.5, 14.5), a=(10.0, 11.0, 12.0))
    assert book.fastest(times) == ("a", "**a** is the fastest.")
    times = timed(b=(1.0, 12.5, 13.5, 14.5, 99.0), a=(10.0, 10.5, 11.0, 11.5, 12.0))
    assert book.fastest(times)[1] != "**a** is the fastest."


@pytest.mark.parametrize("low", [11.0, 12.0])
def test_whose_middle_halves_overlap_or_touch_cannot_be_told_apart(low):
    times = timed(a=(10.0, 11.0, 12.0), b=(low, low + 1, low + 2), c=(90.0, 91.0, 92.0))
    assert book.fastest(times) == (
        "a",
        "**a** is the fastest by its median, but it cannot be told apart from **b**: the middle"
        " halves of their times overlap.",
    )


def test_a_tie_goes_to_the_first_and_is_told():
    times = timed(z=(10.0, 10.0), a=(10.0, 10.0), b=(10.0, 10.0), c=(10.0, 10.0))
    assert book.fastest(times) == (
        "z",
        "**z** is the fastest by its median, but it cannot be told apart from **a**, **b** and"
        " **c**: the middle halves of their times overlap with its own.",
    )


def test_one_alone_is_the_fastest():
    assert book.fastest(timed(only=(3.0, 4.0))) == ("only", "**only** is the fastest.")


def test_of_none_there_is_no_fastest():
    with pytest.raises(ValueError) as error:
        book.fastest({})
    said = "No function was timed, so none is the fastest: give one or more."
    assert str(error.value) == said


def test_after_setup_a_kernel_runs_here():
    """In a process of its own, since setup() is for good."""
    program = "import tests.test_book as t; t.run_a_kernel()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_after_setup_a_kernel_runs_on_the_gpu(monkeypatch):
    monkeypatch.setattr(book, "_device", None)
    run_a_kernel()
    assert book._device.native


def run_a_kernel():
    book.setup()

    def double(x_gmem, y_gmem, x_smem, landed):
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, landed)
        plgpu.barrier_wait(landed)
        x_smem[...] = x_smem[...] * 2
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem, y_gmem)
        plgpu.wait_smem_to_gmem(0)

    x = jnp.arange(256, dtype=jnp.float32)
    y = plgpu.kernel(
        double,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=dict(
            x_smem=plgpu.SMEM(x.shape, x.dtype), landed=plgpu.Barrier()
        ),
    )(x)
    np.testing.assert_array_equal(y, 2 * np.asarray(x))


def test_importing_it_loads_no_notebook_or_plotting_library():
    program = (
        "import sys, pipelib.book;"
        "print([m for m in ('IPython', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout == "[]\n", done.stderr
