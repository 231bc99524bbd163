"""`matmul`: its cases."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pipelib.kernels import MatmulConfig, matmul
from pipelib.kernels.hopper import H100_SMS
from pipelib.kernels.matmul import choosing, default_config
from pipelib.kernels.matmul.choosing import TILES
from pipelib.kernels.matmul.tuned import nearest_entry
from pipelib_book.matmul_forms import RungConfig
from pipelib_book.matmul_ladder import RUNGS
from tests.kernels.contract import (
    BOTH_JAX,
    CHECKED,
    LOWERED,
    ON_GPU,
    Call,
    case,
    refused,
    refuses,
    wrong_configurations,
)
from tests.kernels.matmul.products import (
    ALONE,
    BOTH,
    BRAIN,
    CLUSTER,
    E4M3,
    E5M2,
    FLOAT,
    FORMS,
    HALF,
    MANY,
    ODD,
    ONE,
    RING,
    SHARED,
    TWO,
    check_close,
    check_rows,
    epilogue_operands,
    factors,
    finish,
    reference,
)

CONFIGS = {
    "one": ONE,
    "two": TWO,
    "odd": ODD,
    "default": None,
    "large": MatmulConfig(256, 128, 64, slots=3, delay_release=2, epilogue_n=128),
    "three": MatmulConfig(192, 192, 64, slots=3, compute_threads=3),
    **FORMS,
    **{rung.name: rung.config for rung in RUNGS},
}
SHAPES = [
    (4096, 4096, 4096),
    (1000, 1088, 1152),
    (3, 4096, 4096),
    (16, 40, 24),
    (136, 320, 64),
    (136, 320, 8),
    (1000, 1000, 1000),
    (17, 4096, 4096),
]


#: M, N, K, a configuration, and how the factors are stored.
SWAPPED = {
    "few rows": ((24, 128, 320), dict(tile_m=64, tile_n=24, compute_threads=1, epilogue_n=24), {}),
    "two tiles of rows": ((40, 256, 256), dict(tile_m=128, tile_n=24, epilogue_n=8), {}),
    "K in parts": (
        (144, 256, 512),
        dict(tile_m=128, tile_n=72, slots=2, compute_threads=1, epilogue_n=72, splits=2,
             form="specialized"), {},
    ),
    "a [K, M]": ((128, 192, 256), dict(tile_m=128, tile_n=64, slots=2), dict(transpose_a=True)),
    "b [N, K]": ((64, 256, 256), dict(tile_m=128, tile_n=64, slots=2), dict(transpose_b=True)),
}  # fmt: skip


def swapped_case(name):
    """The sizes, the configuration, and the options of a case."""
    sizes, fields, stored = SWAPPED[name]
    return sizes, MatmulConfig(**dict(slots=3, swapped=True) | fields), stored


def finish_swapped(acc, matrix, row, column):
    return acc * column + row + matrix


def operands_of(sizes):
    """A matrix, a row and a column for `finish`."""
    rng, (m, n, _) = np.random.default_rng(1), sizes
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
    return draw(m, n).astype(HALF), draw(n), draw(m, 1)


#: Tiles of more than one piece of the columns of b [K, N], of which each thread has one.
WIDE = {
    "two threads": MatmulConfig(128, 136, 64, 3, 2, swapped=True, epilogue_n=136),
    "three": MatmulConfig(192, 104, 64, 3, 3, swapped=True, epilogue_n=104),
    "K in parts": MatmulConfig(
        128, 72, 64, 3, 2, swapped=True, epilogue_n=72, splits=3, form="specialized"
    ),
    "persistent": RungConfig(128, 72, 64, 3, 2, swapped=True, epilogue_n=72, form="persistent"),
}
#: Configurations whose blocks of both factors are one piece wide, but for b of "two".
BY_ROWS = {"one": ONE, "two": TWO, "ring": RING, "two threads": SHARED, "alone": ALONE,
           "persistent": MANY, "cluster": CLUSTER}  # fmt: skip


# What every kernel is asked.

TRANSPOSED = {
    "transposed": dict(transpose_a=True, transpose_b=True),
    "plain": dict(transpose_a=False, transpose_b=False),
}


@case("matmul", CHECKED, config=CONFIGS, stored=TRANSPOSED)
def configuration(config, stored):
    m, n, k = 640, 768, 512
    call = functools.partial(matmul, config=config, **stored)
    near = nearest_entry(m, n, k, HALF, out_dtype=HALF, **stored)
    taken = config or (near.config if near else default_config(m, n, k, HALF, HALF))
    size = taken.smem_bytes(HALF, HALF)
    return Call(call, factors(m, n, k, **stored), smem_bytes=size, is_hopper=False)


@case("matmul", CHECKED, config=FORMS)
def epilogue(config):
    """A staging slot of the residual is loaded again while others are read."""
    m, n = 640, 768
    config = dataclasses.replace(config, tile_n=256, slots=2, delay_release=1)
    fused = lambda *args: matmul(*args[:2], config=config, epilogue=finish, operands=args[2:])
    arrays = *factors(m, n, 512), *epilogue_operands(m, n)
    return Call(fused, arrays, smem_bytes=config.smem_bytes(HALF, HALF, [HALF]), is_hopper=False)


#: Sizes, a dtype, and options.
LOWERINGS = {
    "float16": ((4096, 4096, 4096), HALF, {}),
    "edges, an epilogue": (
        (1000, 1088, 1152),
        BRAIN,
        {"out_dtype": FLOAT, "epilogue": jnp.tanh},
    ),
    "few rows": ((3, 4096, 4096), HALF, {"transpose_b": True}),
    "transposed": ((192, 64, 64), HALF, BOTH),
    "float8": ((4096, 4096, 4096), E5M2, {"transpose_b": True}),
}


@case("matmul", LOWERED, marks=BOTH_JAX, which=LOWERINGS)
def lowering(which):
    (m, n, k), dtype, options = which
    a = (k, m) if options.get("transpose_a") else (m, k)
    b = (n, k) if options.get("transpose_b") else (k, n)
    types = tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in (a, b))
    return Call(functools.partial(matmul, **options), types, is_hopper=False)


@case("matmul", ON_GPU, shape=SHAPES, dtype={"float16": HALF, "bfloat16": BRAIN})
def product(shape, dtype):
    a, b = factors(*shape, dtype)
    return Call(matmul, (a, b), lambda out: check_rows(out, a, b, dtype))


@case("matmul", CHECKED, name=list(SWAPPED))
def swapped(name):
    sizes, config, stored = swapped_case(name)
    call = lambda a, b, *operands: matmul(
        a, b, config=config, epilogue=finish_swapped, operands=operands, **stored
    )
    return Call(call, (*factors(*sizes, **stored), *operands_of(sizes)), has_notes=True)


@case("matmul", ON_GPU, name=list(SWAPPED), out_dtype={"float16": HALF, "float32": FLOAT})
def swapped_product(name, out_dtype):
    (m, n, k), config, stored = swapped_case(name)
    arrays = factors(m, n, 4 * k, **stored)
    call = functools.partial(matmul, config=config, out_dtype=out_dtype, **stored)
    return Call(call, arrays, lambda out: check_close(out, reference(*arrays, **stored), out_dtype))


@case("matmul", CHECKED, config=WIDE)
def each_thread_has_a_piece_of_b(config):
    call = functools.partial(matmul, config=config)
    return Call(call, factors(272, 264, 520), has_notes=True)


@case("matmul", ON_GPU, config=WIDE)
def each_thread_has_a_piece_of_b_on_gpu(config):
    arrays = factors(1272, 1288, 2072)
    wanted = lambda out: check_close(out, reference(*arrays), HALF)
    return Call(functools.partial(matmul, config=config), arrays, wanted)


@case("matmul", CHECKED, n=[256, 264], step=[(256, 0), (256, 1), (512, 1)])
def rows_in_pieces_along_k(n, step):
    """Of rows that are no multiple of 8, each piece of a step has its own copy and product.

    Of 8 products in a step, a wait leaves 7 running: more it cannot.
    """
    tile_k, delay_release = step
    config = MatmulConfig(
        64, 40, tile_k, 2, 1, swapped=True, epilogue_n=40, delay_release=delay_release
    )
    return Call(functools.partial(matmul, config=config), factors(35, n, 1032), has_notes=True)


@case("matmul", ON_GPU, m=[1, 5, 24, 35, 72, 279, 534], n=[4096, 4040])
def few_rows(m, n):
    arrays = factors(m, n, 2056)
    return Call(matmul, arrays, lambda out: check_close(out, reference(*arrays), HALF))


#: Sizes whose likeliest configuration is pairs of blocks: chained or not, of all of K or of parts.
PAIRS = [(1763, 1144, 952), (10856, 424, 408), (332, 1576, 4760), (4034, 11864, 232)]
PAIRS += [(220, 1520, 6808), (6673, 464, 920)]


@case("matmul", CHECKED, ON_GPU, sizes=PAIRS)
def pairs_load_rows_together(sizes):
    config = default_config(*sizes, HALF, HALF, sms=H100_SMS, by_rows=True)
    assert config.cluster_size == 2
    arrays = factors(*sizes)
    wanted = lambda out: check_close(out, reference(*arrays), HALF)
    return Call(functools.partial(matmul, config=config), arrays, wanted, has_notes=True)


@case("matmul", CHECKED, config=BY_ROWS, operands=[0, 1])
def rows_of_any_size(config, operands):
    m, n, k = 199, 200, 264
    options = dict(epilogue=finish_any, operands=(jnp.ones((m, n), HALF),)) if operands else {}
    call = functools.partial(matmul, config=config, transpose_b=True, **options)
    size = config.smem_bytes(HALF, HALF, [HALF] * operands)
    return Call(call, factors(m, n, k, transpose_b=True), smem_bytes=size)


def finish_any(acc, matrix):
    return acc + matrix


@case("matmul", CHECKED, name=[name for name in BY_ROWS if name != "cluster"])
def parts_of_k(name):
    config = dataclasses.replace(BY_ROWS[name], splits=3)
    size = config.smem_bytes(HALF, FLOAT)
    call = functools.partial(matmul, config=config)
    return Call(call, factors(640, 768, 512), smem_bytes=size, is_hopper=False)


@case("matmul", CHECKED, form=["specialized", "split", "chained"], number=range(len(TILES)))
def candidate(form, number):
    """One of the configurations that are chosen from."""
    found = choosing._fitting(jnp.dtype(HALF), jnp.dtype(HALF), ())[number]
    split = dataclasses.replace(found.split, splits=3)
    config = {"specialized": found.alone, "split": split, "chained": found.chained[-1]}[form]
    assert (config.tile_m, config.tile_n, config.compute_threads) == TILES[number]
    call = functools.partial(matmul, config=config)
    return Call(call, factors(640, 768, 640), is_hopper=False)


wrong_configurations(
    MatmulConfig,
    ({"compute_threads": 4}, "compute_threads=4 is not 1 to 3, as form='chained' has."),
    ({"compute_threads": 0}, "compute_threads=0 is not 1 to 3, as form='chained' has."),
    ({"tile_m": 192}, "tile_m=192 is not a multiple of 64 x 2 rows = 128, which the compute"),
    ({"tile_n": 320}, "tile_n=320 is not a multiple of 64 up to 256, the most columns of a wgmma."),
    ({"tile_k": 32}, "tile_k=32 is not a multiple of 64."),
    ({"epilogue_n": 192}, "epilogue_n=192 is not a multiple of 64 that divides tile_n=256."),
    ({"slots": 2, "delay_release": 2}, "delay_release=2 is not 0 to slots=2 - 1, so no slot would"),
    ({"blocks": 0}, "slots=4, width=8, splits=1 and blocks=0 are not all at least 1."),
    ({"slots": 33}, "slots=33 is over 32, the most barriers of one array."),
    ({"order": "k"}, "order='k' is not 'm' or 'n'."),
    ({"form": "ring"}, 'form=\'ring\' is none of specialized, chained; "ring" and "persistent"'),
    ({"cluster_m": 3}, "cluster_m=3 and cluster_n=1 are not 1, 2 or 4, and at most 8 together"),
    ({"cluster_m": 4, "cluster_n": 4}, "cluster_m=4 and cluster_n=4 are not 1, 2 or 4, and at mo"),
    ({"form": "specialized", "blocks": 4}, "form='specialized' has a block for each tile, so blo"),
    ({"blocks": 3, "cluster_m": 2}, "blocks=3 is not a multiple of clusters of 2."),
)
wrong_configurations(
    RungConfig,
    ({"form": "ring", "compute_threads": 3}, "compute_threads=3 is not 1 to 2, as form='ring' ha"),
    ({"form": "ring", "cluster_m": 2}, "form='ring' has no memory thread, so cluster_m=2 x clust"),
    ({"form": "ring", "blocks": 4}, "form='ring' has a block for each tile, so blocks=4 would le"),
)

A, B = factors(64, 64, 64)
NARROW = A.astype(E4M3), B.astype(E4M3)
VECTOR = jnp.ones(64)
refuses(
    matmul,
    refused("barriers 12 x 8 B = 327,776 B of shared memory", config=MatmulConfig(slots=6)),
    refused(
        "128 x 256 / 128 lanes = 256 registers of a lane, but each of 2 compute threads has",
        config=MatmulConfig(tile_m=256, slots=2),
    ),
    refused(
        "128 lanes + 26 = 154 registers of a lane, but a block of 4 threads begins with 128",
        config=MatmulConfig(tile_m=192, compute_threads=3, slots=2),
    ),
    refused(
        "tile_k=64 of float8_e4m3fn is 64 x 1 = 64 B, not a multiple of the 128 B of a",
        *NARROW,
        config=ONE,
        transpose_b=True,
    ),
    refused(
        "matmul: (64, 60) float16 has rows of 120 bytes, no multiple of the 16 at which TMA can"
        " begin one, so JAX makes the result without the kernel, and MatmulConfig(",
        A[:, :60],
        B[:60],
        config=ONE,
    ),
    refused(
        "(64, 72) float16 does not divide into pieces of 8 rows x 64 columns, and rows are copied"
        " 64 columns at a time, not 128, so JAX",
        A,
        jnp.ones((64, 72), HALF),
        config=dataclasses.replace(ONE, tile_n=128),
    ),
    refused("has K = 64, and b (32, 64) with transpose_b=False has K = 32", A, B[:32]),
    refused("a has shape (1, 64, 64) and b (64, 64), but both must have 2 axes", A[None], B),
    refused("a (0, 64) or b (64, 64) is empty; M, N, K must be 1 or more.", A[:0], B),
    refused("b is float32, but wgmma multiplies here", A, B.astype(FLOAT), kind=TypeError),
    refused("but wgmma takes one dtype: cast one.", A, B.astype(BRAIN), kind=TypeError),
    refused("out_dtype=int32 is none of float16, ", out_dtype=jnp.int32, kind=TypeError),
    refused("wgmma reads float8 only with K as the last axis of both: a [M, K], and", *NARROW),
    refused("dtype=float32) of parts of shape (3, 5); it must", epilogue=lambda x: x.sum(1)),
    refused("1 operands but no epilogue, which would use them.", operands=(A,)),
    refused(
        "captures arrays of shapes [(5,)], which a kernel cannot read; pass them as operands=",
        epilogue=functools.partial(jnp.add, VECTOR[:5]),
    ),
    refused(
        "operand 1 of the epilogue has shape (64, 5), but for an output of (64, 64) it must be",
        epilogue=finish,
        operands=(A, jnp.ones((64, 5))),
    ),
    refused(
        "operand 0 of the epilogue is int32, but it reads float16, bfloat16, float32.",
        epilogue=jnp.add,
        operands=(jnp.int32(3),),
        kind=TypeError,
    ),
    refused(
        "dtype=float32) of parts of shape (1, 1); it must work on each element alone",
        epilogue=lambda acc: acc * jnp.arange(5.0),
    ),
    refused(
        "those come as operands=, of which it is given the parts.",
        epilogue=lambda acc: jnp.where(acc > 0.0, acc, VECTOR),
    ),
    refused("dict, but a MatmulConfig says how", config={"slots": 3}, kind=TypeError),
    refused("matmul: epilogue='relu' has type str, but", epilogue="relu", kind=TypeError),
    refused("operands come in a tuple or a list, a single", operands=2.0, kind=TypeError),
    refused(
        "operands[0]='bias' has type str, but the epilogue reads arrays and numbers.",
        operands=("bias",),
        epilogue=jnp.add,
        kind=TypeError,
    ),
    refused("out_dtype=32 has type int, but float16, bf", out_dtype=32, kind=TypeError),
    refused("matmul: a=[[1.0]] has type list, but a kernel copies", [[1.0]], B, kind=TypeError),
    refused("matmul: b=None has type NoneType, but a kernel copies", A, None, kind=TypeError),
    arrays=(A, B),
)
