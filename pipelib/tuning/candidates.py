"""`candidates`: the configurations that a search for the fastest `matmul` tries, likely ones first.

The model. The candidates are all configurations of a grid that fit an SM (shared memory and
registers, by `MatmulConfig.check`), with as many slots as fit, and with as many as divide the
steps. They are ordered by an estimate of their time. A step takes the longest of four times: the
product at the tensor core's rate; reading the operands of `wgmma` from SMEM; the loads through L2
and from HBM; and the time until a slot that is loaded comes round. The steps of a tile are repeated
for each wave of tiles on the SMs. To this come the stores that no product overlaps. The estimate
says which tiles are worth a try; it does not say which of two orders of tiles is better. Source of
its rates: `schedule.machine`.

Not covered: epilogues, which change what a tile costs at its end; steps of more than one swizzled
row, which leave few slots; a clock that falls under load, which changes all of them alike.
"""

import collections
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from pipelib.kernels.hopper import H100_SMS, SWIZZLE
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.schedule.machine import H200, Machine
from pipelib.tuning.products import Problem

#: Tiles to try: their rows, their columns, and the compute threads.
_TILES = (
    (128, 256, 2), (256, 128, 2), (128, 192, 2), (256, 192, 2), (128, 128, 2), (128, 128, 1),
    (256, 64, 2), (128, 64, 2), (64, 256, 1), (64, 192, 1), (64, 128, 1), (64, 64, 1),
)  # fmt: skip
#: Blocks of a cluster along m and along n; axis and width of the order; other fields.
_CLUSTERS = (1, 1), (2, 1), (1, 2)
_ORDERS = tuple((order, width) for width in (8, 4, 16, 32, 1) for order in "mn")
_FORMS, _DELAYS, _MOST_SLOTS = ("chained", "specialized"), (1, 0), 8
#: The fields that a start differs in, and the groups of fields that a search changes together.
_SHAPE = ("tile_m", "tile_n", "compute_threads"), ("cluster_m", "cluster_n")
_KNOBS = (*_SHAPE, ("order", "width"), ("delay_release",), ("form",), ("slots",))


def candidates(
    problem: Problem, *, sms: int = H100_SMS, machine: Machine = H200
) -> list[MatmulConfig]:
    """All configurations of the grid that fit an SM, the fastest by the estimate first.

    Args:
      problem: the product.
      sms: multiprocessors of the GPU.
      machine: the rates of the estimate; ValueError if it has none for the dtype.
    """
    unit = SWIZZLE // jnp.dtype(problem.dtype).itemsize
    grid = itertools.product(_TILES, _CLUSTERS, _ORDERS, _DELAYS, _FORMS)
    found: list[MatmulConfig] = []
    for (tile_m, tile_n, threads), (along_m, along_n), (order, width), delay, form in grid:
        settings: dict[str, Any] = dict(
            tile_m=tile_m, tile_n=tile_n, tile_k=unit, compute_threads=threads, order=order,
            width=width, delay_release=delay, cluster_m=along_m, cluster_n=along_n, form=form,
        )  # fmt: skip
        found += _with_slots(settings, problem)
    return sorted(found, key=lambda config: estimate_us(config, problem, sms, machine))


def _with_slots(settings: dict[str, Any], problem: Problem) -> list[MatmulConfig]:
    """Configurations with the most slots that fit, and the most from 3 on that divide the steps."""
    steps = math.ceil(problem.k / settings["tile_k"])
    fitting: list[MatmulConfig] = []
    for slots in range(2, _MOST_SLOTS + 1):
        try:
            config = MatmulConfig(slots=slots, **settings)
            config.check(problem.dtype, problem.out.dtype)
        except ValueError:
            break
        fitting.append(config)
    dividing = [config for config in fitting[1:] if steps % config.slots == 0]
    return list(dict.fromkeys(fitting[-1:] + dividing[-1:]))


def starts(configs: Sequence[MatmulConfig]) -> list[MatmulConfig]:
    """The first configuration of each shape of tile and of cluster."""
    found: dict[tuple[tuple[object, ...], ...], MatmulConfig] = {}
    for config in configs:
        found.setdefault(tuple(_values(config, knob) for knob in _SHAPE), config)
    return list(found.values())


def neighbours(config: MatmulConfig, configs: Sequence[MatmulConfig]) -> list[MatmulConfig]:
    """The configurations that differ from one in one group of fields.

    With the tile, the number of slots may differ too. The first neighbours of each group come
    first, so that a search that ends early has tried all groups.
    """
    found: dict[tuple[str, ...], list[MatmulConfig]] = collections.defaultdict(list)
    for other in configs:
        differ = [knob for knob in _KNOBS if _values(config, knob) != _values(other, knob)]
        if len(differ) == 1 or differ == [_SHAPE[0], ("slots",)]:
            found[differ[0]].append(other)
    turns = itertools.zip_longest(*found.values())
    return [other for turn in turns for other in turn if other is not None]


def _values(config: MatmulConfig, knob: tuple[str, ...]) -> tuple[object, ...]:
    """The values of a group of fields."""
    return tuple(getattr(config, name) for name in knob)


def estimate_us(
    config: MatmulConfig, problem: Problem, sms: int = H100_SMS, machine: Machine = H200
) -> float:
    """The microseconds of a product, by the model in the module's docstring.

    Args:
      config, problem: the product, and how it is divided.
      sms: multiprocessors of the GPU.
      machine: the rates; ValueError if it has none for the dtype.
    """
    is_chain = config.form == "chained"
    tiles = math.prod(config.tiles(problem.m, problem.n))
    blocks = sms // config.cluster_size * config.cluster_size
    waves, steps = math.ceil(tiles / blocks), math.ceil(problem.k / config.tile_k)
    if is_chain:
        steps = math.ceil(steps / config.slots) * config.slots
    stored = config.tile_m * config.tile_n * problem.out.dtype.itemsize
    end = stored / machine.smem_bytes_per_cycle + machine.fence_cycles
    rest = machine.load_latency_cycles(0.0) + stored / machine.store_bytes_per_cycle
    step = _step_cycles(config, problem, min(tiles, blocks), machine)
    cycles = waves * (steps * step + end) + rest * (1 if is_chain else waves)
    return 1e6 * cycles / machine.clock_hz


def _step_cycles(config: MatmulConfig, problem: Problem, blocks: int, machine: Machine) -> float:
    """The cycles of one step in steady state, if this many blocks do the same."""
    dtype = problem.dtype
    rate = machine.wgmma_rate("float8_e4m3fn" if dtype.startswith("float8") else dtype)
    row_bytes = config.tile_k * jnp.dtype(dtype).itemsize
    # A wgmma has 64 rows; it reads its part of a and all of b from SMEM.
    read = config.tile_m / 64 * (64 + config.tile_n) * row_bytes
    bytes_a, bytes_b = config.tile_m * row_bytes, config.tile_n * row_bytes
    loads = bytes_a / config.cluster_n + bytes_b / config.cluster_m
    # Blocks that load the same data at about the same time get it from HBM once.
    tiles_m, tiles_n = config.tiles(problem.m, problem.n)
    if config.order == "m":
        along_m = min(config.width * config.cluster_m, tiles_m, blocks)
        along_n = math.ceil(blocks / along_m)
    else:
        along_n = min(config.width * config.cluster_n, tiles_n, blocks)
        along_m = math.ceil(blocks / along_n)
    fresh = min(1.0, (along_m * bytes_a + along_n * bytes_b) / (blocks * loads))
    step = max(
        2 * config.tile_m * config.tile_n * config.tile_k / rate,
        read / machine.smem_bytes_per_cycle,
        loads / machine.gmem_bytes_per_cycle(blocks, fresh),
    )
    if config.compute_threads == 1 and config.delay_release == 0:
        step += machine.wgmma_latency_cycles
    # Within `turns` steps the load of a slot must land, and be multiplied.
    latency, turns = machine.load_latency_cycles(1 - fresh), config.slots - config.delay_release
    return max(step, (latency + step) / turns)
