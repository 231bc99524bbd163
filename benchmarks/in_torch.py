"""Times of what PyTorch launches; a product by DeepGEMM, measured as `products` measures JAX's.

The model. PyTorch's profiler asks CUPTI (`kernel_times`), as `pallascope.bench.cupti` does for JAX:
neither the launch nor the host counts. CUPTI serves one of them in a process, so whoever measures
PyTorch does it in a process that does not use JAX's.

JAX makes the factors and compares the results; both see the same memory (DLPack).
DeepGEMM takes a as [m, k] and b as [n, k]: what is stored otherwise is turned once, untimed. Of
float8 it takes scales, too, of a for each 128 numbers and of b for each 128 x 128; all are 1.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import peers, products
from benchmarks.products import Problem
from pallascope.bench.cupti import Kernel
from pallascope.tuning.measuring import Args

#: Numbers that share a scale, along each axis.
_SCALED = 128


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


class Measured(products.Measured):
    """DeepGEMM's product of each set of factors, with the arguments of `products.Measured`."""

    def _compile(self, contender: peers.DeepGemm) -> Callable[[list[Args]], list[jax.Array]]:
        import torch

        is_wide = jnp.dtype(self.problem.dtype).itemsize > 1
        self._torch, self._built = torch, peers.load(contender.build)
        self._product = self._built.deepgemm_bf16 if is_wide else self._built.deepgemm_fp8

        def run(factors: list[Args]) -> list[jax.Array]:
            self._wait(self._launch())
            return [jnp.from_dlpack(out) for _, _, out in self._tensors]

        return run

    @functools.cached_property
    def _tensors(self) -> list[tuple[Any, Any, Any]]:
        """a, b and the result of each set."""
        found, problem = [], self.problem
        stored = getattr(self._torch, problem.out.dtype.name)
        for a, b in self._sets:
            a, b = self._tensor(a), self._tensor(b)
            a = a.T.contiguous() if problem.transpose_a else a
            b = b if problem.transpose_b else b.T.contiguous()
            out = self._torch.full((problem.m, problem.n), float("nan"), dtype=stored).cuda()
            if a.itemsize == 1:
                a, b = self._with_scales(a, 1), self._with_scales(b, _SCALED)
            found.append((a, b, out))
        self._torch.cuda.synchronize()
        return found

    def _tensor(self, array: jax.Array) -> Any:
        """An array as PyTorch has it; float8 by its bytes."""
        if array.dtype.itemsize > 1:
            return self._torch.from_dlpack(array)
        as_bytes = self._torch.from_dlpack(jax.lax.bitcast_convert_type(array, jnp.uint8))
        return as_bytes.view(getattr(self._torch, array.dtype.name))

    def _with_scales(self, factor: Any, rows: int) -> tuple[Any, Any]:
        """A factor with scales of 1 for blocks of so many rows, as DeepGEMM reads them."""
        shape = -(-factor.shape[0] // rows), -(-factor.shape[1] // _SCALED)
        scales = self._torch.ones(shape, dtype=self._torch.float32).cuda()
        if rows == 1:
            self._built.deepgemm()  # so that its modules are found
            from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor

            scales = get_mn_major_tma_aligned_tensor(scales)
        return factor, scales

    def _launch(self) -> Any:
        for a, b, out in self._tensors:
            self._product(a, b, out)
        event = self._torch.cuda.Event()
        event.record()
        return event

    def _wait(self, launched: Any) -> None:
        launched.synchronize()

    def _kernel_times(self, rounds: int) -> list[list[Kernel]]:
        return kernel_times(self._launch, rounds)


def prepare(contender: Any, problem: Problem) -> Callable[..., Any]:
    """As `products.prepare`; of DeepGEMM, with the class above."""
    if not isinstance(contender, peers.DeepGemm):
        return products.prepare(contender, problem)
    measured = Measured(contender, problem)
    return lambda method, *args: getattr(measured, method)(*args)
