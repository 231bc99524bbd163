"""`default_config`: the likeliest of a few configurations of a collective product.

The model. On each device some SMs send, the others multiply. The product is estimated as `matmul`'s
of all shards, on the SMs that multiply (`choosing.estimate_us`). The transfer takes its bytes at
the rate of the SMs that send, or at that of the GPU. Rows of tiles arrive in the order in which
they are multiplied, so only the last ones can be late: then a last round of tiles is left when the
transfer ends::

    time = max(product, transfer + product / rounds)

The candidates are the tiles of `TILES`, each with as few rounds as can be and with some more: a
product of 256 tiles takes 2 rounds on 128 SMs, which leave 4 to send, or 3 on 86, which leave 46.

Not covered: how much the transfer slows down the product, through L2 and HBM; the launch.
"""

import dataclasses
import math
from collections.abc import Iterator

import jax.numpy as jnp
from jax.typing import DTypeLike

from pipelib.kernels.choosing import H200
from pipelib.kernels.collective.config import CollectiveConfig
from pipelib.kernels.matmul.choosing import Work, estimate_us

#: Tiles of the candidates: rows, columns, slots. With float32 results there is a slot less.
TILES = (128, 256, 4), (128, 192, 4), (128, 128, 6)
#: The most blocks that send: so many reach the GPU's rate while others multiply.
_MOST_SENDERS = 32
#: How many more rounds than the fewest are tried.
_MORE_ROUNDS = 3


#: Rows of tiles of a group where a product gives up SMs for its transfer: fewer arrive sooner.
_LATE_WIDTH = 4


def default_config(
    m: int, n: int, k: int, devices: int, dtype: DTypeLike, out_dtype: DTypeLike, sms: int
) -> CollectiveConfig:
    """The configuration of the least estimate; of equals, the first.

    Args:
      m, k: the sizes of a shard.
      n: columns of a device.
      devices: how many there are.
      dtype, out_dtype: the dtypes of the factors and of the result.
      sms: SMs of a GPU.
    """
    item, out_item = (jnp.dtype(x).itemsize for x in (dtype, out_dtype))
    transfer = (devices - 1) * m * k * item

    def likely_us(config: CollectiveConfig) -> float:
        rows, multiply = config.tiles(m, n)[0] * config.tile_m * devices, sms - config.senders
        product = estimate_us(config, Work(rows, n, k, item, out_item), multiply)
        rounds = math.ceil(math.prod(config.tiles(rows, n)) / multiply)
        rate = min(config.senders * H200.sm_sends_bytes_per_us, H200.sends_bytes_per_us)
        sent = transfer / rate
        return max(product, sent + product / rounds)

    return min(_candidates(m, n, devices, out_item, sms), key=likely_us)


def _candidates(
    m: int, n: int, devices: int, out_item: int, sms: int
) -> Iterator[CollectiveConfig]:
    """The candidates; the arguments are as in `default_config`."""
    for rows, columns, slots in TILES:
        config = CollectiveConfig(rows, columns, slots=slots - (out_item > 2))
        tiles = devices * math.prod(config.tiles(m, n))
        fewest = math.ceil(tiles / (sms - 1))
        for rounds in range(fewest, fewest + 1 + _MORE_ROUNDS):
            senders = min(sms - math.ceil(tiles / rounds), _MOST_SENDERS)
            width = config.width if rounds == fewest else _LATE_WIDTH
            yield dataclasses.replace(config, senders=senders, width=width)
