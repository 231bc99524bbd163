"""The pairs that the simulator's error is worked out on, and how they are measured."""

import itertools

import jax
import numpy as np
import pytest

from benchmarks import model, predicted, records, starts
from benchmarks.model_pairs import Pair, pairs
from pallascope.bench.cupti import Kernel
from pallascope.program import Kind
from pallascope.tracing.trace import tracers
from pipelib.kernels.hopper import Gpu, assumed


@pytest.fixture(scope="module", autouse=True)
def _on_an_h200():
    with assumed(Gpu("NVIDIA H200", "9.0")):
        yield


def test_there_are_enough_pairs_of_every_family():
    found = pairs()
    assert len(found) >= 200 and all(pair.name == name for name, pair in found.items())
    families = {pair.family for pair in found.values()}
    assert families >= {
        "matmul",
        "hopper_matmul_mgpu",
        "softmax",
        "attention",
        "attention's gradients",
        "kernels of chapters",
    }
    for family in families:
        held_out = [pair.held_out for pair in found.values() if pair.family == family]
        assert any(held_out) and not all(held_out), family
    assert sum(pair.held_out for pair in found.values()) >= len(found) / 2


def test_a_longer_pair_has_the_same_grid_and_more_steps():
    every = pairs()
    for pair in every.values():
        if pair.longer_than is None:
            continue
        short = every[pair.longer_than]
        assert (pair.function, pair.config) == (short.function, short.config)
        grown = [
            [axis for axis, (a, b) in enumerate(zip(x.shape, y.shape)) if a != b]
            for x, y in zip(short.args, pair.args)
        ]
        assert grown == [[] if axis is None else [axis] for axis in short.along]
    longer = [pair for pair in every.values() if pair.longer_than]
    assert len(longer) > 50
    case = next(pair for pair in longer if "specialized" in pair.work)
    with predicted.on_h200():
        both = [
            next(iter(tracers(each.function, each.args, "test"))).program((0, 0))
            for each in (every[case.longer_than], case)
        ]
    short, long = (sum(op.kind is Kind.LOAD for op in p.ops) for p in both)
    assert both[0].grid == both[1].grid and long == 2 * short


def test_a_name_alone_says_whether_a_pair_is_held_out():
    pair = next(iter(pairs().values()))
    assert pair._replace(function=print, args=()).held_out == pair.held_out
    others = [pair._replace(config=str(number)).held_out for number in range(300)]
    assert 150 < sum(others) < 250


def test_families_come_in_turn():
    made = [Pair(family, "", str(n), print, ()) for family in "aab" for n in range(2)]
    assert [pair.family for pair in model.in_turn(made)] == ["a", "b", "a", "b", "a", "a"]


def test_times_are_those_of_each_kernel_by_name_but_for_stamps():
    call = [Kernel("dq", 1.0), Kernel("dkv", 2.0), Kernel("dkv", 2.5), Kernel("dq", 1.5)]
    stamp = Kernel("stamp_kernel", 0.002)
    twice = [[stamp, *call, stamp], [stamp, *reversed(call), stamp]]
    assert model.by_kernel(twice, launches=2) == dict(
        dq=dict(runs=1, us=[1250.0, 1250.0]), dkv=dict(runs=1, us=[2250.0, 2250.0])
    )


def stamps(**sms):
    """Of SMs by number: what their counter and the timer were."""
    rows = [(int(sm[2:]), counter % 2**32, ns % 2**32) for sm, (counter, ns) in sms.items()]
    return np.array(rows, np.uint32).view(np.int32)


def test_the_clock_is_the_median_over_sms_of_cycles_by_time():
    before = stamps(sm0=(1000, 50), sm1=(2000, 50), sm2=(0, 50))
    after = stamps(sm2=(1900, 1050), sm0=(2800, 1050), sm1=(3000, 1050))
    assert model.clock_mhz(before, after) == 1800


@pytest.mark.parametrize("counter", [0, 2**31 - 100, 2**32 - 100])
@pytest.mark.parametrize("ns", [0, 2**31 - 100, 2**32 - 100])
def test_counter_and_timer_may_wrap_between_stamps(counter, ns):
    before, after = stamps(sm7=(counter, ns)), stamps(sm7=(counter + 1800, ns + 1000))
    assert model.clock_mhz(before, after) == 1800


def test_sms_that_one_stamp_lacks_have_no_clock():
    before = stamps(sm0=(0, 0), sm1=(0, 0))
    after = stamps(sm1=(1500, 1000), sm2=(9000, 1000))
    assert model.clock_mhz(before, after) == 1500


def test_a_stamped_call_keeps_its_stamps():
    count = itertools.count()
    stamped = model._Stamped(lambda x: (x, next(count)), lambda: next(count))
    assert [stamped("a"), stamped("b")] == [(("a", 1), (0, 2)), (("b", 4), (3, 5))]
    assert stamped.stamps == [(0, 2), (3, 5)]
    # JAX's Cupti would jit anything else, and the stamps with it.
    assert isinstance(stamped, jax.stages.Wrapped)


@pytest.mark.parametrize("family", ["matmul", "copy", "attention", "attention's gradients"])
def test_sets_of_operands_and_kernels_lower_for_hopper(family):
    pair = next(pair for pair in pairs().values() if pair.family == family)
    sets = [pair.args] * 2
    assert model.rotation(pair).trace(sets).lower(lowering_platforms=("cuda",)).as_text()
    drawn = jax.eval_shape(lambda: model._draw(pair, 2))
    assert [[(x.shape, x.dtype) for x in each] for each in drawn] == [
        [(x.shape, x.dtype) for x in pair.args]
    ] * 2


#: The last case of each kind of block.
BLOCKS = {case._replace(blocks=0, cycles=0): case for case in starts.starts()}


@pytest.mark.parametrize("case", [*BLOCKS.values()], ids=lambda case: case.name)
def test_kernels_that_pass_time_lower_for_hopper(case):
    jax.jit(starts.kernel(case)).trace().lower(lowering_platforms=("cuda",))


def test_the_record_of_starts_has_each_case():
    (group,) = records.read(records.RESULTS / "nvidia-h200" / "starts.json")
    cases = {case.name: case for case in starts.starts()}
    assert group["contenders"].keys() == cases.keys()
    for name, row in group["contenders"].items():
        assert len(row.pop("us")) == starts.CALLS and row.pop("compiled")
        assert starts.Start(**row) == cases[name]
