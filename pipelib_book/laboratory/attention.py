"""Kernels of the laboratory for attention, forward and backward, without the softmax's sums.

The model. A step has two products or more, and the lanes make one product's operand of another's
result. Each operand that is loaded has one slot. Rings are left out: they would put an index of a
slot into most lines and operations, and these are the page's longest kernels already.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pipelib_book.laboratory.parts import (
    SIZE,
    accumulator,
    launch,
    one_operand,
    one_tile,
    operand_slots,
    span,
    two_threads,
)


def turns(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Two threads, a tile of queries each, that take turns on the tensor core."""
    steps = k.shape[0] // SIZE

    def kernel(
        q_gmem, k_gmem, v_gmem, o_gmem, q_smem, p_smem, k_smem, v_smem,
        q_in, k_in, v_in, k_out, v_out, turn,
    ):  # fmt: skip
        def scores_of(me):
            def multiply(scores):
                plgpu.barrier_wait(turn.at[me])
                plgpu.wgmma(scores, q_smem.at[me], k_smem.transpose((1, 0)))
                plgpu.barrier_arrive(turn.at[1 - me])
                return scores[...]

            return pl.run_scoped(multiply, accumulator())

        def attend(me):
            def step(sums):
                plgpu.barrier_wait(k_in)
                p_smem[me] = jnp.exp(scores_of(me)).astype(jnp.float16)
                plgpu.commit_smem()
                plgpu.barrier_wait(v_in)
                plgpu.wgmma(sums, p_smem.at[me], v_smem)
                plgpu.wgmma_wait(0)
                plgpu.barrier_arrive(k_out)
                plgpu.barrier_arrive(v_out)

            def all_steps(sums):
                lax.fori_loop(0, steps, lambda _, __: step(sums), None)
                return sums[...]

            plgpu.copy_gmem_to_smem(q_gmem.at[span(me)], q_smem.at[me], q_in.at[me])
            plgpu.barrier_wait(q_in.at[me])
            if me == 1:  # the first turn is the other's
                plgpu.barrier_arrive(turn.at[0])
            o_gmem[span(me)] = pl.run_scoped(all_steps, accumulator())
            if me == 0:  # and the last, too
                plgpu.barrier_wait(turn.at[0])

        def load():
            def step(s, _):
                pl.when(s > 0)(lambda: plgpu.barrier_wait(k_out))
                plgpu.copy_gmem_to_smem(k_gmem.at[span(s)], k_smem, k_in)
                pl.when(s > 0)(lambda: plgpu.barrier_wait(v_out))
                plgpu.copy_gmem_to_smem(v_gmem.at[span(s)], v_smem, v_in)

            lax.fori_loop(0, steps, step, None)
            plgpu.barrier_wait(k_out)
            plgpu.barrier_wait(v_out)

        thread = lax.axis_index("thread")
        for me in range(2):
            pl.when(thread == me)(lambda me=me: attend(me))
        pl.when(thread == 2)(load)

    by_both = plgpu.Barrier(num_arrivals=2)
    return launch(
        kernel, q.shape, q, k, v, num_threads=3, thread_name="thread",
        scratch_types=[
            operand_slots(2), operand_slots(2), one_operand(), one_operand(),
            plgpu.Barrier(num_barriers=2), plgpu.Barrier(), plgpu.Barrier(), by_both, by_both,
            plgpu.Barrier(num_barriers=2),
        ],
    )  # fmt: skip


def queries(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """A block that goes on to the next queries, whose load waits until the last are done."""
    steps, tiles = k.shape[0] // SIZE, q.shape[0] // SIZE

    def kernel(
        q_gmem, k_gmem, v_gmem, o_gmem, q_smem, p_smem, k_smem, v_smem, out,
        q_in, k_in, v_in, q_out, k_out, v_out,
    ):  # fmt: skip
        def multiply(scores):
            plgpu.wgmma(scores, q_smem, k_smem.transpose((1, 0)))
            return scores[...]

        def step(sums):
            plgpu.barrier_wait(k_in)
            scores = pl.run_scoped(multiply, accumulator())
            plgpu.barrier_arrive(k_out)
            p_smem[...] = jnp.exp(scores).astype(jnp.float16)
            plgpu.commit_smem()
            plgpu.barrier_wait(v_in)
            plgpu.wgmma(sums, p_smem, v_smem)
            plgpu.wgmma_wait(0)
            plgpu.barrier_arrive(v_out)

        def tile(i, sums):
            plgpu.barrier_wait(q_in)
            lax.fori_loop(0, steps, lambda _, __: step(sums), None)
            out[...] = sums[...]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out, o_gmem.at[span(i)])
            plgpu.wait_smem_to_gmem(0)
            plgpu.barrier_arrive(q_out)

        def compute():
            def one(i, _):
                pl.run_scoped(lambda sums: tile(i, sums), accumulator())

            lax.fori_loop(0, tiles, one, None)

        def load():
            def step(s, i):
                pl.when((i > 0) | (s > 0))(lambda: plgpu.barrier_wait(k_out))
                plgpu.copy_gmem_to_smem(k_gmem.at[span(s)], k_smem, k_in)
                pl.when((i > 0) | (s > 0))(lambda: plgpu.barrier_wait(v_out))
                plgpu.copy_gmem_to_smem(v_gmem.at[span(s)], v_smem, v_in)
                return i

            def tile(i, _):
                pl.when(i > 0)(lambda: plgpu.barrier_wait(q_out))
                plgpu.copy_gmem_to_smem(q_gmem.at[span(i)], q_smem, q_in)
                lax.fori_loop(0, steps, step, i)

            lax.fori_loop(0, tiles, tile, None)
            for last in (q_out, k_out, v_out):
                plgpu.barrier_wait(last)

        two_threads(compute, load)

    return launch(
        kernel,
        q.shape,
        q,
        k,
        v,
        num_threads=2,
        thread_name="thread",
        scratch_types=[*[one_operand()] * 4, one_tile(), *[plgpu.Barrier()] * 6],
    )


def gradients(
    q: jax.Array, g: jax.Array, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The gradients of a tile of keys and of values, without the softmax's sums."""
    steps = q.shape[0] // SIZE

    def kernel(
        q_gmem, g_gmem, k_gmem, v_gmem, dk_gmem, dv_gmem,
        q_smem, g_smem, k_smem, v_smem, p_smem, ds_smem, keys, full, free,
    ):  # fmt: skip
        def step(s, dk, dv):
            def multiply(scores, dp):
                plgpu.wgmma(scores, q_smem, k_smem.transpose((1, 0)))
                plgpu.wgmma(dp, g_smem, v_smem.transpose((1, 0)))
                return scores[...], dp[...]

            plgpu.barrier_wait(full)
            scores, dp = pl.run_scoped(multiply, accumulator(), accumulator())
            p = jnp.exp(scores)
            p_smem[...] = p.astype(jnp.float16)
            plgpu.commit_smem()
            ds_smem[...] = (p * dp).astype(jnp.float16)
            plgpu.commit_smem()
            plgpu.wgmma(dv, p_smem.transpose((1, 0)), g_smem)
            plgpu.wgmma(dk, ds_smem.transpose((1, 0)), q_smem)
            plgpu.wgmma_wait(0)
            plgpu.barrier_arrive(free)

        def all_steps(dk, dv):
            lax.fori_loop(0, steps, lambda s, _: step(s, dk, dv), None)
            dk_gmem[...] = dk[...]
            dv_gmem[...] = dv[...]

        def compute():
            plgpu.barrier_wait(keys)
            pl.run_scoped(all_steps, accumulator(), accumulator())

        def load():
            def step(s, _):
                pl.when(s > 0)(lambda: plgpu.barrier_wait(free))
                plgpu.copy_gmem_to_smem(q_gmem.at[span(s)], q_smem, full)
                plgpu.copy_gmem_to_smem(g_gmem.at[span(s)], g_smem, full)

            plgpu.copy_gmem_to_smem(k_gmem, k_smem, keys)
            plgpu.copy_gmem_to_smem(v_gmem, v_smem, keys)
            lax.fori_loop(0, steps, step, None)
            plgpu.barrier_wait(free)

        two_threads(compute, load)

    out = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32)
    by_two = plgpu.Barrier(num_arrivals=2)
    return plgpu.kernel(
        kernel,
        out_type=(out, out),
        num_threads=2,
        thread_name="thread",
        scratch_types=[*[one_operand()] * 6, by_two, by_two, plgpu.Barrier()],
    )(q, g, k, v)
