"""Drawn pipelines against a model in NumPy, and the arithmetic of `ring` and `specs`."""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib import ring, specs
from tests.emitters import contract

# A drawn pipeline takes the interpreter a second; drawn numbers take next to nothing.
FEW = settings(max_examples=15, deadline=None, derandomize=True, database=None)
MANY = settings(max_examples=100, deadline=None, derandomize=True, database=None)


# Pipelines.


@dataclasses.dataclass(frozen=True)
class Operand:
    """Blocks at `coefficients @ grid indices + offset`, in an operand that ends amid a block."""

    coefficients: tuple[tuple[int, ...], ...]
    offset: tuple[int, int]
    block: tuple[int, int]
    missing: tuple[int, int]
    delay: int = 0

    def index_map(self, *indices: Any) -> tuple[Any, ...]:
        rows = zip(self.coefficients, self.offset)
        return tuple(sum((i for c, i in zip(row, indices) if c), start) for row, start in rows)

    def shape(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        last = self.index_map(*(size - 1 for size in grid))
        return tuple((i + 1) * b - m for i, b, m in zip(last, self.block, self.missing))

    def slices(self, indices: tuple[int, ...]) -> tuple[slice, ...]:
        blocks = zip(self.index_map(*indices), self.block)
        return tuple(slice(index * size, (index + 1) * size) for index, size in blocks)

    def spec(self, index_map=None, **options: Any) -> plgpu.BlockSpec:
        return plgpu.BlockSpec(self.block, self.index_map, **options)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """What is drawn."""

    grid: tuple[int, ...]
    dynamic: bool
    slots: int
    dtype: Any
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    carry: bool
    times: int


def in_one_go(operand: Operand, grid: tuple[int, ...]) -> bool:
    """Whether no block is visited again after others."""
    visits = [operand.index_map(*indices) for indices in np.ndindex(grid)]
    return len(list(itertools.groupby(visits))) == len(set(visits))


@st.composite
def operands(draw, grid, dtype, block, is_output, slots):
    choices = []
    for bits in itertools.product((0, 1), repeat=2 * len(grid)):
        coefficients = bits[: len(grid)], bits[len(grid) :]
        operand = Operand(coefficients, (0, 0), block, (0, 0))
        if not is_output or in_one_go(operand, grid):
            choices.append(operand)
    operand = draw(st.sampled_from(choices))
    # A row's bytes must be a multiple of 16. Where the map is constant, JAX refuses blocks that go
    # beyond the end.
    missing = [draw(st.integers(0, 3)), draw(st.integers(0, 1)) * 16 // dtype.itemsize]
    return dataclasses.replace(
        operand,
        offset=draw(st.tuples(st.integers(0, 1), st.integers(0, 1))),
        missing=tuple(n * any(row) for n, row in zip(missing, operand.coefficients)),
        delay=0 if is_output else draw(st.integers(0, slots - 1)),
    )


@st.composite
def pipelines(draw):
    # Up to 3 axes and 8 steps: enough for a ring of 4 slots to go around twice.
    grids = [
        grid
        for rank in (1, 2, 3)
        for grid in itertools.product(range(1, 6), repeat=rank)
        if math.prod(grid) <= 8
    ]
    grid, slots = draw(st.sampled_from(grids)), draw(st.integers(1, 4))
    dtype = jnp.dtype(draw(st.sampled_from(["int8", "int32", "bfloat16", "float32"])))
    block = draw(st.sampled_from([(16, 32), (16, 64), (32, 32)]))
    draw_operands = functools.partial(operands, grid, dtype, block, slots=slots)
    lists = lambda is_output: st.lists(draw_operands(is_output), max_size=2).map(tuple)
    inputs, outputs = draw(lists(False)), draw(lists(True))
    carry = not outputs or draw(st.booleans())
    dynamic, times = draw(st.booleans()), draw(st.integers(1, 2))
    return Pipeline(grid, dynamic, slots, dtype, inputs, outputs, carry, times)


def number(indices, dtype):
    """A number for a step, small enough for the sum over 8 steps to fit an int8."""
    return sum(indices[1:], indices[0]).astype(dtype)


def model(pipeline, inputs):
    """What each output holds, where anything was stored, and the last carry."""
    grid, dtype = pipeline.grid, pipeline.dtype
    outputs = [np.zeros(o.shape(grid), dtype) for o in pipeline.outputs]
    stored = [np.zeros(o.shape(grid), bool) for o in pipeline.outputs]
    carry = np.zeros((), dtype)
    for indices in np.ndindex(grid):
        value = np.zeros((), dtype) + number(np.array(indices), dtype)
        for operand, x in zip(pipeline.inputs, inputs):
            block = x[operand.slices(indices)]
            value = value + np.pad(block, [(0, b - n) for b, n in zip(operand.block, block.shape)])
        carry = carry + value
        for operand, o, was in zip(pipeline.outputs, outputs, stored):
            slices = operand.slices(indices)
            rows, cols = o[slices].shape
            value = np.broadcast_to(value, operand.block)
            o[slices] += value[:rows, :cols]
            was[slices] = True
    return outputs, stored, carry


def body(pipeline, mine, indices, *refs):
    """Builds up each output's block over its visits; the carry over all steps."""
    inputs, refs = refs[: len(pipeline.inputs)], refs[len(pipeline.inputs) :]
    value = number(indices, pipeline.dtype)
    for x in inputs:
        value = value + mine(x)[...]
    step = functools.reduce(lambda s, p: s * p[1] + p[0], zip(indices, pipeline.grid), 0)
    before = jnp.unravel_index(step - 1, pipeline.grid)
    for operand, o in zip(pipeline.outputs, refs):
        blocks = zip(operand.index_map(*indices), operand.index_map(*before))
        is_first = functools.reduce(lax.bitwise_or, (a != b for a, b in blocks), step == 0)
        contract.build_up(mine(o), value, is_first)
    return refs[-1] + value if pipeline.carry else None


@pytest.mark.parametrize("emitter", contract.PIPELIB, ids=lambda emitter: emitter.name)
@FEW
@given(pipeline=pipelines(), memory_thread=st.integers(0, 2))
@pytest.mark.slow
def test_a_pipeline_does_as_its_model(emitter, pipeline, memory_thread):
    if emitter.threads:
        emitter = dataclasses.replace(emitter, memory_thread=min(memory_thread, emitter.threads))
    grid, dtype = pipeline.grid, pipeline.dtype
    inputs = [
        (contract.numbers(*operand.shape(grid), dtype=np.int8) % 4 - 2).astype(dtype)
        for operand in pipeline.inputs
    ]
    expected, stored, last = model(pipeline, inputs)
    block = pipeline.inputs[0].block if pipeline.inputs else contract.BLOCK

    def carry(share):
        # What is added to it has the shape of the inputs' blocks, or none.
        if pipeline.inputs:
            return contract.zeros(share, block, dtype)
        return jnp.zeros((), dtype)

    with contract.interpreted():
        result = emitter.run(
            functools.partial(body, pipeline),
            *inputs,
            grid=grid,
            dynamic=pipeline.dynamic,
            slots=pipeline.slots,
            times=pipeline.times,
            in_specs=tuple(o.spec(delay_release=o.delay) for o in pipeline.inputs),
            out_specs=tuple(o.spec() for o in pipeline.outputs),
            outputs=[contract.like(o) for o in expected],
            carry=carry if pipeline.carry else None,
            carry_shape=block,
        )
    result = result if len(pipeline.outputs) + pipeline.carry > 1 else [result]
    if pipeline.carry:
        contract.check(result.pop(), np.broadcast_to(last, block))
    for actual, one, was in zip(result, expected, stored, strict=True):
        contract.check(actual[was], one[was])


# Steps and slots.

STEPS = np.arange(64)  # always as many, so that JAX compiles each operation once
GRIDS = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@MANY
@given(grid=GRIDS, slots=st.integers(1, 32), step=st.integers(0, 32), dynamic=st.booleans())
def test_indices_of_steps(grid, slots, step, dynamic):
    """As NumPy's; after the last step the first again. No step beyond the slots is asked for."""
    steps = ring.Steps.of(tuple(map(jnp.int32, grid)) if dynamic else grid, slots)
    unravel = lambda numbers: np.unravel_index(numbers % math.prod(grid), grid)
    assert tuple(map(int, steps.indices(step))) == unravel(step)
    indices = tuple(index.astype(np.int32) for index in unravel(STEPS))
    np.testing.assert_array_equal(jax.vmap(steps.following)(indices), unravel(STEPS + 1))


@pytest.mark.parametrize("outer", [(1,), (4,), (2, 3)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_indices_of_a_ragged_grid(outer, dynamic):
    """Row after row, each as long as the function says, with that as the last index."""
    size = lambda *row: 1 + sum((i + 1) * index for i, index in enumerate(row)) % 4
    axes = tuple(map(jnp.int32, outer)) if dynamic else outer
    steps = ring.Steps.of((*axes, lambda *row: jnp.int32(size(*row))), 5)
    expected = [
        (*row, column, size(*row)) for row in np.ndindex(outer) for column in range(size(*row))
    ]
    assert (steps.rank, steps.slots) == (len(outer) + 2, 5)
    assert int(steps.num_steps) == len(expected)
    assert int(steps.prologue) == min(5, len(expected))
    index = steps.indices()
    for each in (*expected, expected[0]):
        assert tuple(map(int, index)) == each
        index = steps.following(index)


def test_a_grid_without_axes_is_one_step():
    steps = ring.Steps.of((), 3)
    assert (steps.num_steps, steps.slots, steps.rank) == (1, 1, 0)
    assert steps.indices() == steps.following(()) == ()


@MANY
@given(slots=st.integers(1, 32), data=st.data())
def test_slots_and_phases_of_steps(slots, data):
    steps, delay = ring.Steps.of((64,), slots), data.draw(st.integers(0, slots - 1))
    turns = np.asarray(jax.vmap(steps.slot)(STEPS))
    np.testing.assert_array_equal(STEPS, STEPS // slots * slots + turns)
    delayed = np.asarray(jax.vmap(functools.partial(steps.slot, delay=delay))(STEPS))
    np.testing.assert_array_equal(delayed, (STEPS - delay) % slots)


@MANY
@given(grid=GRIDS, slots=st.integers(1, 32))
def test_no_more_slots_than_static_steps(grid, slots):
    steps = ring.Steps.of(grid, slots)
    assert steps.slots == steps.prologue == min(slots, math.prod(grid))


@MANY
@given(grid=st.lists(st.integers(-1, 3), min_size=1, max_size=3), slots=st.integers(1, 32))
def test_prologue_of_dynamic_steps(grid, slots):
    steps = ring.Steps.of([jnp.int32(size) for size in grid], slots)
    assert steps.slots == slots
    assert int(steps.prologue) == min(slots, math.prod(max(size, 0) for size in grid))


# Shared memory and registers.

# Dtypes of 1, 2 and 4 bytes, and one of half a byte.
BITS = {"int4": 4, "int8": 8, "bfloat16": 16, "float32": 32}
ALLOCATIONS = st.tuples(
    st.integers(1, 8), st.integers(1, 8), st.sampled_from([32, 128, 1024]), st.sampled_from([*BITS])
)


@MANY
@given(drawn=st.lists(st.none() | ALLOCATIONS, max_size=4), barriers=st.integers(0, 128))
def test_shared_memory_is_the_sum(drawn, barriers):
    blocks, _ = specs.flatten([plgpu.BlockSpec() for _ in drawn], "in_specs", 0)
    smem = [one and plgpu.SMEM(one[:3], jnp.dtype(one[3])) for one in drawn]
    total = 8 * barriers + sum(math.prod(one[:3]) * BITS[one[3]] // 8 for one in drawn if one)
    if total <= 232_448:
        assert specs.check_smem(blocks, smem, barriers) == total
    else:
        with pytest.raises(ValueError, match=f"= {total:,} B"):
            specs.check_smem(blocks, smem, barriers)


# All that setmaxnreg takes, with all numbers of compute threads.
@pytest.mark.parametrize("threads", range(1, 8))
def test_registers_are_shared_out(threads):
    # What all lanes begin with, equally and in eights: nobody gets more than what others give up.
    begin = (threads + 1) * min(65536 // (128 * (threads + 1)) // 8 * 8, 256)
    for memory in range(24, 257, 8):
        compute = specs.compute_registers(memory, threads)
        assert compute % 8 == 0 and 24 <= compute <= 256
        assert memory + threads * compute <= begin
        assert compute == 256 or memory + threads * (compute + 8) > begin
