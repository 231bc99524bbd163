"""Probes of what a softmax is made of: arithmetic on an array in the layout of `wgmma`.

An array of 64 x 128 float32 in this layout gives each lane 64 elements: 32 of each of two rows.
Four lanes share a row. To reduce a row, each lane first combines its 32 elements; then the four
lanes pass each other a word in two rounds (shuffles).

The questions. What does each of these operations take, with one thread, with two and with three?
How long does an operation wait for the result of the operation before (a chain)? The model prices
each operation by its throughput and has no latency of an instruction (`costs`).

The docstring of each function gives the prediction: what the model says, and what the alternative
would show. `modelled` prints both figures.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks.clocked import (
    Probe,
    Right,
    alike,
    carrying,
    for_result,
    halves,
    keep_rolled,
    swizzled,
)
from benchmarks.probes_tensor_core import streaming

ROWS, COLUMNS = 64, 128
REPEATS = 128
#: Operations of a chain in one step.
LINKS = 8
#: Steps of products for each step beside them, so that these always have company.
_MANY = 8
#: As attention has it: functions are single instructions.
APPROXIMATE = dict(approx_math=True)
_TILED = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))


class _Steps(NamedTuple):
    """Steps that hand each other values in registers.

    `begin` makes the first values from an array, `end` an array from the last ones.
    """

    shape: tuple[int, ...]
    step: Callable[[Any], Any]
    begin: Callable[[jax.Array], Any] = lambda x: x
    end: Callable[[Any], jax.Array] = lambda x: x

    def probe(self, name: str, threads: int = 1, **options: Any) -> Probe:
        """Has each thread do them. The array comes from SMEM and goes there: the compiler neither
        knows what the steps give nor leaves them out."""
        is_flat = len(self.shape) == 1
        strided = plgpu.Layout.WG_STRIDED(self.shape, vec_size=1)
        layout = strided if is_flat else plgpu.Layout.WGMMA

        def role(thread, timed, block, ring):
            mine = ring.at[thread]

            def one(values, first, i):
                keep_rolled()
                return self.step(values)

            def end(values):
                mine[...] = self.end(values)

            mine[...] = halves(self.shape, layout)
            plgpu.commit_smem()
            begin = lambda: self.begin(plgpu.layout_cast(mine[...], layout))
            timed(carrying(one, begin, end))

        transforms = _TILED if self.shape[-1] % 32 == 0 and not is_flat else ()
        ring = plgpu.SMEM((threads, *self.shape), jnp.float32, transforms=transforms)
        many = f", {threads} threads"
        return Probe(name + many, alike(role, threads), REPEATS, (ring,), **options)


def _to_all(of_rows: jax.Array, columns: int = COLUMNS) -> jax.Array:
    """A number of each row, for each of its elements."""
    return lax.broadcast_in_dim(of_rows, (of_rows.shape[0], columns), (0,))


def _rounded(x: jax.Array) -> jax.Array:
    """To float16 and back, after an addition: without it the compiler would convert once. It is of
    a number that float16 has not: else the compiler would add in float16."""
    return (x + 0.1).astype(jnp.float16).astype(jnp.float32)


# Arrays.


def scaled(threads: int) -> Probe:
    """A multiplication and an addition of each element, which the reductions below do too.

    The model: one operation on each element, and as many instructions more as other kernels have,
    96 cycles. The alternative: a lane has 64 instructions, and a step takes some 67 cycles.
    """
    steps = _Steps((ROWS, COLUMNS), lambda x: x * 0.5 + 0.25)
    return steps.probe(f"scale {ROWS}x{COLUMNS}", threads, work=dict(ops=2.0 * ROWS * COLUMNS))


def rows(kind: str, threads: int) -> Probe:
    """The maximum or the sum of each row; then a quarter of it is taken from each element.

    The model: one operation on each element, those of the reduction, and the words that lanes pass
    each other: 298 cycles for one thread with maxima; three take 1364. The alternatives: if threads
    share the unit as well as one thread alone uses it, three take 900. If a shuffle's latency
    counts, a step of one thread takes some 60 cycles more than its instructions, and further
    threads hide this.
    """
    reduce = dict(max=lambda x: x.max(axis=1), sum=lambda x: x.sum(axis=1))[kind]
    steps = _Steps((ROWS, COLUMNS), lambda x: x - _to_all(reduce(x)) * 0.25)
    work = dict(ops=3.0 * ROWS * COLUMNS)
    return steps.probe(f"{kind} of rows of {ROWS}x{COLUMNS}", threads, work=work)


def rounded(threads: int) -> Probe:
    """An addition of each element, a conversion to float16 and one back.

    The model: each conversion costs as much as an addition, 282 cycles for one thread. The
    alternative: the lane has 160 instructions, since one converts two elements to float16; if each
    converts at half the rate of an addition, a step takes some 260 cycles, else 160.
    """
    steps = _Steps((ROWS, COLUMNS), _rounded)
    work = dict(ops=3.0 * ROWS * COLUMNS)
    return steps.probe(f"to float16 and back, {ROWS}x{COLUMNS}", threads, work=work)


def exponentials(threads: int) -> Probe:
    """2 to the power of each element: the part of `softmax` that another unit does.

    The model: 16 elements a cycle, 517 cycles for one thread, and fewer for several, so that three
    take 2372. The alternative: one thread alone does not keep the unit busy, so that three take
    less than three times as long.
    """
    steps = _Steps((ROWS, COLUMNS), jnp.exp2)
    work = dict(functions=1.0 * ROWS * COLUMNS)
    return steps.probe(f"exp2 of {ROWS}x{COLUMNS}", threads, work=work, params=APPROXIMATE)


def softmax(threads: int) -> Probe:
    """The softmax of a step of attention; its probabilities in float16 are added up.

    The model: a thread's arithmetic, exponentials and shuffles take their time one after the other,
    and the exponentials' unit works beside the arithmetic of other threads: 1118 cycles for one
    thread, 1835 for two, 2755 for three. The alternatives: if it works beside the arithmetic of the
    same thread, one thread's step is shorter, at least 528 cycles. If threads take turns, two and
    three take two and three times as long as one.
    """
    scale = math.log2(math.e) / 8

    def begin(x: jax.Array) -> tuple[jax.Array, ...]:
        return x, x.max(axis=1), x.sum(axis=1), x.astype(jnp.float16)

    def step(values: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        scores, maximum, total, packed = values
        higher = jnp.maximum(maximum, scores.max(axis=1) * scale)
        shrink = jnp.exp2(maximum - higher)
        p = jnp.exp2(scores * scale - _to_all(higher))
        return p, higher, total * shrink + p.sum(axis=1), packed + p.astype(jnp.float16)

    def end(values: tuple[jax.Array, ...]) -> jax.Array:
        p, maximum, total, packed = values
        return p + _to_all(maximum + total) + packed.astype(jnp.float32)

    steps = _Steps((ROWS, COLUMNS), step, begin, end)
    work = dict(elements=1.0 * ROWS * COLUMNS)
    return steps.probe(f"softmax of {ROWS}x{COLUMNS}", threads, work=work, params=APPROXIMATE)


# Chains: an operation that needs the result of the operation before. One element of each lane.

_LINKS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "add": lambda x: x + 0.25,
    "multiply and add": lambda x: x * 0.5 + 0.25,
    "add, max": lambda x: jnp.maximum(x + 0.25, 1.0),
    "exp2": jnp.exp2,
    "add, to float16 and back": _rounded,
}


def chain(name: str) -> Probe:
    """Eight operations in a row, each on the result of the operation before.

    The model knows throughput alone: eight additions of 128 elements take 12 cycles, eight
    exponentials 65. The alternative: an instruction's latency counts, at least 4 cycles for an
    addition and some 20 for an exponential, so that eight take 32 and 160.
    """
    link = _LINKS[name]

    def step(x: jax.Array) -> jax.Array:
        for _ in range(LINKS):
            x = link(x)
        return x

    steps = _Steps((128,), step)
    return steps.probe(f"chain of {LINKS} times {name}", work=dict(links=LINKS), params=APPROXIMATE)


def chain_of_rows() -> Probe:
    """Maxima of rows of 64 x 8, each of what the one before left: two rounds of shuffles.

    The model knows throughput alone: 34 cycles. The alternative: latencies count, some 25 cycles
    for each round of shuffles and 25 for the five operations around them.
    """
    columns = 8
    steps = _Steps((ROWS, columns), lambda x: x - _to_all(x.max(axis=1), columns) * 0.25)
    return steps.probe(f"max of rows of {ROWS}x{columns}", work=dict(ops=3.0 * ROWS * columns))


# Beside products.


def beside(alone: Probe, registers: bool = False) -> Probe:
    """A probe of arithmetic in one thread, and a thread that always has a product queued.

    The question: the tensor core reads and writes accumulators in registers; does it take register
    bandwidth, or turns of the scheduler, from the other threads?

    The model: arithmetic takes longer, by what these probes have shown (1302 cycles for a softmax),
    and a product 259 cycles. The alternative: if they did not meet, the arithmetic would take what
    it takes alone; if registers' bandwidth were shared evenly, products would take longer, too.
    """
    right, (arithmetic,) = Right(128), alone.roles

    def first(timed, block, ring, *others):
        arithmetic(timed, block, ring)

    def second(timed, block, ring, *others):
        streaming(right, registers, 1, _MANY, timed, *others)

    name = f"{alone.name}, beside products with a in {'registers' if registers else 'SMEM'}"
    scratch = *alone.scratch, swizzled(64, right.k), right.scratch, for_result(64, right.n)
    return alone._replace(name=name, roles=(first, second), scratch=scratch, apart=True)


def probes() -> list[Probe]:
    """The probes of arithmetic alone."""
    crowds = (1, 2, 3)
    reductions = itertools.starmap(rows, itertools.product(("max", "sum"), crowds))
    others = (make(threads) for make in (rounded, softmax) for threads in crowds)
    alone = scaled(1), exponentials(1), exponentials(3)
    return [*alone, *reductions, *others, *map(chain, _LINKS), chain_of_rows()]


def probes_beside() -> list[Probe]:
    """The probes of arithmetic beside products."""
    alone = scaled(1), exponentials(1), rows("max", 1)
    return [beside(softmax(1)), beside(softmax(1), registers=True), *map(beside, alone)]
