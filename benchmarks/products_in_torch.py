"""A product by DeepGEMM, measured as `pipelib.tuning.products` measures those of JAX.

The model. JAX makes the factors and compares the results; both see the same memory (DLPack).
DeepGEMM takes a as [m, k] and b as [n, k]: what is stored otherwise is turned once, untimed.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import peers, torch_times
from pipelib.bench.cupti import Kernel
from pipelib.tuning import products
from pipelib.tuning.products import Problem, Sets


class Measured(products.Measured):
    """DeepGEMM's product of each set of factors, with the arguments of `products.Measured`."""

    def _compile(self, contender: peers.DeepGemm) -> Callable[[Sets], list[jax.Array]]:
        import torch

        self._torch, self._product = torch, peers.load().deepgemm_bf16

        def run(factors: Sets) -> list[jax.Array]:
            self._wait(self._launch())
            return [jnp.from_dlpack(out) for _, _, out in self._tensors]

        return run

    @functools.cached_property
    def _tensors(self) -> list[tuple[Any, Any, Any]]:
        """a, b and the result of each set."""
        found, problem = [], self.problem
        for a, b in self._factors:
            a, b = self._torch.from_dlpack(a), self._torch.from_dlpack(b)
            a = a.T.contiguous() if problem.transpose_a else a
            b = b if problem.transpose_b else b.T.contiguous()
            out = self._torch.full((problem.m, problem.n), float("nan"), dtype=a.dtype).cuda()
            found.append((a, b, out))
        self._torch.cuda.synchronize()
        return found

    def _launch(self) -> Any:
        for a, b, out in self._tensors:
            self._product(a, b, out)
        event = self._torch.cuda.Event()
        event.record()
        return event

    def _wait(self, launched: Any) -> None:
        launched.synchronize()

    def _kernel_times(self, rounds: int) -> list[list[Kernel]]:
        return torch_times.kernel_times(self._launch, rounds)


def prepare(contender: Any, problem: Problem) -> Callable[..., Any]:
    """As `products.prepare`; of DeepGEMM, with the class above."""
    if not isinstance(contender, peers.DeepGemm):
        return products.prepare(contender, problem)
    measured = Measured(contender, problem)
    return lambda method, *args: getattr(measured, method)(*args)
