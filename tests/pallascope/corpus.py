"""Kernels that are right, each as a program: what a checker must find nothing in.

`clean()` lists them: the contract's cases with pipelib's emitters and upstream's, kernels as in the
chapters, each kernel for Hopper under `jax.experimental.pallas.ops.gpu`, in several configurations,
and small kernels for Blackwell. A `Kernel` has a name, of which the part before the first "/" says
where it is from, and `trace`, which makes its program (in a second or less, so make what is needed
only).

Not here: `all_gather_mgpu`, `collective_matmul_mgpu` and `reduce_scatter_mgpu`. They run on several
devices at once and synchronise by semaphores in the memory of others, and a program is that of one
cluster of one device. Nor `attention`, `layer_norm` and the others that are for Triton.
"""

import contextlib
import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import (
    attention_mgpu,
    blackwell_matmul_mgpu,
    blackwell_ragged_dot_mgpu,
    hopper_matmul_mgpu,
    hopper_mixed_type_matmul_mgpu,
    ragged_dot_mgpu,
    transposed_ragged_dot_mgpu,
)

import pallascope
from pallascope import Program
from tests.emitters import contract
from tests.pallascope import blackwell, kernels
from tests.pallascope.kernels import like

SMS = 2  # of the GPU that persistent kernels are told of: few, so that a block has several tiles


class Kernel(NamedTuple):
    """One of the corpus; `doubt` has the kinds of what a checker finds in it, and words of each."""

    name: str
    trace: Callable[[], Program]
    doubt: dict[str, str] | None = None


def clean() -> list[Kernel]:
    """All kernels of the corpus, in a fixed order, their names unique."""
    return [
        *_contract(),
        *_by_hand(),
        *_matmul(),
        *_attention(),
        *_backward(),
        *_ragged(),
        *_blackwell_by_hand(),
    ]


def suspect() -> list[Kernel]:
    """Kernels of JAX's that a checker rightly doubts.

    Both ragged dots refill a slot when its product may still be in flight beside the next. They
    count on the next `wgmma` to wait for the one before; PTX orders the two, and waits for none.
    Causal attention fills all slots before it begins, also those that it has no steps for: such a
    load is in flight when the block ends.

    Of the kernels for Blackwell, the matrix product ends while its last store may still read SMEM.
    Its collective form does not tell `dynamic_scheduling_loop` that there is a cluster: each block
    asks for the next tile, and both answers land in both blocks. The second block's warp for
    products waits for `store_done_barrier` though it makes none, and nobody waits for that. The
    collective ragged dot's leader waits until its own block has taken the sums away, and not the
    other one: JAX's commit d0d662d299 mended just this in the matrix product. It also writes tiles
    of which no row is stored.
    """
    product = {"race": "it may still be read by the wgmma of thread"}
    load = {"barrier-misuse": "Nothing waits for this copy: its bytes may land on"}
    last = {"lost-store": "ceases to exist while this copy of"}
    cluster = {"race": "`try_cancel_buffer@", "barrier-misuse": "`store_done_barrier@"} | last
    sums = {
        "race": "`acc_tmem@1` of block 1",
        "barrier-misuse": "_done_barrier@1[",
        "lost-store": "`acc_smem@1` of block 1",
    }
    return [
        *(kernel._replace(doubt=last) for kernel in _blackwell_matmul(False)),
        *(kernel._replace(doubt=cluster) for kernel in _blackwell_matmul(True)),
        *(kernel._replace(doubt=sums) for kernel in _blackwell_ragged()),
        *(kernel._replace(doubt=product) for kernel in _ragged_in_flight()),
        *(kernel._replace(doubt=load) for kernel in _attention_in_flight()),
    ]


class _Traced(Exception):
    pass


class _Tracing(contract.Emitter):
    """An emitter whose kernels are traced, not run."""

    def kernel(self, function, outputs, **options):
        compiled = super().kernel(function, outputs, **options)

        def call(*args):
            raise _Traced(pallascope.trace(compiled, *args))

        return call


def _contract() -> Iterator[Kernel]:
    def trace(case, emitter) -> Program:
        fields = {f.name: getattr(emitter, f.name) for f in dataclasses.fields(emitter)}
        try:
            case.function(_Tracing(**fields))
        except _Traced as traced:
            return traced.args[0]
        raise AssertionError(f"{case.name} calls no kernel")

    for param in contract.pairs(contract.PIPELIB + contract.UPSTREAM):
        # Upstream's emits a pipeline of no axis with an index that JAX cannot trace.
        if param.id != "static_grid-grid=()-upstream-specialized-1":
            yield Kernel(f"contract/{param.id}", functools.partial(trace, *param.values))


def _by_hand() -> Iterator[Kernel]:
    x, width = like(256, 64), kernels.TILE * kernels.STEPS
    yield Kernel("by-hand/add_one", lambda: pallascope.trace(kernels.add_one, x))
    for slots in (1, 2, 3):
        name = f"by-hand/ring-slots={slots}"
        args = like(kernels.TILE, width), like(width, kernels.TILE)
        yield Kernel(name, functools.partial(pallascope.trace, kernels.ring_by_hand(slots), *args))
    for slots, computes in itertools.product((1, 2, 4), (1, 2)):
        name = f"by-hand/specialized-slots={slots}-computes={computes}"
        args = like(computes * kernels.TILE, width), like(width, kernels.TILE)
        call = kernels.specialized_by_hand(slots, computes)
        yield Kernel(name, functools.partial(pallascope.trace, call, *args))
    args = like(64, 192), like(192, 64)
    yield Kernel("emitted/matmul", lambda: pallascope.trace(kernels.matmul, *args))
    for slots, delay, threads in ((1, 0, 1), (2, 0, 2), (2, 1, 1), (3, 2, 2)):
        call = functools.partial(kernels.specialized, slots=slots, delay=delay, threads=threads)
        name = f"emitted/specialized-slots={slots}-delay={delay}-threads={threads}"
        yield Kernel(name, functools.partial(pallascope.trace, call, x))


@contextlib.contextmanager
def _gpu(module: Any) -> Iterator[None]:
    """What a module of JAX's asks its GPU for, where there is none."""
    device = types.SimpleNamespace(core_count=SMS)

    class Jax:
        __getattr__ = staticmethod(functools.partial(getattr, jax))
        devices = local_devices = staticmethod(lambda: [device])

    answers = dict(
        jax=Jax(),
        get_num_sms=lambda: SMS,
        backend=types.SimpleNamespace(get_default_device=lambda: device),
        cuda_versions=types.SimpleNamespace(cuda_runtime_get_version=lambda: 13000),
    )
    with contextlib.ExitStack() as stack:
        for name in answers.keys() & vars(module).keys():
            stack.enter_context(mock.patch.object(module, name, answers[name]))
        yield


def _on_gpu(module: Any, kernel: Callable[..., Any], *args: Any, **options: Any) -> Program:
    with _gpu(module):
        return pallascope.trace(kernel, *args, **options)


def _matmul() -> Iterator[Kernel]:
    for module, name, left in (
        (hopper_matmul_mgpu, "matmul", jnp.float16),
        (hopper_mixed_type_matmul_mgpu, "mixed_matmul", jnp.int8),
    ):
        Axis = module.MatmulDimension
        for fields in (
            {},
            dict(wg_dimension=Axis.M, max_concurrent_steps=2),
            dict(epi_tile_m=None, epi_tile_n=None),
            dict(tile_n=128, grid_minor_dim=Axis.M, grid_tile_width=2),
            dict(cluster_dimension=Axis.M),
            dict(cluster_dimension=Axis.N),
            dict(cluster_dimension=Axis.N, wg_dimension=Axis.M, max_concurrent_steps=2),
        ):
            config = module.TuningConfig(
                **dict(tile_m=64, tile_n=64, tile_k=64, max_concurrent_steps=3) | fields
            )
            if left == jnp.int8:
                call = lambda a, b, config=config: (
                    hopper_mixed_type_matmul_mgpu.mixed_matmul_kernel(
                        a, b, out_dtype=jnp.float16, config=config
                    )
                )
            else:
                call = lambda a, b, config=config: hopper_matmul_mgpu.matmul(a, b, None, config)
            words = [f"{k}={v}" for k, v in fields.items()] or ["default"]
            args = like(256, 256, dtype=left), like(256, 256)
            trace = functools.partial(_on_gpu, module, call, *args)
            yield Kernel(f"jax/{name}-{'-'.join(words)}", trace)
    config = hopper_matmul_mgpu.TuningConfig(64, 64, 64, 3)
    call = lambda a, b, c: hopper_matmul_mgpu.matmul(a, b, c, config)
    args = [like(256, 256)] * 3
    yield Kernel(
        "jax/matmul-accumulates", functools.partial(_on_gpu, hopper_matmul_mgpu, call, *args)
    )


def _attention() -> Iterator[Kernel]:
    for name, fields, options in (
        ("attention", {}, {}),
        ("attention", dict(max_concurrent_steps=4), {}),
        ("attention", dict(causal=True), dict(block=(0, 1, 0))),
        ("attention", dict(use_schedule_barrier=False), {}),
        ("attention", dict(block_kv=128), {}),
        ("attention_with_pipeline_emitter", {}, {}),
        ("attention_with_pipeline_emitter", dict(max_concurrent_steps=3), {}),
        ("attention_with_pipeline_emitter", dict(use_schedule_barrier=False), {}),
    ):
        for residuals in (False, True):
            yield _attend(name, fields, residuals, **options)


def _attention_in_flight() -> Iterator[Kernel]:
    """The first block of queries has two steps."""
    for slots in (3, 4):
        yield _attend("attention", dict(causal=True, max_concurrent_steps=slots))


def _attend(name: str, fields: dict, residuals: bool = False, **options: Any) -> Kernel:
    module, q = attention_mgpu, like(1, 256, 2, 64)
    blocks = dict(block_q=64, block_kv=64, max_concurrent_steps=2)
    config, function = module.TuningConfig(**blocks | fields), getattr(module, name)
    call = lambda q, k, v: function(q, k, v, config, residuals)
    words = [name, *(f"{k}={v}" for k, v in fields.items())]
    words += ["residuals"] if residuals else []
    trace = functools.partial(_on_gpu, module, call, q, q, q, **options)
    return Kernel(f"jax/{'-'.join(words)}", trace)


def _backward() -> Iterator[Kernel]:
    """The gradient of attention: the forward pass, then a kernel for dq and one for dk and dv."""
    module, q = attention_mgpu, like(1, 256, 2, 64)
    for threads in (1, 2):
        config = module.TuningConfig(
            64,
            64,
            2,
            compute_wgs_bwd=threads,
            block_q_dkv=64,
            block_kv_dkv=64,
            block_q_dq=64,
            block_kv_dq=64,
        )

        def call(q, k, v, do, config=config):
            return jax.vjp(lambda *args: module.attention(*args, config), q, k, v)[1](do)

        for number, name in ((1, "dq"), (2, "dkv")):
            trace = functools.partial(_on_gpu, module, call, q, q, q, q, call=number)
            yield Kernel(f"jax/attention-{name}-threads={threads}", trace)


def _ragged() -> Iterator[Kernel]:
    for fields in ({}, dict(max_concurrent_steps=4, block_n=128), dict(transpose_rhs=True)):
        yield _ragged_dot(128, **fields)
    for fields in (dict(max_concurrent_steps=1), dict(block_k=128, max_concurrent_steps=3)):
        yield _transposed_ragged_dot(**fields)


def _ragged_in_flight() -> Iterator[Kernel]:
    for slots in (2, 3):
        yield _ragged_dot(512, max_concurrent_steps=slots)
    yield _transposed_ragged_dot()


def _blackwell_by_hand() -> Iterator[Kernel]:
    for name, trace in blackwell.PROGRAMS.items():
        yield Kernel(f"blackwell/{name}", trace)


def _blackwell_matmul(is_collective: bool) -> Iterator[Kernel]:
    """JAX's matrix product; of the grid's blocks, and of one that takes over tiles of others."""
    module = blackwell_matmul_mgpu
    for fields in (
        {},
        dict(max_concurrent_steps=3),
        dict(tile_n=64),
        dict(grid_minor_dim=module.MatmulDimension.N, grid_tile_width=2),
        dict(epilogue_tile_n=64),
    ):
        options = dict(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=2)
        config = module.TuningConfig(**options | fields, collective=is_collective)
        words = ["collective"] * is_collective + [f"{k}={v}" for k, v in fields.items()]
        call = functools.partial(module.matmul_kernel, config=config)
        trace = functools.partial(_on_gpu, module, call, like(1024, 256), like(256, 512))
        name = "-".join(["jax/blackwell_matmul", *words])
        yield Kernel(f"{name}-claims", lambda trace=trace: trace(claims=4))
        if not is_collective:
            yield Kernel(name, functools.partial(trace, claims=0))


def _blackwell_ragged() -> Iterator[Kernel]:
    """JAX's grouped product; its form for one block names an axis that it does not have."""
    module = blackwell_ragged_dot_mgpu
    for sizes in ([100, 0, 412], [128, 128, 256]):
        config = module.TuningConfig(
            tile_m=128,
            tile_n=64,
            tile_k=64,
            max_concurrent_steps=2,
            collective=True,
            grid_tile_width=1,
            grid_minor_dim=blackwell_matmul_mgpu.MatmulDimension.N,
            epilogue_tile_n=32,
        )
        call = functools.partial(module.ragged_dot_kernel, config=config)
        args = like(512, 256), like(3, 256, 256), np.array(sizes, np.int32)
        trace = lambda call=call, args=args: _on_gpu(module, call, *args)
        yield Kernel(f"jax/blackwell_ragged_dot-{'-'.join(map(str, sizes))}", trace)


SIZES = np.array([100, 0, 156], np.int32)  # of the groups: within a block, none, over a block


def _ragged_dot(k: int, **fields: Any) -> Kernel:
    options = dict(block_m=64, block_n=64, block_k=64, max_concurrent_steps=2, grid_block_n=2)
    call = functools.partial(ragged_dot_mgpu.ragged_dot, **options | fields)
    words = ["ragged_dot", f"k={k}", *(f"{name}={value}" for name, value in fields.items())]
    trace = functools.partial(
        _on_gpu,
        ragged_dot_mgpu,
        lambda a, b, sizes: call(a, b, group_sizes=sizes),
        like(256, k),
        like(len(SIZES), 128, k) if fields.get("transpose_rhs") else like(len(SIZES), k, 128),
        SIZES,
        block=(1,),
    )
    return Kernel(f"jax/{'-'.join(words)}", trace)


def _transposed_ragged_dot(**fields: Any) -> Kernel:
    module = transposed_ragged_dot_mgpu
    options = dict(block_m=64, block_n=64, block_k=64, max_concurrent_steps=2, grid_block_n=1)
    call = functools.partial(module.transposed_ragged_dot, **options | fields)
    words = ["transposed_ragged_dot", *(f"{name}={value}" for name, value in fields.items())]
    trace = functools.partial(
        _on_gpu,
        module,
        lambda a, b, sizes: call(a, b, group_sizes=sizes),
        like(256, 128),
        like(256, 64),
        SIZES,
    )
    return Kernel(f"jax/{'-'.join(words)}", trace)
