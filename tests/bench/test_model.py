"""The pairs that the simulator's error is worked out on, and how they are measured."""

import json

import jax
import pytest

from benchmarks import model, model_runs
from benchmarks.model_pairs import Pair, pairs
from pipelib.bench.cupti import Kernel
from pipelib.kernels.hopper import Gpu, assumed

pytestmark = pytest.mark.one_jax


@pytest.fixture(scope="module", autouse=True)
def _on_an_h200():
    with assumed(Gpu("NVIDIA H200", "9.0")):
        yield


def test_there_are_enough_pairs_of_every_family():
    found = pairs()
    assert len(found) >= 200 and all(pair.name == name for name, pair in found.items())
    families = {pair.family for pair in found.values()}
    assert families >= {"matmul", "hopper_matmul_mgpu", "softmax", "attention",
                        "attention's gradients", "kernels of chapters"}  # fmt: skip
    for family in families:
        held_out = [pair.held_out for pair in found.values() if pair.family == family]
        assert any(held_out) and not all(held_out), family
    assert sum(pair.held_out for pair in found.values()) >= len(found) / 2


def test_a_name_alone_says_whether_a_pair_is_held_out():
    pair = next(iter(pairs().values()))
    assert pair._replace(function=print, args=()).held_out == pair.held_out
    others = [pair._replace(config=str(number)).held_out for number in range(300)]
    assert 150 < sum(others) < 250


def test_families_come_in_turn():
    made = [Pair(family, "", str(n), print, ()) for family in "aab" for n in range(2)]
    assert [pair.family for pair in model.in_turn(made)] == ["a", "b", "a", "b", "a", "a"]


def test_times_are_those_of_each_kernel_by_name_and_the_clock_of_the_same_call():
    call = [Kernel("dq", 1.0), Kernel("dkv", 2.0), Kernel("dkv", 2.5), Kernel("dq", 1.5)]
    counts = [Kernel("long_count_kernel", 0.0220), Kernel("short_count_kernel", 0.002)]
    slower = [Kernel("long_count_kernel", 0.0420), Kernel("short_count_kernel", 0.002)]
    assert model_runs.by_kernel([call + counts, slower + call], launches=2) == dict(
        kernels=dict(
            dq=dict(runs=1, us=[1250.0, 1250.0]), dkv=dict(runs=1, us=[2250.0, 2250.0])
        ),
        mhz=[2000.0, 1000.0],
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=r"no clock: .'dq', 'dkv'"):
        model_runs.by_kernel([call], launches=2)


def test_a_record_has_a_pair_on_a_line():
    record = dict(command="python", pairs={"one": dict(mhz=[1.0]), "two": dict(reason="no")})
    text = model.text(record)
    assert json.loads(text) == record
    assert text.splitlines()[3:5] == ['  "one": {"mhz": [1.0]},', '  "two": {"reason": "no"}']


@pytest.mark.parametrize("family", ["matmul", "copy", "attention", "attention's gradients"])
def test_sets_of_operands_and_kernels_lower_for_hopper(family):
    pair = next(pair for pair in pairs().values() if pair.family == family)
    sets = [pair.args] * 2
    assert model_runs.rotation(pair).trace(sets).lower(lowering_platforms=("cuda",)).as_text()
    drawn = jax.eval_shape(lambda: model_runs._draw(pair, 2))
    assert [[(x.shape, x.dtype) for x in each] for each in drawn] == [
        [(x.shape, x.dtype) for x in pair.args]
    ] * 2  # fmt: skip
