"""A process that has JAX compile one kernel for a GPU that need not be there, and prints its PTX.

    python -m pallascope.compiling.process FILE MAJOR MINOR DEVICES

FILE holds the kernel as `jax.export` writes it, the next two numbers are the GPU's compute
capability, as 9 and 0 for Hopper, and each of so many devices calls it. `lowering` starts this with
the environment that it needs. In a process of its own, since Mosaic GPU prints PTX on the process's
stdout, and only of kernels that it has not compiled before.
"""

# JAX's functions for this have parts without types.

import importlib
import pathlib
import sys

import jax
import jax.export
from jax.experimental import topologies

# The rest of a GPU's numbers matter to XLA's own kernels only. One of these lets several GPUs wait
# for each other, and two numbers decide its launch.
_GPU = """
gpu_device_info {{
  threads_per_warp: 32
  block_dim_limit_x: 2147483647
  cuda_compute_capability {{ major: {} minor: {} }}
}}
platform_name: "CUDA"
"""


def main(file: str, *capability: int, devices: int) -> None:
    """Compiles what the file holds, for as many devices."""
    # Mosaic GPU's own part of JAX, which tells its compiler where its runtime is.
    importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    gpu = _GPU.format(*capability)
    exported = jax.export.deserialize(bytearray(pathlib.Path(file).read_bytes()))
    gpus = f"1x1x{devices}"  # of one process, of one host
    topology = topologies.get_topology_desc("", "cuda", target_config=gpu, topology=gpus)  # pyright: ignore[reportUnknownMemberType]
    there = jax.sharding.NamedSharding(
        jax.sharding.Mesh(topology.devices, ("device",)), jax.sharding.PartitionSpec()
    )
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there) for x in exported.in_avals]
    # A kernel without arguments is placed by its results alone.
    jax.jit(exported.call, out_shardings=there).lower(*types).compile()  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), devices=int(sys.argv[4]))
