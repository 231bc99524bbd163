"""`chosen`: the configuration of the forward kernel for a problem, of a few, by a formula.

The model. A block of the kernel takes a time for each of its steps, and a time besides. An SM makes
one block after the other. So the kernel takes, in microseconds::

    `launch_us` + what the SM with the most does:
        the sum over its blocks of   steps x `step`  +  `block`, or `visit` if it is persistent
                                     +  `apart`, if several heads have their blocks taken together

`order` says how many heads these are, and whether the kernel is persistent. Which SM has the most:

==================================  ==============================================================
all blocks at once                  the longest block
blocks of equal steps               as many blocks as there are rounds of all SMs
persistent, by length               the mean, times the imbalance of `order`
else the GPU deals the blocks out   each round of blocks goes to the SMs in the order in which these
                                    are free; all but the last `_ROUNDS` rounds are spread evenly
==================================  ==============================================================

`apart` may be what blocks of several heads do not find in L2, which was not measured by itself. The
times of a step, a block and a visit depend on the size of a head and on the *kind* of the
configuration: its threads, its schedule, the keys of a step. `KINDS` has these times. The first
kind of each size is that of `default_config`; another is chosen if its estimate is less by
`MARGIN`. What the others are for:

===========================  =====================================================================
one thread, "overlap"        Few blocks: those of 64 rows occupy twice as many SMs. A step takes 0.8
                             of the time of two threads' step, which has twice the rows. And few
                             rows, up to 64 in a head.
three threads, heads of 128  A few more blocks than SMs: those of 192 rows are one round, not two.
two threads, heads of 64     Short or causal sequences, which leave blocks of 192 rows unequal; and
                             all with segments, of which smaller blocks see fewer.
===========================  =====================================================================

On top is a table of the problems that were measured, `tuned/nvidia-h200.json`: of these, the kind
with the least time is chosen.

Where the times are from, and how good they are. The table has 42 problems, most of them with few or
short blocks: of each the medians of 24 launches of two kinds or three, by CUPTI, in turn, on one
H200 in bfloat16 (as `benchmarks/choices.py` takes them). The times of `KINDS` are fitted to it by
`tests/kernels/attention/test_choosing`, which has the numbers that follow. The root mean square
error of all 101 estimates is 3.5%, the largest 12%. To see what they are worth for other problems,
they were fitted to two thirds of the table, for each third. Of the third that is left out, the
error is 6.9%, and 34% at most: 1024 heads of 128 tokens, of a step each. There the choice by
estimates alone takes 1.001 times the fastest that was measured on average, and 1.04 at most;
`default_config` takes 1.12 and 1.68.

In the record of `benchmarks/attention.py`, 16 heads of 16,384 tokens, dense and in bfloat16, take
7% more than the estimate with heads of 128, and 12% more with 256. A GPU lowers its clock in a long
launch; whether that is all of it was not measured.

Not covered: float8, heads of 192, and gradients, whose configurations depend on the size of a head
alone; bytes of L2 and HBM; masked steps, which here take as long as others; the H100, whose times
no one took for this.
"""

import dataclasses
import functools
import json
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

from pipelib.kernels.attention import forward, narrow
from pipelib.kernels.attention.band import Options, Sizes
from pipelib.kernels.attention.config import AttentionConfig
from pipelib.kernels.attention.order import BlockOrder
from pipelib.kernels.choosing import H200, in_waves
from pipelib.kernels.hopper import default_device, num_sms

#: Where the table is.
TABLE = pathlib.Path(__file__).parent / "tuned" / "nvidia-h200.json"
#: How much less than the default's the estimate of another kind must be: the error of estimates.
MARGIN = 0.07
#: The rounds of blocks that are dealt out one by one; those before them are spread evenly.
_ROUNDS = 32


class Cost(NamedTuple):
    """Microseconds that an SM takes for parts of a kernel of some kind.

    Attributes:
      step: a step.
      block: a block that begins, less its steps: its first loads, and the store of its result.
      visit: what a persistent block takes to go on to other queries.
      apart: what a block takes longer if blocks of several heads run at once.
    """

    step: float
    block: float
    visit: float
    apart: float


class Kind(NamedTuple):
    """A kind of configuration of the forward kernel.

    Attributes:
      name: in the table.
      fields: those of `AttentionConfig` that differ from the default's.
      cost: the times of its parts.
    """

    name: str
    fields: dict[str, Any]
    cost: Cost


_ONE = dict(compute_threads=1, schedule="overlap")
#: The kinds of each size of a head, the default's first. (Visits with heads of 256 are in no
#: measurement: theirs is a guess, and counts only where a thread alone has more blocks than SMs.)
KINDS = {
    64: (
        Kind("default", {}, Cost(1.54, 3.01, 1.08, 1.93)),
        Kind(
            "two threads",
            dict(compute_threads=2, schedule="optimistic"),
            Cost(1.18, 2.23, 0.98, 0.84),
        ),
        Kind("one thread", _ONE, Cost(0.87, 1.49, 1.28, 0.83)),
    ),
    128: (
        Kind("default", {}, Cost(1.33, 3.49, 3.78, 0.87)),
        Kind("one thread", _ONE, Cost(1.09, 1.86, 2.19, 1.27)),
        Kind(
            "three threads",
            dict(block_kv=64, slots=4, compute_threads=3, schedule="pingpong"),
            Cost(1.21, 3.69, 2.18, 0.88),
        ),
    ),
    256: (
        Kind("default", {}, Cost(1.17, 4.65, 2.0, 3.23)),
        Kind("one thread", _ONE, Cost(0.91, 3.16, 2.0, 2.16)),
    ),
}
#: The most kinds that a problem has.
MOST_KINDS = max(map(len, KINDS.values()))


def default_config(head_dim: int, deterministic: bool = False) -> AttentionConfig:
    """The configuration of `attention` for long sequences with heads of 64, 128, 192 or 256.

    Unless it must be deterministic, one kernel makes all gradients, where there is one.

    A step has as many keys, and a block as many threads, as registers and SMEM hold. With heads of
    64, three threads take turns: their exponentials take as long as their products, so a step
    without a maximum gains less than a third thread. If JAX's default device is not a GPU, the
    configuration is the one that JAX's interpreter runs fastest.
    """
    if default_device().platform != "gpu":
        return AttentionConfig(
            block_kv=64, compute_threads=1, schedule="plain", probabilities="interpreted"
        )
    fused = None if deterministic or head_dim > 128 else True
    if head_dim == 64:
        return AttentionConfig(block_kv=128, compute_threads=3, slots=4, fused=fused)
    block_kv = 128 if head_dim == 128 else 64
    return AttentionConfig(block_kv=block_kv, schedule="optimistic", fused=fused)


def default_of_float8(head_dim: int) -> AttentionConfig:
    """The configuration of `attention` in float8; on a CPU, the one that the interpreter runs best.

    "optimistic" is the fastest with each size of a head, dense or causal.
    """
    keys = narrow.KEYS
    if default_device().platform != "gpu":
        return dataclasses.replace(default_config(head_dim), block_kv=keys)
    return AttentionConfig(block_kv=keys, schedule="optimistic")


def chosen(
    options: Options[AttentionConfig | None],
    sizes: Sizes,
    itemsize: int,
    *,
    segmented: bool = False,
    whole: bool = False,
) -> AttentionConfig:
    """The configuration of a problem: measured to be the fastest, or estimated to be.

    Args:
      options: what queries see, and whether gradients are added up in a fixed order.
      sizes: of the problem, with the size of a head in SMEM.
      itemsize: bytes of an element of K and V.
      segmented: whether the sequences have segments.
      whole: whether queries must divide into whole blocks; if they do for no kind, the default's.
    """
    if itemsize == 1:
        return default_of_float8(sizes.head_dim)
    default = default_config(sizes.head_dim, options.deterministic)
    kinds = KINDS.get(sizes.head_dim, ())
    if segmented:  # of these, blocks of 192 rows would see more
        kinds = tuple(x for x in kinds if x.name == "two threads") or kinds
    if not kinds or default_device().platform != "gpu":
        return default
    configs = {x.name: dataclasses.replace(default, **x.fields) for x in kinds}
    fits = lambda x: not whole or sizes.queries % configs[x.name].block_q == 0  # pyright: ignore[reportUnknownLambdaType, reportUnknownMemberType, reportUnknownVariableType]
    fitting = [x for x in kinds if fits(x)] or kinds[:1]
    measured = None if segmented else _table().get(_key(options, sizes))
    if measured:
        names = [x.name for x in fitting if x.name in measured]
        if names:
            return configs[min(names, key=measured.__getitem__)]

    def likely_us(kind: Kind) -> float:
        sized = options.configured(configs[kind.name])
        us = estimate_us(sized, sizes, itemsize, kind.cost, segmented)
        return us if kind is kinds[0] else us * (1.0 + MARGIN)

    return configs[min(fitting, key=likely_us).name]


def estimate_us(
    options: Options[AttentionConfig],
    sizes: Sizes,
    itemsize: int,
    cost: Cost,
    segmented: bool = False,
) -> float:
    """The microseconds of the forward kernel, by the model in the module's docstring.

    Args:
      options: what queries see, and the configuration.
      sizes, itemsize, segmented: as `chosen` takes them.
      cost: the times of the configuration's kind.
    """
    order = forward.order_of(options, sizes, itemsize, segmented)
    return microseconds(order, forward.steps_of(options, sizes), cost)


def microseconds(order: BlockOrder, steps: np.ndarray, cost: Cost) -> float:
    """The microseconds of blocks in an order.

    Args:
      order: of the blocks.
      steps: how many each block of a head takes.
      cost: the times of the configuration's kind.
    """
    sms, every = num_sms(), order.batch * order.heads
    each, blocks = cost.step * steps, every * order.blocks
    first = H200.launch_us + cost.block  # the first visit of a block begins as a block does
    if blocks <= sms:
        return first + float(each.max())
    if order.together > 1:
        each = each + cost.apart
    if order.persistent is None:
        return H200.launch_us + _dealt_out(order, each + cost.block, sms)
    first -= cost.visit
    if not order.by_length:
        return first + in_waves(blocks, sms, 1, float(each.max()), cost.visit)
    mean = every * float((each + cost.visit).sum()) / sms
    return first + mean * order.imbalance(sms, tuple(steps.tolist()))


def _dealt_out(order: BlockOrder, each: np.ndarray, sms: int) -> float:
    """When the last SM is done, if the next block goes to the first SM that is free.

    Args:
      order: of the blocks.
      each: the time of each block of a head.
      sms: the number of SMs.
    """
    every, most = order.batch * order.heads, _ROUNDS * sms
    in_group = np.repeat(each[::-1] if order.last_is_longest else each, order.together)
    groups = every // order.together
    last = np.tile(in_group, min(groups, math.ceil(most / len(in_group))))[-most:]
    before = every * float(each.sum()) - float(last.sum())
    busy = np.full(sms, before / sms)
    for begin in range(0, len(last), sms):
        some = last[begin : begin + sms]
        busy.sort()
        busy[: len(some)] += some
    return float(busy.max())


# What was measured.


#: Batch, queries, keys, heads, heads that share one of K and V, the size of a head, (left, right).
_Key = tuple[int, int, int, int, int, int, int | None, int | None]


def _key(options: Options[Any], sizes: Sizes) -> _Key:
    """The key of a problem in the table of measured problems."""
    return (*sizes[:6], options.left, options.right)


@functools.cache
def _table() -> dict[_Key, dict[str, float]]:
    """The microseconds of each kind, of each problem: as many keys as queries, in bfloat16."""

    def key(row: dict[str, Any]) -> _Key:
        sizes = row["batch"], row["seq"], row["seq"], row["heads"], row["heads"] // row["kv_heads"]
        return *sizes, row["head_dim"], row["left"], row["right"]

    rows = json.loads(TABLE.read_text("utf-8"))["rows"]
    return {key(row): row["microseconds"] for row in rows}
