"""`matmul_space`: what a search can try of `matmul`, as plain data.

The model. The candidates are all configurations of a grid that fit an SM (shared memory and
registers, by `MatmulConfig.check`), with the most slots that fit, and with the most that divide the
steps. They are too many to simulate, so they come in the order of the formula by which `matmul`
picks a configuration where there was no search (`choosing`). The formula says which tiles are worth
a try. It knows no difference between orders of tiles, nor between clusters: of equals, the first of
the grid comes first. The space also says what is near what: the groups of fields that a search
changes together.

Not covered: epilogues, which change what a tile costs at its end; steps of more than one swizzled
row, which leave few slots; gradients and batches.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pipelib import specs
from pipelib.kernels.hopper import H100_SMS
from pipelib.kernels.matmul import choosing
from pipelib.kernels.matmul.arguments import check_dtypes, stored_dtype
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib.tiles import PIECE_ROWS, SWIZZLE, has_pieces

#: Tiles to try: their rows, their columns, and the compute threads.
_TILES = (
    (128, 256, 2), (256, 128, 2), (128, 192, 2), (256, 192, 2), (128, 128, 2), (128, 128, 1),
    (256, 64, 2), (128, 64, 2), (64, 256, 1), (64, 192, 1), (64, 128, 1), (64, 64, 1),
)  # fmt: skip
#: Blocks of a cluster along m and along n; axis and width of the order; other fields.
_CLUSTERS = (1, 1), (2, 1), (1, 2)
_ORDERS = tuple((order, width) for width in (8, 4, 16, 32, 1) for order in "mn")
_FORMS, _DELAYS, _MOST_SLOTS = ("chained", "specialized"), (1, 0), 8
#: The fields that a search changes together. The first two groups are the shape, of tiles and of
#: clusters; with another tile, other slots may fit.
_GROUPS = (
    ("tile_m", "tile_n", "compute_threads"),
    ("cluster_m", "cluster_n"),
    ("order", "width"),
    ("delay_release",),
    ("form",),
    ("slots",),
)


class MatmulSpace(NamedTuple):
    """The configurations of a search, and what it changes together.

    Attributes:
      configs: the configurations, the likeliest to be fast first.
      groups: names of the fields that a search changes together.
      shapes: how many of the groups, from the first on, a search begins with all values of.
      follows: names of the fields that may change with those of the first group.
    """

    configs: tuple[MatmulConfig, ...]
    groups: tuple[tuple[str, ...], ...]
    shapes: int
    follows: tuple[str, ...]


def matmul_space(
    m: int,
    n: int,
    k: int,
    dtype: DTypeLike,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: DTypeLike | None = None,
    sms: int = H100_SMS,
) -> MatmulSpace:
    """About two thousand configurations of `matmul` for the product [m, k] x [k, n], in an order.

    Args:
      m, n, k, dtype, transpose_a, transpose_b, out_dtype: the product, as `matmul` takes it.
      sms: multiprocessors of the GPU.

    Raises:
      TypeError: for dtypes that `matmul` does not multiply or store, and sizes that are not
        integers.
      ValueError: for a product that `matmul` refuses, or makes without its kernel.

    Example:
      `pallascope` searches it in this order. On a Hopper GPU the search measures 60 of them;
      elsewhere the first is its answer:

      >>> space = pipelib.kernels.matmul_space(4096, 4096, 4096, jnp.bfloat16)
      >>> def kernel_of(config):
      ...     return functools.partial(pipelib.kernels.matmul, config=config)
      >>> a = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
      >>> ranked = pallascope.tuning.Ranked(*space)
      >>> results = pallascope.tuning.search(kernel_of, ranked, a, a, measure=0, progress=False)
      >>> results.best.config == space.configs[0]
      True
    """
    m, n, k = (specs.integer(f"matmul_space: {name}", x) for name, x in zip("mnk", (m, n, k)))
    transpose_a = specs.flag("matmul_space: transpose_a", transpose_a)
    transpose_b = specs.flag("matmul_space: transpose_b", transpose_b)
    if (sms := specs.integer("matmul_space: sms", sms)) < 1:
        raise ValueError(f"matmul_space: {sms=} is less than 1, so no block would run.")
    stored = _stored((m, n, k), dtype, transpose_a, transpose_b, out_dtype)
    item = jnp.dtype(dtype).itemsize
    work = choosing.Work(m, n, k, item, stored.itemsize)
    fitting = _candidates(work, item, jnp.dtype(dtype), stored)
    fitting.sort(key=lambda config: choosing.estimate_us(config, work, sms))
    return MatmulSpace(tuple(fitting), _GROUPS, shapes=2, follows=("slots",))


def _stored(
    sizes: tuple[int, int, int],
    dtype: DTypeLike,
    transpose_a: bool,
    transpose_b: bool,
    out_dtype: DTypeLike | None,
) -> jnp.dtype[Any]:
    """The result's dtype; TypeError or ValueError for a product that the kernel cannot make."""
    m, n, k = sizes
    if min(sizes) < 1:
        raise ValueError(
            f"matmul_space: {m=}, {n=} and {k=} must be 1 or more: there is nothing to search."
        )
    try:
        dtype = jnp.dtype(dtype)
    except TypeError:
        because = "it is the dtype of the factors"
        raise specs.wrong_type("matmul_space: dtype", dtype, because) from None
    a = jax.ShapeDtypeStruct((k, m) if transpose_a else (m, k), dtype)
    b = jax.ShapeDtypeStruct((n, k) if transpose_b else (k, n), dtype)
    check_dtypes(a, b, transpose_a, transpose_b)
    stored = stored_dtype(a, out_dtype)
    if not all(has_pieces(*x) for x in ((a.shape, dtype), (b.shape, dtype), ((m, n), stored))):
        raise ValueError(
            f"matmul_space: a {a.shape}, b {b.shape} and the output {(m, n)} must all have rows of"
            f" a multiple of {SWIZZLE} bytes, and at most {PIECE_ROWS} rows or a multiple of them;"
            " since they do not, most configurations cannot copy them, and a search would compare"
            " few: call matmul without config."
        )
    return stored


def _candidates(
    work: choosing.Work, item: int, dtype: jnp.dtype[Any], stored: jnp.dtype[Any]
) -> list[MatmulConfig]:
    """All configurations of the grid that fit an SM."""
    grid = itertools.product(_TILES, _CLUSTERS, _ORDERS, _DELAYS, _FORMS)
    found: list[MatmulConfig] = []
    for (tile_m, tile_n, threads), (along_m, along_n), (order, width), delay, form in grid:
        settings: dict[str, Any] = dict(
            tile_m=tile_m, tile_n=tile_n, tile_k=SWIZZLE // item, compute_threads=threads,
            order=order, width=width, delay_release=delay, cluster_m=along_m, cluster_n=along_n,
            form=form,
        )  # fmt: skip
        found += _with_slots(settings, work.k, dtype, stored)
    return found


def _with_slots(
    settings: dict[str, Any], k: int, dtype: jnp.dtype[Any], stored: jnp.dtype[Any]
) -> list[MatmulConfig]:
    """Configurations with the most slots that fit, and the most from 3 on that divide the steps."""
    steps = math.ceil(k / settings["tile_k"])
    fitting: list[MatmulConfig] = []
    for slots in range(2, _MOST_SLOTS + 1):
        try:
            config = MatmulConfig(slots=slots, **settings)
            config.check(dtype, stored)
        except ValueError:
            break
        fitting.append(config)
    dividing = [config for config in fitting[1:] if steps % config.slots == 0]
    return list(dict.fromkeys(fitting[-1:] + dividing[-1:]))
