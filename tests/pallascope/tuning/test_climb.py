"""`climb`: what a search measures, in which order, and what wins; the GPU is a stand-in."""

import dataclasses
import math

from hypothesis import given
from hypothesis import strategies as st

from pallascope.tuning import Ranked
from pallascope.tuning.results import Found, Row
from pallascope.tuning.searching import climb, measured
from pallascope.tuning.spaces import label
from pipelib.kernels import MatmulConfig, matmul_space


class Fake:
    """Times by a function of a configuration; None is an error, a negative time a wrong result."""

    def __init__(self, time_of, drift=0.0):
        self.time_of, self.drift, self.asked, self.batches = time_of, drift, [], []

    def row(self, config, samples):
        us = self.time_of(config)
        if us is None:
            return Row(config, reason="no answer in 20 s")
        if us < 0:
            return Row(config, (-us,) * samples, 0.5, "wrong: an element is off by 0.5")
        return Row(config, tuple(us + self.drift * i for i in range(samples)), 0.01)

    def each(self, configs):
        self.batches.append(len(configs))
        for config in reversed(configs):  # what compiles first answers first
            self.asked.append(config)
            yield self.row(config, 3)

    def in_turn(self, configs):
        return [self.row(config, 5) for config in configs]


@given(st.dictionaries(st.integers(), st.none() | st.floats(-100, 100).filter(bool), min_size=1))
def test_of_all_that_is_measured_the_fastest_right_one_wins(times):
    found = climb(list(times), lambda _: (), Fake(times.get), limit=len(times))
    assert {row.config for row in found.rows} == set(times)
    right = {config: us for config, us in times.items() if us is not None and us > 0}
    if not right:
        assert found.best is None and found.finals == ()
        return
    assert found.best.median_us == min(right.values())
    assert right[found.best.config] == min(right.values())
    for row in found.rows:
        assert bool(row.reason) == (row.config not in right)
        assert (row.median_us < math.inf) == (row.config in right)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 12))
def test_a_search_goes_downhill_to_the_end(start, best, size):
    """On a line of numbers with one lowest point it arrives there, whatever the start."""
    step = lambda x: [y for y in (x - size, x + size) if -200 <= y <= 200]
    fake = Fake(lambda x: 1.0 + abs(x - best))
    found = climb([start], step, fake, limit=400)
    assert abs(found.best.config - best) <= size / 2
    assert len(fake.asked) == len(set(fake.asked)), "nothing is measured twice"


@given(st.integers(1, 30), st.integers(1, 10))
def test_the_limit_holds(limit, first):
    fake = Fake(lambda x: 1000.0 - x)
    found = climb(range(first), lambda x: range(x, x + 9), fake, limit=limit)
    assert len(found.rows) == len(fake.asked) == limit
    assert fake.batches[0] == min(first, max(1, limit // 2)), "half is for neighbours"


def test_neighbours_are_picked_anew_after_a_few():
    fake = Fake(lambda x: 1000.0 - x)
    climb([0], lambda x: range(x, x + 100), fake, limit=30, at_once=4)
    assert fake.batches == [1, *[4] * 7, 1]


def test_without_neighbours_the_first_ones_have_the_whole_limit():
    assert len(climb(range(50), lambda _: (), Fake(lambda x: 1.0 + x), limit=30).rows) == 30


def test_the_last_round_decides():
    """The GPU was fast for 1 by chance; in turn with the others it is not."""

    class Lucky(Fake):
        def in_turn(self, configs):
            return [self.row(c, 5)._replace(us=(9.0 if c == 1 else 5.0,) * 5) for c in configs]

    found = climb([1, 2, 3], lambda _: (), Lucky(lambda x: float(x)))
    assert [row.config for row in found.finals] == [1, 2, 3]
    assert found.best.config == 2


def test_what_turns_out_wrong_in_the_last_round_does_not_win():
    class Flaky(Fake):
        def in_turn(self, configs):
            rows = super().in_turn(configs)
            return [row._replace(reason="wrong") if row.config == 1 else row for row in rows]

    assert climb([1, 2], lambda _: (), Flaky(float)).best.config == 2


def test_the_median_decides_not_the_fastest_launch():
    rows = {1: (1.0, 9.0, 9.0), 2: (5.0, 5.0, 5.0)}

    class Uneven(Fake):
        def row(self, config, samples):
            return Row(config, rows[config])

    assert climb([1, 2], lambda _: (), Uneven(None)).best.config == 2


def test_a_search_of_a_large_space_finds_a_hidden_optimum():
    hidden = MatmulConfig(128, 256, 64, 4, 2, 0, "chained", "m", 16, cluster_m=2)
    space = Ranked(*matmul_space(4096, 4096, 4096, "bfloat16"))
    assert hidden in space.configs
    fields = [field.name for field in dataclasses.fields(hidden)]
    off = lambda c: sum(getattr(c, name) != getattr(hidden, name) for name in fields)
    seen = []
    fake = Fake(lambda c: 100.0 + off(c))
    found = measured(space, fake, limit=150, log=lambda row, best: seen.append((row, best)))
    assert found.best.config == hidden
    assert len(seen) == len(found.rows) <= 150
    assert [best for _, best in seen] == [
        min(row.median_us for row, _ in seen[: i + 1]) for i in range(len(seen))
    ]


def test_failures_are_rows_with_their_reason():
    found = climb([1, 2, 3], lambda _: (), Fake({1: None, 2: -1.0, 3: 50.0}.get))
    assert found.best.config == 3
    reasons = {row.config: row.reason for row in found.rows}
    assert reasons == {1: "no answer in 20 s", 2: "wrong: an element is off by 0.5", 3: ""}


def test_a_configuration_in_label():
    assert label(MatmulConfig()) == "the default"
    assert label(MatmulConfig(width=4, cluster_m=2)) == "width=4, cluster_m=2"


def test_found_without_finals_has_no_best():
    assert Found((), ()).best is None
