"""What `pallascope.predict` says of launches that a GPU has measured, on no GPU.

    python -m benchmarks.predicted             the pairs of `benchmarks.model`: a quarter of an hour
    python -m benchmarks.predicted defaults    calls without a configuration: as long

The model. Each pair is predicted twice: at the clock that the GPU had while it was measured, which
leaves the errors of the schedule's model alone; and at the clock that the model expects, which is
what a reader without a GPU gets. Of a function that calls several kernels, the times of all are
added up.

Calls without a configuration are what a user runs: those of `measured.model.CALLS`. They are
predicted at the model's own clock. What fitted in L2 when it was measured is there: an attention's
arrays, or all the sets of factors that a product had in rotation.
"""

import argparse
import contextlib
import functools
import math
import multiprocessing
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from jax.experimental.pallas.ops.gpu import attention_mgpu, hopper_matmul_mgpu

import benchmarks.attention
from benchmarks import attention_problems, decode, memory_bound, products, records
from benchmarks.model_pairs import Pair, pairs
from pallascope.bench.provenance import provenance
from pallascope.machine import H200, Machine
from pallascope.predicting import launch, sampled
from pallascope.program import Program
from pallascope.simulating.launch import Index, streamed
from pallascope.tracing.around import Fusion
from pallascope.tracing.trace import hosted
from pallascope.tuning import measuring
from pipelib.kernels import matmul, rms_norm, softmax
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


type _Samples = list[dict[Index, Program]]


def traced(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[_Samples, list[Fusion]]:
    """Some blocks of each kernel that a function calls on an H200; and what XLA runs besides."""
    with on_h200():
        found, host = hosted(function, args, "predicted")
        samples = [sampled(tracer.program, tracer.grid, H200.sms) for tracer in found]
        return samples, host.fusions()


def predicted(pair: Pair, mhz: float) -> dict[str, Any]:
    """The microseconds of a pair's launches at a clock; at the model's own, and that clock."""
    samples, _ = traced(pair.function, pair.args)
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


class _Call(NamedTuple):
    """A function and its arguments; the arrays that are there meanwhile; how many of its kernels
    were not measured, the first ones; whether those that XLA makes around them were."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kept: tuple[Any, ...]
    before: int = 0
    around: bool = False


def _product(problem: Mapping[str, Any]) -> _Call:
    made = products.Problem(**problem)
    run = functools.partial(matmul, transpose_a=made.transpose_a, transpose_b=made.transpose_b)
    args = tuple(made.factors)
    return _Call(run, args, args * measuring.rotation(args), around=True)


def _attention(problem: Mapping[str, Any]) -> _Call:
    """Forward, or its gradients; the record of these has no kernel of the forward pass."""
    asked = attention_problems.Problem(**problem)
    run = benchmarks.attention.ours(asked, None)
    *args, out = asked.arrays
    if not asked.backward:
        return _Call(run, tuple(args), (*args, out))
    before = len(hosted(run, tuple(args), "predicted")[0])
    gradients = functools.partial(benchmarks.attention.gradients, run)
    return _Call(gradients, (*args, out), (*args, out) * 2, before)


def _decode(problem: Mapping[str, Any]) -> _Call:
    """The lengths and the page table are numbers: loops depend on them."""
    asked = decode.Problem(**problem)
    q, k, v, lengths, table = asked.args
    full = np.full(lengths.shape, asked.keys, lengths.dtype)
    pages = np.arange(math.prod(table.shape), dtype=table.dtype).reshape(table.shape)
    return _Call(decode.ours, (q, k, v, full, pages), (q, k, v))


def _rows(run: Callable[..., Any], problem: Mapping[str, Any]) -> _Call:
    x = memory_bound.Problem(**problem).x
    return _Call(run, (x,), (x, x))


#: What makes the call of each family of `measured.model.CALLS`.
_CALLS: dict[str, Callable[[Mapping[str, Any]], _Call]] = {
    "matmul": _product,
    "attention": _attention,
    "attention's gradients": _attention,
    "decode_attention": _decode,
    "rms_norm": functools.partial(_rows, functools.partial(rms_norm, eps=memory_bound.EPS)),
    "softmax": functools.partial(_rows, softmax),
}


def default(name: str, problem: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The microseconds of a call without a configuration, `name` and all."""
    found = default_on(name, problem, H200)
    return name, found if isinstance(found, dict) else dict(us=found[0])


def default_on(
    name: str, problem: Mapping[str, Any], *machines: Machine
) -> list[float] | dict[str, Any]:
    """The microseconds of a call without a configuration on each machine, or why there are none."""
    try:
        with on_h200():
            call = _CALLS[name.partition(":")[0]](problem)
        samples, around = traced(call.function, call.args)
    except ValueError as error:  # XLA computes it
        return dict(reason=str(error))
    size = sum(x.size * x.dtype.itemsize for x in call.kept)
    l2_hits = 1.0 if size <= measuring.L2_BYTES else None

    def us(machine: Machine) -> float:
        own = sum(
            launch(each, machine=machine, l2_hits=l2_hits).us for each in samples[call.before :]
        )
        besides = around if call.around else ()
        return own + sum(1e6 * streamed(*each, machine, l2_hits) for each in besides)

    return [round(us(machine), 3) for machine in machines]


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
