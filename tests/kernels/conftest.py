"""What tests of several kernels use."""

import pytest


@pytest.fixture
def with_estimates(monkeypatch):
    """Calls a function; gives its result, and how often a module that chooses estimated a time."""

    def called(choosing, function, *args, **options):
        count, estimate = 0, choosing.estimate_us

        def counting(*args):
            nonlocal count
            count += 1
            return estimate(*args)

        with monkeypatch.context() as patch:
            patch.setattr(choosing, "estimate_us", counting)
            return function(*args, **options), count

    return called
