"""The configuration that a formula chooses: whether it is sound, and how near to the fastest."""

import dataclasses
import functools
import json
import math
import random
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import pallascope
from benchmarks import choices
from pipelib.kernels import AttentionConfig, attention
from pipelib.kernels.attention import attention_kernel, choosing, default_config, forward
from pipelib.kernels.attention.band import Band, Options, Sizes
from pipelib.kernels.attention.choosing import Cost, chosen
from pipelib.kernels.attention.config import Tiles
from pipelib.kernels.hopper import Gpu, assumed
from pipelib_book.measured import attention as records
from tests.kernels.attention.cases import BRAIN, HALF, operands

SHAPES, ITEM = 10_000, 2
H200 = Gpu("NVIDIA H200", "9.0")
EACH = [(head_dim, kind) for head_dim, kinds in choosing.KINDS.items() for kind in kinds]
named = pytest.mark.parametrize(
    ("head_dim", "kind"), EACH, ids=lambda x: getattr(x, "name", str(x))
)


@pytest.fixture
def h200():
    with assumed(H200):
        yield


def config_of(head_dim, kind):
    return dataclasses.replace(default_config(head_dim), **kind.fields)


def unmasked(left=None, right=None):
    return Options(left, right, 1.0, None)


# Any shape.


def random_problems(seed=0):
    """Options, sizes, and whether there are segments: of any size that fits a GPU's memory."""
    rng = random.Random(seed)
    size = lambda most: max(1, round(2 ** rng.uniform(0.0, math.log2(most))))
    for _ in range(SHAPES):
        head_dim, group, kv_heads = rng.choice([64, 128, 192, 256]), size(8), size(32)
        batch, queries = size(64), size(32768)
        keys = rng.choice([queries, queries, size(32768)])
        if batch * queries * group * kv_heads > 2**23:
            batch = 1
        left, right = rng.choice([None, None, size(4096)]), rng.choice([None, 0, size(4096)])
        sizes = Sizes(batch, queries, keys, kv_heads * group, group, head_dim)
        yield unmasked(left, right), sizes, rng.random() < 0.1


@pytest.mark.slow
def test_each_of_many_shapes_has_a_valid_configuration_of_few_estimates(with_estimates, h200):
    found = set()
    for options, sizes, segmented in random_problems():
        config, estimates = with_estimates(
            choosing, chosen, options, sizes, ITEM, segmented=segmented
        )
        assert estimates <= choosing.MOST_KINDS == 3
        found.add((config, sizes.head_dim))
    for config, head_dim in found:
        config.check(head_dim)
    every = {(config_of(*each), each[0]) for each in EACH} | {(default_config(192), 192)}
    assert found == every, "a kind that is never chosen needs no estimate"


def test_the_steps_of_all_blocks_are_those_of_each():
    for behind, ahead, rows, columns in [
        (None, None, 300, 200),
        (None, 0, 1000, 1000),
        (100, None, 1000, 900),
        (64, 30, 777, 801),
        (None, 5, 640, 100),
        (3, 0, 640, 100),
    ]:
        tiles = Tiles(64, 2, 64)
        of = functools.partial(Band.of, behind, ahead, rows, columns, tiles)
        begins = np.arange(0, rows, 128, dtype=np.int32)
        together = of(begins)
        for name in ("first", "steps"):
            each = [int(getattr(of(jnp.int32(row)), name)) for row in begins]
            found = np.broadcast_to(getattr(together, name), begins.shape)
            assert found.tolist() == each


def test_where_no_gpu_is_the_interpreter_has_its_own():
    sizes = Sizes(1, 1024, 1024, 8, 1, 128)
    assert chosen(unmasked(), sizes, ITEM) == default_config(128)
    assert default_config(128).probabilities == "interpreted"


def test_gradients_are_those_of_the_default(h200):
    sizes = Sizes(1, 1024, 1024, 8, 1, 128)
    for deterministic in (False, True):
        options = unmasked()._replace(deterministic=deterministic)
        config, default = chosen(options, sizes, ITEM), default_config(128, deterministic)
        assert config.compute_threads == 1 != default.compute_threads
        assert config.gradients(128) == default.gradients(128)
        assert config.fused == default.fused


def test_blocks_that_must_be_whole(h200):
    """Of 1280 queries, 192 leave some; of 1000 all do, and the default's error says so."""
    sizes = Sizes(1, 1280, 1280, 16, 1, 128)
    assert chosen(unmasked(), sizes, ITEM).block_q == 192
    assert chosen(unmasked(), sizes, ITEM, whole=True).block_q == 128
    rest = sizes._replace(queries=1000, keys=1000)
    assert chosen(unmasked(), rest, ITEM, whole=True) == default_config(128)
    arrays = operands(1280, 1280, 16, 16, 128)
    found, _ = jax.eval_shape(attention_kernel, *arrays)
    assert found.shape == (1, 1280, 16, 128)
    with pytest.raises(ValueError, match="1000 queries are not a multiple of 128"):
        attention_kernel(*operands(1000, 1000, 16, 16, 128))


def test_the_call_takes_what_is_chosen(h200):
    """The jaxpr is that of a call with this configuration."""
    arrays = operands(1024, 1024, 8, 8, 128)
    sizes = Sizes(1, 1024, 1024, 8, 1, 128)
    for options, given in ((unmasked(), {}), (unmasked(None, 0), {"causal": True})):
        config = chosen(options, sizes, ITEM)
        assert config != default_config(128)
        text = lambda config: str(
            jax.make_jaxpr(functools.partial(attention, config=config, **given))(*arrays)
        )
        programs = [
            pallascope.trace(functools.partial(attention, config=x, **given), *arrays)
            for x in (None, config)
        ]
        assert programs[0].grid == programs[1].grid == (1, 8, 16)
        assert text(None).count("pallas_call") == text(config).count("pallas_call")


# Against what was measured.


def features():
    """Of each problem of the table, and each kind: its order, its steps, and its microseconds."""
    found = {}
    for number, row in enumerate(choices.problems()):
        for kind in choosing.KINDS[row.head_dim]:
            if kind.name in row.microseconds:
                options = row.options.configured(config_of(row.head_dim, kind))
                order = forward.order_of(options, row.sizes, ITEM)
                steps = forward.steps_of(options, row.sizes)
                found[number, kind.name] = order, steps, row.microseconds[kind.name]
    return found


#: About what a step, a block, a visit and the rest take: what no time says anything of stays near.
GUESS, WEIGHTS = np.array([1.2, 3.0, 2.0, 1.0]), np.array([0.0, 0.03, 0.03, 0.03])


def fitted(found, numbers):
    """The times of each kind by (size of a head, name), fitted to some problems of the table."""
    rows, costs = choices.problems(), {}
    for head_dim, kind in EACH:
        mine = [
            each
            for (number, name), each in found.items()
            if number in numbers and name == kind.name and rows[number].head_dim == head_dim
        ]

        def errors(x, mine=mine):
            cost = Cost(*np.abs(x))
            off = [math.log(choosing.microseconds(*each, cost) / us) for *each, us in mine]
            return np.r_[off, WEIGHTS * (x - GUESS)]

        best = scipy.optimize.least_squares(errors, GUESS, loss="soft_l1", f_scale=0.03)
        costs[head_dim, kind.name] = Cost(*map(float, np.abs(best.x)))
    return costs


def judged(found, costs, numbers):
    """Of some problems: the errors of estimates, and times over the fastest's.

    These are times of the kind that estimates alone choose, and of the default's.
    """
    errors, ours, defaults = [], [], []
    for number in numbers:
        row = choices.problems()[number]
        names = [x.name for x in choosing.KINDS[row.head_dim] if (number, x.name) in found]
        us = {}
        for name in names:
            us[name] = choosing.microseconds(*found[number, name][:2], costs[row.head_dim, name])
            errors.append(math.log(us[name] / row.microseconds[name]))
        least = min(row.microseconds.values())
        margin = lambda name: 1.0 if name == "default" else 1.0 + choosing.MARGIN
        pick = min(names, key=lambda name: us[name] * margin(name))
        ours.append(row.microseconds[pick] / least)
        defaults.append(row.microseconds["default"] / least)
    return errors, ours, defaults


def rms(errors):
    return math.sqrt(statistics.mean(x * x for x in errors))


def test_the_times_of_parts_are_fitted_to_the_table(h200):
    """And the numbers of the module's docstring."""
    found, every = features(), range(len(choices.problems()))
    costs = {(head_dim, kind.name): kind.cost for head_dim, kind in EACH}
    for key, cost in fitted(found, every).items():
        assert costs[key] == pytest.approx(cost, abs=0.02), key
    errors, ours, _ = judged(found, costs, every)
    assert (len(every), len(errors)) == (42, 101)
    assert (round(rms(errors), 3), round(max(map(abs, errors)), 2)) == (0.035, 0.12)
    assert statistics.mean(ours) < 1.0015 and round(max(ours), 2) == 1.04


def test_what_was_left_out_of_the_fit_is_chosen_well(h200):
    """The numbers of the module's docstring."""
    found, every = features(), range(len(choices.problems()))
    errors, ours, defaults = [], [], []
    for third in range(3):
        left_out = [number for number in every if number % 3 == third]
        costs = fitted(found, [number for number in every if number not in left_out])
        for whole, part in zip((errors, ours, defaults), judged(found, costs, left_out)):
            whole += part
    assert (round(rms(errors), 3), round(max(map(abs, errors)), 2)) == (0.069, 0.34)
    assert (round(statistics.mean(ours), 3), round(max(ours), 2)) == (1.001, 1.04)
    assert (round(statistics.mean(defaults), 2), round(max(defaults), 2)) == (1.12, 1.68)


def test_long_launches_take_longer_than_estimates(h200):
    """The numbers of the module's docstring."""
    ratios = []
    for head_dim in (128, 256):
        (group,) = (
            group
            for group in records.groups("forward")
            if (group.problem["seq"], group.problem["head_dim"]) == (16384, head_dim)
            and group.problem["dtype"] == "bfloat16"
            and not group.problem["causal"]
        )
        sizes = Sizes(1, 16384, 16384, 16, 1, head_dim)
        kind = choosing.KINDS[head_dim][0]
        options = unmasked().configured(config_of(head_dim, kind))
        us = choosing.estimate_us(options, sizes, ITEM, kind.cost)
        measured = 1e6 * group.flops / group.rate("attention")
        ratios.append(round(measured / us, 2))
    assert ratios == [1.07, 1.12]


def test_of_a_measured_problem_the_fastest_is_chosen(h200):
    for row in choices.problems():
        kinds = {x.name: x for x in choosing.KINDS[row.head_dim]}
        best = min(row.microseconds, key=row.microseconds.__getitem__)
        found = chosen(row.options, row.sizes, ITEM)
        assert found == config_of(row.head_dim, kinds[best]), row


def test_with_segments_heads_of_64_have_blocks_of_128_rows(h200):
    sizes = Sizes(1, 16384, 16384, 16, 1, 64)
    assert chosen(unmasked(None, 0), sizes, ITEM).block_q == 192
    assert chosen(unmasked(None, 0), sizes, ITEM, segmented=True).block_q == 128


def test_with_segments_no_measured_row_counts(monkeypatch, h200):
    sizes = Sizes(1, 2048, 2048, 8, 1, 128)  # measured, by a little, against the estimates
    assert chosen(unmasked(None, 0), sizes, ITEM).compute_threads == 1
    assert chosen(unmasked(None, 0), sizes, ITEM, segmented=True) == default_config(128)


@pytest.mark.parametrize(
    ("faster", "slower", "sizes", "right"),
    [
        ("one thread", "default", (1, 1024, 1024, 8, 1, 128), None),  # half of the SMs
        ("default", "one thread", (1, 1024, 1024, 16, 1, 128), None),  # all of them
        ("one thread", "default", (1, 8192, 8192, 2, 1, 128), 0),
        ("default", "one thread", (8, 896, 896, 16, 1, 128), 0),
        ("three threads", "default", (1, 1536, 1536, 16, 1, 128), None),  # one round, not two
        ("default", "three threads", (1, 2048, 2048, 16, 1, 128), None),  # two of both
        ("two threads", "default", (4, 1024, 1024, 16, 1, 64), 0),
        ("default", "two threads", (4, 1024, 1024, 16, 1, 64), None),
        ("one thread", "two threads", (1, 512, 512, 16, 1, 64), None),
        ("one thread", "default", (1, 2048, 2048, 4, 1, 256), None),
        ("default", "one thread", (4, 1024, 1024, 16, 1, 256), 0),
    ],
)
def test_estimates_are_in_the_order_of_the_times(faster, slower, sizes, right, h200):
    sizes, options = Sizes(*sizes), unmasked(None, right)
    us = {
        kind.name: choosing.estimate_us(
            options.configured(config_of(sizes.head_dim, kind)), sizes, ITEM, kind.cost
        )
        for kind in choosing.KINDS[sizes.head_dim]
    }
    assert us[faster] < us[slower]
    (measured,) = (
        row.microseconds
        for row in choices.problems()
        if row.sizes == sizes and (row.left, row.right) == (None, right)
    )
    assert measured[faster] < measured[slower]


def test_places_that_are_dealt_out():
    """Each to the first SM that is free, and the first of many rounds spread evenly."""
    order = forward.BlockOrder(1, 3, 4, together=3, last_is_longest=True)
    each = np.array([1.0, 2.0, 3.0, 4.0])
    # 4 4 4, 3 3 3, 2 2 2, 1 1 1 by two SMs.
    assert choosing._dealt_out(order, each, 2) == 15.0
    long = forward.BlockOrder(1, 1000, 4, together=1, last_is_longest=True)
    mean = 1000 * each.sum() / 2
    assert mean <= choosing._dealt_out(long, each, 2) <= mean + 4.0


def test_the_record_s_problems_have_the_default(h200):
    """So what is measured elsewhere, and told in chapters, is of these kernels."""
    for part in ("forward", "ladder"):
        for group in records.groups(part):
            problem = group.problem
            sizes = Sizes(
                problem["batch"],
                problem["seq"],
                problem["seq"],
                problem["heads"],
                1,
                problem["head_dim"],
            )
            options = unmasked(None, 0 if problem["causal"] else None)
            assert chosen(options, sizes, ITEM) == default_config(sizes.head_dim)


def test_float16_is_chosen_as_bfloat16(h200):
    call = lambda dtype: pallascope.trace(attention, *operands(1024, 1024, 8, 8, 128, dtype)).grid
    assert call(HALF) == call(BRAIN) == (1, 8, 16)


def test_a_configuration_that_is_given_is_taken(h200):
    arrays = operands(1024, 1024, 8, 8, 128)
    given = functools.partial(attention, config=AttentionConfig(block_kv=128))
    assert pallascope.trace(given, *arrays).grid == (1, 8, 8)


def test_the_table_is_as_it_is_written():
    stored = choosing.TABLE.read_text("utf-8")
    run = json.loads(stored)["run"]
    assert choices.text(run, list(choices.problems())) == stored
    assert run["dtype"] == choices.DTYPE
    assert f"median of {choices.ROUNDS * choices.LAUNCHES} launches" in run["samples"]
