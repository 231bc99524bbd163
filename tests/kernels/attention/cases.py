"""`attention`: what its tests share (problems, and their results in float64), and its cases."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import pallascope
from pipelib import specs
from pipelib.kernels import AttentionConfig, attention
from pipelib.kernels.attention import (
    attention_kernel,
    attention_reference,
    choosing,
    default_config,
)
from pipelib.kernels.hopper import Gpu, assumed
from pipelib_book.attention_forms import RungConfig
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

HALF, BRAIN = jnp.float16, jnp.bfloat16

# Of the norm of the result: probabilities and the result are rounded to the dtype. One block of 64
# keys lost of 200 gives over 0.1. The log-sum-exp is float32, by approximate functions on a GPU.
TOLERANCE, LSE_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3}, 2e-5


#: The package's schedules, and the ladder's.
SCHEDULES = RungConfig.schedules


def config_with(**options):
    """A configuration of the package, or of the ladder if only that has these options."""
    is_of_ladder = options.get("schedule") == "both" or options.get("probabilities") == "shared"
    return (RungConfig if is_of_ladder else AttentionConfig)(**options)


def small(schedule, **options):
    """What the interpreter runs."""
    threads = 1 if schedule in ("plain", "overlap") else 2
    options = dict(compute_threads=threads, block_kv=64, probabilities="interpreted") | options
    return config_with(schedule=schedule, **options)


def operands(q_seq, kv_seq, heads=1, kv_heads=1, head_dim=64, dtype=HALF, batch=1):
    """Normal random q, k and v."""
    draw = np.random.default_rng(q_seq + kv_seq + heads).standard_normal
    shapes = [(q_seq, heads), (kv_seq, kv_heads), (kv_seq, kv_heads)]
    return tuple(jnp.asarray(draw((batch, *shape, head_dim)), dtype) for shape in shapes)


def which(batch, queries, keys, causal=False, window=None, segment_ids=None, **others):
    """What is seen, [batch, 1, queries, keys]."""
    del others
    left, right = window if isinstance(window, tuple) else (window, window)
    i, j = np.arange(queries)[:, None], np.arange(keys)
    seen = np.ones((batch, 1, queries, keys), bool) & ((j <= i) | (not causal))
    if window is not None:
        seen &= (i - left <= j) & (j <= i + right)
    if segment_ids is not None:
        pair = segment_ids if isinstance(segment_ids, tuple) else (segment_ids,) * 2
        own, others = map(np.asarray, pair)
        seen &= (own[:, :, None] == others[:, None])[:, None]
    return seen


def scores_of(q, k, scale=None, soft_cap=None, **others):
    """The scores of q and k [batch, heads, seq, head_dim], before any mask."""
    del others
    scores = q @ np.swapaxes(k, 2, 3) * (scale or q.shape[-1] ** -0.5)
    return soft_cap * np.tanh(scores / soft_cap) if soft_cap else scores


def exact(q, k, v, sinks=None, **options):
    """The result and the log-sum-exp in float64."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (np.swapaxes(np.asarray(x).astype(np.float64), 1, 2) for x in (q, k, v))
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    seen = which(q.shape[0], q.shape[2], k.shape[2], **options)
    scores = np.where(seen, scores_of(q, k, **options), -np.inf)
    sink = -np.inf if sinks is None else np.asarray(sinks, np.float64)[:, None, None]
    maximum = np.maximum(scores.max(-1, keepdims=True), sink)
    maximum[maximum == -np.inf] = 0.0
    p = np.exp(scores - maximum)
    total = p.sum(-1, keepdims=True) + np.exp(sink - maximum)
    out = np.swapaxes(p / np.where(total == 0.0, 1.0, total) @ v, 1, 2)
    with np.errstate(divide="ignore"):
        return out, (maximum + np.log(total))[..., 0]


def exact_gradients(q, k, v, d_out, d_lse, **options):
    """Those of q, k, v and sinks in float64, for cotangents of the result and its log-sum-exp."""
    out, lse = exact(q, k, v, **options)
    cap, sinks = options.get("soft_cap"), options.pop("sinks", None)
    group, scale = q.shape[2] // k.shape[2], options.get("scale") or q.shape[-1] ** -0.5
    q, k, v, d_out, out = (
        np.swapaxes(np.asarray(x).astype(np.float64), 1, 2) for x in (q, k, v, d_out, out)
    )
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    turned = lambda x: np.swapaxes(x, 2, 3)
    seen = which(q.shape[0], q.shape[2], k.shape[2], **options)
    finite = np.where(np.isneginf(lse), 0.0, lse)[..., None]
    scores = scores_of(q, k, **options)
    p = np.where(seen, np.exp(np.where(seen, scores, 0.0) - finite), 0.0)
    delta = (d_out * out).sum(-1, keepdims=True) - np.asarray(d_lse)[..., None]
    slope = 1.0 - (scores / cap) ** 2 if cap else 1.0
    d_s = p * (d_out @ turned(v) - delta) * slope * scale
    grouped = lambda x: x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)
    results = d_s @ k, grouped(turned(d_s) @ q), grouped(turned(p) @ d_out)
    results = tuple(np.swapaxes(x, 1, 2) for x in results)
    if sinks is None:
        return results
    of_sinks = np.exp(np.asarray(sinks, np.float64)[:, None, None] - lse[..., None])
    return *results, -(of_sinks * delta).sum((0, 2, 3))


def spread_over(cases, head_dims):
    """(case, head_dim, dtype) of all cases and sizes of a head; each of these has both dtypes."""
    return [
        (case, head_dim, (HALF, BRAIN)[(i + j) % 2])
        for i, case in enumerate(cases)
        for j, head_dim in enumerate(head_dims)
    ]


def check_close(found, expected, dtype, scores=0.0):
    """`scores`: the error of scores, where a GPU's own tanh caps them."""
    (out, lse), (expected, expected_lse) = map(np.asarray, found), expected
    assert out.shape == expected.shape and out.dtype == jnp.dtype(dtype)
    out = out.astype(np.float64)
    assert np.isfinite(out).all() and lse.dtype == np.float32
    error = np.linalg.norm(out - expected) / np.linalg.norm(expected)
    assert error <= TOLERANCE[jnp.dtype(dtype).name] + scores
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(expected_lse))
    none = np.moveaxis(np.isneginf(expected_lse), 1, 2)
    assert not out[none].any()
    np.testing.assert_allclose(lse, expected_lse, LSE_TOLERANCE, LSE_TOLERANCE + scores)


def uses_kernel(*args, **options):
    """Whether it is the kernel that computes such arguments; else `trace` finds none."""
    try:
        pallascope.trace(lambda *args: attention(*args, **options), *args)
    except ValueError as e:
        assert "kernel" in str(e)
        return False
    return True


def lowered(call, *arrays):
    """The text of a function as it is compiled for a GPU, which need not be there."""
    return jax.jit(call).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()


def ids(batch, *lengths):
    """Segments of these lengths, numbered."""
    return jnp.asarray(np.tile(np.repeat(np.arange(len(lengths)), lengths), (batch, 1)), jnp.int32)


#: A score for each of some heads: among those of keys, above them all, and none.
SINKS = jnp.asarray([0.5, 20.0, -np.inf, -3.0], jnp.float32)
#: One document of 16 tokens, as `cu_seqlens` has it.
ENDS = jnp.array([0, 16])
#: The error of a GPU's tanh, 2^-11 of its value, in scores that are at most this large.
OF_TANH = 4.0 * 2.0**-11

CASES = {
    "ragged keys": ((128, 136), {}),
    "causal, grouped heads, ragged": ((136, 136, 2, 1), {"causal": True}),
    "window, most rows see nothing": ((192, 64), {"window": (30, 10)}),
    "segments": ((72, 128), {"causal": True, "segment_ids": (ids(1, 40, 32), ids(1, 20, 108))}),
    "soft cap": ((136, 136, 2, 1), {"causal": True, "soft_cap": 2.0}),
    "sinks, some see nothing": ((72, 40, 4, 2), {"window": (10, 5), "sinks": SINKS}),
}

MASKS = {
    "dense": {},
    "causal": {"causal": True},
    "window": {"window": (100, 30)},
    "causal window": {"causal": True, "window": 200},
    "segments": {"segment_ids": ids(1, 300, 212)},
    "soft cap": {"causal": True, "soft_cap": 30.0},
}
SHAPES = {64: (128, 3), 128: (128, 2), 256: (64, 2)}


def config_of(head_dim, **options):
    block_kv, threads = SHAPES[head_dim]
    where = "shared" if options.get("schedule") in ("overlap", "both") else "registers"
    options = dict(block_kv=block_kv, compute_threads=threads, probabilities=where) | options
    return config_with(**options)


PROBLEMS = {
    "dense": ((1000, 2000, 2, 2), {}),
    "causal, multi-query": ((1000, 1000, 4, 1), {"causal": True}),
    "window": ((2048, 1000, 2, 1), {"window": (300, 100)}),
    "segments": ((640, 640, 2, 2), {"causal": True, "segment_ids": ids(2, 100, 300, 240)}),
    "soft cap, sinks": ((1000, 1000, 4, 2), {"causal": True, "soft_cap": 3.0, "sinks": SINKS}),
}


# What every kernel is asked.

#: Every schedule with every mask; then other sizes of a head, and P from elsewhere.
KINDS = [(128, {}, schedule, mask) for schedule in SCHEDULES for mask in MASKS]
KINDS += [
    (head_dim, options, schedule, mask)
    for head_dim, options in ((64, {}), (256, {}), (128, {"probabilities": "interpreted"}))
    for schedule, mask in (("pingpong", "segments"), ("both", "causal"))
]
KINDS += [(128, {"probabilities": "shared"}, "pingpong", "dense")]
KINDS += [(128, {"probabilities": "registers"}, "overlap", mask) for mask in ("dense", "segments")]
KINDS += [(128, {"probabilities": "registers"}, "both", "causal")]
#: Masks are never, sometimes or always there; a step of two of the schedules has them in a branch.
LOWERINGS = [(128, {}, "plain", "dense"), (128, {}, "overlap", "causal")]
LOWERINGS += [kind for kind in KINDS if kind[2] in ("pingpong", "both") and "window" not in kind[3]]


@case("attention", CHECKED, kind=KINDS)
def first_and_last_block(kind):
    head_dim, options, schedule, mask = kind
    config = config_of(head_dim, schedule=schedule, **options)
    assert config.smem_bytes(head_dim) <= specs.SMEM_BYTES
    call = functools.partial(attention, config=config, **MASKS[mask])
    last = 512 // config.block_q - 1
    return Call(
        call,
        operands(512, 512, 4, 2, head_dim),
        smem_bytes=config.smem_bytes(head_dim),
        is_exact=False,
        blocks=tuple(dict(block=(0, 3, block)) for block in (0, last)),
        is_hopper=False,
    )


@case("attention", LOWERED, marks=BOTH_JAX, kind=LOWERINGS)
def schedule(kind):
    head_dim, options, schedule, mask = kind
    dtype = BRAIN if head_dim == 128 else HALF
    config = config_of(head_dim, schedule=schedule, **options)
    call = functools.partial(attention, config=config, **MASKS[mask])
    return Call(call, operands(512, 512, 2, 1, head_dim, dtype), is_hopper=False)


@case("attention", LOWERED, schedule=SCHEDULES[1:], keys={"whole": 512, "ragged": 520})
def persistent(schedule, keys):
    call = functools.partial(attention, config=config_of(128, schedule=schedule))
    return Call(call, operands(1000, keys, 20, 4, 128), is_hopper=False)


def on_gpu(head_dim, dtype, problem, config=None):
    """The call of a problem, of two sequences."""
    shape, options = PROBLEMS[problem]
    arrays = operands(*shape, head_dim, dtype, batch=2)
    call = functools.partial(attention, config=config, return_residuals=True, **options)
    scores = OF_TANH if "soft_cap" in options else 0.0
    right = lambda found: check_close(found, exact(*arrays, **options), dtype, scores)
    return Call(call, arrays, right)


@case("attention", CHECKED, LOWERED, head_dim=list(SHAPES), marks=BOTH_JAX)
def sinks(head_dim):
    call = functools.partial(attention, causal=True, sinks=SINKS)
    return Call(call, operands(512, 512, 4, 2, head_dim), has_notes=True)


@case("attention", ON_GPU, which=spread_over(PROBLEMS, SHAPES))
def default(which):
    problem, head_dim, dtype = which
    return on_gpu(head_dim, dtype, problem)


@case(
    "attention",
    ON_GPU,
    schedule=["plain", "overlap", "both", "optimistic"],
    problem=["dense", "causal, multi-query", "soft cap, sinks"],
)
def other_schedules(schedule, problem):
    """Than that of the default configuration."""
    return on_gpu(128, BRAIN, problem, config_of(128, schedule=schedule))


@case("attention", ON_GPU, schedule=["overlap", "both"], problem=list(PROBLEMS))
def probabilities_that_are_rounded_late(schedule, problem):
    config = config_of(128, schedule=schedule, probabilities="registers")
    return on_gpu(128, BRAIN, problem, config)


@case("attention", ON_GPU, schedule=SCHEDULES[1:], head_dim=[64, 128])
def persistent_on_gpu(schedule, head_dim):
    """Of up to three visits, with ragged ends."""
    config, dtype = config_of(head_dim, schedule=schedule), HALF if head_dim == 64 else BRAIN
    arrays = operands(1000, 520, 24, 4, head_dim, dtype, batch=2)
    call = functools.partial(attention, config=config, return_residuals=True)
    return Call(call, arrays, lambda found: check_close(found, exact(*arrays), dtype))


#: The configurations that are chosen from, with the size of a head.
CHOSEN = {
    f"{head_dim}-{kind.name}": (head_dim, kind.fields)
    for head_dim, kinds in choosing.KINDS.items()
    for kind in kinds
}


def of_kind(head_dim, fields, mask):
    """The call of a configuration that is chosen on an H200."""
    with assumed(Gpu("NVIDIA H200", "9.0")):
        config = dataclasses.replace(default_config(head_dim), **fields)
    return functools.partial(attention, config=config, **mask)


@case("attention", CHECKED, kind=CHOSEN, mask=["dense", "causal", "segments"])
def chosen(kind, mask):
    return Call(of_kind(*kind, MASKS[mask]), operands(512, 512, 2, 1, kind[0]), has_notes=True)


@case("attention", LOWERED, kind=CHOSEN, queries_and_size=[(1000, 0), (777, 0), (1000, 16)])
def chosen_of_any_size(kind, queries_and_size):
    """Also by rows, where copies cannot address the length, or the size of a head."""
    queries, size = queries_and_size
    arrays = operands(queries, queries, 20, 4, kind[0] - size, BRAIN)
    return Call(of_kind(*kind, {"causal": True}), arrays)


@case("attention", LOWERED, ON_GPU, kind=CHOSEN)
def packed_documents(kind):
    """Of one sequence, so that its place in the batch is a constant, and of many heads."""
    arrays = operands(1000, 1000, 20, 4, kind[0], BRAIN)
    mask = {"causal": True, "cu_seqlens": jnp.array([0, 100, 600, 1000]), "return_residuals": True}
    expected = lambda: exact(*arrays, causal=True, segment_ids=ids(1, 100, 500, 400))
    return Call(of_kind(*kind, mask), arrays, lambda found: check_close(found, expected(), BRAIN))


wrong_configurations(
    AttentionConfig,
    ({"rows": 96}, "rows=96 is not a multiple of 64, the rows of a wgmma."),
    ({"block_kv": 320}, "block_kv=320 is not a multiple of 64 up to 256, the most columns of a wg"),
    ({"slots": 33}, "slots=33 is not 1 to 32, the most barriers of one array."),
    ({"compute_threads": 4}, "compute_threads=4 is not 1 to 3, so that a block has at most 512 la"),
    ({"schedule": "both"}, "schedule='both' is none of plain, overlap, pingpong, optimistic; the "),
    ({"schedule": "overlap", "slots": 1}, "schedule='overlap' works on two steps at once, so slot"),
    ({"compute_threads": 1}, "schedule='pingpong' needs threads that take turns, but compute_thre"),
    ({"probabilities": "shared"}, "probabilities='shared' is none of registers, interpreted; the "),
)

ARRAYS = Q, K, V = operands(16, 24, 4, 2)
FLAG = "but what is computed depends on it, so it must be True or False, known before."
NUMBER = "but a kernel is compiled for it, so it must be a number that is known before."
WINDOW = "but a kernel is compiled for it, so it must be an integer, or a tuple (left, right) of"
#: Options of a wrong type, by that type's name, and why they are refused.
TYPES = [
    ("causal", "no", "str", FLAG),
    ("causal", None, "NoneType", FLAG),
    ("causal", 2, "int", FLAG),
    ("causal", np.array([True, True]), "ndarray", FLAG),
    ("return_residuals", "no", "str", FLAG),
    ("window", [4, 4], "list", WINDOW),
    ("window", "4", "str", WINDOW),
    ("window", 4.5, "float", WINDOW),
    ("window", (4.5, None), "tuple", WINDOW),
    ("scale", "x", "str", NUMBER),
    ("scale", [0.5], "list", NUMBER),
    ("soft_cap", "x", "str", NUMBER),
    ("segment_ids", [0, 1], "list", "but a kernel copies arrays: make one, with jnp.asarray."),
    ("sinks", 1.0, "float", "but a kernel copies arrays: make one, with jnp.asarray."),
]
for function in (attention, attention_reference):
    refuses(
        function,
        refused("k is float32, but the kernel takes", Q, K.astype(jnp.float32), V, kind=TypeError),
        refused("v is bfloat16, but wgmma takes one", Q, K, V.astype(BRAIN), kind=TypeError),
        refused("q has shape (16, 4, 64), but it must be [batch, seq, heads, hea", Q[0], K, V),
        refused("k has shape (1, 0, 2, 64), but it must be [", Q, K[:, :0], V[:, :0]),
        refused("(1, 23, 2, 64) must have one batch, q and k one head_dim", Q, K, V[:, 1:]),
        refused("3 heads of q over 2 heads of k leave 1, but each head", Q[:, :, :3], K, V),
        refused("q=[1.0] has type list, but a kernel copies", [1.0], K, V, kind=TypeError),
        refused("k=None has type NoneType, but a kernel copies", Q, None, V, kind=TypeError),
        refused("v=2.0 has type float, but a kernel copies", Q, K, 2.0, kind=TypeError),
        *(
            refused(
                f"attention: {name}={value!r} has type {is_a}, {why}",
                kind=TypeError,
                **{name: value},
            )
            for name, value, is_a, why in TYPES
        ),
        refused("segment_ids=None has", segment_ids=(ids(1, 16), None), kind=TypeError),
        refused("of k are int32 (1, 16), but they must be integers", segment_ids=ids(1, 16)),
        refused("segment_ids are a tuple of 3, but it must", segment_ids=(ids(1, 16),) * 3),
        refused(
            "cu_seqlens of k are float32 (2,), but they", cu_seqlens=(ENDS, jnp.array([0.0, 16.0]))
        ),
        refused("cu_seqlens of q are int32 (1,), but they must be integers", cu_seqlens=ENDS[:1]),
        refused("cu_seqlens are a tuple of 1, but it must", cu_seqlens=(ENDS,)),
        refused("cu_seqlens=[0, 16] has", cu_seqlens=[0, 16], kind=TypeError),
        refused("cu_seqlens both say where documents are", cu_seqlens=ENDS, segment_ids=ids(1, 16)),
        refused("has a negative side, so a query would not see its", window=(-1, 2)),
        refused("has 3 sides, but there are 2, left and right of", window=(4, 4, 4)),
        refused("scale=-1.0 is not positive and finite, so the largest", scale=-1.0),
        refused("soft_cap=0.0 is not positive and finite, so no scores would", soft_cap=0.0),
        refused("sinks are float32 (3,), but they must be floats (4,), a sc", sinks=SINKS[:3]),
        refused("sinks are int32 (4,), but", sinks=jnp.arange(4)),
        arrays=ARRAYS,
    )
OF_128 = operands(128, 88, head_dim=128)
WRONG_CONFIG = refused(
    "attention: config=64 has type int, but an AttentionConfig says how", config=64, kind=TypeError
)
refuses(attention_kernel, WRONG_CONFIG, arrays=OF_128)
refuses(
    attention,
    WRONG_CONFIG,
    refused("B + barriers 20 x 8 B = 296,096 B of shared memory", config=AttentionConfig(slots=4)),
    refused("128 + probabilities 64 = 256 registers of a", config=AttentionConfig(block_kv=256)),
    refused(
        "attention: heads of 320 are larger than 256, so JAX makes the result without the kernel,"
        " and AttentionConfig(",
        *operands(16, 24, head_dim=320),
        config=AttentionConfig(),
    ),
    arrays=OF_128,
)
