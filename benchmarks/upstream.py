"""JAX's own Hopper kernel, `hopper_matmul_mgpu`, as a contender: its configurations, and a search.

The grid is that of its own `main` (tiles of a compute thread, order and width of the tiles' walk,
how two compute threads divide a tile; 4 slots), with smaller tiles and its clusters besides.
"""

import dataclasses
import functools
import itertools
from typing import Any

import jax
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as upstream

from benchmarks.products import Contender, Problem
from pipelib import specs

_AXES = tuple(upstream.MatmulDimension)
_TILES = (128, 128), (64, 256), (256, 64), (128, 64), (64, 128), (64, 64)
_WALKS = tuple(itertools.product(_AXES, (8, 4, 16)))
_TILE_K, _SLOTS = 64, 4


def contender(config: upstream.TuningConfig) -> Contender:
    """The kernel of a configuration, which `pickle` can send."""
    return functools.partial(_matmul, config=config)


def _matmul(a: jax.Array, b: jax.Array, config: upstream.TuningConfig) -> jax.Array:
    return upstream.matmul(a, b, None, config)


def starts(problem: Problem) -> list[upstream.TuningConfig]:
    """Every tile and cluster that fits and divides the product, with one walk."""
    grid = itertools.product(_TILES, _AXES, (None, *_AXES))
    configs = [_config(tile, threads, cluster, _WALKS[0]) for tile, threads, cluster in grid]
    return [config for config in configs if _fits(config, problem)]


def neighbours(config: upstream.TuningConfig) -> list[upstream.TuningConfig]:
    """The configurations that differ in the order and width of their walk alone."""
    walks = (dict(grid_minor_dim=minor, grid_tile_width=width) for minor, width in _WALKS)
    return [new for walk in walks if (new := dataclasses.replace(config, **walk)) != config]


def _config(tile, threads, cluster, walk) -> upstream.TuningConfig:
    tile_m, tile_n = tile
    return upstream.TuningConfig(
        tile_m, tile_n, _TILE_K, _SLOTS, grid_minor_dim=walk[0], grid_tile_width=walk[1],
        wg_dimension=threads, cluster_dimension=cluster,
    )  # fmt: skip


def _fits(config: upstream.TuningConfig, problem: Problem) -> bool:
    sizes = config.tile_m, config.tile_n
    block = [size * (1 + (config.wg_dimension == axis)) for size, axis in zip(sizes, _AXES)]
    whole = [size * (1 + (config.cluster_dimension == axis)) for size, axis in zip(block, _AXES)]
    epilogue = (config.epi_tile_m or config.tile_m) * (config.epi_tile_n or config.tile_n)
    staged = 2 * 2 * epilogue  # two slots for each of two threads
    size = problem.out.dtype.itemsize
    smem = size * (config.max_concurrent_steps * sum(block) * config.tile_k + staged)
    return smem < specs.SMEM_BYTES and not (problem.m % whole[0] or problem.n % whole[1])


def from_json(fields: dict[str, Any]) -> upstream.TuningConfig:
    """A configuration of what `to_json` made of it."""
    is_axis = lambda value: value in upstream.MatmulDimension.__members__
    turned = {key: upstream.MatmulDimension[x] for key, x in fields.items() if is_axis(x)}
    return upstream.TuningConfig(**fields | turned)


def to_json(config: upstream.TuningConfig) -> dict[str, Any]:
    """A configuration as plain data."""
    plain = lambda x: x.name if isinstance(x, upstream.MatmulDimension) else x
    return {key: plain(value) for key, value in dataclasses.asdict(config).items()}
