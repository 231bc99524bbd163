"""When the words of severity have colours, and which these are."""

import sys

import pytest

from pallascope.command import colour

SAID = """missing-commit: a store reads `s`, with no finding in it
  --> kernels.py:18
      race: 1

copy: 1 finding in block (0,) of grid (4,)
copy (2): no finding in all 4 blocks of grid (4,)
note: no race: so
slow: it spills
not looked at: much
"""
RED, GREEN, YELLOW, END = (f"\033[{number}m" for number in (31, 32, 33, 0))
COLOURED = (
    SAID.replace("missing-commit", f"{RED}missing-commit{END}")
    .replace(": no finding", f": {GREEN}no finding{END}")
    .replace("note", f"{YELLOW}note{END}")
    .replace("slow", f"{YELLOW}slow{END}")
)


@pytest.mark.parametrize(
    ("terminal", "environment", "has_colours"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": ""}, False),
        (False, {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_a_terminal_and_the_environment_decide(monkeypatch, terminal, environment, has_colours):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
        if name in environment:
            monkeypatch.setenv(name, environment[name])
    assert colour.coloured(SAID) == (COLOURED if has_colours else SAID)


def test_the_command_has_colours_and_its_json_has_none(run, monkeypatch):
    call = "check", "grid_kernels.py:right", "f32[32,64]"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert f"copy: {GREEN}no finding{END} in all 4 blocks" in run(*call)[1]
    assert "\033" not in run(*call, "--json")[1]
    monkeypatch.delenv("FORCE_COLOR")
    assert "\033" not in run(*call)[1]
