"""The parts of the tracer alone: arithmetic and its cost, views, names."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.tracing import arithmetic, source
from tests.pallascope import kernels
from tests.pallascope.kernels import like, of

pytestmark = pytest.mark.both_jax

INTS = st.integers(-(2**31), 2**31 - 1)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(x=INTS, y=st.one_of(INTS, st.integers(-3, 3)))
def test_integers_are_divided_as_xla_does(x, y):
    if (x, y) == (-(2**31), -1):
        y = 1
    wide = (np.int32(x), np.int32(y))
    assert arithmetic.divide(x, y) == int(lax.div(*wide))
    assert arithmetic.remainder(x, y) == int(lax.rem(*wide))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(x=INTS, y=INTS, dtype=st.sampled_from(["int32", "uint32", "int8"]))
def test_integers_overflow_as_the_dtype_s(x, y, dtype):
    x, y = (np.array(value).astype(dtype) for value in (x, y))
    multiply = arithmetic.wrapping(lambda a, b: a * b, np.dtype(dtype))
    with np.errstate(over="ignore"):
        assert multiply(int(x), int(y)) == int(x * y)


def traced(function, shape=(128, 64), dtype=jnp.float32):
    """The program of a kernel that reads, computes and writes."""

    def kernel(x, o):
        o[...] = jnp.broadcast_to(function(x[...]), o.shape).astype(o.dtype)

    out = like(*shape, dtype=dtype)
    return pallascope.trace(kernels.of(kernel, out), like(*shape, dtype=dtype))


def computed(function):
    """Of each compute, flops and n."""
    ops = traced(function).threads[0][1:-1]
    assert [op.kind for op in ops[:1] + ops[-1:]] == ["read", "write"]
    return [(op.flops, op.transcendental) for op in ops if op.kind == "compute"]


N = 128 * 64


@pytest.mark.parametrize(
    ("function", "costs"),
    [
        (lambda x: x + 1, [(N, 0)]),
        (lambda x: jnp.exp2(x) * x - 2, [(2 * N, N)]),  # one to multiply and subtract
        (lambda x: [y := x * 2, y - y.sum()][1], [(3 * N, 0)]),  # y has another use
        (lambda x: jnp.tanh(lax.rsqrt(x)), [(2 * N, 2 * N)]),
        (lambda x: lax.reduce_max(x, (1,))[:, None], [(2 * N, 0)]),
        (lambda x: jnp.maximum(x, 0).sum(axis=1)[:, None] * 2, [(3 * N + 128, 0)]),
        (lambda x: x.astype(jnp.float16), [(2 * N, 0)]),  # and back, to store it
        (lambda x: jnp.where(x > 0, x, 1), [(4 * N, 0)]),
        (lambda x: jax.nn.silu(x), [(2 * N, N)]),  # within calls
        (lambda x: plgpu.layout_cast(x, plgpu.Layout.WGMMA), []),
        (lambda x: x.reshape(64, 128).T, []),
        (lambda x: x, []),
    ],
)
def test_what_arithmetic_costs(function, costs):
    assert computed(function) == costs


@pytest.mark.parametrize(
    ("function", "exchanges"),
    [
        (lambda x: x + 1, 0),
        (lambda x: x.max(axis=1)[:, None], 128 * 4 * 2),
        (lambda x: (x.max(axis=1) + x.sum(axis=1))[:, None], 2 * 128 * 4 * 2),  # one op for both
        (
            lambda x: plgpu.layout_cast(x, plgpu.Layout.WGMMA_TRANSPOSED).sum(axis=1)[:, None],
            128 * 8 * 3,
        ),
        (lambda x: jnp.sum(x * x), 128 * 10),
        (lambda x: jax.jit(jnp.sum)(x), 128 * 10),  # within calls
        (lambda x: lax.reduce_precision(x, 5, 10), 0),  # reduces no axis
        (lambda x: jnp.cumsum(x, axis=1), 0),
    ],
)
def test_what_lanes_exchange(function, exchanges):
    ops = [op for op in traced(function).threads[0] if op.kind == "compute"]
    assert [op.exchanges for op in ops] == [exchanges]


@pytest.mark.parametrize(
    ("function", "exchanges"),
    [
        (lambda x: x.max(axis=2)[:, :, None], 2 * 64 * 4 * 2),
        (lambda x: x.max(axis=0)[None], 0),  # each lane has its own of both
        (lambda x: jnp.max(x), 128 * 10),
        (lambda x: lax.reduce_precision(x, 5, 10).max(axis=2)[:, :, None], 2 * 64 * 4 * 2),
    ],
)
def test_tiles_have_the_last_axes_of_an_array(function, exchanges):
    in_tiles = lambda x: function(plgpu.layout_cast(x, plgpu.Layout.WGMMA))
    (op,) = [op for op in traced(in_tiles, (2, 64, 64)).threads[0] if op.kind == "compute"]
    assert op.exchanges == exchanges


def test_arithmetic_is_where_its_values_are_made():
    def kernel(x, o):
        total = x[0] * 2
        with jax.named_scope("more"):
            total = total + jnp.exp(total)
        for row in range(1, 3):
            total += x[row]
        o[0] = total

    program = pallascope.trace(kernels.of(kernel), like(4, 64))
    ops = [(op.kind, op.flops, op.scope) for op in program.threads[0][1:-1]]
    assert ops == [
        ("read", 0, ""),
        ("compute", 64, ""),
        ("compute", 2 * 64, "more"),
        ("read", 0, ""),
        ("compute", 64, ""),
        ("read", 0, ""),
        ("compute", 64, ""),
        ("write", 0, ""),
    ]


def test_each_step_of_a_loop_computes():
    def kernel(x, o):
        o[0] = lax.fori_loop(0, 3, lambda i, total: total + jnp.float16(1) * i, x[0])

    program = pallascope.trace(kernels.of(kernel), like(4, 64))
    found = [(op.step, op.flops) for op in program.threads[0] if op.kind == "compute"]
    assert found == [((step,), 64) for step in range(3)]


def test_scalars_are_free():
    def kernel(x, o):
        i = lax.axis_index("i") * 7 + 3
        o[i // 3] = x[lax.rem(i, 4)]

    program = pallascope.trace(kernels.of(kernel, grid=(2,), grid_names=("i",)), like(256, 64))
    assert [op.kind for op in program.threads[0]] == ["scope_begin", "read", "write", "scope_end"]


# Views.


def selected(shape, take, dtype=jnp.float16):
    """The regions of what `take` selects of a buffer in SMEM, by a read."""

    def kernel(x, o, smem):
        take(smem)[...]

    scratch = [plgpu.SMEM(shape, dtype)]
    program = pallascope.trace(kernels.of(kernel, scratch_types=scratch), like(4, 64))
    (read,) = [op for op in program.threads[0] if op.kind == "read"]
    return read.reads


@pytest.mark.parametrize(
    ("take", "box"),
    [
        # Leading axes are split and merged exactly.
        (lambda ref: ref.reshape(2, 2, 8, 64).at[1, 0], ((2, 3), (0, 8), (0, 64))),
        (lambda ref: ref.reshape(32, 64).at[8:24], ((1, 3), (0, 8), (0, 64))),
        (lambda ref: ref.at[1:3].reshape(16, 64).at[8:12], ((2, 3), (0, 4), (0, 64))),
        (lambda ref: ref.at[2].reshape(512).at[64:192], ((2, 3), (1, 3), (0, 64))),
        # Bits as of another dtype; transposed after.
        (lambda ref: ref.bitcast(jnp.int16).at[3, 0:2], ((3, 4), (0, 2), (0, 64))),
        (lambda ref: ref.reshape(32, 64).transpose((1, 0)).at[:, 0:8], ((0, 1), (0, 8), (0, 64))),
    ],
)
def test_regions_behind_other_shapes(take, box):
    (region,) = selected((4, 8, 64), take)
    assert region.box == box and region.is_exact


def boxes(*rows, columns=(0, 64)):
    return [((i, i + 1), (j, j + 1), columns) for i, j in rows]


@pytest.mark.parametrize(
    ("take", "parts"),
    [
        (lambda ref: ref.at[0, 1:8:3], boxes((0, 1), (0, 4), (0, 7))),
        (lambda ref: ref.reshape(32, 64).at[7:9, 8:16], boxes((0, 7), (1, 0), columns=(8, 16))),
        (lambda ref: ref.reshape(16, 128).at[4:6, 64:], boxes((1, 1), (1, 3))),
    ],
)
def test_what_is_no_box_is_cut_into_boxes(take, parts):
    regions = selected((4, 8, 64), take)
    assert [region.box for region in regions] == parts
    assert all(region.is_exact for region in regions)


def test_rows_that_are_read_together_are_no_slots():
    def slots(take):
        scratch = [plgpu.SMEM((8, 64), jnp.float16)]
        kernel = lambda x, o, smem: take(smem)
        program = pallascope.trace(kernels.of(kernel, scratch_types=scratch), like(4, 64))
        return program.buffers[-1].slots, program

    assert slots(lambda ref: ref[2])[0] == 8
    every_other, program = slots(lambda ref: ref[pl.ds(0, 4, 2)])
    assert every_other is None
    assert "read reads smem[0, 0:64], smem[2, 0:64], smem[4, 0:64], smem[6, 0:64]" in str(program)
    _, many = slots(lambda ref: ref.reshape(64, 8)[:, 0:4])
    assert "read reads smem[0, 0:4], smem[0, 8:12] and 62 more" in str(many)


def test_what_is_too_many_boxes_is_rounded_up_to_one():
    parts = lambda rows: selected((200, 8), lambda ref: ref.reshape(100, 16).at[:rows, 1:2])
    assert [region.box for region in parts(64)] == [
        ((row, row + 1), (1, 2)) for row in range(0, 128, 2)
    ]
    (region,) = parts(65)
    assert region.box == ((0, 129), (0, 8)) and not region.is_exact


def test_members_of_a_union_are_ranges_of_bytes():
    def kernel(x, o, union):
        first, (second, third) = union
        first[...]
        second[2:4]
        third[...]

    smem = lambda *shape: plgpu.SMEM(shape, jnp.float16)
    scratch = [plgpu.RefUnion(smem(16, 64), [smem(4, 64), smem(2, 64)])]
    program = pallascope.trace(kernels.of(kernel, scratch_types=scratch), like(4, 64))
    boxes = [op.reads[0].box[0] for op in program.threads[0] if op.kind == "read"]
    row = 64 * 2
    assert boxes[:2] == [(0, 16 * row), (2 * row, 4 * row)]
    start, stop = boxes[2]
    assert stop - start == 2 * row
    assert start >= 4 * row


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_boxes_behind_a_reshape_are_what_is_read(data):
    shape = data.draw(st.sampled_from([(4, 6), (2, 3, 4), (24,), (2, 2, 6)]))
    other = data.draw(st.sampled_from([(6, 4), (24,), (2, 12), (3, 2, 4), (2, 2, 2, 3)]))
    cuts = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in other]
    cuts = [(a, b) if a < b else (0, n) for (a, b), n in zip(cuts, other)]
    window = tuple(slice(a, b) for a, b in cuts)
    ranges = tuple(pl.ds(a, b - a) for a, b in cuts)
    regions = selected(shape, lambda ref: ref.reshape(*other).at[ranges])
    numbers = np.arange(24).reshape(shape)
    read = sorted(numbers.reshape(other)[window].ravel())
    windows = [tuple(slice(a, b) for a, b in region.box) for region in regions]
    assert sorted(at for box in windows for at in numbers[box].ravel()) == read
    assert all(region.is_exact for region in regions)


# Names.


def test_names_of_leaves():
    info = types.SimpleNamespace(arg_names=("x", "b['smem'][0]", "b[0][1]", None))
    assert source.leaf_names(info, 5) == ["x", "smem.0", "b.0.1", "scratch3", "scratch4"]


def named(kernel, *args, **options):
    program = pallascope.trace(kernels.of(kernel, **options), *args)
    return [buffer.name for buffer in program.buffers if buffer.space == "gmem"]


def test_gmem_has_the_names_of_the_kernel_s_arguments():
    def plain(a, out, smem):
        pass

    def bound(config, a, out, smem):
        pass

    def without_scratch(a, out):
        pass

    scratch, x = dict(scratch_types=[plgpu.SMEM((8, 64), jnp.float16)]), like(4, 64)
    assert named(plain, x, **scratch) == ["a", "out"]
    assert named(without_scratch, x) == ["a", "out"]
    assert named(lambda *refs: None, x, x) == ["in0", "in1", "out0"]
    # Which parameter was bound, or is None, is not known.
    partial = functools.partial(bound, "config")
    assert named(partial, x, **scratch) == ["in0", "out0"]


def test_what_was_bound_first_is_told_where_scratch_surely_came_by_place():
    """JAX sorts scratch that is given by keyword, and this one's names are not sorted."""

    def bound(config, a, out, tile, landed, more=None):
        a[...]

    scratch, x = [plgpu.SMEM((8, 64), jnp.float16), plgpu.Barrier()], like(4, 64)
    partial = functools.partial(bound, "config")
    assert named(partial, x, scratch_types=scratch) == ["a", "out"]
    batched = jax.vmap(of(partial, like(4, 64), scratch_types=scratch))
    names = [buffer.name for buffer in pallascope.trace(batched, like(2, 4, 64)).buffers]
    assert names[:2] == ["a", "out"]


def test_a_tree_of_operands_has_no_name_and_none_has_its_place():
    def with_tree(pair, nothing, last, out, tile):
        last[...]

    scratch, x = [plgpu.SMEM((8, 64), jnp.float16)], like(4, 64)
    program = pallascope.trace(of(with_tree, x, scratch_types=scratch), (x, x), None, x)
    assert [buffer.name for buffer in program.buffers[:4]] == ["in0", "in1", "last", "out"]


def reading(ref):
    ref[...]

    @pl.loop(0, 1)
    def _(step):
        ref[0]
        pl.when(step == 0)(lambda: (ref[1], None)[1])


def test_the_caller_of_a_helper_is_told_also_of_its_loops():
    def kernel(x, o):
        within = lambda: x[2]
        within()
        reading(x)

        @pl.loop(0, 1)
        def _(step):
            x[3]
            reading(x)

    program = pallascope.trace(of(kernel, like(4, 64)), like(4, 64))
    ops = [op for op in program.ops if op.kind == "read"]
    first = kernel.__code__.co_firstlineno
    lines = [op.caller and int(op.caller.rpartition(":")[2]) - first for op in ops]
    assert lines == [None, 3, 3, 3, None, 8, 8, 8]
    assert ops[1].source == f"{ops[1].line}, called at {ops[1].caller}"


@pytest.mark.parametrize(
    "how, rows",
    [
        ("", (0, 3)),
        ("used twice", (0, 4)),
        ("a row within", (0, 4)),
        ("the last", (0, 3)),
        ("not within", (1, 5)),
    ],
)
def test_rows_that_where_leaves_out_are_not_read(how, rows):
    def kernel(numbers, x, o):
        end, start = numbers[0], numbers[1]
        held = x[pl.ds(start if how == "not within" else 0, 4)]
        row = lax.broadcasted_iota(jnp.int32, (4, 64), 0)
        mask = {"a row within": row != start, "the last": row != end}.get(how, row < end)
        o[...] = jnp.where(mask, held, 0.0) + (held if how == "used twice" else 0.0)

    x = like(4, 64, dtype=jnp.float32)
    program = pallascope.trace(of(kernel, x), np.array([3, 1], np.int32), x)
    reads = [region for op in program.ops for region in op.reads if region.buffer == 1]
    assert [region.box for region in reads] == [(rows, (0, 64))]


def test_memory_without_a_name_is_called_after_what_is_copied():
    def copied(x_gmem, o_gmem, *refs):
        ring, tile, landed = refs
        plgpu.copy_gmem_to_smem(x_gmem, ring, landed)
        plgpu.barrier_wait(landed)
        tile[...] = ring[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(tile, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    smem = plgpu.SMEM((4, 64), jnp.float16)
    scratch = dict(scratch_types=[smem, smem, plgpu.Barrier()])
    program = pallascope.trace(of(copied, like(4, 64), **scratch), like(4, 64))
    names = [buffer.name for buffer in program.buffers]
    assert names == ["x_gmem", "o_gmem", "x_smem", "o_smem"]
    assert [barrier.name for barrier in program.barriers] == ["produced"]


def test_names_are_numbered_where_one_array_fills_several():
    def twice(x_gmem, o_gmem, *refs):
        for ref, landed in zip(refs[:2], refs[2:]):
            plgpu.copy_gmem_to_smem(x_gmem, ref, landed)
            plgpu.barrier_wait(landed)

    scratch = [plgpu.SMEM((4, 64), jnp.float16)] * 2 + [plgpu.Barrier()] * 2
    program = pallascope.trace(of(twice, like(4, 64), scratch_types=scratch), like(4, 64))
    assert [buffer.name for buffer in program.buffers][2:] == ["x_smem.0", "x_smem.1"]
    assert [barrier.name for barrier in program.barriers] == ["produced.0", "produced.1"]


def test_a_name_of_the_source_is_kept():
    def named_by_the_source(x_gmem, o_gmem, tile, landed):
        plgpu.copy_gmem_to_smem(x_gmem, tile, landed)
        plgpu.barrier_wait(landed)

    scratch = [plgpu.SMEM((4, 64), jnp.float16), plgpu.Barrier()]
    kernel = of(named_by_the_source, like(4, 64), scratch_types=scratch)
    program = pallascope.trace(kernel, like(4, 64))
    assert program.buffers[2].name == "tile" and program.barriers[0].name == "landed"


@pytest.mark.parametrize("given, name", [({}, "summed"), ({"kernel_name": "its_own"}, "its_own")])
def test_a_kernel_called_kernel_has_the_name_of_its_function(given, name):
    def summed(x):
        def kernel(x_gmem, o_gmem, x_smem):
            x_smem[...] = x_gmem[...]

        scratch = [plgpu.SMEM((4, 64), jnp.float16)]
        return of(kernel, like(4, 64), scratch_types=scratch, **given)(x)

    assert pallascope.trace(summed, like(4, 64)).name == name


def test_gmem_of_a_kernel_of_refs_has_the_names_around_it():
    def first_only(a, *refs):
        pass

    def given(wrapper, *shapes):
        buffers = pallascope.trace(wrapper, *shapes).buffers
        return [buffer.name for buffer in buffers if buffer.space == "gmem"]

    scratch, x = dict(scratch_types=[plgpu.SMEM((8, 64), jnp.float16)]), like(4, 64)
    kernel = of(lambda *refs: None, like(4, 64), **scratch)
    assert given(lambda left, right: kernel(left, right), x, x) == ["left", "right", "out0"]
    flat = lambda left, right: kernel(left.reshape(-1), right.astype(jnp.float32))
    assert given(jax.jit(flat), x, x) == ["left", "right", "out0"]
    # What is made of two arrays is called as neither, and one array twice is one name.
    assert given(lambda left, right: kernel(left + right, left), x, x) == ["in0", "left", "out0"]
    assert given(lambda left: kernel(left, left), x) == ["left", "in1", "out0"]
    assert given(lambda *arrays: kernel(*arrays), x, x) == ["in0", "in1", "out0"]
    # The kernel's own names come first.
    assert named(first_only, x, x, **scratch) == ["a", "in1", "out0"]
    partial = functools.partial(first_only, "bound")
    assert named(partial, x, x, **scratch) == ["in0", "in1", "out0"]
    partial.__name__ = "with_a_name"
    assert named(partial, x, x, **scratch) == ["in0", "in1", "out0"]
    mixed = of(first_only, like(4, 64), **scratch)
    assert given(lambda left, right: mixed(left, right), x, x) == ["a", "right", "out0"]


def test_gmem_has_those_names_where_scratch_is_given_by_keyword():
    """JAX sorts such scratch by name."""

    def keywords(second, first, out, x_smem, barrier):
        pass

    def configured(a, out, config, x_smem, barrier):
        pass

    scratch = dict(x_smem=plgpu.SMEM((8, 64), jnp.float16), barrier=plgpu.Barrier())
    x = like(4, 64)
    assert named(keywords, x, x, scratch_types=scratch) == ["second", "first", "out"]
    # Which of the four comes from the kernel's arguments is not known.
    partial = functools.partial(configured, config=None)
    assert named(partial, x, scratch_types=scratch) == ["in0", "out0"]
