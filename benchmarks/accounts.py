"""Where the cycles of attention's forward pass go: ours, and FlashAttention-3's beside it.

    python -m benchmarks.accounts [dense] [causal]    profiles every contender on each problem
    python -m benchmarks.accounts table               prints the record

It writes `results/<gpu>/accounts.json`. It needs NVIDIA's Nsight Compute (`ncu`) and, for
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

import argparse
import collections
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import attention, matmul, noting, nsight, peers
from benchmarks.attentions import Problem, prepare
from pipelib.bench.provenance import provenance
from pipelib.kernels.hopper import num_sms
from pipelib.kernels.matmul import tuned
from pipelib_book.measured.accounts import PARTS, table

PLAN = attention.PARTS["ideas"]
PROBLEMS = {("dense", "causal")[problem.causal]: problem for problem in PLAN.problems}
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


def measure(problem: Problem, run: dict[str, Any]) -> dict[str, Any]:
    """A group of the record: the accounts of all contenders, or the reason why one has none."""
    sms, found = num_sms(), dict[str, dict[str, Any]]()
    for name in PLAN.contenders(problem, []):
        arguments = ["launch", json.dumps([*problem]), name]
        command = [sys.executable, "-m", "benchmarks.accounts", *arguments]
        try:
            found[name] = account(nsight.profile(command, KERNELS, LAUNCHES - 1, TIMEOUT_S), sms)
        except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            found[name] = dict(reason=str(error))
        said = found[name].get("reason") or f"{1e3 * found[name]['seconds']:.3f} ms"
        print(f"{problem}, {name}: {said}", flush=True)
    return dict(part="accounts", problem=problem.as_json(), run=run, sms=sms, contenders=found)


def launch(problem: Problem, name: str) -> None:
    """Launches a contender a few times, for `ncu` to see."""
    run = prepare(PLAN.contenders(problem, [])[name], problem)
    for _ in range(LAUNCHES):
        run("launch")


def main() -> None:
    """Profiles the contenders, or prints what was found."""
    if sys.argv[1:2] == ["launch"]:
        launch(Problem(*json.loads(sys.argv[2])), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    choices = [*PROBLEMS, "table"]
    parser.add_argument("what", nargs="*", choices=choices, help="problems (all), or table")
    wanted = parser.parse_args().what or [*PROBLEMS]
    if "table" in wanted:
        for path in sorted(matmul.RESULTS.glob("*/accounts.json")):
            for group in matmul.read(path):
                print(f"{Problem(**group['problem'])}\n{table(group)}\n")
        return
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the memory is the launches'
    command = " ".join(["python", "-m", "benchmarks.accounts", *sys.argv[1:]])
    facts = provenance()
    if facts["gpu"] is None:
        raise SystemExit("benchmarks.accounts: JAX has no GPU here: there is nothing to profile.")
    run = dict(command=command, provenance=facts, peers=peers.versions())
    path = matmul.RESULTS / tuned.file_name(facts["gpu"]) / "accounts.json"
    for name in wanted:
        matmul.write(path, measure(PROBLEMS[name], run))
        noting.note(path)


if __name__ == "__main__":
    main()
