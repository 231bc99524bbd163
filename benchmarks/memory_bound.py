"""Measures how near `rms_norm` and `softmax` come to a copy of the same bytes, on one GPU.

    python -m benchmarks.memory_bound measure RECORD   on the GPU: writes the record, a JSON file

A record has the provenance and `rows`, one for each kernel, shape, dtype and variant, with the
GMEM `bytes` that it must move at least (x read, the result written; a weight is not counted) and
its raw samples. `benchmarks.bandwidth` works out and prints what follows.

Samples. `burst_us` are a kernel's own times by CUPTI, in bursts of 20 launches (5 of 1 GiB), which
go around all kernels of a shape in turn; so is a copy by the driver, `cuMemcpyDtoD`, timed by
events between the launches of two bursts, one before and one after the others. `sustained_us` are
of two seconds without a pause, over four inputs in turn, in windows of 0.1 s: the time on the clock
of a window over its launches, gaps between them included. Inputs are 128 MiB or more, so that none
is still in the L2 (50 MB) from the launch before; only those of a launch with almost nothing to do
are smaller.

Yardsticks. What a copy of as many bytes takes: by XLA's `x + 1` in bfloat16 and on the same bytes
as float32, by the driver, and by `launch_rows` of an operation that changes nothing, with the
result in its slot and in slots of its own. Of a shape other than the first, the copies are the
first one's, which are of as many bytes.

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
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib
from benchmarks import noting
from pipelib.bench import timing
from pipelib.bench.provenance import provenance
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

SEED, EPS = 0, 1e-6
BYTES, LARGE_BYTES = 128 << 20, 1 << 30
LENGTHS = 1024, 2048, 4096, 8192, 16384, 32768, 131072
MAIN, MAIN_DTYPE = (8192, 8192), "bfloat16"
ROUNDS, BURST, LARGE_BURST = 5, 20, 5
SUSTAINED_SECONDS, WINDOW_SECONDS, ROTATED = 2.0, 0.1, 4
SLOTS, STEP_BYTES = (1, 2, 3, 4, 6, 8), (2048, 4096, 8192, 16384, 32768)
SUSTAINED = (
    ("copy", "XLA, float32"), ("copy", "pipelib"), ("rms_norm", "pipelib"), ("rms_norm", "XLA"),
    ("softmax", "pipelib"), ("softmax", "XLA"),
)  # fmt: skip


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


class Case(NamedTuple):
    """A kernel to measure: `function(x, weight, words)`, `words` being x's bytes as float32."""

    kernel: str
    variant: str
    function: Callable[..., jax.Array]


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
            emit = functools.partial(
                pipelib.emit_pipeline_warp_specialized, memory_registers=24,
                num_compute_wgs=threads, wg_axis="thread",
            )  # fmt: skip
        emit(
            body, grid=(mine,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=plan.slots
        )(x, o)

    # Compute threads come with a memory thread.
    axis = (threads + 1, "thread") if threads else (None, None)
    return plgpu.kernel(
        kernel, out_type=jax.ShapeDtypeStruct(pieces.shape, x.dtype), grid=(plan.blocks,),
        grid_names=("block",), num_threads=axis[0], thread_name=axis[1],
        compiler_params=plgpu.CompilerParams(approx_math=operation.approximate),
    )(pieces).reshape(x.shape)  # fmt: skip


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
        pipelib.emit_pipeline(
            body, grid=(mine,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=slots
        )(x, o)

    # With more than half of an SM's SMEM, a block is alone there.
    alone = plgpu.SMEM((max(1, (116 << 10) - ring_bytes) // 128 + 1, 128), jnp.int8)
    return plgpu.kernel(
        kernel, out_type=jax.ShapeDtypeStruct(lines.shape, x.dtype), grid=(blocks,),
        grid_names=("block",), scratch_types=(alone,),
    )(lines).reshape(x.shape)  # fmt: skip


# What is measured.


def plan_of(shape: tuple[int, int], size: int = 2, slots=None, rows=None) -> RowPlan:
    """The kernels' own plan, without a weight."""
    plan = RowPlan.of(*shape, size, 0, slots, rows)
    assert plan is not None, shape
    return plan


def copies(shape: tuple[int, int]) -> list[Case]:
    """Copies of bfloat16, but for the driver's."""
    plan = plan_of(shape)
    return [
        Case("copy", "XLA, float32", lambda x, _, words: words + 1),
        Case("copy", "XLA, bfloat16", lambda x, *_: x + jnp.bfloat16(1)),
        Case("copy", "pipelib", lambda x, *_: launch_rows(Copy(), plan, x)),
        Case("copy", "pipelib, own slots", lambda x, *_: separate_slots(Copy(), plan, x)),
    ]


def kernels(weight: bool = False) -> list[Case]:
    """The kernels beside XLA's."""
    cases = [
        Case("rms_norm", "pipelib", lambda x, *_: rms_norm(x, eps=EPS)),
        Case("rms_norm", "XLA", lambda x, *_: memory_bound.rms_norm_reference(x, eps=EPS)),
        Case("softmax", "pipelib", lambda x, *_: softmax(x)),
        Case("softmax", "XLA", lambda x, *_: memory_bound.softmax_reference(x)),
    ]
    weighted = lambda function: lambda x, weight, _: function(x, weight, eps=EPS)
    if weight:
        for variant, function in (
            ("pipelib", rms_norm), ("XLA", memory_bound.rms_norm_reference)
        ):  # fmt: skip
            cases.append(Case("rms_norm", f"{variant}, weight", weighted(function)))
    return cases


def tried(shape: tuple[int, int]) -> Iterator[Case]:
    """What else was tried, for the first shape."""
    for name, operation in (
        ("rms_norm", RmsNorm(shape[1], EPS)), ("softmax", Softmax(approximate=True))
    ):  # fmt: skip

        def run(
            plan: RowPlan, operation: Any = operation,
            by: Callable[..., jax.Array] = launch_rows, **options: Any,
        ) -> Callable[..., jax.Array]:  # fmt: skip
            return lambda x, *_: by(operation, plan, x, **options)

        whole, two = plan_of(shape), plan_of(shape, slots=2)
        stay = whole._replace(blocks=6 * num_sms())
        yield Case(name, "2 rows a step", run(plan_of(shape, rows=2)))
        yield Case(name, "1 slot, blocks stay", run(stay))
        for slots in (2, 3, 4, 6):
            yield Case(name, f"{slots} slots, blocks stay", run(plan_of(shape, slots=slots)))
        for each in (2, 4, 8):
            plan = two._replace(blocks=shape[0] // each)
            yield Case(name, f"2 slots, {each} steps a block", run(plan))
            if each > 2:
                for adjacent in (False, True):
                    tail = ", adjacent" if adjacent else ""
                    yield Case(
                        name, f"own slots for results, 2 slots, {each} steps a block{tail}",
                        run(plan, by=separate_slots, adjacent=adjacent),
                    )  # fmt: skip
        stay = two._replace(blocks=3 * num_sms())
        yield Case(name, "own slots for results, 1 slot", run(whole, by=separate_slots))
        variant = "own slots for results, 2 slots, blocks stay"
        yield Case(name, variant, run(stay, by=separate_slots))
        variant += ", memory thread, 2 compute threads"
        plan = stay._replace(rows=2, blocks=num_sms())
        yield Case(name, variant, run(plan, by=separate_slots, threads=2))
    yield Case("softmax", "exact exponential", run(whole, Softmax(approximate=False)))
    exact = run(plan_of(shape, slots=2), Softmax(approximate=False))
    yield Case("softmax", "exact exponential, 2 slots, blocks stay", exact)


def others(shape: tuple[int, int], dtype: str) -> list[Case]:
    """Other numbers of rows in a step of short rows, or of slots in two passes."""
    size = jnp.dtype(dtype).itemsize
    plan, row_bytes = plan_of(shape, size), shape[1] * size
    option, values = "slots", [3, 6]
    if plan.chunks == 1:
        most = 32768 if row_bytes <= 8192 else 0
        option, values = "rows", [n for n in (1, 2, 4, 8, 16) if n * row_bytes <= most]
    return [
        Case(name, f"{option}={value}", lambda x, *_, f=function, o={option: value}: f(x, **o))
        for name, function in (("rms_norm", rms_norm), ("softmax", softmax))
        for value in values
        if value != getattr(plan, option)
    ]


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


def exact(case: Case, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """What a kernel should give, in float64."""
    if case.kernel == "softmax":
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return y * weight if case.variant.endswith("weight") else y


def error_of(case: Case, args: tuple[jax.Array, ...]) -> dict[str, Any]:
    """Of 64 rows, all over x: the largest relative error, and that of the norm."""
    x, weight, _ = args
    sample = np.unique(np.linspace(0, len(x) - 1, 64).astype(int))
    double = lambda array: np.asarray(array.astype(jnp.float32)).astype(np.float64)
    y = double(jax.jit(case.function)(*args)[sample])
    expected = exact(case, double(x[sample]), double(weight))
    error = np.abs(y - expected)
    return dict(
        rows=len(sample), largest_relative=float((error / np.abs(expected)).max()),
        of_norm=float(np.linalg.norm(error) / np.linalg.norm(expected)),
    )  # fmt: skip


def measure_shape(
    shape: tuple[int, int], dtype: str, cases: list[Case], driver: bool = False
) -> list[dict[str, Any]]:
    """The rows of a shape."""
    x = normal(shape, dtype)
    words = jnp.ones(x.nbytes // 4, jnp.float32).reshape(-1, 1024)
    args = x, normal((1, shape[1]), dtype, 1)[0], words
    functions = {f"{case.kernel}: {case.variant}": case.function for case in cases}
    burst = LARGE_BURST if x.nbytes >= LARGE_BYTES else BURST
    copy = DriverCopy([x]) if driver else None
    driver_us = copy.burst(50) if copy else []
    samples = timing.measure(functions, args, rounds=ROUNDS, burst=burst)
    row = dict(rows=shape[0], length=shape[1], dtype=dtype, bytes=2 * x.nbytes)
    found = []
    for case, (_, times) in zip(cases, samples.items(), strict=True):
        new: dict[str, Any] = dict(kernel=case.kernel, variant=case.variant, **row)
        new["burst_us"] = times.microseconds
        if case.kernel in ("rms_norm", "softmax"):
            new["error"] = error_of(case, args)
        found.append(new)
    if copy:
        driver_us += copy.burst(50)
        found.append(dict(kernel="copy", variant="driver", **row, burst_us=driver_us))
    return found


def measure_sustained(rows: list[dict[str, Any]], cases: list[Case]) -> None:
    """Adds the sustained times of the first shape's kernels to its rows."""
    inputs = [normal(MAIN, MAIN_DTYPE, i) for i in range(ROTATED)]
    words = jnp.ones((ROTATED, inputs[0].nbytes // 4096, 1024), jnp.float32)
    args = [(x, None, w) for x, w in zip(inputs, words)]
    functions = {(case.kernel, case.variant): jax.jit(case.function) for case in cases}
    found = {(row["kernel"], row["variant"]): row for row in rows}
    for name in SUSTAINED:
        launch = lambda i, function=functions[name]: function(*args[i % ROTATED])
        found[name]["sustained_us"] = sustained(launch, jax.block_until_ready)
    copy = DriverCopy(inputs)
    found["copy", "driver"]["sustained_us"] = sustained(copy.launch, lambda _: copy.wait())


def measure_curve() -> list[dict[str, Any]]:
    """The copy with one block on each SM, for slots and bytes of a step that fit its SMEM."""
    x, found = normal(MAIN, MAIN_DTYPE), []
    points = [
        dict(slots=slots, step_bytes=step_bytes, blocks_per_sm=1, bytes=2 * x.nbytes)
        for step_bytes in STEP_BYTES
        for slots in SLOTS
        if 2 * slots * step_bytes <= 200 << 10
    ]
    function = lambda point: functools.partial(ring_copy, point["slots"], point["step_bytes"])
    functions = {str(i): function(point) for i, point in enumerate(points)}
    samples = timing.measure(functions, (x,), rounds=2, burst=10)
    for point, times in zip(points, samples.values(), strict=True):
        found.append(dict(point, burst_us=times.microseconds))
    return found


def measure(path: pathlib.Path) -> None:
    """Writes the record, anew after each part of it, so that what was measured is not lost."""
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = dict(
        command="python -m benchmarks.memory_bound measure RECORD", provenance=provenance(),
        sms=num_sms(), seed=SEED, distribution="normal",
        bursts=dict(rounds=ROUNDS, launches=BURST, launches_of_1_gib=LARGE_BURST),
        sustained=dict(seconds=SUSTAINED_SECONDS, window_seconds=WINDOW_SECONDS, inputs=ROTATED),
        rows=rows,
    )  # fmt: skip

    def save(part: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        print(f"{time.monotonic() - started:6.1f} s: {part}", flush=True)

    main = copies(MAIN) + kernels(weight=True)
    rows += measure_shape(MAIN, MAIN_DTYPE, main + list(tried(MAIN)), driver=True)
    save("the first shape")
    measure_sustained(rows, main)
    save("sustained")
    large = LARGE_BYTES // 2 // MAIN[1], MAIN[1]
    rows += measure_shape(large, MAIN_DTYPE, copies(large) + kernels(), driver=True)
    rows += measure_shape((num_sms(), MAIN[1]), MAIN_DTYPE, kernels())
    save("large and small")
    record["curve"] = measure_curve()
    save("curve")
    for dtype, length in itertools.product(("bfloat16", "float32"), LENGTHS):
        shape = BYTES // length // jnp.dtype(dtype).itemsize, length
        if (shape, dtype) != (MAIN, MAIN_DTYPE):
            rows += measure_shape(shape, dtype, kernels() + others(shape, dtype))
            save(f"{shape} {dtype}")
    noting.note(path)


if __name__ == "__main__":
    if sys.argv[1:2] != ["measure"] or len(sys.argv) != 3:
        raise SystemExit("Usage: python -m benchmarks.memory_bound measure RECORD")
    measure(pathlib.Path(sys.argv[2]))
