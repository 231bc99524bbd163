"""`candidates`: the configurations that a search for the fastest `matmul` tries, likely ones first.

The model. The candidates are all configurations of a grid that fit an SM (shared memory and
registers, by `MatmulConfig.check`), with as many slots as fit, and with as many as divide the
steps. They are ordered by the formula by which `matmul` picks a configuration where there was no
search (`pipelib.kernels.matmul.choosing`), with the rates of a machine. The estimate says which
tiles are worth a try. It knows no difference between orders of tiles, nor between clusters: of
equals, the first of the grid comes first. Source of its rates: `schedule.machine`.

Not covered: epilogues, which change what a tile costs at its end; steps of more than one swizzled
row, which leave few slots.
"""

import collections
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from pallascope.machine import H200, Machine
from pallascope.tuning.products import Problem
from pipelib.kernels.hopper import H100_SMS
from pipelib.kernels.matmul import choosing
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.tiles import SWIZZLE

#: Tiles to try: their rows, their columns, and the compute threads.
_TILES = (
    (128, 256, 2), (256, 128, 2), (128, 192, 2), (256, 192, 2), (128, 128, 2), (128, 128, 1),
    (256, 64, 2), (128, 64, 2), (64, 256, 1), (64, 192, 1), (64, 128, 1), (64, 64, 1),
)  # fmt: skip
#: Blocks of a cluster along m and along n; axis and width of the order; other fields.
_CLUSTERS = (1, 1), (2, 1), (1, 2)
_ORDERS = tuple((order, width) for width in (8, 4, 16, 32, 1) for order in "mn")
_FORMS, _DELAYS, _MOST_SLOTS = ("chained", "specialized"), (1, 0), 8
#: The use of the tensor cores at whose clock the rates are: that of products in the record.
_USE = 0.75
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
    """The microseconds of a product, by the formula of `pipelib.kernels.matmul.choosing`.

    Args:
      config, problem: the product, and how it is divided.
      sms: multiprocessors of the GPU.
      machine: the rates; ValueError if it has none for the dtype.
    """
    sizes = jnp.dtype(problem.dtype).itemsize, problem.out.dtype.itemsize
    work = choosing.Work(problem.m, problem.n, problem.k, *sizes)
    return choosing.estimate_us(config, work, sms, rates(machine, problem.dtype))


@functools.cache
def rates(machine: Machine, dtype: str) -> choosing.Rates:
    """The rates of a machine as the formula takes them.

    Args:
      machine: at the clock without load.
      dtype: of the factors, by name; ValueError if the machine has no rate for it.
    """
    flops = machine.wgmma_rate("float8_e4m3fn" if dtype.startswith("float8") else dtype)
    return choosing.Rates(
        clock_hz=machine.loaded(_USE).clock_hz,
        flops_per_cycle=flops * jnp.dtype(dtype).itemsize,
        smem_bytes_per_cycle=machine.smem_bytes_per_cycle,
        sm_bytes_per_cycle=machine.sm_bytes_per_cycle,
        l2_bytes_per_second=machine.l2_shared_bytes_per_second,
        hbm_bytes_per_second=machine.hbm_bytes_per_second,
        store_bytes_per_cycle=machine.store_bytes_per_cycle,
        load_cycles=2 * machine.load_issue_cycles
        + machine.hbm_latency_cycles
        + machine.wake_cycles
        + machine.wait_cycles,
        restart_cycles=machine.wait_cycles
        + machine.wgmma_latency_cycles
        + machine.wgmma_restart_cycles,
        block_start_cycles=machine.block_start_cycles,
    )
