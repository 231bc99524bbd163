"""`judged`: what a figure says of one program, its verdict and how busy its main unit is.

The model. A program is checked and simulated. The verdict names the kinds of findings. Where
nothing is found, it says so, and how busy the kernel's main unit is: the tensor core, or else the
GMEM port. That is of the interval that `Timeline.bound` speaks of too. Source: this project's own.
"""

from collections.abc import Mapping

from pallascope.checking.check import check
from pallascope.drawing.player import Setting
from pallascope.lanes import thread_names
from pallascope.machine import Machine
from pallascope.program import Program
from pallascope.report import Report, count, missing_ends
from pallascope.simulating.simulate import simulate
from pallascope.timeline import Timeline, Unit, UnitUse, percent

# A figure tells this many of the findings.
_MOST = 3


def judged(
    program: Program,
    machine: Machine,
    values: Mapping[str, object],
    max_steps: int | None = None,
    report: Report | None = None,
) -> Setting:
    """A program as one position of a figure's sliders.

    Args:
      program, machine: what is simulated, and on what.
      values: the position.
      max_steps: where the program was cut off, if it was.
      report: what was found, if that is known already.

    Raises:
      ValueError: what `simulate` has no time for.
    """
    findings = (report or check(program)).findings
    timeline = simulate(program, machine)
    verdict = ", ".join(dict.fromkeys(finding.kind for finding in findings)) or "no finding"
    details = [f"{finding.cause} {finding.remedy}" for finding in findings[:_MOST]]
    details += [] if findings else _busy(timeline)
    if findings or program.truncated:
        details.append(_who(program))
    if program.truncated:
        verdict += f" in the first {count(max_steps or 0, 'step')}"
        details.append(_cut(program, max_steps))
    outcome = verdict if findings else f"{verdict}{_headline(timeline)}"
    return Setting(values, timeline, outcome, not findings, "\n".join(filter(None, details)))


def _units(timeline: Timeline) -> list[UnitUse]:
    """How busy the units are, the busiest of each kind; the tensor core comes first."""
    busiest: dict[Unit, UnitUse] = {}
    for use in sorted(timeline.units(), key=lambda use: use.busy):
        busiest[use.unit] = use
    return [busiest[unit] for unit in Unit if unit in busiest]


def _headline(timeline: Timeline) -> str:
    """How busy the kernel's main unit is, to stand behind a verdict; empty if there is no unit."""
    main = _units(timeline)[:1]
    return "".join(f"; {use} of {timeline.interval().name}" for use in main)


def _busy(timeline: Timeline) -> list[str]:
    """What bounds the kernel, and how busy the other units are, as sentences."""
    bound, where = timeline.bound(), timeline.interval().name
    others = (use for use in _units(timeline)[1:] if use.name not in bound)
    said = [f"The {use.name} is busy {percent(use.busy)} of {where}." for use in others]
    return [f"Bound: {bound}.", *said]


def _who(program: Program) -> str:
    """Which rows of the figure the threads are that findings call by their numbers."""
    numbers = [f"thread {number}" for number in range(program.per_block)]
    pairs = [f"{n} = {name}" for n, name in zip(numbers, thread_names(program)) if n != name]
    return f"In the figure: {', '.join(pairs)}." if pairs else ""


def _cut(program: Program, max_steps: int | None) -> str:
    """A sentence that says which part of the kernel was neither checked nor simulated."""
    return (
        f"Cut off by {max_steps=}: {missing_ends(program)}, and what comes there was neither"
        " checked nor simulated."
    )
