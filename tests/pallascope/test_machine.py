"""`Machine`: the committed measurements say what the package says, and how far off the model is."""

import json
import pathlib
import re
from dataclasses import replace
from statistics import median

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pallascope
from benchmarks import clocked, probes
from benchmarks import machine as benchmark
from pallascope import machine
from pallascope.machine import B200, FIELDS, H100, H200, Machine
from pallascope.simulating.simulate import simulate
from pipelib_book.measured import results
from tests.pallascope.toy import TOY

ROOT = pathlib.Path(__file__).parents[2]
(RECORD,) = results.read("nvidia-h200/machine.json")


def test_the_package_has_what_was_measured():
    derived = benchmark.parameters(RECORD)
    assert derived == H200
    assert derived.exchanges_per_cycle == benchmark.SHUFFLES_PER_CYCLE == 32
    text = (ROOT / "pallascope/machines/h200.json").read_text()
    assert text == derived.to_json() == H200.to_json()


def test_what_is_calibrated_is_in_one_table_and_says_so():
    for field in benchmark.CALIBRATED:
        assert re.search(rf"\n *{field}: (calibrated|\(use, fraction\))", Machine.__doc__), field
    assert len(re.findall(": calibrated;", Machine.__doc__)) == len(benchmark.CALIBRATED) - 1


def test_the_record_says_where_it_is_from():
    provenance = RECORD["provenance"]
    assert provenance["gpu"] == H200.name == "NVIDIA H200"
    assert provenance["compute_capability"] == "9.0"
    assert len(provenance["code_digest"]) == 64
    for name, probe in RECORD["probes"].items():
        assert len(probe["cycles"]) == RECORD["launches"], name


def test_the_h100_differs_in_hbm_alone():
    same = replace(H100, name=H200.name, hbm_bytes_per_second=H200.hbm_bytes_per_second)
    assert same == H200
    assert H100.hbm_bytes_per_second < H200.hbm_bytes_per_second
    assert "as measured on an H200" in H100.name


def test_the_b200_s_figures_are_public_ones():
    """And its name, which every figure shows, says that none was measured."""
    assert "not validated on hardware" in B200.name
    assert B200.tcgen05_rate("bfloat16") * B200.sms * B200.clock_hz == pytest.approx(2.25e15)
    assert B200.tcgen05_rate("float8_e4m3fn") == 2 * B200.tcgen05_rate("float16") == 16384
    assert (B200.hbm_bytes_per_second, B200.smem_bytes_per_cycle) == (8e12, 128)
    assert B200.loaded(1.0) == B200
    each = lambda m: m.l2_bytes_per_second / (m.sms * m.clock_hz)
    assert each(B200) == pytest.approx(each(H200))


def test_what_a_machine_does_not_have_has_no_time():
    told = (
        "k.py:7 is a tcgen05_mma, which NVIDIA H200 does not have, so it has no time: simulate it"
        " on pallascope.B200."
    )
    with pytest.raises(ValueError, match=re.escape(told)):
        H200.tcgen05_rate("float16", "k.py:7")
    with pytest.raises(
        ValueError, match=r"is a wgmma, which .* on pallascope.H200 or pallascope.H100\."
    ):
        B200.wgmma_rate("float16")
    told = "An op accesses TMEM, which NVIDIA H200 does not have, so it has no time: simulate it on"
    with pytest.raises(ValueError, match=told):
        H200.tmem_rate()


def test_a_machine_is_changed_in_fields_that_it_has():
    assert H200.changed(hbm_bytes_per_second=H100.hbm_bytes_per_second, name=H100.name) == H100
    told = "A Machine has no field 'hbm_latency', so its simulation would be no other: give one of"
    with pytest.raises(TypeError, match=told):
        H200.changed(hbm_latency=0)


def test_each_parameter_has_a_source():
    for field in FIELDS:
        assert re.search(rf"\n *{field}: ", Machine.__doc__), field


def test_probes_agree_with_the_model_of_the_tensor_core():
    """Products take the longer of arithmetic and of reading operands at SMEM's rate."""
    rate = dict(H200.wgmma_flops_per_cycle)["float16"]
    for n in (16, 32, 64):
        moved = (64 * 64 + 64 * n) * 2
        cycles = max(2 * 64 * n * 64 / rate, moved / H200.smem_bytes_per_cycle)
        name = f"wgmma 64x{n}x64 float16, 1 left, 1 threads"
        assert median(RECORD["probes"][name]["cycles"]) == pytest.approx(cycles, rel=0.03)


RINGS = [p for p in probes.probes() if "ring of" in p.name and "store" not in p.name]
PATTERNS = [p for p in RINGS if "each tile by" not in p.name]  # that the model tells apart


def simulated_step(probe):
    """Cycles of a step of a probe, its waits for memory and all."""
    args = [jax.ShapeDtypeStruct(probe.input, jnp.float16)]
    program = pallascope.trace(clocked.kernel(probe), *args)
    # Of tiles that are shared, one fetches from HBM for all.
    hits = None if probe.cold and "product" in probe.name else float(not probe.cold)
    return simulate(program, H200, l2_hits=hits).cycles / (3 * probe.repeats)


@pytest.mark.parametrize("memory", ["HBM", "L2"])
@pytest.mark.parametrize("blocks", [1, 132])
def test_the_model_of_copies_agrees_with_rings_of_them(blocks, memory):
    """How many are in flight, where they come from and who shares them: half within a tenth."""
    found = {
        probe.name: simulated_step(probe) / median(RECORD["probes"][probe.name]["second_run"])
        for probe in PATTERNS
        if probe.blocks == blocks and probe.cold == (memory == "HBM")
    }
    assert len(found) >= 8
    assert all(0.8 < ratio < 1.25 for ratio in found.values()), found
    assert median(abs(ratio - 1) for ratio in found.values()) < 0.1


def test_neighbours_gain_by_sharing_and_blocks_far_apart_do_not():
    """Why there are two rates of L2's."""
    rate = lambda name: (
        RECORD["probes"][name]["work"]["bytes"] / median(RECORD["probes"][name]["second_run"])
    )
    own = rate("load ring of 8 x 16384 bytes, 132 blocks, L2")
    shared = lambda who: rate(f"shared ring of 8 x 16384 bytes, 132 blocks, L2, {who}")
    assert shared("each tile by 2 neighbours") > 1.7 * own
    assert shared("each tile by 4 neighbours") > 2.3 * own
    for count in (2, 4):
        assert shared(f"each tile by {count} blocks apart") == pytest.approx(own, rel=0.05)
    assert H200.l2_shared_bytes_per_second > 1.1 * H200.l2_bytes_per_second


@pytest.mark.parametrize("kind", probes.ACCESSES, ids=lambda kind: kind.name)
def test_a_wavefront_takes_as_long_wherever_the_banks_are(kind):
    """What the trace counts of an access is what it takes: the probes' longer steps tell."""
    counted, measured = {}, {}
    for writes in (False, True):
        for rows in (64, 128):
            probe = probes.access(kind, rows, writes)
            program = pallascope.trace(clocked.kernel(probe))
            steps = [op for op in program.threads[0] if op.step and op.kind in ("read", "write")]
            (counted[writes, rows],) = {op.wavefronts for op in steps if op.wavefronts is not None}
            measured[writes, rows] = median(RECORD["probes"][probe.name]["cycles"])
    for writes in (False, True):
        more = (counted[writes, 128] - counted[writes, 64]) * 128 / H200.smem_bytes_per_cycle
        longer = measured[writes, 128] - measured[writes, 64]
        # A step that reads also adds: an operation of each lane for 4 bytes, while others read.
        adds = 0 if writes else 64 * 64 / H200.alu_ops_per_cycle
        assert 0.93 * more < longer < 1.07 * more + 1.6 * adds, (writes, more, longer)


def test_simulated_and_measured_times():
    """All within an eighth, a twentieth on the mean: what it was when it was recorded."""
    found = {
        name: simulated / measured
        for name, (simulated, measured) in benchmark.ratios(RECORD, H200).items()
    }
    print(*(f"{ratio:.2f} {name}" for name, ratio in found.items()), sep="\n")
    assert all(0.875 < ratio < 1.125 for ratio in found.values())
    errors = [abs(ratio - 1) for ratio in found.values()]
    assert sum(errors) / len(errors) < 0.05


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.floats(0, 1), st.floats(0, 1))
def test_more_use_of_tensor_cores_leaves_no_higher_clock(one, other):
    less, more = sorted((one, other))
    assert H200.loaded(more).clock_hz <= H200.loaded(less).clock_hz <= H200.clock_hz


def test_a_loaded_machine_differs_in_its_clock_alone():
    assert H200.loaded(0.0) == H200
    busy = H200.loaded(1.0)
    assert busy == H200.changed(clock_hz=busy.clock_hz) and busy.clock_hz < 0.8 * H200.clock_hz
    half = H200.changed(clock_hz=H200.clock_hz / 2)
    for use in (0.0, 0.2, 0.7, 1.0):
        assert half.loaded(use).clock_hz == pytest.approx(H200.loaded(use).clock_hz / 2)


def test_the_clock_is_linear_between_points_and_the_last_one_s_beyond():
    assert [TOY.loaded(use).clock_hz for use in (0.25, 0.5, 0.75, 1.0, 1.2)] == [
        1e9,
        1e9,
        0.75e9,
        0.5e9,
        0.5e9,
    ]


def test_rates():
    assert TOY.load_latency_cycles(1) == 10
    assert TOY.load_latency_cycles(0) == 30
    assert TOY.load_latency_cycles(0.5, 256) == 0.25 * 10 + 0.75 * 30
    assert TOY.wgmma_rate("float16") == 1
    with pytest.raises(ValueError, match="A wgmma multiplies int8, but toy has rates for"):
        TOY.wgmma_rate("int8")


def test_json():
    for each in (TOY, H200, H100, B200):
        assert Machine.from_json(each.to_json()) == each
    fields = json.loads(TOY.to_json())
    del fields["sms"]
    with pytest.raises(ValueError, match=r"not the fields of a Machine .*sms.*give what to_json"):
        Machine.from_json(json.dumps(fields))
    assert machine.H200.wgmma_rate("float8_e4m3fn") > 1.9 * machine.H200.wgmma_rate("bfloat16")


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"wgmma_flops_per_cycle": 3}'])
def test_what_is_no_machine_is_refused(text):
    with pytest.raises(ValueError, match=r"^This text has not the fields of a Machine"):
        Machine.from_json(text)
