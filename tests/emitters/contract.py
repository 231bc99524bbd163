"""One call shape over all emitters, and the cases that each of them must satisfy.

The model. An `Emitter` is one implementation (pipelib's or upstream's, of either kind, with some
number of compute threads) and how its kernels are compiled. A *case* is a function of an emitter:
it runs a pipeline on small integers, which every dtype holds exactly, and compares all that the
pipeline wrote with NumPy. Nothing in a case says where it runs: `test_contract.py` runs it in the
GPU interpreter, `test_gpu.py` on a GPU.

A body takes its thread's share first: `mine(ref)` is the part of a block that this compute thread
works on, the whole block if there is one thread only. Thus one body serves all emitters.

A block is a multiple of 128 bytes for the copy engine, and of 2 x 128 elements for two compute
threads of 128 lanes.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib

ROWS, COLS = BLOCK = (16, 32)
MEMORY_REGISTERS = 40
PLAIN, SPECIALIZED = "plain", "specialized"


@contextlib.contextmanager
def interpreted(detect_races: bool = True):
    """Runs kernels in the GPU interpreter; AssertionError if it tells of a race.

    JAX 0.12 raises at a race. JAX 0.11 prints it and goes on.
    """
    said = io.StringIO()
    params = plgpu.InterpretGPUParams(detect_races=detect_races)
    with plgpu.force_gpu_interpret_mode(params), contextlib.redirect_stdout(said):
        yield
    assert "RACE DETECTED" not in said.getvalue(), said.getvalue()


class Share(NamedTuple):
    """A compute thread's part of the rows of every block."""

    index: Any = 0
    threads: int = 1

    def __call__(self, ref: Any) -> Any:
        if self.threads == 1:
            return ref
        rows = ref.shape[0] // self.threads
        return ref.at[pl.ds(self.index * rows, rows)]


@dataclasses.dataclass(frozen=True)
class Emitter:
    """An implementation: the function, its compute threads (0: it has no thread of its own)."""

    name: str
    emit: Callable[..., Any]
    threads: int = 0
    memory_thread: int | None = None
    compiler_params: Any = None

    @property
    def kind(self) -> str:
        return SPECIALIZED if self.threads else PLAIN

    @property
    def is_upstream(self) -> bool:
        return self.name.startswith("upstream")

    def share(self) -> Share:
        """Called in a kernel: this thread's share; no compute thread has the memory thread's."""
        if self.threads < 2:
            return Share()
        index, memory = lax.axis_index("wg"), self.memory_thread
        if memory is not None:
            index -= (index > memory).astype(jnp.int32)
        return Share(index, self.threads)

    def kernel(self, function: Callable[..., None], outputs: Any, **options: Any) -> Any:
        """A Pallas kernel with this emitter's threads."""
        if self.threads:
            options.update(num_threads=self.threads + 1, thread_name="wg")
        options.update(compiler_params=self.compiler_params)
        return jax.jit(plgpu.kernel(function, out_type=outputs, **options))

    def pipeline(self, body: Callable[..., Any], slots: int = 2, **options: Any) -> Any:
        """The emitter called in its own way, with a body that knows its share."""
        if self.threads:
            options.update(wg_axis="wg", num_compute_wgs=self.threads)
            options.update(memory_registers=MEMORY_REGISTERS)
            if self.memory_thread is not None:
                options.update(memory_thread_idx=self.memory_thread)
        body = functools.partial(body, self.share())
        return self.emit(body, max_concurrent_steps=slots, **options)

    def run(
        self,
        body: Callable[..., Any],
        *operands: Any,
        grid: Sequence[int],
        outputs: Sequence[Any] = (),
        dynamic: bool = False,
        carry: Callable[[Share], Any] | None = None,
        carry_shape: tuple[int, ...] = BLOCK,
        times: int = 1,
        **options: Any,
    ) -> Any:
        """Runs a kernel that is one pipeline; returns its outputs as NumPy arrays.

        Args:
          operands, outputs: a tree for each entry of in_specs and of out_specs.
          grid: if `dynamic`, the kernel gets the sizes as operands.
          carry: makes the first carry of a thread with this share. The last carry is then the last
            of what is returned, each leaf of it brought to `carry_shape`.
          times: how often the kernel runs the pipeline.
        """
        sizes = [np.int32(size) for size in grid] if dynamic else []
        flat, tree = jax.tree.flatten((operands, sizes))
        out_flat, out_tree = jax.tree.flatten(tuple(outputs))
        carry_flat, carry_tree = [], None
        if carry is not None:
            leaves, carry_tree = jax.tree.flatten(jax.eval_shape(lambda: carry(Share())))
            carry_flat = [jax.ShapeDtypeStruct(carry_shape, leaf.dtype) for leaf in leaves]

        def kernel(*refs):
            gmem, sizes = tree.unflatten(refs[: len(flat)])
            out_refs = refs[len(flat) :]
            gmem += out_tree.unflatten(out_refs[: len(out_flat)])
            run_grid = tuple(size[...] for size in sizes) if dynamic else grid
            make = functools.partial(self.pipeline, body, grid=run_grid, **options)
            for _ in range(times):
                self._call(make, gmem, carry, out_refs[len(out_flat) :])

        flat_outputs = self.kernel(kernel, (*out_flat, *carry_flat))(*flat)
        flat_outputs = [np.asarray(output) for output in flat_outputs]
        result = list(out_tree.unflatten(flat_outputs[: len(out_flat)]))
        if carry is not None:
            result.append(carry_tree.unflatten(flat_outputs[len(out_flat) :]))
        return result[0] if len(result) == 1 else result

    def _call(self, make, gmem, carry, carry_refs) -> None:
        """Runs a pipeline as its kind takes a carry, and writes the last one out."""
        if carry is None:
            make()(*gmem)
            return
        share = self.share()

        def write(last):
            for ref, leaf in zip(carry_refs, jax.tree.leaves(last), strict=True):
                mine = share(ref)
                mine[...] = leaf if leaf.shape else lax.broadcast(leaf, mine.shape)

        if self.threads:
            context = lambda pipeline: write(pipeline(carry(share)))
            make(compute_context=context)(*gmem)
        else:
            write(make(init_carry=carry(share))(*gmem))


PIPELIB = (
    Emitter("plain", pipelib.emit_pipeline),
    Emitter("specialized-1", pipelib.emit_pipeline_warp_specialized, 1),
    Emitter("specialized-2", pipelib.emit_pipeline_warp_specialized, 2),
)
UPSTREAM = (
    Emitter("upstream-plain", plgpu.emit_pipeline),
    Emitter("upstream-specialized-1", plgpu.emit_pipeline_warp_specialized, 1),
)


class Case(NamedTuple):
    """A case with its parameters, the kinds that it is for, and the kinds that upstream passes."""

    name: str
    function: Callable[..., None]
    kinds: tuple[str, ...]
    upstream: tuple[str, ...]
    stores: bool

    def suits(self, emitter: Emitter) -> bool:
        return emitter.kind in (self.upstream if emitter.is_upstream else self.kinds)


CASES: list[Case] = []
BOTH = (PLAIN, SPECIALIZED)


def case(kinds=BOTH, upstream=BOTH, stores: bool = True, **grid: Sequence[Any]):
    """Registers a function as a case for each combination of the grid's values.

    Args:
      kinds: of pipelib's emitters.
      upstream: kinds of upstream's that pass too.
      stores: whether the pipeline has outputs in SMEM. Upstream's cannot be interpreted then.
    """

    def register(function):
        for values in itertools.product(*grid.values()):
            words = [function.__name__, *(f"{k}={v}" for k, v in zip(grid, values))]
            bound = functools.partial(function, **dict(zip(grid, values)))
            CASES.append(Case("-".join(words).replace(" ", ""), bound, kinds, upstream, stores))
        return function

    return register


def pairs(emitters: Sequence[Emitter], stores: bool = True, every_value: bool = True) -> list[Any]:
    """The pytest parameters (case, emitter) of the cases that suit each emitter.

    Without `stores`, only of those that store nothing; without `every_value`, each function's last
    case only.
    """
    cases = CASES if every_value else {case.name.split("-")[0]: case for case in CASES}.values()
    return [
        pytest.param(case, emitter, id=f"{case.name}-{emitter.name}")
        for case, emitter in itertools.product(cases, emitters)
        if case.suits(emitter) and (stores or not case.stores)
    ]


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Integers from -8 to 7, so that sums of a few blocks are exact in every dtype."""
    return np.random.default_rng(math.prod(shape)).integers(-8, 8, shape).astype(dtype)


def like(array: np.ndarray) -> jax.ShapeDtypeStruct:
    """The type of an output of this shape and dtype."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def zeros(share: Share, shape: tuple[int, int] = BLOCK, dtype: Any = jnp.float32) -> jax.Array:
    """Zeros in the registers, laid out as a share of a block that was read from SMEM is."""
    shape = (shape[0] // share.threads, *shape[1:])
    layout = plgpu.Layout.WG_STRIDED(shape, vec_size=2)
    return plgpu.layout_cast(jnp.zeros(shape, dtype), layout)


def add_one(mine, _, x, o):
    """The simplest body."""
    mine(o)[...] = mine(x)[...] + 1.0


def build_up(ref, value, is_first) -> None:
    """Adds to what earlier visits left in a block, to nothing at the first."""

    @pl.when(is_first)
    def _():
        ref[...] = jnp.zeros(ref.shape, ref.dtype)

    ref[...] += value


def spec(index_map: Callable[..., Any], block: tuple = BLOCK, **options: Any) -> plgpu.BlockSpec:
    """A GPU BlockSpec of the usual block."""
    return plgpu.BlockSpec(block, index_map, **options)


def check(actual: Any, expected: Any) -> None:
    """Equal in tree, dtypes, shapes and every number."""
    flat, tree = jax.tree.flatten(actual)
    expected_flat, expected_tree = jax.tree.flatten(expected)
    assert tree == expected_tree, f"{tree} != {expected_tree}"
    for one, other in zip(flat, expected_flat):
        assert one.dtype == other.dtype, f"{one.dtype} != {other.dtype}"
        np.testing.assert_array_equal(one, other)


def by_blocks(array: np.ndarray) -> np.ndarray:
    """A matrix, seen as [row of blocks, column of blocks, row, column]."""
    rows, cols = (size // block for size, block in zip(array.shape, BLOCK))
    return array.reshape(rows, ROWS, cols, COLS).swapaxes(1, 2)


# Grids, slots, carries.


# No axis, 1, 2 and 3, one of size 1: each is a different carry from one axis into the next.
@case(grid=[(), (4,), (2, 3), (2, 1, 3)])
def static_grid(emitter, grid):
    _every_step_has_its_indices(emitter, grid, dynamic=False)


@case(grid=[(4,), (2, 3), (2, 1, 3)])  # as above, less the grid without sizes
def dynamic_grid(emitter, grid):
    _every_step_has_its_indices(emitter, grid, dynamic=True)


def _every_step_has_its_indices(emitter, grid, dynamic):
    def body(mine, indices, x, o):
        tag = sum((100**k * index for k, index in enumerate(indices)), jnp.int32(0))
        mine(o)[...] = mine(x)[...] + lax.broadcast(tag, mine(o).shape)

    x = numbers(*grid, *BLOCK, dtype=np.int32)
    block = pl.BlockSpec((None,) * len(grid) + BLOCK, lambda *indices: (*indices, 0, 0))
    out = emitter.run(
        body,
        x,
        grid=grid,
        dynamic=dynamic,
        in_specs=(block,),
        out_specs=(block,),
        outputs=(like(x),),
    )
    tags = sum((100**k * index for k, index in enumerate(np.indices(grid))), np.zeros(grid))
    check(out, x + tags.astype(np.int32)[..., None, None])


# 1: no overlap; 2 and 3: fewer than steps, which they divide or not; 6 and 8: as many and more.
@case(slots=[1, 2, 4, 6, 8])
def concurrent_steps(emitter, slots):
    x = numbers(6 * ROWS, COLS)
    specs = (spec(lambda i: (i, 0)),)
    out = emitter.run(
        add_one, x, grid=(6,), slots=slots, in_specs=specs, out_specs=specs, outputs=(like(x),)
    )
    check(out, x + 1)


# None: the body never runs; 1 and 2: fewer than the slots, which only the device knows; 5: more.
# Upstream's loads the 3 steps of its prologue whatever there are.
@case(steps=[0, 1, 2, 5], upstream=())
def few_dynamic_steps(emitter, steps):
    def body(mine, _, x, o, count):
        mine(o)[...] = mine(x)[...] + 1.0
        return count + 1

    x = numbers(5 * ROWS, COLS)
    specs = (spec(lambda i: (i, 0)),)
    out, count = emitter.run(
        body, x, grid=(steps,), dynamic=True, slots=3, times=2, in_specs=specs, out_specs=specs,
        outputs=(like(x),), carry=lambda _: jnp.int32(0),
    )  # fmt: skip
    check(out[: steps * ROWS], x[: steps * ROWS] + 1)
    check(count, np.full(BLOCK, steps, np.int32))


# One slot, fewer than the steps of most rows, and as many.
@case(upstream=(), slots=[1, 2, 3])
def ragged_grid(emitter, slots):
    """Rows of blocks of different lengths: those on the diagonal and before it."""

    def body(mine, indices, x, o):
        row, column, length = (index.astype(jnp.float32) for index in indices)
        mine(o)[...] = mine(x)[...] * length + (row - column)

    x = numbers(4 * ROWS, 4 * COLS)
    block = spec(lambda row, column, length: (row, column))
    out = emitter.run(
        body,
        x,
        grid=(4, lambda row: row + 1),
        slots=slots,
        in_specs=(block,),
        out_specs=(block,),
        outputs=(like(x),),
    )
    for row, column in zip(*np.tril_indices(4)):
        block = by_blocks(x)[row, column] * (row + 1) + (row - column)
        check(by_blocks(out)[row, column], block.astype(np.float32))


@case(stores=False, dynamic=[False, True])  # the two ways to count steps
def carry_tree(emitter, dynamic):
    def body(mine, indices, x, carry):
        return dict(count=carry["count"] + indices[1], total=(carry["total"][0] + mine(x)[...],))

    x = numbers(2 * ROWS, 3 * COLS)
    first = lambda share: dict(count=jnp.int32(7), total=(zeros(share),))
    carry = emitter.run(
        body,
        x,
        grid=(2, 3),
        dynamic=dynamic,
        slots=3,
        in_specs=(spec(lambda i, j: (i, j)),),
        carry=first,
    )
    total = by_blocks(x).sum((0, 1))
    check(carry, dict(count=np.full(BLOCK, 7 + 6, np.int32), total=(total,)))


@case(stores=False)
def total(emitter, **options):
    """A carry alone: nothing is stored."""
    x = numbers(6 * ROWS, COLS)
    body = lambda mine, _, x, total: total + mine(x)[...]
    in_specs = (spec(lambda i: (i, 0)),)
    result = emitter.run(body, x, grid=(6,), in_specs=in_specs, carry=zeros, **options)
    check(result, by_blocks(x).sum((0, 1)))


@case(upstream=(PLAIN,))
def output_only(emitter):
    def body(mine, indices, o, count):
        mine(o)[...] = lax.broadcast(10 * indices[0] + count, mine(o).shape)
        return count + 1

    o = jax.ShapeDtypeStruct((4 * ROWS, COLS), np.int32)
    out, count = emitter.run(
        body,
        grid=(4,),
        out_specs=(spec(lambda i: (i, 0)),),
        outputs=(o,),
        carry=lambda _: jnp.int32(5),
    )
    expected = np.arange(4, dtype=np.int32) * 11 + 5
    check(out, np.broadcast_to(np.repeat(expected, ROWS)[:, None], o.shape))
    check(count, np.full(BLOCK, 9, np.int32))


# 0, 1 and 2 each, and in an order in which the first input is not released first.
@case(delays=[(1,), (0, 2, 1)], upstream=(PLAIN,))
@case(delays=[(1, 1)])
def delays(emitter, delays):
    slots, grid = 4, (6,)

    def body(mine, indices, *refs):
        *inputs, o = refs
        mine(o)[...] = sum(mine(x)[...] for x in inputs[1:]) + mine(inputs[0])[...]

    xs = [numbers(6 * ROWS, COLS) + i for i in range(len(delays))]
    in_specs = tuple(spec(lambda i: (i, 0), delay_release=delay) for delay in delays)
    out = emitter.run(
        body,
        *xs,
        grid=grid,
        slots=slots,
        in_specs=in_specs,
        out_specs=(spec(lambda i: (i, 0)),),
        outputs=(like(xs[0]),),
    )
    check(out, sum(xs))


# 1 and 2: with one slot, and with several, to load into meanwhile.
@case(delay=[1, 2])
def delayed_slot_stays(emitter, delay):
    """At each step, the slot of `delay` steps ago still holds its block.

    A slot is what a body's ref is of: `x.ref` has all of them.
    """
    slots, steps = 3, 7

    def body(mine, indices, x, o):
        (step,) = indices
        mine(o)[...] = mine(x)[...]

        @pl.when(step >= delay)
        def _():
            old = x.ref.at[lax.rem(step + (slots - delay), jnp.int32(slots))]
            mine(o)[...] += mine(old)[...] * 16.0

    x = numbers(steps * ROWS, COLS)
    out = emitter.run(
        body,
        x,
        grid=(steps,),
        slots=slots,
        outputs=(like(x),),
        in_specs=(spec(lambda i: (i, 0), delay_release=delay),),
        out_specs=(spec(lambda i: (i, 0)),),
    )
    old = np.concatenate([np.zeros((delay * ROWS, COLS), np.float32), x[: -delay * ROWS]])
    check(out, x + 16 * old)


@case()
def same_pipeline_again(emitter):
    """Slots and barriers are left as the next run expects them: 5 steps end amid 3 slots."""
    x = numbers(5 * ROWS, COLS)
    specs = (spec(lambda i: (i, 0)),)
    out = emitter.run(
        add_one, x, grid=(5,), slots=3, times=3, in_specs=specs, out_specs=specs, outputs=(like(x),)
    )
    check(out, x + 1)


# BlockSpecs.


@case(upstream=(SPECIALIZED,))
def trees_of_specs(emitter):
    def body(mine, _, x, tree, o, others):
        y, z = mine(tree["a"])[...], mine(tree["b"][0])[...]
        assert tree["b"][1] is None
        mine(o)[...] = mine(x)[...] + y + z
        mine(others["difference"][0])[...] = y - z

    xs = [numbers(3 * ROWS, COLS) + i for i in range(3)]
    block = spec(lambda i: (i, 0))
    trees = lambda x, y, z: (x, dict(a=y, b=(z, None)))
    out_trees = lambda x, y: (x, dict(difference=[y], nothing=None))
    out = emitter.run(
        body,
        *trees(*xs),
        grid=(3,),
        in_specs=trees(block, block, block),
        out_specs=out_trees(block, block),
        outputs=out_trees(*[like(xs[0])] * 2),
    )
    check(out, list(out_trees(sum(xs), xs[1] - xs[2])))


@case(squeezed=[None, pl.Squeezed()])  # the two ways to write it
def squeezed_dimension(emitter, squeezed):
    def body(mine, _, x, o):
        assert x.shape == o.shape == BLOCK
        add_one(mine, _, x, o)

    x, o = numbers(3, ROWS, COLS), jax.ShapeDtypeStruct((ROWS, 3, COLS), np.float32)
    out = emitter.run(
        body,
        x,
        grid=(3,),
        outputs=(o,),
        in_specs=(pl.BlockSpec((squeezed, *BLOCK), lambda i: (i, 0, 0)),),
        out_specs=(pl.BlockSpec((ROWS, squeezed, COLS), lambda i: (0, i, 0)),),
    )
    check(out, x.swapaxes(0, 1) + 1)


@case()
def element_dimension(emitter):
    """Blocks that overlap in the input, and leave gaps in the output."""
    x, o = numbers(48, COLS), jax.ShapeDtypeStruct((72, COLS), np.float32)
    out = emitter.run(
        add_one,
        x,
        grid=(3,),
        outputs=(o,),
        in_specs=(pl.BlockSpec((pl.Element(ROWS), COLS), lambda i: (9 * i + 1, 0)),),
        out_specs=(pl.BlockSpec((pl.Element(ROWS), pl.Blocked(COLS)), lambda i: (20 * i + 3, 0)),),
    )
    for i in range(3):
        check(out[20 * i + 3 :][:ROWS], x[9 * i + 1 :][:ROWS] + 1)


@case(upstream=())
def no_block_shape(emitter):
    """The whole operand, at each step."""

    def body(mine, indices, x, whole, o):
        build_up(mine(o), mine(x)[...] + mine(whole)[...], indices[0] == 0)

    x, whole = numbers(3 * ROWS, COLS), numbers(*BLOCK)
    out = emitter.run(
        body,
        x,
        whole,
        grid=(3,),
        outputs=(like(whole),),
        in_specs=(spec(lambda i: (i, 0)), pl.BlockSpec()),
        out_specs=(plgpu.BlockSpec(),),
    )
    check(out, by_blocks(x).sum((0, 1)) + 3 * whole)


@case(upstream=(PLAIN,), space=[plgpu.GMEM, pl.ANY])  # both leave an operand where it is
def pinned_to_gmem(emitter, space):
    def body(mine, indices, x, whole, o, out_whole):
        rows = pl.ds(indices[0] * ROWS, ROWS)
        assert whole.shape == out_whole.shape == (3 * ROWS, COLS)
        y = mine(whole.at[rows])[...]
        mine(o)[...] = mine(x)[...] + y
        mine(out_whole.at[rows])[...] = y + 1.0

    xs = numbers(3 * ROWS, COLS), numbers(3 * ROWS, COLS) + 1
    specs = (spec(lambda i: (i, 0)), pl.BlockSpec(memory_space=space))
    out = emitter.run(
        body, *xs, grid=(3,), in_specs=specs, out_specs=specs, outputs=[like(x) for x in xs]
    )
    check(out, [sum(xs), xs[1] + 1])


# The sizes of elements, each with as many columns as a swizzle of 128 bytes takes.
@case(dtype=["int8", "float16", "bfloat16", "float32"])
def tiled_and_swizzled(emitter, dtype):
    dtype = jnp.dtype(dtype)
    rows, cols = 128, 128 // dtype.itemsize  # registers take such blocks 64 rows at a time
    transforms = (plgpu.TilingTransform((8, cols)), plgpu.SwizzleTransform(128))

    def body(mine, _, x, o):
        mine(o)[...] = mine(x)[...]

    x = numbers(2 * rows, 2 * cols, dtype=dtype)
    block = spec(lambda i, j: (i, j), (rows, cols), transforms=transforms)
    out = emitter.run(
        body, x, grid=(2, 2), in_specs=(block,), out_specs=(block,), outputs=(like(x),)
    )
    check(out, x)


@case()
def ragged_edges(emitter):
    """Beyond an operand's end, reads give zeros and stores do nothing."""

    def body(mine, indices, x, padded, clipped):
        mine(padded)[...] = mine(x)[...] + 1.0
        mine(clipped)[...] = mine(x)[...] + 2.0

    x = numbers(2 * ROWS + 5, COLS + 12)
    whole = jax.ShapeDtypeStruct((3 * ROWS, 2 * COLS), x.dtype)
    block = spec(lambda i, j: (i, j))
    padded, clipped = emitter.run(
        body, x, grid=(3, 2), in_specs=(block,), out_specs=(block,) * 2, outputs=(whole, like(x))
    )
    check(padded, np.pad(x, [(0, whole - n) for n, whole in zip(x.shape, whole.shape)]) + 1)
    check(clipped, x + 2)


# What a long vector's copy, which pads nothing, needs. ZEROS is the default, above.
@case(mode=[plgpu.OOBFillMode.UNDEFINED, plgpu.OOBFillMode.PROMISE_IN_BOUNDS])
def nothing_beyond_the_edge(emitter, mode):
    def body(mine, _, x, o):
        mine(o)[...] = mine(x)[...]

    x = numbers(4 * 512, dtype=np.int8)
    block = spec(lambda i: (i,), (512,), oob_fill_mode=mode)
    out = emitter.run(body, x, grid=(4,), in_specs=(block,), out_specs=(block,), outputs=(like(x),))
    check(out, x)


@case()
def dtypes(emitter):
    """Integers and floats of 1, 2 and 4 bytes, in one pipeline."""
    names = "int8", "uint8", "int16", "float16", "bfloat16", "int32", "float32"

    def body(mine, _, *refs):
        for x, o in zip(refs[: len(names)], refs[len(names) :], strict=True):
            mine(o)[...] = mine(x)[...]

    xs = [np.abs(numbers(3 * ROWS, COLS)).astype(jnp.dtype(name)) for name in names]
    specs = (spec(lambda i: (i, 0)),) * len(names)
    out = emitter.run(
        body, *xs, grid=(3,), in_specs=specs, out_specs=specs, outputs=[like(x) for x in xs]
    )
    check(out, xs)


# Index maps.


@case(upstream=(PLAIN,), stores=False)
def invariant_input(emitter):
    """Beside one that changes slowly, by the first axis only."""

    def body(mine, _, same, slow, total):
        return total + mine(same)[...] + mine(slow)[...]

    same, slow = numbers(*BLOCK), numbers(2 * ROWS, COLS)
    total = emitter.run(
        body,
        same,
        slow,
        grid=(2, 3),
        slots=3,
        carry=zeros,
        in_specs=(spec(lambda i, j: (0, 0)), spec(lambda i, j: (i, 0))),
    )
    check(total, 6 * same + 3 * by_blocks(slow).sum((0, 1)))


@case(upstream=())
def invariant_output(emitter):
    """Built up over all steps in one slot, beside one that is not."""

    def body(mine, indices, x, total, o):
        is_first = (indices[0] == 0) & (indices[1] == 0)
        build_up(mine(total), mine(x)[...], is_first)
        mine(o)[...] = mine(x)[...] + 1.0

    x = numbers(2 * ROWS, 3 * COLS)
    block = spec(lambda i, j: (i, j))
    total, out = emitter.run(
        body,
        x,
        grid=(2, 3),
        in_specs=(block,),
        out_specs=(spec(lambda i, j: (0, 0)), block),
        outputs=(jax.ShapeDtypeStruct(BLOCK, x.dtype), like(x)),
    )
    check(total, by_blocks(x).sum((0, 1)))
    check(out, x + 1)


# 1 slot waits for each store; 2 do not at 3 visits each; 8 are more than steps.
@case(upstream=(), slots=[1, 2, 8])
def revisited_output(emitter, slots):
    """A block is built up over its visits, or written at the first, and stored after the last."""

    def body(mine, indices, x, total, first):
        is_first = indices[1] == 0
        build_up(mine(total), mine(x)[...], is_first)

        @pl.when(is_first)
        def _():
            mine(first)[...] = mine(x)[...]

    x, rows = numbers(4 * ROWS, 3 * COLS), spec(lambda i, j: (i, 0))
    o = jax.ShapeDtypeStruct((4 * ROWS, COLS), x.dtype)
    total, first = emitter.run(
        body,
        x,
        grid=(4, 3),
        slots=slots,
        in_specs=(spec(lambda i, j: (i, j)),),
        out_specs=(rows, rows),
        outputs=(o, o),
    )
    check(total.reshape(4, *BLOCK), by_blocks(x).sum(1))
    check(first, x[:, :COLS])


@case()
def different_maps(emitter):
    """Axes exchanged; a constant, whose last step's values stand.

    No block is visited again after others: two stores of it would be in flight in any order.
    """

    def body(mine, indices, x, same, turned, last):
        for o in (same, turned, last):
            mine(o)[...] = mine(x)[...]

    x, maps = numbers(2 * ROWS, 3 * COLS), [lambda i, j: (i, j), lambda i, j: (j, i)]
    maps.append(lambda i, j: (0, 0))
    shapes = (2, 3), (3, 2), (1, 1)
    outputs = [jax.ShapeDtypeStruct((m * ROWS, n * COLS), x.dtype) for m, n in shapes]
    out = emitter.run(
        body,
        x,
        grid=(2, 3),
        slots=3,
        in_specs=(spec(maps[0]),),
        outputs=outputs,
        out_specs=[spec(index_map) for index_map in maps],
    )
    blocks = by_blocks(x)
    for one, expected in zip(out, [blocks, blocks.swapaxes(0, 1), blocks[1:, 2:]], strict=True):
        check(by_blocks(one), expected)


# Pipelines in pipelines.


@case(kinds=(PLAIN,), upstream=(PLAIN,))
def pipeline_in_a_body(emitter):
    def body(mine, indices, x, y, o):
        (i,) = indices
        add = lambda mine, _, x, o: add_one(mine, _, x, o)
        block = spec(lambda j: (i, j))
        emitter.pipeline(add, grid=(3,), in_specs=(block,), out_specs=(block,))(x, o)

    x, pinned = numbers(2 * ROWS, 3 * COLS), pl.BlockSpec(memory_space=plgpu.GMEM)
    out = emitter.run(
        body,
        x,
        x,
        grid=(2,),
        in_specs=(pinned, spec(lambda i: (i, 0))),
        out_specs=(pinned,),
        outputs=(like(x),),
    )
    check(out, x + 1)


@case(kinds=(PLAIN,), upstream=())
def pipeline_reads_what_one_stored(emitter):
    """All stores are done when a pipeline returns."""
    x, block = numbers(4 * ROWS, COLS), spec(lambda i: (i, 0))

    def kernel(x, y, o):
        run = emitter.pipeline(add_one, 3, grid=(4,), in_specs=(block,), out_specs=(block,))
        run(x, y)
        run(y, o)

    y, out = emitter.kernel(kernel, (like(x), like(x)))(x)
    check([np.asarray(y), np.asarray(out)], [x + 1, x + 2])


# Only with threads of their own.


# First, middle and last of three threads; with one compute thread, the last is the second.
@case(kinds=(SPECIALIZED,), upstream=(), memory_thread=[0, 1, 2])
def memory_thread(emitter, memory_thread):
    emitter = dataclasses.replace(emitter, memory_thread=min(memory_thread, emitter.threads))
    _sum_and_copy(emitter)


def _sum_and_copy(emitter):
    def body(mine, _, x, o, total):
        mine(o)[...] = mine(x)[...] + 1.0
        return total + mine(x)[...]

    x, block = numbers(5 * ROWS, COLS), spec(lambda i: (i, 0))
    out, total = emitter.run(
        body, x, grid=(5,), slots=3, times=2, in_specs=(block,), out_specs=(block,),
        outputs=(like(x),), carry=zeros,
    )  # fmt: skip
    check(out, x + 1)
    check(total, by_blocks(x).sum((0, 1)))


# Each barrier alone, and both, where their order among the body's arguments shows.
@case(kinds=(SPECIALIZED,), upstream=(), manual=["produced", "consumed", "produced+consumed"])
def manual_barriers(emitter, manual):
    produced, consumed = "produced" in manual, "consumed" in manual

    def body(mine, indices, x, tree, pinned, o, *barriers):
        y = tree["y"][0]
        if produced:
            x_barrier, y_barriers, none, *barriers = barriers
            assert none is None
            plgpu.barrier_wait(y_barriers["y"][0])
            plgpu.barrier_wait(x_barrier)
        mine(o)[...] = mine(x)[...] + mine(y)[...] + mine(pinned)[...]
        if consumed:
            x_barrier, y_barriers, none, *barriers = barriers
            assert none is None
            plgpu.commit_smem()
            plgpu.barrier_arrive(x_barrier)

            @pl.when(indices[0] >= 1)
            def _():
                plgpu.barrier_arrive(y_barriers["y"][0])

        assert not barriers

    x, y, pinned = numbers(5 * ROWS, COLS), numbers(5 * ROWS, COLS) + 1, numbers(*BLOCK)
    block, late = spec(lambda i: (i, 0)), spec(lambda i: (i, 0), delay_release=1)
    out = emitter.run(
        body, x, dict(y=[y]), pinned, grid=(5,), slots=3, times=2,
        in_specs=(block, dict(y=[late]), pl.BlockSpec(memory_space=plgpu.GMEM)),
        out_specs=(block,), outputs=(like(x),), manual_produced_barriers=produced,
        manual_consumed_barriers=consumed,
    )  # fmt: skip
    check(out, x + y + np.tile(pinned, (5, 1)))


# Who knows the place in the chain: the compiler or the device. Delay 1: slots are released by the
# next pipeline of the chain.
@case(kinds=(SPECIALIZED,), upstream=(), traced=[False, True], delay=[0, 1])
@case(kinds=(), upstream=(SPECIALIZED,), traced=[False, True], delay=[0])
def chain(emitter, traced, delay):
    """Pipelines that share allocations: two chains, and one pipeline that is no part of one."""
    place = plgpu.PipelinePipeline
    turns = (place.START, place.STEADY, place.STEADY, place.STOP)
    x = numbers(10 * ROWS, 4 * COLS)

    def kernel(x, o):
        def make(turn, state):
            return emitter.pipeline(
                add_one,
                2,
                grid=(4,),
                pipeline_state=state,
                in_specs=(spec(lambda k: (turn, k), delay_release=delay),),
                out_specs=(spec(lambda k: (turn, k)),),
            )

        def scope(allocations):
            run = lambda turn, state: make(turn, state)(x, o, allocations=allocations)
            for first in (0, 4):
                if not traced:
                    for turn, state in enumerate(turns):
                        run(first + turn, state)
                    continue

                @pl.loop(0, 4)
                def _(turn):
                    state = jnp.where(turn == 0, place.START, place.STEADY)
                    run(first + turn, jnp.where(turn == 3, place.STOP, state))

            run(8, None)
            run(9, None)

        allocations = make(0, None).get_allocations(x, o)
        pl.run_scoped(scope, allocations, collective_axes="wg")

    check(np.asarray(emitter.kernel(kernel, like(x))(x)), x + 1)


@case(kinds=(SPECIALIZED,), upstream=(), delay=[0, 1])
def chain_of_any_steps(emitter, delay):
    """Pipelines of a chain begin in any slot, if they are told how many steps came before."""
    place, steps, slots = plgpu.PipelinePipeline, 5, 3
    x = numbers(4 * ROWS, steps * COLS)

    def kernel(x, o):
        def make(turn, state):
            return emitter.pipeline(
                add_one,
                slots,
                grid=(steps,),
                pipeline_state=state,
                steps_before=jnp.int32(turn) * steps,
                in_specs=(spec(lambda k: (turn, k), delay_release=delay),),
                out_specs=(spec(lambda k: (turn, k)),),
            )

        def scope(allocations):
            @pl.loop(0, 4)
            def _(turn):
                state = jnp.where(turn == 0, place.START, place.STEADY)
                state = jnp.where(turn == 3, place.STOP, state)
                make(turn, state)(x, o, allocations=allocations)

        allocations = make(0, jnp.int32(0)).get_allocations(x, o)
        pl.run_scoped(scope, allocations, collective_axes="wg")

    check(np.asarray(emitter.kernel(kernel, like(x))(x)), x + 1)


@case(kinds=(SPECIALIZED,), upstream=(SPECIALIZED,))
def multicast_input(emitter):
    """Two blocks of a cluster load half of an input's block each, for both; another for itself."""

    def body(mine, _, shared, own, o):
        mine(o)[...] = mine(shared)[...] + mine(own)[...]

    def kernel(shared, own, o):
        block = lax.axis_index("cluster")
        here = spec(lambda i: (block, i))
        both = spec(lambda i: (0, i), collective_axes=("cluster",))
        pipeline = emitter.pipeline(body, 3, grid=(5,), in_specs=(both, here), out_specs=(here,))
        for _ in range(2):
            pipeline(shared, own, o)

    shared, own = numbers(ROWS, 5 * COLS), numbers(2 * ROWS, 5 * COLS)
    kernel = emitter.kernel(kernel, like(own), cluster=(2,), cluster_names=("cluster",))
    check(np.asarray(kernel(shared, own)), own + np.tile(shared, (2, 1)))
