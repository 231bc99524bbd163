"""`default_config`: the likeliest of a few configurations, by a closed formula for their time.

The model. A block makes its tiles one after the other, and all blocks go through as many *rounds*
of tiles. A step of a tile takes the longest of three times, and a part (`unhidden`) of the others,
which do not overlap all of it:

===========  ====================================================================================
its product  at the tensor core's rate, or as `wgmma` reads its operands from SMEM
its loads    through L2, which all blocks share, and into the SM
its part of  what the launch moves through HBM: each factor once, and the result
===========  ====================================================================================

But no step takes less than its turn in the ring: a slot is loaded, waited for and multiplied before
it is loaded again, and `slots - delay_release` of them are under way at once. To the steps come the
staging of each tile and, once in a launch, the first load and the last store. Blocks that make one
tile each pay these, and a block's start, in every round.

The candidates are the tiles of `TILES`, in groups of 8 tile rows. With one tile for each SM there
is nothing to chain: the form is "specialized", with all slots that fit. If there are two SMs for
each tile, K is split, too, into as many parts as there are SMs for, and into half as many. (The
parts are added up by another kernel, which reads them from the L2.) Otherwise the form is
"chained", with the most slots, and with the most that divide the steps of K, since a chain rounds
them up.

The transposed product has tiles of any multiple of 8 of the result's rows. So for each tile of
`SWAPPED` along the columns, the rows are divided into as few tiles as can be, into as many as need
no more rounds than these, and into as many as need one round more. Few rows, up to 128, are one
tile: what such a product costs is the loads of b, which two tiles would make twice. Its steps may
have two or four times as much of K, if 4 slots fit: then fewer loads bring the same.

Rows that are no whole lines of L2 take longer to load. In a cluster of two blocks each loads half
of what both need, and what the rows take besides their bytes is paid once (`_in_pairs`). So then
the likeliest candidates are tried in pairs, too. Of products with whole lines the fastest cluster
in the record is at most 2.3% ahead.

How good it is. `benchmarks/results/nvidia-h200/tune.json` has 28 products, with 24 configurations
each, but none that is transposed or has K in parts; of 25 products the choice was measured. There
it takes at most 1.03 times the fastest that was measured, and 1.005 times on average. The nearest
other row of the table has a configuration that was measured for 20 of them: it takes 1.16 times at
most and 1.018 on average, where the choice takes 1.006. Within a product, estimates and times have
a rank correlation of 0.75 on average: most configurations are within some percent of each other.
The record of `benchmarks/untuned.py` has products that no number here was fitted to.

Rows of a and b are as of [M, K] and [K, N], and none of either is in the L2 before: that is so for
weights, and in the records.

Not covered: the order of tiles; the operands of an epilogue, except for their SMEM; batches;
several blocks on one SM; how long the rows of a transposed b are.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from pipelib.kernels.choosing import H200, Rates, in_waves, while_they_fit
from pipelib.kernels.hopper import H100_SMS, num_sms
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.refs import Dtype
from pipelib.tiles import SWIZZLE

#: The tiles of the candidates: rows, columns, and compute threads. Of equals, the first wins.
TILES = (
    (128, 256, 2), (256, 128, 2), (256, 192, 2), (128, 192, 2), (128, 128, 1), (256, 64, 2),
    (64, 256, 1), (64, 192, 1), (64, 128, 1), (128, 64, 2), (64, 64, 1),
)  # fmt: skip
#: The tiles of transposed products along the result's columns, and compute threads.
SWAPPED = ((64, 1), (128, 1), (192, 3), (256, 2))
#: The same where b is copied by rows: a thread has 64 columns.
_SWAPPED_NARROW = ((64, 1), (128, 2), (192, 3))
#: More of K in a step, in bytes, the most first; and the fewest slots that it leaves.
_MUCH_OF_K, _SLOTS_OF_MUCH = (4 * SWIZZLE, 2 * SWIZZLE), 4
#: The most slots of a candidate, and the fewest that it has because they divide the steps.
_MOST_SLOTS, _MOST_SWAPPED, _FEWEST_DIVIDING = 8, 16, 3
#: How many of the likeliest candidates are tried in pairs of blocks.
_PAIRED = 4
#: The most estimates of a product: of each tile at most three, of each of `SWAPPED` three times,
#: and those of the likeliest, alone and in two kinds of pairs.
MOST_ESTIMATES = 3 * len(TILES) + 9 * len(SWAPPED) + 3 * _PAIRED
#: The most rows of the result in a transposed tile of 64 columns: the most of a `wgmma`; and the
#: most registers of a lane for an accumulator.
_MOST_ROWS, _MOST_REGISTERS = 256, 192
#: Rows of the result that one transposed tile has.
_FEW_ROWS = 128
#: With more rows than this, transposed products take longer than by their estimates.
_SWAPPED_ROWS = 1024
#: Bytes of a line of L2, and of its sectors. Rows that are no multiples lie in two of them.
_LINE_BYTES, _SECTOR_BYTES = 128, 32
#: Into how many parts K is split at most, and how many steps each of them has at least.
_MOST_SPLITS, _FEWEST_STEPS = 16, 4
#: Rows of a `wgmma`; the unit of its columns, and the most that are staged at once.
_ROWS, _SWAPPED_UNIT, _MOST_STAGED = 64, 8, 128


_Form = Literal["specialized", "chained"]


class Work(NamedTuple):
    """A product as the formula sees it.

    Attributes:
      m, n, k: its sizes.
      itemsize, out_itemsize: bytes of an element of the factors, and of the result.
    """

    m: int
    n: int
    k: int
    itemsize: int
    out_itemsize: int

    @property
    def row_bytes(self) -> tuple[int, int]:
        """Bytes of a row of a and of b, as they are in memory."""
        return self.k * self.itemsize, self.n * self.itemsize


def default_config(
    m: int,
    n: int,
    k: int,
    dtype: DTypeLike,
    out_dtype: DTypeLike,
    operands: Sequence[DTypeLike] = (),
    *,
    sms: int | None = None,
    by_rows: bool = False,
    transpose_a: bool = False,
) -> MatmulConfig:
    """The configuration of the least estimate; of equals, the first.

    Args:
      m, n, k: the product [m, k] x [k, n].
      dtype, out_dtype: the dtypes of the factors and of the result.
      operands: the dtypes of the epilogue's matrices.
      sms: SMs of the GPU; by default, of the device that JAX uses by default.
      by_rows: whether b [k, n] is copied by rows, so that a thread has 64 of its columns.
      transpose_a: whether a is stored as [k, m]; then no candidate is transposed.

    Raises:
      ValueError: no candidate fits an SM, because of the operands; with the sum.
    """
    dtypes = jnp.dtype(dtype), jnp.dtype(out_dtype), tuple(jnp.dtype(x) for x in operands)
    work, here = Work(m, n, k, dtypes[0].itemsize, dtypes[1].itemsize), sms or num_sms()
    fitting = [x for x in _fitting(*dtypes) if not by_rows or x.alone.tile_n == _ROWS]
    found = [*_candidates(work, fitting, here)]
    if not transpose_a:
        shapes = _SWAPPED_NARROW if by_rows else SWAPPED
        swapped = [tile for shape in shapes for tile in _swapped(work, *shape, here)]
        fits = (_fits_much, _fits) if m <= _FEW_ROWS else (_fits,)
        every = (of(tile, *dtypes, True) for of in fits for tile in swapped)
        found = [*_candidates(work, [x for x in every if x], here), *found]

    def likely_us(config: MatmulConfig) -> float:
        is_slower = config.swapped and m > _SWAPPED_ROWS
        return estimate_us(config, work, here) * (H200.swapped_slower if is_slower else 1.0)

    likeliest = sorted(found, key=likely_us)[:_PAIRED]
    if not any(length % _LINE_BYTES for length in work.row_bytes):
        return likeliest[0]
    return min([*likeliest, *_in_pairs(likeliest)], key=likely_us)


class _Fitting(NamedTuple):
    """What fits an SM, with tiles of one size, each with the most slots but for `chained`.

    Attributes:
      alone: the form "specialized".
      split: the same with K split, whose parts are staged in float32; None if it does not fit.
      chained: the form "chained", from 2 slots on.
    """

    alone: MatmulConfig
    split: MatmulConfig | None
    chained: tuple[MatmulConfig, ...]


def _candidates(work: Work, fitting: Sequence[_Fitting], sms: int) -> Iterator[MatmulConfig]:
    """The candidates for a product.

    Args:
      work: the product.
      fitting: what `_fitting` gives.
      sms: SMs of the GPU.
    """
    for alone, split, chained in fitting:
        steps = math.ceil(work.k / alone.tile_k)
        if (tiles := math.prod(alone.tiles(work.m, work.n))) <= sms:
            yield alone
            most = min(sms // tiles, steps // _FEWEST_STEPS, _MOST_SPLITS)
            if split:
                for splits in sorted({most, most // 2} - {0, 1}):
                    yield dataclasses.replace(split, splits=splits)
            continue
        yield chained[-1]
        dividing = [x for x in chained if x.slots >= _FEWEST_DIVIDING and steps % x.slots == 0]
        if dividing and dividing[-1] != chained[-1]:
            yield dividing[-1]


def _in_pairs(configs: Sequence[MatmulConfig]) -> Iterator[MatmulConfig]:
    """The configurations in clusters of two blocks along an axis, if they can halve a load."""
    for config in configs:
        if config.tile_n % (2 * _SWAPPED_UNIT) == 0:
            yield dataclasses.replace(config, cluster_m=2)
        yield dataclasses.replace(config, cluster_n=2)


def _swapped(work: Work, tile_m: int, threads: int, sms: int) -> Iterator[tuple[int, int, int]]:
    """The tiles of the transposed product, and compute threads, with `tile_m` columns each.

    Args:
      work: the product.
      tile_m, threads: one of `SWAPPED`.
      sms: SMs of the GPU.
    """
    most = min(_MOST_ROWS, _MOST_REGISTERS * 128 * threads // tile_m)
    columns, fewest = math.ceil(work.n / tile_m), math.ceil(work.m / most)
    rounds = math.ceil(columns * fewest / sms)
    counts = {fewest}
    if work.m > _FEW_ROWS:
        counts |= {(rounds + more) * sms // columns for more in (0, 1)}
    rows = {math.ceil(work.m / count / _SWAPPED_UNIT) for count in counts if count >= fewest}
    for tile_n in sorted(rows):
        yield tile_m, tile_n * _SWAPPED_UNIT, threads


@functools.cache
def _fitting(dtype: Dtype, out_dtype: Dtype, operands: tuple[Dtype, ...]) -> tuple[_Fitting, ...]:
    """What fits an SM, for each of `TILES`.

    Raises:
      ValueError: nothing does; with the sum of the smallest.
    """
    found = [_fits(tile, dtype, out_dtype, operands) for tile in TILES]
    if not any(found):
        tile_m, tile_n, threads = TILES[-1]
        tile_k = SWIZZLE // dtype.itemsize
        MatmulConfig(tile_m, tile_n, tile_k, 2, threads).check(dtype, out_dtype, operands)
    return tuple(x for x in found if x)


@functools.cache
def _fits_much(
    tile: tuple[int, int, int],
    dtype: Dtype,
    out_dtype: Dtype,
    operands: tuple[Dtype, ...],
    is_swapped: bool,
) -> _Fitting | None:
    """As `_fits`, with as much more of K in a step as leaves some slots; None if none does."""
    every = (_fits(tile, dtype, out_dtype, operands, is_swapped, size) for size in _MUCH_OF_K)
    return next((x for x in every if x and x.alone.slots >= _SLOTS_OF_MUCH), None)


@functools.cache
def _fits(
    tile: tuple[int, int, int],
    dtype: Dtype,
    out_dtype: Dtype,
    operands: tuple[Dtype, ...],
    is_swapped: bool = False,
    k_bytes: int = SWIZZLE,
) -> _Fitting | None:
    """What fits an SM with a tile of rows, columns, and compute threads; None if nothing does."""
    tile_m, tile_n, threads = tile
    most = _MOST_SLOTS
    options: dict[str, Any] = {}
    if is_swapped:
        parts = range(_SWAPPED_UNIT, min(tile_n, _MOST_STAGED) + 1, _SWAPPED_UNIT)
        most = _MOST_SWAPPED
        options = dict(epilogue_n=max(part for part in parts if tile_n % part == 0), swapped=True)
        options |= dict(delay_release=0) if tile_m == _ROWS and k_bytes == SWIZZLE else {}

    def of(form: _Form, *staged: Any) -> Iterator[MatmulConfig]:
        configs = (
            MatmulConfig(
                tile_m, tile_n, k_bytes // dtype.itemsize, slots, threads, form=form, order="m",
                **options,
            ) for slots in range(2, most + 1)
        )  # fmt: skip
        return while_they_fit(configs, dtype, *staged)

    alone, split = [*of("specialized", out_dtype, operands)], [*of("specialized", jnp.float32)]
    if not alone:
        return None
    chained = (*of("chained", out_dtype, operands),)
    return _Fitting(alone[-1], split[-1] if split else None, chained)


def estimate_us(
    config: MatmulConfig, work: Work, sms: int = H100_SMS, rates: Rates = H200
) -> float:
    """The microseconds of a product, by the model in the module's docstring.

    Args:
      config, work: the product, and how it is divided.
      sms: SMs of the GPU.
      rates: of the GPU.
    """
    tiles = math.prod(config.tiles(work.m, work.n)) * config.splits
    most = sms // config.cluster_size
    at_once = min(config.resident_blocks(work.m, work.n, sms), max(most, 1) * config.cluster_size)
    rounds = math.ceil(tiles / at_once)
    steps = math.ceil(math.ceil(work.k / config.tile_k) / config.splits)
    is_chain, item = config.form == "chained", 4 if config.splits > 1 else work.out_itemsize
    slots = min(config.slots, steps)
    if is_chain:
        steps = math.ceil(steps / slots) * slots
    moved = (work.m + work.n) * work.k * work.itemsize + work.m * work.n * work.out_itemsize
    hbm = moved / rates.hbm_bytes_per_second / (rounds * steps)
    step = _step_seconds(config, work, math.ceil(tiles / rounds), hbm, rates)
    stored = config.tile_m * config.tile_n * item
    once = rates.load_cycles + stored / rates.store_bytes_per_cycle
    staged = max(stored / rates.smem_bytes_per_cycle, config.parts * rates.part_cycles)
    if not is_chain:
        once += (rounds - 1) * (once + rates.block_start_cycles)
    seconds = in_waves(tiles, at_once, steps, step, staged / rates.clock_hz)
    seconds += once / rates.clock_hz
    if config.splits > 1:
        parts = work.m * work.n * item * config.splits
        seconds += rates.sum_seconds + parts / rates.sum_bytes_per_second
    return 1e6 * seconds * (rates.paired_slower if config.cluster_size > 1 else 1.0)


def _step_seconds(config: MatmulConfig, work: Work, blocks: int, hbm: float, rates: Rates) -> float:
    """The seconds of one step in steady state.

    Args:
      config, work: the product, and how it is divided.
      blocks: how many do the same at once.
      hbm: the seconds of the step's part of HBM's traffic.
      rates: of the GPU.
    """
    row = config.tile_k * work.itemsize
    flops = 2 * config.tile_m * config.tile_n * config.tile_k
    # A wgmma reads its 64 rows of a and all of b. Rows past the end of an array are not loaded.
    read = config.tile_m / _ROWS * (_ROWS + config.tile_n) * row
    # Of a and of b: what tiles divide, how long its rows are in memory, and who loads it together.
    factors = [*zip((work.m, work.n), work.row_bytes)]
    sizes = factors[::-1] if config.swapped else factors
    each = [size / count for (size, _), count in zip(sizes, config.tiles(work.m, work.n))]
    rows, of_l2, of_sm = sum(each), 0.0, 0.0
    for (_, length), some, shared in zip(sizes, each, (config.cluster_n, config.cluster_m)):
        more = rates.in_two_sectors if length % _SECTOR_BYTES else 1.0
        slower = more * (rates.in_two_lines if length % _LINE_BYTES else 1.0)
        of_l2 += row * some * more / shared
        of_sm += row * some * (1.0 + (slower - 1.0) / shared)
    zeros = (config.tile_m + config.tile_n - rows) * config.tile_k * work.itemsize / SWIZZLE
    product = max(flops * work.itemsize / rates.flops_per_cycle, read / rates.smem_bytes_per_cycle)
    if config.compute_threads == 1 and config.delay_release == 0:
        product += rates.restart_cycles
    into_sm = of_sm / rates.sm_bytes_per_cycle + zeros * rates.fill_cycles
    under_way = max(1, min(config.slots, math.ceil(work.k / config.tile_k)) - config.delay_release)
    turn = (rates.load_cycles + into_sm + product) / under_way / rates.clock_hz
    load = max(of_l2 * blocks / rates.l2_bytes_per_second, into_sm / rates.clock_hz)
    times = product / rates.clock_hz, load, hbm
    turn = max(turn, rates.step_cycles / rates.clock_hz)
    return max(turn, (1 - rates.unhidden) * max(times) + rates.unhidden * sum(times))
