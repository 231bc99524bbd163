"""Measures how near `rms_norm` and `softmax` come to a copy of the same bytes, on one GPU.

    python -m benchmarks.memory_bound shapes    on the GPU: each shape by all kernels
    python -m benchmarks.memory_bound curve     on the GPU: copies over slots and bytes of a step
    python -m benchmarks.memory_bound table     prints the record

A contender is a kernel and a variant of it, as its name has them. It must move at least `bytes` of
GMEM: x read, the result written; a weight is not counted.

Samples. Bursts are of a kernel's own times by CUPTI, 20 launches each (5 of 1 GiB), and go around
all kernels of a shape in turn. A copy by the driver, `cuMemcpyDtoD`, is timed by events between the
launches of two bursts, one before and one after the others. Sustained times are of two seconds
without a pause, over four inputs in turn, in windows of 0.1 s: the time on the clock
of a window over its launches, gaps between them included. Inputs are 128 MiB or more, so that none
is still in the L2 (50 MB) from the launch before; only those of a launch with almost nothing to do
are smaller.

Yardsticks. What a copy of as many bytes takes: by XLA's `x + 1` in bfloat16 and on the same bytes
as float32, by the driver, and by `launch_rows` of an operation that changes nothing, with the
result in its slot and in slots of its own. Of a shape other than the first, the copies are the
first one's, which are of as many bytes. quack's softmax runs where its package is (`peers`).

The variants that were tried and left: blocks that stay with 2 to 6 slots or take several steps, two
rows a step, exponentials exact in float32, results in slots of their own, and those with a memory
thread and two compute threads. The last is wrong, as its errors say: the threads' reductions use
the same SMEM at the same time (`memory_bound` says why). Of other shapes, other numbers of rows in
a step, or of slots if there are two passes. The curve: a copy in which one block stays on each SM,
for slots and steps of several sizes.
"""

import ctypes
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from benchmarks import peers, suite
from benchmarks.records import Group, rounded
from benchmarks.suite import SEED, Call, Fields, Part, Suite, Traced
from benchmarks.turns import Arrays, Contender
from pallascope.bench import timing
from pipelib.kernels import memory_bound
from pipelib.kernels.hopper import num_sms
from pipelib.kernels.memory_bound import (
    RmsNorm,
    RowPlan,
    Softmax,
    launch_rows,
    rms_norm,
    softmax,
)

EPS = 1e-6
BYTES, LARGE_BYTES = 128 << 20, 1 << 30
LENGTHS = 1024, 2048, 4096, 8192, 16384, 32768, 131072
MAIN, MAIN_DTYPE = (8192, 8192), "bfloat16"
ROUNDS, BURST, LARGE_BURST, SMS = 5, 20, 5, 132
SUSTAINED_SECONDS, WINDOW_SECONDS, ROTATED = 2.0, 0.1, 4
SLOTS, STEP_BYTES = (1, 2, 3, 4, 6, 8), (2048, 4096, 8192, 16384, 32768)
#: What is timed for seconds, too.
SUSTAINED = (
    "copy, XLA, float32",
    "copy, pipelib",
    *(f"{kernel}, {by}" for kernel in ("rms_norm", "softmax") for by in ("pipelib", "XLA")),
)
#: The copy that the driver makes, and what the name of quack's kernel ends in.
DRIVER, QUACK = "copy, driver", "quack"


class Problem(NamedTuple):
    """An array of rows."""

    rows: int
    length: int
    dtype: str = MAIN_DTYPE

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the array."""
        return self.rows, self.length

    @property
    def x(self) -> jax.ShapeDtypeStruct:
        """The array."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    @property
    def bytes(self) -> int:
        """The bytes that a kernel reads and writes at least."""
        return 2 * self.rows * self.length * self.x.dtype.itemsize

    @property
    def args(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """x, a weight, and x's bytes as float32."""
        words = jax.ShapeDtypeStruct((self.bytes // 8 // 1024, 1024), jnp.float32)
        return self.x, jax.ShapeDtypeStruct(self.shape[1:], self.dtype), words

    def __str__(self) -> str:
        return f"{self.rows} x {self.length} {self.dtype}"


FIRST, LARGE = Problem(*MAIN), Problem(LARGE_BYTES // 2 // MAIN[1], MAIN[1])
#: All shapes: 1 GiB and almost nothing beside the first one's bytes, which all others have.
PROBLEMS = (
    FIRST,
    LARGE,
    Problem(SMS, MAIN[1]),
    *(
        Problem(BYTES // length // jnp.dtype(dtype).itemsize, length, dtype)
        for dtype, length in itertools.product(("bfloat16", "float32"), LENGTHS)
        if (length, dtype) != (MAIN[1], MAIN_DTYPE)
    ),
)


class Copy(NamedTuple):
    """An operation of `launch_rows` with no statistics, which changes nothing."""

    fill, approximate = 0.0, False

    def of(self, x: jax.Array) -> tuple:
        """The statistics of a row."""
        del x
        return ()

    def apply(self, x: jax.Array, statistics: tuple, weight: None) -> jax.Array:
        """The result for a row."""
        del statistics, weight
        return x


def separate_slots(
    operation: Any, plan: RowPlan, x: jax.Array, adjacent: bool = False, threads: int = 0
) -> jax.Array:
    """`launch_rows`, but with slots for the results, which the emitter stores.

    The steps of a block are `adjacent`, or as many apart as there are blocks; `threads` compute
    threads have a memory thread beside them, and share the rows of a step.
    """
    pieces = x.reshape(len(x), plan.pieces, plan.piece)
    steps = len(x) // plan.rows
    each, left = divmod(steps, plan.blocks)

    def kernel(x, o):
        first = lax.axis_index("block")
        step = lambda i: first * each + i if adjacent else first + i * plan.blocks
        share = plan.rows // (threads or 1)
        mine = each + (first < left) if left else each

        def body(_, x_smem, o_smem):
            top = lax.axis_index("thread") * share if threads else 0
            for r in range(share):
                row = x_smem.at[top + r][...].astype(jnp.float32)
                result = operation.apply(row, operation.of(row), None)
                o_smem[top + r] = result.astype(o.dtype)

        zero = first * 0
        spec = plgpu.BlockSpec((plan.rows, plan.block, plan.piece), lambda i: (step(i), zero, 0))
        emit = pipelib.emit_pipeline
        if threads:
            options = dict(memory_registers=24, num_compute_wgs=threads, wg_axis="thread")
            emit = functools.partial(pipelib.emit_pipeline_warp_specialized, **options)
        specs: dict[str, Any] = dict(in_specs=[spec], out_specs=[spec], grid=(mine,))
        emit(body, **specs, max_concurrent_steps=plan.slots)(x, o)

    # Compute threads come with a memory thread.
    axis = (threads + 1, "thread") if threads else (None, None)
    launch: dict[str, Any] = dict(grid=(plan.blocks,), grid_names=("block",), num_threads=axis[0])
    params = plgpu.CompilerParams(approx_math=operation.approximate)
    out = jax.ShapeDtypeStruct(pieces.shape, x.dtype)
    launched = plgpu.kernel(
        kernel, out_type=out, thread_name=axis[1], compiler_params=params, **launch
    )
    return launched(pieces).reshape(x.shape)


def ring_copy(slots: int, step_bytes: int, x: jax.Array) -> jax.Array:
    """A copy in which one block stays on each SM, with a ring of slots in and one out."""
    lines = x.reshape(-1, 256)
    blocks, block = num_sms(), (step_bytes // (256 * x.dtype.itemsize), 256)
    steps, ring_bytes = len(lines) // block[0], 2 * slots * step_bytes

    def kernel(x, o, _):
        first = lax.axis_index("block")

        def body(_, x_smem, o_smem):
            o_smem[...] = x_smem[...]

        spec = plgpu.BlockSpec(block, lambda i: (first + i * blocks, first * 0))
        mine = lax.div(steps - 1 - first, jnp.int32(blocks)) + 1
        specs: dict[str, Any] = dict(in_specs=[spec], out_specs=[spec], grid=(mine,))
        pipelib.emit_pipeline(body, **specs, max_concurrent_steps=slots)(x, o)

    # With more than half of an SM's SMEM, a block is alone there.
    alone = plgpu.SMEM((max(1, (116 << 10) - ring_bytes) // 128 + 1, 128), jnp.int8)
    launch: dict[str, Any] = dict(grid=(blocks,), grid_names=("block",), scratch_types=(alone,))
    out = jax.ShapeDtypeStruct(lines.shape, x.dtype)
    return plgpu.kernel(kernel, out_type=out, **launch)(lines).reshape(x.shape)


# What is measured.


def plan_of(shape: tuple[int, int], size: int = 2, slots=None, rows=None) -> RowPlan:
    """The kernels' own plan, without a weight."""
    plan = RowPlan.of(*shape, size, 0, slots, rows)
    assert plan is not None, shape
    return plan


def _run(
    operation: Any, plan: RowPlan, by: Callable[..., jax.Array] = launch_rows, **options: Any
) -> Contender:
    return lambda x, *_: by(operation, plan, x, **options)


def copies(shape: tuple[int, int]) -> dict[str, Contender]:
    """Copies of bfloat16, but for the driver's."""
    plan = plan_of(shape)
    return {
        "copy, XLA, float32": lambda x, _, words: words + 1,
        "copy, XLA, bfloat16": lambda x, *_: x + jnp.bfloat16(1),
        "copy, pipelib": _run(Copy(), plan),
        "copy, pipelib, own slots": _run(Copy(), plan, separate_slots),
    }


def kernels(weight: bool = False) -> dict[str, Contender]:
    """The kernels beside XLA's."""
    found: dict[str, Contender] = {
        "rms_norm, pipelib": lambda x, *_: rms_norm(x, eps=EPS),
        "rms_norm, XLA": lambda x, *_: memory_bound.rms_norm_reference(x, eps=EPS),
        "softmax, pipelib": lambda x, *_: softmax(x),
        "softmax, XLA": lambda x, *_: memory_bound.softmax_reference(x),
    }
    weighted = lambda function: lambda x, weight, _: function(x, weight, eps=EPS)
    if weight:
        found["rms_norm, pipelib, weight"] = weighted(rms_norm)
        found["rms_norm, XLA, weight"] = weighted(memory_bound.rms_norm_reference)
    if peers.has(QUACK):
        found[f"softmax, {QUACK}"] = lambda x, *_: peers.quack_softmax(x)
    return found


def tried(shape: tuple[int, int]) -> dict[str, Contender]:
    """What else was tried, for the first shape."""
    whole, two = plan_of(shape), plan_of(shape, slots=2)
    stay = two._replace(blocks=3 * num_sms())
    of_threads = stay._replace(rows=2, blocks=num_sms())
    plans = {
        "2 rows a step": plan_of(shape, rows=2),
        "1 slot, blocks stay": whole._replace(blocks=6 * num_sms()),
        **{f"{n} slots, blocks stay": plan_of(shape, slots=n) for n in (2, 3, 4, 6)},
    }
    apart: dict[str, tuple[RowPlan, dict[str, Any]]] = {
        "1 slot": (whole, {}),
        "2 slots, blocks stay": (stay, {}),
        "2 slots, blocks stay, memory thread, 2 compute threads": (of_threads, dict(threads=2)),
    }
    for each in (2, 4, 8):
        words, plan = f"2 slots, {each} steps a block", two._replace(blocks=shape[0] // each)
        plans[words] = plan
        if each > 2:
            apart |= {words: (plan, {}), f"{words}, adjacent": (plan, dict(adjacent=True))}
    found = {}
    for name, operation in (("rms_norm", RmsNorm(shape[1], EPS)), ("softmax", Softmax(True))):
        for variant, plan in plans.items():
            found[f"{name}, {variant}"] = _run(operation, plan)
        for variant, (plan, options) in apart.items():
            made = _run(operation, plan, separate_slots, **options)
            found[f"{name}, own slots for results, {variant}"] = made
    exact = Softmax(approximate=False)
    found["softmax, exact exponential"] = _run(exact, whole)
    found["softmax, exact exponential, 2 slots, blocks stay"] = _run(exact, two)
    return found


def others(shape: tuple[int, int], dtype: str) -> dict[str, Contender]:
    """Other numbers of rows in a step of short rows, or of slots in two passes."""
    size = jnp.dtype(dtype).itemsize
    plan, row_bytes = plan_of(shape, size), shape[1] * size
    option, values = "slots", [3, 6]
    if plan.chunks == 1:
        most = 32768 if row_bytes <= 8192 else 0
        option, values = "rows", [n for n in (1, 2, 4, 8, 16) if n * row_bytes <= most]
    return {
        f"{name}, {option}={value}": lambda x, *_, f=function, o={option: value}: f(x, **o)
        for name, function in (("rms_norm", rms_norm), ("softmax", softmax))
        for value in values
        if value != getattr(plan, option)
    }


def contenders(problem: Problem, groups: Sequence[Group]) -> dict[str, Contender | None]:
    """All that is measured of a shape, as functions of `problem.args`; None: the driver's copy."""
    del groups
    shape, found = problem.shape, dict[str, Contender | None]()
    if problem in (FIRST, LARGE):
        found |= copies(shape) | kernels(weight=problem == FIRST)
        return found | (tried(shape) if problem == FIRST else {}) | {DRIVER: None}
    return found | kernels() | ({} if problem.rows == SMS else others(shape, problem.dtype))


def points(problem: suite.Whole, groups: Sequence[Group]) -> dict[str, tuple[int, int]]:
    """The curve's slots and bytes of a step, as far as an SM's SMEM holds them."""
    del problem, groups
    return {
        f"{slots} slots of {step_bytes} bytes": (slots, step_bytes)
        for step_bytes, slots in itertools.product(STEP_BYTES, SLOTS)
        if 2 * slots * step_bytes <= 200 << 10
    }


# Measuring.


class DriverCopy:
    """The driver's copy of arrays on the GPU, in turn, on a stream of its own."""

    def __init__(self, sources: list[jax.Array]):
        self.sources, self.stream = sources, ctypes.c_void_p()
        self.targets = [jax.block_until_ready(jnp.zeros_like(source)) for source in sources]
        self.cuda = ctypes.CDLL("libcuda.so.1")
        (gpu,), device, context = sources[0].devices(), ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), gpu.local_hardware_id)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)  # JAX's own
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreate", ctypes.byref(self.stream), 1)  # waits for no other stream

    def _call(self, name: str, *args: Any) -> None:
        if error := getattr(self.cuda, name)(*args):
            raise RuntimeError(f"{name} returned the error {error} of CUDA.")

    def launch(self, index: int) -> None:
        """Starts one copy."""
        index %= len(self.sources)
        source, target = self.sources[index], self.targets[index]
        addresses = (ctypes.c_uint64(a.unsafe_buffer_pointer()) for a in (target, source))
        self._call("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(source.nbytes), self.stream)

    def wait(self) -> None:
        """Returns once all copies are done."""
        self._call("cuStreamSynchronize", self.stream)

    def burst(self, count: int) -> list[float]:
        """The microseconds of each of so many copies, after one more."""
        events = [ctypes.c_void_p() for _ in range(count + 1)]
        for i, event in enumerate(events):
            self._call("cuEventCreate", ctypes.byref(event), 0)
            self.launch(i)
            self._call("cuEventRecord", event, self.stream)
        self.wait()
        times, milliseconds = [], ctypes.c_float()
        for before, after in itertools.pairwise(events):
            self._call("cuEventElapsedTime", ctypes.byref(milliseconds), before, after)
            times.append(1e3 * milliseconds.value)
        return times


def sustained(launch: Callable[[int], Any], wait: Callable[[Any], Any]) -> list[float]:
    """Microseconds a launch, in windows of `WINDOW_SECONDS`."""

    def window(count: int) -> float:
        started = time.perf_counter()
        last = None
        for i in range(count):
            last = launch(i)
        wait(last)
        return time.perf_counter() - started

    window(ROTATED)  # compiles
    count = max(1, round(200 * WINDOW_SECONDS / window(200)))
    windows = round(SUSTAINED_SECONDS / WINDOW_SECONDS)
    return [1e6 * window(count) / count for _ in range(windows)]


def normal(shape: tuple[int, int], dtype: str, index: int = 0) -> jax.Array:
    """Normal random data."""
    key = jax.random.fold_in(jax.random.key(SEED), index)
    return jax.random.normal(key, shape, jnp.float32).astype(dtype)


def exact(name: str, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """What a kernel should give, in float64."""
    if name.startswith("softmax"):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return y * weight if name.endswith("weight") else y


def error_of(name: str, function: Contender, args: Arrays) -> dict[str, Any]:
    """Of 64 rows, all over x: the largest relative error, and that of the norm."""
    x, weight, _ = args
    sample = np.unique(np.linspace(0, len(x) - 1, 64).astype(int))
    double = lambda array: np.asarray(array.astype(jnp.float32)).astype(np.float64)
    y = double(jax.jit(function)(*args)[sample])
    expected = exact(name, double(x[sample]), double(weight))
    error = np.abs(y - expected)
    return dict(
        rows=len(sample),
        largest_relative=float((error / np.abs(expected)).max()),
        of_norm=float(np.linalg.norm(error) / np.linalg.norm(expected)),
    )


def _error_or_reason(name: str, function: Contender, args: Arrays) -> dict[str, Any]:
    """What the record has of a kernel before its times; nothing of a copy."""
    if name.startswith("copy"):
        return {}
    try:
        return dict(error=error_of(name, function, args))
    except Exception as refused:  # of whatever kind others' kernels refuse by
        return dict(reason=str(refused).partition("\n")[0])


def measure(
    call: Call, part: Part, problem: Problem, made: Mapping[str, Contender | None]
) -> Iterator[Fields]:
    """The times of a shape's kernels, and the errors of all but copies."""
    x = normal(problem.shape, problem.dtype)
    words = jnp.ones(x.nbytes // 4, jnp.float32).reshape(-1, 1024)
    args = x, normal((1, problem.length), problem.dtype, 1)[0], words
    found = {name: _error_or_reason(name, each, args) for name, each in made.items() if each}
    functions = {name: f for name, f in made.items() if f and "reason" not in found[name]}
    burst = LARGE_BURST if x.nbytes >= LARGE_BYTES else part.launches
    copy = DriverCopy([x]) if DRIVER in made else None
    driver_us = copy.burst(50) if copy else []
    samples = timing.measure(functions, args, rounds=part.rounds, burst=burst)
    for name, times in samples.items():
        found[name]["burst_microseconds"] = times.microseconds
    if copy:
        found[DRIVER] = dict(burst_microseconds=driver_us + copy.burst(50))
    yield dict(contenders=found)
    if problem == FIRST:
        for name, us in sustained_times(functions):
            found[name]["sustained_microseconds"] = rounded(us)
        yield dict(contenders=found)


def sustained_times(functions: Mapping[str, Contender]) -> Iterator[tuple[str, list[float]]]:
    """The sustained times of some of the first shape's kernels, over inputs in turn."""
    inputs = [normal(MAIN, MAIN_DTYPE, i) for i in range(ROTATED)]
    words = jnp.ones((ROTATED, inputs[0].nbytes // 4096, 1024), jnp.float32)
    args = [(x, None, w) for x, w in zip(inputs, words)]
    for name in SUSTAINED:
        function = jax.jit(functions[name])
        launch = lambda i, function=function: function(*args[i % ROTATED])
        yield name, sustained(launch, jax.block_until_ready)
    copy = DriverCopy(inputs)
    yield DRIVER, sustained(copy.launch, lambda _: copy.wait())


def _ring(point: tuple[int, int]) -> Callable[..., jax.Array]:
    return functools.partial(ring_copy, *point)


def measure_curve(
    call: Call, part: Part, problem: suite.Whole, made: Mapping[str, tuple[int, int]]
) -> Iterator[Fields]:
    """The copy with one block on each SM."""
    del call, problem
    x = normal(MAIN, MAIN_DTYPE)
    functions = {name: _ring(point) for name, point in made.items()}
    samples = timing.measure(functions, (x,), rounds=part.rounds, burst=part.launches)
    found: dict[str, Any] = {}
    for name, (slots, step_bytes) in made.items():
        found[name] = dict(slots=slots, step_bytes=step_bytes, blocks_per_sm=1, bytes=2 * x.nbytes)
        found[name]["burst_microseconds"] = samples[name].microseconds
    yield dict(contenders=found)


def _traced(problem: Problem, name: str, contender: Contender | None) -> Traced:
    return contender and (None if name.endswith(QUACK) else (contender, problem.args))


SUITE = Suite(
    "memory_bound",
    {
        "shapes": Part(
            contenders, measure, _traced, PROBLEMS, Problem, rounds=ROUNDS, launches=BURST
        ),
        "curve": Part(
            points,
            measure_curve,
            lambda problem, name, point: (_ring(point), (FIRST.x,)),
            rounds=2,
            launches=10,
        ),
    },
    (suite.tb_per_second, suite.beside("{:.3f} of the fastest copy", "copy")),
    dict(seed=SEED, distribution="normal"),
)

if __name__ == "__main__":
    suite.main("memory_bound")
