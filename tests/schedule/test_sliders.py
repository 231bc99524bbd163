"""Kernels over ranges of values, before and live."""

import functools
import re
import sys
from dataclasses import replace

import pytest

from pipelib.schedule import check, trace
from pipelib.schedule.drawing.player import Setting, player
from pipelib.schedule.machine import H200
from pipelib.schedule.simulating.simulate import simulate
from pipelib.schedule.sliders import explore, sweep
from tests.schedule import kernels
from tests.schedule.kernels import like


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


def test_a_good_outcome_is_the_bubble_of_the_tensor_core():
    (setting,) = sweep(matmul, slots=[2])
    (use,) = [use for use in setting.timeline.uses() if use.lane == "tensor core"]
    assert 0 < use.bubble < 1
    assert setting.outcome == f"tensor core: bubble {use.bubble:.0%}"
    assert setting.details == f"Bound: {setting.timeline.bound()}."


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
