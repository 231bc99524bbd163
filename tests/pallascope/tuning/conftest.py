"""What the tests of tuning share."""

import pytest

from pallascope import compiling


@pytest.fixture(autouse=True)
def no_ptxas(monkeypatch):
    """It takes seconds a kernel; one test asks it."""
    monkeypatch.setattr(compiling, "lacking", lambda: "not asked")
