"""The record of `benchmarks.memory_bound`: its kernels, what is worked out of it, its state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallascope
from benchmarks import memory_bound as benchmark
from benchmarks import suite
from pallascope.bench import timing
from pipelib.kernels.memory_bound import RmsNorm, Softmax
from pipelib_book.measured import bandwidth, results
from tests.emitters import contract

#: Where two threads reduce at the same time in the same SMEM.
WRONG = "memory thread, 2 compute threads"


@pytest.fixture(scope="module")
def record():
    (found,) = results.read("nvidia-h200/memory_bound.json")
    return found | bandwidth.flat(found)


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
    report = pallascope.check(pallascope.trace(kernel, x), strict=True)
    assert {finding.where for finding in report} <= {"the scratch of reductions"}, report
    assert bool(report) == (threads == 2)
    jax.jit(kernel).trace(x).lower(lowering_platforms=("cuda",))


def test_a_row_has_its_share_of_the_fastest_copy():
    us = {"copy, slow": (4.0, 5.0, 6.0), "copy, fast": (4.0,), "softmax, pipelib": (5.0, 5.0, 9.0)}
    times = {name: timing.Samples(each) for name, each in us.items()}
    found = suite.Measured(benchmark.FIRST, times["softmax, pipelib"], times)
    said = [column(found) for column in benchmark.SUITE.columns]
    assert said == [f"{2 * benchmark.BYTES / 5.0 / 1e6:6.2f} TB/s", "0.800 of the fastest copy"]
    curve = found._replace(problem=suite.Whole(), times={"1 slots of 2048 bytes": found.own})
    assert [column(curve) for column in benchmark.SUITE.columns] == [None, None]
    assert benchmark.FIRST.bytes == 2 * benchmark.BYTES == benchmark.LARGE.bytes / 8


def test_every_shape_has_its_cases_once():
    assert len({*benchmark.PROBLEMS}) == len(benchmark.PROBLEMS) == 16
    for problem in benchmark.PROBLEMS:
        made = benchmark.contenders(problem, ())
        assert {"softmax, pipelib", "rms_norm, XLA"} <= made.keys()
        assert (benchmark.DRIVER in made) == (problem in (benchmark.FIRST, benchmark.LARGE))
    assert {*benchmark.SUSTAINED} <= benchmark.contenders(benchmark.FIRST, ()).keys()


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
        assert len(row["burst_microseconds"]) >= 20 and min(row["burst_microseconds"]) > 0, name
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
    for name in (*benchmark.SUSTAINED, benchmark.DRIVER):
        kernel, _, variant = name.partition(", ")
        assert len(row_of(record, kernel, variant)["sustained_microseconds"]) >= 20, name


@pytest.mark.parametrize("kernel", ["rms_norm", "softmax"])
def test_the_goal(record, kernel):
    """At least 95% of the fastest copy of as many bytes, in bursts; XLA is slower."""
    row = row_of(record, kernel, "pipelib")
    copies = [each for each in record["rows"] if each["kernel"] == "copy"]
    for size, least in ((row["bytes"], 0.95), (2 * benchmark.LARGE_BYTES, 0.90)):
        fastest = max(bandwidth.rate(copy) for copy in copies if copy["bytes"] == size)
        assert bandwidth.rate(row) >= least * fastest
    assert bandwidth.rate(row) > bandwidth.rate(row_of(record, kernel, "XLA"))


def test_the_curve_rises_with_the_bytes_in_flight(record):
    """Little's law: few bytes in flight, little bandwidth; beyond enough, no more."""
    in_flight = lambda point, more: (point["slots"] - 1 + more) * point["step_bytes"]
    curve = sorted(record["curve"], key=lambda point: in_flight(point, 1))
    few, many = bandwidth.rate(curve[0]), max(map(bandwidth.rate, curve))
    assert few < 0.5 * many
    for point in curve:
        if in_flight(point, 0) >= 48 << 10:
            assert bandwidth.rate(point) > 0.9 * many
