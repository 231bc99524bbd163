"""Every kernel is asked the same: each case of `contract` is checked, lowered, and run on a GPU."""

import dataclasses
import re

import numpy as np
import pytest

from tests.kernels.contract import CHECKED, CONFIGURATIONS, LOWERED, ON_GPU, REFUSALS, cases


@pytest.mark.parametrize("case", cases(CHECKED))
def test_check_finds_nothing(case):
    case.make().check_finds_nothing()


@pytest.mark.parametrize("case", cases(LOWERED))
def test_lowers(case):
    case.make().lowers()


@pytest.mark.gpu
@pytest.mark.parametrize("case", cases(ON_GPU))
def test_on_gpu(case):
    case.make().is_right()


@pytest.mark.parametrize("name", REFUSALS)
def test_errors(name):
    function, args, options, kind, text = REFUSALS[name]
    with pytest.raises(kind, match=text):
        function(*args, **options)


def integers_of(kind):
    """The fields of a configuration that are integers, or integers or None."""
    return [x for x in dataclasses.fields(kind) if x.type in (int, int | None)]


@pytest.mark.parametrize("kind", CONFIGURATIONS)
@pytest.mark.parametrize("value", ["a", 64.0, (2,), None])
def test_integers_of_a_configuration(kind, value):
    for field in integers_of(kind):
        if value is None and field.type is not int:
            continue
        message = (
            f"{kind.__name__}: {field.name}={value!r} has type {type(value).__name__}, but a kernel"
            " is compiled for it, so it must be an integer that is known before."
        )
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            kind(**{field.name: value})


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_configuration_of_numpy_s_integers(kind):
    plain = {field.name: field.default for field in integers_of(kind) if field.type is int}
    config = kind(**{name: np.int64(value) for name, value in plain.items()})
    assert config == kind()
    assert not any(isinstance(getattr(config, name), np.integer) for name in plain)
