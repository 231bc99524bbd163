"""A notebook on any machine: finds the device, makes kernels run on it, and shows text.

A chapter's first cell calls `setup()`. From then on the same cells run on any
machine, in one of two ways:

| way         | where             | kernels                 | sizes        |
| ----------- | ----------------- | ----------------------- | ------------ |
| native      | on a Hopper GPU   | compiled by Mosaic GPU  | `pick(gpu=)` |
| interpreted | on any other      | run by Pallas's GPU     | `pick(cpu=)` |
|             | machine, on its   | interpreter, with race  |              |
|             | CPU               | detection               |              |

On a GPU before Hopper that has `cp.async` (compute capability 8.0 to 8.9, as an A100 or an L4),
`natively` has what is inside run on that GPU.

Measured numbers reach the text through `say`, so that none is typed by hand.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Any, cast

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallascope.bench import provenance


@dataclasses.dataclass(frozen=True)
class Device:
    """What `setup()` found; its `str` is the line that a chapter shows.

    Attributes:
      name: The GPU's name, or "cpu".
      compute_capability: As in "9.0"; None on a CPU.
      native: Whether kernels run on the GPU, not in the interpreter.

    Example:
      >>> print(book.Device("NVIDIA H200", "9.0", native=True))
      NVIDIA H200 (compute capability 9.0), JAX ...: kernels run natively,
      at full size.
    """

    name: str
    compute_capability: str | None
    native: bool

    def __str__(self) -> str:
        """One line: the device, and how kernels run on it."""
        name = self.name
        if self.compute_capability is not None:
            name += f" (compute capability {self.compute_capability})"
        if self.native:
            return f"{name}, JAX {jax.__version__}: kernels run natively, at full size."
        where, place, but = f"No Hopper GPU here ({name})", "", ""
        if self.compute_capability is not None:
            where = f"The GPU here is no Hopper GPU ({name})"
            place = " on the CPU"
        if self.is_earlier:
            but = " What stands below `with book.natively()` runs on the GPU here, and is timed."
        return (
            f"{where}, JAX {jax.__version__}: kernels run in Pallas's GPU interpreter{place},"
            " with race detection, at small sizes. None is timed; checks and simulated figures"
            f" need no GPU.{but}"
        )

    @property
    def is_earlier(self) -> bool:
        """Whether it is a GPU before Hopper that has `cp.async`: pipelines run there, `wgmma` not.

        Example:
          >>> book.Device("NVIDIA L4", "8.9", native=False).is_earlier
          True
        """
        return str(self.compute_capability).startswith("8.")


_device: Device | None = None


def setup() -> Device:
    """Finds the device, makes kernels run on it, and says so in one line.

    A second call changes nothing, and says the same again.

    Example:
      >>> device = book.setup()  # without a GPU
      No Hopper GPU here (cpu), JAX ...: kernels run in Pallas's GPU
      interpreter, with race detection, at small sizes. None is timed;
      checks and simulated figures need no GPU.
      >>> device.native
      False
    """
    global _device
    if _device is None:
        _device = _find_device()
        if not _device.native:
            _interpret_on_cpu()
        _draw_sharp_figures()
    say(str(_device))
    return _device


@contextlib.contextmanager
def natively() -> Iterator[bool]:
    """Kernels inside run on the GPU here, also if it is one before Hopper; arrays are made there.

    It is for kernels that such a GPU can run: `pipelib.emit_pipeline` without `wgmma`, and no
    copies or stores of the kernel's own by TMA.

    Yields:
      Whether kernels run natively inside: never on a machine without a GPU, where they are
      interpreted as outside.

    Raises:
      RuntimeError: If `setup()` has not been called.

    Example:
      >>> _ = book.setup()
      No Hopper GPU here ...
      >>> with book.natively() as native:
      ...     size = book.pick(gpu=4096, cpu=256)
      >>> native, size
      (False, 256)
    """
    global _device
    found = _device
    if found is None:
        raise RuntimeError(
            "natively() cannot tell how kernels run here before setup() was called: run the"
            " chapter's first cell."
        )
    if not found.is_earlier:
        yield found.native
        return
    with (
        jax.default_device(jax.devices("gpu")[0]),
        plgpu.force_gpu_interpret_mode(cast(Any, None)),
    ):
        _device = dataclasses.replace(found, native=True)
        try:
            yield True
        finally:
            _device = found


def pick[T](*, gpu: T, cpu: T) -> T:
    """The value for this machine: `gpu` where kernels run natively.

    Raises:
      RuntimeError: If `setup()` has not been called.

    Example:
      >>> _ = book.setup()
      No Hopper GPU here ...
      >>> book.pick(gpu=4096, cpu=256)
      256
    """
    if _device is None:
        raise RuntimeError(
            "pick() cannot tell how kernels run here before setup() was"
            " called: run the chapter's first cell."
        )
    return gpu if _device.native else cpu


def say(markdown: str) -> None:
    """Shows a paragraph of Markdown in a notebook; prints it elsewhere.

    Example:
      >>> book.say(f"A step loads **{2 * 128 * 64 / 1024:g} KiB**.")
      A step loads **16 KiB**.
    """
    if _notebook_shell() is None:
        print(markdown)
        return
    from IPython.display import Markdown, display

    display(Markdown(markdown))


def _find_device() -> Device:
    device = jax.devices()[0]
    return Device(
        name=device.device_kind,
        compute_capability=getattr(device, "compute_capability", None),
        native=provenance.on_hopper(),
    )


def _interpret_on_cpu() -> None:
    """The interpreter stands for the GPU: its arrays belong on the CPU."""
    jax.config.update("jax_default_device", jax.devices("cpu")[0])
    plgpu.set_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True))


def _draw_sharp_figures() -> None:
    """Figures as SVG, without the date that would differ from run to run."""
    shell = _notebook_shell()
    if shell is not None:
        shell.config.InlineBackend.figure_formats = {"svg"}
        shell.config.InlineBackend.print_figure_kwargs = {
            "bbox_inches": "tight",
            "metadata": {"Date": None},
        }


def _notebook_shell() -> Any:
    """The IPython shell of a notebook's kernel; None in any other process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell if hasattr(shell, "kernel") else None
