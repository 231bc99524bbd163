"""A gallery of hazards: kernels with one fault each, beside the line that mends it.

The model. A `Hazard` is a kernel that takes `fixed`, False or True. Wherever it asks for `fixed`
stands its fault; nothing else differs. With it come the kind of finding that `pallascope.check`
must give for the faulty version, arguments, and the result of the right one by numpy. All arguments
are
small integers in floating point, so that every sum is exact: a right result has an error of 0.

Many kernels are one of two, of which the hazard spells out only the part that has the fault::

    sums(x)        x has STEPS tiles for each block; the sum of their rows. A memory thread loads
                   the tiles into a ring, compute threads add a row at a time, so slowly that the
                   next tile can land meanwhile
    product(a, b)  a matrix product; each block makes one tile of 128 x 128 of it

The rest has one tile for each block.

A faulty kernel may hang the GPU: run it in a process that can be killed (`benchmarks/hazards.py`).
"""

import enum
import functools
import inspect
import math
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
from pallascope import Program

#: Tiles of a block; slots of its ring; rows and columns of a tile; the product's tile and step.
STEPS, SLOTS = 6, 2
ROWS, COLUMNS = 128, 128
TILE, DEPTH = 128, 64
TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


class Gpu(enum.Enum):
    """A generation of GPUs that a kernel is for, with its `compute_capability`."""

    HOPPER = "9.0"
    BLACKWELL = "10.0"

    @property
    def compute_capability(self) -> str:
        """As `pipelib.target` takes it."""
        return self.value


class Hazard(NamedTuple):
    """One fault: `kernel(*arguments, fixed=...)`, and what is to be known of it.

    Attributes:
      name: the kernel's, with hyphens.
      title: a few words for a heading.
      kind: of the finding that the faulty version must give, as `pallascope.check` names it.
      summary: one sentence on what is wrong.
      remedy: one sentence on what mends it.
      arguments: `arguments(rng, blocks)` gives numpy arrays for a grid of so many blocks.
      reference: the right result for these, by numpy.
      kernel: takes jax arrays and `fixed`.
      whole_grid: the fault is one among blocks, so all of them are checked together.
      gpu: what the kernel is compiled for. This project's GPUs are Hopper's: they run no other.
    """

    name: str
    title: str
    kind: str
    summary: str
    remedy: str
    arguments: Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]
    reference: Callable[..., np.ndarray]
    kernel: Callable[..., jax.Array]
    whole_grid: bool = False
    gpu: Gpu = Gpu.HOPPER

    def program(self, *, fixed: bool) -> Program:
        """The trace of one version: of its first block, or of all."""
        args = self.arguments(np.random.default_rng(0), 1)
        kernel = functools.partial(self.kernel, fixed=fixed)
        with pipelib.target(self.gpu.compute_capability):
            return pallascope.trace(kernel, *args, whole_grid=self.whole_grid)

    def lowered(self, *args: Any, fixed: bool) -> str:
        """What JAX makes of one version for its GPU, which need not be there."""
        kernel = jax.jit(functools.partial(self.kernel, fixed=fixed))
        with pipelib.target(self.gpu.compute_capability):
            return kernel.trace(*args).lower(lowering_platforms=("cuda",)).as_text()

    def source(self) -> str:
        """The kernel's source, from its `def` on, without its docstring."""
        text = textwrap.dedent(inspect.getsource(self.kernel))
        text = text[text.index("def ") :]
        head, _, rest = text.partition('    """')
        return head + rest.partition('"""\n')[2].lstrip("\n")


GALLERY: dict[str, Hazard] = {}


def hazard(
    title: str, kind: str, remedy: str, arguments: Callable, reference: Callable
) -> Callable:
    """Puts a kernel into the gallery; its docstring's first sentence is the summary."""

    def enter(kernel: Callable) -> Callable:
        name = kernel.__name__.replace("_", "-")
        summary = " ".join((inspect.getdoc(kernel) or "").split())
        GALLERY[name] = Hazard(name, title, kind, summary, remedy, arguments, reference, kernel)
        return kernel

    return enter


# Arguments and references.


def integers(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Whole numbers from -4 to 4."""
    return rng.integers(-4, 5, shape, np.int8).astype(dtype)


def strips(rng: np.random.Generator, blocks: int) -> tuple[np.ndarray, ...]:
    """Of each block, STEPS tiles."""
    return (integers(rng, blocks, STEPS, ROWS, COLUMNS),)


def tiles(rng: np.random.Generator, blocks: int) -> tuple[np.ndarray, ...]:
    """Of each block, one tile."""
    return (integers(rng, blocks, ROWS, COLUMNS),)


def factors(rng: np.random.Generator, blocks: int) -> tuple[np.ndarray, ...]:
    """Two matrices whose product has so many tiles, a square number."""
    side, depth = math.isqrt(blocks) * TILE, 16 * DEPTH
    shapes = (side, depth), (depth, side)
    return tuple(integers(rng, *shape, dtype=np.float16) for shape in shapes)


def moments(readers: int = 1) -> Callable[[np.ndarray], np.ndarray]:
    """The sum over a block's rows and, for two readers, that of the squares."""
    return lambda x: np.stack([(x ** (r + 1)).sum((1, 2)) for r in range(readers)], 1)


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In float32."""
    return a.astype(np.float32) @ b.astype(np.float32)


def plus_one(x: np.ndarray) -> np.ndarray:
    """What most kernels of one tile compute."""
    return x + 1


def multiples(x: np.ndarray, steps: int = STEPS) -> np.ndarray:
    """Each tile times 1, 2, ..., steps."""
    return x[:, None] * np.arange(1, steps + 1, dtype=x.dtype)[:, None, None]


# The kernels, as they should be.


def run(kernel: Callable, out: tuple[int, ...], *args: jax.Array, **options: Any) -> jax.Array:
    """Runs a kernel with one float32 output and one axis of blocks, unless told otherwise."""
    options = dict(grid=out[:1], grid_names=("block",)) | options
    out_type = jax.ShapeDtypeStruct(out, jnp.float32)
    return plgpu.kernel(kernel, out_type=out_type, **options)(*args)


def tile(*slots: int) -> Any:
    """SMEM for one tile, or a ring of them."""
    return plgpu.SMEM((*slots, ROWS, COLUMNS), jnp.float32)


class Ring(NamedTuple):
    """A block's tiles in GMEM, the slots that they go through, and the slots' barriers."""

    tiles: Any
    smem: Any
    produced: Any
    consumed: Any

    @property
    def slots(self) -> int:
        """How many there are."""
        return self.smem.shape[0]

    def slot(self, step: Any) -> Any:
        """The slot of a step."""
        return lax.rem(step, self.slots)

    def load(self, step: Any) -> None:
        """Starts to load a step's tile into its slot."""
        slot = self.slot(step)
        plgpu.copy_gmem_to_smem(self.tiles.at[step], self.smem.at[slot], self.produced.at[slot])

    def wait_until_free(self, step: Any) -> None:
        """Waits for the release of the slot that a step's tile will be loaded into."""
        plgpu.barrier_wait(self.consumed.at[self.slot(step)])


def load_all(ring: Ring) -> None:
    """The memory thread: each tile once its slot is free; then waits for the last releases."""

    def step(k, _):
        pl.when(k >= ring.slots)(lambda: ring.wait_until_free(k))
        ring.load(k)

    lax.fori_loop(0, STEPS, step, None)
    lax.fori_loop(0, ring.slots, lambda k, _: ring.wait_until_free(k + STEPS), None)


def sum_all(ring: Ring, reader: int) -> jax.Array:
    """A compute thread: adds the rows of each tile, then releases its slot."""

    def step(k, total):
        slot = ring.slot(k)
        plgpu.barrier_wait(ring.produced.at[slot])
        total = add_rows(total, ring.smem.at[slot], reader)
        plgpu.commit_smem()
        plgpu.barrier_arrive(ring.consumed.at[slot])
        return total

    return lax.fori_loop(0, STEPS, step, zeros())


def add_rows(total: jax.Array, tile: Any, reader: int = 0) -> jax.Array:
    """Adds a tile's rows, one after the other; the second reader, their squares."""

    def add(row, total):
        values = tile[row]
        return total + (values * values if reader else values)

    return lax.fori_loop(0, ROWS, add, total)


def zeros() -> jax.Array:
    """A row of zeros in registers, laid out as rows are that come from SMEM."""
    layout = plgpu.Layout.WG_STRIDED((COLUMNS,), vec_size=1)
    return plgpu.layout_cast(jnp.zeros((COLUMNS,), jnp.float32), layout)


def sums(
    x: jax.Array,
    load_all: Callable = load_all,
    sum_all: Callable = sum_all,
    *,
    readers: int = 1,
    releases: int | None = None,
    slots: int = SLOTS,
) -> jax.Array:
    """Column sums: a memory thread, and compute threads, each of which reads all tiles.

    `releases` is how many arrivals free a slot; by default that of each reader.
    """

    def kernel(x_gmem, o_gmem, x_smem, produced, consumed):
        block, thread = lax.axis_index("block"), lax.axis_index("thread")
        ring = Ring(x_gmem.at[block], x_smem, produced, consumed)
        pl.when(thread == readers)(lambda: load_all(ring))
        for reader in range(readers):

            @pl.when(thread == reader)
            def _():
                o_gmem[block, reader] = sum_all(ring, reader)

    return run(
        kernel,
        (len(x), readers, COLUMNS),
        x,
        num_threads=readers + 1,
        thread_name="thread",
        scratch_types=[
            tile(slots),
            plgpu.Barrier(num_barriers=slots),
            plgpu.Barrier(num_arrivals=releases or readers, num_barriers=slots),
        ],
    )


def product(a: jax.Array, b: jax.Array, multiply: Callable, *scratch: Any) -> jax.Array:
    """A matrix product: `multiply(acc, a's rows, b's columns, *scratch)` makes one tile of it."""

    def kernel(a_gmem, b_gmem, o_gmem, *scratch):
        rows, columns = (pl.ds(lax.axis_index(axis) * TILE, TILE) for axis in ("row", "column"))

        def scope(acc):
            multiply(acc, a_gmem.at[rows], b_gmem.at[:, columns], *scratch)
            o_gmem[rows, columns] = acc[...]

        pl.run_scoped(scope, plgpu.ACC((TILE, TILE), jnp.float32))

    shape = len(a), b.shape[1]
    grid = shape[0] // TILE, shape[1] // TILE
    return run(kernel, shape, a, b, grid=grid, grid_names=("row", "column"), scratch_types=scratch)


def operands(*slots: int) -> list[Any]:
    """SMEM for what a step of a product multiplies."""
    return [
        plgpu.SMEM((*slots, TILE, DEPTH), jnp.float16, transforms=TILED),
        plgpu.SMEM((*slots, DEPTH, TILE), jnp.float16, transforms=TILED),
    ]


# The hazards. First: what is not yet there.


@hazard(
    "Read before the wait",
    "race",
    "Wait for the produced barrier before the first read.",
    tiles,
    plus_one,
)
def read_before_the_wait(x, *, fixed):
    """The tile is read while the copy that brings it is still on its way."""

    def kernel(x_gmem, o_gmem, x_smem, produced):
        block = lax.axis_index("block")
        plgpu.copy_gmem_to_smem(x_gmem.at[block], x_smem, produced)
        if fixed:
            plgpu.barrier_wait(produced)
        o_gmem[block] = x_smem[...] + 1.0
        if not fixed:
            plgpu.barrier_wait(produced)  # too late

    return run(kernel, x.shape, x, scratch_types=[tile(), plgpu.Barrier()])


@hazard(
    "The wrong slot",
    "race",
    "Compute the slot once, and use it both for the wait and for the read.",
    strips,
    moments(),
)
def wrong_slot(x, *, fixed):
    """The thread waits for one slot's barrier and reads another slot."""

    def sum_all(ring, reader):
        def step(k, total):
            slot = ring.slot(k)
            plgpu.barrier_wait(ring.produced.at[slot])
            read = slot if fixed else ring.slot(k + 1)
            total = add_rows(total, ring.smem.at[read], reader)
            plgpu.commit_smem()
            plgpu.barrier_arrive(ring.consumed.at[slot])
            return total

        return lax.fori_loop(0, STEPS, step, zeros())

    return sums(x, sum_all=sum_all)


@hazard(
    "Memory that nobody wrote",
    "uninitialized-read",
    "Write zeros first: SMEM holds what the block before left there.",
    strips,
    lambda x: x.sum(1),
)
def uninitialized_smem(x, *, fixed):
    """A total is kept in SMEM and added to, but never set to zero."""

    def kernel(x_gmem, o_gmem, total_smem):
        block = lax.axis_index("block")
        if fixed:
            total_smem[...] = jnp.zeros_like(total_smem)
        for k in range(STEPS):
            total_smem[...] = total_smem[...] + x_gmem[block, k]
        o_gmem[block] = total_smem[...]

    return run(kernel, (len(x), ROWS, COLUMNS), x, scratch_types=[tile()])


@hazard(
    "A store without commit_smem",
    "missing-commit",
    "Call commit_smem between ordinary writes and the copy that reads them.",
    tiles,
    plus_one,
)
def missing_commit(x, *, fixed):
    """TMA is sent for a tile that not all lanes have finished writing."""

    def kernel(x_gmem, o_gmem, o_smem):
        block = lax.axis_index("block")
        o_smem[...] = x_gmem[block] + 1.0
        if fixed:
            plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[block])
        plgpu.wait_smem_to_gmem(0)

    return run(kernel, x.shape, x, scratch_types=[tile()])


@hazard(
    "A product without commit_smem",
    "missing-commit",
    "Call commit_smem between ordinary writes and the wgmma that reads them.",
    factors,
    lambda a, b: 2 * matmul(a, b),
)
def missing_commit_before_wgmma(a, b, *, fixed):
    """The tensor core multiplies a tile that a thread has just changed in SMEM."""

    def multiply(acc, a_gmem, b_gmem, a_smem, b_smem, produced):
        def step(k, _):
            ks = pl.ds(k * DEPTH, DEPTH)
            plgpu.copy_gmem_to_smem(a_gmem.at[:, ks], a_smem, produced)
            plgpu.copy_gmem_to_smem(b_gmem.at[ks], b_smem, produced)
            plgpu.barrier_wait(produced)
            b_smem[...] = b_smem[...] * jnp.float16(2)
            if fixed:
                plgpu.commit_smem()
            plgpu.wgmma(acc, a_smem, b_smem)
            plgpu.wgmma_wait(0)

        lax.fori_loop(0, a_gmem.shape[1] // DEPTH, step, None)

    return product(a, b, multiply, *operands(), plgpu.Barrier(num_arrivals=2))


# What is no longer there.


@hazard(
    "Refilled before it was read",
    "race",
    "Refill a slot after the last read of it.",
    strips,
    moments(),
)
def refill_too_early(x, *, fixed):
    """A single thread starts to load the slot's next tile, and only then reads the present one."""

    def kernel(x_gmem, o_gmem, x_smem, produced):
        block = lax.axis_index("block")
        ring = Ring(x_gmem.at[block], x_smem, produced, None)
        for k in range(SLOTS):
            ring.load(k)

        def step(k, total):
            refill = lambda: pl.when(k + SLOTS < STEPS)(lambda: ring.load(k + SLOTS))
            slot = ring.slot(k)
            plgpu.barrier_wait(produced.at[slot])
            if not fixed:
                refill()  # too early
            total = add_rows(total, x_smem.at[slot])
            plgpu.commit_smem()
            if fixed:
                refill()
            return total

        o_gmem[block, 0] = lax.fori_loop(0, STEPS, step, zeros())

    scratch = [tile(SLOTS), plgpu.Barrier(num_barriers=SLOTS)]
    return run(kernel, (len(x), 1, COLUMNS), x, scratch_types=scratch)


@hazard(
    "Nobody asks whether the slot is free",
    "race",
    "Let the memory thread wait for the consumed barrier before it refills a slot.",
    strips,
    moments(),
)
def missing_consumed_wait(x, *, fixed):
    """The memory thread loads tile after tile, whether the compute thread has read them or not."""

    def load_all(ring):
        def step(k, _):
            if fixed:
                pl.when(k >= ring.slots)(lambda: ring.wait_until_free(k))
            ring.load(k)

        lax.fori_loop(0, STEPS, step, None)
        lax.fori_loop(0, ring.slots, lambda k, _: ring.wait_until_free(k + STEPS), None)

    return sums(x, load_all=load_all)


@hazard(
    "Released before it was read",
    "race",
    "Arrive at the consumed barrier after the last read of the slot.",
    strips,
    moments(),
)
def release_too_early(x, *, fixed):
    """The compute thread says that a slot is free, and only then reads it."""

    def sum_all(ring, reader):
        def step(k, total):
            slot = ring.slot(k)
            plgpu.barrier_wait(ring.produced.at[slot])
            if not fixed:
                plgpu.barrier_arrive(ring.consumed.at[slot])  # too early
            total = add_rows(total, ring.smem.at[slot], reader)
            plgpu.commit_smem()
            if fixed:
                plgpu.barrier_arrive(ring.consumed.at[slot])
            return total

        return lax.fori_loop(0, STEPS, step, zeros())

    return sums(x, sum_all=sum_all)


@hazard(
    "Released by one reader of two",
    "race",
    "Count an arrival for each reader: num_arrivals=2.",
    strips,
    moments(2),
)
def one_release_of_two(x, *, fixed):
    """Two threads read each slot, but its consumed barrier opens at the first one's arrival."""
    return sums(x, readers=2, releases=2 if fixed else 1)


@hazard(
    "wgmma_wait(1) with delay_release=0",
    "race",
    "Let delay_release be as large as the n of wgmma_wait(n), or wait for all products.",
    factors,
    matmul,
)
def undelayed_release(a, b, *, fixed):
    """A slot is released while the product that reads it may be unfinished."""

    def multiply(acc, a_gmem, b_gmem):
        def body(_, a_smem, b_smem):
            plgpu.wgmma(acc, a_smem, b_smem)
            plgpu.wgmma_wait(1)  # the product of this step goes on

        delay = 1 if fixed else 0
        block = lambda shape, at: plgpu.BlockSpec(shape, at, transforms=TILED, delay_release=delay)
        pipelib.emit_pipeline(
            body,
            grid=(a_gmem.shape[1] // DEPTH,),
            max_concurrent_steps=2,
            ordinary_reads=False,
            in_specs=[
                block((TILE, DEPTH), lambda k: (0, k)),
                block((DEPTH, TILE), lambda k: (k, 0)),
            ],
        )(a_gmem, b_gmem)

    return product(a, b, multiply)


@hazard(
    "Refilled while wgmma reads",
    "race",
    "Call wgmma_wait(0) before the slot that the product reads is loaded again.",
    factors,
    matmul,
)
def missing_wgmma_wait(a, b, *, fixed):
    """A slot is refilled right after wgmma was started on it, as if wgmma had been awaited."""

    def multiply(acc, a_gmem, b_gmem, a_smem, b_smem, produced):
        steps = a_gmem.shape[1] // DEPTH

        def load(k):
            slot, ks = lax.rem(k, SLOTS), pl.ds(k * DEPTH, DEPTH)
            plgpu.copy_gmem_to_smem(a_gmem.at[:, ks], a_smem.at[slot], produced.at[slot])
            plgpu.copy_gmem_to_smem(b_gmem.at[ks], b_smem.at[slot], produced.at[slot])

        for k in range(SLOTS):
            load(k)

        def step(k, _):
            slot = lax.rem(k, SLOTS)
            plgpu.barrier_wait(produced.at[slot])
            plgpu.wgmma(acc, a_smem.at[slot], b_smem.at[slot])
            if fixed:
                plgpu.wgmma_wait(0)
            pl.when(k + SLOTS < steps)(lambda: load(k + SLOTS))

        lax.fori_loop(0, steps, step, None)

    produced = plgpu.Barrier(num_arrivals=2, num_barriers=SLOTS)
    return product(a, b, multiply, *operands(SLOTS), produced)


# Barriers.


@hazard(
    "An arrival that never comes",
    "deadlock",
    "Let num_arrivals be the number of threads that do arrive: 1.",
    strips,
    moments(),
)
def arrival_never_comes(x, *, fixed):
    """The consumed barrier expects two arrivals for each release, but one thread reads."""
    return sums(x, readers=1, releases=1 if fixed else 2)


@hazard(
    "An arrival too many",
    "barrier-misuse",
    "Count an arrival for each copy that shares the barrier: num_arrivals=2.",
    lambda rng, blocks: tiles(rng, blocks) + tiles(rng, blocks),
    lambda x, y: x + y,
)
def arrival_too_many(x, y, *, fixed):
    """Two copies arrive at a barrier that expects one: the second arrives at a full phase."""

    def kernel(x_gmem, y_gmem, o_gmem, x_smem, y_smem, produced):
        block = lax.axis_index("block")
        plgpu.copy_gmem_to_smem(x_gmem.at[block], x_smem, produced)
        plgpu.copy_gmem_to_smem(y_gmem.at[block], y_smem, produced)
        plgpu.barrier_wait(produced)
        o_gmem[block] = x_smem[...] + y_smem[...]

    scratch = [tile(), tile(), plgpu.Barrier(num_arrivals=2 if fixed else 1)]
    return run(kernel, x.shape, x, y, scratch_types=scratch)


@hazard(
    "A waiter that is lapped",
    "barrier-misuse",
    "Give each step a barrier of its own, or make the writer wait for the reader.",
    tiles,
    lambda x: multiples(x, 3),
)
def lapped_waiter(x, *, fixed):
    """One thread arrives at a barrier twice before the other has looked once."""
    steps = 3

    def kernel(x_gmem, o_gmem, o_smem, written):
        block, thread = lax.axis_index("block"), lax.axis_index("thread")
        barrier = lambda k: written.at[k if fixed else 0]

        @pl.when(thread == 0)
        def write():
            value = x_gmem[block]
            for k in range(steps):
                o_smem[k] = value * (k + 1.0)
                plgpu.commit_smem()
                plgpu.barrier_arrive(barrier(k))

        @pl.when(thread == 1)
        def store():
            for k in range(steps):
                plgpu.barrier_wait(barrier(k))
                plgpu.copy_smem_to_gmem(o_smem.at[k], o_gmem.at[block, k])
                plgpu.wait_smem_to_gmem(0)

    return run(
        kernel,
        (len(x), steps, ROWS, COLUMNS),
        x,
        num_threads=2,
        thread_name="thread",
        scratch_types=[tile(steps), plgpu.Barrier(num_barriers=steps if fixed else 1)],
    )


@hazard(
    "One load too few",
    "deadlock",
    "Let the memory thread load as many steps as the compute thread waits for.",
    strips,
    moments(),
)
def one_load_too_few(x, *, fixed):
    """The compute thread waits for a last tile that the memory thread does not load."""

    def load_all(ring):
        def step(k, _):
            pl.when(k >= ring.slots)(lambda: ring.wait_until_free(k))
            ring.load(k)

        lax.fori_loop(0, STEPS if fixed else STEPS - 1, step, None)
        lax.fori_loop(0, ring.slots, lambda k, _: ring.wait_until_free(k + STEPS), None)

    return sums(x, load_all=load_all)


@hazard(
    "Each waits for the other",
    "deadlock",
    "In the prologue all slots are free: wait only from step `slots` on.",
    strips,
    moments(),
)
def waiting_in_a_circle(x, *, fixed):
    """The memory thread waits for a release before its first load, which nobody can give."""

    def load_all(ring):
        def step(k, _):
            used_before = k >= ring.slots if fixed else k >= 0
            pl.when(used_before)(lambda: ring.wait_until_free(k))
            ring.load(k)

        lax.fori_loop(0, STEPS, step, None)
        lax.fori_loop(0, ring.slots, lambda k, _: ring.wait_until_free(k + STEPS), None)

    return sums(x, load_all=load_all)


# The way out.


@hazard(
    "Staging memory used again",
    "race",
    "Call wait_smem_to_gmem before the memory that a store reads is written again.",
    tiles,
    multiples,
)
def staging_used_again(x, *, fixed):
    """The next result is written into SMEM from which the last is still being stored."""

    def kernel(x_gmem, o_gmem, o_smem):
        block = lax.axis_index("block")
        value = x_gmem[block]
        for k in range(STEPS):
            o_smem[...] = value * (k + 1.0)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[block, k])
            if fixed:
                plgpu.wait_smem_to_gmem(0)
        plgpu.wait_smem_to_gmem(0)

    return run(kernel, (len(x), STEPS, ROWS, COLUMNS), x, scratch_types=[tile()])


@hazard(
    "Gone before the store was done",
    "lost-store",
    "Call wait_smem_to_gmem(0) before the thread ends.",
    tiles,
    plus_one,
)
def exit_before_the_store(x, *, fixed):
    """A block ends while TMA may still be reading its SMEM."""

    def kernel(x_gmem, o_gmem, o_smem):
        block = lax.axis_index("block")
        o_smem[...] = x_gmem[block] + 1.0
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[block])
        if fixed:
            plgpu.wait_smem_to_gmem(0)

    return run(kernel, x.shape, x, scratch_types=[tile()])


@hazard(
    "Never stored",
    "lost-store",
    "Store every step's result: the last step has no next one to load, but it has a result.",
    tiles,
    multiples,
)
def never_stored(x, *, fixed):
    """The condition for another load guards the store too, so the last result stays in SMEM."""

    def kernel(x_gmem, o_gmem, o_smem):
        block = lax.axis_index("block")
        value = x_gmem[block]
        for k in range(STEPS):
            o_smem[...] = value * (k + 1.0)
            plgpu.commit_smem()
            if fixed or k + 1 < STEPS:
                plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[block, k])
                plgpu.wait_smem_to_gmem(0)

    return run(kernel, (len(x), STEPS, ROWS, COLUMNS), x, scratch_types=[tile()])


@hazard(
    "Two threads, one block of the output",
    "race",
    "Let the index of the block that a thread stores depend on the thread.",
    lambda rng, blocks: tiles(rng, 2 * blocks),
    plus_one,
)
def same_output_block(x, *, fixed):
    """Both threads of a block store their tiles in the same place."""

    def kernel(x_gmem, o_gmem, o_smem):
        block, thread = lax.axis_index("block"), lax.axis_index("thread")
        mine = 2 * block + thread
        o_smem[thread] = x_gmem[mine] + 1.0
        plgpu.commit_smem()
        place = mine if fixed else 2 * block
        plgpu.copy_smem_to_gmem(o_smem.at[thread], o_gmem.at[place])
        plgpu.wait_smem_to_gmem(0)

    return run(
        kernel,
        x.shape,
        x,
        grid=(len(x) // 2,),
        num_threads=2,
        thread_name="thread",
        scratch_types=[tile(2)],
    )


@hazard(
    "More memory than there is",
    "resource",
    "Use fewer slots or smaller tiles: a block has 227 KiB.",
    strips,
    moments(),
)
def too_much_smem(x, *, fixed):
    """Four slots of 64 KiB are more shared memory than a block can have."""
    return sums(x, slots=3 if fixed else 4)
