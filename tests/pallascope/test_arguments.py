"""What each function of the schedule says of an argument of the wrong type."""

import functools
import re

import pytest

import pallascope
from pallascope import Program, Setting
from pallascope.drawing import perfetto, picture
from tests.pallascope import kernels, toy
from tests.pallascope.kernels import like

PROGRAM = pallascope.trace(kernels.add_one, like(256, 64))
TIMELINE = pallascope.simulate(PROGRAM, toy.TOY)
FACTORY = lambda slots: (kernels.add_one, (like(256, 64),))

A_PROGRAM = "a Program, not a value of type {}: make one with pallascope.trace(kernel, *args)."
A_MACHINE = (
    "a Machine, not a value of type {}: give pallascope.H100, pallascope.H200 or one that you"
)
A_TIMELINE = (
    "a Timeline, not a value of type {}: make one with pallascope.simulate(program, machine)."
)
SETTINGS = "a Timeline or a list of Settings, not a value of type {}: make one with pallascope.sim"
A_FACTORY = "a function, not a value of type {}: give one that returns (kernel, args)."


@pytest.mark.parametrize("wrong", [3, None, "kernel", kernels.add_one, TIMELINE, ()])
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (pallascope.check, f"check takes {A_PROGRAM}"),
        (lambda x: pallascope.simulate(x, pallascope.H100), f"simulate takes {A_PROGRAM}"),
        (lambda x: pallascope.simulate(PROGRAM, x), f"simulate takes {A_MACHINE}"),
        (lambda x: pallascope.sweep(FACTORY, x, slots=[1]), f"sweep takes {A_MACHINE}"),
        (lambda x: pallascope.explore(FACTORY, x, slots=[1]), f"explore takes {A_MACHINE}"),
    ],
)
def test_what_is_no_program_or_no_machine(function, text, wrong):
    told(function, wrong, text.format(type(wrong).__name__))


def test_the_function_s_own_keywords():
    text = (
        "trace takes block=, max_steps=, call= and claims=, and hands no keywords on, so waits=...,"
        " delay=... would be lost: trace functools.partial(function, waits=..., delay=...)."
    )
    args = like(64, 128), like(128, 64)
    told(lambda x: pallascope.trace(x, *args, block=0, waits=1, delay=1), kernels.matmul, text)
    bound = functools.partial(kernels.matmul, waits=1, delay=1)
    waits = {
        op.pending for op in pallascope.trace(bound, *args).threads[0] if op.kind == "wgmma_wait"
    }
    assert 1 in waits


@pytest.mark.parametrize("wrong", [3, "timeline", PROGRAM, [TIMELINE]])
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (picture.picture, f"A figure takes {A_TIMELINE}"),
        (perfetto.trace, f"A trace file takes {A_TIMELINE}"),
        (lambda x: pallascope.player([Setting({}, x)]), f"A figure takes {A_TIMELINE}"),
    ],
)
def test_what_is_no_timeline(function, text, wrong):
    told(function, wrong, text.format(type(wrong).__name__))


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (3, "int"),
        (None, "NoneType"),
        (PROGRAM, "Program"),
        ("ab", "str"),
        ([Setting({}, TIMELINE), TIMELINE], "Timeline"),
        (Setting({}, TIMELINE), "Setting"),
    ],
)
def test_what_are_no_settings(wrong, kind):
    told(pallascope.player, wrong, f"player takes {SETTINGS.format(kind)}")


def test_values_that_are_no_positions():
    text = "A slider tells its positions by their values, which must be hashable ("
    told(pallascope.player, [Setting({"slots": [1]}, TIMELINE)], text)


@pytest.mark.parametrize("function", [pallascope.sweep, pallascope.explore])
def test_what_no_slider_can_move(function):
    name = function.__name__
    told(lambda x: function(x, slots=[1]), 3, f"{name} takes {A_FACTORY.format('int')}")
    text = f"{name} takes a list of values for slots=, not a value of type int: a slider goes"
    told(lambda x: function(FACTORY, slots=x), 3, text)


@pytest.mark.parametrize("made", [3, (kernels.add_one, like(256, 64)), (kernels.add_one,)])
def test_what_a_factory_should_return(made):
    (setting,) = pallascope.sweep(lambda slots: made, slots=[1])
    text = f"The kernel factory returned {made!r:.60}, which is no (kernel, args): return the"
    assert (setting.outcome, setting.ok) == ("TypeError", False)
    assert setting.details.startswith(text)


def test_options_of_other_types():
    options = lambda function, *args: lambda given: function(*args, **given)
    simulate = options(pallascope.simulate, PROGRAM, toy.TOY)
    told(simulate, dict(blocks_per_sm=1.5), "simulate takes an integer for blocks_per_sm=, not a")
    told(simulate, dict(l2_hits="1"), "simulate takes a number for l2_hits=, not a value of type")
    draw = options(pallascope.player, TIMELINE)
    told(draw, dict(start="0"), "A figure takes a number of cycles for start=, not a value of typ")
    told(draw, dict(steps=3), "A figure takes several steps for steps=, not a value of type int: ")


def told(function, wrong, text):
    with pytest.raises(TypeError, match=f"^{re.escape(text)}"):
        function(wrong)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "This text is not JSON (Expecting value: line 1 column 1 (char 0)), so there is no"),
        (PROGRAM.to_json()[:-1], "This text is not JSON (Expecting ',' delimiter: line 1 column"),
        ("[]", "This JSON has format None, but a Program is read from format 7: trace the kernel"),
        ("{}", "This JSON has format None, but a Program is read from format 7: trace the kernel"),
        ('{"format": 7}', "This JSON has format 7, but not the fields of a Program (TypeError("),
        (PROGRAM.to_json().replace('"buffers"', '"bufs"'), "This JSON has format 7, but not the"),
        (PROGRAM.to_json().replace('"fence"', '"fance"'), "This JSON has format 7, but not the"),
        (PROGRAM.to_json().replace('"load"', '"lead"'), "This JSON has format 7, but not the fie"),
        ('{"format": 7, "threads": [3]}', "This JSON has format 7, but not the fields of a Pro"),
    ],
)
def test_json_that_is_no_program(text, words):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        Program.from_json(text)


def test_a_path_that_cannot_be_written(tmp_path):
    """Python's own error says which and why."""
    path = tmp_path / "nowhere" / "file"
    for write in (
        functools.partial(pallascope.to_perfetto, TIMELINE),
        pallascope.player(TIMELINE).save,
        PROGRAM.save,
        Program.load,
    ):
        with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
            write(path)
