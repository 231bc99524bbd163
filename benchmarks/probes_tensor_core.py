"""Probes of the tensor core: threads that share it, and where products get their left operand.

The questions. Two threads queue products at one tensor core. Does it take them in the order in
which threads queued them, a whole product at a time, as `pallascope.simulate` has it? Or does it
take one instruction of 16 columns of K of each thread in turn? Do turns cost time? And is a product
faster if its left operand is in registers?

The docstring of each function gives the prediction: what the model says, and what the alternative
would show. `modelled` prints both figures.
"""

import functools
import itertools
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks.clocked import (
    Probe,
    Right,
    accumulated,
    alike,
    for_result,
    inner,
    keep_rolled,
    longer,
    loop,
    queueing,
    steps,
    swizzled,
)

#: Rows and columns of K of each product here, and the columns of a small one's result.
M, K, SMALL = 64, 64, 16
REPEATS = 240
#: Products that two threads queue in one turn, as attention does: P V, then the next Q K^T.
TURN = 2
#: The first named barrier that Mosaic GPU leaves to a kernel of two threads.
_FIRST_NAMED = 3


class Turns(StrEnum):
    """How two threads pass each other the turn to queue products."""

    FREE = "freely"
    BARRIER = "in turns by barriers"
    NAMED = "in turns by named barriers"

    @property
    def scratch(self) -> tuple[Any, ...]:
        """A barrier for each thread, where an mbarrier is it."""
        return (plgpu.Barrier(num_barriers=2),) if self is Turns.BARRIER else ()

    def take(self, thread: int, *barriers: Any) -> None:
        """Waits until this thread has the turn."""
        if self is Turns.BARRIER:
            plgpu.barrier_wait(barriers[0].at[thread])
        elif self is Turns.NAMED:
            _named("sync", thread)

    def give(self, thread: int, *barriers: Any) -> None:
        """Gives the turn to the other thread."""
        if self is Turns.BARRIER:
            plgpu.barrier_arrive(barriers[0].at[1 - thread])
        elif self is Turns.NAMED:
            _named("arrive", 1 - thread)


def _named(verb: str, thread: int) -> None:
    """An instruction of all lanes of a thread on the named barrier of a thread."""
    text = f"bar.{verb} {_FIRST_NAMED + thread}, 256;"
    plgpu.inline_mgpu()(lambda _: mgpu_utils.inline_ptx(text))()


# Two threads that do the same.


def two_threads(n: int, turns: Turns) -> Probe:
    """In each step, each of two threads queues two products and waits for both.

    The model: the tensor core is never idle, since a thread's wait and its turn take less time than
    the other thread's two products. So a step takes as long as four products, and turns change
    nothing: 1037 cycles with 128 columns, 2075 with 256. The alternatives: if turns do cost time, a
    step in turns is longer than a free one. If the tensor core mixes the products of both threads,
    both threads wait at the same time when they run freely, and a free step is longer than one in
    turns.
    """
    right = Right(n)

    def role(thread, timed, block, a, b, first_sink, second_sink, *barriers):
        def work(acc):
            def step(i):
                keep_rolled()
                turns.take(thread, *barriers)
                for _ in range(TURN):
                    plgpu.wgmma(acc, a.at[thread], right.of(b))
                turns.give(thread, *barriers)
                plgpu.wgmma_wait(0)

            if thread == 1:
                turns.give(thread, *barriers)
            timed(steps(step))
            if thread == 0:
                turns.take(thread, *barriers)

        (first_sink, second_sink)[thread][...] = accumulated(M, n, work)

    name = f"two threads, {TURN} wgmma {M}x{n}x{K} each, {turns}"
    sinks = for_result(M, n), for_result(M, n)
    scratch = swizzled(2, M, K), right.scratch, *sinks, *turns.scratch
    work = dict(flops=2.0 * TURN * M * n * K)
    return Probe(name, alike(role, 2), REPEATS, scratch, work=work)


# A thread of small products beside one of large ones.


def _small(
    words: str, n: int, small: Callable[..., None], large: Callable[..., None], *barriers: Any
) -> Probe:
    """A thread of small products, which is timed, and one of large ones of n columns.

    `small` and `large` are called with what times a run, what queues a product, and the barriers.
    """
    rights = Right(SMALL), Right(n)

    def role(act, thread, timed, block, a, *refs):
        right, b, sink = rights[thread], refs[thread], refs[2 + thread]

        def work(acc):
            multiply = lambda: plgpu.wgmma(acc, a.at[thread], right.of(b))
            act(timed, multiply, *refs[4:])

        sink[...] = accumulated(M, right.n, work)

    roles = tuple(functools.partial(role, act, i) for i, act in enumerate((small, large)))
    of_all = *(right.scratch for right in rights), *(for_result(M, right.n) for right in rights)
    name = f"wgmma {M}x{SMALL}x{K} {words} of {M}x{n}x{K}"
    scratch, work = (swizzled(2, M, K), *of_all, *barriers), dict(flops=2.0 * M * SMALL * K)
    return Probe(name, roles, REPEATS, scratch, work=work, apart=True)


def small_beside(n: int) -> Probe:
    """A thread makes small products and waits for each; another always has a large one queued.

    The model: the tensor core takes whole products, in the order in which threads queued them. A
    small product waits for the large one that runs and for the next one, which is already queued:
    599 cycles a step beside 128 columns, 1118 beside 256. The alternative: if the tensor core takes
    an instruction of each thread in turn, each of the small product's four instructions waits for
    one of 64 or 128 cycles, so that a step takes some 360 and 610 cycles.
    """

    def waits(timed, multiply):
        timed(steps(queueing(multiply, 0)))

    def streams(timed, multiply):
        longer(4, timed)(steps(queueing(multiply, 1)))
        plgpu.wgmma_wait(0)

    return _small("beside a stream", n, waits, streams)


def small_behind(n: int, queued: int) -> Probe:
    """A thread queues large products and arrives; then another makes a small one, which is timed.

    The model: the small product waits until all large ones are done: with 128 columns it takes 173
    cycles behind none of them, 271 behind one, 518 behind two, 1012 behind four. (The first of them
    runs while the arrival gets across.) The alternatives: if the tensor core takes an instruction
    of each thread in turn, the small product takes as long behind four as behind one. If the tensor
    core's queue is short, the arrival comes later, and the time stops growing where the queue is
    full.
    """

    def waits(timed, multiply, ready, done):
        def small():
            multiply()
            plgpu.wgmma_wait(0)

        def step(i):
            plgpu.barrier_wait(ready)
            taken = inner(small)
            plgpu.barrier_arrive(done)
            return taken

        timed(steps(step))

    def queues(timed, multiply, ready, done):
        def step(i):
            for _ in range(queued):
                multiply()
            plgpu.barrier_arrive(ready)
            plgpu.wgmma_wait(0)
            plgpu.barrier_wait(done)

        timed(steps(step))

    return _small(f"behind {queued}", n, waits, queues, plgpu.Barrier(), plgpu.Barrier())


# Where the left operand is.


def streaming(
    right: Right, registers: bool, left: int, times: int, timed: Any, a: Any, b: Any, sink: Any
) -> None:
    """A thread of products whose left operand is in registers or in SMEM, for `times` the steps."""
    x = plgpu.layout_cast(a[...], plgpu.Layout.WGMMA) if registers else a

    def work(acc):
        def run(first, count):
            loop(first, count, queueing(lambda: plgpu.wgmma(acc, x, right.of(b)), left))
            plgpu.wgmma_wait(0)

        (longer(times, timed) if times > 1 else timed)(run)

    sink[...] = accumulated(M, right.n, work)


def operand(n: int, k: int, registers: bool, left: int = 0) -> Probe:
    """Products whose left operand is in registers or in SMEM, with `left` unfinished.

    A product with K of 128 is two of 64 back to back. So what it takes longer than one of 64 is the
    time of a product in a row, and the rest of that one's time is the wait.

    The model: operands in SMEM take time on their way, but less than the arithmetic, except with 32
    columns. A product in a row takes 259 cycles with 128 columns and 519 with 256, from SMEM and
    from registers; with 32 columns 97 from SMEM and 65 from registers. The alternatives: if the
    tensor core reads registers more slowly than SMEM, or needs the thread for it, products from
    registers take longer. If they cannot overlap, one left unfinished takes as long as none. (The
    machine code has no wait between them, since their registers never change.)
    """
    right = Right(n, k)

    def role(timed, block, *refs):
        streaming(right, registers, left, 1, timed, *refs)

    where = "registers" if registers else "SMEM"
    name = f"wgmma {M}x{n}x{k}, a in {where}, {left} left"
    scratch = swizzled(M, k), right.scratch, for_result(M, n)
    return Probe(name, (role,), REPEATS, scratch, work=dict(flops=2.0 * M * n * k))


def probes() -> list[Probe]:
    """The probes of the tensor core."""
    shared = itertools.starmap(two_threads, itertools.product((128, 256), Turns))
    behind = [small_behind(128, queued) for queued in (0, 1, 2, 4)]
    shapes = itertools.product((32, 128, 256), (64, 128), (False, True))
    operands = itertools.starmap(operand, shapes)
    rows = [operand(n, K, registers, left=1) for n in (128, 256) for registers in (False, True)]
    beside = map(small_beside, (128, 256))
    return [*shared, *beside, *behind, small_behind(256, 2), *operands, *rows]
