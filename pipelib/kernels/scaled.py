"""`scaled_matmul`: a product of float8 whose factors have a scale for each block of numbers.

The model. A row of `a` has a scale for each 128 numbers, and `b` one for each 128 x 128, as
DeepSeek-V3 stores them (arXiv 2412.19437, section 3.3). So the products of 128 of K are scaled
before they are added up, in registers::

    for each tile of the block, in a snake order:
      for each 256 of K, in a ring of slots that goes on from tile to tile:
        start both products of 128: a[m, k] @ b[n, k]^T     (wgmma, from zeros)
        load the scales of the next step                    (from GMEM, while they run)
        for each of the two, as soon as it is done:
          sums += product * (a_scales[m, k] * b_scales[n, k])
      store sums

So the first product of a step is scaled while the second runs. While the second is scaled, the
other compute thread multiplies: it begins a tile later, when the first product of this one is done.
A tile has 128 columns, so a product has one scale of b, and the sums and two products have room in
the registers.

Copies of `a` see rows (`tiles`), so M may be anything. A compute thread loads the scales by
itself, so no slot has ordinary reads, whose end would have to be told to the copy engine.
"""

# What it asks of JAX has no types.
# pyright: basic, reportPrivateImportUsage=false

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast, override

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.typing import DTypeLike

from pipelib import ring, specs, tiles
from pipelib.kernels.chain import run_chain
from pipelib.kernels.choosing import H200, in_waves
from pipelib.kernels.dividing import Barriers, Memory, Smem
from pipelib.kernels.front import FLOAT8, Front
from pipelib.kernels.hopper import default_device, num_sms
from pipelib.kernels.keywords import SCALED_PRODUCT, knows
from pipelib.kernels.matmul.config import STAGED_ROWS, MatmulConfig
from pipelib.kernels.matmul.result import this_thread
from pipelib.refs import Accumulator, Bool, Dtype, Int, Ref, Shaped
from pipelib.specs import ByRows
from pipelib.warp_specialized import (
    AllSteps,
    WarpSpecializedPipeline,
    emit_pipeline_warp_specialized,
)

#: Numbers that share a scale along K, and along N.
SCALED = 128
#: The axes of a cluster: its blocks share the loads of b along the first, of a along the second.
CLUSTER = "cluster_m", "cluster_n"


@dataclasses.dataclass(frozen=True)
class ScaledConfig(MatmulConfig):
    """How `scaled_matmul` divides its work.

    Attributes:
      tile_k: the part of K of a step: 128 for each of its products, so a multiple of that.
      delay_release: 0: each product is scaled before the next starts; 1: those of a step start
        together. (Slots are released at the end of their step.)
      stagger: whether the second compute thread, if there is one, begins a tile when the first has
        its first product.

    The others are those of `MatmulConfig`, but that `epilogue_n` says nothing here, `form` is
    "chained", and there are no `splits`.

    Raises:
      ValueError, TypeError: for values, and types of them, that are not so.

    Example:
      >>> config = pipelib.kernels.ScaledConfig(cluster_m=2)
      >>> config.smem_bytes(jnp.float8_e4m3fn, jnp.bfloat16)
      229432
    """

    tile_n: int = SCALED
    tile_k: int = 2 * SCALED
    slots: int = 3
    delay_release: int = 1
    stagger: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        specs.flag("ScaledConfig: stagger", self.stagger)
        if self.tile_k % SCALED or self.form != "chained" or self.splits > 1:
            raise ValueError(
                f"ScaledConfig: {self.tile_k=} is not a multiple of {SCALED}, {self.form=} is not"
                f" 'chained', or {self.splits=} is not 1."
            )

    def accumulator_registers(self) -> int:
        """Registers of each lane for a thread's sums, and for the products that run together."""
        products = self.depth * self.halves if self.delay_release else 1
        return (self.halves + products) * STAGED_ROWS * self.tile_n // 128

    @override
    def memory(
        self, dtype: DTypeLike, out_dtype: DTypeLike, operands: Sequence[DTypeLike] = ()
    ) -> Memory:
        columns = tiles.piece_columns(jnp.dtype(out_dtype))
        # A slot is one piece wide, whatever the dtype. A thread has two if it stores an even number
        # of parts, so that each tile begins with the same one.
        slots = 1 if self.halves * (self.tile_n // columns) % 2 else 2
        shape = self.compute_threads, slots, STAGED_ROWS, columns
        others = super().memory(dtype, out_dtype, operands)
        turn = {"turn": Barriers()} if self.takes_turns else {}
        return {**others, "staging": Smem("staging", shape, out_dtype, slots), **turn}

    @property
    def takes_turns(self) -> bool:
        """Whether the second compute thread waits for the first."""
        return self.stagger and self.compute_threads > 1

    @property
    def loads_scales_along_m(self) -> bool:
        """Whether the scales of a are transposed for the kernel.

        A warp's load of the scales of 8 rows takes one line of the L1 cache then, not 8, whose time
        the operands of the products lack. But each step has other lines, and few rows are not worth
        a kernel that transposes. Measured on an H200 with 8,192 of each size: products that start
        together are 11% faster with it, tiles of 192 columns 4% slower.
        """
        return self.delay_release > 0 and self.compute_threads > 1

    @property
    def depth(self) -> int:
        """How many times a step has 128 of K."""
        return self.tile_k // SCALED

    @property
    def halves(self) -> int:
        """How many times a compute thread has 64 rows."""
        return self.rows // STAGED_ROWS

    @property
    def group(self) -> int:
        """Columns of a tile that share a scale of b, wherever the tile begins."""
        return math.gcd(SCALED, self.tile_n)


def config_of(m: int, n: int, sms: int) -> ScaledConfig:
    """How a product is divided.

    Tiles of 128 x 128 of one byte ask more of L2 than it gives, if each block loads for itself. So
    two blocks below each other share the loads of b. Tiles of 192 columns ask for less, so they are
    taken where they need less time. A product of up to 128 rows takes the time of its
    loads, so one compute thread of 64 rows is enough. Where there would be a tile for half of the
    SMs only, tiles are narrow, so that all of them load.

    Args:
      m, n: rows and columns of the result.
      sms: of the GPU.
    """
    rows = STAGED_ROWS if m <= SCALED else SCALED
    has_few_tiles = 2 * math.ceil(m / rows) * math.ceil(n / SCALED) <= sms
    columns = SCALED // 2 if has_few_tiles else SCALED
    if m <= SCALED:
        slots = 6 if has_few_tiles else 4
        return ScaledConfig(rows, columns, slots=slots, compute_threads=1)
    if has_few_tiles:
        return ScaledConfig(rows, columns, slots=4)
    pair = ScaledConfig(cluster_m=2)
    wide = ScaledConfig(tile_n=192, tile_k=SCALED, slots=4, delay_release=0, cluster_m=2)

    def time(config: ScaledConfig, column: float) -> float:
        return in_waves(math.prod(config.tiles(m, n)), sms, config.tile_n, column)

    return wide if time(wide, H200.wide_column) < time(pair, 1.0) else pair


@knows(SCALED_PRODUCT)
def scaled_matmul(
    a: jax.Array,
    b: jax.Array,
    a_scales: jax.Array,
    b_scales: jax.Array,
    *,
    out_dtype: DTypeLike | None = None,
    config: ScaledConfig | None = None,
) -> jax.Array:
    """`(a * its scales) @ (b * its scales).T` on a Hopper GPU, accumulated in float32.

    Works under `jax.jit`, `jax.vmap` and `jax.shard_map`; it has no gradient.

    Args:
      a: [M, K], float8_e4m3fn or float8_e5m2; K a multiple of 16.
      b: [N, K], one of these dtypes; N a multiple of 8.
      a_scales: float32 [M, ceil(K / 128)], for each 128 numbers of a row.
      b_scales: float32 [ceil(N / 128), ceil(K / 128)], for each 128 x 128 numbers.
      out_dtype: float16, bfloat16 or float32; by default bfloat16.
      config: how it is divided; None: as `config_of` says.

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
    stored = FRONT.stored_dtype(a, out_dtype)
    FRONT.check_config(config)
    if config is not None:
        config.check(a.dtype, stored)
    return FRONT.call(_scaled, (a, b, a_scales, b_scales), _Asked(stored, config))


class _Asked(NamedTuple):
    """What `scaled_matmul` is told beside its arrays; hashable."""

    out_dtype: Dtype
    config: ScaledConfig | None


def _made(
    a: jax.Array, b: jax.Array, a_scales: jax.Array, b_scales: jax.Array, asked: _Asked
) -> jax.Array:
    """The product; all arguments are checked."""
    FRONT.require_gpu()
    m, n, out_dtype = a.shape[0], b.shape[0], asked.out_dtype
    config = asked.config or config_of(m, n, num_sms())
    by_rows = default_device().platform == "gpu"
    missing = config.tiles(m, n)[0] * config.tile_m - m
    clusters = config.resident_blocks(m, n, num_sms()) // config.cluster_size
    sizes = {name: getattr(config, name) for name in CLUSTER if getattr(config, name) > 1}
    cluster: Any = dict(cluster=(*sizes.values(),), cluster_names=(*sizes,)) if sizes else {}
    of_rows = jnp.pad(a_scales, ((0, missing), (0, 0))) if missing else a_scales
    of_rows = of_rows.T if config.loads_scales_along_m else of_rows
    memory = config.memory(a.dtype, out_dtype)
    staging = cast(Smem, memory["staging"])._replace(is_tiled=False)
    scratch = [staging.allocation(sees_rows=by_rows)]
    scratch += [Barriers().allocation()] if config.takes_turns else []

    def scaled_matmul(
        a: Ref, b: Ref, of_rows: Ref, of_b: Ref, out: Ref, staging: Ref, *turn: Ref
    ) -> None:
        both = tiles.both(staging, by_rows)
        _Block(config, a, b, of_rows, of_b, out, both, turn, by_rows).run()

    return plgpu.kernel(
        scaled_matmul,
        out_type=jax.ShapeDtypeStruct((m, n), out_dtype),
        scratch_types=scratch,
        grid=(clusters,),
        grid_names=("block",),
        **cluster,
        num_threads=config.threads,
        thread_name="thread",
    )(a, b, of_rows, b_scales)


FRONT = Front("scaled_matmul", "jnp.matmul of the scaled factors", ScaledConfig)
_scaled = FRONT.without_gradient(
    _made, ": multiply the cotangent, scaled anew, by the other factor"
)


class _Scales(NamedTuple):
    """The scales of a product: of its rows of a, [64], and of each group of its columns of b."""

    of_rows: jax.Array
    of_b: tuple[jax.Array, ...]

    @property
    def together(self) -> tuple[jax.Array, ...]:
        """For each group of columns, the rows' scales, [64], times the scale of b."""
        return tuple(self.of_rows * scale for scale in self.of_b)


class _Tile(NamedTuple):
    """A tile: its place along m and n, and the thread that multiplies, computed once for a tile."""

    m: Int
    n: Int
    thread: Int = 0


#: The sums of a thread: for each 64 of its rows, for each group of columns, [64, columns].
_Sums = tuple[tuple[jax.Array, ...], ...]
#: The scales of each product of a step: for each group of columns, [64].
_Together = tuple[tuple[jax.Array, ...], ...]
#: What a step leaves to the next one: the thread's number, its sums, and the scales of the next.
_Carry = tuple[Int, _Sums, _Together]


class _Block(NamedTuple):
    """A block of the kernel; the arrays are in GMEM, but for the staging slots.

    Attributes:
      config: how the product is divided.
      a, b, of_rows, of_b, out: as above; `of_rows` are the scales of a, of whole tiles, and maybe
        transposed.
      staging: the staging slots, in tiles and by rows.
      turn: the barrier at which thread 0 tells that its first product of a tile is done.
      by_rows: whether copies can see rows; JAX's interpreter needs no such thing.
    """

    config: ScaledConfig
    a: Ref
    b: Ref
    of_rows: Ref
    of_b: Ref
    out: Ref
    staging: tiles.Both
    turn: tuple[Ref, ...]
    by_rows: bool

    def run(self) -> None:
        """Makes the block's tiles, as one chain."""
        config, (rows, columns) = self.config, self.out.shape
        m_tiles, n_tiles = config.tiles(rows, columns)
        shape = m_tiles // config.cluster_m, n_tiles // config.cluster_n

        def pipeline(index: jax.Array, *place: jax.Array) -> WarpSpecializedPipeline:
            here = plgpu.planar_snake(index, shape, 0, config.width)
            return self._pipeline(_Tile(*map(self._of_cluster, here, CLUSTER)), *place)

        zero, (slots, count) = jnp.int32(0), self._steps()
        refs = (self.a,) * self.config.depth + (self.b,) * self.config.depth
        first = self._pipeline(_Tile(zero, zero), zero, zero)
        run_chain(math.prod(shape), pipeline, first, refs, slots, steps=count)
        is_compute_thread = this_thread(config) < config.compute_threads
        pl.when(is_compute_thread)(lambda: plgpu.wait_smem_to_gmem(0))

    def _of_cluster(self, index: Int, axis: str) -> Int:
        """The index of this block's tile along an axis, from that of the cluster's tiles."""
        size = getattr(self.config, axis)
        return index if size == 1 else size * index + lax.axis_index(axis)

    def _steps(self) -> tuple[int, int]:
        """Slots, and steps."""
        count = math.ceil(self.a.shape[1] / self.config.tile_k)
        return min(self.config.slots, count), count

    def _pipeline(
        self, tile: _Tile, state: jax.Array, steps_before: jax.Array
    ) -> WarpSpecializedPipeline:
        """The pipeline that makes and stores a tile; the rest is its place in the chain."""
        slots, count = self._steps()

        def compute_thread(pipeline: AllSteps) -> None:
            here = tile._replace(thread=this_thread(self.config))
            self._take_turn(here.thread)
            first = tuple(each.together for each in self._step_scales(here, jnp.int32(0)))
            _, sums, _ = pipeline((here.thread, self._zeros(), first))
            self._store(here, sums)

        return emit_pipeline_warp_specialized(
            functools.partial(self._step, tile), grid=(count,), in_specs=self._specs(tile),
            max_concurrent_steps=slots, memory_registers=self.config.memory_registers,
            wg_axis="thread", num_compute_wgs=self.config.compute_threads,
            compute_context=compute_thread, pipeline_state=state, steps_before=steps_before,
            ordinary_reads=False,
        )  # fmt: skip

    def _zeros(self) -> _Sums:
        """The sums of a tile before its first step."""
        zeros = jnp.zeros((STAGED_ROWS, self.config.group), jnp.float32)
        groups = self.config.tile_n // self.config.group
        return ((plgpu.layout_cast(zeros, plgpu.Layout.WGMMA),) * groups,) * self.config.halves

    def _step(self, tile: _Tile, indices: ring.Indices, *refs: Any) -> _Carry:
        """Multiplies what a step has, and adds it, scaled, to the sums.

        It loads the scales of the next step: by `ncu`, a thread waited longer for those of its own
        step than for its products, since the products' operands take what SMEM and L1 give. They
        are multiplied in the end: as the carry, b's scales would go to uniform registers, and
        ptxas moves them there before it waits for the products, so that loads are waited for first.
        """
        *factors, (thread, sums, scales) = refs
        tile = tile._replace(thread=thread)
        following = self._step_scales(tile, indices[0] + 1)
        scaled = [*zip(self._products(), scales)]
        together = len(scaled) if self.config.delay_release else 1
        for first in range(0, len(scaled), together):
            some = dict(scaled[first : first + together])
            sums = self._multiply(tile, indices[0], factors, some, sums)
        return thread, sums, tuple(each.together for each in following)

    def _products(self) -> list[tuple[int, int]]:
        """Of each product of a step: the part of the step, and the 64 of the thread's rows."""
        return [*itertools.product(range(self.config.depth), range(self.config.halves))]

    def _step_scales(self, tile: _Tile, step: Int) -> tuple[_Scales, ...]:
        """The scales of each product of a step; after the last step, of any."""
        depth = self.config.depth
        return tuple(
            self._scales(tile, step * depth + part, half) for part, half in self._products()
        )

    def _multiply(
        self,
        tile: _Tile,
        k: Int,
        factors: list[Ref],
        products: dict[tuple[int, int], tuple[jax.Array, ...]],
        sums: _Sums,
    ) -> _Sums:
        """Starts some products of a step, and adds each, scaled, while the next ones run.

        Args:
          tile, k: the tile and the step.
          factors: the parts of a, then those of b, in SMEM.
          products: of the part, and the 64 of the thread's rows, of each: its scales.
          sums: what they are added to.

        Returns:
          The sums.
        """
        depth = self.config.depth

        def multiply(*accs: Accumulator) -> _Sums:
            for acc, (part, half) in zip(accs, products):
                first = tile.thread * self.config.rows + half * STAGED_ROWS
                rows = factors[part].at[pl.ds(first, STAGED_ROWS)]
                plgpu.wgmma(acc, rows, factors[depth + part].transpose((1, 0)))
            added = sums
            for number, ((part, half), scales) in enumerate(products.items(), 1):
                running = len(products) - number
                product = plgpu.wgmma_accumulator_load(accs[number - 1], wait_n=running)
                if part == half == 0:
                    self._pass_turn((k == 0) & (tile.thread == 0))
                added = self._add(added, half, product, scales)
            return added

        acc = plgpu.ACC((STAGED_ROWS, self.config.tile_n), jnp.float32)
        return pl.run_scoped(multiply, *[acc] * len(products))

    def _take_turn(self, thread: Int) -> None:
        """Returns in thread 1 once the first product of thread 0 in this tile is done.

        Else both would wait for the tensor core, and then both scale while it has no work. Thread 0
        cannot be a tile ahead: a tile has at least as many steps as there are slots.
        """
        for turn in self.turn:
            pl.when(thread == 1)(lambda: plgpu.barrier_wait(turn))

    def _pass_turn(self, is_mine: Bool) -> None:
        """Lets thread 1 begin."""
        for turn in self.turn:
            pl.when(is_mine)(lambda: plgpu.barrier_arrive(turn))

    def _scales(self, tile: _Tile, k: Int, half: int) -> _Scales:
        """The scales of 64 rows of a thread, and those of b, for the kth 128 numbers."""
        config, (n_blocks, k_blocks) = self.config, self.of_b.shape
        k = jnp.minimum(k, k_blocks - 1)
        first = tile.m * config.tile_m + tile.thread * config.rows + half * STAGED_ROWS
        rows = pl.ds(first, STAGED_ROWS)
        rows = self.of_rows.at[k, rows] if config.loads_scales_along_m else self.of_rows.at[rows, k]
        of_rows = plgpu.load(rows, layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)

        def of_b(column: int) -> jax.Array:
            block = (tile.n * config.tile_n + column) // SCALED
            return self.of_b[jnp.minimum(block, n_blocks - 1), k]

        return _Scales(of_rows, tuple(map(of_b, range(0, config.tile_n, self.config.group))))

    def _add(
        self, sums: _Sums, half: int, product: jax.Array, scales: tuple[jax.Array, ...]
    ) -> _Sums:
        """The sums with a product of some 64 rows added, scaled."""
        added: list[jax.Array] = []
        for group, (old, scale) in enumerate(zip(sums[half], scales)):
            part = product
            if len(scales) > 1:
                part = product[:, group * self.config.group : (group + 1) * self.config.group]
            added.append(old + part * lax.broadcast_in_dim(scale, part.shape, (0,)))
        every = list(sums)
        every[half] = tuple(added)
        return tuple(every)

    def _specs(self, tile: _Tile) -> list[plgpu.BlockSpec]:
        """What a step loads: the parts of a, then those of b."""
        config, depth = self.config, self.config.depth
        kind = ByRows if self.by_rows else plgpu.BlockSpec

        def spec(rows: int, row: Int, part: int, axis: str) -> plgpu.BlockSpec:
            options: Any = dict(collective_axes=(axis,)) if getattr(config, axis) > 1 else {}
            index = lambda k: (row, depth * k + part)
            return kind((rows, SCALED), index, transforms=tiles.tiled(self.a.dtype), **options)

        of_a = [spec(config.tile_m, tile.m, part, "cluster_n") for part in range(depth)]
        return of_a + [spec(config.tile_n, tile.n, part, "cluster_m") for part in range(depth)]

    def _store(self, tile: _Tile, sums: _Sums) -> None:
        """Starts the stores of this thread's rows of a tile, part by part."""
        config, (_, slots, _, columns) = self.config, self.staging.tiles.shape
        first = tile.m * config.tile_m + tile.thread * config.rows
        count = 0
        for half, groups in enumerate(sums):
            for column in range(0, config.tile_n, columns):
                group, offset = divmod(column, self.config.group)
                values = groups[group][:, offset : offset + columns]
                plgpu.wait_smem_to_gmem(slots - 1, wait_read_only=True)
                slot = tile.thread, count % slots
                self.staging.tiles.at[slot][...] = values.astype(self.out.dtype)
                plgpu.commit_smem()
                rows = pl.ds(first + half * STAGED_ROWS, STAGED_ROWS)
                there = self.out.at[rows, pl.ds(tile.n * config.tile_n + column, columns)]
                plgpu.copy_smem_to_gmem(self.staging.rows.at[slot], there)
                count += 1


def _check(a: object, b: object, a_scales: object, b_scales: object) -> None:
    """Refuses arguments that are not as `scaled_matmul` says.

    Raises:
      TypeError, ValueError: as it says.
    """
    named = dict(a=a, b=b, a_scales=a_scales, b_scales=b_scales)
    FRONT.check_arrays(**named)
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
