"""What the book's chapters need, and kernel authors do not.

A chapter's first cell calls `setup()`. From then on the same cells run on any
machine, in one of two ways:

| way         | where             | kernels                 | sizes        |
| ----------- | ----------------- | ----------------------- | ------------ |
| native      | on a Hopper GPU   | compiled by Mosaic GPU  | `pick(gpu=)` |
| interpreted | on any other      | run by Pallas's GPU     | `pick(cpu=)` |
|             | machine, on its   | interpreter, with race  |              |
|             | CPU               | detection               |              |

Measured numbers reach the text through `say`, so that none is typed by hand.
"""

import dataclasses
import inspect
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from pipelib.bench import provenance, timing
from pipelib.comparison import judge, relative_error
from pipelib.gallery import GALLERY
from pipelib.grading import Grade, grade
from pipelib.measured import outcomes
from pipelib.page import first_findings, report_text
from pipelib.schedule.player import Player, Setting
from pipelib.schedule.report import Report

__all__ = [
    "Device",
    "Grade",
    "check",
    "compare",
    "fastest",
    "grade",
    "hazard_table",
    "pick",
    "play_hazard",
    "relative_error",
    "say",
    "setup",
    "show_code",
    "show_hazard",
    "show_report",
]


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
            return (
                f"{name}, JAX {jax.__version__}: kernels run natively, at full"
                " size."
            )
        return (
            f"No Hopper GPU here ({name}), JAX {jax.__version__}: kernels run"
            " in Pallas's GPU interpreter, with race detection, at small sizes."
            " None is timed; checks and simulated figures need no GPU."
        )


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


def check(name: str, actual: Any, expected: Any, *, tolerance: float) -> None:
    """Says how far a kernel's result is from its reference; raises if too far.

    Raises:
      AssertionError: If its `relative_error` exceeds `tolerance`, is not a number, or cannot be
        measured, since shapes or dtypes differ.

    Example:
      >>> x = jnp.arange(4.0)
      >>> book.check("x + 1", x + 1, [1.0, 2.0, 3.0, 4.0], tolerance=1e-6)
      x + 1: relative error 0.0e+00, within 1e-06.
      >>> book.check("x + 1", x, [1.0, 2.0, 3.0, 4.0], tolerance=1e-6)
      Traceback (most recent call last):
      AssertionError: x + 1 is wrong: relative error 3.7e-01, over 1e-06.
    """
    is_right, said = judge(name, [(actual, expected)], tolerance)
    if not is_right:
        raise AssertionError(said)
    say(said)


def compare(
    functions: Mapping[str, Callable[..., Any]],
    *args: Any,
    flops: float | None = None,
    bytes_moved: float | None = None,
) -> dict[str, timing.Samples] | None:
    """Times functions of the same arguments in one run, and shows a table.

    Of each 3 bursts of 20 launches, in turn, each after a rest of 0.1 seconds.

    Args:
      functions: by name; the first is what the others are compared with.
      args: what each is called with.
      flops, bytes_moved: operations, or bytes read and written, of one call;
        one of them, to show a rate.

    Returns:
      The samples by name; None in the interpreter, whose times mean nothing.

    Example:
      On a Hopper GPU this shows a table, a row for each function. Elsewhere:

      >>> _ = book.setup()
      No Hopper GPU here ...
      >>> a = jnp.ones((128, 128))
      >>> functions = {"dot": jnp.dot, "matmul": jnp.matmul}
      >>> book.compare(functions, a, a, flops=2 * 128**3)
      Not timed here: the interpreter's times say nothing about a GPU.
    """
    if not pick(gpu=True, cpu=False):
        say("Not timed here: the interpreter's times say nothing about a GPU.")
        return None
    results = timing.measure(functions, args, rounds=3, rest_s=timing.REST_S)
    work, unit = (flops, "TFLOP/s") if flops else (bytes_moved, "TB/s")
    first = next(iter(results.values())).median_us
    rows = [f"| function | µs, median | ± half spread | {unit} | speed |"]
    rows.append("|---|--:|--:|--:|--:|")
    for name, samples in results.items():
        rate, speed = samples.rate(work) / 1e12, first / samples.median_us
        half = samples.spread_us / 2
        rows.append(
            f"| {name} | {samples.median_us:.1f} | {half:.1f} | {rate:.{0 if flops else 2}f}"
            f" | {speed:.2f}x |"
        )
    say("\n".join(rows))
    return results


def fastest(times: Mapping[str, timing.Samples]) -> tuple[str, str]:
    """The fastest of some functions, and a sentence that says whether others may be as fast.

    The fastest has the least median, and is the first of those that have it. Another cannot be told
    apart from it where the ranges between their quartiles overlap or touch: within them lies the
    middle half of the times of each.

    Args:
      times: by name, two samples or more each; what `compare` returns, or a part of it.

    Returns:
      (name of the fastest, sentence in Markdown that begins with this name).

    Raises:
      ValueError: If there are no times.

    Example:
      >>> times = {"1 slot": Samples((20.0, 21.0, 22.0))}
      >>> times["2 slots"] = Samples((10.0, 11.0, 12.0))
      >>> best, said = book.fastest(times)
      >>> print(said)
      **2 slots** is the fastest.
      >>> times["4 slots"] = Samples((11.0, 12.0, 13.0))
      >>> best, said = book.fastest(times)
      >>> print(said)
      **2 slots** is the fastest by its median, but it cannot be told apart
      from **4 slots**: the middle halves of their times overlap.
    """
    if not times:
        raise ValueError("No function was timed, so none is the fastest: give one or more.")
    best = min(times, key=lambda name: times[name].median_us)
    _, slowest = _middle_half(times[best])
    others = [name for name in times if name != best and _middle_half(times[name])[0] <= slowest]
    if not others:
        return best, f"**{best}** is the fastest."
    *first, last = (f"**{name}**" for name in others)
    names = f"{', '.join(first)} and {last}" if first else last
    return best, (
        f"**{best}** is the fastest by its median, but it cannot be told apart from {names}: the"
        f" middle halves of their times overlap{' with its own' if first else ''}."
    )


def _middle_half(samples: timing.Samples) -> tuple[float, float]:
    """The quartiles, in microseconds, between which `Samples.spread_us` is the distance."""
    low, _, high = statistics.quantiles(samples.microseconds, n=4)
    return low, high


def show_code(*objects: Any) -> None:
    """Shows the source of functions or classes of the package.

    Example:
      >>> book.show_code(gallery.zeros)
      ````python
      def zeros() -> jax.Array:
      ...
      ````
    """
    sources = (inspect.getsource(each).replace("  # fmt: skip", "") for each in objects)
    say("````python\n" + "\n\n".join(sources) + "````")


def show_report(report: Report) -> None:
    """Shows a report in full, as lines of text.

    Example:
      >>> program = gallery.GALLERY["missing-commit"].program(fixed=True)
      >>> book.show_report(pipelib.check(program))
      ````text
      kernel: no finding (9 ops of 1 thread checked)
      ````
    """
    say(f"````text\n{report_text(report)}\n````")


def show_hazard(name: str) -> None:
    """Shows a hazard of the gallery: code, what is said of it and what it did, the remedy.

    Of the checker's report, the first two findings.

    Example:
      >>> book.show_hazard("missing-commit")
      The copy engine is sent for a tile that not all lanes have finished
      writing.
      ...
      **`pipelib.check`:**
      ...
      - **Remedy:** ...
    """
    hazard, seen = GALLERY[name], outcomes.Outcomes.read()
    source = hazard.source().replace("  # fmt: skip", "")
    report = report_text(pipelib.check(hazard.program(fixed=False)), most=2)
    say(
        f"{hazard.summary}\n\n````python\n{source}````\n\n"
        f"**`pipelib.check`:**\n\n````text\n{report}\n````\n\n"
        f"- **JAX's race detector:** {seen.in_jax(name)}\n"
        f"- **{seen.gpu_name}:** {seen.on_gpu(name)}\n"
        f"- **Remedy:** {hazard.remedy}"
    )


def play_hazard(name: str, **window: Any) -> Player:
    """A figure to step through: a hazard's faulty and its mended version, simulated.

    `window` is what `pipelib.player` takes to show a part of it.

    Example:
      >>> book.play_hazard("release-too-early")
      <Player of ..., ... bytes>
    """
    settings, hazard = [], GALLERY[name]
    for version in ("faulty", "mended"):
        program = hazard.program(fixed=version == "mended")._replace(name=hazard.title)
        findings = [*pipelib.check(program)]
        kinds = ", ".join({finding.kind: None for finding in findings}) or "no finding"
        causes = " ".join(first_findings(finding.cause for finding in findings))
        timeline = pipelib.simulate(program, pipelib.H200)
        settings.append(Setting({"version": version}, timeline, kinds, not findings, causes))
    return pipelib.player(settings, **window)


def hazard_table() -> str:
    """A row for each hazard: what the checker, JAX's race detector and the GPU made of it.

    Example:
      >>> print(book.hazard_table())
      | fault | `pipelib.check` | JAX's race detector | NVIDIA H200 |
      |---|---|---|---|
      | Read before the wait | race | ...
    """
    seen = outcomes.Outcomes.read()
    rows = [f"| fault | `pipelib.check` | JAX's race detector | {seen.gpu_name} |"]
    rows.append("|---|---|---|---|")
    for name, hazard in GALLERY.items():
        kinds = {f.kind: None for f in pipelib.check(hazard.program(fixed=False))}
        rows.append(f"| {hazard.title} | {', '.join(kinds)} | {' | '.join(seen.row(name))} |")
    return "\n".join(rows)


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
