"""Probes of arithmetic beside products: what one thread's softmax takes while another multiplies.

The question. The tensor core reads and writes accumulators in registers. Does it take register
bandwidth, or turns of the scheduler, from the other threads? Then a softmax takes longer beside a
stream of products than alone, or the products do.

The model: arithmetic and products do not meet, so both take as long as alone.
"""

from collections.abc import Sequence

from jax.experimental.pallas import mosaic_gpu as plgpu

from benchmarks import probes_softmax, probes_tensor_core
from benchmarks.probing import Probe, Role, half, longer, multiplying

M, N, K = 64, 128, 64
#: Steps of products for each step beside them, so that these always have company.
MANY = 8


def _stream(registers: bool) -> Role:
    """A thread that always has a product queued."""

    def role(timed, block, a, b, sink):
        x = plgpu.layout_cast(a[...], plgpu.Layout.WGMMA) if registers else a

        def work(acc):
            longer(MANY, timed)(multiplying(lambda: plgpu.wgmma(acc, x, b), 1))

        probes_tensor_core.accumulated(N, sink, work)

    return role


def beside(alone: Probe, registers: bool = False) -> Probe:
    """A probe of arithmetic in one thread, and a thread of products.

    The model: the arithmetic takes what it takes alone, and a product 259 cycles. The alternative:
    if registers' bandwidth is shared, one of the two takes longer.
    """
    stream, (arithmetic,) = _stream(registers), alone.roles

    def first(timed, block, ring, *others):
        arithmetic(timed, block, ring)

    def second(timed, block, ring, *others):
        stream(timed, block, *others)

    where = "registers" if registers else "SMEM"
    return alone._replace(
        name=f"{alone.name}, beside products with a in {where}", roles=(first, second),
        scratch=(*alone.scratch, half(M, K), half(K, N), half(M, N)), apart=True,
    )  # fmt: skip


def probes() -> Sequence[Probe]:
    """All of this module."""
    softmax = probes_softmax.softmax(1)
    others = probes_softmax.scaled(1), probes_softmax.exponentials(1), probes_softmax.rows("max", 1)
    return [beside(softmax), beside(softmax, registers=True), *map(beside, others)]
