"""How fast `pipelib.trace` is: one block of a warp-specialized matmul, and one of many steps.

Prints a row for each: operations, seconds from the call to the program, operations a second; and
again, when JAX remembers the jaxprs. Run it with `python benchmarks/schedule.py`; needs no GPU.
"""

import time

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib

TILE_M, TILE_N, TILE_K, SLOTS = 128, 256, 64, 4
TRANSFORMS = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Two compute threads, each with half of the rows of a tile, and a memory thread."""
    (m, k), (_, n) = a.shape, b.shape
    rows = TILE_M // 2

    def kernel(a, b, out, out_smem):
        i, j = lax.axis_index("i"), lax.axis_index("j")
        mine = pl.ds(lax.axis_index("wg") * rows, rows)

        def compute(pipeline):
            def scope(acc):
                pipeline(acc)
                out_smem[mine] = acc[...].astype(out.dtype)
                plgpu.commit_smem()

            pl.run_scoped(scope, plgpu.ACC((rows, TILE_N), jnp.float32))
            top = i * TILE_M + lax.axis_index("wg") * rows
            here = (pl.ds(top, rows), pl.ds(j * TILE_N, TILE_N))
            plgpu.copy_smem_to_gmem(out_smem.at[mine], out.at[here])
            plgpu.wait_smem_to_gmem(0)

        def body(_, a, b, acc):
            plgpu.wgmma(acc, a.at[mine], b)
            plgpu.wgmma_wait(1)
            return acc

        block = lambda shape, at: plgpu.BlockSpec(
            shape, at, transforms=TRANSFORMS, delay_release=1
        )
        pipelib.emit_pipeline_warp_specialized(
            body, grid=(k // TILE_K,), memory_registers=40, max_concurrent_steps=SLOTS,
            num_compute_wgs=2, wg_axis="wg", compute_context=compute, ordinary_reads=False,
            in_specs=[
                block((TILE_M, TILE_K), lambda step: (i, step)),
                block((TILE_K, TILE_N), lambda step: (step, j)),
            ],
        )(a, b)  # fmt: skip

    return plgpu.kernel(
        kernel, out_type=jax.ShapeDtypeStruct((m, n), a.dtype), grid=(m // TILE_M, n // TILE_N),
        grid_names=("i", "j"), num_threads=3, thread_name="wg",
        scratch_types=[plgpu.SMEM((TILE_M, TILE_N), a.dtype, transforms=TRANSFORMS)],
    )(a, b)  # fmt: skip


def measure(name: str, m: int, n: int, k: int) -> None:
    """Prints the row of one size."""
    a, b = (jax.ShapeDtypeStruct(shape, jnp.float16) for shape in ((m, k), (k, n)))
    seconds, ops = [], 0
    for _ in range(2):
        start = time.perf_counter()
        ops = sum(map(len, pipelib.trace(matmul, a, b).threads))
        seconds.append(time.perf_counter() - start)
    columns = (f"{each:7.3f} s {ops / each:9,.0f} ops/s" for each in seconds)
    print(f"{name:12} {ops:8,} ops | first {next(columns)} | again {next(columns)}")


if __name__ == "__main__":
    measure("warm-up", 256, 256, 256)
    measure("4096^3", 4096, 4096, 4096)
    measure("100,000 ops", 256, 256, TILE_K * 9000)
