"""One matrix product by pipelib's emitters and by JAX's own: the same body, the same settings.

These are the bodies of rungs 1, 2 and 4 of the ladder (`pipelib_book.matmul_ladder`), without what
`pipelib.kernels.matmul` does besides: one tile for each block, stored at once.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib_book.matmul_ladder import RUNGS

_TILED = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
_STAGED_COLUMNS = 64
EMITTERS = ("upstream", "pipelib", "pipelib, ordinary_reads=False")


def product(a: jax.Array, b: jax.Array, rung: int, emitter: str) -> jax.Array:
    """a @ b with the settings of a rung by one of `EMITTERS`; 16-bit numbers, whole tiles."""
    config = RUNGS[rung].config
    return (_ring if config.form == "ring" else _specialized)(a, b, config, emitter)


def _emit(emitter: str, name: str, *args: Any, **options: Any) -> Callable[..., Any]:
    if emitter == "upstream":
        return getattr(plgpu, name)(*args, **options)
    if emitter.endswith("=False"):
        options["ordinary_reads"] = False
    return getattr(pipelib, name)(*args, **options)


def _specs(config: MatmulConfig, i: Any, j: Any) -> list[plgpu.BlockSpec]:
    block = functools.partial(
        plgpu.BlockSpec, transforms=_TILED, delay_release=config.delay_release
    )
    return [
        block((config.tile_m, config.tile_k), lambda k: (i, k)),
        block((config.tile_k, config.tile_n), lambda k: (k, j)),
    ]


def _ring(a: jax.Array, b: jax.Array, config: MatmulConfig, emitter: str) -> jax.Array:
    """One compute thread, which loads too."""

    def body(a, b, out, out_smem):
        i, j = lax.axis_index("i"), lax.axis_index("j")

        def scope(acc):
            def step(_, a, b):
                plgpu.wgmma(acc, a, b)
                plgpu.wgmma_wait(config.delay_release)

            _emit(
                emitter, "emit_pipeline", step, grid=(a.shape[1] // config.tile_k,),
                in_specs=_specs(config, i, j), max_concurrent_steps=config.slots,
            )(a, b)  # fmt: skip
            return acc[...]

        acc = pl.run_scoped(scope, plgpu.ACC((config.rows, config.tile_n), jnp.float32))
        _store(acc, out, out_smem.at[0], i * config.tile_m, j * config.tile_n)

    return _kernel(body, a, b, config)


def _specialized(a: jax.Array, b: jax.Array, config: MatmulConfig, emitter: str) -> jax.Array:
    """Two compute threads and a memory thread."""

    def body(a, b, out, out_smem):
        i, j, thread = (lax.axis_index(name) for name in ("i", "j", "thread"))
        mine = pl.ds(thread * config.rows, config.rows)

        def compute_thread(pipeline):
            def scope(acc):
                pipeline(acc)
                return acc[...]

            acc = pl.run_scoped(scope, plgpu.ACC((config.rows, config.tile_n), jnp.float32))
            row = i * config.tile_m + thread * config.rows
            _store(acc, out, out_smem.at[thread], row, j * config.tile_n)

        def step(_, a, b, acc):
            plgpu.wgmma(acc, a.at[mine], b)
            plgpu.wgmma_wait(config.delay_release)
            return acc

        _emit(
            emitter, "emit_pipeline_warp_specialized", step, grid=(a.shape[1] // config.tile_k,),
            in_specs=_specs(config, i, j), max_concurrent_steps=config.slots,
            memory_registers=40, num_compute_wgs=config.compute_threads, wg_axis="thread",
            compute_context=compute_thread,
        )(a, b)  # fmt: skip

    return _kernel(body, a, b, config, num_threads=config.threads, thread_name="thread")


def _store(acc: jax.Array, out: Any, out_smem: Any, row: Any, column: Any) -> None:
    """Stores one thread's rows of a tile, some columns after the other."""
    for first in range(0, acc.shape[1], _STAGED_COLUMNS):
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        out_smem[...] = acc[:, first : first + _STAGED_COLUMNS].astype(out.dtype)
        plgpu.commit_smem()
        here = pl.ds(row, acc.shape[0]), pl.ds(column + first, _STAGED_COLUMNS)
        plgpu.copy_smem_to_gmem(out_smem, out.at[here])
    plgpu.wait_smem_to_gmem(0)


def _kernel(
    body: Callable[..., None], a: jax.Array, b: jax.Array, config: MatmulConfig, **threads: Any
) -> jax.Array:
    (m, _), (_, n) = a.shape, b.shape
    staged = config.compute_threads, config.rows, _STAGED_COLUMNS
    return plgpu.kernel(
        body, out_type=jax.ShapeDtypeStruct((m, n), a.dtype), grid_names=("i", "j"),
        grid=(m // config.tile_m, n // config.tile_n), **threads,
        scratch_types=[plgpu.SMEM(staged, a.dtype, transforms=_TILED)],
    )(a, b)  # fmt: skip
