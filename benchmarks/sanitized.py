"""Runs all kernels of the library under NVIDIA's compute-sanitizer, on a Hopper GPU.

    python -m benchmarks.sanitized                on the GPU: writes the record
    python -m benchmarks.sanitized run NAMES...   runs cases, as is done under a tool

The model. A *case* is one call of a kernel, of small arrays. For each tool, a few processes run the
cases, each some of them one after the other, and say when one begins, so that what the tool says
next is of this case. A case in which a process ends by itself has that as a problem. Only Pallas's
kernels are instrumented. JAX takes each array's memory from the driver alone
(`XLA_PYTHON_CLIENT_ALLOCATOR=platform`): of one large pool, memcheck would see only the end.

==========  ====================================================================================
memcheck    loads and stores that are misaligned or out of bounds of the memory they are in
synccheck   barriers that are used wrongly
==========  ====================================================================================

Both see what threads do, not what TMA does, whose bounds are in its descriptors. The *control* of
memcheck is a kernel that reads behind the end of an array, in a process of its own: where it is not
reported, nothing is to be believed.
"""

import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks import suite
from benchmarks.records import ROOT
from benchmarks.suite import Call, Fields, Part, Suite
from pipelib.kernels import (
    MatmulConfig,
    attention,
    decode_attention,
    matmul,
    ragged_dot,
    rms_norm,
    scaled_matmul,
    softmax,
)
from pipelib.kernels.attention import default_config
from pipelib_book import matmul_forms
from pipelib_book.attention_forms import RungConfig

TOOLS = "memcheck", "synccheck"
#: The name of the control; what is added to what a tool said, with the process's exit status, or
#: this word if its time was over.
CONTROL, _ENDED, _OUT_OF_TIME = "control", "the process ended: ", "out of time"
_BEGINS = re.compile(r"^case: (.+)$")
_PROBLEM = re.compile(r"^========= (Invalid|Misaligned|Barrier|Program hit|Out-of-range|Divergent)")

_HALF, _FLOAT8 = jnp.bfloat16, jnp.float8_e4m3fn


def numbers(*shape: int, dtype: Any = _HALF) -> jax.Array:
    """Normal random numbers, drawn on the host, so that no other kernel makes them."""
    drawn = np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)
    return jnp.asarray(drawn.astype(dtype))


def gradients(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """The gradients by all arguments, of the sum of the result."""

    def of(*arrays: jax.Array) -> Any:
        total = lambda *x: function(*x).astype(jnp.float32).sum()
        return jax.grad(total, tuple(range(len(arrays))))(*arrays)

    return of


def _products() -> Iterator[tuple[str, Callable[..., Any], tuple[jax.Array, ...]]]:
    """The cases of `matmul` and its relatives."""
    configs = {
        "ring": matmul_forms.RungConfig(64, 64, slots=3, compute_threads=1, form="ring"),
        "ring of two threads": matmul_forms.RungConfig(128, 64, slots=3, form="ring"),
        "specialized": MatmulConfig(128, 128, slots=3, form="specialized"),
        "persistent": matmul_forms.RungConfig(128, 128, slots=3, form="persistent", blocks=2),
        "chained": MatmulConfig(128, 128, slots=3, blocks=2),
        "cluster": MatmulConfig(128, 128, slots=3, cluster_m=2, blocks=2),
        "K in parts": MatmulConfig(128, 128, slots=3, form="specialized", splits=2),
        "transposed": MatmulConfig(128, 72, slots=3, swapped=True, epilogue_n=72),
    }
    for name, config in configs.items():
        yield (
            f"matmul, {name}",
            functools.partial(matmul, config=config),
            (
                numbers(256, 512),
                numbers(512, 256),
            ),
        )
    yield "matmul of rows", matmul, (numbers(77, 520), numbers(520, 264))
    finish = lambda acc, residual, bias: jnp.maximum(acc + bias, 0.0) + residual
    fused = lambda a, b, *operands: matmul(a, b, epilogue=finish, operands=operands)
    arrays = numbers(256, 128), numbers(128, 256), numbers(256, 256), numbers(256)
    yield "matmul, epilogue", fused, arrays
    yield "matmul, gradients", gradients(fused), arrays
    eight = numbers(256, 512, dtype=_FLOAT8), numbers(256, 512, dtype=_FLOAT8)
    yield "matmul, float8", functools.partial(matmul, transpose_b=True), eight
    scales = jnp.asarray(np.ones((256, 4), np.float32)), jnp.asarray(np.ones((2, 4), np.float32))
    yield "scaled_matmul", scaled_matmul, (*eight, *scales)
    few = eight[0][:40], eight[1], scales[0][:40], scales[1]
    yield "scaled_matmul, few rows", scaled_matmul, few
    grouped = numbers(300, 128), numbers(4, 128, 256)
    sizes = jnp.asarray(np.array([100, 0, 7, 180], np.int32))
    yield "ragged_dot", ragged_dot, (*grouped, sizes)
    yield "ragged_dot, gradients", gradients(lambda a, b: ragged_dot(a, b, sizes)), grouped


def _attentions() -> Iterator[tuple[str, Callable[..., Any], tuple[jax.Array, ...]]]:
    """The cases of attention."""
    heads = lambda size, queries=300, dtype=_HALF: (
        numbers(1, queries, 4, size, dtype=dtype),
        numbers(1, 392, 2, size, dtype=dtype),
        numbers(1, 392, 2, size, dtype=dtype),
    )
    causal = functools.partial(attention, causal=True)
    for schedule in ("plain", "overlap", "pingpong", "both", "optimistic"):
        config = RungConfig(schedule=schedule)
        yield f"attention, {schedule}", functools.partial(causal, config=config), heads(128)
    for size, tiles in ((64, 64), (80, 128), (256, 256)):
        given = functools.partial(attention, config=default_config(tiles))
        yield f"attention, heads of {size}", given, heads(size)
    yield "attention, float8", attention, heads(128, dtype=_FLOAT8)
    for deterministic in (False, True):
        config = default_config(128, deterministic)
        asked = functools.partial(causal, config=config, deterministic=deterministic)
        order = "in order" if deterministic else "in any order"
        yield f"attention, gradients {order}", gradients(asked), heads(128)
    lengths = jnp.asarray(np.array([10, 1000], np.int32))
    cache = numbers(2, 1024, 2, 128), numbers(2, 1024, 2, 128)
    yield "decode_attention", decode_attention, (numbers(2, 1, 8, 128), *cache, lengths)
    table = jnp.asarray(np.arange(8, dtype=np.int32).reshape(2, 4))
    paged = lambda q, k, v, lengths: decode_attention(q, k, v, lengths, page_table=table)
    pages = numbers(8, 256, 2, 128), numbers(8, 256, 2, 128)
    yield "decode_attention of pages", paged, (numbers(2, 4, 8, 128), *pages, lengths)


def cases() -> dict[str, tuple[Callable[..., Any], tuple[jax.Array, ...]]]:
    """All cases by name: a function, and its arguments."""
    found = {name: (function, args) for name, function, args in (*_products(), *_attentions())}
    found["rms_norm"] = rms_norm, (numbers(300, 1024), numbers(1024))
    found["rms_norm, gradients"] = gradients(rms_norm), found["rms_norm"][1]
    found["softmax"] = softmax, (numbers(300, 1024),)
    return found


def read_behind(x: jax.Array) -> jax.Array:
    """What lies far behind the end of an array: the control."""

    def kernel(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = plgpu.load(x_gmem.at[1 << 28], ()) + jnp.float32(0)

    return plgpu.kernel(kernel, out_type=jax.ShapeDtypeStruct((), jnp.float32))(x)


# Under a tool.


def run(*names: str) -> None:
    """Runs cases, and says which; "control" is one, too."""
    known = cases()
    for name in names or known:
        control = read_behind, (jnp.zeros(128, jnp.float32),)
        function, args = control if name == CONTROL else known[name]
        print(f"case: {name}", flush=True)
        jax.block_until_ready(jax.jit(function)(*args))
    print("case: end", flush=True)


def sanitizer() -> str:
    """Where compute-sanitizer is.

    Raises:
      FileNotFoundError: it is not on the path, nor in CUDA's folder.
    """
    cuda = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")
    found = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], str(cuda)]))
    if found is None:
        raise FileNotFoundError(
            "compute-sanitizer is neither on PATH nor in CUDA_HOME's bin, so no kernel can be run"
            " under it: install the CUDA toolkit."
        )
    return found


def output_of(
    command: Sequence[str], seconds: float, env: Mapping[str, str]
) -> tuple[str, int | None]:
    """What a process printed, and its exit status; None if its time was over, and it was killed."""
    with tempfile.TemporaryFile("w+") as said:
        # A group of its own: a tool has a child, which would go on without it.
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | env,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = None
        said.seek(0)
        return said.read(), code


def under(tool: str, names: Sequence[str], seconds: float) -> str:
    """What a tool says of cases, or of the control, until that time is over."""
    env = dict(XLA_PYTHON_CLIENT_ALLOCATOR="platform", PYTHONUNBUFFERED="1")
    command = [
        sanitizer(), "--tool", tool, "--kernel-regex", "kns=mosaic", "--print-limit", "100",
        sys.executable, "-m", "benchmarks.sanitized", "run", *names,
    ]  # fmt: skip
    said, code = output_of(command, seconds, env)
    return f"{said}\n{_ENDED}{_OUT_OF_TIME if code is None else code}\n"


def problems(said: str) -> dict[str, list[str]]:
    """What a tool said, line by line, of each case that came to an end.

    A case in which the process ended by itself has that as a problem; "end" is the last "case".
    """
    found: dict[str, list[str]] = {}
    case: list[str] = []
    for line in said.splitlines():
        if begins := _BEGINS.match(line):
            case = found.setdefault(begins[1], [])
        elif _PROBLEM.match(line):
            case.append(line.removeprefix("========= ").strip())
        elif line.startswith(_ENDED) and "end" not in found:
            if line != f"{_ENDED}{_OUT_OF_TIME}":
                case.append(line)
            elif found:
                found.popitem()
    found.pop("end", None)
    return found


def of_some(tool: str, names: Sequence[str], stop: float) -> dict[str, list[str]]:
    """What a tool says of cases until then; where a process ends early, another one goes on."""
    found: dict[str, list[str]] = {}
    while (missing := [x for x in names if x not in found]) and time.monotonic() < stop:
        more = problems(under(tool, missing, max(stop - time.monotonic(), 0)))
        if not more:
            break
        found |= more
    return found


def of_all(tool: str, names: Sequence[str], jobs: int, seconds: float) -> dict[str, list[str]]:
    """What a tool says of cases, by processes beside each other; those that time was enough for."""
    shares = [names[first::jobs] for first in range(min(jobs, len(names)))]
    stop = time.monotonic() + seconds
    with ThreadPoolExecutor(jobs) as pool:
        said = pool.map(lambda share: of_some(tool, share, stop), shares)
        return {name: lines for part in said for name, lines in part.items()}


def measure(call: Call, part: Part, problem: Any, made: Mapping[str, Any]) -> Iterator[Fields]:
    """What each tool says of each case, and of the control."""
    del part, problem
    found: dict[str, dict[str, list[str]]] = {name: {} for name in made}
    for tool in TOOLS:
        for name, lines in of_all(tool, [*made], call.options.jobs, call.options.tool).items():
            found[name][tool] = lines
        said = [name for name in found if tool in found[name]]
        wrong = sum(len(found[name][tool]) for name in said)
        call.say(f"{tool}: {len(said)} of {len(made)} cases, {wrong} problems")
    # An invalid read can end the process, so there may be no end of the case.
    control = under("memcheck", [CONTROL], call.options.tool).splitlines()
    whole = {name: of for name, of in found.items() if of.keys() == {*TOOLS}}
    seen = [line for line in control if _PROBLEM.match(line)]
    yield dict(control=seen[:1], contenders=whole)


SUITE = Suite(
    "sanitized",
    {
        "cases": Part(
            lambda problem, groups: cases(), measure, lambda problem, name, case: case, apart=True
        )
    },
    options={"--tool": dict(type=float, default=900, help="seconds of a tool; then --resume")},
    commands={"run": run},
    shares=True,
)

if __name__ == "__main__":
    suite.main("sanitized")
