"""Which way is taken at a branch that data choose: the short one, and the long one now and then."""

import re
from dataclasses import replace

import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.simulating.simulate import simulate
from pallascope.simulating.ways import decided
from tests.pallascope import kernels
from tests.pallascope.kernels import like
from tests.pallascope.toy import TOY, compute, load, product, program, wait

SHORT, LONG = 10, 100


def branch(number, *around):
    """Three ways of a branch: a short one, a long one, and one between the two."""
    sizes = SHORT, LONG, 50
    return [compute(number, size, ways=(*around, (number, way))) for way, size in enumerate(sizes)]


def cycles(ops, slow_ways):
    return simulate(program(ops), TOY, l2_hits=1, slow_ways=slow_ways).cycles


@pytest.mark.parametrize(
    ("slow_ways", "slow"), [(0, 0), (0.2, 0), (0.25, 1), (0.5, 2), (0.75, 3), (1, 4)]
)
def test_the_slow_way_is_taken_at_a_fraction_of_branches(slow_ways, slow):
    ops = [op for number in range(4) for op in branch(number)]
    assert cycles(ops, slow_ways) == slow * LONG + (4 - slow) * SHORT
    assert cycles([compute(flops=7), *ops, compute(flops=7)], slow_ways) == 14 + cycles(
        ops, slow_ways
    )


def test_of_one_way_with_work_it_is_that():
    """An `if` without an `else`: the other way has no op."""
    ops = [compute(0, SHORT), compute(0, LONG, ways=((0, 1),))]
    assert cycles(ops, 0) == cycles(ops, 1) == SHORT + LONG


def test_what_is_around_a_branch_decides_first():
    inner = [op for way in (0, 1) for op in branch(1 + way, (0, way))]
    ops = [compute(0, 1000, ways=((0, 1),)), *inner]
    assert cycles(ops, 0) == SHORT
    assert cycles(ops, 1) == 1000 + LONG


def test_ways_of_products_and_of_accesses():
    by = lambda op, way: replace(op, ways=((0, way),))
    ops = [by(product(flops=SHORT), 0), by(product(flops=LONG), 1)]
    assert cycles(ops, 0) < LONG < cycles(ops, 1)
    assert simulate(program(ops), TOY).cycles == cycles(ops, 0)


def test_ops_keep_their_places_and_the_reader_is_told():
    made = program([load(0), *branch(0), wait(0, 0), *branch(1)])
    found = simulate(made, TOY, l2_hits=1, slow_ways=0.5)
    computed = [span for span in found.spans if span.kind == "compute"]
    assert [made.threads[0][span.op].flops for span in computed] == [SHORT, LONG]
    assert found.notes == ("50% of 2 branches that data choose take their slow way",)
    assert decided(program([load(0)]), TOY, 1) == program([load(0)])
    assert simulate(program([load(0)]), TOY, slow_ways=1).notes == ()


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (1.5, ValueError, "slow_ways=1.5 is not a fraction from 0 to 1 of the branches."),
        (float("nan"), ValueError, "slow_ways=nan is not a fraction from 0 to 1 of the branches."),
        (None, TypeError, "a number for slow_ways="),
    ],
)
@pytest.mark.parametrize("function", [simulate, pallascope.predict])
def test_what_is_no_fraction(function, value, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        function(program([compute()]), slow_ways=value)


def test_a_kernel_that_branches_on_its_data():
    """The trace says which ops are of which way; the time is that of the way that is taken."""

    def kernel(x, o):
        value = plgpu.load(x, optimized=False)
        hard = lambda value: jnp.exp(jnp.exp(jnp.exp(value))) * 2.0
        more = lax.cond(x[0, 0] > 0, lambda value: value + 1.0, hard, value)
        o[...] = lax.cond(x[0, 1] > 0, lambda value: value * 3.0, hard, more)

    made = kernels.of(kernel, like(64, 64, dtype=jnp.float32))
    program = pallascope.trace(made, like(64, 64, dtype=jnp.float32))
    ways = {op.ways for op in program.ops if op.kind == "compute"}
    assert ways >= {((0, 0),), ((0, 1),), ((1, 0),), ((1, 1),)}
    short, half, long = (simulate(program, slow_ways=fraction).cycles for fraction in (0, 0.5, 1))
    assert short < half < long and half - short == pytest.approx(long - half)
