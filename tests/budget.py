"""`--budget SECONDS`: what a test outside the slow tier may take, and the ten slowest of a run.

The model. A test takes the CPU time of its process, and of the processes that it has started and
waited for, from its first fixture to the end of its call. The clock on the wall does not count, so
that other load on the machine fails no test. A test that takes more than the budget fails, in a
sentence, unless it carries the marker `slow`: `make test` gives the budget, and leaves these out.

Not covered: what is done at import, when tests are collected, and a fixture's end.
"""

import os

import pytest

SECONDS = pytest.StashKey[float]()
#: The name of a report's property; a worker's reports reach the process that prints the summary.
PROPERTY = "CPU seconds"
SHOWN = 10


def cpu_seconds():
    """CPU time of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Budget:
    """The plugin; a `limit` of None fails no test."""

    def __init__(self, limit):
        self.limit = limit

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Notes when a test begins."""
        item.stash[SECONDS] = cpu_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """Adds what the test took to the report of its call, which fails if that is too much."""
        report = yield
        if call.when == "call":
            seconds = cpu_seconds() - item.stash[SECONDS]
            report.user_properties.append((PROPERTY, seconds))
            is_slow = item.get_closest_marker("slow") is not None
            if report.passed and not is_slow and (fault := over(seconds, self.limit)):
                report.outcome, report.longrepr = "failed", fault
        return report

    def pytest_terminal_summary(self, terminalreporter):
        """The slowest tests."""
        took = [
            (seconds, report.nodeid)
            for outcome in ("passed", "failed")
            for report in terminalreporter.getreports(outcome)
            for name, seconds in getattr(report, "user_properties", ())
            if name == PROPERTY
        ]
        if took:
            terminalreporter.section(f"CPU seconds of the {SHOWN} slowest tests")
            for seconds, name in sorted(took, reverse=True)[:SHOWN]:
                terminalreporter.write_line(f"{seconds:7.1f} {name}")


def over(seconds, limit):
    """What to say of a test that took this long; None if it may."""
    if limit is None or seconds <= limit:
        return None
    return (
        f"It took {seconds:.1f} s of CPU time, {seconds - limit:.1f} s more than the {limit:g} s"
        " of a test in the fast tier: everybody waits for it at every change. Make it smaller, or"
        " mark it `slow`, for `make test-all` alone."
    )
