"""What three faults of tokamax's attention do on a Hopper GPU, in tokamax itself.

`python -m benchmarks.tokamax_attention` needs tokamax 0.0.17, as in `requirements-foreign.txt`, and
writes `results/<gpu>/tokamax.json`. Each fault is a case, and each case has a control: the same
call with the one option changed that takes the fault away. A call has a process of its own, which
is killed if it does not answer, and runs many times. Its results are compared with attention by
`jax.numpy` in float32. A run is wrong if its largest error is over `TOLERANCE` times the largest
value. The record keeps the error of every run.
"""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import suite
from benchmarks.records import ROOT
from benchmarks.suite import Fields, Part, Suite

RUNS, HANG_S, TOLERANCE = 1_000, 60, 0.05

type Arrays = tuple[jax.Array, ...]


class Call(NamedTuple):
    """A call of tokamax, and the same by `jax.numpy`; both give arrays of the same shapes."""

    tokamax: Callable[..., Arrays]
    reference: Callable[..., Arrays]
    args: Arrays


def operands(heads: int, kv_heads: int, out_dim: int) -> Arrays:
    """Queries, keys and values: 1,024 tokens, heads of 64 (values: `out_dim`), bfloat16."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (heads, 64), (kv_heads, 64), (kv_heads, out_dim)
    return tuple(
        jax.random.normal(key, (2, 1024, *shape), jnp.bfloat16) for key, shape in zip(keys, shapes)
    )


def attention(q: jax.Array, k: jax.Array, v: jax.Array, sees: jax.Array) -> jax.Array:
    """Attention in float32; `sees` says which query sees which key. A row that sees none is 0."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="highest") / 8
    weights = jnp.where(sees, jnp.exp(scores - scores.max(-1, keepdims=True)), 0)
    sums = weights.sum(-1, keepdims=True)
    weights = jnp.where(sums > 0, weights / jnp.where(sums > 0, sums, 1), 0)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v, precision="highest")


def grouped_heads(faulty: bool) -> Call:
    """Gradients of keys and values, each of which two heads of queries share.

    A key is seen from some query on, `k_start`. With the fault that depends on the head.
    """
    from tokamax._src.ops.attention import base, pallas_mosaic_gpu

    op = pallas_mosaic_gpu.PallasMosaicGpuFlashAttention()
    starts = jnp.array([0, 256, 512, 768] if faulty else [256] * 4)
    k_start = jnp.broadcast_to(starts[:, None], (4, 1024))
    sees = jnp.arange(1024) >= k_start[:, :, None]

    def gradients(run: Callable[..., jax.Array]) -> Callable[..., Arrays]:
        loss = lambda q, k, v: run(q, k, v).astype(jnp.float32).sum()
        return jax.grad(loss, (1, 2))

    return Call(
        gradients(lambda q, k, v: op(q, k, v, mask=base.Mask(k_start=k_start))),
        gradients(lambda q, k, v: attention(q, k, v, sees)),
        operands(4, 2, 64),
    )


def causal_start(faulty: bool) -> Call:
    """Causal, and a first key, which with the fault lies beyond the diagonal of some tiles."""
    from tokamax._src.ops.attention import base, pallas_mosaic_gpu

    op = pallas_mosaic_gpu.PallasMosaicGpuFlashAttention()
    start = 512 if faulty else 0
    mask = base.Mask(k_start=jnp.array([start]), is_causal=True)
    sees = jnp.tri(1024, dtype=bool) & (jnp.arange(1024) >= start)
    return Call(
        lambda q, k, v: (op(q, k, v, mask=mask),),
        lambda q, k, v: (attention(q, k, v, sees),),
        operands(4, 4, 64),
    )


def epilogue(faulty: bool) -> Call:
    """Results that, with the fault, may overwrite operands: rows of 128 beside queries of 64."""
    from tokamax._src.ops.attention import pallas_mosaic_gpu, pallas_mosaic_gpu_kernel_sm90

    config = pallas_mosaic_gpu_kernel_sm90.Config(block_kv=64, persistent=not faulty)
    op = pallas_mosaic_gpu.PallasMosaicGpuFlashAttention(config=config)
    sees = jnp.ones((1024, 1024), bool)
    return Call(
        lambda q, k, v: (op(q, k, v),),
        lambda q, k, v: (attention(q, k, v, sees),),
        operands(32, 32, 128),
    )


class Case(NamedTuple):
    """A fault: `call(faulty)`, and in words what brings it out, and what the control has."""

    call: Callable[[bool], Call]
    faulty: str
    control: str


CASES = {
    "grouped-heads": Case(
        grouped_heads,
        "gradients, two heads of queries share keys, and each has its own `k_start`",
        "one `k_start` for all heads",
    ),
    "causal-start": Case(causal_start, "causal, and `k_start=512`", "`k_start=0`"),
    "attention-epilogue": Case(
        epilogue, "`persistent=False`, and values of 128 beside queries of 64", "`persistent=True`"
    ),
}


def errors(call: Call, runs: int) -> Iterator[float]:
    """The largest error of each run, relative to the largest value."""
    expected = [np.asarray(x, np.float32) for x in jax.jit(call.reference)(*call.args)]
    run = jax.jit(call.tokamax)

    @jax.jit
    def error(results: Arrays) -> jax.Array:
        pairs = zip(results, expected, strict=True)
        worst = [jnp.abs(x.astype(jnp.float32) - y).max() / np.abs(y).max() for x, y in pairs]
        return jnp.max(jnp.stack(worst))

    for _ in range(runs):
        yield float(error(run(*call.args)))


def watched(command: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """What becomes of a process that prints the error of each run, None if that is not finite.

    A process that hangs is killed, and what it printed before is kept.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    outcome, text = "", ""
    try:
        said, failed = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        outcome, text = "hang", f"no answer in {timeout_s:g} s"
    else:
        if process.returncode:
            outcome, text = "killed", failed.strip().splitlines()[-1]
    errors = [error if math.isfinite(error) else None for error in map(float, said.split())]
    wrong = sum(error is None or error > TOLERANCE for error in errors)
    outcome = outcome or ("wrong" if wrong else "nothing")
    return dict(outcome=outcome, text=text, wrong_runs=wrong, errors=errors)


def one(name: str, faulty: str) -> None:
    """Runs a case many times, in the process that is watched."""
    for error in errors(CASES[name].call(bool(int(faulty))), RUNS):
        print(f"{error:.4g}", flush=True)


def measure(
    run: suite.Call, part: Part, problem: suite.Whole, made: Mapping[str, Case]
) -> Iterator[Fields]:
    """What becomes of all cases, each with its control."""
    del part, problem
    run.run["provenance"]["tokamax"] = metadata.version("tokamax")
    for name, case in made.items():
        found: dict[str, Any] = {}
        for version, what in (("control", case.control), ("faulty", case.faulty)):
            words = "--one", name, str(int(version == "faulty"))
            result = watched([sys.executable, "-m", "benchmarks.tokamax_attention", *words], HANG_S)
            found[version] = dict(what=what) | result
            run.say(f"{name}, {version}: {result['outcome']} {result['text']}")
        yield dict(contenders={name: found})


SUITE = Suite(
    "tokamax_attention",
    {
        "cases": Part(
            lambda problem, groups: CASES, measure, lambda problem, name, case: None, apart=True
        )
    },
    facts=dict(runs=RUNS, timeout_s=HANG_S, tolerance=TOLERANCE),
    commands={"--one": one},
    record="tokamax",
    shares=True,
)

if __name__ == "__main__":
    suite.main("tokamax_attention")
