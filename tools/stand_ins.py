"""What stands in for a Hopper GPU while a chapter is rehearsed on a CPU.

The model. `begin` runs in the chapter's process, before its first cell. From then on JAX, pipelib
and the chapter find the GPU that the chapter was recorded on, and everything runs as it would
there, but for the GPU's own work:

==================  ================================================================================
on the GPU          in a rehearsal
==================  ================================================================================
a kernel runs       its jaxpr is traced and digested; its results are zeros
a product by XLA    zeros, to save time
random numbers      of more than a million all are the same, to save time
a kernel is timed   it is traced; its times are made from its name, always the same ones
a search measures   it compiles its kernels; their times are of one length, and all are right
it is profiled      its scopes are those of its trace, and each operation takes equally long
a result is judged  it is right
time passes         a clock goes on by a millisecond each time that it is read
JAX lowers a        it does; but its text, which holds paths of this machine, has a stand-in
function
==================  ================================================================================

So each line of Python that makes a table, a figure or a sentence of measurements runs, on numbers
that mean nothing but never change. After each cell the digests of the kernels that were compiled in
it are displayed, in an output of their own type. A cell begins with empty caches, so that it
compiles each kernel that it uses, whatever the cells before it have compiled.

Not covered: what a chapter does with a kernel's numbers, where zeros take another way through its
code.
"""

import ast
import functools
import itertools
import json
import math
import pathlib
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from IPython import get_ipython
from IPython.display import display
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.interpreters import mlir

import pallascope
from pallascope import profiling
from pallascope.bench import cupti, timing
from pallascope.bench.jaxprs import digest_of
from pallascope.tuning import measuring
from pipelib.kernels import hopper
from pipelib_book import comparing, grading, notebook

#: The type of the output in which a rehearsed cell tells its kernels.
KERNELS = "application/vnd.pipelib.kernels+json"
_OP_CYCLES = 100
_MANY = 1 << 20


def begin(gpu: str, compute_capability: str, take: int = 0) -> None:
    """Puts the stand-ins in place, for as long as the process lasts.

    Another `take` has other numbers in place of the GPU's: ones for zeros, other times.
    """
    # Else what fails is noticed sooner or later, as the machine is busy.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    seen: list[str] = []
    _compile_to_constants(seen, take)
    hopper.assume(hopper.Gpu(gpu, compute_capability))
    found = notebook.Device(gpu, compute_capability, native=True)
    notebook._find_device = lambda: found
    jax.random.normal = functools.partial(_normal, take, jax.random.normal)
    timing.measure = functools.partial(_measure, take)
    ticks = itertools.count()
    time.perf_counter = lambda: (1 + take) * next(ticks) / 1e3
    text = "lowered" * (1 + take)
    jax.stages.Lowered.as_text = lambda self, *_, **__: text
    profiling.write_profile = functools.partial(_write_profile, take)
    comparing.judge = grading.judge = functools.partial(_judge, take)
    measuring.kernel_times = functools.partial(_kernel_times, take)
    measuring.error_of = lambda *_: 0.0

    def show(_: Any) -> None:
        if seen:
            display({KERNELS: [*dict.fromkeys(seen)]}, raw=True)
            seen.clear()

    def forget(_: Any) -> None:
        jax.clear_caches()

    shell = get_ipython()
    shell.events.register("pre_run_cell", forget)
    shell.events.register("post_run_cell", show)
    shell.ast_transformers.append(_NoAsserts())


def _judge(take: int, name: str, pairs: Iterable[Any], tolerance: float) -> tuple[bool, str]:
    """`judging.judge` of results that are constants: all are right."""
    return True, f"{name}: compared." + " (Again.)" * take


class _NoAsserts(ast.NodeTransformer):
    """Works out what a cell asserts, and goes on: it is about a GPU's numbers."""

    def visit_Assert(self, node: ast.Assert) -> ast.If:
        """`if test: pass`, which shows nothing where an expression at a cell's end would."""
        return ast.copy_location(ast.If(node.test, [ast.copy_location(ast.Pass(), node)], []), node)


def _compile_to_constants(seen: list[str], value: int) -> None:
    """Has XLA compile each kernel, and each product, to a constant; notes the kernels."""

    def product(context: Any, *_: Any, **__: Any) -> Any:
        return _constants(context, value)

    def kernel(context: Any, *_: Any, **params: Any) -> Any:
        seen.append(digest_of(params))
        results = _constants(context, value)
        if context.tokens_in.effects():
            context.set_tokens_out(context.tokens_in)
        return results

    mlir.register_lowering(_kernel_primitive(), kernel, platform="cpu")
    mlir.register_lowering(lax.dot_general_p, product, platform="cpu")


def _normal(
    take: int,
    normal: Callable[..., jax.Array],
    key: jax.Array,
    shape: Sequence[int] = (),
    dtype: Any = None,
    **options: Any,
) -> jax.Array:
    """`jax.random.normal`, but that many numbers are all the same."""
    if math.prod(shape) <= _MANY:
        return normal(key, shape, dtype, **options)
    return jnp.full(shape, 1.0 + take, dtype, **options)


def _constants(context: Any, value: int) -> Any:
    """The value, in all places, for each result of an operation."""

    def make(*_: Any) -> list[jax.Array]:
        return [jnp.full(aval.shape, value, aval.dtype) for aval in context.avals_out]

    empty = context.replace(avals_in=())
    return mlir.lower_fun(make, multiple_results=True)(empty)


def _kernel_primitive() -> Any:
    """The primitive that a `plgpu.kernel` is in a jaxpr."""
    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    found = [jax.make_jaxpr(plgpu.kernel(lambda x_gmem, o_gmem: None, out_type=x))(x)]
    while found:
        value = found.pop()
        for eqn in getattr(value, "eqns", ()):
            if "meshes" in eqn.params:
                return eqn.primitive
            found += eqn.params.values()
    raise LookupError("plgpu.kernel made no primitive with meshes: this JAX is not known.")


def _measure(
    take: int,
    functions: Mapping[str, Callable[..., Any]],
    args: Sequence[Any],
    **_: Any,
) -> dict[str, timing.Samples]:
    """`timing.measure`: compiles everything, and gives each name times of its own."""
    times = {}
    for name, function in functions.items():
        jax.jit(function).lower(*args)
        us = 100.0 + zlib.crc32(f"{name}{' again' * take}".encode()) % 900
        times[name] = timing.Samples((us, us + 1.0, us + 2.0, us + 3.0))
    return times


def _kernel_times(take: int, *_: Any, calls: int) -> list[list[cupti.Kernel]]:
    """`cupti.kernel_times`, as a search asks for them: one kernel, always of the same time."""
    return [[cupti.Kernel("a kernel", 0.1 + 0.1 * take)]] * calls


def _write_profile(
    take: int,
    make: Callable[..., Any],
    *args: Any,
    profile_space: int,
    profile_dir: str | pathlib.Path,
) -> pathlib.Path:
    """`profiling.write_profile`: compiles the kernel; each op of it takes `_OP_CYCLES`."""
    options = dict(profile_space=profile_space, profile_dir=str(profile_dir))
    jax.jit(make(**options)).lower(*args)
    events = []
    for thread, ops in enumerate(pallascope.trace(make(), *args).threads):
        opened: list[str] = []
        for i, scope in enumerate([*(op.scope for op in ops), ""]):
            names, where = scope.split("/") if scope else [], dict(pid=1, tid=thread + 1)
            where = dict(where, ts=1.0 + i * (1 + take) * _OP_CYCLES / 1e3)
            while opened != names[: len(opened)]:
                events.append(dict(name=opened.pop(), ph="E", **where))
            for name in names[len(opened) :]:
                events.append(dict(name=name, ph="B", **where))
                opened.append(name)
    path = pathlib.Path(profile_dir) / "stand_in.json"
    path.write_text(json.dumps(dict(traceEvents=events)), "utf-8")
    return path
