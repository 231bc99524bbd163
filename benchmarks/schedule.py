"""How fast kernels are traced, checked and simulated, for products of more and more steps.

`python -m benchmarks.schedule` measures on one core, in a minute or two, and writes the record
`results/cpu/schedule.json`; no GPU is needed. A sample of `first_seconds` is one call with JAX's
caches cleared, from the function to the program; one of `again_seconds` a call after that, where
JAX remembers jaxprs. They are seconds of the core, which do not pass while others have it;
`first_wall_seconds` and `again_wall_seconds` are those on the clock. `check_seconds` and
`simulate_seconds` are of the core too, of the program. `peak_bytes` is what Python's tracemalloc
saw at most in one more trace, `kept_bytes` what it saw after it, the program. `move_seconds` are
those on the clock that a slider of `pipelib.explore` takes to trace, check, simulate and draw anew.
"""

import collections
import gc
import json
import pathlib
import platform
import statistics
import time
import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from benchmarks import imports
from pipelib.bench.provenance import code_digest, provenance

TILE_M, TILE_N, TILE_K, SLOTS = 128, 256, 64, 3
STEPS, SAMPLES = (1125, 2250, 4500, 9000, 18000), 5
RECORD = pathlib.Path(__file__).parent / "results" / "cpu" / "schedule.json"
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

        block = lambda shape, at: plgpu.BlockSpec(shape, at, transforms=TRANSFORMS, delay_release=1)
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


def measure(name: str, m: int, n: int, k: int) -> dict[str, Any]:
    """The record of one size; prints its row."""
    a, b = (jax.ShapeDtypeStruct(shape, jnp.float16) for shape in ((m, k), (k, n)))
    samples: dict[str, list[float]] = collections.defaultdict(list)
    for _ in range(SAMPLES):
        jax.clear_caches()
        for which in ("first", "again"):
            gc.collect()
            wall, core = time.perf_counter(), time.process_time()
            pipelib.trace(matmul, a, b)
            samples[f"{which}_seconds"].append(time.process_time() - core)
            samples[f"{which}_wall_seconds"].append(time.perf_counter() - wall)
    gc.collect()
    tracemalloc.start()
    program = pipelib.trace(matmul, a, b)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    ops = sum(map(len, program.threads))
    row = f"{name:18} {ops:8,} ops"
    for which in ("first", "again"):
        seconds = statistics.median(samples[f"{which}_seconds"])
        row += f" | {which} {seconds:7.3f} s {ops / seconds:9,.0f} ops/s"
    for which, function in (
        ("check", pipelib.check),
        ("simulate", lambda program: pipelib.simulate(program, pipelib.H100)),
    ):
        for _ in range(SAMPLES):
            core = time.process_time()
            function(program)
            samples[f"{which}_seconds"].append(time.process_time() - core)
        row += f" | {which} {statistics.median(samples[f'{which}_seconds']):6.3f} s"
    print(f"{row} | {peak / ops:6,.0f} bytes/op at most")
    return dict(name=name, m=m, n=n, k=k, ops=ops, **samples, peak_bytes=peak, kept_bytes=kept)


def measure_moves() -> list[float]:
    """Seconds that each of some moves of a slider takes, for a product of 16 steps."""
    like = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float16)
    args = like(256, 1024), like(1024, 256)
    seconds = []
    for cycles in range(600, 600 + 100 * (SAMPLES + 1), 100):
        start = time.perf_counter()
        # As `explore` does: the kernel is a new function at each position.
        pipelib.player(
            pipelib.sweep(
                lambda: (lambda a, b: matmul(a, b), args), hbm_latency_cycles=[cycles]
            )
        )  # fmt: skip
        seconds.append(time.perf_counter() - start)
    print(f"a move of a slider: {statistics.median(seconds[1:]):.3f} s")
    return seconds[1:]  # the first one imports


def cpu() -> str:
    """The processor's name, where the system tells it."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def sources_digest() -> str:
    """Of the code that is timed, with all that it imports, and of this file."""
    return code_digest(pathlib.Path(__file__), *imports.sources("pipelib.schedule"))


def main() -> None:
    """Measures all sizes and writes the record."""
    measure("warm-up", 256, 256, 256)
    sizes = [measure("4096 x 4096 x 4096", 4096, 4096, 4096)]
    sizes += [measure(f"{steps} steps", 256, 256, TILE_K * steps) for steps in STEPS]
    record = dict(
        command="python -m benchmarks.schedule", cpu=cpu(), provenance=provenance(),
        sources_digest=sources_digest(), sizes=sizes, move_seconds=measure_moves(),
    )  # fmt: skip
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
