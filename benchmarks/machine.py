"""Measures what `pallascope.machine` holds, and how near `simulate` comes, on one GPU.

    python -m benchmarks.machine                  on the GPU: the record
    python -m benchmarks.machine probes --resume  on the GPU: measures the probes that it lacks
    python -m benchmarks.machine derive RECORD    prints the machine's file for the package
    python -m benchmarks.machine compare RECORD   prints simulated beside measured times
    python -m benchmarks.machine probed RECORD    the same of probes (`benchmarks.modelled`)

A record has every probe's samples (`benchmarks.probes`), the copy's times, and for each kernel of
`benchmarks.kernels` the cycles of its blocks (median and quartiles, one of each for
every launch), how many of them an SM had at once, and the kernel's own times by CUPTI.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from statistics import linear_regression, mean, median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pallascope
from benchmarks import clocked, kernels, modelled, nvlink, probes, records, starts, suite
from benchmarks.suite import Part, Suite
from benchmarks.turns import OneByOne
from pallascope.bench import timing
from pallascope.bench.cupti import kernel_times
from pallascope.machine import Machine
from pallascope.simulating.simulate import simulate
from pipelib_book.measured import results

LAUNCHES = 5
#: Constants that no probe measures. They were chosen on the calibration pairs of
#: `benchmarks.model_pairs` only: pairs that are held out had no part in it.
CALIBRATED: dict[str, Any] = dict(
    wgmma_restart_cycles=47.0,
    wgmma_reach=0.987,
    code_growth=1.4,
    arithmetic_reach=0.65,
    cold_seconds=2.3e-6,
    hbm_static_reach=0.955,
    clock_at=((0.0, 1.0), (0.13, 0.9975), (0.25, 0.9114), (0.5, 0.9114), (1.0, 0.7873)),
)
#: Not measured: CUDA C++ Programming Guide, throughput of native arithmetic instructions.
SHUFFLES_PER_CYCLE = 32.0


# Measuring.


def run_probe(probe: clocked.Probe, call: Callable[..., Any]) -> dict[str, Any]:
    """A probe's samples, one for each launch; `others` has those of threads that are apart."""
    flush = jax.jit(lambda x: x + 1)
    big = jnp.zeros(1 << 26, jnp.float32)  # 256 MiB, several times L2
    args = [jnp.ones(x.shape, x.dtype) for x in clocked.inputs(probe)]
    launches: list[np.ndarray] = []
    for _ in range(LAUNCHES + 1):
        if probe.cold:
            big = flush(big).block_until_ready()
        launches.append(clocked.stamps_of(call(*args)))
    del launches[0]  # it warmed up
    columns = _columns(probe, [clocked.shown(probe, stamps) for stamps in launches])
    found: dict[str, Any] = dict(work=dict(probe.work), repeats=probe.repeats, blocks=probe.blocks)
    found |= columns
    if probe.apart:
        others = range(1, len(probe.roles))
        found["others"] = [_columns(probe, [s[:, i : i + 1] for s in launches]) for i in others]
    return found


def _columns(probe: clocked.Probe, launches: Sequence[np.ndarray]) -> dict[str, list[float]]:
    """Each figure of a probe, for each launch."""
    samples = [clocked.slopes(stamps, probe.repeats) for stamps in launches]
    return {key: [round(sample[key], 3) for sample in samples] for key in samples[0]}


def compiled_case(case: kernels.Case) -> Callable[..., Any]:
    """A case's kernel, stamped."""
    return jax.jit(case.build(True)).lower(*case.inputs).compile()


def run_case(case: kernels.Case, kernel: Callable[..., Any]) -> dict[str, Any]:
    """A kernel's blocks by their stamps, and its times by CUPTI."""
    keys = jax.random.split(jax.random.key(0), len(case.inputs))
    args = [jax.random.normal(key, x.shape, x.dtype) for key, x in zip(keys, case.inputs)]
    columns: dict[str, list] = {}
    for launch in range(LAUNCHES + 1):
        stamps = np.asarray(kernel(*args)[-1]).astype(np.uint32)
        if launch:  # the first one warms up
            for name, value in _blocks(stamps).items():
                columns.setdefault(name, []).append(value)
    calls = kernel_times(kernel, *args, calls=LAUNCHES)
    milliseconds = [sum(each.ms for each in call) for call in calls]
    return dict(columns, microseconds=[1e3 * ms for ms in milliseconds])


def _blocks(stamps: np.ndarray) -> dict[str, Any]:
    """What one launch's stamps (block, thread, stamp) say of its blocks."""
    clock0, clock1, ns0, ns1, sm = np.moveaxis(stamps, -1, 0)
    start = clock0[:, :1]  # the counter wraps, so all is counted from the first thread's start
    starts = (clock0 - start).astype(np.int32).min(axis=1)
    stops = (clock1 - start).astype(np.int32).max(axis=1)
    cycles = (stops - starts).astype(np.float64)
    low, middle, high = np.quantile(cycles, [0.25, 0.5, 0.75])
    seconds = (ns1 - ns0).astype(np.float64).sum() * 1e-9
    most = max(_at_once(clock0[sm[:, 0] == n], clock1[sm[:, 0] == n]) for n in set(sm[:, 0]))
    return dict(
        block_cycles=float(middle),
        quartiles=[float(low), float(high)],
        blocks_per_sm=most,
        clock_hz=float((clock1 - clock0).astype(np.float64).sum() / seconds),
    )


def _at_once(clock0: np.ndarray, clock1: np.ndarray) -> int:
    """How many blocks of one SM ran at the same time, at most."""
    origin = clock0[0, 0]
    starts = (clock0 - origin).astype(np.int32).min(axis=1)
    stops = (clock1 - origin).astype(np.int32).max(axis=1)
    return int(max(((starts <= t) & (stops > t)).sum() for t in starts))


#: What XLA does with 4 GiB of float32, and how many times it moves as many bytes.
_BANDWIDTHS: dict[str, tuple[Callable[[jax.Array], jax.Array], int]] = {
    "copy": (lambda x: x + 1, 2),
    "read": (jnp.max, 1),
}


def bandwidth(name: str) -> dict[str, Any]:
    """The bytes that HBM reads and writes, and times."""
    x = jnp.zeros(1 << 30, jnp.float32)
    function, times = _BANDWIDTHS[name]
    samples = timing.measure({name: function}, (x,), rounds=2, burst=5)
    return dict(bytes=times * x.nbytes, microseconds=list(samples[name].microseconds))


_KERNELS = OneByOne(
    lambda case: None if isinstance(case, str) else compiled_case(case),
    lambda case, kernel: bandwidth(case) if isinstance(case, str) else run_case(case, kernel),
    lambda found: f"{median(found['microseconds']):.1f} us",
)
_PROBES = OneByOne(
    clocked.compiled,
    run_probe,
    lambda found: f"{median(found['cycles']):.1f} cycles, {median(found['second_run']):.1f}",
)


# What follows from a record.


def _opened(path: str | pathlib.Path) -> dict[str, Any]:
    return results.opened(json.loads(pathlib.Path(path).read_text("utf-8")))


def launching(record: dict[str, Any], clock: float) -> dict[str, float]:
    """What a launch and the starts of its blocks cost, from a record of `benchmarks.starts`.

    An SM's 16 blocks start with longer gaps than 8 do; kernels that copy through SMEM have no more
    than 8. The model has no cost for registers that change hands, so barriers have the mean of what
    they cost with and without.
    """
    us = {name: median(row["us"]) for name, row in record["starts"].items()}
    passed, sms = 2000, clocked.SMS
    cycles = lambda *case, **fields: 1e-6 * clock * us[starts.Start(*case, **fields).name]
    crowds = 2, 4, 8
    crowded = [cycles(sms * crowd, 1, passed, crowd=crowd) for crowd in crowds]
    ringed = [cycles(sms, 3, passed, rings=4, moves=moves) for moves in (False, True)]
    turn = (cycles(sms * 8, 1, passed) - cycles(sms, 1, passed)) / 7
    return dict(
        launch_seconds=cycles(sms, 1, 0) / clock,
        block_start_cycles=turn - passed,
        block_gap_cycles=linear_regression(crowds, crowded).slope,
        barrier_init_cycles=(mean(ringed) - cycles(sms, 3, passed)) / (4 * starts.RING_BARRIERS),
    )


def parameters(record: dict[str, Any]) -> Machine:
    """The machine of a record, and of the records of starts and of NVLink beside it.

    `Machine` says which probe each parameter is from.
    """
    of = lambda name, key="cycles": median(record["probes"][name][key])
    inner = lambda name: of(name, "inner") - of("clock", "inner")
    load = lambda size, where: of(f"load {size} bytes, {where}")
    rings = [name for name in record["probes"] if name.startswith("load ring")]
    work = lambda name: next(iter(record["probes"][name]["work"].values()))
    most = lambda where, key: max(work(n) / of(n, key) for n in rings if n.endswith(where))
    flops = lambda name: work(name) / of(name)

    clock = of("clock rate", "clock_hz")
    rate = lambda moved: 1e6 * moved["bytes"] / median(moved["microseconds"])
    copied, read = (rate(record["kernels"][name]) for name in _BANDWIDTHS)
    arrive, load_issue = inner("arrive"), inner("load 1024 bytes, L2")
    wake = of("round trip, delayed") / 2 - of("delay") - arrive
    sm_rate = most(", 1 blocks, L2", "cycles")
    landed = lambda size, where: load(size, where) - size / sm_rate - load_issue - wake
    store = [of(f"store {size} bytes, written") for size in (1024, 32768)]
    store_rate = (32768 - 1024) / (store[1] - store[0])
    store_issue = inner("store 1024 bytes, written")
    product = inner("wgmma 64x64x64 float16, 0 left, 1 threads, issue timed")
    retired = of("wgmma 64x64x64 float16, 0 left, 1 threads") - of(
        "wgmma 64x64x64 float16, 1 left, 1 threads"
    )
    access = {rows: f"{{}} {rows}x128, 1 threads" for rows in (16, 64)}
    write = [of(access[rows].format("write")) for rows in (16, 64)]
    smem_rate = (64 - 16) * 128 * 4 / (write[1] - write[0])
    moved = 16 * 128 * 4 / smem_rate
    most_shared = max(
        work(name) / of(name, "second_run")
        for name in record["probes"]
        if name.startswith("shared ring") and ", L2, as in a product" in name
    )
    alone, beside = (
        {name: of(f"{name} of 64x128, 1 threads{words}") for name in ("exp2", "softmax")}
        for words in ("", ", beside products with a in SMEM")
    )
    others = lambda cycles: cycles["softmax"] - cycles["exp2"]
    stored = lambda kind: of(f"{kind} ring of 16384 bytes, {clocked.SMS} blocks, L2", "second_run")
    gpu = record["provenance"]["gpu"]
    folder = records.RESULTS / records.folder(gpu)
    found = Machine(
        name=gpu,
        clock_hz=clock,
        sms=clocked.SMS,
        load_issue_cycles=load_issue,
        l2_latency_cycles=landed(16384, "L2"),
        hbm_latency_cycles=landed(16384, "HBM"),
        sm_bytes_per_cycle=sm_rate,
        l2_bytes_per_second=most(f", {clocked.SMS} blocks, L2", "second_run") * clocked.SMS * clock,
        l2_shared_bytes_per_second=most_shared * clocked.SMS * clock,
        hbm_bytes_per_second=copied,
        hbm_read_gain=read / copied,
        store_issue_cycles=store_issue,
        store_latency_cycles=store[0] - 1024 / store_rate - store_issue,
        store_bytes_per_cycle=store_rate,
        wgmma_issue_cycles=product,
        wgmma_latency_cycles=retired - product,
        wgmma_flops_per_cycle=(
            ("bfloat16", flops("wgmma 64x128x64 bfloat16, 1 left, 1 threads")),
            ("float16", flops("wgmma 64x128x64 float16, 1 left, 1 threads")),
            ("float8_e4m3fn", flops("wgmma 64x128x128 float8_e4m3fn, 1 left, 1 threads")),
        ),
        arrive_cycles=arrive,
        wait_cycles=inner("wait, passed"),
        wake_cycles=wake,
        meet_cycles=of("meet"),
        fence_cycles=inner("fence"),
        smem_latency_cycles=of("read, chained", "second_run") - 128 / smem_rate,
        smem_write_cycles=write[0] - moved - inner("fence"),
        smem_bytes_per_cycle=smem_rate,
        alu_ops_per_cycle=flops("add, 1 threads"),
        transcendental_ops_per_cycle=flops("exp2, approximate, 1 threads"),
        transcendental_slowdown=beside["exp2"] / alone["exp2"],
        alu_slowdown=others(beside) / others(alone),
        exchanges_per_cycle=SHUFFLES_PER_CYCLE,
        add_cost=stored("add store") / stored("store"),
        **launching(_opened(folder / "starts.json"), clock),
        **CALIBRATED,
    )
    found = found.changed(**nvlink.parameters(records.read(folder / "nvlink.json"), found))
    digits = lambda x: float(f"{x:.4g}") if isinstance(x, float) else x
    rates = tuple((dtype, digits(rate)) for dtype, rate in found.wgmma_flops_per_cycle)
    rounded = {name: digits(value) for name, value in dataclasses.asdict(found).items()}
    return found.changed(**rounded | dict(wgmma_flops_per_cycle=rates))


def ratios(record: dict[str, Any], machine: Machine) -> dict[str, tuple[float, float]]:
    """Simulated and measured cycles of a block of each kernel.

    Simulated at the clock that the kernel ran at, which falls under load: GMEM's bandwidth does
    not, so that an SM then gets more bytes in a cycle.
    """
    found = {}
    for case in kernels.cases():
        measured = record["kernels"][case.name]
        program = pallascope.trace(case.build(False), *case.inputs)
        crowd = max(measured["blocks_per_sm"])
        here = machine.changed(clock_hz=median(measured["clock_hz"]))
        timeline = simulate(program, here, blocks_per_sm=crowd, l2_hits=case.l2_hits)
        found[case.name] = timeline.cycles, median(measured["block_cycles"])
    return found


def compared(record: dict[str, Any]) -> str:
    """A row for each kernel: simulated and measured cycles of a block."""
    rows = (
        (name, f"{simulated:,.0f}", f"{measured:,.0f}", f"{simulated / measured:.2f}")
        for name, (simulated, measured) in ratios(record, parameters(record)).items()
    )
    return results.table(("kernel", "simulated cycles", "measured", "ratio"), rows)


def _probed(path: str, *words: str) -> None:
    print(modelled.table(_opened(path), clocked.select(probes.later(), words)))


SUITE = Suite(
    "machine",
    {
        "kernels": Part(
            lambda problem, groups: (
                {name: name for name in _BANDWIDTHS} | {case.name: case for case in kernels.cases()}
            ),
            _KERNELS,
            lambda problem, name, case: (
                None if isinstance(case, str) else (case.build(True), case.inputs)
            ),
            apart=True,
        ),
        "probes": Part(
            lambda problem, groups: {probe.name: probe for probe in probes.probes()},
            _PROBES,
            lambda problem, name, probe: clocked.traced(probe),
            apart=True,
        ),
    },
    facts=dict(launches=LAUNCHES),
    commands={
        "derive": lambda path: print(parameters(_opened(path)).to_json(), end=""),
        "compare": lambda path: print(compared(_opened(path))),
        "probed": _probed,
    },
)

if __name__ == "__main__":
    suite.main("machine")
