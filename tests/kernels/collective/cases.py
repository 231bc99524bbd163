"""`collective_matmul`: meshes that need not exist, and its cases."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from pipelib.kernels import CollectiveConfig, collective_matmul
from tests.kernels.contract import BOTH_JAX, CHECKED, LOWERED, Call, case, refusals

HALF, BRAIN, FLOAT = jnp.float16, jnp.bfloat16, jnp.float32
SMALL = CollectiveConfig(
    64, 64, 64, slots=2, compute_threads=1, width=2, senders=2, send_rows=16, blocks=2
)
TWO = CollectiveConfig(
    128, 128, slots=3, senders=1, send_rows=32, width=1, blocks=3, delay_release=2
)
FEW = CollectiveConfig(
    64, 128, slots=3, compute_threads=1, delay_release=0, order="n", senders=1, send_rows=8,
    blocks=3,
)  # fmt: skip


def on_devices(devices, config=None, axes=("x",), **options):
    """The function on a mesh that need not exist, and types for it by the sizes of a device."""
    sizes = devices if isinstance(devices, tuple) else (devices,)
    mesh = AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes))
    axis, check_vma = axes[-1], options.pop("check_vma", True)
    call = functools.partial(collective_matmul, axis_name=axis, config=config, **options)
    specs = dict(in_specs=(P(axis, None), P(None, axis)), out_specs=P(None, axis))
    function = jax.shard_map(call, mesh=mesh, check_vma=check_vma, **specs)

    def types(m, n, k, dtype=BRAIN):
        like = functools.partial(jax.ShapeDtypeStruct, dtype=dtype)
        return like((sizes[-1] * m, k)), like((k, sizes[-1] * n))

    return function, types


PROGRAMS = {
    "two devices": (2, SMALL, 128, 128, 256, {}),
    "three devices, edges": (3, SMALL, 136, 128, 192, dict(out_dtype=FLOAT)),
    "four devices": (4, SMALL, 64, 64, 256, dict(dtype=HALF)),
    "two compute threads": (2, TWO, 264, 192, 576, {}),
    "eight devices": (8, TWO, 128, 256, 512, {}),
    "one sender": (2, FEW, 200, 256, 256, {}),
    "two axes": ((2, 2), SMALL, 128, 64, 128, dict(axes=("data", "model"))),
}


# What every kernel is asked.


def call_of(devices, config, m, n, k, dtype=BRAIN, **options):
    """A call on a mesh, of the whole grid."""
    size = options.pop("smem_bytes", None)
    function, types = on_devices(devices, config, **options)
    blocks, arrays = ({"whole_grid": True},), types(m, n, k, dtype)
    return Call(function, arrays, None, size, blocks=blocks, has_notes=True, is_hopper=False)


@case("collective_matmul", CHECKED, program=PROGRAMS)
def whole_grid(program):
    *sizes, options = program
    return call_of(*sizes, **options)


@case("collective_matmul", CHECKED)
def default_configuration():
    """But for its blocks: as many as a GPU has SMs would be too many to check together."""
    config = CollectiveConfig(blocks=4)
    size = config.smem_bytes(BRAIN, BRAIN)
    return call_of(2, config, 512, 512, 1024, smem_bytes=size)


@case("collective_matmul", LOWERED, marks=BOTH_JAX, devices=[2, 8], is_gradient=[False, True])
def on_a_mesh(devices, is_gradient):
    function, types = on_devices(devices)
    call = jax.grad(lambda a, b: function(a, b).astype(FLOAT).sum(), (0, 1))
    return Call(call if is_gradient else function, types(1024, 7168, 4096), is_hopper=False)


A, B = jnp.ones((8, 64), BRAIN), jnp.ones((64, 64), BRAIN)
refusals(
    "collective_matmul",
    lambda *args, **options: collective_matmul(*args, **dict(axis_name="x") | options),
    [
        (([1.0], B), {}, TypeError, r"collective_matmul: lhs=\[1.0\] has type list"),
        ((A, B.astype(HALF)), {}, TypeError, "lhs is bfloat16 and rhs float16, but both must be"),
        ((A.astype(FLOAT), B.astype(FLOAT)), {}, TypeError, "lhs is float32 and rhs float32"),
        ((A, B[:32]), {}, ValueError, r"lhs has shape \(8, 64\) and rhs \(32, 64\), but they must"),
        ((A[0], B), {}, ValueError, r"lhs has shape \(64,\) and rhs"),
        ((A[:0], B), {}, ValueError, "is empty; M, N, K must be 1 or more"),
        ((A, B), dict(axis_name=("x", "y")), TypeError, "the shards lie along one axis of the"),
        ((A, B), dict(config=3), TypeError, "config=3 has type int, but a CollectiveConfig says"),
        ((A, B), dict(axis_name="x"), ValueError, "axis_name='x' is no axis here, so no device"),
    ],
)
WRONG = [
    (dict(form="specialized"), "are not 'chained', 1 x 1, 1 and False, the only form that"),
    (dict(cluster_m=2), "cluster_m=2 x cluster_n=1"),
    (dict(splits=2), "splits=2 and swapped=False"),
    (dict(swapped=True), "swapped=True are not"),
    (dict(send_rows=24), "send_rows=24 is not a multiple of 8 that divides tile_m=128"),
    (dict(send_rows=4), "send_rows=4 is not a multiple of 8"),
    (dict(send_rows=0), "send_rows=0 is not a multiple of 8"),
    (dict(senders=0), "senders=0 is not at least 1, so no block would send"),
    (dict(tile_n=320), "tile_n=320 is not a multiple of 64 up to 256"),
    (
        dict(tile_m=64, tile_n=64, slots=3, compute_threads=1),
        "a piece of send_rows=64 x 256 columns takes 32,768 B, and two of them more than the"
        " 49,152 B of the slots of a and b, so no piece would be loaded while another is sent",
    ),
]
errors = (((), fields, ValueError, f"CollectiveConfig: .*{text}") for fields, text in WRONG)
refusals("CollectiveConfig", CollectiveConfig, errors)
