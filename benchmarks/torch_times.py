"""`kernel_times`: the times of the kernels that PyTorch launches, by CUPTI.

The model. PyTorch's profiler asks CUPTI, as `pallascope.bench.cupti` does for JAX: neither the
launch nor the host counts. CUPTI serves one of them in a process, so whoever measures PyTorch does
it in a process that does not use JAX's.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pallascope.bench.cupti import Kernel


class Seen(NamedTuple):
    """Something that ran on the GPU: when it began, its name, its time; microseconds."""

    start: float
    name: str
    us: float


def kernel_times(launch: Callable[[], Any], calls: int) -> list[list[Kernel]]:
    """The kernels of each call of a function, in the order in which they ran.

    Args:
      launch: starts the kernels.
      calls: how many calls are timed; they are queued one behind the other.

    Raises:
      RuntimeError: as `by_call`.
    """
    import torch

    activities = [torch.profiler.ProfilerActivity.CUDA]
    # It would warn once that it forgets what was seen before a new cycle, of which there is none.
    with torch.profiler.profile(activities=activities, acc_events=True) as found:
        for _ in range(calls):
            launch()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    return by_call(
        (
            Seen(event.time_range.start, event.name, event.time_range.elapsed_us())
            for event in found.events()
            if event.device_type == on_gpu
        ),
        calls,
    )


def by_call(seen: Iterable[Seen], calls: int) -> list[list[Kernel]]:
    """What ran, a list for each call.

    Raises:
      RuntimeError: nothing ran; or calls did not all launch equally many.
    """
    kernels = [Kernel(name, us / 1e3) for _, name, us in sorted(seen)]
    if not kernels or len(kernels) % calls:
        raise RuntimeError(
            f"CUPTI saw {len(kernels)} kernels in {calls} calls, which do not come to equally many"
            " for each, so no call has a time: does another profiler run in this process?"
        )
    each = len(kernels) // calls
    return [kernels[first : first + each] for first in range(0, len(kernels), each)]
