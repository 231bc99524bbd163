"""`pipelib_book.notebook`: what chapters rely on, on a machine without a Hopper GPU."""

import dataclasses
import pathlib
import subprocess
import sys

import jax
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib_book as book
from pipelib_book import notebook
from tests.pipelib_book.doubling import run_a_kernel

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def not_set_up(monkeypatch):
    """As before the first `setup()`, and JAX afterwards as it was."""
    monkeypatch.setattr(notebook, "_device", None)
    monkeypatch.setattr(notebook, "_interpret_on_cpu", lambda: None)


def found(monkeypatch, **device):
    monkeypatch.setattr(notebook, "_device", book.Device(**device))


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
    device = notebook._find_device()
    assert not device.native
    assert str(device).startswith(
        f"The GPU here is no Hopper GPU (NVIDIA Other (compute capability {capability})), JAX"
        f" {jax.__version__}: kernels run in Pallas's GPU interpreter on the CPU, with race"
    )


@pytest.mark.parametrize(
    ("capability", "is_earlier"), [("7.5", False), ("8.0", True), ("8.9", True), ("10.0", False)]
)
def test_an_earlier_gpu_is_told_what_runs_there(capability, is_earlier):
    device = book.Device("NVIDIA Other", capability, native=False)
    told = " What stands below `with book.natively()` runs on the GPU here, and is timed."
    assert (device.is_earlier, str(device).endswith(told)) == (is_earlier, is_earlier)


def test_natively_changes_nothing_without_a_gpu_and_on_hopper(monkeypatch):
    for native, capability in ((False, None), (False, "7.5"), (False, "10.0"), (True, "9.0")):
        found(monkeypatch, name="here", compute_capability=capability, native=native)
        with book.natively() as runs:
            assert runs is native and book.pick(gpu=True, cpu=False) is native


def test_natively_takes_kernels_to_an_earlier_gpu_and_back(monkeypatch):
    cpu = jax.devices("cpu")[0]
    monkeypatch.setattr(jax, "devices", lambda *_: [cpu])  # it stands for an L4
    found(monkeypatch, name="NVIDIA L4", compute_capability="8.9", native=False)
    outside = notebook._device
    params = plgpu.InterpretGPUParams()
    with plgpu.force_gpu_interpret_mode(params), pytest.raises(KeyError), book.natively() as runs:
        assert runs and book.pick(gpu=True, cpu=False)
        assert jax.config.jax_default_device is cpu
        raise KeyError
    assert notebook._device is outside and not book.pick(gpu=True, cpu=False)
    assert jax.config.jax_default_device is None


def test_natively_before_setup_says_what_to_do(not_set_up):
    with pytest.raises(RuntimeError, match=r"before setup\(\) was called: run the"):
        book.natively().__enter__()


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


def test_after_setup_a_kernel_runs_here():
    """In a process of its own, since setup() is for good."""
    program = "from tests.pipelib_book import doubling; doubling.run_a_kernel()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_after_setup_a_kernel_runs_on_the_gpu(monkeypatch):
    monkeypatch.setattr(notebook, "_device", None)
    run_a_kernel()
    assert notebook._device.native


def test_importing_it_loads_no_notebook_or_plotting_library():
    program = (
        "import sys, pipelib_book;print([m for m in ('IPython', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout == "[]\n", done.stderr
