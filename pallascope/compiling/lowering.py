"""`ptx`: the PTX that JAX makes of a kernel."""

import contextlib
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Mapping
from typing import Any, cast

import jax
import jax.export
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from pallascope.compiling import tools
from pallascope.launches import Called
from pipelib import targets


def ptx(launch: Called, name: str, devices: Mapping[Hashable, int]) -> str:
    """The PTX of a kernel for Hopper, or for the GPU of `pipelib.target`.

    Args:
      launch: the kernel.
      name: its name, for errors.
      devices: the axes of the mesh that it is called on, if it is within `jax.shard_map`.

    Raises:
      ImportError, FileNotFoundError: something that this needs is not installed.
      ValueError: JAX does not compile the kernel; with JAX's own words.
    """
    tools.check_plugin()
    ptxas = tools.program("ptxas")  # JAX asks one which PTX it takes
    numbers = targets.capability()
    told = map(str, (*numbers, math.prod(devices.values())))
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "kernel")
        file.write_bytes(_exported(launch, name, devices))
        done = subprocess.run(
            [sys.executable, "-m", "pallascope.compiling.process", str(file), *told],
            env=_environment(ptxas),
            capture_output=True,
            text=True,
        )
    # What comes after the PTX may fail for want of a GPU, and is not needed.
    if f".target sm_{''.join(map(str, numbers))}" not in done.stdout:
        said = "\n".join(done.stderr.strip().splitlines()[-3:]) or "it printed nothing"
        raise ValueError(f"JAX's compiler made no PTX of {name}, so nothing is known of it: {said}")
    return done.stdout[done.stdout.index("//") :].rstrip() + "\n"


def natively() -> contextlib.AbstractContextManager[None]:
    """JAX takes kernels to a GPU, though the caller may have asked for the interpreter."""
    return plgpu.force_gpu_interpret_mode(cast(Any, None))


def lowered(launch: Called, devices: Mapping[Hashable, int]) -> jax.export.Exported:
    """The kernel alone, lowered for a GPU of NVIDIA's, on any machine; raises JAX's own errors."""
    function: Any = launch.call
    if devices:
        axes: Any = tuple(devices)
        mesh = AbstractMesh(tuple(devices.values()), axes, axis_types=(AxisType.Auto,) * len(axes))
        whole = PartitionSpec()  # each device has operands of these sizes
        function = jax.shard_map(
            function, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False
        )
    with natively():
        return jax.export.export(cast(Any, jax.jit)(function), platforms=["cuda"])(*launch.args)


def _exported(launch: Called, name: str, devices: Mapping[Hashable, int]) -> bytes:
    """The same in JAX's format for files."""
    try:
        return bytes(lowered(launch, devices).serialize())
    except Exception as error:
        raise ValueError(
            f"JAX does not lower {name} for {targets.described()}, so there is nothing to compile:"
            f" {type(error).__name__}: {error}"
        ) from error


def _environment(ptxas: pathlib.Path) -> dict[str, str]:
    """The environment of the process that compiles."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MOSAIC_GPU_DUMP")}
    own = str(pathlib.Path(__file__).parents[2])
    return kept | {
        "JAX_PLATFORMS": "cpu",  # it must not look for a GPU
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # a kernel from a cache prints nothing
        "MOSAIC_GPU_DUMP_PTX": "1",
        "PATH": os.pathsep.join([str(ptxas.parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join([own, *filter(None, tools.folders())]),
    }
