"""`pipelib.kernels.decode_attention` against float64: interpreted, traced and checked, lowered,
compiled; on a GPU.

Caches hold large numbers behind the end of each sequence, and tables have entries of no page where
a sequence has no keys: a result that is right has used neither.
"""

import dataclasses
import functools
import itertools
import math
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import pallascope
from pallascope.checking.grid import check_grid
from pipelib import specs
from pipelib.kernels import AttentionConfig, DecodeConfig, attention, decode_attention, hopper
from pipelib.kernels.attention import decode_kernel, decode_threads, schedules
from pipelib.kernels.attention.decode_config import MOST_SPLITS, START, default_config, splits_for
from tests.emitters.contract import interpreted
from tests.kernels.attention.cases import (
    BRAIN,
    HALF,
    check_close,
    exact,
    lowered,
    spread_over,
)
from tests.kernels.devices import pretend

#: No page: a copy from there would raise, or read what it must not.
NO_PAGE = 10**6


def small(**options):
    """What the interpreter runs."""
    return DecodeConfig(**dict(block_kv=64, slots=2, probabilities="interpreted") | options)


def problem(q_seq, lengths, keys, heads=1, kv_heads=1, head_dim=64, dtype=HALF, page=None):
    """q, k, v, lengths, and the table of pages or None; pages lie in no order."""
    draw = np.random.default_rng(q_seq + keys + heads)
    batch = len(lengths)
    q = draw.standard_normal((batch, q_seq, heads, head_dim))
    k, v = draw.standard_normal((2, batch, keys, kv_heads, head_dim))
    for array in (k, v):
        for cache, length in zip(array, lengths):
            cache[length:] = 1e4
    q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
    table = None
    if page is not None:
        count = batch * keys // page
        order = draw.permutation(count)
        k, v = (x.reshape(count, page, kv_heads, head_dim)[np.argsort(order)] for x in (k, v))
        table = order.reshape(batch, -1)
        for pages, length in zip(table, lengths):
            pages[-(-length // page) :] = NO_PAGE
        table = jnp.asarray(table, jnp.int32)
    return q, k, v, jnp.asarray(lengths, jnp.int32), table


def expected(q, k, v, lengths, table, scale=None):
    """The result and the log-sum-exp in float64."""
    if table is not None:
        pages = np.where(np.asarray(table) == NO_PAGE, 0, table)
        k, v = (np.asarray(x)[pages].reshape(q.shape[0], -1, *x.shape[2:]) for x in (k, v))
    found = [
        exact(*(x[i : i + 1] for x in (q, k, v)), window=(10**9, int(n) - q.shape[1]), scale=scale)
        for i, n in enumerate(lengths)
    ]
    return tuple(map(np.concatenate, zip(*found)))


def decode(arrays, **options):
    *others, table = arrays
    return decode_attention(*others, page_table=table, return_residuals=True, **options)


# Interpreted, with race detection.

CASES = {
    "one query": ((1, (200, 65, 0, 1), 200), {}),
    "one query, split": ((1, (200, 65, 0, 1), 200), {"splits": 3}),
    "more splits than steps": ((1, (100, 30), 128), {"splits": 5}),
    "grouped heads": ((1, (130, 64), 136, 6, 2), {"splits": 2}),
    "several queries, some see nothing": ((5, (130, 2, 0), 192, 4, 2), {"splits": 2}),
    "sixteen queries, ends on a step": ((16, (128, 16), 128, 2, 1), {}),
    "two compute threads": ((16, (100, 70), 136, 8, 1), {"splits": 2}),
    "two blocks of rows": ((16, (70,), 72, 9, 1), {}),
    "pages of a step": ((2, (200, 10, 0), 256, 2, 1, 64, BRAIN, 64), {"splits": 2}),
    "small pages": ((1, (150, 64), 192, 4, 2, 64, HALF, 16), {"splits": 2}),
    "large pages": ((3, (200, 130), 256, 2, 2, 64, HALF, 128), {}),
    "pages of 8": ((1, (70, 3), 128, 1, 1, 64, BRAIN, 8), {}),
    "heads of 128": ((1, (100, 20), 128, 4, 2, 128, BRAIN), {"splits": 2}),
    "heads of 256": ((2, (70,), 72, 2, 2, 256), {}),
    "more steps than slots": ((1, (320,), 320), {"slots": 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_result(case):
    shape, options = CASES[case]
    arrays = problem(*shape)
    with interpreted():
        found = decode(arrays, config=small(**options))
    check_close(found, expected(*arrays), arrays[0].dtype)


@pytest.mark.parametrize("q_seq", range(1, 17))
def test_every_number_of_queries(q_seq):
    arrays = problem(q_seq, (81, 64, 7), 128, 2, 1)
    with interpreted(detect_races=False):
        found = decode(arrays, config=small(splits=2), scale=0.3)
    check_close(found, expected(*arrays, scale=0.3), HALF)


def test_all_keys_by_default_and_the_result_alone():
    q, k, v, _, _ = problem(2, (72, 72), 72, 2, 1)
    with interpreted():
        found = decode_attention(q, k, v, config=small())
        same = decode_attention(q, k, v, jnp.array([72, 10**6], jnp.int32), config=small())
    np.testing.assert_allclose(found, expected(q, k, v, (72, 72), None)[0], 0, 2e-3)
    np.testing.assert_array_equal(found, same)


@pytest.mark.parametrize("change", ["no", "page", "length"])
def test_another_page_or_length_is_another_result(change):
    """These tests can fail: one page of another sequence is found, and one key too few."""
    q, k, v, lengths, table = arrays = problem(1, (150, 64), 192, 1, 1, 64, HALF, 64)
    if change == "page":
        table = table.at[0, 1].set(table[1, 0])
    if change == "length":
        lengths = lengths.at[0].add(-1)
    with interpreted(detect_races=False):
        found = decode((q, k, v, lengths, table), config=small())
    if change == "no":
        check_close(found, expected(*arrays), HALF)
    else:
        with pytest.raises(AssertionError):
            check_close(found, expected(*arrays), HALF)


def test_large_scores():
    """exp of the scores themselves would be infinite, in each part and in all."""
    q, k, v, lengths, table = problem(1, (128, 100), 128)
    arrays = q * 60.0, k, v, lengths, table
    with interpreted():
        found = decode(arrays, config=small(splits=2))
    check_close(found, expected(*arrays), HALF)


def test_last_queries_of_attention():
    """The same as the last rows of causal attention."""
    q, k, v, lengths, _ = problem(64, (64,), 64, 2, 1)
    own = AttentionConfig(
        block_kv=64, compute_threads=1, schedule="plain", probabilities="interpreted"
    )
    with interpreted():
        whole = attention(q, k, v, causal=True, config=own)
        last = decode_attention(q[:, -5:], k, v, lengths, config=small())
    np.testing.assert_allclose(last, whole[:, -5:], 0, 2e-3)


def test_under_vmap():
    arrays = problem(2, (100, 0, 70, 7), 128, 2, 1, page=64)
    q, k, v, lengths, table = arrays
    by_two = lambda x: x.reshape(2, 2, *x.shape[1:])

    def one(q, lengths, table):
        return decode((q, k, v, lengths, table), config=small())

    with interpreted():
        found = jax.vmap(one)(*map(by_two, (q, lengths, table)))
    found = tuple(x.reshape(-1, *x.shape[2:]) for x in found)
    check_close(found, expected(*arrays), HALF)


def test_no_gradient():
    q, k, v, lengths, _ = problem(1, (64,), 64)
    call = lambda q: decode_attention(q, k, v, lengths, config=small()).astype(jnp.float32).sum()
    message = "^decode_attention has no gradient: use attention[.]"
    with pytest.raises(NotImplementedError, match=message):
        jax.grad(call)(q)
    with pytest.raises(NotImplementedError, match=message):
        jax.jvp(call, (q,), (q,))


# Traced and checked, and the arithmetic of what it takes.

#: Rows of a head of K and V by q_seq and group, the size of a head, keys of a page, splits.
KINDS = [
    (1, 4, 128, None, 1), (1, 4, 128, None, 4), (16, 4, 128, None, 1), (16, 8, 128, None, 4),
    (4, 4, 64, None, 4), (16, 16, 64, None, 1), (1, 8, 256, None, 1), (4, 4, 256, None, 4),
    (1, 4, 128, 16, 4), (1, 4, 128, 64, 1), (4, 4, 128, 128, 4), (1, 4, 128, 256, 1),
    (16, 8, 64, 32, 4),
]  # fmt: skip


def on_hopper():
    """A context in which kernels are planned for an H200."""
    return hopper.assumed(hopper.Gpu("NVIDIA H200", "9.0"))


def kind(q_seq, group, head_dim, page, splits, dtype=HALF):
    """A problem of two sequences of 2048 keys at most, its configuration, and its call."""
    arrays = problem(q_seq, (2048, 1301), 2048, 2 * group, 2, head_dim, dtype, page)
    with on_hopper():
        config = default_config(q_seq * group, head_dim, page)
    config = DecodeConfig(config.block_kv, config.slots, splits)
    return arrays, config, functools.partial(decode, config=config)


def loads_of(program):
    return sum(op.kind == "load" for thread in program.threads for op in thread)


@pytest.mark.parametrize("args", KINDS, ids=str)
def test_check_finds_nothing(args):
    """Of the first block and of the last; each loads the keys of its own part, and no others."""
    q_seq, group, head_dim, page, splits = args
    arrays, config, call = kind(*args)
    own = config.for_rows(q_seq * group)
    for batch, split in [(0, 0), (1, 0), (1, splits - 1)]:
        program = pallascope.trace(lambda *args: call(args), *arrays, block=(batch, split, 1))
        assert list(pallascope.check(program)) == []
        assert list(pallascope.check(program, strict=True)) == []
        steps = [math.ceil(n / config.block_kv) for n in (2048, 1301)][batch]
        own_steps = steps * (split + 1) // splits - steps * split // splits
        copies = 2 * max(1, config.block_kv // (page or config.block_kv))
        assert loads_of(program) == copies * own_steps + own.compute_threads
    config.check(q_seq * group, head_dim, splits > 1)
    assert program.smem_bytes <= specs.SMEM_BYTES


def test_all_pages_of_a_sequence_are_loaded():
    """Each from where the table says that it is, in order; K and V alike."""
    (*others, table), config, call = kind(1, 4, 128, 64, 1)
    program = pallascope.trace(lambda *args: call(args), *others, table, block=(1, 0, 0))
    names = {buffer.id: buffer.name for buffer in program.buffers}
    pages = {"k": [], "v": []}
    for op in (op for thread in program.threads for op in thread if op.kind == "load"):
        if names[op.reads[0].buffer] in pages:
            pages[names[op.reads[0].buffer]].append(op.reads[0].box[0][0])
    used = table[1, : math.ceil(1301 / 64)].tolist()
    ends = [used[-1]] * (-len(used) % (config.block_kv // 64))  # for pages without keys
    assert pages == dict.fromkeys("kv", used + ends)


@pytest.mark.parametrize("page", [None, 64])
def test_every_result_is_written_once(page):
    """Of all blocks, of which some have no keys, and some two threads for less than 128 rows."""
    arrays = problem(12, (500, 0, 129), 512, 27, 3, 128, HALF, page)
    call = functools.partial(decode, config=DecodeConfig(block_kv=64, slots=3, splits=3))
    blocks = itertools.product(range(3), range(3), range(3))
    programs = [
        pallascope.trace(lambda *args: call(args), *arrays, block=block) for block in blocks
    ]
    assert list(check_grid(programs)) == []
    twice = [*programs, dataclasses.replace(programs[0], block=programs[1].block)]
    assert list(check_grid(twice)) != []


def test_no_keys():
    arrays = problem(1, (0, 5), 256, 4, 1, 128)
    call = functools.partial(decode, config=DecodeConfig(splits=2))
    program = pallascope.trace(lambda *args: call(args), *arrays, block=(0, 0, 0))
    assert list(pallascope.check(program, strict=True)) == [] and loads_of(program) == 1


def test_lengths_must_be_known_to_trace():
    q, k, v, lengths, _ = problem(1, (64,), 64)
    unknown = jax.ShapeDtypeStruct(lengths.shape, lengths.dtype)
    with pytest.raises(ValueError, match="depends on what a tensor holds"):
        pallascope.trace(
            functools.partial(decode_attention, config=DecodeConfig()), q, k, v, unknown
        )


def without(module, **names):
    """A module in which some functions are others."""
    return types.SimpleNamespace(**vars(module) | names)


def does_nothing(*_, **__):
    """What a mutation calls instead."""


def one_arrival(work, *args, ring=decode_kernel._ring):
    return ring(work, *args) | dict(produced=plgpu.Barrier(num_barriers=work.config.slots))


#: What to put where, and a kind of finding that then must be there.
MUTATIONS = {
    "K and V that nobody waits for":
        (schedules, "plgpu", without(plgpu, barrier_wait=does_nothing), "race"),
    "slots that are loaded while they are read":
        (decode_threads, "pl", without(pl, when=lambda _: does_nothing), "race"),
    "a barrier that does not count all pages": (decode_kernel, "_ring", one_arrival, "race"),
    "a result that is not committed":
        (decode_threads, "plgpu", without(plgpu, commit_smem=does_nothing), "missing-commit"),
    "a part stored over one that is being stored":
        (decode_threads, "plgpu", without(plgpu, wait_smem_to_gmem=does_nothing), "race"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.usefixtures("traced_anew")
def test_check_finds_what_is_missing(mutation, monkeypatch):
    module, name, change, kind_of_finding = MUTATIONS[mutation]
    monkeypatch.setattr(module, name, change)
    arrays, _, call = kind(1, 4, 128, 64, 2)
    found = pallascope.check(pallascope.trace(lambda *args: call(args), *arrays))
    assert kind_of_finding in {finding.kind for finding in found}, list(found)


# Lowered and compiled, without a GPU.


@pytest.mark.both_jax
@pytest.mark.parametrize("args", KINDS, ids=str)
def test_lowers(args):
    arrays, _, call = kind(*args, BRAIN)
    assert "mosaic_gpu" in lowered(lambda *args: call(args), *arrays)


def test_vmap_lowers():
    """The kernel gets the axis, and no cache is copied for it."""
    q, k, v, lengths, _ = problem(1, (64, 64, 64, 64), 64, 4, 2, 128)
    one = lambda *arrays: decode_attention(*arrays, config=DecodeConfig())
    arrays = (x.reshape(2, 2, *x.shape[1:]) for x in (q, k, v, lengths))
    assert lowered(jax.vmap(one), *arrays).count("@mosaic_gpu_v2(") == 1


def sharded(mesh, **options):
    """Over the batch, and over the heads."""
    specs = P("b", None, "h"), P("b", None, "h"), P("b", None, "h"), P("b")
    call = lambda *arrays: decode_attention(*arrays, return_residuals=True, **options)
    outs = P("b", None, "h"), P("b", "h")
    return jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=outs)


def mesh_of(*shape):
    return jax.make_mesh(shape, ("b", "h"), axis_types=(AxisType.Auto,) * 2)


@pytest.mark.parametrize("splits", [1, 2])
def test_shard_map_lowers(splits):
    arrays = problem(2, (200, 100), 256, 4, 2, 128)[:4]
    assert "mosaic_gpu" in lowered(
        sharded(mesh_of(1, 1), config=DecodeConfig(splits=splits)), *arrays
    )


@pytest.mark.compiler
@pytest.mark.parametrize("args", KINDS, ids=str)
def test_ptxas_spills_nothing_and_waits_for_no_product(args):
    arrays, _, call = kind(*args)
    found = pallascope.compiled(lambda *args: call(args), *arrays)
    assert not found.serialized and not found.spill_stores and found.ok
    (memory,) = (loop for loop in found.loops if loop.instructions["UTMALDG"])
    (compute,) = (loop for loop in found.loops if loop.instructions["HGMMA"])
    assert memory.instructions["LDG"] == memory.instructions["UTMALDG"] // 2 * (args[3] is not None)
    assert not compute.instructions["LDS"] and not compute.instructions["BAR"]


# Configurations.


@pytest.mark.parametrize(
    ("batch", "steps", "splits"),
    [(1, 256, 16), (2, 256, 8), (4, 256, 4), (16, 256, 1), (64, 256, 1), (1, 1, 1), (1, 8, 8)],
)
def test_splits_fill_the_sms(batch, steps, splits):
    """With 8 heads of K and V: as many as 132 SMs have blocks for, unless there are more blocks."""
    assert splits_for(8 * batch, steps, START // 2, 132) == splits


def test_no_more_splits_than_steps_or_than_are_added_up():
    assert splits_for(1, 100, START, 10_000) <= 100
    assert splits_for(1, 10_000, START, 10_000) <= MOST_SPLITS


def test_the_number_of_splits_is_that_of_the_configuration():
    q, k, v, lengths, _ = problem(1, (2048,), 2048, 4, 2, 128)
    with on_hopper():
        call = lambda *arrays: decode_attention(*arrays, config=DecodeConfig())
        pallascope.trace(call, q, k, v, lengths, block=(0, 15, 1))
        call = lambda *arrays: decode_attention(*arrays, config=DecodeConfig(splits=3))
        with pytest.raises(ValueError, match="is not in the grid"):
            pallascope.trace(call, q, k, v, lengths, block=(0, 3, 1))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("rows", [1, 64, 65, 128, 256])
@pytest.mark.parametrize("page", [None, 16, 32, 64, 128, 192, 256])
def test_default_configuration_fits(head_dim, rows, page):
    with on_hopper():
        config = default_config(rows, head_dim, page)
    config.check(rows, head_dim)
    assert config.probabilities == "registers" and config.slots >= 2
    with pytest.raises(ValueError, match="so the kernel could not start"):
        DecodeConfig(config.block_kv, config.slots + 5).check(rows, head_dim)
    if page is not None:
        assert page % config.block_kv == 0 or config.block_kv % page == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_kv": 96}, "block_kv=96 is not a multiple of 64 up to 256, the most columns of a"
         " wgmma."),
        ({"slots": 0}, "slots=0 is not 1 to 32, the most barriers of one array."),
        ({"splits": 0}, "splits=0 is not 1 to 128, the most partial results of a sequence."),
        ({"probabilities": "x"}, "probabilities='x' is none of registers, shared, interpreted."),
    ],
)  # fmt: skip
def test_configuration_errors(options, message):
    with pytest.raises(ValueError) as error:
        DecodeConfig(**options)
    assert str(error.value) == f"DecodeConfig: {message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 4, "splits": 2}, "queries 1 x 16,384 B + slots of K and V 8 x 32,768 B +"
         " log-sum-exp 1 x 1,024 B + barriers 17 x 8 B + partial results 1 x 16,384 B = 296,072 B"
         " of shared memory, but a block has 232,448 B, so the kernel could not start."),
        ({"slots": 1, "block_kv": 256, "head_dim": 256}, "result 128 + scores 128 = 256 registers"
         " of a lane, but each of 1 compute threads has 255, and needs some for the rest."),
    ],
)  # fmt: skip
def test_what_does_not_fit(options, message):
    options = dict(options)
    q, k, v, lengths, _ = problem(1, (64,), 64, head_dim=options.pop("head_dim", 128))
    with pytest.raises(ValueError) as error:
        decode_attention(q, k, v, lengths, config=DecodeConfig(**options))
    assert str(error.value) == f"DecodeConfig: {message}"


@pytest.mark.parametrize("name", ["block_kv", "slots", "splits"])
def test_configuration_types(name):
    with pytest.raises(TypeError, match=f"^DecodeConfig: {name}='a' has type str, but a kernel is"):
        DecodeConfig(**{name: "a"})
    config = DecodeConfig(**{name: np.int64(64 if name == "block_kv" else 2)})
    assert type(getattr(config, name)) is int


# Errors.


def refused(kind, message, *args, **options):
    with pytest.raises(kind) as error:
        decode_attention(*args, **options)
    assert str(error.value) == f"decode_attention: {message}"


def test_wrong_arrays():
    q, k, v, lengths, _ = problem(2, (24, 8), 24, 4, 2)
    refused(
        TypeError, "k is float32, but the kernel takes float16 or bfloat16.",
        q, k.astype(jnp.float32), v,
    )  # fmt: skip
    refused(
        ValueError,
        "q (2, 2, 4, 64), k (2, 24, 2, 64) and v (2, 16, 2, 64) must have one head_dim, and k and v"
        " one shape.",
        q, k, v[:, :16],
    )  # fmt: skip
    refused(
        ValueError,
        "3 heads of q over 2 heads of k leave 1, but each head of k must serve equally many.",
        q[:, :, :3], k, v,
    )  # fmt: skip
    refused(
        ValueError,
        "head_dim is 32, but the kernel has heads of 64, 128 and 256, and the cache is never"
        " copied: make it with heads of one of these sizes, with zeros behind their numbers, and"
        " give scale=.",
        q[..., :32], k[..., :32], v[..., :32],
    )  # fmt: skip
    refused(
        ValueError, "17 queries of a sequence are more than 16: attention is for many.",
        jnp.zeros((2, 17, 4, 64), HALF), k, v,
    )  # fmt: skip
    refused(
        ValueError,
        "k has kv_seq 23 keys, which is not a multiple of 8, so copies cannot address them: make"
        " the cache longer, and give lengths.",
        q, k[:, :23], v[:, :23],
    )  # fmt: skip
    refused(
        ValueError,
        "q has a batch of 2 and k of 1, but without a page_table each sequence has its own keys.",
        q, k[:1], v[:1],
    )  # fmt: skip
    refused(
        ValueError,
        "lengths is float32 (2,), but it must be integers [batch], of a batch of 2.",
        q, k, v, lengths.astype(jnp.float32),
    )  # fmt: skip


def test_wrong_tables():
    q, k, v, lengths, table = problem(1, (100, 8), 128, 2, 1, page=64)
    refused(
        ValueError,
        "page_table is int32 (1, 2), but it must be integers [batch, pages_per_sequence], of a"
        " batch of 2.",
        q, k, v, lengths, page_table=table[:1],
    )  # fmt: skip
    refused(
        ValueError,
        "a page_table needs lengths: pages say where keys can be, not how many there are.",
        q, k, v, page_table=table,
    )  # fmt: skip
    k, v = (jnp.zeros((3, 96, 1, 64), HALF) for _ in "kv")
    refused(
        ValueError,
        "pages of 96 keys neither divide the 64 keys of a step (block_kv) nor are a multiple of"
        " them, so copies of whole pages do not fill a step.",
        q, k, v, lengths, page_table=table,
    )  # fmt: skip
    k, v = (jnp.zeros((3, 12, 1, 64), HALF) for _ in "kv")
    refused(
        ValueError,
        "k has pages of 12 keys, which is not a multiple of 8, so copies cannot address them: make"
        " the cache longer, and give lengths.",
        q, k, v, lengths, page_table=table,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": [1.0]}, "k=[1.0] has type list, but a kernel copies arrays: make one, with"
         " jnp.asarray."),
        ({"lengths": [64]}, "lengths=[64] has type list, but a kernel copies arrays: make one, with"
         " jnp.asarray."),
        ({"scale": "x"}, "scale='x' has type str, but a kernel is compiled for it, so it must be a"
         " number that is known before."),
        ({"config": 64}, "config=64 has type int, but a DecodeConfig says how it is divided."),
        ({"return_residuals": 2}, "return_residuals=2 has type int, but what is computed depends on"
         " it, so it must be True or False, known before."),
    ],
)  # fmt: skip
def test_types(options, message):
    arrays = dict(zip(("q", "k", "v", "lengths"), problem(1, (64,), 64)))
    with pytest.raises(TypeError) as error:
        decode_attention(**arrays | options)
    assert str(error.value) == f"decode_attention: {message}"


def test_another_gpu(monkeypatch):
    arrays = problem(1, (64,), 64)[:4]
    pretend(monkeypatch, "NVIDIA A100", "8.0")
    message = "decode_attention: NVIDIA A100 has compute capability 8.0, but wgmma needs 9.x"
    with pytest.raises(ValueError, match=re.escape(message)):
        decode_attention(*arrays)


def test_on_a_cpu_nothing_runs():
    """As of any kernel, where nothing interprets it."""
    with pytest.raises(ValueError, match="interpret"):
        jax.block_until_ready(decode_attention(*problem(1, (64,), 64)[:4]))


# On a Hopper GPU.

ON_GPU = {
    "one query": ((1, (4096, 1000, 0, 1), 4096, 8, 2), {}),
    "one query, one part": ((1, (4096, 1000, 0, 129), 4096, 8, 2), {"splits": 1}),
    "a block of rows": ((16, (3000, 15, 128), 3072, 8, 2), {}),
    "two compute threads": ((16, (3000, 15, 128), 3072, 16, 2), {}),
    "four blocks of 64 rows": ((16, (3000, 0, 1000), 3072, 16, 1), {}),
    "ragged cache": ((4, (1000, 777), 1000, 8, 8), {}),
}
PAGED = [(page, splits) for page in (8, 16, 32, 64, 128, 192, 256) for splits in (None, 1)]


def check_on_gpu(head_dim, dtype, shape, options, page=None):
    arrays = problem(*shape, head_dim, dtype, page)
    q, k, _, _, table = arrays
    config = default_config(
        q.shape[1] * q.shape[2] // k.shape[2], head_dim, None if table is None else page
    )
    config = dataclasses.replace(config, **options)
    check_close(decode(arrays, config=config), expected(*arrays), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "head_dim", "dtype"), spread_over(ON_GPU, (64, 128, 256)))
def test_on_gpu(case, head_dim, dtype):
    check_on_gpu(head_dim, dtype, *ON_GPU[case])


@pytest.mark.gpu
@pytest.mark.parametrize(("page", "splits"), PAGED)
def test_pages_on_gpu(page, splits):
    shape = 3, (1536, 1000, 0, 257), 1536, 8, 2
    check_on_gpu(128, BRAIN, shape, {"splits": splits}, page)


@pytest.mark.gpu
@pytest.mark.parametrize("q_seq", range(1, 17))
def test_every_number_of_queries_on_gpu(q_seq):
    check_on_gpu(128, BRAIN, (q_seq, (2048, q_seq - 1, 999), 2048, 8, 2), {})


@pytest.mark.gpu
@pytest.mark.parametrize("page", [None, 64])
def test_many_launches_agree(page):
    """A race would show as a difference, now and then."""
    *others, table = problem(1, (8192, 5000, 8000, 1), 8192, 32, 8, 128, BRAIN, page)
    call = functools.partial(decode_attention, *others, page_table=table)
    first = call()
    assert all(bool(jnp.array_equal(call(), first)) for _ in range(50))


@pytest.mark.gpu
def test_large_scores_on_gpu():
    q, k, v, lengths, table = problem(1, (4096, 1000), 4096, 4, 2, 128)
    arrays = q * 60.0, k, v, lengths, table
    check_close(decode(arrays), expected(*arrays), HALF)


@pytest.mark.gpu
def test_under_vmap_on_gpu():
    arrays = problem(2, (1000, 0, 700, 7), 1024, 8, 2, 128, HALF, 64)
    q, k, v, lengths, table = arrays
    by_two = lambda x: x.reshape(2, 2, *x.shape[1:])
    one = lambda q, lengths, table: decode((q, k, v, lengths, table))
    found = jax.vmap(one)(*map(by_two, (q, lengths, table)))
    found = tuple(x.reshape(-1, *x.shape[2:]) for x in found)
    check_close(found, expected(*arrays), HALF)


@pytest.mark.gpu
@pytest.mark.parametrize("over", [(2, 1), (1, 2)])
def test_shard_map_on_two_gpus(over):
    if len(jax.devices()) < 2:
        pytest.skip("needs two GPUs")
    arrays = problem(2, (2000, 100), 2048, 8, 2, 128)
    found = jax.jit(sharded(mesh_of(*over)))(*arrays[:4])
    check_close(found, expected(*arrays), HALF)
