"""What `benchmarks/schedule.py` measured keeps the goals: speed, and memory that is linear."""

import json
import statistics

import jax
import jax.numpy as jnp

import pipelib
from benchmarks import schedule

RECORD = json.loads(schedule.RECORD.read_text("utf-8"))
LONG = [size for size in RECORD["sizes"] if size["m"] == 256]


def test_the_record_says_where_it_is_from():
    assert RECORD["command"] == "python -m benchmarks.schedule"
    assert RECORD["cpu"]
    assert {"jax", "python", "utc", "git_commit", "code_digest"} <= RECORD["provenance"].keys()
    assert all(len(size["first_seconds"]) == schedule.SAMPLES for size in RECORD["sizes"])


def test_the_record_is_of_this_code():
    assert RECORD["sources_digest"] == schedule.sources_digest(), (
        f"the code has changed since: run `{RECORD['command']}`"
    )


def test_the_kernel_is_one_that_could_run():
    a, b = (jax.ShapeDtypeStruct(shape, jnp.float16) for shape in ((256, 256), (256, 256)))
    assert pipelib.check(pipelib.trace(schedule.matmul, a, b)).ok


def test_a_hundred_thousand_ops_a_second():
    whole = [size for size in LONG if size["ops"] > 90_000]
    assert whole
    for size in whole:
        for seconds in (size["first_seconds"], size["again_seconds"]):
            assert size["ops"] / statistics.median(seconds) >= 100_000


def test_memory_is_linear_in_ops():
    first, *others = LONG
    for size in others:
        assert size["peak_bytes"] / size["ops"] <= 1.2 * first["peak_bytes"] / first["ops"]


def test_a_hundred_thousand_ops_are_checked_and_simulated_in_seconds():
    for size in LONG:
        for seconds in (size["check_seconds"], size["simulate_seconds"]):
            assert statistics.median(seconds) <= 5e-5 * size["ops"]


def test_a_move_of_a_slider_takes_less_than_half_a_second():
    assert len(RECORD["move_seconds"]) == schedule.SAMPLES
    assert statistics.median(RECORD["move_seconds"]) < 0.5
