"""`pipelib.kernels.decode_attention` against float64: interpreted, traced and checked, lowered,
compiled; on a GPU.

Caches hold large numbers behind the end of each sequence, and tables have entries of no page where
a sequence has no keys: a result that is right has used neither.
"""

import dataclasses
import functools
import itertools
import math
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
from pipelib.kernels import AttentionConfig, DecodeConfig, attention, decode_attention
from pipelib.kernels.attention import decode_kernel, schedules
from pipelib.kernels.attention.decode_config import MOST_SPLITS, default_config, splits_for
from pipelib.kernels.choosing import H200
from tests.emitters.contract import interpreted
from tests.kernels.attention.cases import (
    BRAIN,
    HALF,
    check_close,
    lowered,
)
from tests.kernels.attention.decode_cases import (
    KINDS,
    decode,
    expected,
    kind,
    on_hopper,
    problem,
    small,
)

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
        (decode_kernel, "pl", without(pl, when=lambda _: does_nothing), "race"),
    "a barrier that does not count all pages": (decode_kernel, "_ring", one_arrival, "race"),
    "a result that is not committed":
        (decode_kernel, "plgpu", without(plgpu, commit_smem=does_nothing), "missing-commit"),
    "a part stored over one that is being stored":
        (decode_kernel, "plgpu", without(plgpu, wait_smem_to_gmem=does_nothing), "race"),
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
    assert splits_for(8 * batch, steps, H200.start_bytes // 2, 132) == splits


def test_no_more_splits_than_steps_or_than_are_added_up():
    assert splits_for(1, 100, H200.start_bytes, 10_000) <= 100
    assert splits_for(1, 10_000, H200.start_bytes, 10_000) <= MOST_SPLITS


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


# On a Hopper GPU.


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
