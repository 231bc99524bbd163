"""Where the cycles of attention's forward pass go: ours, and FlashAttention-3's beside it.

    python -m benchmarks.accounts          profiles every contender on each problem
    python -m benchmarks.accounts table    prints the record

It needs NVIDIA's Nsight Compute (`ncu`) and, for
FlashAttention-3, a folder of peers (`benchmarks/peers.py`).

The model. Each contender of the part "ideas" of `benchmarks.attention`, ours and others', runs in a
process of its own under `benchmarks.nsight`, one launch of it after others. The *account* has the
counters of the whole launch, and divides its *main loop*: the instructions that run about as often
as the product that runs most often. They fall into parts, in the order of their addresses:

=========  =========================================================================
turn       up to the first product: barriers, the turn, the loop's own arithmetic
products   from the first product to the last: they are queued, and run behind it
scores     the first wait for products
softmax    what follows, up to the next wait
result     the second wait, if there is one
rest       what follows it, to the end of the loop
=========  =========================================================================

A part's samples, as a share of all, times the cycles of all warps, over how often it ran: these are
its cycles for a step of a warp. Source of the sampling: NVIDIA's Nsight Compute, "Kernel Profiling
Guide", "Warp Sampling".

Not covered: loops of which ptxas made two copies, as for masks: only the copy that runs most.
"""

import collections
import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import attention, nsight, suite
from benchmarks.attention_problems import Problem, prepare
from benchmarks.suite import Call, Fields, Part, Suite
from pipelib.kernels.hopper import num_sms
from pipelib_book.measured.accounts import PARTS, table

IDEAS = attention.SUITE.parts["ideas"]
#: What the names of attention's kernels have: ours, cuDNN's, FlashAttention-3's.
KERNELS = "attention|sdpa|device_kernel"
LAUNCHES, TIMEOUT_S = 3, 120.0
#: How far from the most frequent product's an instruction's count may be, in the main loop.
_NEAR = 0.05
_COUNTERS = {
    "seconds": "gpu__time_duration.sum",
    "cycles": "sm__cycles_elapsed.max",
    "active_cycles": "sm__cycles_active.avg",
    "instructions": "smsp__inst_executed.sum",
    "warps": "sm__warps_active.avg.per_cycle_active",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "exponentials_percent": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "to_sms_bytes_per_second": "l1tex__m_xbar2l1tex_read_bytes.sum.per_second",
}


def account(found: nsight.Profile, sms: int) -> dict[str, Any]:
    """What a record has of a profile, of a GPU with so many multiprocessors."""
    counters = {name: found.counters[of] for name, of in _COUNTERS.items()}
    everything = sum(line.samples for line in found.lines)
    warp_cycles = counters["warps"] * counters["active_cycles"] * sms
    parts = {}
    for name, lines in parts_of(found.lines).items():
        often = max(line.executed for line in lines)
        cycles = warp_cycles / everything / often
        stalls = collections.Counter[str]()
        for line in lines:
            stalls.update(line.stalls)
        classes = collections.Counter(line.opcode.split(".")[0] for line in lines)
        parts[name] = dict(
            cycles=round(cycles * sum(line.samples for line in lines), 1),
            stalls={why: round(cycles * count, 1) for why, count in stalls.most_common()},
            instructions=dict(classes.most_common()),
        )
    lines = [[*line] for line in found.lines if line.samples]
    return dict(kernel=found.kernel, samples=everything, **counters, parts=parts, lines=lines)


def parts_of(lines: Sequence[nsight.Line]) -> dict[str, list[nsight.Line]]:
    """The instructions of the main loop, by part; parts without any are not there.

    Raises:
      ValueError: there is no product.
    """
    products = [line.executed for line in lines if _is_product(line)]
    if not products:
        raise ValueError(f"None of {len(lines)} instructions is a product, so there is no loop.")
    often = max(products)
    loop = [line for line in lines if abs(line.executed - often) <= _NEAR * often]
    first = next(i for i, line in enumerate(loop) if _is_product(line))
    last = max(i for i, line in enumerate(loop) if _is_product(line))
    found: dict[str, list[nsight.Line]] = {"turn": loop[:first], "products": loop[first : last + 1]}
    names = iter(PARTS[2:])
    for waits, part in itertools.groupby(loop[last + 1 :], _is_wait):
        if not waits and len(found) == 2:  # a little stands before the first wait
            found["products"] += part
        elif (name := next(names, None)) is not None:
            found[name] = [*part]
        else:
            found[PARTS[-1]] += part
    return {name: part for name, part in found.items() if part}


def _is_product(line: nsight.Line) -> bool:
    return line.opcode.startswith("HGMMA")


def _is_wait(line: nsight.Line) -> bool:
    """Whether it waits for products."""
    return line.opcode.startswith("WARPGROUP.DEPBAR")


def measure(call: Call, part: Part, problem: Problem, made: Mapping[str, Any]) -> Iterator[Fields]:
    """The accounts of all contenders, or the reason why one has none."""
    del part
    sms = num_sms()
    for name in made:
        command = [sys.executable, "-m", "benchmarks.accounts", "launch", json.dumps([*problem])]
        try:
            seen = nsight.profile([*command, name], KERNELS, LAUNCHES - 1, TIMEOUT_S)
            found = account(seen, sms)
            call.say(f"{problem}, {name}: {1e3 * found['seconds']:.3f} ms")
        except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            found = dict[str, Any](reason=str(error))
            call.say(f"{problem}, {name}: {error}")
        yield dict(sms=sms, contenders={name: found})


def launch(problem: str, name: str) -> None:
    """Launches a contender a few times, for `ncu` to see; the problem's values are JSON."""
    asked = Problem(*json.loads(problem))
    run = prepare(IDEAS.contenders(asked, [])[name], asked)
    for _ in range(LAUNCHES):
        run("launch")


SUITE = Suite(
    "accounts",
    {"accounts": dataclasses.replace(IDEAS, measure=measure)},
    commands={"launch": launch},
    shown=table,
    shares=True,
)

if __name__ == "__main__":
    suite.main("accounts")
