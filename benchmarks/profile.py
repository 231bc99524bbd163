"""What JAX's in-kernel profiler writes of chapter 13's ring, on a Hopper GPU.

    python -m benchmarks.profile measure RECORD    on the GPU: writes the record

The record is the profiler's own file, in Chrome's trace format, with provenance and digest. So it
is one measurement, and not a list of groups.
"""

import functools
import json
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import kernels, noting, suite
from benchmarks.suite import Part, Suite
from pallascope.bench.provenance import provenance
from pallascope.profiling import write_profile


def profiled() -> tuple[Callable[..., Any], Sequence[jax.ShapeDtypeStruct], dict[str, int]]:
    """What is profiled, the ring by hand: how to make it, its inputs, the profiler's options."""
    ring, *_ = kernels.cases()
    options = dict(profile_space=8 * kernels.RING_STEPS)
    return functools.partial(ring.build, False), ring.inputs, options


def in_kernel_profile() -> dict[str, Any]:
    """The Chrome trace that the in-kernel profiler writes of the ring by hand, with provenance."""
    with tempfile.TemporaryDirectory() as folder:
        make, inputs, options = profiled()
        args = [jnp.ones(x.shape, x.dtype) for x in inputs]
        path = write_profile(make, *args, profile_dir=folder, **options)
        command = "python -m benchmarks.profile measure RECORD"
        return json.loads(path.read_text()) | dict(provenance=provenance(), command=command)


def measure(record: str) -> None:
    """Writes the record."""
    path = pathlib.Path(record)
    path.write_text(json.dumps(in_kernel_profile()) + "\n", "utf-8")
    noting.note(path)


def _made(problem: Any, groups: Any) -> dict[str, Callable[..., Any]]:
    make, _, options = profiled()
    return {"profile": make(**options, profile_dir=".")}


SUITE = Suite(
    "profile",
    {"profile": Part(_made, lambda *_: (), lambda problem, name, made: (made, profiled()[1]))},
    commands={"measure": measure},
)

if __name__ == "__main__":
    suite.main("profile")
