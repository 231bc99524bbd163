"""Small kernels to trace."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib

TRANSFORMS = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def like(*shape, dtype=jnp.float16):
    return jax.ShapeDtypeStruct(shape, dtype)


def of(kernel, out=None, **options):
    """A kernel with one output."""
    return plgpu.kernel(kernel, out_type=out or like(256, 64), **options)


def add_one(x):
    """Each block of 64 rows: load, wait, compute, store."""

    def kernel(x, o, x_smem, barrier):
        rows = pl.ds(lax.axis_index("i") * 64, 64)
        plgpu.copy_gmem_to_smem(x.at[rows], x_smem, barrier)
        plgpu.barrier_wait(barrier)
        with jax.named_scope("compute"):
            x_smem[...] = x_smem[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem, o.at[rows])
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier()]
    rows, columns = x.shape
    return of(
        kernel, like(rows, columns), grid=(rows // 64,), grid_names=("i",), scratch_types=scratch
    )(x)


def matmul(a, b, waits=0, delay=0, slots=2):
    """One block, one thread, a ring of slots; `waits` products are left unfinished."""

    def kernel(a, b, o):
        block = lambda shape, at: plgpu.BlockSpec(
            shape, at, transforms=TRANSFORMS, delay_release=delay
        )
        specs = block((64, 64), lambda k: (0, k)), block((64, 64), lambda k: (k, 0))

        def scope(acc):
            def body(_, a, b):
                plgpu.wgmma(acc, a, b)
                plgpu.wgmma_wait(waits)

            pipelib.emit_pipeline(
                body,
                grid=(a.shape[1] // 64,),
                in_specs=specs,
                max_concurrent_steps=slots,
                ordinary_reads=False,
            )(a, b)
            o[...] = acc[...].astype(jnp.float16)

        pl.run_scoped(scope, plgpu.ACC((64, 64), jnp.float32))

    return of(kernel, like(64, 64))(a, b)


def specialized(x, slots, delay, threads=1):
    """A warp-specialized sum over 64 rows a step, stored by the first compute thread."""

    def kernel(x, o):
        def body(_, x):
            total = x[...] + x[...]
            plgpu.layout_cast(total, plgpu.Layout.WG_STRIDED(total.shape, vec_size=2))

        block = plgpu.BlockSpec((64, 64), lambda i: (i, 0), delay_release=delay)
        pipelib.emit_pipeline_warp_specialized(
            body,
            grid=(x.shape[0] // 64,),
            in_specs=(block,),
            max_concurrent_steps=slots,
            num_compute_wgs=threads,
            wg_axis="wg",
            memory_registers=40,
        )(x)

    return of(kernel, num_threads=threads + 1, thread_name="wg")(x)


STEPS, TILE = 5, 64


def tiles(*shape):
    """SMEM for tiles of a product."""
    return plgpu.SMEM(shape, jnp.float16, transforms=TRANSFORMS)


def store(acc, o_smem, o_gmem):
    """An accumulator's value, over SMEM, to GMEM."""
    o_smem[...] = acc.astype(jnp.float16)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(o_smem, o_gmem)
    plgpu.wait_smem_to_gmem(0)


def load(a, b, a_smem, b_smem, produced, step, slot):
    """Both tiles of a step into their slot."""
    here, produced = pl.ds(step * TILE, TILE), produced.at[slot]
    plgpu.copy_gmem_to_smem(a.at[:, here], a_smem.at[slot], produced)
    plgpu.copy_gmem_to_smem(b.at[here], b_smem.at[slot], produced)


def ring_by_hand(slots):
    """A matrix product by one thread over a ring of slots, with no emitter."""

    def kernel(a, b, o, o_smem, a_smem, b_smem, produced):
        for step in range(slots):
            load(a, b, a_smem, b_smem, produced, step, step)

        def compute(acc):
            @pl.loop(0, STEPS)
            def _(step):
                slot = lax.rem(step, slots)
                plgpu.barrier_wait(produced.at[slot])
                plgpu.wgmma(acc, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(0)

                @pl.when(step + slots < STEPS)
                def _():
                    load(a, b, a_smem, b_smem, produced, step + slots, slot)

            return acc[...]

        store(pl.run_scoped(compute, plgpu.ACC((TILE, TILE), jnp.float32)), o_smem, o)

    scratch = [
        tiles(TILE, TILE),
        tiles(slots, TILE, TILE),
        tiles(slots, TILE, TILE),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots),
    ]
    return of(kernel, like(TILE, TILE), scratch_types=scratch)


def specialized_by_hand(slots, computes):
    """The same by compute threads, and a memory thread that loads for them."""

    def kernel(a, b, o, o_smem, a_smem, b_smem, produced, consumed):
        thread = lax.axis_index("thread")
        mine = pl.ds(thread * TILE, TILE)

        @pl.when(thread == computes)
        def _():
            plgpu.set_max_registers(40, action="decrease")

            @pl.loop(0, STEPS)
            def _(step):
                slot = lax.rem(step, slots)

                @pl.when(step >= slots)
                def _():
                    plgpu.barrier_wait(consumed.at[slot])

                load(a, b, a_smem, b_smem, produced, step, slot)

            @pl.loop(STEPS - slots, STEPS)
            def _(step):
                plgpu.barrier_wait(consumed.at[lax.rem(step, slots)])

        @pl.when(thread < computes)
        def _():
            plgpu.set_max_registers(232, action="increase")

            def compute(acc):
                @pl.loop(0, STEPS)
                def _(step):
                    slot = lax.rem(step, slots)
                    plgpu.barrier_wait(produced.at[slot])
                    plgpu.wgmma(acc, a_smem.at[slot].at[mine], b_smem.at[slot])
                    plgpu.wgmma_wait(0)
                    plgpu.barrier_arrive(consumed.at[slot])

                return acc[...]

            total = pl.run_scoped(compute, plgpu.ACC((TILE, TILE), jnp.float32))
            store(total, o_smem.at[mine], o.at[mine])

    rows = computes * TILE
    scratch = [
        tiles(rows, TILE),
        tiles(slots, rows, TILE),
        tiles(slots, TILE, TILE),
        plgpu.Barrier(num_arrivals=2, num_barriers=slots),
        plgpu.Barrier(num_arrivals=computes, num_barriers=slots),
    ]
    return of(
        kernel,
        like(rows, TILE),
        scratch_types=scratch,
        num_threads=computes + 1,
        thread_name="thread",
    )
