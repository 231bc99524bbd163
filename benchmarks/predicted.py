"""What `pallascope.predict` says of each pair that `benchmarks.model` has measured, on no GPU.

`python -m benchmarks.predicted` writes the record. It takes about a quarter of an hour.

The model. Each pair is predicted twice: at the clock that the GPU had while it was measured, which
leaves the errors of the schedule's model alone; and at the clock that the model expects, which is
what a reader without a GPU gets. Of a function that calls several kernels, the times of all are
added up.
"""

import argparse
import contextlib
import functools
import multiprocessing
import sys
import types
from collections.abc import Iterator
from statistics import median
from typing import Any
from unittest import mock

from jax.experimental.pallas.ops.gpu import attention_mgpu, hopper_matmul_mgpu

from benchmarks import records
from benchmarks.model_pairs import Pair, pairs
from pallascope.bench.provenance import provenance
from pallascope.machine import H200
from pallascope.predicting import launch, sampled
from pallascope.tracing.trace import tracers
from pipelib.kernels.hopper import H100_SMS, Gpu, assumed

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


def predicted(pair: Pair, mhz: float) -> dict[str, Any]:
    """The microseconds of a pair's launches at a clock; at the model's own, and that clock."""
    with on_h200():
        found = tracers(pair.function, pair.args, "predicted")
        samples = [sampled(tracer.program, tracer.grid, H200.sms) for tracer in found]
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


def main() -> None:
    """Predicts all pairs that were measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    jobs = parser.parse_args().jobs
    (measured,) = records.read(MEASURED)
    ran = {name: kept for name, kept in measured["contenders"].items() if "reason" not in kept}
    clocks = {name: median(kept["mhz"]) for name, kept in ran.items()}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        found = dict(pool.starmap(_predicted, clocks.items(), chunksize=4))
    command = " ".join(["python -m benchmarks.predicted", *sys.argv[1:]])
    run = dict(command=command, machine=H200.name, provenance=provenance())
    records.put(PREDICTED, dict(part="pairs", problem={}, run=run, contenders=found))
    print(f"{len(found)} pairs are predicted.")


if __name__ == "__main__":
    main()
