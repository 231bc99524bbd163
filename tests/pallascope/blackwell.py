"""Small kernels for Blackwell to trace, each right."""

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from tests.pallascope.kernels import like, of, tiles

M, N, K = 128, 64, 64  # of a product
SLOTS = 2


def ordered(count=()):
    return plgpu.Barrier(num_barriers=count, orders_tensor_core=True)


def stored(sums, o_smem, o_gmem):
    o_smem[...] = sums.astype(jnp.float16)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(o_smem, o_gmem)
    plgpu.wait_smem_to_gmem(0)


def multiplied(steps, slots=SLOTS, accumulates=None):
    """One thread loads into a ring, multiplies, and refills a slot when its product has ended.

    The product of step `k` adds to the others if `accumulates(k)`; by default all but the first do.
    """
    accumulates = accumulates or (lambda k: k > 0)

    def kernel(a, b, o, o_smem, a_smem, b_smem, acc, produced, consumed, finished):
        def load(step, slot):
            here = pl.ds(step * K, K)
            plgpu.copy_gmem_to_smem(a.at[:, here], a_smem.at[slot], produced.at[slot])
            plgpu.copy_gmem_to_smem(b.at[here], b_smem.at[slot], produced.at[slot])

        for step in range(min(slots, steps)):
            load(step, step)
        for step in range(steps):
            slot = step % slots
            plgpu.barrier_wait(produced.at[slot])
            free = consumed.at[slot] if step + slots < steps else None
            plgpu.tcgen05_mma(
                acc, a_smem.at[slot], b_smem.at[slot], free, accumulate=accumulates(step)
            )
            if step + slots < steps:
                plgpu.barrier_wait(consumed.at[slot])
                load(step + slots, slot)
        plgpu.tcgen05_commit_arrive(finished)
        plgpu.barrier_wait(finished)
        stored(plgpu.async_load_tmem(acc), o_smem, o)

    scratch = [
        tiles(M, N),
        tiles(slots, M, K),
        tiles(slots, K, N),
        plgpu.TMEM((M, N), jnp.float32),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots),
        ordered(slots),
        ordered(),
    ]
    call = of(kernel, like(M, N), scratch_types=scratch)
    return call, like(M, steps * K), like(steps * K, N)


def specialized(count=3, steps=2, slots=SLOTS, fault=""):
    """A memory thread, one that starts products, and one that stores: `count` tiles, two sums.

    `fault` is what is wrong.
    """

    def kernel(a, b, o, o_smem, a_smem, b_smem, acc, produced, consumed, finished, drained):
        thread = lax.axis_index("thread")

        @pl.when(thread == 0)
        def _():
            @pl.loop(0, count * steps)
            def _(s):
                slot, rows = lax.rem(s, slots), pl.ds(s // steps * M, M)
                here = pl.ds(lax.rem(s, steps) * K, K)

                @pl.when(s >= slots)
                def _():
                    plgpu.barrier_wait(consumed.at[slot])

                plgpu.copy_gmem_to_smem(a.at[rows, here], a_smem.at[slot], produced.at[slot])
                plgpu.copy_gmem_to_smem(b.at[here], b_smem.at[slot], produced.at[slot])

            for s in range(count * steps - slots, count * steps):
                plgpu.barrier_wait(consumed.at[s % slots])

        @pl.when(thread == 1)
        def _():
            @pl.loop(0, count)
            def _(tile):
                half = lax.rem(tile, 2)

                @pl.when(tile >= 2)
                def _():
                    plgpu.barrier_wait(drained.at[half])

                @pl.loop(0, steps)
                def _(k):
                    slot = lax.rem(tile * steps + k, slots)
                    plgpu.barrier_wait(produced.at[slot])
                    free = consumed.at[slot] if fault != "releases a slot by hand" else None
                    plgpu.tcgen05_mma(
                        acc.at[:, pl.ds(half * N, N)],
                        a_smem.at[slot],
                        b_smem.at[slot],
                        free,
                        accumulate=k > (0 if fault != "adds to what nobody set" else -1),
                    )
                    if fault == "releases a slot by hand":
                        plgpu.barrier_arrive(consumed.at[slot])

                plgpu.tcgen05_commit_arrive(finished.at[half])

            for tile in range(count - 2, count):
                plgpu.barrier_wait(drained.at[tile % 2])

        @pl.when(thread == 2)
        def _():
            @pl.loop(0, count)
            def _(tile):
                half = lax.rem(tile, 2)
                if fault != "reads before a product ends":
                    plgpu.barrier_wait(finished.at[half])
                sums = plgpu.async_load_tmem(acc.at[:, pl.ds(half * N, N)])
                if fault != "drains before a read ends":
                    plgpu.wait_load_tmem()
                plgpu.barrier_arrive(drained.at[half])
                stored(sums, o_smem, o.at[pl.ds(tile * M, M)])
                if fault == "reads before a product ends":
                    plgpu.barrier_wait(finished.at[half])

    scratch = [
        tiles(M, N),
        tiles(slots, M, K),
        tiles(slots, K, N),
        plgpu.TMEM((M, 2 * N), jnp.float32),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots),
        ordered(slots),
        ordered(2),
        plgpu.Barrier(num_barriers=2, orders_tensor_core=fault != "drains without an order"),
    ]
    call = of(
        kernel, like(count * M, N), scratch_types=scratch, num_threads=3, thread_name="thread"
    )
    return call, like(count * M, steps * K), like(steps * K, N)


def paired(steps=2, slots=1, tracks="both"):
    """Two blocks make one product together; the first tracks the loads of both.

    Or each `tracks` its "own": as in an example of CUTLASS's (its issue 3643), the first knows
    nothing of the other's. If it "tells", the other waits for its own, and then meets the first.
    """

    def kernel(a, b, o, o_smem, a_smem, b_smem, acc, produced, consumed, finished, *loaded):
        rank = lax.axis_index("rank")
        split = lambda axis: dict(
            collective_axes="rank", leader_tracked=plgpu.CopyPartition.PARTITIONED(axis)
        )

        @pl.loop(0, steps)
        def _(k):
            slot, here = lax.rem(k, slots), pl.ds(k * K, K)

            @pl.when(k >= slots)
            def _():
                plgpu.barrier_wait(consumed.at[slot])

            at = produced.at[slot]
            if tracks == "both":
                plgpu.copy_gmem_to_smem(a.at[:, here], a_smem.at[slot], at, **split(0))
                plgpu.copy_gmem_to_smem(b.at[here], b_smem.at[slot], at, **split(1))
            else:
                mine = a.at[pl.ds(rank * M, M), here], b.at[here, pl.ds(rank * N, N)]
                for there, smem in zip(mine, (a_smem, b_smem)):
                    plgpu.copy_gmem_to_smem(there, smem.at[slot], at)
            if tracks == "tells":
                plgpu.barrier_wait(at)
                plgpu.barrier_arrive(loaded[0])
                plgpu.barrier_wait(loaded[0])

            @pl.when(rank == 0)
            def _():
                if tracks != "tells":
                    plgpu.barrier_wait(at)
                plgpu.tcgen05_mma(
                    acc,
                    a_smem.at[slot],
                    b_smem.at[slot],
                    consumed.at[slot],
                    accumulate=k > 0,
                    collective_axis="rank",
                )

        @pl.when(rank == 0)
        def _():
            plgpu.tcgen05_commit_arrive(finished, collective_axis="rank")

        plgpu.barrier_wait(finished)
        stored(plgpu.async_load_tmem(acc), o_smem, o.at[pl.ds(rank * M, M)])

    scratch = [
        tiles(M, 2 * N),
        tiles(slots, M, K),
        tiles(slots, K, N),
        plgpu.TMEM((M, 2 * N), jnp.float32, collective=True),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots),
        ordered(slots),
        ordered(),
        *[plgpu.ClusterBarrier(collective_axes=("rank",))] * (tracks == "tells"),
    ]
    call = of(
        kernel, like(2 * M, 2 * N), scratch_types=scratch, cluster=(2,), cluster_names=("rank",)
    )
    return call, like(2 * M, steps * K), like(steps * K, 2 * N)


def chained(aliased=True, fault=""):
    """As attention: sums are changed in registers, and are the left operand of a second product.

    They lie where the sums were, if `aliased`, or in TMEM of their own. `fault` is what is wrong.
    """
    sums, changed = plgpu.TMEM((M, M), jnp.float32), plgpu.TMEM((M, M), jnp.float16, packed=True)

    def kernel(q, k, v, o, o_smem, q_smem, k_smem, v_smem, memory, acc, loaded, *barriers):
        s, p = memory
        multiplied, written, finished = barriers
        thread = lax.axis_index("thread")

        @pl.when(thread == 0)
        def _():
            for source, target in ((q, q_smem), (k, k_smem), (v, v_smem)):
                plgpu.copy_gmem_to_smem(source, target, loaded)
            plgpu.barrier_wait(loaded)
            keys = k_smem.transpose((1, 0))
            plgpu.tcgen05_mma(s, q_smem, keys, multiplied, accumulate=False)
            plgpu.barrier_wait(written)
            plgpu.tcgen05_mma(acc, p, v_smem, finished, accumulate=False)

        @pl.when(thread == 1)
        def _():
            plgpu.barrier_wait(multiplied)
            value = jnp.exp2(plgpu.async_load_tmem(s))
            if fault != "overwrites what it still reads":
                plgpu.wait_load_tmem()
            plgpu.async_store_tmem(p, value.astype(jnp.float16))
            if fault != "hands over what it still writes":
                plgpu.commit_tmem()
            plgpu.barrier_arrive(written)
            plgpu.barrier_wait(finished)
            stored(plgpu.async_load_tmem(acc), o_smem, o)

    memory = plgpu.RefUnion(sums, changed) if aliased else [sums, changed]
    scratch = [
        tiles(M, K), tiles(M, K), tiles(M, K), tiles(M, K), memory,
        plgpu.TMEM((M, K), jnp.float32), plgpu.Barrier(num_arrivals=3),
        ordered(), ordered(), ordered(),
    ]  # fmt: skip
    call = of(kernel, like(M, K), scratch_types=scratch, num_threads=2, thread_name="thread")
    return call, like(M, K), like(M, K), like(M, K)


def fetching(count=6, blocks=1, threads=2, loop=None):
    """Threads copy tiles that are taken over from other blocks or clusters.

    By default in JAX's own loop; `loop` is another one that takes the same arguments.
    """
    loop = loop or plgpu.dynamic_scheduling_loop
    axes = dict(cluster_axes=("rank",)) if blocks > 1 else {}

    def kernel(x, o, x_smem, loaded):
        thread = lax.axis_index("thread")
        rank = lax.axis_index("rank") if blocks > 1 else 0

        @loop(("i",), thread_axis="thread", **axes)
        def _(info):
            rows = pl.ds((info.index[0] * blocks + rank) * M, M)
            mine, at = x_smem.at[thread], loaded.at[thread]
            half = pl.ds(thread * 64, 64)
            plgpu.copy_gmem_to_smem(x.at[rows, half], mine, at)
            plgpu.barrier_wait(at)
            plgpu.copy_smem_to_gmem(mine, o.at[rows, half])
            plgpu.wait_smem_to_gmem(0)

    scratch = [tiles(threads, M, 64), plgpu.Barrier(num_barriers=threads)]
    cluster = dict(cluster=(blocks,), cluster_names=("rank",)) if blocks > 1 else {}
    shape = count * blocks * M, threads * 64
    call = of(
        kernel,
        like(*shape),
        scratch_types=scratch,
        grid=(count,),
        grid_names=("i",),
        num_threads=threads,
        thread_name="thread",
        **cluster,
    )
    return call, like(*shape)


def loop_as_it_was(grid_names, thread_axis, cluster_axes=()):
    """JAX's loop before its commit 84a33c08 (February 2026): the first thread of the first block
    asks for the next cluster, and nothing tells it that the others have read the last answer.
    """

    def decorator(body):
        def scoped(answers, answered):
            def step(carry):
                index, _, number = carry
                slot = lax.rem(number, jnp.int32(2))
                plgpu.try_cluster_cancel(
                    answers.at[slot],
                    answered.at[slot],
                    collective_axes=(*cluster_axes, thread_axis),
                )
                body(plgpu.NDLoopInfo(index, local_index=number, num_local_steps=None))
                plgpu.barrier_wait(answered.at[slot])
                index, granted = plgpu.query_cluster_cancel(answers.at[slot], grid_names)
                return index, granted, number + jnp.int32(1)

            first = tuple(map(lax.axis_index, grid_names)), jnp.bool(True), jnp.int32(0)
            lax.while_loop(lambda carry: carry[1], step, first)

        pl.run_scoped(
            scoped,
            answers=plgpu.TryClusterCancelResult(2),
            answered=plgpu.Barrier(num_arrivals=lax.axis_size(thread_axis), num_barriers=2),
            collective_axes=thread_axis,
        )

    return decorator


def scaled(steps=2):
    """One thread multiplies numbers of 8 bits by scales, which it brings to TMEM before."""
    number, scale = jnp.float8_e4m3fn, jnp.float8_e8m0fnu
    k = 128

    def kernel(a, b, sa, sb, o, o_smem, a_smem, b_smem, as_smem, bs_smem, acc, *rest):
        as_tmem, bs_tmem, loaded, finished = rest
        for step in range(steps):
            here = pl.ds(step * k, k)
            for source, target in (
                (a.at[:, here], a_smem),
                (b.at[:, here], b_smem),
                (sa.at[:, pl.ds(step, 1)], as_smem),
                (sb.at[:, pl.ds(step, 1)], bs_smem),
            ):
                plgpu.copy_gmem_to_smem(source, target, loaded)
            plgpu.barrier_wait(loaded)
            plgpu.async_copy_scales_to_tmem(as_smem, as_tmem)
            plgpu.async_copy_scales_to_tmem(bs_smem, bs_tmem)
            right = b_smem.transpose((1, 0))
            plgpu.tcgen05_mma(
                acc,
                a_smem,
                right,
                finished,
                a_scale=as_tmem,
                b_scale=bs_tmem,
                accumulate=step > 0,
            )
            plgpu.barrier_wait(finished)
        stored(plgpu.async_load_tmem(acc), o_smem, o)

    transforms = (plgpu.TilingTransform((8, 128)), plgpu.SwizzleTransform(128))
    tile = plgpu.SMEM((128, k), number, transforms=transforms)
    scales = plgpu.SMEM((1, 1, 32, 16), scale)
    in_tmem = plgpu.TMEM((128, k // 32), scale, layout=plgpu.TMEMLayout.SCALES_LAYOUT)
    scratch = [
        tiles(128, 128), tile, tile, scales, scales, plgpu.TMEM((128, 128), jnp.float32),
        in_tmem, in_tmem, plgpu.Barrier(num_arrivals=4), ordered(),
    ]  # fmt: skip
    call = of(kernel, like(128, 128), scratch_types=scratch)
    matrices = [like(128, steps * k, dtype=number)] * 2
    return call, *matrices, *[like(1, steps, 32, 16, dtype=scale)] * 2


KERNELS = {
    "one slot": lambda: multiplied(1, 1),
    "a ring": lambda: multiplied(3),
    "three threads": specialized,
    "three threads, one step": lambda: specialized(3, 1),
    "a pair of blocks": paired,
    "two products in a row": chained,
    "two products in a row, apart": lambda: chained(False),
    "tiles taken over": lambda: fetching(3),
    "tiles taken over by a pair": lambda: fetching(3, blocks=2, threads=1),
    "scales": scaled,
}

#: The programs of these kernels, by name.
PROGRAMS = {name: lambda make=make: pallascope.trace(*make()) for name, make in KERNELS.items()}
