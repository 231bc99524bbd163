"""What `trace` lists, op by op; what it refuses, and how it says so."""

import collections
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton

import pallascope
from pallascope import Op, Program
from tests.pallascope import kernels
from tests.pallascope.kernels import like
from tests.pallascope.tracing.told import refused, words

pytestmark = pytest.mark.both_jax

X = like(256, 64)


def names(program):
    return {buffer.name: buffer for buffer in program.buffers}


def test_load_wait_compute_store():
    program = pallascope.trace(kernels.add_one, X)
    assert words(program) == [
        "load reads x[0:64, 0:64] writes x_smem[0:64, 0:64] on barrier[0] #0",
        "wait on barrier[0] #0",
        "read reads x_smem[0:64, 0:64] in compute",
        "compute 0 in compute",
        "write writes x_smem[0:64, 0:64] in compute",
        "fence",
        "store reads x_smem[0:64, 0:64] writes o[0:64, 0:64]",
        "commit_group",
        "wait_store 0",
    ]
    load = program.threads[0][1]
    assert re.fullmatch(r"tests/pallascope/kernels\.py:\d+", load.line)
    assert load.bytes == 64 * 64 * 2
    assert program.threads[0][0] == Op("scope_begin", 0, scope_id=0, bytes=64 * 64 * 2)
    assert (program.grid, program.block, program.smem_bytes) == ((4,), (0,), 64 * 64 * 2 + 8)
    assert [b.role for b in program.buffers] == ["in", "out", ""]
    smem, barrier = names(program)["x_smem"], program.barriers[0]
    assert (smem.space, smem.shape, smem.dtype) == ("smem", (64, 64), "float16")
    assert smem.bytes == 64 * 64 * 2
    assert (barrier.name, barrier.arrivals, barrier.count) == ("barrier", 1, 1)
    assert not program.truncated


def test_gmem_has_its_role():
    def kernel(x, total, o, other, scratch):
        scratch[0] = other[0] + x[0]
        total[0] = scratch[0]

    def call(x, total):
        total = jax.new_ref(total)
        kernels.of(kernel, out=(X, X), scratch_types=[plgpu.GMEM((4, 64), jnp.float16)])(x, total)
        return total[...]

    found = {b.name: (b.space, b.role) for b in pallascope.trace(call, X, X).buffers}
    assert found == {
        "x": ("gmem", "in"),
        "total": ("gmem", "in/out"),
        "o": ("gmem", "out"),
        "other": ("gmem", "out"),
        "scratch": ("gmem", "scratch"),
    }


def test_matmul_in_a_ring_of_two_slots():
    program = pallascope.trace(kernels.matmul, like(64, 192), like(192, 64))
    ring = program.barriers[0].name
    a, b = (buffer.name for buffer in program.buffers if buffer.slots == 2)
    accumulator = "acc[0:64, 0:64]"

    def loads(k, step):
        here, slot = f"{64 * k}:{64 * k + 64}", k % 2
        return [
            f"load reads a[0:64, {here}] writes {a}[{slot}, 0:64, 0:64] on {ring}[{slot}]"
            f" #{k // 2 * 2} step {step}",
            f"load reads b[{here}, 0:64] writes {b}[{slot}, 0:64, 0:64] on {ring}[{slot}]"
            f" #{k // 2 * 2 + 1} step {step}",
        ]

    def compute(k):
        slot = k % 2
        return [
            f"wait on {ring}[{slot}] #{k // 2} step {k}",
            f"wgmma reads {a}[{slot}, 0:64, 0:64], {b}[{slot}, 0:64, 0:64], {accumulator}"
            f" writes {accumulator} step {k}",
            f"wgmma_wait 0 step {k}",
        ]

    assert words(program) == [
        *loads(0, 0), *loads(1, 1), *compute(0), *loads(2, 0), *compute(1), *compute(2),
        f"acc_read 0 reads {accumulator}", "compute 0", "write writes o[0:64, 0:64]",
    ]  # fmt: skip
    flops = [op.flops for op in program.threads[0] if op.kind == "wgmma"]
    assert flops == [2 * 64**3] * 3
    assert program.smem_bytes == 2 * 2 * 64 * 64 * 2 + 2 * 8


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    slots=st.integers(1, 4),
    steps=st.integers(1, 6),
    delay=st.integers(0, 3),
    threads=st.integers(1, 2),
)
def test_each_phase_that_is_waited_for_gets_its_arrivals(slots, steps, delay, threads):
    delay, slots = min(delay, slots - 1), max(slots, 1)
    call = lambda x: kernels.specialized(x, slots, delay, threads)
    program = pallascope.trace(call, like(64 * steps, 64))
    memory, arrivals, waits = threads, collections.Counter(), collections.Counter()
    for op in (op for op in program.ops if op.barrier is not None):
        place = op.barrier, op.index
        if op.kind in ("load", "arrive"):
            assert (op.kind == "load") == (op.thread == memory)
            arrivals[place] += 1
        else:
            assert op.kind == "wait"
            waits[*place, op.thread] += 1
    for (barrier, index, thread), count in waits.items():
        assert count * program.barriers[barrier].arrivals == arrivals[barrier, index], thread
    assert sum(arrivals.values()) == steps + threads * max(steps - delay, 0)
    assert sum(waits.values()) == threads * steps + max(steps - delay, 0)
    assert program.registers[memory] == 40


def test_specialized_threads_have_their_roles():
    program = pallascope.trace(lambda x: kernels.specialized(x, 2, 0), X)
    compute, memory = (collections.Counter(op.kind for op in ops) for ops in program.threads)
    scopes = dict(scope_begin=2, scope_end=2)
    assert memory == dict(registers=1, load=4, wait=4, **scopes)
    assert compute == dict(registers=1, wait=4, read=8, compute=4, fence=4, arrive=4, **scopes)
    shared = [op for op in program.ops if op.kind == "scope_begin"]
    assert len({op.scope_id for op in shared}) == 2


def test_block_picks_one():
    program = pallascope.trace(kernels.add_one, X, block=(3,))
    assert words(program)[0].startswith("load reads x[192:256, 0:64] writes")
    assert program.block == (3,)
    assert pallascope.trace(kernels.add_one, X, block=3) == program
    assert pallascope.trace(kernels.add_one, X, block=np.array([3])) == program


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ((4,), r"block=\(4,\) is not in the grid: axis 'i' has the blocks 0 to 3, and 4 is not"),
        (5, r"block=\(5,\) is not in the grid: axis 'i' has the blocks 0 to 3, and 5 is not one"),
        ((-1,), r"block=\(-1,\) is not in the grid: axis 'i' has the blocks 0 to 3, and -1 is"),
        ((), r"block=\(\) has 0 indices, but the grid \(4,\) has 1 axes .*: give one for"),
        ((0, 0), r"block=\(0, 0\) has 2 indices, but the grid \(4,\) has 1 axes and the cluster 0"),
    ],
)
def test_a_block_that_is_not_there(block, text):
    with pytest.raises(ValueError, match=text):
        pallascope.trace(kernels.add_one, X, block=block)


@pytest.mark.parametrize("block", ["a", 1.5, (1.5,), ((1,),)])
def test_a_block_that_is_not_of_integers(block):
    told = f"block={block!r} is not of integers, so it is no block of the grid (4,): give one for"
    with pytest.raises(TypeError, match=re.escape(told)):
        pallascope.trace(kernels.add_one, X, block=block)


@pytest.mark.parametrize("options", [dict(max_steps=1.5), dict(max_steps="1"), dict(call="1")])
def test_counts_that_are_no_integers(options):
    ((name, value),) = options.items()
    told = f"trace takes an integer for {name}=, not a value of type {type(value).__name__}: give"
    with pytest.raises(TypeError, match=told):
        pallascope.trace(kernels.add_one, X, **options)


def test_max_steps_truncates_and_says_so():
    program = pallascope.trace(lambda x: kernels.specialized(x, 2, 0), X, max_steps=3)
    assert program.truncated
    assert "TRUNCATED" in str(program).splitlines()[0]
    assert max(op.step[0] for op in program.ops if op.step) == 2
    whole = pallascope.trace(lambda x: kernels.specialized(x, 2, 0), X, max_steps=4)
    assert not whole.truncated
    for cut, all_ops in zip(program.threads, whole.threads):
        assert cut == all_ops[: len(cut)]
    with pytest.raises(ValueError, match="max_steps=0 is less than 1: no step would be traced"):
        pallascope.trace(kernels.add_one, X, max_steps=0)


def test_json_round_trip():
    program = pallascope.trace(lambda x: kernels.specialized(x, 2, 1, 2), X)
    assert Program.from_json(program.to_json()) == program


def test_transforms_and_predicates():
    def kernel(x, o, smem):
        smem.at[1:3].at[1, 4:12][2:4] = jnp.zeros((2, 64), jnp.float16)
        plgpu.copy_smem_to_gmem(smem.at[3, 0:8], o.at[0:8], predicate=False)
        o[0:8] = smem.at[2].transpose((1, 0)).at[0:8][...]
        plgpu.copy_smem_to_gmem(smem.at[0, 0:8, 0:16], o.at[8:16, 0:16], commit_group=False)
        o[0, 0] += smem[3, 1, 2]

    scratch = [plgpu.SMEM((4, 64, 64), jnp.float16)]
    program = pallascope.trace(kernels.of(kernel, scratch_types=scratch), X)
    assert words(program) == [
        "write writes smem[2, 6:8, 0:64]",
        "skip reads smem[3, 0:8, 0:64]",
        "commit_group",
        "read reads smem[2, 0:64, 0:8]",
        "write writes o[0:8, 0:64]",
        "store reads smem[0, 0:8, 0:16] writes o[8:16, 0:16]",
        "read reads o[0, 0]",
        "read reads smem[3, 1, 2]",
        "write writes o[0, 0]",
    ]


def test_loops_bounded_by_a_concrete_argument():
    def kernel(x, count, o):
        def body(i, last):
            o[i] = x[last]
            return i

        lax.fori_loop(0, count[1], body, 5)

    program = pallascope.trace(kernels.of(kernel), X, np.array([9, 2], np.int32))
    assert [op.step for op in program.threads[0] if op.kind == "write"] == [(0,), (1,)]
    assert words(program)[-2:] == [
        "read reads x[0, 0:64] step 1",
        "write writes o[1, 0:64] step 1",
    ]


ADVICE = (
    " depends on what a tensor holds or a barrier answers, which is not known without running: let"
    " it depend on program ids, loop counters, shapes or a concrete integer argument of up to"
    " 16,777,216 elements."
)


def test_flow_that_depends_on_tensors_is_refused_with_its_line():
    def loop(x, o):
        lax.while_loop(lambda i: i < x[0], lambda i: i + 1, 0)

    def barrier(x, o, smem, barriers):
        plgpu.barrier_arrive(barriers.at[x[0]])

    def predicate(x, o, smem):
        plgpu.copy_smem_to_gmem(smem, o.at[0:8], predicate=x[0, 0] > 0)

    line = r"tests/pallascope/tracing/test_trace\.py:\d+: "
    integers, scratch = like(64, dtype=jnp.int32), [plgpu.SMEM((8, 64), jnp.float16)]
    for what, text in {
        "The end of a loop": refused(loop, integers),
        "The index of a barrier": refused(
            barrier, integers, scratch_types=[*scratch, plgpu.Barrier(num_barriers=2)]
        ),
        "The predicate of a copy or an arrival": refused(predicate, scratch_types=scratch),
    }.items():
        assert re.fullmatch(line + re.escape(what + ADVICE), text), text


def test_an_index_that_depends_on_tensors_leaves_its_region_unplaced():
    def kernel(x, table, o, smem, loaded):
        row = table[0]
        plgpu.copy_gmem_to_smem(x.at[pl.ds(row, 8)], smem, loaded)
        plgpu.barrier_wait(loaded)
        o[pl.ds(row, 8)] = smem[...]

    made = kernels.of(kernel, scratch_types=[plgpu.SMEM((8, 64), jnp.float16), plgpu.Barrier()])
    program = pallascope.trace(made, X, like(4, dtype=jnp.int32))
    load = next(op for op in program.threads[0] if op.kind == "load")
    write = program.threads[0][-2]
    assert (load.reads[0].box, load.reads[0].is_placed) == (((0, 256), (0, 64)), False)
    assert (write.kind, write.writes[0].is_placed) == ("write", False)
    report = pallascope.check(program)
    (note,) = report.notes  # nothing writes `x`, so it does not matter what of it is read
    assert report.ok and note.endswith(
        "where this accesses `o` depends on what a tensor holds, 1 time: it was taken to be within"
        " the array, and compared only with accesses of all that it may reach."
    )


def test_semaphores_are_traced():
    def kernel(x, o, semaphore):
        shared = pl.get_global(plgpu.SemaphoreType.REGULAR((2,)))
        pl.semaphore_signal(semaphore, 2)
        plgpu.semaphore_wait(semaphore, 2)
        pl.semaphore_signal(shared.at[1])
        o[0] = x[0]

    made = kernels.of(kernel, scratch_types=[plgpu.SemaphoreType.REGULAR])
    program = pallascope.trace(made, X)
    assert [program.describe(replace(op, line=None)) for op in program.threads[0][1:4]] == [
        "signal 2 on semaphore[0] #0",
        "await 2 on semaphore[0] #0",
        "signal 1 on semaphore.0[1] #0",
    ]
    assert [barrier.type for barrier in program.barriers] == ["semaphore"] * 2
    assert pallascope.check(program).ok
    assert Program.from_json(program.to_json()) == program


def test_accumulators_may_be_written():
    def kernel(a, o, smem):
        def scope(acc):
            acc[...] = jnp.ones((64, 64), jnp.float32)
            plgpu.wgmma(acc, smem, smem)
            o[0:64] = acc[...].astype(jnp.float16)

        smem[...] = a[0:64]
        plgpu.commit_smem()
        pl.run_scoped(scope, plgpu.ACC((64, 64), jnp.float32))

    tile = plgpu.SMEM((64, 64), jnp.float16, transforms=kernels.TRANSFORMS)
    program = pallascope.trace(kernels.of(kernel, scratch_types=[tile]), X)
    assert "acc_write" in [op.kind for op in program.threads[0]]
    assert pallascope.check(program).ok


def test_an_empty_ref_is_an_output():
    def function(x):
        def kernel(x, out):
            out[...] = x[...]

        made = jax.empty_ref(jax.typeof(jnp.zeros((256, 64), jnp.float16)))
        plgpu.kernel(kernel, out_type=())(x, made)
        return jax.ref.freeze(made)

    program = pallascope.trace(function, X)
    assert [(b.name, b.role) for b in program.buffers] == [("x", "in"), ("out", "out")]


def test_an_unknown_effect_is_named():
    def kernel(x, o):
        jax.debug.callback(lambda: None)

    text = refused(kernel)
    line = r"tests/pallascope/tracing/test_trace\.py:\d+: "
    assert re.match(line + "the primitive 'debug_callback' has", text)
    assert text.endswith("ops would be missing: take it out of what is traced.")


def test_what_is_no_kernel():
    with pytest.raises(ValueError, match=r"calls 0 .* kernels, but .* one: pass a function that"):
        pallascope.trace(lambda x: x + 1, X)
    with pytest.raises(TypeError, match=r"trace takes a function, not a value of type Sha.*: give"):
        pallascope.trace(X)


def test_arguments_that_are_missing():
    expected = r"given no arguments \(it takes a, b, .*\), and without them it fails: .*'a' and 'b'"
    with pytest.raises(ValueError, match=expected):
        pallascope.trace(kernels.matmul)
    with pytest.raises(ValueError, match=r"was given no arguments .* fails: .*Give arrays or jax"):
        pallascope.trace(kernels.ring_by_hand(1))


def test_one_of_several_kernels():
    def call(x):
        return kernels.add_one(kernels.of(lambda x, o: plgpu.commit_smem())(x))

    with pytest.raises(ValueError, match=r"calls 2 .*: say which with call=0 to call=1\."):
        pallascope.trace(call, X)
    with pytest.raises(ValueError, match="one, and call=2 is not one of them: say which"):
        pallascope.trace(call, X, call=2)
    assert words(pallascope.trace(call, X, call=0)) == ["fence"]
    assert len(words(pallascope.trace(call, X, call=1))) == 9


@pytest.mark.parametrize(
    ("params", "which"),
    [
        (None, "without compiler_params, which is Triton's on a GPU,"),
        (triton.CompilerParams(), "with compiler_params for Triton"),
        (pltpu.CompilerParams(), "with compiler_params for a TPU"),
        (plgpu.CompilerParams(), "with compiler_params for Mosaic GPU"),
    ],
)
def test_a_pallas_call_is_refused(params, which):
    """With the line of the call, or of the kernel if it is called from nowhere."""
    kernel = lambda x, o: None
    call = pl.pallas_call(kernel, out_shape=X, compiler_params=params)
    caller = lambda x: call(x)
    for function, where in ((call, kernel), (caller, caller)):
        line = f"tests/pallascope/tracing/test_trace.py:{where.__code__.co_firstlineno}"
        with pytest.raises(NotImplementedError) as error:
            pallascope.trace(function, X)
        told = f"{line}: a pl.pallas_call {which} is not traced, since the JAX that is installed"
        assert str(error.value).startswith(told)
        assert str(error.value).endswith("expected is a kernel that was made by plgpu.kernel.")


def test_jax_compiles_no_pallas_call_by_mosaic_gpu():
    """The day it does, `trace` has to follow."""
    call = pl.pallas_call(lambda x, o: None, out_shape=X, compiler_params=plgpu.CompilerParams())
    with pytest.raises(AssertionError):
        jax.jit(call).trace(X).lower(lowering_platforms=("cuda",))


def test_what_is_not_for_one_cluster_is_refused():
    line = r"tests/pallascope/tracing/test_trace\.py:\d+: "

    def in_registers(x, o, regs):
        pass

    def earlier(x, o, smem):
        plgpu.copy_gmem_to_smem(x.at[0:8], smem)

    def other_device(x, o):
        plgpu.remote_ref(x, {"device": 1})[0]

    smem = plgpu.SMEM((8, 64), jnp.float16)
    for text, expected in {
        refused(in_registers, scratch_types=[plgpu.REGS((8, 64), jnp.float32)]): "'regs' is .*, in"
        " memory that no kernel of Mosaic GPU allocates, so no op on it could be checked: allocate"
        " it in SMEM, GMEM or as an accumulator.",
        refused(earlier, scratch_types=[smem]): line
        + "the primitive 'copy_gmem_to_smem' is for copies without a barrier, as only GPUs before"
        " Hopper make them, and the kernel is traced for Hopper or a later GPU: give the copy a"
        r' barrier and wait for that, or trace the kernel with pipelib.target\("8.0"\).',
        refused(lambda x, o: plgpu.wait_gmem_to_smem(0)): line
        + "the primitive 'wait_gmem_to_smem' is for copies without a barrier, as only GPUs .*",
        refused(other_device): line + r"this access is to the memory of another device, .*",
    }.items():
        assert re.fullmatch(expected, text), text


def test_accesses_of_other_kinds():
    @jax.custom_vjp
    def doubled(x):
        return x + x

    doubled.defvjp(lambda x: (x + x, None), lambda _, dx: (dx + dx,))

    def kernel(x, o, smem):
        o[0] = doubled(plgpu.load(smem.at[1]))
        plgpu.atomic_add(o.at[2], x[2])
        plgpu.griddepcontrol_wait()
        pl.delay(10)
        pl.debug_print("here")

    smem = plgpu.SMEM((8, 64), jnp.float16)
    program = pallascope.trace(kernels.of(kernel, scratch_types=[smem]), X)
    assert words(program) == [
        "read reads smem[1, 0:64]",
        "compute 0",
        "write writes o[0, 0:64]",
        "read reads x[2, 0:64]",
        "write reads o[2, 0:64] writes o[2, 0:64] (atomic add)",
        "grid_wait",
        "opaque (delay)",
        "opaque (debug_print)",
    ]


def test_products_in_registers():
    def kernel(a, b, o):
        zero = plgpu.layout_cast(jnp.zeros((64, 8), jnp.float32), plgpu.Layout.WGMMA)
        o[...] = plgpu.mma(zero, a[...], b[...])

    out = like(64, 8, dtype=jnp.float32)
    program = pallascope.trace(kernels.of(kernel, out), like(64, 16), like(16, 8))
    (mma,) = [op for op in program.threads[0] if op.kind == "opaque"]
    assert (mma.function, mma.flops) == ("mma", 2 * 64 * 16 * 8)


def test_threads_meet_where_they_share_a_scope():
    def kernel(x, o, smem):
        pl.run_scoped(lambda more: None, plgpu.SMEM((8, 64), jnp.float16), collective_axes="wg")

        @pl.when(lax.axis_index("wg") == 0)
        def _():
            pl.run_scoped(lambda acc: None, plgpu.ACC((64, 64), jnp.float32))

    scratch, threads = [plgpu.SMEM((8, 64), jnp.float16)], dict(num_threads=2, thread_name="wg")
    program = pallascope.trace(kernels.of(kernel, scratch_types=scratch, **threads), X)
    first, second = (
        [(op.kind, op.scope_id, op.shared) for op in ops if op.kind.startswith("scope")]
        for ops in program.threads
    )
    shared = [
        ("scope_begin", 0, True),
        ("scope_begin", 1, True),
        ("scope_end", 1, True),
        ("scope_end", 0, True),
    ]
    assert second == shared
    assert [op for op in first if op[2]] == shared
    assert [op for op in first if not op[2]] == [("scope_begin", 2, False), ("scope_end", 2, False)]
    alone = pallascope.trace(kernels.of(lambda x, o, s: None, scratch_types=scratch), X)
    assert [op.shared for op in alone.threads[0]] == [False, False]


def test_a_scope_that_is_entered_again_has_new_memory():
    def kernel(x, o):
        @pl.loop(0, 2)
        def _(i):
            def use(smem):
                smem[...] = x[0:8]

            pl.run_scoped(use, smem=plgpu.SMEM((8, 64), jnp.float16))

    program = pallascope.trace(kernels.of(kernel), X)
    used = [op.writes[0].buffer for op in program.threads[0] if op.kind == "write"]
    assert len(set(used)) == 2
    assert program.smem_bytes == 1024


def test_what_else_a_kernel_may_do():
    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
    def magic(ctx, smem):
        raise AssertionError("never run")

    def kernel(x, o, smem, barrier):
        plgpu.async_prefetch(x.at[0:64])
        magic(smem)
        plgpu.barrier_test(barrier.at[1])
        plgpu.barrier_arrive(barrier.at[1])
        plgpu.set_max_registers(40, action="decrease")

        @plgpu.nd_loop((2, 3), collective_axes=())
        def _(loop):
            i, j = loop.index
            with jax.named_scope("inner"):
                o[i, j] = jnp.float16(0)

        def count(total):
            total[...] += lax.axis_size("wg") + 3

        rows = pl.run_state(count)(jnp.int32(4))
        o[rows] = jax.nn.relu(smem[0])

    scratch = [plgpu.SMEM((8, 64), jnp.float16), plgpu.Barrier(num_barriers=2)]
    call = kernels.of(kernel, scratch_types=scratch, num_threads=2, thread_name="wg")
    program = pallascope.trace(call, X)
    assert len(program.threads) == 2
    for thread in range(2):
        lines = words(program, thread)
        assert lines[:5] == [
            "prefetch reads x[0:64, 0:64]",
            "opaque reads smem[0:8, 0:64] writes smem[0:8, 0:64] (magic)",
            "test on barrier[1] #0",
            "arrive on barrier[1] #0",
            "registers 40 (decrease)",
        ]
        assert lines[5:11] == [
            f"write writes o[{i}, {j}] step {3 * i + j} in inner"
            for i in range(2)
            for j in range(3)
        ]
        assert lines[11:] == [
            "read reads smem[0, 0:64]",
            "compute 0",
            "write writes o[9, 0:64]",
        ]
    assert program.registers == (40, 40)


# Regions that are no boxes.


def halves(take):
    """Two threads that write what `take` selects for each, and one that stores all."""

    def kernel(x, o, o_smem, written):
        thread = lax.axis_index("t")
        take(o_smem, thread)[...] = take(x, thread)[...]
        plgpu.commit_smem()
        plgpu.barrier_arrive(written)
        plgpu.barrier_wait(written)

        @pl.when(thread == 0)
        def _():
            plgpu.copy_smem_to_gmem(o_smem, o)
            plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier(num_arrivals=2)]
    threads = dict(num_threads=2, thread_name="t")
    made = kernels.of(kernel, like(64, 64), scratch_types=scratch, **threads)
    return pallascope.check(pallascope.trace(made, like(64, 64)))


@pytest.mark.parametrize(
    "take",
    [
        pytest.param(lambda ref, t: ref.at[pl.ds(t * 32, 32)], id="rows"),
        pytest.param(lambda ref, t: ref.at[:, pl.ds(t * 32, 32)], id="columns"),
        pytest.param(lambda ref, t: ref.reshape(4096).at[pl.ds(t * 2048, 2048)], id="flat"),
        pytest.param(lambda ref, t: ref.bitcast(jnp.int16).at[pl.ds(t * 32, 32)], id="bits"),
        pytest.param(lambda ref, t: ref.transpose((1, 0)).at[pl.ds(t * 32, 32)], id="transposed"),
        pytest.param(lambda ref, t: ref.at[pl.ds(t, 32, 2)], id="every other row"),
        pytest.param(lambda ref, t: ref.reshape(32, 128).at[:, pl.ds(t * 64, 64)], id="reshaped"),
    ],
)
def test_halves_are_told_apart(take):
    assert halves(take).ok


def test_a_finding_says_if_a_region_was_rounded_up():
    """Every other column is more boxes than are told apart."""
    found = halves(lambda ref, t: ref.reshape(2048, 2).at[:, pl.ds(t, 1)])
    race = next(finding for finding in found if finding.kind == "race")
    assert race.cause.endswith(
        " It may be false: what is accessed is no box, and was rounded up to `o_smem[0:64, 0:64]`."
    )


def test_two_that_take_the_same_rows_race_though_they_leave_out_others():
    race = next(iter(halves(lambda ref, t: ref.at[pl.ds(0, 32, 2)])))
    assert race.kind == "race"
    assert "may be false" not in race.cause
    assert [region.box[0][0] for region in race.ops[0].writes] == [*range(0, 64, 2)]


WITH_GRADIENT = """
import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu


@jax.custom_vjp
def doubled(x):
    return 2 * x


def backward(_, gradient):
    def kernel(g, o):
        o[...] = g[...] + g[...]

    return (plgpu.kernel(kernel, out_type=gradient)(gradient),)


doubled.defvjp(lambda x: (2 * x, None), backward)
gradient = jax.grad(lambda x: doubled(x).sum())


def gradient_by_name(x):
    return jax.grad(lambda x: doubled(x).sum())(x)
"""


def test_a_gradient_s_kernel_is_where_it_was_written(tmp_path, monkeypatch):
    """JAX notes of its equations where the gradient was asked for: elsewhere, or in its file."""
    (tmp_path / "with_gradient.py").write_text(WITH_GRADIENT, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import with_gradient

    elsewhere = jax.grad(lambda x: with_gradient.doubled(x).sum())
    for gradient in (elsewhere, with_gradient.gradient, with_gradient.gradient_by_name):
        program = pallascope.trace(gradient, like(128, dtype=jnp.float32))
        lines = {op.line.rpartition("/")[2] for op in program.threads[0] if op.line}
        assert lines and lines <= {"with_gradient.py:13", "with_gradient.py:14"}, lines


@pytest.mark.parametrize("on", [True, False])
def test_a_load_with_a_predicate(on):
    """Off, it still arrives until JAX 0.12; then it does nothing."""

    def kernel(x, o, smem, loaded):
        plgpu.copy_gmem_to_smem(x.at[0:8], smem, loaded, predicate=on)
        plgpu.barrier_wait(loaded)

    made = kernels.of(kernel, scratch_types=[plgpu.SMEM((8, 64), jnp.float16), plgpu.Barrier()])
    program = pallascope.trace(made, X)
    arrives = "load" if on else "arrive" if jax.__version_info__ < (0, 12) else None
    kinds = [op.kind for op in program.threads[0] if op.barrier is not None]
    assert kinds == [*([arrives] if arrives else []), "wait"]
    assert pallascope.check(program).ok == (arrives is not None)
