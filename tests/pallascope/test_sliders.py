"""Kernels over ranges of values, before and live."""

import functools
import re
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallascope import check, trace
from pallascope.drawing.player import Setting, player
from pallascope.machine import H200
from pallascope.simulating.simulate import simulate
from pallascope.sliders import explore, sweep
from pipelib_book.gallery import GALLERY
from tests.pallascope import kernels
from tests.pallascope.kernels import like


def matmul(slots, unfinished=0, steps=4):
    """A chapter's matrix product, the size of one block; one unfinished product is too many."""
    if slots == 5:
        raise ValueError("5 slots are too many")
    kernel = functools.partial(kernels.matmul, waits=unfinished, slots=slots)
    return kernel, (like(64, 64 * steps), like(64 * steps, 64))


def test_every_combination_is_traced_checked_and_simulated():
    found = sweep(matmul, H200, slots=(2, 3), unfinished=(0, 1))
    assert [setting.values for setting in found] == [
        {"slots": 2, "unfinished": 0},
        {"slots": 2, "unfinished": 1},
        {"slots": 3, "unfinished": 0},
        {"slots": 3, "unfinished": 1},
    ]
    for setting in found:
        kernel, args = matmul(**setting.values)
        assert setting.timeline == simulate(trace(kernel, *args), H200)
    assert [(setting.outcome, setting.ok) for setting in found[1::2]] == [("race", False)] * 2
    kernel, args = matmul(2, 1)
    assert found[1].details.splitlines()[0].startswith(check(trace(kernel, *args))[0].cause)
    assert len({setting.outcome for setting in found}) == 3
    assert 'type="range"' in str(player(found))


def test_a_good_outcome_says_how_busy_the_tensor_core_is():
    (setting,) = sweep(matmul, slots=[2], steps=[12])
    core, port = setting.timeline.units()
    assert (core.unit, port.unit) == ("tensor core", "GMEM port") and 0 < core.busy < 1
    where = "of the steady state"
    assert setting.outcome == f"no finding; tensor core busy {core.busy:.0%} {where}"
    bound = setting.timeline.bound()
    assert re.fullmatch(r"latency: load .*; the GMEM port alone needs [\d,]+ a step", bound)
    assert setting.details == f"Bound: {bound}."


def test_what_bounds_it_does_not_name_is_said_besides():
    (setting,) = sweep(matmul, slots=[2], steps=[12], sm_bytes_per_cycle=[4000.0])
    assert "GMEM port" not in setting.timeline.bound()
    assert re.search(r"The GMEM port is busy \d+% of the steady state\.$", setting.details)


def test_outcome_and_bound_are_of_one_interval():
    """A headline of 100 % and a gap below it, or two numbers for one unit, cannot both be."""
    found = sweep(matmul, slots=[2, 3], steps=[1, 2, 6, 16], hbm_latency_cycles=[0, 800, 4000])
    for setting in found:
        name = setting.timeline.interval().name
        said = [setting.outcome, *setting.details.splitlines()]
        steps = " step" if name == "the steady state" else " of "
        assert all(f" of {name}" in line or steps in line for line in said)
        start, stop, _ = setting.timeline.interval()
        assert setting.timeline.uses() == setting.timeline.uses(start, stop)
    assert {setting.timeline.interval().name for setting in found} == {
        "the whole",
        "the steady state",
    }


def test_findings_name_threads_by_number_and_the_figure_by_role():
    def summed(slots):
        hazard = GALLERY["one-release-of-two"]
        return functools.partial(hazard.kernel, fixed=False), hazard.arguments(
            np.random.default_rng(0), 1
        )

    (setting,) = sweep(summed, slots=[2])
    assert not setting.ok
    lanes = setting.timeline.lanes
    assert lanes[:3] == ("compute thread 0", "compute thread 1", "memory thread")
    assert setting.details.splitlines()[-1] == (
        "In the figure: thread 0 = compute thread 0, thread 1 = compute thread 1, thread 2 = memory"
        " thread."
    )


def test_a_range_of_the_machine_changes_the_machine():
    near, far = sweep(matmul, slots=[2], hbm_latency_cycles=(400, 4000))
    assert far.timeline.cycles > near.timeline.cycles + 3600
    kernel, args = matmul(2)
    machine = replace(H200, hbm_latency_cycles=4000)
    assert far.timeline == simulate(trace(kernel, *args), machine)


def test_what_goes_wrong_is_the_outcome():
    assert sweep(matmul, slots=[5]) == [
        Setting({"slots": 5}, None, "ValueError", False, "5 slots are too many"),
    ]
    (unknown,) = sweep(matmul, width=[1])
    assert (unknown.outcome, unknown.ok) == ("TypeError", False)
    assert "width" in unknown.details


def test_steps_are_truncated_as_asked():
    (setting,) = sweep(matmul, max_steps=2, slots=[2], steps=[8])
    assert setting.timeline.truncated
    assert sum(span.kind == "wgmma" for span in setting.timeline.spans) < 8
    assert setting.outcome.startswith("no finding in the first 2 steps; tensor core busy")
    assert setting.details.splitlines()[-1] == (
        "Cut off by max_steps=2: the end of thread 0 is missing, and what comes there was neither"
        " checked nor simulated."
    )
    (whole,) = sweep(matmul, max_steps=8, slots=[2], steps=[8])
    assert "first" not in whole.outcome and "Cut off" not in whole.details


def test_a_pipeline_that_is_cut_off_is_not_called_right():
    """The fault is in the kernel's second loop, which is not reached."""

    def in_two_loops(steps):
        def kernel(x, o, s):
            def nothing(step, _):
                plgpu.barrier_arrive(s)
                plgpu.barrier_wait(s)

            jax.lax.fori_loop(0, steps, nothing, None)
            plgpu.barrier_wait(s)  # nobody arrives

        scratch = dict(scratch_types=[plgpu.Barrier()])
        return plgpu.kernel(kernel, out_type=like(8, 8), **scratch), (like(8, 8),)

    cut, whole = sweep(in_two_loops, max_steps=4, steps=[8, 4])
    assert cut.outcome == "no finding in the first 4 steps" and "max_steps=4" in cut.details
    assert (whole.outcome, whole.ok) == ("deadlock", False)


def test_a_slider_of_all_blocks_of_a_grid():
    def copied(blocks):
        def kernel(x, o, smem):
            smem[...] = x[...]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(smem, o)
            plgpu.wait_smem_to_gmem(0)

        x = like(8, 128)
        scratch = [plgpu.SMEM(x.shape, x.dtype)]
        call = plgpu.kernel(
            kernel, out_type=x, grid=(blocks,), grid_names=("i",), scratch_types=scratch
        )
        return call, (x,)

    one, two = sweep(copied, whole_grid=True, blocks=[1, 2])
    assert (one.ok, two.ok) == (True, False)  # both write all of the result
    assert two.outcome.startswith("race")
    assert [lane for lane in two.timeline.lanes if "thread" in lane] == [
        "block 0 thread 0",
        "block 1 thread 0",
    ]


def test_an_empty_range_is_refused():
    with pytest.raises(ValueError, match="The range slots has 0 values: a slider needs 1"):
        sweep(matmul, slots=())


def test_without_ipywidgets_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(ImportError, match=r"needs ipywidgets, .* or use player\(sweep\(...\)\)"):
        explore(matmul, slots=(1, 2))


# ---- Live ----------------------------------------------------------------------------------------


def shown(box):
    (output,) = box.children[-1].outputs
    return re.sub(r"<(script|style)>.*?</\1>", "", output["data"]["text/html"], flags=re.DOTALL)


@pytest.fixture
def widgets():
    return pytest.importorskip("ipywidgets", reason="explore() is for notebooks with ipywidgets")


def test_a_slider_redraws(widgets):
    box = explore(matmul, slots=(2, 3), unfinished=(0, 1), hbm_latency_cycles=(400, 4000))
    slots, unfinished, latency = box.children[:-1]
    assert [label for label, _ in slots.options] == ["2", "3"]
    assert latency.description == "hbm latency cycles"
    for values in ((2, 0, 400), (3, 0, 400), (3, 0, 4000), (3, 1, 4000), (2, 0, 400)):
        slots.value, unfinished.value, latency.value = values
        names = ("slots", "unfinished", "hbm_latency_cycles")
        ranges = {name: [value] for name, value in zip(names, values)}
        (setting,) = sweep(matmul, **ranges)
        assert f">{setting.timeline.cycles:,.0f} cycles" in shown(box)
        assert f'<p class="outcome {"ok" if setting.ok else "bad"}">' in shown(box)


def test_what_goes_wrong_is_shown_and_the_sliders_go_on(widgets):
    box = explore(matmul, slots=(2, 5))
    slots, _ = box.children
    slots.value = 5
    assert "5 slots are too many" in shown(box)
    slots.value = 2
    assert "5 slots are too many" not in shown(box)


def test_what_is_too_much_to_draw_is_said(widgets):
    box = explore(matmul, slots=(2,), steps=(600,))
    assert "more than 4000 are too small to be seen" in shown(box)
