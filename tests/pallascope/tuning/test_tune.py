"""`tuning.tune`: the search with a stand-in for the GPU, what it tries, what it writes."""

import dataclasses
import functools
import json
import math
import re

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallascope.tuning import matmul
from pallascope.tuning import tune as public_tune
from pallascope.tuning.candidates import candidates, estimate_us, neighbours, starts
from pallascope.tuning.climbing import climb
from pallascope.tuning.matmul import tune_with
from pallascope.tuning.products import Problem
from pallascope.tuning.record import table, write_search
from pallascope.tuning.rows import Found, Row
from pallascope.tuning.spaces import label
from pipelib.kernels import MatmulConfig
from pipelib.kernels.matmul import tuned

SQUARE = Problem(4096, 4096, 4096)
FACTS = dict(
    command="a test", seed=0, distribution="none",
    provenance=dict(gpu="NVIDIA H200", driver="1", jax="0", utc="2026-01-01T00:00:00+00:00",
                    code_digest="0"),
)  # fmt: skip


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


# The search.


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


# What it tries.


@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 40).map(lambda x: 64 * x), st.integers(1, 40).map(lambda x: 64 * x),
    st.integers(1, 80).map(lambda x: 128 * x), st.sampled_from(["bfloat16", "float8_e4m3fn"]),
    st.sampled_from([None, "float32"]),
)  # fmt: skip
def test_every_candidate_fits(m, n, k, dtype, out_dtype):
    problem = Problem(m, n, k, dtype, transpose_b=True, out_dtype=out_dtype)
    found = candidates(problem)
    assert len(found) == len(set(found)) > 100
    estimates = [estimate_us(config, problem) for config in found]
    assert estimates == sorted(estimates) and estimates[0] > 0
    for config in found[:: len(found) // 50]:
        config.check(dtype, problem.out.dtype)
        more = dataclasses.replace(config, slots=config.slots + 1)
        steps = math.ceil(k / config.tile_k)
        if config.slots < 8 and steps % config.slots:
            with pytest.raises(ValueError, match="shared memory"):
                more.check(dtype, problem.out.dtype)


def test_the_estimate_knows_waves_padding_and_the_tensor_cores():
    config = MatmulConfig()
    us = functools.partial(estimate_us, config)
    assert us(Problem(128 * 132, 256, 4096)) == pytest.approx(us(Problem(128, 256, 4096)), rel=2)
    assert us(Problem(128 * 133, 256, 4096)) > 1.6 * us(Problem(128 * 132, 256, 4096))
    few = Problem(128, 256, 64 * 9)
    assert estimate_us(dataclasses.replace(config, slots=3), few) < us(few), "9 steps are 12"
    # Nothing is faster than the tensor cores: 8192^3 at 990 TFLOP/s, the data sheet's figure.
    large = Problem(8192, 8192, 8192)
    assert min(estimate_us(c, large) for c in candidates(large)) > large.flops / 1.1e15 * 1e6


def test_starts_have_each_tile_once_and_neighbours_differ_in_one_thing():
    space = candidates(SQUARE)
    shape = lambda c: (c.tile_m, c.tile_n, c.compute_threads, c.cluster_m, c.cluster_n)
    first = starts(space)
    assert len(first) == len(set(map(shape, first))) == len(set(map(shape, space)))
    assert first[0] == space[0]
    for other in neighbours(first[0], space):
        changed = {
            field.name
            for field in dataclasses.fields(other)
            if getattr(other, field.name) != getattr(first[0], field.name)
        }
        assert changed <= {"tile_m", "tile_n", "compute_threads", "slots"} or (
            changed in ({"order", "width"}, {"order"}, {"width"}, {"delay_release"}, {"form"})
            or changed <= {"cluster_m", "cluster_n"}
        )
        assert changed


def test_a_search_that_ends_early_has_tried_each_thing():
    """Near the ladder's last rung: no cluster, and the other, among the first neighbours."""
    best = MatmulConfig(cluster_m=2, order="m")
    space = candidates(SQUARE)
    near = neighbours(best, space)
    assert len(near) == len(set(near)) > 20
    things = "tile", "cluster", "order width", "delay", "form"
    is_new = lambda words: any(
        getattr(other, field.name) != getattr(best, field.name)
        for other in near[:8]
        for field in dataclasses.fields(other)
        if any(field.name.startswith(word) for word in words.split())
    )
    assert [thing for thing in things if not is_new(thing)] == []
    clusters = [(other.cluster_m, other.cluster_n) for other in near[:12]]
    assert {(1, 1), (1, 2)} <= {*clusters}


def test_a_search_of_the_real_space_finds_a_hidden_optimum():
    hidden = MatmulConfig(128, 256, 64, 4, 2, 0, "chained", "m", 16, cluster_m=2)
    space = candidates(SQUARE)
    assert hidden in space
    fields = [field.name for field in dataclasses.fields(hidden)]
    off = lambda c: sum(getattr(c, name) != getattr(hidden, name) for name in fields)
    lines = []
    found = tune_with(Fake(lambda c: 100.0 + off(c)), SQUARE, limit=150, log=lines.append)
    assert found.best.config == hidden
    assert len(lines) == len(found.rows) <= 150
    assert re.fullmatch(
        r"4096x4096x4096 bfloat16 NN 1\. .*: [\d.]+ TFLOP/s \(best [\d.]+\)", lines[0]
    )


def test_failures_are_rows_with_their_reason():
    configs = [MatmulConfig(), MatmulConfig(width=4), MatmulConfig(width=2)]
    lines = []
    times = dict(zip(configs, (None, -1.0, 50.0)))
    found = tune_with(Fake(times.get), SQUARE, configs=configs, log=lines.append)
    assert found.best.config == configs[2]
    reasons = {row.config: row.reason for row in found.rows}
    assert reasons[configs[0]] == "no answer in 20 s"
    assert "off by 0.5" in reasons[configs[1]]
    assert sum("no answer in 20 s" in line for line in lines) == 1


def test_nothing_to_measure_is_refused():
    with pytest.raises(ValueError) as error:
        tune_with(Fake(lambda _: 1.0), SQUARE, configs=[])
    assert "no configuration to measure for 4096x4096x4096 bfloat16 NN" in str(error.value)


# What is refused before any process begins.


@pytest.fixture
def no_workers(monkeypatch):
    def begun(_):
        pytest.fail("processes have begun")

    monkeypatch.setattr(matmul, "search_workers", begun)


def refused(*sizes, **options):
    """What `tune` says of a product of 512 x 512 x 512 bfloat16, but for these."""
    with pytest.raises((ValueError, TypeError)) as error:
        public_tune(*(sizes or (512,) * 3), **dict(dtype="bfloat16", limit=1) | options)
    return str(error.value)


@pytest.mark.parametrize(
    ("sizes", "options", "text"),
    [
        ((0, 512, 512), {}, "tune: m=0, n=512 and k=512 must be 1 or more: there is nothing to"),
        (("a", 512, 512), {}, "tune: m='a' has type str, but a kernel is compiled for it, so"),
        ((512, 512, 64.0), {}, "tune: k=64.0 has type float, but a kernel is compiled for it"),
        ((), dict(dtype="nonsense"), "tune: dtype='nonsense' has type str, but it is the dtype of"),
        ((), dict(dtype="float32"), "matmul: a is float32, but wgmma multiplies here float16, bf"),
        ((), dict(out_dtype="int8"), "matmul: out_dtype=int8 is none of float16, bfloat16, float3"),
        ((), dict(dtype="float8_e4m3fn"), "matmul: transpose_a=False and transpose_b=False in flo"),
        ((), dict(limit=0), "tune: limit=0 is less than 1, so nothing would be measured."),
        ((), dict(samples=0), "tune: samples=0 is less than 1, so nothing would be measured."),
        ((), dict(jobs=-1), "tune: jobs=-1 is less than 1, so nothing would be measured."),
        ((), dict(jobs=0), "tune: jobs=0 is less than 1, so nothing would be measured."),
        ((), dict(configs=[MatmulConfig(), 3]), "tune: configs[1]=3 has type int, but a MatmulCon"),
        ((), dict(configs=MatmulConfig()), "has type MatmulConfig, but what is to be measured com"),
    ],
)
def test_what_cannot_be_tuned(no_workers, sizes, options, text):
    assert text in refused(*sizes, **options)


@pytest.mark.parametrize("transposed", [dict(), dict(transpose_a=True), dict(transpose_b=True)])
@pytest.mark.parametrize("sizes", [(500, 500, 500), (17, 512, 512), (512, 512, 65)])
def test_what_matmul_makes_without_its_kernel(no_workers, sizes, transposed):
    problem = Problem(*sizes, **transposed)
    a, b = (x.shape for x in problem.factors)
    assert refused(*sizes, **transposed) == (
        f"tune: a {a}, b {b} and the output {sizes[:2]} must all have rows of a multiple of 128"
        " bytes, and at most 8 rows or a multiple of them; since they do not, most"
        " configurations cannot copy them, and a search would compare few: call matmul without"
        " config."
    )


def test_a_record_that_could_not_be_written(no_workers, tmp_path):
    (taken := tmp_path / "file").write_text("[]", "utf-8")
    for path in (tmp_path, taken / "tune.json"):
        text = refused(path=path)
        assert text.startswith(f"tune: path={str(path)!r} cannot be written (")
        assert text.endswith("), so the search would be lost: name a file in a folder of yours.")
    for other in ("[]", "no JSON", '{"groups": []}'):
        taken.write_text(other, "utf-8")
        assert refused(path=taken) == (
            f"tune: path={str(taken)!r} is not a record of searches, so this one cannot be added"
            " to it: name another file."
        )
        assert taken.read_text("utf-8") == other


def test_what_can_be_tuned_gets_as_far_as_the_workers(monkeypatch, tmp_path):
    class BegunError(Exception):
        pass

    def begin(jobs):
        raise BegunError(jobs)

    monkeypatch.setattr(matmul, "search_workers", begin)
    path = tmp_path / "new" / "tune.json"
    for options in (
        dict(), dict(dtype=jnp.float8_e4m3fn, transpose_b=True), dict(out_dtype=jnp.float32),
        dict(jobs=3, configs=(MatmulConfig(),), path=path), dict(m=8), dict(m=1, transpose_b=True),
    ):  # fmt: skip
        with pytest.raises(BegunError) as error:
            public_tune(**dict(m=512, n=512, k=512, dtype="bfloat16") | options)
        assert error.value.args == (options.get("jobs"),)
    assert list(path.parent.iterdir()) == [], "nothing is left where it was tried"


def test_without_a_gpu_nothing_runs_and_the_error_says_why():
    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU here, on which it would run")
    lines = []
    with pytest.raises(RuntimeError) as error:
        public_tune(128, 256, 64, jnp.bfloat16, configs=[MatmulConfig()], jobs=1, log=lines.append)
    assert "none of 1 configurations ran and was right for 128x256x64 bfloat16" in str(error.value)
    assert "Only interpret mode is supported on CPU" in str(error.value)
    assert len(lines) == 1


@pytest.mark.gpu
def test_a_search_on_the_gpu(tmp_path):
    path, lines = tmp_path / "tune.json", []
    config = public_tune(1024, 1024, 1024, "float16", transpose_b=True, limit=8, samples=4,
                         path=path, log=lines.append)  # fmt: skip
    (found,) = json.loads(path.read_text())["searches"]
    assert len(found["rows"]) == len(lines) == 8
    assert config in candidates(Problem(1024, 1024, 1024, "float16", False, True))
    assert found["run"]["provenance"]["gpu"]
    assert all(len(us) >= 20 for _, us, _, reason in found["finals"] if not reason)
    (tmp_path / "table.json").write_text(table(json.loads(path.read_text())))
    assert tuned.read(tmp_path / "table.json")[0].config == config


def test_a_configuration_in_label():
    assert label(MatmulConfig()) == "the default"
    assert label(MatmulConfig(width=4, cluster_m=2)) == "width=4, cluster_m=2"


# Records and tables.


def found_of(times):
    return tune_with(Fake(times.get, drift=0.5), SQUARE, configs=list(times), log=lambda _: None)


def test_a_record_keeps_every_sample_and_its_provenance(tmp_path):
    path = tmp_path / "gpu" / "tune.json"
    fast, slow, bad = MatmulConfig(), MatmulConfig(width=4), MatmulConfig(width=2)
    write_search(path, SQUARE, found_of({slow: 80.0, fast: 70.0, bad: None}), FACTS)
    other = SQUARE._replace(n=8192)
    write_search(path, other, found_of({slow: 60.0}), FACTS)
    record = json.loads(path.read_text())
    first, second = record["searches"]
    assert first["problem"]["n"] == 4096 and second["problem"]["n"] == 8192
    assert first["run"] == FACTS
    rows = {tuple(values): rest for values, *rest in first["rows"]}
    values = lambda config: tuple(getattr(config, name) for name in first["fields"])
    assert rows[values(slow)] == [[80.0, 80.5, 81.0], 0.01, ""]
    assert rows[values(bad)] == [[], None, "no answer in 20 s"]
    assert len(first["finals"][0][1]) == 5
    assert not list(path.parent.glob("*.part"))

    write_search(path, SQUARE, found_of({slow: 50.0}), FACTS)
    record = json.loads(path.read_text())
    assert len(record["searches"]) == 2, "a newer search takes the place of an older one"
    assert record["searches"][1]["rows"][0][1] == [50.0, 50.5, 51.0]


def test_a_table_has_the_winner_of_each_search(tmp_path):
    path = tmp_path / "tune.json"
    fast, slow = MatmulConfig(), MatmulConfig(width=4)
    write_search(path, SQUARE, found_of({slow: 80.0, fast: 70.0}), FACTS)
    write_search(path, SQUARE._replace(n=8192), found_of({slow: None}), FACTS)
    text = table(json.loads(path.read_text()))
    (tmp_path / "table.json").write_text(text)
    (entry,) = tuned.read(tmp_path / "table.json")
    assert entry.config == fast and entry.microseconds == 71.0 and entry.measured == 2
    assert entry.run["gpu"] == "NVIDIA H200" and entry.run["code_digest"]
    assert tuned.Entry.from_json(entry.to_json()) == entry


def entry_of(m, n, k, dtype="bfloat16", transposed=(False, False), config=None):
    config = config or MatmulConfig(width=m % 31 + 1)
    return tuned.Entry(m, n, k, dtype, *transposed, "bfloat16", config, 1.0, 1, {})


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Writes tables by file name, in place of the package's."""
    monkeypatch.setattr(tuned, "FOLDER", tmp_path)

    def write(**entries):
        for name, found in entries.items():
            lines = ",".join(json.dumps(entry.to_json()) for entry in found)
            path = tmp_path / f"{name.replace('_', '-')}.json"
            path.write_text(f'{{"entries": [{lines}]}}')
        tuned._tables.cache_clear()

    yield write
    tuned._tables.cache_clear()


sizes = st.integers(6, 14).map(lambda x: 2**x)
shapes = st.tuples(sizes, sizes, sizes)


@settings(max_examples=80)
@given(st.lists(shapes, min_size=1, unique=True), shapes, st.sampled_from([64, 128, 256]))
def test_the_nearest_entry_of_as_many_tiles_and_steps(recorded, shape, unit):
    """With tiles of unit x 64 and steps of 64, of sizes that are powers of two from 64 on."""
    configs = [MatmulConfig(unit, 64, compute_threads=1, width=i + 1) for i in range(len(recorded))]
    entries = [entry_of(*x, config=config) for x, config in zip(recorded, configs)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuned, "_tables", lambda gpu: (tuple(entries),))
        found = tuned.nearest_config(*shape, "bfloat16", gpu="NVIDIA H200")
    grid = lambda m, n, k: (math.ceil(m / unit), n, k)
    apart = {
        abs(math.log2(x[0] / shape[0])): config
        for x, config in reversed([*zip(recorded, configs)])
        if grid(*x) == grid(*shape) and 4 * shape[0] >= 3 * x[0]
    }
    assert found == (apart[min(apart)] if apart else None)


def test_only_the_same_size_of_factors_and_transpositions_count(tables):
    plain, turned = MatmulConfig(width=2), MatmulConfig(width=3)
    tables(nvidia_h200=[
        entry_of(64, 64, 64, transposed=(False, True), config=turned),
        entry_of(4096, 4096, 4096, config=plain),
    ])  # fmt: skip
    nearest = functools.partial(tuned.nearest_config, gpu="NVIDIA H200")
    assert nearest(4096, 4096, 4096, jnp.float16) == plain
    assert nearest(4095, 4089, 4033, jnp.bfloat16) == plain, "as many tiles and steps"
    assert nearest(4096, 4096, 4032, jnp.bfloat16) is None, "a step less"
    assert nearest(3968, 4096, 4096, jnp.bfloat16) is None, "a row of tiles less"
    assert nearest(48, 64, 64, "bfloat16", transpose_b=True) == turned
    assert nearest(47, 64, 64, "bfloat16", transpose_b=True) is None, "many rows less"
    assert nearest(4096, 4096, 4096, "bfloat16", transpose_a=True) is None
    assert nearest(4096, 4096, 4096, "float8_e4m3fn") is None


def test_a_configuration_that_does_not_fit_the_result_is_passed_over(tables):
    large, small = MatmulConfig(slots=4, epilogue_n=128), MatmulConfig(slots=3)
    near, far = (entry_of(*shape, config=config) for shape, config in
                 (((4096,) * 3, large), ((4096, 4096, 4090), small)))  # fmt: skip
    tables(nvidia_h200=[near, far])
    with pytest.raises(ValueError, match="shared memory"):
        large.check("bfloat16", "float32")
    nearest = functools.partial(tuned.nearest_config, *(4096,) * 3, "bfloat16", gpu="NVIDIA H200")
    assert nearest(out_dtype="float32") == small


def test_another_gpu_s_table_is_better_than_none(tables):
    mine, other = MatmulConfig(width=2), MatmulConfig(width=3)
    tables(nvidia_h100=[entry_of(64, 64, 64, config=mine)],
           nvidia_h200=[entry_of(64, 64, 64, config=other)])  # fmt: skip
    nearest = functools.partial(tuned.nearest_config, 64, 64, 64, "bfloat16")
    assert nearest(gpu="NVIDIA H100") == mine
    assert nearest(gpu="NVIDIA H200") == other
    assert nearest(gpu="NVIDIA H20") == mine, "the first of the others"
    assert nearest() == mine, "no GPU here"


def test_without_a_table_there_is_no_answer(tables):
    assert tuned.nearest_config(64, 64, 64, "bfloat16") is None


def test_a_table_is_read_once(tables, monkeypatch):
    tables(nvidia_h200=[entry_of(64, 64, 64)])
    counted = []
    read = tuned.read
    monkeypatch.setattr(tuned, "read", lambda path: counted.append(path) or read(path))
    for _ in range(3):
        tuned.nearest_config(64, 64, 64, "bfloat16", gpu="NVIDIA H200")
    assert len(counted) == 1


def test_found_without_finals_has_no_best():
    assert Found((), ()).best is None
