"""`DecodeConfig`: how `decode_attention` divides its work, and what that takes of an SM.

The model. The queries that share a head of K and V are the *rows* of one product: q_seq x group
rows, in compute threads of 64, the rows of a `wgmma`. A block has one or two such threads, and
reads keys in steps of `block_kv`. The keys of a sequence are divided among `splits` blocks.

K and V arrive at the GPU's full rate while enough bytes are on their way to all SMs. So a block has
as many slots as SMEM holds, and there are about as many blocks as SMs, or many more. A block begins
with nothing on its way, which costs the time in which an SM gets `start_bytes`
(`pipelib.kernels.choosing`). So, for each number of splits, counted in such bytes::

    waves of blocks x (bytes of a block's steps + start_bytes)  + start_bytes, if parts are combined

The number with the least time is picked, for the length that the cache has room for: the actual
lengths are known only when the kernel runs.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp

from pipelib.kernels.attention.config import (
    PROBABILITIES,
    AttentionConfig,
    problems_of,
)
from pipelib.kernels.choosing import H200, in_waves, while_they_fit
from pipelib.kernels.dividing import Smem, refuse, take_integers
from pipelib.kernels.hopper import default_device

#: The rows of a compute thread, and the most of these threads in a block: K and V are read again
#: for every block of rows.
ROWS, MOST_THREADS = 64, 2
#: Columns of a partial result that are staged at once: float32, in SMEM.
STAGED = 64
#: The most parts of a sequence: partial results are added up one by one.
MOST_SPLITS = 128
_MOST_SLOTS = 8


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """How `decode_attention` divides its work; what cannot be is refused.

    Attributes:
      block_kv: keys of a step, a multiple of 64 up to 256. It divides a page or is divided by one.
      slots: the most steps whose K and V are in SMEM at once.
      splits: into how many parts the keys of a sequence are divided, each for a block of its own;
        None picks the number that keeps the GPU's SMs busiest.
      probabilities: as in `AttentionConfig`.

    Raises:
      ValueError, TypeError: for values, and types of them, that are not as above.

    Example:
      >>> config = pipelib.kernels.DecodeConfig(block_kv=64, slots=5)
      >>> config.check(rows=128, head_dim=128)  # raises where an SM has too little
      >>> config.for_rows(128).compute_threads
      2
    """

    block_kv: int = 128
    slots: int = 3
    splits: int | None = None
    probabilities: Literal["registers", "interpreted"] = "registers"

    def __post_init__(self) -> None:
        take_integers(self, "splits")
        common = problems_of(ROWS, self.block_kv, "block_kv", self.slots, MOST_THREADS)
        is_split = self.splits is None or 1 <= self.splits <= MOST_SPLITS
        own = {
            f"{self.splits=} is not 1 to {MOST_SPLITS}, the most partial results of a sequence": (
                not is_split
            ),
            f"{self.probabilities=} is none of {', '.join(PROBABILITIES)}": (
                self.probabilities not in PROBABILITIES
            ),
        }
        refuse("DecodeConfig", common | own)

    def for_rows(self, rows: int) -> AttentionConfig:
        """The configuration of the compute threads of a block, for this many rows in all."""
        return AttentionConfig(
            rows=ROWS,
            block_kv=self.block_kv,
            slots=self.slots,
            compute_threads=min(-(-rows // ROWS), MOST_THREADS),
            schedule="plain",
            probabilities=self.probabilities,
        )

    def check(self, rows: int, head_dim: int, is_split: bool = True) -> None:
        """Raises ValueError, with the sum, if an SM has too little.

        Args:
          rows: the number of rows that share a head of K and V.
          head_dim: the size of a head.
          is_split: whether there are partial results, which are staged in SMEM.
        """
        config = self.for_rows(rows)
        config.check(head_dim, [staging(config).term()] * is_split, "DecodeConfig")


def staging(config: AttentionConfig) -> Smem:
    """The shared memory through which partial results are stored."""
    threads = config.compute_threads
    return Smem("partial results", (threads, ROWS, STAGED), jnp.float32, threads)


def default_config(rows: int, head_dim: int, page: int | None = None) -> DecodeConfig:
    """The configuration of `decode_attention` for these sizes, with as many slots as SMEM holds.

    It has room for partial results. If JAX's default device is not a GPU, the configuration is one
    for JAX's interpreter.

    Args:
      rows, head_dim: as `DecodeConfig.check` takes them.
      page: the keys of a page, if the cache has pages. If no number of keys of a step goes with
        it, the configuration does not either.
    """
    if default_device().platform != "gpu":
        return DecodeConfig(block_kv=64, slots=2, probabilities="interpreted")
    sizes = [64] if rows > ROWS or head_dim > 128 else [128, 64]
    fitting = [size for size in sizes if page is None or not (size % page and page % size)]
    block_kv = [*fitting, *sizes][0]
    configs = (DecodeConfig(block_kv, slots) for slots in range(1, _MOST_SLOTS + 1))
    return [*while_they_fit(configs, rows, head_dim)][-1]


def splits_for(blocks: int, steps: int, step_bytes: int, sms: int) -> int:
    """The number of splits that takes the least time, as the module says.

    Args:
      blocks: the number of blocks without splits.
      steps: the steps of a whole sequence.
      step_bytes: the bytes of K and V of a step.
      sms: the SMs of the GPU.
    """

    def time(splits: int) -> float:
        own, start = -(-steps // splits), H200.start_bytes
        return in_waves(blocks * splits, sms, own, step_bytes, start) + start * (splits > 1)

    return min(range(1, min(steps, MOST_SPLITS) + 1), key=time)
