"""The configuration that a formula chooses: whether it is sound, and how near to the fastest."""

import dataclasses
import itertools
import math
import random
import statistics

import jax.numpy as jnp
import numpy as np
import pytest

import pallascope
from benchmarks.products import Problem
from pipelib.kernels import MatmulConfig
from pipelib.kernels.matmul import choosing, default_config, tuned
from pipelib_book.measured import ladder

SHAPES = 10_000
HALF = "float16"


def random_shapes(seed=0):
    """M of any size, and N and K that copies can address."""
    rng = random.Random(seed)
    size = lambda least, most: max(1, round(2 ** rng.uniform(math.log2(least), math.log2(most))))
    for _ in range(SHAPES):
        yield size(1, 32768), 64 * size(1, 512), 128 * size(1, 256)


@pytest.mark.slow
def test_each_of_many_shapes_has_a_valid_configuration_of_few_estimates(with_estimates):
    dtypes = [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float8_e5m2", "bfloat16")]
    chosen = set()
    for shape, kind in zip(random_shapes(), itertools.cycle(dtypes)):
        config, estimates = with_estimates(choosing, default_config, *shape, *kind)
        assert 1 <= estimates <= choosing.MOST_ESTIMATES == 81
        chosen.add((config, *kind))
    for config, *dtypes in chosen:
        config.check(*dtypes)
    tiles = lambda c: (c.tile_m, c.tile_n, c.compute_threads)
    plain = {tiles(config) for config, *_ in chosen if not config.swapped}
    assert plain == {*choosing.TILES}, "a tile that is never chosen needs no estimate"
    swapped = {(c.tile_m, c.compute_threads) for c, *_ in chosen if c.swapped}
    assert swapped == {*choosing.SWAPPED}


@pytest.mark.parametrize("by_rows", [False, True])
def test_pairs_where_rows_are_no_whole_lines(by_rows, with_estimates):
    """Some of these products are likeliest in pairs, each of which an SM has room for."""
    sizes, found = random.Random(1), []
    for _ in range(200):
        m, n, k = (8 * sizes.randint(8, 1500) for _ in range(3))
        dtypes = "bfloat16", "bfloat16"
        config, estimates = with_estimates(
            choosing, default_config, m, n + n % 16 + 8, k, *dtypes, by_rows=by_rows
        )
        assert estimates <= choosing.MOST_ESTIMATES
        config.check(*dtypes)
        found.append(config)
        assert default_config(64 * m, 64 * n, 64 * k, *dtypes).cluster_size == 1
    assert {(x.cluster_m, x.cluster_n) for x in found} == {(1, 1), (1, 2), (2, 1)}


def test_the_other_block_of_a_pair_loads_half():
    config, work = MatmulConfig(), choosing.Work(8192, 8192, 8200, 2, 2)
    us = lambda **options: choosing.estimate_us(dataclasses.replace(config, **options), work)
    assert us(cluster_m=2) < us() / 1.05 > us(cluster_n=2)


def test_an_epilogue_leaves_fewer_slots():
    shape, dtypes = (4096, 4096, 4096), ("bfloat16", "bfloat16")
    plain, fused = default_config(*shape, *dtypes), default_config(*shape, *dtypes, ["float32"])
    fused.check(*dtypes, ["float32"])
    assert (plain.tile_n, plain.slots) == (256, 4) != (fused.tile_n, fused.slots)
    with pytest.raises(ValueError, match=r"shared memory, but a block has 232,448 B"):
        default_config(*shape, *dtypes, ["float32"] * 20)


def rates(machine, dtype):
    """The rates of a machine as the formula takes them, at the clock that products leave."""
    flops = machine.wgmma_rate("float8_e4m3fn" if dtype.startswith("float8") else dtype)
    waits = machine.wake_cycles + machine.wait_cycles
    return choosing.Rates(
        clock_hz=machine.loaded(0.75).clock_hz,
        flops_per_cycle=flops * jnp.dtype(dtype).itemsize,
        smem_bytes_per_cycle=machine.smem_bytes_per_cycle,
        sm_bytes_per_cycle=machine.sm_bytes_per_cycle,
        l2_bytes_per_second=machine.l2_shared_bytes_per_second,
        hbm_bytes_per_second=machine.hbm_bytes_per_second,
        store_bytes_per_cycle=machine.store_bytes_per_cycle,
        load_cycles=2 * machine.load_issue_cycles + machine.hbm_latency_cycles + waits,
        restart_cycles=machine.wait_cycles
        + machine.wgmma_latency_cycles
        + machine.wgmma_restart_cycles,
        block_start_cycles=machine.block_start_cycles,
    )


def test_the_rates_are_the_machine_s():
    for dtype in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"):
        assert rates(pallascope.H200, dtype) == pytest.approx(choosing.H200, rel=1e-3)


def test_the_estimate_knows_rounds_and_rows_that_are_not_loaded():
    config, work = MatmulConfig(), choosing.Work(128 * 132, 256, 4096, 2, 2)
    us = lambda **sizes: choosing.estimate_us(config, work._replace(**sizes))
    assert us(m=128 * 133) > 1.6 * us()
    # Of rows behind the end of a, zeros are made, which takes longer than to load them.
    assert us(m=128) < us(m=1) < us()
    assert choosing.estimate_us(config, work, sms=66) > 1.6 * us()
    few = choosing.Work(64, 64, 64, 2, 2)  # one step
    assert 0 < choosing.estimate_us(config, few) < us()


# Against what was measured.


def searched():
    """Each product of the record, with the median of each configuration in microseconds."""
    for search in ladder.searches():
        times = {}
        for fields, us, _ in (*search.rows, *search.finals):
            if us is not None:
                times[MatmulConfig(**fields)] = us
        yield Problem(**search.problem), times


def slowdown(config, times):
    """A configuration's time over the fastest's; None if it was not measured.

    One that differs only in the form or the order of its tiles stands in for it.
    """
    free = "form", "order", "width", "delay_release"
    fixed = lambda c: [v for k, v in dataclasses.asdict(c).items() if k not in free]
    alike = [c for c in times if fixed(c) == fixed(config)]
    apart = lambda c: sum(getattr(c, name) != getattr(config, name) for name in free)
    return times[min(alike, key=apart)] / min(times.values()) if alike else None


def nearest_other(problem):
    """The configuration of the nearest row of the table that is of another product."""
    entries = [
        entry
        for entry in tuned.read(tuned.FOLDER / "nvidia-h200.json")
        if (entry.dtype, entry.transpose_a, entry.transpose_b) == problem[3:6]
        and entry[:3] != problem[:3]
    ]
    return min(entries, key=lambda entry: entry.distance(*problem[:3])).config


def test_the_choice_is_near_the_fastest_and_nearer_than_the_nearest_row():
    """The numbers of the module's docstring."""
    ours, theirs, correlations = [], [], []
    for problem, times in searched():
        sizes = problem[:3]
        dtypes = problem.dtype, problem.out.dtype
        # The record has no transposed products.
        ours.append(slowdown(default_config(*sizes, *dtypes, transpose_a=True), times))
        theirs.append(slowdown(nearest_other(problem), times))
        work = choosing.Work(*sizes, *(jnp.dtype(x).itemsize for x in dtypes))
        estimates = [choosing.estimate_us(config, work) for config in times]
        ranks = [np.argsort(np.argsort(x)) for x in ([*times.values()], estimates)]
        correlations.append(np.corrcoef(*ranks)[0, 1])
    assert len(ours) == 28
    measured = [x for x in ours if x is not None]
    assert len(measured) == 25, "the record has no products with K in parts"
    assert max(measured) <= 1.03 and statistics.mean(measured) <= 1.0055
    both = [(one, other) for one, other in zip(ours, theirs) if one and other]
    said = [round(x, 3) for x in (statistics.mean(x for _, x in both), max(x for _, x in both))]
    assert (len(both), said) == (20, [1.018, 1.161])
    assert round(statistics.mean(one for one, _ in both), 3) == 1.006
    assert statistics.mean(correlations) == pytest.approx(0.75, abs=0.01)
