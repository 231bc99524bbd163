"""`kernel_times`: the times of the kernels that a function launches, by CUPTI.

The model. CUPTI, the profiling library of CUDA, notes when each kernel begins and ends on the GPU.
So neither the launch nor the host counts. JAX's `Cupti` runs a function once before that, untimed.

This is the one place that knows what JAX's `Cupti` returns, which it does not declare: a list of
kernels for one call, a list of these lists for several calls, and None where no kernel ran.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

from jax.experimental.mosaic.gpu import profiler


class Kernel(NamedTuple):
    """A kernel that ran: its name, and its time in milliseconds."""

    name: str
    ms: float


def kernel_times(function: Callable[..., object], *args: object, calls: int) -> list[list[Kernel]]:
    """The kernels of each call of a function, in the order in which they ran.

    Args:
      function: jitted, or compiled.
      args: its arguments.
      calls: how many calls are timed, 1 or more; they are queued one behind the other.

    Raises:
      RuntimeError: the function launched no kernel; CUPTI is not at hand; calls launched different
        kernels.
    """
    cupti = profiler.Cupti(finalize=False)
    _, found = cupti.measure(function, aggregate=False, iterations=calls)(*args)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if found is None:
        raise RuntimeError("CUPTI saw no kernel, so there is nothing to time: does this use a GPU?")
    times = cast("list[list[tuple[str, float]]]", [found] if calls == 1 else found)
    return [[Kernel(name, ms) for name, ms in call] for call in times]
