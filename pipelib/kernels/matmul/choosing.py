"""`default_config`: the likeliest of a few configurations, by a closed formula for their time.

The model. A block makes its tiles one after the other, and all blocks go through as many *rounds*
of tiles. A step of a tile takes the longest of three times, and a part (`UNHIDDEN`) of the second
longest, which does not overlap all of it:

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

How good it is. `benchmarks/results/nvidia-h200/tune.json` has 28 products, with 24 configurations
each. The choice takes at most 1.03 times the fastest that was measured, and 1.004 times on average.
The nearest other row of the table has a configuration that was measured for 21 of the products: it
takes 1.16 times at most and 1.017 on average, where the choice takes 1.006. Within a product,
estimates and times have a rank correlation of 0.71 on average: most configurations are within some
percent of each other.

Not covered: clusters, whose multicast saves less than it promises (in the record, the fastest with
clusters is at most 2.3% ahead of the fastest without); the order of tiles; the operands of an
epilogue, except for their SMEM; batches; several blocks on one SM.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from pipelib.kernels.hopper import H100_SMS, num_sms
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.refs import Dtype
from pipelib.tiles import SWIZZLE

#: The tiles of the candidates: rows, columns, and compute threads. Of equals, the first wins.
TILES = (
    (128, 256, 2), (256, 128, 2), (256, 192, 2), (128, 192, 2), (128, 128, 1), (256, 64, 2),
    (64, 256, 1), (64, 192, 1), (64, 128, 1), (128, 64, 2), (64, 64, 1),
)  # fmt: skip
#: The most slots of a candidate, and the fewest that it has because they divide the steps.
_MOST_SLOTS, _FEWEST_DIVIDING = 8, 3
#: The most candidates of a product: of each tile at most three.
MOST_CANDIDATES = 3 * len(TILES)
#: Into how many parts K is split at most, and how many steps each of them has at least.
_MOST_SPLITS, _FEWEST_STEPS = 16, 4
#: The part of a step's second longest time that comes on top of the longest. Fitted to the record
#: above: the choices are the same from 0.1 to 0.2.
UNHIDDEN = 0.15
#: Rows of a `wgmma`.
_ROWS = 64


class Rates(NamedTuple):
    """The rates of the formula, of an H200 by default.

    Source: `pipelib.H200`, which kernels do not import; a test compares the two.

    Attributes:
      clock_hz: cycles a second, at the load of three quarters of the tensor cores' rate.
      flops_per_cycle: of an SM's tensor cores with factors of one byte; half of it with two bytes.
      smem_bytes_per_cycle: operands of `wgmma`, and what is staged.
      sm_bytes_per_cycle: loads of one SM alone.
      l2_bytes_per_second: loads of all SMs, of tiles that blocks share.
      hbm_bytes_per_second: reads and writes together.
      store_bytes_per_cycle: stores of one SM alone.
      load_cycles: from the start of a step's two loads until a compute thread goes on, without
        their bytes' time: issue, HBM's latency, the wake-up and the wait.
      restart_cycles: what each step costs a thread that alone multiplies, and waits each time.
      block_start_cycles: from a block's end until the next one runs in its place.
      sum_seconds: of the kernel that adds up the parts of a split product, however small.
    """

    clock_hz: float = 1.6775e9
    flops_per_cycle: float = 8194.0
    smem_bytes_per_cycle: float = 127.0
    sm_bytes_per_cycle: float = 107.5
    l2_bytes_per_second: float = 11.58e12
    hbm_bytes_per_second: float = 4.303e12
    store_bytes_per_cycle: float = 32.0
    load_cycles: float = 1198.8
    restart_cycles: float = 180.7
    block_start_cycles: float = 617.7
    sum_seconds: float = 2.5e-6


#: The rates that `default_config` takes, for all GPUs.
H200 = Rates()


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


def default_config(
    m: int,
    n: int,
    k: int,
    dtype: DTypeLike,
    out_dtype: DTypeLike,
    operands: Sequence[DTypeLike] = (),
    *,
    sms: int | None = None,
    most_columns: int | None = None,
) -> MatmulConfig:
    """The configuration of the least estimate; of equals, the first.

    Args:
      m, n, k: the product [m, k] x [k, n].
      dtype, out_dtype: the dtypes of the factors and of the result.
      operands: the dtypes of the epilogue's matrices.
      sms: SMs of the GPU; by default, of the device that JAX uses by default.
      most_columns: of a tile; by default 256.

    Raises:
      ValueError: no candidate fits an SM, because of the operands; with the sum.
    """
    dtypes = jnp.dtype(dtype), jnp.dtype(out_dtype), tuple(jnp.dtype(x) for x in operands)
    work, here = Work(m, n, k, dtypes[0].itemsize, dtypes[1].itemsize), sms or num_sms()
    fitting = [x for x in _fitting(*dtypes) if x.alone.tile_n <= (most_columns or x.alone.tile_n)]
    found = _candidates(work, fitting, here)
    return min(found, key=lambda config: estimate_us(config, work, here))


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


@functools.cache
def _fitting(dtype: Dtype, out_dtype: Dtype, operands: tuple[Dtype, ...]) -> tuple[_Fitting, ...]:
    """What fits an SM, for each tile.

    Raises:
      ValueError: nothing does; with the sum of the smallest.
    """
    found: list[_Fitting] = []
    tile_k = SWIZZLE // dtype.itemsize

    def of(form: _Form, tile: tuple[int, int, int], *staged: Any) -> Iterator[MatmulConfig]:
        tile_m, tile_n, threads = tile
        for slots in range(2, _MOST_SLOTS + 1):
            config = MatmulConfig(tile_m, tile_n, tile_k, slots, threads, form=form, order="m")
            try:
                config.check(dtype, *staged)
            except ValueError:
                return
            yield config

    for tile in TILES:
        alone = [*of("specialized", tile, out_dtype, operands)]
        split = [*of("specialized", tile, jnp.float32)]
        if alone:
            chained = (*of("chained", tile, out_dtype, operands),)
            found.append(_Fitting(alone[-1], split[-1] if split else None, chained))
    if not found:
        tile_m, tile_n, threads = TILES[-1]
        MatmulConfig(tile_m, tile_n, tile_k, 2, threads).check(dtype, out_dtype, operands)
    return tuple(found)


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
    cycles = rounds * stored / rates.smem_bytes_per_cycle + once
    if not is_chain:
        cycles += (rounds - 1) * (once + rates.block_start_cycles)
    seconds = rounds * steps * step + cycles / rates.clock_hz
    if config.splits > 1:
        parts = work.m * work.n * item * config.splits
        seconds += rates.sum_seconds + parts / rates.l2_bytes_per_second
    return 1e6 * seconds


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
    loads = (min(config.tile_m, work.m) + min(config.tile_n, work.n)) * row
    product = max(flops * work.itemsize / rates.flops_per_cycle, read / rates.smem_bytes_per_cycle)
    if config.compute_threads == 1 and config.delay_release == 0:
        product += rates.restart_cycles
    into_sm = loads / rates.sm_bytes_per_cycle
    under_way = max(1, min(config.slots, math.ceil(work.k / config.tile_k)) - config.delay_release)
    turn = (rates.load_cycles + into_sm + product) / under_way / rates.clock_hz
    load = max(loads * blocks / rates.l2_bytes_per_second, into_sm / rates.clock_hz)
    _, second, longest = sorted((product / rates.clock_hz, load, hbm))
    return max(turn, longest + UNHIDDEN * second)
