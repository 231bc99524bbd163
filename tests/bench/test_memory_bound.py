"""The record of `benchmarks.memory_bound`: its kernels, what is worked out of it, its state."""

import json
import pathlib
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipelib
from benchmarks import bandwidth
from benchmarks import memory_bound as benchmark
from pipelib.kernels.memory_bound import RmsNorm, Softmax
from tests.emitters import contract

#: Where two threads reduce at the same time in the same SMEM.
WRONG = "memory thread, 2 compute threads"
ROOT = pathlib.Path(__file__).parents[2]
TOY = dict(
    rows=[
        dict(kernel="copy", variant="slow", bytes=1000, burst_us=[4.0, 5.0, 6.0]),
        dict(kernel="copy", variant="fast", bytes=1000, burst_us=[4.0], sustained_us=[8.0]),
        dict(kernel="copy", variant="fast", bytes=2 * benchmark.LARGE_BYTES, burst_us=[1.0]),
        dict(kernel="softmax", variant="pipelib", bytes=1000, burst_us=[5.0, 5.0, 9.0]),
        dict(kernel="softmax", variant="pipelib", bytes=10, burst_us=[2.0]),
    ]
)


@pytest.fixture(scope="module")
def record():
    path = ROOT / "benchmarks" / "results" / "nvidia-h200" / "memory_bound.json"
    return json.loads(path.read_text("utf-8"))


def row_of(record, kernel, variant, shape=benchmark.MAIN, dtype=benchmark.MAIN_DTYPE):
    (row,) = (
        row
        for row in record["rows"]
        if (row["kernel"], row["variant"], row["dtype"]) == (kernel, variant, dtype)
        and (row["rows"], row["length"]) == shape
    )
    return row


# What a record is made of, and what follows from it.


@pytest.mark.parametrize(
    ("operation", "options"),
    [
        (RmsNorm(256, 1e-6), {}),
        (Softmax(approximate=True), dict(adjacent=True)),
        (Softmax(approximate=True), dict(threads=2)),
        (benchmark.Copy(), {}),
    ],
)
def test_variants_compute_the_same(operation, options):
    x = jax.random.normal(jax.random.key(0), (12, 256), jnp.float32)
    plan = benchmark.plan_of(x.shape, 4, slots=2, rows=2)._replace(blocks=2)
    with contract.interpreted():
        actual = benchmark.separate_slots(operation, plan, x, **options)
        expected = benchmark.memory_bound.launch_rows(operation, plan, x)
    np.testing.assert_allclose(actual, expected, 1e-6)


def test_the_curve_s_kernel_copies(monkeypatch):
    monkeypatch.setattr(benchmark, "num_sms", lambda: 2)
    x = jnp.arange(10 * 512, dtype=jnp.float32).reshape(-1, 512)
    with contract.interpreted():
        np.testing.assert_array_equal(benchmark.ring_copy(3, 2048, x), x)


@pytest.mark.parametrize("threads", [0, 2])
def test_variants_are_sound_but_for_the_scratch_that_two_threads_share(threads):
    """Two compute threads sum across their warps in one scratch: the GPU's sums were wrong."""
    plan = benchmark.plan_of((64, 8192), slots=2, rows=2)._replace(blocks=8)
    x = jax.ShapeDtypeStruct((64, 8192), jnp.bfloat16)
    kernel = lambda x: benchmark.separate_slots(Softmax(True), plan, x, threads=threads)
    report = pipelib.check(pipelib.trace(kernel, x), strict=True)
    assert {finding.where for finding in report} <= {"the scratch of reductions"}, report
    assert bool(report) == (threads == 2)
    jax.jit(kernel).trace(x).lower(lowering_platforms=("cuda",))


def test_ratios_are_to_the_fastest_copies():
    row = TOY["rows"][3]
    assert bandwidth.rate(row) == pytest.approx(1000 / 5e-6)
    same, large = bandwidth.ratios(TOY, row)
    assert same == pytest.approx(4 / 5)
    assert large == pytest.approx((1000 / 5e-6) / (2 * benchmark.LARGE_BYTES / 1e-6))
    assert bandwidth.fastest_copy(TOY, 1000, "sustained_us") == pytest.approx(1000 / 8e-6)
    floor = 2.0 + 1000 / (2 * benchmark.LARGE_BYTES)
    assert bandwidth.floor_us(TOY, row) == pytest.approx(floor)


def test_loads_in_flight():
    point = dict(slots=3, step_bytes=4096, blocks_per_sm=2)
    assert bandwidth.loads_in_flight(point) == (2 * 2 * 4096, 3 * 2 * 4096)


# The committed record.


def test_the_record_says_where_it_is_from(record):
    provenance = record["provenance"]
    assert provenance["gpu"] == "NVIDIA H200" and provenance["compute_capability"] == "9.0"
    known = {"driver", "cuda", "jax", "jaxlib", "python", "utc", "git_commit", "code_digest"}
    assert known <= provenance.keys()
    assert (record["seed"], record["distribution"]) == (benchmark.SEED, "normal")


def test_every_row_has_its_samples(record):
    keys = "kernel", "variant", "rows", "length", "dtype"
    names = [tuple(row[key] for key in keys) for row in record["rows"]]
    assert len(set(names)) == len(names)
    for name, row in zip(names, record["rows"]):
        assert len(row["burst_us"]) >= 20 and min(row["burst_us"]) > 0, name
        size = 2 * row["rows"] * row["length"] * jnp.dtype(row["dtype"]).itemsize
        assert row["bytes"] == size, name
        if row["kernel"] != "copy":
            bound = 0.005 if row["dtype"] == "bfloat16" else 1e-5
            assert row["error"]["rows"] == 64
            if row["variant"].endswith(WRONG):
                assert row["error"]["largest_relative"] > bound, f"{name} is no longer wrong"
            else:
                assert row["error"]["largest_relative"] < bound, name
                assert row["error"]["of_norm"] < bound, name
    for name in (*benchmark.SUSTAINED, ("copy", "driver")):
        assert len(row_of(record, *name)["sustained_us"]) >= 20, name


@pytest.mark.parametrize("kernel", ["rms_norm", "softmax"])
def test_the_goal(record, kernel):
    """At least 95% of the fastest copy of as many bytes, in bursts; XLA is slower."""
    row = row_of(record, kernel, "pipelib")
    same, large = bandwidth.ratios(record, row)
    assert same >= 0.95 and large >= 0.90
    assert median(row["burst_us"]) < median(row_of(record, kernel, "XLA")["burst_us"])


def test_the_curve_rises_with_the_bytes_in_flight(record):
    """Little's law: few bytes in flight, little bandwidth; beyond enough, no more."""
    curve = sorted(record["curve"], key=lambda point: bandwidth.loads_in_flight(point)[1])
    few, many = bandwidth.rate(curve[0]), max(map(bandwidth.rate, curve))
    assert few < 0.5 * many
    for point in curve:
        if bandwidth.loads_in_flight(point)[0] >= 48 << 10:
            assert bandwidth.rate(point) > 0.9 * many


def test_the_tables_have_every_row(record):
    lines = list(bandwidth.table(record))
    assert sum(line.startswith("  ") for line in lines) == len(record["rows"] + record["curve"])
