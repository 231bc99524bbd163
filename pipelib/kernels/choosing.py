"""How a kernel's configuration is chosen, where its caller gives none: what all choices share.

The model. A kernel has a few *candidates*, which fit an SM (`fits`, `while_they_fit`), and an
*estimate* of the time of each. The least estimate wins, of equal ones the first. Where a problem
was measured, a *table* of the kernel says which candidate won.

All estimates have one form. An SM makes one block, or one tile, after the other, so all of them go
through in *waves*, and a block takes its steps and something besides (`in_waves`)::

    time = waves x (steps x step + block)   and what a launch takes once

============================  ====================================================================
`matmul.choosing`             a step by tensor core, SMEM, L2 and HBM; a tile's store
`collective.choosing`         the same, or the transfer and the last wave behind it
`attention.choosing`          times of steps and blocks that were fitted to measured ones
`attention.decode_config`     bytes of steps; a block begins with nothing on its way
`scaled.config_of`            columns of tiles
============================  ====================================================================

Their constants are one value, `H200`. Tables: `matmul.tuned`, `attention.choosing`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol


class Checked(Protocol):
    """A configuration that says whether an SM has enough for it."""

    @property
    def check(self) -> Callable[..., None]:
        """Raises ValueError, with the sum, if an SM has too little for a problem."""
        ...


def fits(config: Checked, *problem: Any) -> bool:
    """Whether an SM has enough for a configuration; `problem` is what its `check` takes."""
    try:
        config.check(*problem)
    except ValueError:
        return False
    return True


def while_they_fit[C: Checked](configs: Iterable[C], *problem: Any) -> Iterator[C]:
    """Configurations that take ever more of an SM, up to the first that does not fit."""
    for config in configs:
        if not fits(config, *problem):
            return
        yield config


def in_waves(blocks: int, at_once: int, steps: float, step: float, block: float = 0.0) -> float:
    """The time of blocks that run in waves, in the unit of `step` and `block`.

    Args:
      blocks: how many blocks, or tiles, there are.
      at_once: how many run at the same time.
      steps, step: the steps of a block, and what each takes.
      block: what a block takes besides.
    """
    return math.ceil(blocks / at_once) * (steps * step + block)


class Rates(NamedTuple):
    """The constants of a GPU that formulas take, of an H200 by default.

    Source: pallascope's file of the machine (`machines/h200.json`), which kernels do not import; a
    test compares the two. What the file lacks is below the line, with its own source.

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

    Fitted to the times of 450 configurations of 17 products with few rows on an H200, which are in
    no record, if nothing else is said (*: to those of 1,288 configurations of 83 products drawn by
    chance, which are in none either):

      part_cycles: the least that a part of a tile takes which is staged.
      step_cycles: the least that a step takes a thread: its barriers, and the issue of products.
      fill_cycles: for each row of a load that lies beyond the array's end, and becomes zeros.
      sum_seconds: * of the kernel that adds up the parts of a split product, however small.
      sum_bytes_per_second: the parts that it reads.
      sm_sends_bytes_per_us, sends_bytes_per_us: what an SM sends to another GPU while others
        multiply, and what the GPU sends. Measured on two H200s: the first in
        `benchmarks.collective`, where two blocks send; the second with 64 blocks that send and next
        to no product (in no record).
      unhidden: the part of a step's other times that comes on top of the longest. Fitted to the
        record of searches, and to products with few rows: choices are nearly the same from 0.17 to
        0.22.
      in_two_lines, in_two_sectors: how much longer an SM takes to load rows that lie in two lines
        of L2 (of 128 bytes), and how much more of L2 rows take that lie in two of its sectors (of
        32). Fitted to 54 times of 26 products: the root mean square error of the estimates is 16%;
        with one factor of 1.4 for both it was 22%.
      swapped_slower: how much longer transposed products of many rows take than by their estimates:
        0 to 5%, beside others, with 4 products.
      paired_slower: * how much longer products take in clusters than by their estimates.
      wide_column: in `scaled_matmul`, the time of a column of a tile of 192 over that of a column
        of a tile of 128: 0.95 to 1.00 with four products.
      l2_bytes: what blocks that run together can find in L2: two thirds of the 50 MB of an H100 or
        H200.
      launch_us: a launch with nothing to do, about.
      start_bytes: what a block's beginning costs, in bytes that an SM gets in this time: about 4
        us. Not measured.
      gpu: as JAX names it.
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
    part_cycles: float = 128.0
    step_cycles: float = 250.0
    fill_cycles: float = 6.7
    sum_seconds: float = 2.1e-6
    sum_bytes_per_second: float = 5.6e12
    sm_sends_bytes_per_us: float = 22e3
    sends_bytes_per_us: float = 300e3
    unhidden: float = 0.2
    in_two_lines: float = 1.4
    in_two_sectors: float = 1.75
    swapped_slower: float = 1.05
    paired_slower: float = 1.05
    wide_column: float = 0.97
    l2_bytes: int = 32 * 2**20
    launch_us: float = 1.0
    start_bytes: int = 2**17
    gpu: str = "NVIDIA H200"


#: The rates that defaults are chosen by, for all GPUs.
H200 = Rates()
