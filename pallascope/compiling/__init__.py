"""`compiled`: what ptxas and the machine code say of a Mosaic GPU kernel, on no GPU.

The model. A kernel goes through four rooms. `lowering` has JAX's own compiler make its PTX, in a
process of its own (`process`), for a GPU that need not be there. `assembling` runs NVIDIA's `ptxas`
and reads its report. `machine_code` runs `nvdisasm`, counts instructions by class, and finds loops.
`result` has the values that come of it. `tools` finds JAX's CUDA plugin and NVIDIA's programs.

What it needs: JAX's CUDA plugin of the version of JAX, ptxas, nvdisasm and flatbuffers, but no
driver and none of NVIDIA's libraries. Where JAX runs on a GPU, `pip install
"pallascope[compile]"` is all. For a machine without a GPU they are 184 MB, best kept in
a folder of their own:

    pip install flatbuffers
    pip install --no-deps --target cuda jax-cuda13-pjrt==VERSION jax-cuda13-plugin==VERSION \\
        nvidia-cuda-nvcc nvidia-cuda-nvdisasm
    export PALLASCOPE_CUDA=$PWD/cuda

VERSION is JAX's own. Another ptxas may give other registers and spills: ask for the version that
compiles on the GPU, as `nvidia-cuda-nvcc==13.0.*`. With CUDA 12 the packages are
`jax-cuda12-pjrt`, `jax-cuda12-plugin` and `nvidia-cuda-nvcc-cu12`.

Why so. JAX describes a GPU that is not there with `jax.experimental.topologies`, so all names are
public. Other ways were tried and left: calling the plugin's `MosaicGpuCompile` needs a stub of the
driver's `libcuda.so.1`, so a C compiler. Reading what JAX dumps of its own call of ptxas gives no
file for nvdisasm, which JAX looks for in one folder only, where no wheel puts it.

Not covered: dynamic SMEM, which the launch asks for and ptxas does not see (`pallascope.check`
counts it); kernels that reach other devices. GPUs other than Hopper: those that `pipelib.target`
names.
"""

from pallascope.compiling.kernels import compiled, compiled_all
from pallascope.compiling.result import Compiled, Loop
from pallascope.compiling.tools import lacking

__all__ = ["Compiled", "Loop", "compiled", "compiled_all", "lacking"]
