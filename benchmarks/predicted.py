"""What `pallascope.predict` says of launches that a GPU has measured, on no GPU.

    python -m benchmarks.predicted             the pairs of `benchmarks.model`: a quarter of an hour
    python -m benchmarks.predicted defaults    calls without a configuration: ten minutes

The model. Each pair is predicted twice: at the clock that the GPU had while it was measured, which
leaves the errors of the schedule's model alone; and at the clock that the model expects, which is
what a reader without a GPU gets. Of a function that calls several kernels, the times of all are
added up.

Calls without a configuration are what a user runs: the sixty products whose sizes were drawn by
chance (`untuned`), and attention forward of `benchmarks.attention`. They are predicted at the
model's own clock. What fitted in L2 when it was measured is there: an attention's arrays, or all
the sets of factors that a product had in rotation.
"""

import argparse
import contextlib
import functools
import multiprocessing
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any
from unittest import mock

from jax.experimental.pallas.ops.gpu import attention_mgpu, hopper_matmul_mgpu

from benchmarks import attention_problems, products, records
from benchmarks.model_pairs import Pair, pairs
from pallascope.bench.provenance import provenance
from pallascope.machine import H200
from pallascope.predicting import launch, sampled
from pallascope.program import Program
from pallascope.simulating.launch import Index
from pallascope.tracing.trace import tracers
from pallascope.tuning import measuring
from pipelib.kernels import attention, matmul
from pipelib.kernels.hopper import H100_SMS, Gpu, assumed
from pipelib_book.measured.model import measured_defaults

MEASURED = records.RESULTS / "nvidia-h200" / "model.json"
PREDICTED = MEASURED.with_name("predicted.json")


@contextlib.contextmanager
def on_h200() -> Iterator[None]:
    """Kernels, JAX's own too, are traced as for an H200."""
    device = types.SimpleNamespace(core_count=H100_SMS)
    backend = types.SimpleNamespace(get_default_device=lambda: device)
    cuda = types.SimpleNamespace(cuda_runtime_get_version=lambda: 13_000)
    with (
        assumed(Gpu("NVIDIA H200", "9.0")),
        mock.patch.object(hopper_matmul_mgpu, "backend", backend),
        mock.patch.object(attention_mgpu, "cuda_versions", cuda),
    ):
        yield


def _traced(function: Callable[..., Any], args: tuple[Any, ...]) -> list[dict[Index, Program]]:
    """Some blocks of each kernel that a function calls on an H200."""
    with on_h200():
        found = tracers(function, args, "predicted")
        return [sampled(tracer.program, tracer.grid, H200.sms) for tracer in found]


def predicted(pair: Pair, mhz: float) -> dict[str, Any]:
    """The microseconds of a pair's launches at a clock; at the model's own, and that clock."""
    samples = _traced(pair.function, pair.args)
    timed = functools.partial(launch, machine=H200, l2_hits=pair.l2_hits)
    at_clock = [timed(each, clock_hz=1e6 * mhz) for each in samples]
    own = [timed(each) for each in samples]
    us = sum(each.us for each in own)
    return dict(
        us_at_clock=round(sum(each.us for each in at_clock), 3),
        us=round(us, 3),
        mhz=round(1e-6 * sum(each.us * each.clock_hz for each in own) / us, 1),
    )


def _predicted(name: str, mhz: float) -> tuple[str, dict[str, Any]]:
    return name, predicted(pairs()[name], mhz)


def default(name: str, problem: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The microseconds of a call without a configuration, `name` and all."""
    if "seq" in problem:
        asked = attention_problems.Problem(**problem)
        function = functools.partial(attention, causal=asked.causal, scale=1.0)
        *args, _ = kept = asked.arrays
    else:
        made = products.Problem(**problem)
        function = functools.partial(
            matmul, transpose_a=made.transpose_a, transpose_b=made.transpose_b
        )
        args = made.factors
        kept = args * measuring.rotation(args)
    size = sum(x.size * x.dtype.itemsize for x in kept)
    l2_hits = 1.0 if size <= measuring.L2_BYTES else None
    try:
        samples = _traced(function, tuple(args))
    except ValueError as error:  # XLA computes it
        return name, dict(reason=str(error))
    us = sum(launch(each, machine=H200, l2_hits=l2_hits).us for each in samples)
    return name, dict(us=round(us, 3))


def main() -> None:
    """Predicts what was measured: all pairs, or all calls without a configuration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="?", choices=["pairs", "defaults"], default="pairs")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    if options.part == "pairs":
        (measured,) = records.read(MEASURED)
        ran = {name: kept for name, kept in measured["contenders"].items() if "reason" not in kept}
        function, work = _predicted, {name: median(kept["mhz"]) for name, kept in ran.items()}
    else:
        function, work = default, {each.name: each.problem for each in measured_defaults()}
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        found = dict(pool.starmap(function, work.items(), chunksize=4))
    command = " ".join(["python -m benchmarks.predicted", *sys.argv[1:]])
    run = dict(command=command, machine=H200.name, provenance=provenance())
    records.put(PREDICTED, dict(part=options.part, problem={}, run=run, contenders=found))
    print(f"{len(found)} {options.part} are predicted.")


if __name__ == "__main__":
    main()
