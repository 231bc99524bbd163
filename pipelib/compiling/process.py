"""A process that has JAX compile one kernel for a GPU that need not be there, and prints its PTX.

    python -m pipelib.compiling.process FILE MAJOR MINOR

FILE holds the kernel as `jax.export` writes it; the numbers are the GPU's compute capability, as 9
and 0 for Hopper. `lowering` starts this with the environment that it
needs. In a process of its own, since Mosaic GPU prints PTX on the process's stdout, and only of
kernels that it has not compiled before.
"""

# JAX's functions for this have parts without types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import importlib
import pathlib
import sys

import jax
import jax.export
from jax.experimental import topologies

# The rest of a GPU's numbers matter to XLA's own kernels only.
_GPU = (
    'gpu_device_info {{ cuda_compute_capability {{ major: {} minor: {} }} }} platform_name: "CUDA"'
)


def main(file: str, major: str, minor: str) -> None:
    """Compiles what the file holds."""
    # Mosaic GPU's own part of JAX, which tells its compiler where its runtime is.
    importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    gpu = _GPU.format(int(major), int(minor))
    one_gpu = "1x1x1"  # of one process, of one host
    topology = topologies.get_topology_desc("", "cuda", target_config=gpu, topology=one_gpu)
    there = jax.sharding.SingleDeviceSharding(topology.devices[0])
    exported = jax.export.deserialize(bytearray(pathlib.Path(file).read_bytes()))
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there) for x in exported.in_avals]
    # A kernel without arguments is placed by its results alone.
    jax.jit(exported.call, out_shardings=there).lower(*types).compile()


if __name__ == "__main__":
    main(*sys.argv[1:])
