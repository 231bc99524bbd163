"""`compiled`: what ptxas and the machine code say of a Mosaic GPU kernel, on no GPU.

The model. A kernel goes through four rooms. `lowering` has JAX's own compiler make its PTX, in a
process of its own (`process`), for a GPU that need not be there. `assembling` runs NVIDIA's `ptxas`
and reads its report. `machine_code` runs `nvdisasm`, counts instructions by class, and finds loops.
`result` has the values that come of it. `tools` finds JAX's CUDA plugin and NVIDIA's programs.

Why so. JAX describes a GPU that is not there with `jax.experimental.topologies`, so all names are
public. Other ways were tried and left: calling the plugin's `MosaicGpuCompile` needs a stub of the
driver's `libcuda.so.1`, so a C compiler. Reading what JAX dumps of its own call of ptxas gives no
file for nvdisasm, which JAX looks for in one folder only, where no wheel puts it.

Not covered: dynamic SMEM, which the launch asks for and ptxas does not see (`pipelib.check` counts
it); kernels that reach other devices; GPUs other than Hopper.
"""

from pipelib.compiling.assembling import Report
from pipelib.compiling.kernels import compiled, compiled_all
from pipelib.compiling.machine_code import CLASSES
from pipelib.compiling.result import Compiled, Loop
from pipelib.compiling.tools import PLACE, lacking

__all__ = ["CLASSES", "PLACE", "Compiled", "Loop", "Report", "compiled", "compiled_all", "lacking"]
