"""How fast kernels are traced, checked and simulated, for products of more and more steps.

`python -m benchmarks.schedule` measures on one core, in some minutes, and writes the record
`results/cpu/schedule.json`; no GPU is needed. A sample of `first_seconds` is one call with JAX's
caches cleared, from the function to the program; one of `again_seconds` a call after that, where
JAX remembers jaxprs. They are seconds of the core, which do not pass while others have it;
`first_wall_seconds` and `again_wall_seconds` are those on the clock. `check_seconds` and
`simulate_seconds` are of the core too, of the program. `peak_bytes` is what Python's tracemalloc
saw at most in one more trace, `kept_bytes` what it saw after it, the program. `move_seconds` are
those on the clock that a slider of `pallascope.explore` takes to trace, check, simulate and draw
anew. `python -m benchmarks.schedule simulate` measures these and `simulate_seconds` alone, and
leaves the rest of the record, which holds as long as tracing and checking do (`digests`).

Cores differ by more than a factor of two, and so does one core by what its neighbours do. So a
fixed piece of plain Python, the `yardstick`, is timed beside each sample: `first_yardsticks` beside
`first_seconds`, and so on. Goals are for a core on which it takes `YARDSTICK` seconds.

`large` has what would grow with the square of something without care: a million ops, a loop of
3,000 tiles with an emitter in it, a cluster of 16 blocks beside one block. Each sample is taken in
a process of its own. `traced_bytes` and `checked_bytes` are the most memory that the process had by
then, Python and JAX included.
"""

import collections
import functools
import gc
import json
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import pallascope
from benchmarks import schedule_kernels as kernels
from benchmarks.schedule_kernels import TILE_K, TILE_M, TILE_N, matmul
from pallascope import Program
from pallascope.bench.provenance import code_digest, provenance
from pallascope.report import FindingKind

STEPS, SAMPLES = (1125, 2250, 4500, 9000, 18000), 5
RECORD = pathlib.Path(__file__).parent / "results" / "cpu" / "schedule.json"
MILLION, TILES, CLUSTER_STEPS = 91_000, 3_000, 512  # steps for a million ops, tiles, steps
#: Seconds that `yardstick` takes on the core that goals are for.
YARDSTICK = 0.1


class _Access(NamedTuple):
    """What the yardstick makes many of."""

    key: tuple[int, int]
    number: int


def yardstick() -> float:
    """Seconds of the core for small objects, dictionaries and calls, as a trace and a check are."""
    start, last = time.process_time(), dict[tuple[int, int], _Access]()
    for number in range(150_000):
        access = _Access((number % 1000, number & 7), number)
        before = last.get(access.key)
        if before is None or before.number < access.number:
            last[access.key] = access
    return time.process_time() - start


def _product(steps: int, cluster: tuple[int, int] = (1, 1)) -> Program:
    """The program of one tile for each block, this many steps long."""
    sizes = (TILE_M * cluster[0], TILE_K * steps), (TILE_K * steps, TILE_N * cluster[1])
    args = (jax.ShapeDtypeStruct(shape, jnp.float16) for shape in sizes)
    return pallascope.trace(functools.partial(matmul, cluster=cluster), *args)


def _tiles(count: int, is_specialized: bool) -> Program:
    """The program of a loop over this many tiles."""
    x = jax.ShapeDtypeStruct(
        (count * kernels.TILE_STEPS * kernels.ROWS, kernels.LANES), jnp.float32
    )
    return pallascope.trace(functools.partial(kernels.tiles, is_specialized=is_specialized), x)


# What is traced and checked in a process of its own, by its name in the record. The functions take
# how often the kernel's loop goes round, and stand beside the number that is measured.
LARGE: dict[str, tuple[Callable[[int], Program], int]] = {
    "a million ops": (_product, MILLION),
    "3,000 tiles, emit_pipeline": (functools.partial(_tiles, is_specialized=False), TILES),
    "3,000 tiles, emit_pipeline_warp_specialized": (
        functools.partial(_tiles, is_specialized=True),
        TILES,
    ),
    "one block": (_product, 16 * CLUSTER_STEPS),
    "a cluster of 4 x 4": (functools.partial(_product, cluster=(4, 4)), CLUSTER_STEPS),
    "a cluster of 16 x 1": (functools.partial(_product, cluster=(16, 1)), CLUSTER_STEPS),
}


def sample(name: str) -> dict[str, Any]:
    """One sample of a large program, taken in this process: seconds of the core, bytes at most."""
    make, count = LARGE[name]
    sticks = [yardstick()]
    start = time.process_time()
    program = make(count)
    trace_seconds, traced_bytes = time.process_time() - start, _peak_bytes()
    sticks.append(yardstick())
    start = time.process_time()
    report = pallascope.check(program)
    check_seconds = time.process_time() - start
    sticks.append(yardstick())
    # Whatever is too large is not timed less for it.
    assert all(finding.kind is FindingKind.RESOURCE for finding in report), str(report)
    return dict(
        ops=sum(map(len, program.threads)),
        trace_seconds=trace_seconds,
        trace_yardsticks=(sticks[0] + sticks[1]) / 2,
        check_seconds=check_seconds,
        check_yardsticks=(sticks[1] + sticks[2]) / 2,
        traced_bytes=traced_bytes,
        checked_bytes=_peak_bytes(),
    )


def _peak_bytes() -> int:
    """The most memory that this process has had, with Python and JAX."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def measure_large() -> list[dict[str, Any]]:
    """The records of the large programs; prints their rows.

    To be called first: a process counts what its parent had when it was started as its own.
    """
    rows: list[dict[str, Any]] = []
    for name in LARGE:
        command = [sys.executable, "-m", "benchmarks.schedule", name]
        taken = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(SAMPLES)
        ]
        (ops,) = {one.pop("ops") for one in taken}
        rows.append(dict(name=name, ops=ops) | {key: [x[key] for x in taken] for key in taken[0]})
        middle = {key: statistics.median(rows[-1][key]) for key in taken[0]}
        each = 1e6 * middle["check_seconds"] / ops
        print(
            f"{name:45} {ops:9,} ops | trace {middle['trace_seconds']:6.2f} s | check"
            f" {middle['check_seconds']:6.2f} s, {each:5.1f} us/op"
            f" | {middle['checked_bytes'] / 1e6:5.0f} MB at most"
        )
    return rows


def measure(name: str, m: int, n: int, k: int) -> dict[str, Any]:
    """The record of one size; prints its row."""
    a, b = (jax.ShapeDtypeStruct(shape, jnp.float16) for shape in ((m, k), (k, n)))
    samples: dict[str, list[float]] = collections.defaultdict(list)
    for _ in range(SAMPLES):
        jax.clear_caches()
        for which in ("first", "again"):
            samples[f"{which}_yardsticks"].append(yardstick())
            gc.collect()
            wall, core = time.perf_counter(), time.process_time()
            pallascope.trace(matmul, a, b)
            samples[f"{which}_seconds"].append(time.process_time() - core)
            samples[f"{which}_wall_seconds"].append(time.perf_counter() - wall)
    gc.collect()
    tracemalloc.start()
    program = pallascope.trace(matmul, a, b)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    ops = sum(map(len, program.threads))
    row = f"{name:18} {ops:8,} ops"
    for which in ("first", "again"):
        seconds = statistics.median(samples[f"{which}_seconds"])
        row += f" | {which} {seconds:7.3f} s {ops / seconds:9,.0f} ops/s"
    samples |= _timed("check", pallascope.check, program) | _simulated(program)
    for which in ("check", "simulate"):
        row += f" | {which} {statistics.median(samples[f'{which}_seconds']):6.3f} s"
    print(f"{row} | {peak / ops:6,.0f} bytes/op at most")
    return dict(name=name, m=m, n=n, k=k, ops=ops, **samples, peak_bytes=peak, kept_bytes=kept)


def _timed(
    which: str, function: Callable[[Program], object], program: Program
) -> dict[str, list[float]]:
    """The samples of a function of a program."""
    samples: dict[str, list[float]] = collections.defaultdict(list)
    for _ in range(SAMPLES):
        samples[f"{which}_yardsticks"].append(yardstick())
        core = time.process_time()
        function(program)
        samples[f"{which}_seconds"].append(time.process_time() - core)
    return dict(samples)


def _simulated(program: Program) -> dict[str, list[float]]:
    return _timed("simulate", lambda made: pallascope.simulate(made, pallascope.H100), program)


def simulate_again(record: dict[str, Any]) -> None:
    """Measures simulations and moves anew, in a record whose other parts hold."""
    for size in record["sizes"]:
        a, b = ((size["m"], size["k"]), (size["k"], size["n"]))
        like = (jax.ShapeDtypeStruct(shape, jnp.float16) for shape in (a, b))
        size |= _simulated(pallascope.trace(matmul, *like))
        print(f"{size['name']:18} | simulate {statistics.median(size['simulate_seconds']):6.3f} s")
    record["move_seconds"] = measure_moves()
    record["digests"]["simulate"] = digests()["simulate"]
    record["simulated"] = provenance()


def measure_moves() -> list[float]:
    """Seconds that each of some moves of a slider takes, for a product of 16 steps."""
    like = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float16)
    args = like(256, 1024), like(1024, 256)
    seconds = []
    for cycles in range(600, 600 + 100 * (SAMPLES + 1), 100):
        start = time.perf_counter()
        # As `explore` does: the kernel is a new function at each position.
        pallascope.player(
            pallascope.sweep(lambda: (lambda a, b: matmul(a, b), args), hbm_latency_cycles=[cycles])
        )
        seconds.append(time.perf_counter() - start)
    print(f"a move of a slider: {statistics.median(seconds[1:]):.3f} s")
    return seconds[1:]  # the first one imports


def cpu() -> str:
    """The processor's name, where the system tells it."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


_VALUES = frozenset({
    "arguments", "frozen", "garbage", "interleaving", "machine", "program", "report", "sources",
})  # fmt: skip
#: The rooms and modules of `pallascope` that each part of the record times.
_TIMED = {
    "check": _VALUES | {"tracing", "checking"},
    "simulate": _VALUES | {"simulating", "critical_cycle", "lanes", "spans", "timeline"},
}


def digests() -> dict[str, str]:
    """Of the code that each part times: of `pallascope`, and the kernels.

    The emitters are not in it. They run in a trace, but take a small part of its time.
    """
    package = pathlib.Path(pallascope.__file__).parent
    places = {path: path.relative_to(package).parts[0] for path in package.rglob("*.py")}
    kernel = pathlib.Path(kernels.__file__)
    return {
        part: code_digest(
            kernel, *(path for path in sorted(places) if places[path].removesuffix(".py") in rooms)
        )
        for part, rooms in _TIMED.items()
    }


def main() -> None:
    """Measures all, or simulations alone, and writes the record; or prints one sample of one large
    program, as JSON."""
    if sys.argv[1:] == ["simulate"]:
        record = json.loads(RECORD.read_text("utf-8"))
        simulate_again(record)
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        return
    if len(sys.argv) > 1:
        print(json.dumps(sample(sys.argv[1])))
        return
    large = measure_large()
    measure("warm-up", 256, 256, 256)
    sizes = [measure("4096 x 4096 x 4096", 4096, 4096, 4096)]
    sizes += [measure(f"{steps} steps", 256, 256, TILE_K * steps) for steps in STEPS]
    record = dict(
        command="python -m benchmarks.schedule",
        cpu=cpu(),
        provenance=provenance(),
        digests=digests(),
        sizes=sizes,
        large=large,
        move_seconds=measure_moves(),
    )
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
