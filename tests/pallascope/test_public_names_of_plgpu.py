"""Every public name of Mosaic GPU's Pallas: some kernel that is traced and checked uses it.

The model. `plgpu` is replaced by an object that notes which names are asked of it. Kernels of
blocks, devices and Blackwell that stand elsewhere are made anew by it, and so are those here, which
have what the others leave out. A name that no kernel can use is in `APART`, with the reason, and
one that the trace refuses is in `REFUSED`, with words of the refusal.
"""

import contextlib
import functools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

import pallascope
import pipelib
from tests.pallascope import blackwell, kernels
from tests.pallascope.checking import newcomers
from tests.pallascope.constructs import clusters, devices, warps
from tests.pallascope.kernels import like

pytestmark = pytest.mark.both_jax

NAMES = [name for name in dir(mosaic_gpu) if not name.startswith("_")]
APART = {
    "InterpretGPUParams": "says how a kernel runs without a GPU",
    "force_gpu_interpret_mode": "says where a kernel runs",
    "set_gpu_interpret_mode": "says where a kernel runs",
    "NDLoopInfo": "is what nd_loop hands to its body",
    "PeerMemRef": "is what remote_ref makes",
    "Transform": "is the type of what ref transforms are",
    "WarpMesh": "is the mesh that warp_map makes",
    "OOBFillMode": "is an argument of mgpu's copies, of none of Pallas's in every JAX",
    "REGS": "is the space of values, in which no kernel allocates",
    "PipelinePipeline": "is the type of what an emitter hands to its pipelines",
    "format_tcgen05_sparse_metadata": "is arithmetic of the host, on arrays",
}
F32, I32, F16 = jnp.float32, jnp.int32, jnp.float16
ROW = like(128, dtype=F32)


class Noting:
    """`plgpu`, which notes the names that are asked of it."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(mosaic_gpu, name)


def of_hopper(g):
    """What Hopper's blocks have, in one thread of two blocks."""

    def body(x, total, o, tile, other, loaded):
        @g.nd_loop((2, 2), collective_axes="i")
        def _(info):
            g.planar_snake(info.index[0], (2, 2), 1, 2)

        g.set_max_registers(240, action="increase")
        g.griddepcontrol_wait()
        g.async_prefetch(x)
        g.copy_gmem_to_smem(x, tile, loaded)
        g.barrier_test(loaded)
        g.barrier_wait(loaded)

        def multiply(acc):
            g.wgmma(acc, tile, tile)
            g.wgmma_wait(0)
            return g.wgmma_accumulator_load(acc)

        tile[...] = pl.run_scoped(multiply, g.WGMMAAccumulatorRef((64, 64), F32)).astype(F16)
        g.commit_smem()
        g.copy_smem_to_gmem(tile, o.at[lax.axis_index("i")], commit_group=False)
        g.commit_smem_to_gmem_group()
        g.wait_smem_to_gmem(0)
        tiling, warps = g.Tiling(((32,), (1,))), (g.Replicated(4),)
        layout = g.Layout.TILED(tiling, warp_dims=warps, lane_dims=(-2,), vector_dim=-1)
        held = g.layout_cast(g.load(x.at[0], optimized=False).astype(I32), layout)
        g.print_layout("{}", held)
        for change in (g.atomic_add, g.atomic_max, g.atomic_min, g.atomic_and, g.atomic_or):
            change(total, held + g.broadcasted_iota(I32, (64,), 0, layout=layout))
        g.atomic_xor(total, held)
        other[...] = held
        returned = g.ShapeDtypeStruct((64,), I32, layout)
        mystery = lambda context, ref, value: value
        g.inline_mgpu(arg_types=(g.RefType(), layout), return_type=returned)(mystery)(other, held)
        g.griddepcontrol_launch_dependents()

    swizzle = g.find_swizzle(64 * 16)
    transforms = g.TilingTransform((8, swizzle // 2)), g.SwizzleTransform(swizzle)
    tile = g.SMEM((64, 64), F16, transforms=transforms)
    params = g.CompilerParams(
        lowering_semantics=g.LoweringSemantics.Warpgroup,
        profile_space=8,
        profile_dir="nowhere",
        profile_trace_scope=g.TraceScope.WARPGROUP,
    )
    scratch = tile, g.MemorySpace.SMEM((64,), I32), g.Barrier()
    mesh = dict(grid=(2,), grid_names=("i",), compiler_params=params)
    call = g.kernel(body, out_type=like(2, 64, 64), scratch_types=scratch, **mesh)
    return lambda x: call(x, jax.new_ref(jnp.zeros(64, I32))), like(64, 64)


def emitters(g):
    """Both of JAX's own, one after the other."""

    def body(x, o, total):
        block = g.BlockSpec((1, 128), lambda k: (k, 0))
        specs = dict(grid=(2,), in_specs=[block], max_concurrent_steps=2)
        put = lambda _, row: total.__setitem__(..., row[...])
        double = lambda _, row, out: out.__setitem__(..., row[...] * 2.0)
        pl.when(lax.axis_index("wg") == 1)(lambda: g.emit_pipeline(put, **specs)(x))
        roles = dict(num_compute_wgs=1, memory_registers=40, wg_axis="wg")
        g.emit_pipeline_warp_specialized(double, out_specs=[block], **roles, **specs)(x, o)

    out, threads = like(2, 128, dtype=F32), dict(num_threads=2, thread_name="wg")
    return g.kernel(body, out_type=out, scratch_types=(g.GMEM((1, 128), F32),), **threads), out


def meshes(g):
    """`pl.kernel` on a mesh, which `plgpu.kernel` makes otherwise."""
    body = lambda x, o: o.__setitem__(lax.axis_index("i"), x[...])
    mesh = g.Mesh(grid=(2,), grid_names=("i",))
    return pl.kernel(body, out_type=like(2, 128, dtype=F32), mesh=mesh), ROW


def parallel_signals(g):
    """Semaphores of devices."""

    def body(x, o):
        semaphores, peer = pl.get_global(g.SemaphoreType.REGULAR((2,))), 1 - lax.axis_index("x")
        g.semaphore_signal(semaphores.at[0], device_id=peer)
        both = [g.SemaphoreSignal(semaphores.at[i], device_id=peer) for i in range(2)]
        g.semaphore_signal_parallel(*both)
        g.semaphore_wait(semaphores.at[0], 2)
        g.semaphore_wait(semaphores.at[1])
        o[...] = x[...]

    return devices.on_devices(g.kernel(body, out_type=ROW), 2), like(256, dtype=F32)


def before_hopper(g):
    """A product of registers, on what `cp.async` loads."""

    def body(x, o, tile):
        g.copy_gmem_to_smem(x, tile)
        g.wait_gmem_to_smem(0)
        layouts = g.Layout.MMA_LHS, g.Layout.MMA_RHS
        a, b = (g.load(tile, layout=layout(F16), optimized=False) for layout in layouts)
        o[...] = g.mma(g.layout_cast(jnp.zeros((64, 64), F32), g.Layout.MMA_ACC(F16)), a, b)

    out, scratch = like(64, 64, dtype=F32), (g.SMEM((64, 64), F16),)
    return g.kernel(body, out_type=out, scratch_types=scratch), like(64, 64)


def copies_to_tmem(g):
    """Copies from SMEM to TMEM in the queue of products: values, and a sparse operand's places."""

    def body(x, places, o, tile, tmem, meta_smem, meta, loaded, done):
        g.copy_gmem_to_smem(x, tile, loaded)
        g.copy_gmem_to_smem(places, meta_smem, loaded)
        g.barrier_wait(loaded)
        g.async_copy_smem_to_tmem(tile, tmem)
        g.async_copy_sparse_metadata_to_tmem(meta_smem, meta)
        g.tcgen05_commit_arrive(done)
        g.barrier_wait(done)
        o[...] = g.async_load_tmem(tmem)
        g.wait_load_tmem()

    tiled = g.TilingTransform((8, 32)), g.SwizzleTransform(128)
    scratch = [
        g.SMEM((128, 32), F32, transforms=tiled),
        g.TMEM((128, 32), F32),
        g.SMEM((1, 1, 128, 64), jnp.uint2),
        g.TMEM((128, 64), jnp.uint2, layout=g.TMEMLayout.SPARSE_METADATA_LAYOUT),
        g.Barrier(num_arrivals=2),
        g.Barrier(orders_tensor_core=True),
    ]
    out, places = like(128, 32, dtype=F32), like(1, 1, 128, 64, dtype=jnp.uint2)
    return g.kernel(body, out_type=out, scratch_types=scratch), out, places


def of_jax_0_12(g):
    """Windows of an image, reductions, a barrier for all, a store."""

    def body(x, o, tile, loaded, met):
        view = g.im2col_ref(x, window_shape=(3,))
        g.copy_gmem_to_smem(view.at[pl.ds(0, 8), 0, pl.ds(0, 64)], tile, loaded)
        g.barrier_wait(loaded)
        value = g.layout_cast(tile[...], g.Layout.WG_STRIDED((8, 64), vec_size=2))
        number = g.sum(value) + g.max(value) + g.min(value) + g.prod(value)
        g.store(o, value + number, optimized=False)
        g.barrier_arrive_and_wait(met)

    out, scratch = like(8, 64, dtype=F32), (g.SMEM((8, 64), F32), g.Barrier(), g.Barrier())
    return g.kernel(body, out_type=out, scratch_types=scratch), like(1, 16, 64, dtype=F32)


def multicast_refs(g):
    """A store to all devices at once."""
    body = lambda x, o, tile: g.copy_smem_to_gmem(tile, g.multicast_ref(o, "x"))
    call = g.kernel(body, out_type=ROW, scratch_types=(g.SMEM((128,), F32),))
    return devices.on_devices(call, 2), like(256, dtype=F32)


def torch_kernels(g):
    """A kernel that takes torch's tensors."""
    return g.as_torch_kernel(meshes(g)[0]), ROW


KERNELS = [of_hopper, emitters, meshes, parallel_signals, before_hopper, copies_to_tmem]
LATER = [of_jax_0_12] if jax.__version_info__ >= (0, 12) else []
REFUSED = {multicast_refs: "MulticastRef", torch_kernels: "as_torch_kernel"}
ON_DEVICES = parallel_signals, multicast_refs
_USED = "persistent/", "peers/arrives", "products/", "memory/one", "semaphores/allocated"
ELSEWHERE = blackwell, kernels, newcomers, clusters, devices, warps


def traced(kernel: Any, g: Any) -> pallascope.Program:
    """The program of a kernel that is made by this `plgpu`."""
    is_old = kernel is before_hopper
    with pipelib.target("8.0") if is_old else contextlib.nullcontext():
        call, *args = kernel(g)
        return pallascope.trace(call, *args, whole_grid=kernel in ON_DEVICES)


@pytest.mark.parametrize("kernel", [*KERNELS, *LATER], ids=lambda each: each.__name__)
def test_a_kernel_of_public_names_is_traced_and_right(kernel):
    report = pallascope.check(traced(kernel, mosaic_gpu))
    assert report.ok, str(report)


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda each: each.__name__)
def test_a_kernel_that_is_not_traced_is_refused_by_name(kernel):
    """With the line, and what to do instead."""
    with pytest.raises((NotImplementedError, ValueError), match=REFUSED[kernel]) as error:
        traced(kernel, mosaic_gpu)
    assert f"{__name__.rpartition('.')[2]}.py:" in str(error.value)
    assert ": " in str(error.value)


@functools.cache
def used() -> set[str]:
    """The names that some kernel uses, or whose refusal a test holds."""
    noting = Noting()
    for kernel in [*KERNELS, *LATER, *REFUSED]:
        with contextlib.suppress(Exception):
            traced(kernel, noting)
    with contextlib.ExitStack() as stack:
        for module in ELSEWHERE:
            stack.enter_context(mock.patch.object(module, "plgpu", noting))
        for trace in [*blackwell.PROGRAMS.values(), devices.exchanged, devices.summed_up]:
            trace()
        clusters.of_two("add")
        pallascope.trace(warps.loader(), warps.X)
        for each in newcomers.NEWCOMERS:
            if each.name.startswith(_USED) and each.jax <= jax.__version_info__[:2]:
                call, *args = each.make()
                pallascope.trace(call, *args)
    return noting.names


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_used_by_a_kernel_or_is_of_none(name):
    assert (name in used()) != (name in APART)


def test_what_is_apart_is_public():
    assert APART.keys() <= {*NAMES}
