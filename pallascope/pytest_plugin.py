"""pytest's plugin of pallascope: the marker `pallascope_check`, and checks of all tests.

    @pytest.mark.pallascope_check
    def test_softmax(): ...

While such a test runs, each kernel of `plgpu.kernel` that it calls is noted, natively or in the
interpreter. Then `pallascope.verify` is asked of each, and the test fails with the whole verdicts
if anything is found. It fails as well if a kernel could not be checked, and if it called none: a
test that passes has been checked. The marker's arguments:

- `strict=True`, as for `pallascope.check`;
- `blocks="first"`: the first block of each grid alone; by default also the last and the middle one
  (`pallascope.verifying.BlockChoice` has more);
- `allow_refusals=True`: a kernel that could not be checked is a warning.

`pytest --pallascope-check`, or `pallascope_check = true` in the configuration, does so for every
test. Then a kernel that could not be checked is a warning, and a test may call none.

Not covered: kernels that fixtures call; what `pallascope.launches` does not see. JAX's caches are
emptied before each test that is checked, or it would not see what an earlier test has compiled.

JAX is imported when the first test is checked, not before: options that JAX reads when it is
imported can be set in a `conftest.py`.
"""

# What lints has no pytest, so nothing of its types is known.
# pyright: basic, reportMissingImports=false

import warnings
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pallascope.testing import Watch

MARKER = "pallascope_check"


class NotChecked(pytest.PytestWarning):
    """A kernel of a test that could not be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a test is checked: the marker's arguments."""

    strict: bool = False
    blocks: str = "diagonal"
    allow_refusals: bool = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option and the line of the configuration."""
    text = "check each kernel that a test calls for races and deadlocks, with pallascope"
    parser.getgroup("pallascope").addoption("--pallascope-check", action="store_true", help=text)
    parser.addini(MARKER, text, type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """The marker, for `pytest --markers` and for `--strict-markers`."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(strict=False, blocks='diagonal', allow_refusals=False): fails the test if"
        " pallascope finds a race or a deadlock in a kernel that it calls",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Runs a test, and checks its kernels."""
    settings = _settings(item)
    if settings is None:
        return (yield)
    from pallascope.testing import Watch, watched

    watch = Watch()
    try:
        with watched(strict=settings.strict, blocks=settings.blocks) as watch:
            result = yield
    except Exception:
        item.add_report_section("call", "pallascope", str(watch))  # it may say why the test failed
        raise
    _conclude(item, watch, settings)
    return result


def _settings(item: pytest.Item) -> Settings | None:
    """How to check a test; None if it is not checked."""
    marker = item.get_closest_marker(MARKER)
    if marker is not None:
        try:
            return Settings(*marker.args, **marker.kwargs)
        except TypeError as error:
            raise pytest.UsageError(
                f"{item.nodeid}: the marker {MARKER} takes strict=, blocks= and allow_refusals=,"
                f" so it is unknown how to check this test ({error}): give these alone."
            ) from None
    if item.config.getoption("pallascope_check") or item.config.getini(MARKER):
        return Settings(allow_refusals=True)
    return None


def _conclude(item: pytest.Item, watch: "Watch", settings: Settings) -> None:
    """Fails a test that passed, if its kernels do not."""
    refused = [] if settings.allow_refusals else watch.refused
    faults = dict.fromkeys(map(str, [*watch.faulty, *refused]))
    if faults:
        pytest.fail("\n\n".join(faults), pytrace=False)
    if item.get_closest_marker(MARKER) and not watch.verdicts:
        pytest.fail(
            f"the test is marked {MARKER}, but it called no kernel of plgpu.kernel, so nothing was"
            " checked: call the kernel in the test itself, or take the marker off.",
            pytrace=False,
        )
    for verdict in watch.refused:
        path, line, _ = item.location
        said = f"{verdict.name}: not checked: {verdict.refusal}"
        warnings.warn_explicit(NotChecked(said), None, path, (line or 0) + 1)
