"""Times kernels on the GPU, against each other in one run.

The model. A *burst* is a number of back-to-back launches of one function. CUPTI reports each
kernel's own time on the GPU, so launches and the host do not count (`cupti`). Functions take turns,
a burst each, for some rounds. So a drift of clocks or temperature meets all of them. A burst may
begin after a rest: a GPU under load lowers its clock to stay within its power limit, and would
begin the next burst with that clock. The raw samples are kept. Quote `Samples.median_us`, and doubt
it by `Samples.spread_us`.

Not covered: caches. A function whose operands fit the 50 MB L2 is timed with them there, unless the
caller rotates them.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from pallascope.bench.cupti import kernel_times

#: Seconds of rest in which a GPU that was busy can raise its clock again.
REST_S = 0.1


@dataclasses.dataclass(frozen=True)
class Samples:
    """The times of one function, in microseconds, in the order taken.

    Example:
      >>> samples = Samples((9.0, 10.0, 10.0, 11.0))
      >>> samples.median_us, samples.spread_us
      (10.0, 1.5)
      >>> samples.rate(2e9)  # operations in each call, to operations a second
      200000000000000.0
    """

    microseconds: tuple[float, ...]

    @property
    def median_us(self) -> float:
        """The median, in microseconds."""
        return statistics.median(self.microseconds)

    @property
    def spread_us(self) -> float:
        """The distance between the quartiles, in microseconds."""
        low, _, high = statistics.quantiles(self.microseconds, n=4)
        return high - low

    def rate(self, work: float) -> float:
        """Work (operations, bytes) per second at the median time."""
        return work / self.median_us * 1e6


def measure(
    functions: Mapping[str, Callable[..., object]],
    args: Sequence[Any],
    *,
    rounds: int = 5,
    burst: int = 20,
    rest_s: float = 0.0,
) -> dict[str, Samples]:
    """Times functions of the same arguments, in interleaved bursts.

    Args:
      functions: by name; they are jitted here.
      args: the arguments of each.
      rounds: bursts of each function.
      burst: launches in a burst, 2 or more.
      rest_s: seconds without work before each burst.

    Returns:
      `rounds * burst` samples for each name.

    Raises:
      RuntimeError: where JAX has no GPU, and so CUPTI nothing to time.

    Example:
      On a GPU this returns `{"dot": Samples(...)}`. Elsewhere there is nothing to time:

      >>> a = jnp.ones((128, 128))
      >>> measure({"dot": jnp.dot}, (a, a))
      Traceback (most recent call last):
      RuntimeError: JAX runs on cpu, where kernels are interpreted: their
      times would say nothing about a GPU, so none are taken.
    """
    if jax.default_backend() != "gpu":
        raise RuntimeError(
            f"JAX runs on {jax.default_backend()}, where kernels are interpreted: their "
            "times would say nothing about a GPU, so none are taken."
        )
    times: dict[str, list[float]] = {name: [] for name in functions}
    # Compiled first, so that no burst waits for the compiler between others.
    compiled = {n: jax.jit(f).lower(*args).compile() for n, f in functions.items()}  # pyright: ignore[reportUnknownMemberType]
    for _ in range(rounds):
        for name, function in compiled.items():
            time.sleep(rest_s)
            calls = kernel_times(function, *args, calls=burst)
            times[name] += [1e3 * sum(kernel.ms for kernel in call) for call in calls]
    return {name: Samples(tuple(us)) for name, us in times.items()}
