"""`matmul`: a persistent, warp-specialized matrix product.

The model. The output is cut into tiles of `tile_m` x `tile_n`. A grid of blocks, one for each
multiprocessor (SM), goes through them in a snake order that keeps neighbours in the L2. In a block
one memory thread loads, and each compute thread multiplies `tile_m / compute_threads` rows::

    for each of the block's tiles:             (one chain of pipelines: no bubble between tiles)
      for each step k, in a ring of slots:     (emit_pipeline_warp_specialized)
        accumulator += a[m, k] @ b[k, n]       (wgmma, float32, delay_release of them in flight)
      for each `epilogue_n` columns:
        wait until a staging slot has been read, write epilogue(accumulator) into it, start a store

The stores of a tile run while the next tile's steps are loaded and multiplied.

Edges need no other code. A load beyond an operand's end brings zeros, which add nothing, and a
store beyond the output's end is dropped (both are what TMA does). A chain goes on in the slot where
it stopped, so each tile takes a multiple of `slots` steps; those beyond K multiply zeros.

The fallback. Pallas copies by pieces of 8 rows x 128 bytes, which is how `wgmma` reads SMEM. The
rows of `a`, `b` and the output, as they are stored, must be whole multiples of 128 bytes (64
elements of 16 bits), and their number a multiple of 8, or 8 at most. A product that has others (17
rows, say, or 1000 columns) is made by `jax.lax.dot_general`, accumulating in float32: no operand is
copied, and no configuration applies. (JAX lets rows of under 128 bytes pass; 16 x 40 x 24 then came
out wrong on an H200.)

Not covered: clusters and multicast; several operands in an epilogue; gradients of a product with
an epilogue or in float8; tuned configurations. Source of the hardware's constants: `specs`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import specs
from pipelib.warp_specialized import emit_pipeline_warp_specialized

#: Rows of a piece of a swizzled copy, and bytes of each.
_PIECE_ROWS, _SWIZZLE = 8, 128
#: SMs of an H100 and an H200: the blocks where JAX has no GPU to ask (interpreted, or traced).
_SMS = 132
#: Enough to compute addresses and to issue copies (CUTLASS gives its memory threads 24 to 40).
_MEMORY_REGISTERS = 40
_FLOAT8 = (jnp.dtype(jnp.float8_e4m3fn), jnp.dtype(jnp.float8_e5m2))
_INPUTS = (jnp.dtype(jnp.float16), jnp.dtype(jnp.bfloat16), *_FLOAT8)
_OUTPUTS = (jnp.dtype(jnp.float16), jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32))

Epilogue = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class MatmulConfig:
    """How `matmul` divides its work; what cannot be is refused when it is made.

    Attributes:
      tile_m: rows of a block's tile, a multiple of 64 for each compute thread.
      tile_n: columns of it, a multiple of 64 to 256, the most that one `wgmma` takes.
      tile_k: of K, what one step multiplies; a multiple of 64 (of 128 for float8).
      slots: steps that are in SMEM at once, the most (fewer if K has fewer).
      compute_threads: Pallas threads that multiply, 1 or 2.
      delay_release: `wgmma`s in flight while the next is issued, fewer than `slots`.
      order: the axis of the output ("m" or "n") along which tiles are grouped.
      width: how many tiles a group has along it.
      epilogue_n: columns that are staged and stored at once, a multiple of 64 that divides tile_n.
      blocks: blocks that share the tiles; None: one for each SM.

    Raises:
      ValueError: for values that are not as above.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    slots: int = 4
    compute_threads: int = 2
    delay_release: int = 1
    order: Literal["m", "n"] = "n"
    width: int = 8
    epilogue_n: int = 64
    blocks: int | None = None

    def __post_init__(self):
        unit = 64 * max(self.compute_threads, 1)
        counts = self.slots, self.width, 1 if self.blocks is None else self.blocks
        problems = {
            f"{self.compute_threads=} is not 1 or 2": self.compute_threads not in (1, 2),
            f"{self.tile_m=} is not a multiple of 64 x {self.compute_threads} rows = {unit}, which"
            " the compute threads divide": self.tile_m < 1 or self.tile_m % unit,
            f"{self.tile_n=} is not a multiple of 64 up to 256, the most columns of a wgmma":
                self.tile_n not in (64, 128, 192, 256),
            f"{self.tile_k=} is not a multiple of 64": self.tile_k < 1 or self.tile_k % 64,
            f"{self.epilogue_n=} is not a multiple of 64 that divides {self.tile_n=}":
                self.epilogue_n < 1 or self.epilogue_n % 64 or self.tile_n % self.epilogue_n,
            f"{self.delay_release=} is not 0 to {self.slots=} - 1, so no slot would be loaded":
                not 0 <= self.delay_release < self.slots,
            f"{self.slots=}, {self.width=} and {self.blocks=} are not all at least 1":
                min(counts) < 1,
            f"{self.slots=} is over {specs.MAX_SLOTS}, which barriers can tell":
                self.slots > specs.MAX_SLOTS,
            f"{self.order=} is not 'm' or 'n'": self.order not in ("m", "n"),
        }  # fmt: skip
        for problem in (text for text, is_so in problems.items() if is_so):
            raise ValueError(f"MatmulConfig: {problem.replace('self.', '')}.")

    @property
    def rows(self) -> int:
        """The rows of each compute thread."""
        return self.tile_m // self.compute_threads

    @property
    def staging_slots(self) -> int:
        """Two, if each tile then begins with the same one; else one."""
        return 1 if self.tile_n // self.epilogue_n % 2 else 2

    def accumulator_registers(self) -> int:
        """Registers that each lane's part of a thread's float32 accumulator takes."""
        return self.rows * self.tile_n // 128

    def smem_bytes(self, dtype: Any, out_dtype: Any) -> int:
        """Bytes of shared memory that a block of the kernel takes, with all slots."""
        return sum(count * size for _, count, size in self._smem_terms(dtype, out_dtype))

    def check(self, dtype: Any, out_dtype: Any) -> None:
        """Raises ValueError, with the sum, if an SM has too little for these dtypes."""
        dtype = jnp.dtype(dtype)
        if self.tile_k * dtype.itemsize % _SWIZZLE:
            raise ValueError(
                f"MatmulConfig: tile_k={self.tile_k} of {dtype} is {self.tile_k} x"
                f" {dtype.itemsize} = {self.tile_k * dtype.itemsize} B, not a multiple of the"
                f" {_SWIZZLE} B of a swizzled row."
            )
        share = specs.compute_registers(_MEMORY_REGISTERS, self.compute_threads)
        if (taken := self.accumulator_registers()) >= share:
            raise ValueError(
                f"MatmulConfig: an accumulator of {self.rows} x {self.tile_n} takes {self.rows} x"
                f" {self.tile_n} / 128 lanes = {taken} registers of a lane, but each of"
                f" {self.compute_threads} compute threads has {share}, and needs some for the rest."
            )
        if (total := self.smem_bytes(dtype, out_dtype)) > specs.SMEM_BYTES:
            terms = self._smem_terms(dtype, out_dtype)
            terms = " + ".join(f"{name} {count} x {size:,} B" for name, count, size in terms)
            raise ValueError(
                f"MatmulConfig: {terms} = {total:,} B of shared memory, but a block has"
                f" {specs.SMEM_BYTES:,} B, so the kernel could not start."
            )

    def _smem_terms(self, dtype: Any, out_dtype: Any) -> list[tuple[str, int, int]]:
        step, size = self.tile_k * jnp.dtype(dtype).itemsize, jnp.dtype(out_dtype).itemsize
        return [
            ("slots of a", self.slots, self.tile_m * step),
            ("slots of b", self.slots, self.tile_n * step),
            ("staging", self.staging_slots, self.tile_m * self.epilogue_n * size),
            ("barriers", 2 * self.slots, 8),
        ]


class _Product(NamedTuple):
    """What a product is told beside its factors; hashable, so that JAX compiles each once."""

    transpose_a: bool
    transpose_b: bool
    config: MatmulConfig | None
    epilogue: Epilogue | None
    out_dtype: Any

    def sizes(self, a: Any, b: Any) -> tuple[int, int, int]:
        """M, N and K."""
        (m, k) = a.shape[::-1] if self.transpose_a else a.shape
        return m, b.shape[0 if self.transpose_b else 1], k

    def ring(self, config: MatmulConfig, a: Any, b: Any) -> tuple[int, int, int]:
        """Slots, delay_release and the steps of each tile, a multiple of the slots."""
        steps = math.ceil(self.sizes(a, b)[2] / config.tile_k)
        slots = min(config.slots, steps)
        return slots, min(config.delay_release, slots - 1), math.ceil(steps / slots) * slots


def matmul(
    a: jax.Array,
    b: jax.Array,
    *,
    config: MatmulConfig | None = None,
    epilogue: Epilogue | None = None,
    out_dtype: Any = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> jax.Array:
    """`epilogue(a @ b)` on a Hopper GPU, accumulated in float32.

    Works under `jax.jit`, `jax.vmap` (the kernel's grid gets the batch as one more axis; a factor
    without one is shared, not copied) and, with no epilogue and not in float8, `jax.grad`. A
    cotangent is rounded to the factors' dtype, and its products have default configurations.

    Args:
      a: [M, K]; [K, M] if `transpose_a`.
      b: [K, N]; [N, K] if `transpose_b`. Both float16 or both bfloat16; or float8_e4m3fn and
        float8_e5m2 in any pair, and then K must be the last axis of both (`transpose_b` only).
        Of shapes that the kernel cannot address, `jax.lax.dot_general` makes the product: see
        "The fallback" in the module.
      config: by default one is picked from the shape alone. There is no table of tuned ones yet.
      epilogue: a function of a float32 array that works on each element alone; called with parts of
        the product, in registers, and with the whole of it without the kernel. It captures no
        arrays, only numbers. JAX compiles anew for each function object, so pass the same one. JAX
        0.11 compiles no `jax.custom_jvp`: for `jax.nn.relu` write `jnp.maximum(x, 0.0)`.
      out_dtype: float16, bfloat16 or float32. By default that of `a`, bfloat16 for float8.

    Returns:
      [M, N] in `out_dtype`.

    Raises:
      TypeError: dtypes that are not as above.
      ValueError: shapes; a GPU that is not Hopper, or a CPU where nothing interprets kernels (that
        one is Pallas's); a configuration that does not fit, with the sum; an epilogue that changes
        the shape or captures arrays.
      NotImplementedError: gradients with an epilogue or in float8.
    """
    _check_dtypes(a, b, transpose_a, transpose_b)
    _check_shapes(a, b, transpose_a, transpose_b)
    if out_dtype is None:
        out_dtype = jnp.bfloat16 if a.dtype in _FLOAT8 else a.dtype
    if (out_dtype := jnp.dtype(out_dtype)) not in _OUTPUTS:
        names = ", ".join(dtype.name for dtype in _OUTPUTS)
        raise TypeError(f"matmul: out_dtype={out_dtype} is none of {names}, which it can store.")
    if epilogue is not None:
        _check_epilogue(epilogue)
    if config is not None:
        config.check(a.dtype, out_dtype)
    return _product(a, b, _Product(transpose_a, transpose_b, config, epilogue, out_dtype))


def default_config(m: int, n: int, dtype: Any, out_dtype: Any) -> MatmulConfig:
    """The largest tiles of which there is one for each SM, with all the slots that fit.

    A rule of thumb: nothing in it was measured.
    """
    tiles = ((128, 256, 2), (128, 128, 2), (64, 128, 1))
    counts = [math.ceil(m / tile_m) * math.ceil(n / tile_n) for tile_m, tile_n, _ in tiles]
    enough = (tile for tile, count in zip(tiles, counts) if count >= _num_sms())
    tile_m, tile_n, threads = next(enough, tiles[-1])
    tile_k = _SWIZZLE // jnp.dtype(dtype).itemsize
    configs = [MatmulConfig(tile_m, tile_n, tile_k, slots, threads) for slots in range(2, 7)]
    fits = lambda config: config.smem_bytes(dtype, out_dtype) <= specs.SMEM_BYTES
    return list(filter(fits, configs))[-1]


def _check_dtypes(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> None:
    dtypes = jnp.dtype(a.dtype), jnp.dtype(b.dtype)
    for name, dtype in zip("ab", dtypes):
        if dtype not in _INPUTS:
            names = ", ".join(dtype.name for dtype in _INPUTS)
            raise TypeError(f"matmul: {name} is {dtype}, but wgmma multiplies here {names}.")
    is_float8 = [dtype in _FLOAT8 for dtype in dtypes]
    if dtypes[0] != dtypes[1] and not all(is_float8):
        raise TypeError(
            f"matmul: a is {dtypes[0]} and b is {dtypes[1]}, but wgmma takes one dtype: cast one."
        )
    if any(is_float8) and (transpose_a or not transpose_b):
        raise ValueError(
            f"matmul: {transpose_a=} and {transpose_b=} in float8, but wgmma reads float8 only with"
            " K as the last axis of both: a [M, K], and b [N, K] with transpose_b=True."
        )


def _check_shapes(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> None:
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(
            f"matmul: a has shape {a.shape} and b {b.shape}, but both must have 2 axes; use"
            " jax.vmap for a batch."
        )
    k_a, k_b = a.shape[0 if transpose_a else 1], b.shape[1 if transpose_b else 0]
    if k_a != k_b:
        raise ValueError(
            f"matmul: a {a.shape} with {transpose_a=} has K = {k_a}, and b {b.shape} with"
            f" {transpose_b=} has K = {k_b}; they must be equal."
        )
    if 0 in (*a.shape, *b.shape):
        raise ValueError(f"matmul: a {a.shape} or b {b.shape} is empty; M, N, K must be 1 or more.")


def _check_epilogue(epilogue: Epilogue) -> None:
    part = jax.ShapeDtypeStruct((3, 5), jnp.float32)  # nothing but an elementwise function fits
    closed, out = jax.make_jaxpr(epilogue, return_shape=True)(part)
    if getattr(out, "shape", None) != part.shape:
        raise ValueError(
            f"matmul: the epilogue makes {out} of a part of shape {part.shape}; it must work on"
            " each element alone and keep the shape."
        )
    if closed.consts:
        raise ValueError(
            f"matmul: the epilogue captures arrays of shapes {list(map(jnp.shape, closed.consts))},"
            " which a kernel cannot read; use numbers of Python, or apply them to the result."
        )


def _device() -> Any:
    """The device that JAX uses by default."""
    device = jax.config.jax_default_device
    return jax.devices(device)[0] if device is None or isinstance(device, str) else device


def _num_sms() -> int:
    return getattr(_device(), "core_count", None) or _SMS


def _addressable(a: Any, b: Any, product: _Product) -> bool:
    """Whether the copies of the kernel can address the factors and the output."""
    m, n, _ = product.sizes(a, b)
    out = jax.ShapeDtypeStruct((m, n), product.out_dtype)
    for rows, columns, dtype in ((*array.shape, array.dtype) for array in (a, b, out)):
        if columns * jnp.dtype(dtype).itemsize % _SWIZZLE:
            return False
        if rows > _PIECE_ROWS and rows % _PIECE_ROWS:
            return False
    return True


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
@functools.partial(jax.jit, static_argnums=2)
def _product(a: jax.Array, b: jax.Array, product: _Product) -> jax.Array:
    if not _addressable(a, b, product):
        return _fallback(a, b, product)
    device = _device()
    capability = str(getattr(device, "compute_capability", ""))
    if device.platform == "gpu" and not capability.startswith("9."):
        raise ValueError(
            f"matmul: {device.device_kind} has compute capability {capability}, but wgmma needs"
            " 9.x, a Hopper GPU."
        )
    return _kernel(a, b, product)


def _forward(a: jax.Array, b: jax.Array, product: _Product) -> tuple[jax.Array, Any]:
    if product.epilogue is not None or a.dtype in _FLOAT8:
        what = "an epilogue" if product.epilogue is not None else f"factors in {a.dtype}"
        raise NotImplementedError(
            f"matmul: a product with {what} has no gradient yet; differentiate a plain one in"
            " float16 or bfloat16."
        )
    return _product(a, b, product), (a, b)


def _backward(product: _Product, factors: Any, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """dA = G B^T and dB = A^T G, each in the order and the transposition that it is stored in."""
    (a, b), (a_t, b_t) = factors, product[:2]
    g = g.astype(a.dtype)
    multiply = lambda x, y, x_t, y_t: _product(x, y, _Product(x_t, y_t, None, None, a.dtype))
    da = multiply(b, g, b_t, True) if a_t else multiply(g, b, False, not b_t)
    db = multiply(g, a, True, a_t) if b_t else multiply(a, g, not a_t, False)
    return da, db


_product.defvjp(_forward, _backward)


def _fallback(a: jax.Array, b: jax.Array, product: _Product) -> jax.Array:
    """The product without the kernel."""
    contracted = (0 if product.transpose_a else 1,), (1 if product.transpose_b else 0,)
    result = lax.dot_general(a, b, (contracted, ((), ())), preferred_element_type=jnp.float32)
    return (product.epilogue or (lambda acc: acc))(result).astype(product.out_dtype)


def _kernel(a: jax.Array, b: jax.Array, product: _Product) -> jax.Array:
    """Starts the blocks; each thread of a block goes through its tiles."""
    m, n, _ = product.sizes(a, b)
    config = product.config or default_config(m, n, a.dtype, product.out_dtype)
    tiles = math.ceil(m / config.tile_m), math.ceil(n / config.tile_n)

    def matmul_block(a, b, out, staging):
        def scope(allocations):
            @plgpu.nd_loop((math.prod(tiles),), collective_axes="block")
            def _(info):
                minor = "mn".index(config.order)
                tile = plgpu.planar_snake(info.index[0], tiles, minor, config.width)
                place = plgpu.PipelinePipeline
                state = jnp.where(info.local_index == 0, place.START, place.STEADY)
                pipeline = _tile_pipeline(a, b, out, staging, product, config, tile, state)
                pipeline(a, b, allocations=allocations)

            pl.when(is_memory_thread)(functools.partial(last_releases, **allocations))

        def last_releases(consumed, **_):
            # A STOP would do it, but the only tile of a block would have to be a START too.
            slots, delay, _ = product.ring(config, a, b)
            for slot in range(slots - delay):
                plgpu.barrier_wait(consumed[0].at[slot])

        is_memory_thread = lax.axis_index("thread") == config.compute_threads
        zero = jnp.int32(0)
        any_tile = _tile_pipeline(a, b, out, staging, product, config, (zero, zero), zero)
        pl.run_scoped(scope, any_tile.get_allocations(a, b), collective_axes="thread")
        pl.when(~is_memory_thread)(lambda: plgpu.wait_smem_to_gmem(0))

    shape = config.compute_threads, config.staging_slots, config.rows, config.epilogue_n
    blocks = min(math.prod(tiles), config.blocks or _num_sms())
    return plgpu.kernel(
        matmul_block, out_type=jax.ShapeDtypeStruct((m, n), product.out_dtype), grid=(blocks,),
        grid_names=("block",), num_threads=config.compute_threads + 1, thread_name="thread",
        scratch_types=[plgpu.SMEM(shape, product.out_dtype, transforms=_tiled(product.out_dtype))],
    )(a, b)  # fmt: skip


def _tile_pipeline(a, b, out, staging, product, config, tile, state) -> Any:
    """The pipeline over K that makes and stores one tile."""
    (m, n), (slots, delay, steps) = tile, product.ring(config, a, b)
    mine = pl.ds(lax.axis_index("thread") * config.rows, config.rows)

    def multiply(_, a, b, acc):
        a = a.at[:, mine].transpose((1, 0)) if product.transpose_a else a.at[mine]
        b = b.transpose((1, 0)) if product.transpose_b else b
        plgpu.wgmma(acc, a, b)
        plgpu.wgmma_wait(delay)
        return acc

    def compute_thread(pipeline):
        def scope(acc):
            pipeline(acc)
            return acc[...]

        acc = pl.run_scoped(scope, plgpu.ACC((config.rows, config.tile_n), jnp.float32))
        _store(acc, out, staging.at[lax.axis_index("thread")], product, config, tile)

    def spec(ref, size, tile, is_k_first):
        block, index = (size, config.tile_k), lambda k: (tile, k)
        if is_k_first:
            block, index = block[::-1], lambda k: (k, tile)
        return plgpu.BlockSpec(block, index, transforms=_tiled(ref.dtype), delay_release=delay)

    return emit_pipeline_warp_specialized(
        multiply, grid=(steps,), max_concurrent_steps=slots,
        in_specs=[
            spec(a, config.tile_m, m, product.transpose_a),
            spec(b, config.tile_n, n, not product.transpose_b),
        ],
        memory_registers=_MEMORY_REGISTERS, num_compute_wgs=config.compute_threads,
        wg_axis="thread", compute_context=compute_thread, pipeline_state=state,
        ordinary_reads=False,
    )  # fmt: skip


def _store(acc, out, staging, product: _Product, config: MatmulConfig, tile) -> None:
    """Starts the stores of one thread's rows of a tile, part by part through its staging slots."""
    row = tile[0] * config.tile_m + lax.axis_index("thread") * config.rows
    for part in range(config.tile_n // config.epilogue_n):
        slot, first = part % config.staging_slots, part * config.epilogue_n
        values = acc[:, first : first + config.epilogue_n]
        if product.epilogue is not None:
            values = product.epilogue(values)
        plgpu.wait_smem_to_gmem(config.staging_slots - 1, wait_read_only=True)
        staging[slot] = values.astype(product.out_dtype)
        plgpu.commit_smem()
        column = tile[1] * config.tile_n + first
        here = pl.ds(row, config.rows), pl.ds(column, config.epilogue_n)
        plgpu.copy_smem_to_gmem(staging.at[slot], out.at[here])


def _tiled(dtype: Any) -> tuple[Any, ...]:
    """The layout in SMEM that `wgmma` reads, and in which rows lie in different banks."""
    tiling = plgpu.TilingTransform((_PIECE_ROWS, _SWIZZLE // jnp.dtype(dtype).itemsize))
    return tiling, plgpu.SwizzleTransform(_SWIZZLE)
