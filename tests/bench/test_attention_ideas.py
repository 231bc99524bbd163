"""`benchmarks.attention_ideas`: every idea is checked, lowered and compiled for Hopper."""

import functools

import jax
import pytest

import pallascope
from benchmarks import attention
from benchmarks.attention_ideas import IDEAS, IdeaConfig
from pallascope.compiling import lacking
from pipelib_book.attention_forms import RungConfig

PROBLEM = dict(argvalues=attention.TRIED, ids=str)
IDEA = dict(argvalues=IDEAS, ids=lambda idea: idea.name)


def kernel(problem, idea):
    return functools.partial(attention.ours(problem, idea.config)), (problem.out,) * 3


def test_each_has_a_name_and_says_what_was_expected():
    names = [idea.name for idea in IDEAS]
    assert len({*names}) == len(names) and not {*names} & {attention.OURS, attention.BOTH}
    assert all(idea.expected.endswith(".") for idea in IDEAS)
    assert len({idea.config for idea in IDEAS}) == len(IDEAS)


@pytest.mark.parametrize("problem", **PROBLEM)
@pytest.mark.parametrize("idea", **IDEA)
def test_the_checker_finds_nothing(problem, idea):
    function, args = kernel(problem, idea)
    program = pallascope.trace(function, *args)
    for strict in (False, True):
        assert pallascope.check(program, strict=strict).ok


@pytest.mark.parametrize("problem", **PROBLEM)
@pytest.mark.parametrize("idea", **IDEA)
def test_it_compiles_without_a_spill_or_a_serialized_product(problem, idea):
    function, args = kernel(problem, idea)
    if missing := lacking():
        pytest.skip(f"compiling needs {missing}")
    found = pallascope.compiled(function, *args)
    assert found.ok and not found.spill_stores


@pytest.mark.parametrize("idea", **IDEA)
def test_it_is_another_kernel_than_both(idea):
    problem = attention.TRIED[0]
    both = attention.ours(problem, RungConfig(schedule="both"))
    traced = [
        str(jax.make_jaxpr(f)(*(problem.out,) * 3)) for f in (both, *kernel(problem, idea)[:1])
    ]
    assert traced[0] != traced[1]


def test_what_cannot_be_is_refused_as_it_is_of_others():
    with pytest.raises(ValueError, match="works on two steps at once, so slots=1 has no slot"):
        IdeaConfig(slots=1)
