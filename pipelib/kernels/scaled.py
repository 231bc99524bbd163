"""`scaled_matmul`: a product of float8 whose factors have a scale for each block of numbers.

The model. A row of `a` has a scale for each 128 numbers, and `b` one for each 128 x 128, as
DeepSeek-V3 stores them (arXiv 2412.19437, section 3.3). So the products of 128 of K are scaled
before they are added up, in registers::

    for each tile of the block, in a snake order:
      for each 128 of K, in a ring of slots that goes on from tile to tile:
        part = a[m, k] @ b[n, k]^T                     (wgmma, from zeros)
        sums += part * (a_scales[m, k] * b_scales[n, k])
      store sums

One compute thread scales while the other multiplies. A tile has 128 columns, so a step has one
scale of b, and both accumulators have room in the registers.

Copies of `a` see rows (`tiles`), so M may be anything; the scales of a are brought [K / 128, M],
since a step then loads those of its rows as one piece.
"""

# Parts of the signatures of JAX's functions have no types.
# pyright: reportUnknownMemberType=false

import functools
import math
from typing import Any, NamedTuple, NoReturn, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike

from pipelib import ring, specs, tiles
from pipelib.kernels.chain import run_chain
from pipelib.kernels.hopper import default_device, explained, num_sms, require_hopper
from pipelib.kernels.matmul.arguments import FLOAT8, stored_dtype
from pipelib.kernels.matmul.config import STAGED_ROWS, MatmulConfig
from pipelib.kernels.matmul.result import this_thread
from pipelib.kernels.sharding import varying_alike
from pipelib.refs import Accumulator, Dtype, Int, Ref, Shaped
from pipelib.specs import ByRows
from pipelib.warp_specialized import (
    AllSteps,
    WarpSpecializedPipeline,
    emit_pipeline_warp_specialized,
)

#: Numbers that share a scale along K, and along N.
SCALED = 128
#: The axis of a cluster: its blocks share the loads of b.
PAIR = "cluster_m"


def config_of(rows: int, out_dtype: Dtype) -> MatmulConfig:
    """How a product is divided: as wide as one scale of b, with all slots that fit.

    Tiles of 128 x 128 of one byte ask more of L2 than it gives, if each block loads for itself. So
    two blocks below each other share the loads of b, if there are so many.

    Args:
      rows: of a.
      out_dtype: the dtype of the result.
    """
    slots = 5 if out_dtype.itemsize == 2 else 4
    pair = 2 if rows > SCALED else 1
    return MatmulConfig(SCALED, SCALED, SCALED, slots=slots, delay_release=0, cluster_m=pair)


def scaled_matmul(
    a: jax.Array,
    b: jax.Array,
    a_scales: jax.Array,
    b_scales: jax.Array,
    *,
    out_dtype: DTypeLike | None = None,
) -> jax.Array:
    """`(a * its scales) @ (b * its scales).T` on a Hopper GPU, accumulated in float32.

    Works under `jax.jit`, `jax.vmap` and `jax.shard_map`; it has no gradient.

    Args:
      a: [M, K], float8_e4m3fn or float8_e5m2; K a multiple of 16.
      b: [N, K], one of these dtypes; N a multiple of 8.
      a_scales: float32 [M, ceil(K / 128)], for each 128 numbers of a row.
      b_scales: float32 [ceil(N / 128), ceil(K / 128)], for each 128 x 128 numbers.
      out_dtype: float16, bfloat16 or float32; by default bfloat16.

    Returns:
      [M, N] in `out_dtype`.

    Raises:
      TypeError: dtypes, and types of arguments, that are not as above.
      ValueError: shapes; a GPU that is not Hopper, or a CPU where nothing interprets kernels (under
        `jax.jit` in Pallas's words).
      NotImplementedError: for a gradient.

    Example:
      >>> a, b = jnp.ones((64, 256), jnp.float8_e4m3fn), jnp.ones((128, 256), jnp.float8_e4m3fn)
      >>> with plgpu.force_gpu_interpret_mode():
      ...     c = pipelib.kernels.scaled_matmul(
      ...         a, b, jnp.full((64, 2), 0.5), jnp.array([[1.0, 3.0]]))
      >>> c.dtype.name, float(c[0, 0])
      ('bfloat16', 256.0)
    """
    _check(a, b, a_scales, b_scales)
    stored = stored_dtype(a, out_dtype, "scaled_matmul")
    a, b, a_scales, b_scales = varying_alike(a, b, a_scales, b_scales)
    with explained("scaled_matmul", "jnp.matmul of the scaled factors"):
        out: jax.Array = _scaled(a, b, a_scales, b_scales, stored)
    return out


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
@functools.partial(jax.jit, static_argnums=4)
def _scaled(
    a: jax.Array, b: jax.Array, a_scales: jax.Array, b_scales: jax.Array, out_dtype: Dtype
) -> jax.Array:
    """The product; all arguments are checked."""
    require_hopper("scaled_matmul")
    (m, _), n, config = a.shape, b.shape[0], config_of(a.shape[0], out_dtype)
    by_rows = default_device().platform == "gpu"
    missing = config.tiles(m, n)[0] * config.tile_m - m
    clusters = config.resident_blocks(m, n, num_sms()) // config.cluster_size
    cluster: Any = dict(cluster=(2,), cluster_names=(PAIR,)) if config.cluster_m > 1 else {}
    of_rows = jnp.pad(a_scales.T, ((0, 0), (0, missing)))
    slots = config.compute_threads, config.staging_slots, STAGED_ROWS, config.epilogue_n
    is_piece = by_rows and config.epilogue_n == tiles.piece_columns(out_dtype)
    staging: Any = tiles.by_rows(slots, out_dtype) if is_piece else plgpu.SMEM(slots, out_dtype)

    def scaled_matmul(a: Ref, b: Ref, of_rows: Ref, of_b: Ref, out: Ref, staging: Ref) -> None:
        both = tiles.both(staging, is_piece)
        _Block(config, a, b, of_rows, of_b, out, both, by_rows).run()

    made = plgpu.kernel(
        scaled_matmul, out_type=jax.ShapeDtypeStruct((m, n), out_dtype), scratch_types=[staging],
        grid=(clusters,), grid_names=("block",), **cluster,
        num_threads=config.threads, thread_name="thread",
    )(a, b, of_rows, b_scales)  # fmt: skip
    return varying_alike(made, a)[0]


@_scaled.defjvp
def _refuse_gradients(out_dtype: Dtype, *arrays: object) -> NoReturn:
    del out_dtype, arrays
    raise NotImplementedError(
        "scaled_matmul has no gradient: multiply the cotangent, scaled anew, by the other factor."
    )


class _Block(NamedTuple):
    """A block of the kernel; the arrays are in GMEM, but for the staging slots.

    Attributes:
      config: how the product is divided.
      a, b, of_rows, of_b, out: as above; `of_rows` are the scales of a, [K / 128, rows].
      staging: the staging slots, in tiles and by rows.
      by_rows: whether copies can see rows; JAX's interpreter needs no such thing.
    """

    config: MatmulConfig
    a: Ref
    b: Ref
    of_rows: Ref
    of_b: Ref
    out: Ref
    staging: tiles.Both
    by_rows: bool

    def run(self) -> None:
        """Makes the block's tiles, as one chain."""
        config, (rows, columns) = self.config, self.out.shape
        m_tiles, n_tiles = config.tiles(rows, columns)
        shape = m_tiles // config.cluster_m, n_tiles

        def pipeline(index: jax.Array, state: jax.Array) -> WarpSpecializedPipeline:
            m, n = plgpu.planar_snake(index, shape, 0, config.width)
            if config.cluster_m > 1:
                m = 2 * m + lax.axis_index(PAIR)
            return self._pipeline(m, n, state)

        zero = jnp.int32(0)
        run_chain(
            math.prod(shape), pipeline, self._pipeline(zero, zero, zero),
            (self.a, self.b, self.of_rows), self._steps()[0],
        )  # fmt: skip
        is_compute_thread = this_thread(self.config) < self.config.compute_threads
        pl.when(is_compute_thread)(lambda: plgpu.wait_smem_to_gmem(0))

    def _steps(self) -> tuple[int, int]:
        """Slots, and steps, a multiple of them."""
        needed = math.ceil(self.a.shape[1] / SCALED)
        slots = min(self.config.slots, needed)
        return slots, math.ceil(needed / slots) * slots

    def _pipeline(self, m: Int, n: Int, state: jax.Array) -> WarpSpecializedPipeline:
        """The pipeline that makes and stores a tile; `state` is its place in the chain."""
        (slots, count), shape = self._steps(), (self.config.rows, self.config.tile_n)
        known = self.of_b.shape[1] - 1

        def step(indices: ring.Indices, a: Ref, b: Ref, of_rows: Ref, sums: jax.Array) -> jax.Array:
            mine = pl.ds(this_thread(self.config) * self.config.rows, self.config.rows)

            def multiply(acc: Accumulator) -> tuple[jax.Array, jax.Array]:
                plgpu.wgmma(acc, a.at[mine], b.transpose((1, 0)))
                layout = plgpu.Layout.WGMMA.reduce(1)
                scales = plgpu.load(of_rows.at[0, mine], layout=layout, optimized=False)
                scales *= self.of_b[n, jnp.minimum(indices[0], known)]
                return acc[...], scales

            part, scales = pl.run_scoped(multiply, plgpu.ACC(shape, jnp.float32))
            return sums + part * lax.broadcast_in_dim(scales, shape, (0,))

        def compute_thread(pipeline: AllSteps) -> None:
            zeros = jnp.zeros(shape, jnp.float32)
            self._store(m, n, pipeline(plgpu.layout_cast(zeros, plgpu.Layout.WGMMA)))

        return emit_pipeline_warp_specialized(
            step, grid=(count,), in_specs=self._specs(m, n), max_concurrent_steps=slots,
            memory_registers=self.config.memory_registers, wg_axis="thread",
            num_compute_wgs=self.config.compute_threads, compute_context=compute_thread,
            pipeline_state=state,
        )  # fmt: skip

    def _specs(self, m: Int, n: Int) -> list[plgpu.BlockSpec]:
        """What a step loads."""
        config = self.config
        kind = ByRows if self.by_rows else plgpu.BlockSpec
        options: Any = dict(transforms=tiles.tiled(self.a.dtype))
        shared: Any = dict(collective_axes=(PAIR,)) if config.cluster_m > 1 else {}
        return [
            kind((config.tile_m, SCALED), lambda k: (m, k), **options),
            kind((config.tile_n, SCALED), lambda k: (n, k), **options, **shared),
            plgpu.BlockSpec((1, config.tile_m), lambda k: (k, m)),
        ]

    def _store(self, m: Int, n: Int, sums: jax.Array) -> None:
        """Starts the stores of this thread's rows of a tile, part by part."""
        for part in range(self.config.parts):
            row, column = divmod(part * self.config.epilogue_n, self.config.tile_n)
            row *= STAGED_ROWS
            values = sums[row : row + STAGED_ROWS, column : column + self.config.epilogue_n]
            plgpu.wait_smem_to_gmem(self.config.staging_slots - 1, wait_read_only=True)
            slot = this_thread(self.config), part % self.config.staging_slots
            self.staging.tiles.at[slot][...] = values.astype(self.out.dtype)
            plgpu.commit_smem()
            first = m * self.config.tile_m + this_thread(self.config) * self.config.rows + row
            columns = pl.ds(n * self.config.tile_n + column, self.config.epilogue_n)
            there = self.out.at[pl.ds(first, STAGED_ROWS), columns]
            plgpu.copy_smem_to_gmem(self.staging.rows.at[slot], there)


def _check(a: object, b: object, a_scales: object, b_scales: object) -> None:
    """Refuses arguments that are not as `scaled_matmul` says.

    Raises:
      TypeError, ValueError: as it says.
    """
    named = dict(a=a, b=b, a_scales=a_scales, b_scales=b_scales)
    for name, array in named.items():
        specs.check_array(f"scaled_matmul: {name}", array)
    arrays = cast("dict[str, Shaped]", named)
    for name, array in arrays.items():
        wanted = FLOAT8 if name in "ab" else (jnp.dtype(jnp.float32),)
        if jnp.dtype(array.dtype) not in wanted:
            words = " or ".join(dtype.name for dtype in wanted)
            raise TypeError(f"scaled_matmul: {name} is {array.dtype}, but must be {words}.")
        if array.ndim != 2 or 0 in array.shape:
            raise ValueError(
                f"scaled_matmul: {name} has shape {array.shape}, but must have 2 axes of 1 or more."
            )
    (m, k), (n, k_b) = arrays["a"].shape, arrays["b"].shape
    if k != k_b:
        raise ValueError(
            f"scaled_matmul: a {(m, k)} has K = {k}, and b {(n, k_b)} has K = {k_b}; they must be"
            " equal, since b is stored [N, K]."
        )
    if k % tiles.TMA_BYTES or n % 8:
        raise ValueError(
            f"scaled_matmul: K = {k} and N = {n} must be multiples of {tiles.TMA_BYTES} and 8, or"
            " else copies cannot address the rows: pad the factors with zeros."
        )
    steps = math.ceil(k / SCALED)
    for name, shape in (("a_scales", (m, steps)), ("b_scales", (math.ceil(n / SCALED), steps))):
        if arrays[name].shape != shape:
            raise ValueError(
                f"scaled_matmul: {name} has shape {arrays[name].shape}, but for a {(m, k)} and b"
                f" {(n, k)} it must be {shape}: one for each {SCALED} numbers."
            )
