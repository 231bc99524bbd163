"""What `benchmarks/schedule.py` measured keeps the goals: speed, and memory that is linear.

Seconds are in proportion to the yardstick beside them, so any core can write the record.
"""

import json
import statistics

import jax
import jax.numpy as jnp
import pytest

import pallascope
from benchmarks import schedule

RECORD = json.loads(schedule.RECORD.read_text("utf-8"))
LARGE = {large["name"]: large for large in RECORD["large"]}
LONG = [size for size in RECORD["sizes"] if size["m"] == 256]


def test_the_record_says_where_it_is_from():
    assert RECORD["command"] == "python -m benchmarks.schedule"
    assert RECORD["cpu"]
    assert {"jax", "python", "utc", "git_commit", "code_digest"} <= RECORD["provenance"].keys()
    assert all(len(size["first_seconds"]) == schedule.SAMPLES for size in RECORD["sizes"])


def test_the_record_is_of_this_code():
    now = schedule.digests()
    stale = [part for part in now if RECORD["digests"][part] != now[part]]
    assert not stale, f"the code of {stale} has changed since: run `{RECORD['command']}`"


def test_the_kernel_is_one_that_could_run():
    a, b = (jax.ShapeDtypeStruct(shape, jnp.float16) for shape in ((256, 256), (256, 256)))
    assert pallascope.check(pallascope.trace(schedule.matmul, a, b)).ok


@pytest.mark.parametrize("name", schedule.LARGE)
def test_the_large_kernels_have_no_fault(name):
    make, _ = schedule.LARGE[name]
    assert pallascope.check(make(3)).ok


def seconds(row, *parts):
    """The median over samples of the seconds of these parts, on the core that goals are for."""
    for part in parts:
        assert len(row[f"{part}_seconds"]) == len(row[f"{part}_yardsticks"]) == schedule.SAMPLES
    columns = (
        [schedule.YARDSTICK * taken / stick for taken, stick in zip(*both)]
        for both in ((row[f"{part}_seconds"], row[f"{part}_yardsticks"]) for part in parts)
    )
    return statistics.median(map(sum, zip(*columns)))


def test_a_core_that_is_slower_by_the_yardstick_changes_nothing():
    samples = [0.3, 0.1, 0.2, 0.5, 0.4]
    row = {"check_seconds": samples, "check_yardsticks": [schedule.YARDSTICK] * 5}
    assert seconds(row, "check") == pytest.approx(0.3)
    slow = {"check_seconds": [3 * x for x in samples], "check_yardsticks": [0.3] * 5}
    assert seconds(slow, "check") == pytest.approx(0.3)


def test_a_million_ops_are_checked_within_a_minute_and_a_gigabyte():
    large = LARGE["a million ops"]
    assert large["ops"] >= 1_000_000
    assert seconds(large, "check") < 60
    assert statistics.median(large["checked_bytes"]) < 1e9


@pytest.mark.parametrize("emitter", ["emit_pipeline", "emit_pipeline_warp_specialized"])
def test_a_loop_over_three_thousand_tiles_takes_seconds(emitter):
    large = LARGE[f"3,000 tiles, {emitter}"]
    assert seconds(large, "trace", "check") < 20
    assert statistics.median(large["checked_bytes"]) < 1e9


def test_an_op_of_a_cluster_costs_at_most_three_times_that_of_one_block():
    """Or four times if each copy of b is written to all 16 blocks, as along one axis.

    One code took 1.9 to 2.9 times as long, by what else the machine's caches were used for.
    """
    cost = {name: seconds(large, "check") / large["ops"] for name, large in LARGE.items()}
    assert cost["a cluster of 4 x 4"] <= 3 * cost["one block"]
    assert cost["a cluster of 16 x 1"] <= 4 * cost["one block"]


def test_a_hundred_thousand_ops_a_second():
    whole = [size for size in LONG if size["ops"] > 90_000]
    assert whole
    for size in whole:
        for part in ("first", "again"):
            assert size["ops"] / seconds(size, part) >= 100_000


def test_memory_is_linear_in_ops():
    first, *others = LONG
    for size in others:
        assert size["peak_bytes"] / size["ops"] <= 1.2 * first["peak_bytes"] / first["ops"]


def test_a_hundred_thousand_ops_are_checked_and_simulated_in_seconds():
    for size in LONG:
        for part in ("check", "simulate"):
            assert seconds(size, part) <= 5e-5 * size["ops"]


def test_a_move_of_a_slider_takes_less_than_half_a_second():
    assert len(RECORD["move_seconds"]) == schedule.SAMPLES
    assert statistics.median(RECORD["move_seconds"]) < 0.5
