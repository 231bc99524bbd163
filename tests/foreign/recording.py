"""Records the kernels that foreign code launches, on a machine without a GPU.

The model. `pallascope.launches` notes each kernel that JAX traces. Besides, while `recording` is
active, a kernel that is compiled for the CPU becomes zeros of its results' types, and a callback
that notes the integers among its operands. So the code around a kernel goes on to the next one, and
integers are known under `jax.jit` too.

A launch is a kernel that was compiled. One that was only traced counts if nothing was compiled
meanwhile: then the code failed in between, or lowers for a GPU on purpose.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from pallascope.launches import Called, distinct, is_table, launches, primitive


class Recorder:
    """What was traced and what was compiled since the last `drain`."""

    def __init__(self, traced: list[Called]) -> None:
        self.traced = traced
        self.compiled: list[Called] = []

    def clear(self) -> None:
        self.traced.clear()
        self.compiled.clear()

    def drain(self) -> list[Called]:
        """The distinct launches so far, which are then forgotten."""
        jax.effects_barrier()
        found = distinct(self.compiled or self.traced)
        self.clear()
        return found


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """Records launches of kernels, and gives them zeros for results."""
    with launches() as traced:
        recorder = Recorder(traced)

        def on_cpu(ctx: Any, *args: Any, **params: Any) -> Any:
            return _stand_in(recorder.compiled, ctx, args, params)

        mlir.register_lowering(primitive(), on_cpu, platform="cpu")
        yield recorder


def _stand_in(found: list[Called], ctx: Any, args: Any, params: Any) -> Any:
    """A kernel's code for the CPU: notes its integers, and returns zeros."""
    if not hasattr(params["meshes"][0], "cluster"):
        raise NotImplementedError("a kernel for another device than a GPU")
    avals = tuple(ctx.avals_in)
    launch = Called({**params, "interpret": False}, avals, (None,) * len(avals))
    tables = [i for i, aval in enumerate(avals) if is_table(aval)]
    found.append(launch)

    def note(*arrays: Any) -> None:
        known = dict(zip(tables, map(np.asarray, arrays)))
        values = tuple(known.get(i) for i in range(len(avals)))
        found.append(dataclasses.replace(launch, values=values))

    def zeros(*operands: Any) -> Any:
        if tables:
            jax.debug.callback(note, *(operands[i] for i in tables))
        return [jnp.zeros(aval.shape, aval.dtype) for aval in ctx.avals_out]

    return mlir.lower_fun(zeros, multiple_results=True)(ctx, *args)
