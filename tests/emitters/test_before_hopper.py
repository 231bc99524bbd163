"""`emit_pipeline` for compute capability 8.0: results, order, lowering, machine code and errors.

Pallas's interpreter has no copies without a barrier. Here it gets copies that have landed when they
return, so it says whether the results are right, but not whether the waits are. `pallascope.check`
says that, for every schedule.
"""

import dataclasses

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
from pallascope.program import Kind
from pipelib import targets
from tests.emitters import before_hopper
from tests.emitters.before_hopper import CASES, ROWS, spec
from tests.emitters.contract import interpreted

EARLIER = "8.0", "8.6", "8.9"
LANE, WARPGROUP = plgpu.LoweringSemantics.Lane, plgpu.LoweringSemantics.Warpgroup
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def avals(case):
    return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in case.arguments]


def traced(case):
    """The program of a case, for compute capability 8.0; its integers are known."""
    arguments = [
        x if x.dtype == np.int32 else jax.ShapeDtypeStruct(x.shape, x.dtype) for x in case.arguments
    ]
    with pipelib.target("8.0"):
        return pallascope.trace(case.kernel(), *arguments)


def exported(case, compute_capability="8.0", **options):
    """A case lowered for a GPU that need not be there."""
    with pipelib.target(compute_capability):
        kernel = jax.jit(case.kernel(**options))
        return jax.export.export(kernel, platforms=["cuda"])(*avals(case))


# Results.


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.is_interpreted], ids=lambda case: case.name
)
def test_results(case, monkeypatch):
    def copy(source, target, *, oob_mode):
        assert oob_mode is plgpu.OOBFillMode.PROMISE_IN_BOUNDS
        target[...] = source[...]

    monkeypatch.setattr(targets, "capability", lambda: (8, 0))
    monkeypatch.setattr(plgpu, "copy_gmem_to_smem", copy)
    monkeypatch.setattr(plgpu, "wait_gmem_to_smem", lambda _: None)
    with interpreted():
        result = case.kernel()(*case.arguments)
    np.testing.assert_array_equal(np.asarray(result), case.expected)


@pytest.mark.gpu
@every_case
def test_results_on_a_hopper_gpu(case):
    """Which has `cp.async` and `mma`, too: the kernel is lowered for an A100."""
    result = exported(case).call(*map(jnp.asarray, case.arguments))
    np.testing.assert_array_equal(np.asarray(result), case.expected)


# Order.


@every_case
def test_no_schedule_has_a_fault(case):
    program = traced(case)
    report = pallascope.check(program)
    assert report.ok and not report.findings, report
    kinds = {op.kind for op in program.threads[0]}
    assert kinds.isdisjoint({Kind.LOAD, Kind.STORE, Kind.WAIT, Kind.FENCE, Kind.COMMIT_GROUP})


def waits(ops):
    """Each wait: its index, and how many copies began after the last one that its step reads."""
    begun, last = 0, {}
    for index, op in enumerate(ops):
        if op.kind is Kind.CP_ASYNC:
            begun += 1
            last[place(op.writes[0])] = begun
        elif op.kind is Kind.WAIT_CP_ASYNC:
            mine = [last[each] for each in read_after(ops, index) if each in last]
            yield index, begun, begun - max(mine)


def place(region):
    """A buffer, and a slot of it."""
    return region.buffer, region.box[0][0]


def read_after(ops, index):
    """What is read between a wait and the next one."""
    for op in ops[index + 1 :]:
        if op.kind is Kind.WAIT_CP_ASYNC:
            return
        yield from map(place, op.reads)


@every_case
def test_each_wait_leaves_what_began_after_its_step(case):
    """Never more. Nor less, but before bodies load by delays what the first steps left out."""
    ops = traced(case).threads[0]
    for index, _, later in waits(ops):
        assert ops[index].pending <= later
        if ops[index].step[0] >= 4 or "delay" not in case.name:
            assert ops[index].pending == later


@every_case
def test_each_wait_removed_is_found(case):
    program = traced(case)
    (ops,), before = program.threads, None
    for index, begun, later in waits(ops):
        rest = dataclasses.replace(program, threads=(ops[:index] + ops[index + 1 :],))
        found = {finding.kind for finding in pallascope.check(rest).findings}
        is_covered = before is not None and begun - before <= later
        assert ("race" in found) is not is_covered
        before = begun - ops[index].pending  # so many copies have landed


@pytest.mark.parametrize("delays", [(1,), (0, 1)])
def test_upstream_leaves_a_delayed_input_in_flight(delays):
    """Why N is counted here. The second body reads a slot that the first wait has not covered."""
    case = before_hopper.with_delays(delays, 2)
    mine = traced(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelib, "emit_pipeline", upstream, raising=False)
        case = before_hopper.with_delays(delays, 2)
        with pipelib.target("8.0"):
            theirs = pallascope.trace(case.kernel(), *avals(case))
    assert pallascope.check(mine).ok
    assert {finding.kind for finding in pallascope.check(theirs).findings} == {"race"}


def upstream(body, *, out_specs, **options):
    """JAX's own, which has no outputs there: the body gets the array."""

    def pipeline(*refs):
        *inputs, out = refs

        def body_of_inputs(indices, *smem):
            body(indices, *smem, out.at[pl.ds(indices[0] * ROWS, ROWS)])

        plgpu.emit_pipeline(body_of_inputs, **options)(*inputs)

    return pipeline


# Lowering and machine code.


@pytest.mark.parametrize("semantics", [LANE, WARPGROUP], ids=["lane", "warpgroup"])
@every_case
def test_jax_lowers_it(case, semantics):
    params = plgpu.CompilerParams(lowering_semantics=semantics)
    assert exported(case, compiler_params=params).platforms == ("cuda",)


@pytest.mark.both_jax
@pytest.mark.parametrize("compute_capability", EARLIER)
def test_jax_lowers_it_for_each_gpu(compute_capability):
    assert exported(CASES[0], compute_capability).platforms == ("cuda",)


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["columns too", "an output that steps build up", "a ragged grid"])
def test_machine_code_of_pipelines(name):
    (case,) = (case for case in CASES if case.name == name)
    with pipelib.target("8.0"):
        found = pallascope.compiled(case.kernel(), *avals(case))
    assert ".target sm_80\n" in found.ptx and "LDGSTS" in found.sass and found.ok


@pytest.mark.compiler
@pytest.mark.parametrize("compute_capability", EARLIER)
def test_machine_code_of_a_product(compute_capability):
    case = before_hopper.product()
    with pipelib.target(compute_capability):
        found = pallascope.compiled(case.kernel(), *avals(case))
    number = compute_capability.replace(".", "")
    assert f".target sm_{number}\n" in found.ptx and f".target\tsm_{number}\n" in found.sass
    assert "cp.async.wait_group" in found.ptx and "cp.async.bulk" not in found.ptx
    assert "LDGSTS" in found.sass and "HMMA" in found.sass and found.ok


# Errors.


def refused(*shapes, dtype=np.float32, compute_capability="8.0", out=None, **options):
    """What is told of a pipeline over these arrays: the type of the error, and its text."""
    operands = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]

    def kernel(*refs):
        refs = refs if out else refs[:-1]
        pipelib.emit_pipeline(lambda *_: None, **{"grid": (2,), **options})(*refs)

    result = jax.ShapeDtypeStruct(out or (128,), dtype)
    with pytest.raises(Exception) as error, pipelib.target(compute_capability):
        jax.eval_shape(plgpu.kernel(kernel, out_type=result), *operands)
    return type(error.value), str(error.value)


def test_a_block_that_reaches_beyond_its_array():
    block = spec((16, 128), lambda i: (i, 0))
    told = (
        "axis 0 of the array has 40 elements = 2 x 16 + 8, so the last block reaches beyond it,"
        " where no copy stops before Hopper (no TMA): pad the array to a multiple of 16, or promise"
        " oob_fill_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS in a plgpu.BlockSpec."
    )
    assert refused((40, 128), in_specs=[block]) == (ValueError, f"in_specs[0]: {told}")
    found = refused((32, 128), in_specs=[block], out_specs=[block], out=(40, 128))
    assert found == (ValueError, f"out_specs[0]: {told}")
    element = spec((pl.Element(16), 128), lambda i: (i, 0))
    assert refused((32, 128), in_specs=[element]) == (
        ValueError,
        "in_specs[0]: blocks that begin at any element (pl.Element) may reach beyond the array,"
        " where no copy stops before Hopper (no TMA): count whole blocks, or promise"
        " oob_fill_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS in a plgpu.BlockSpec.",
    )


def test_a_promise_is_taken():
    promise = dict(oob_fill_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)
    block = spec((16, 128), lambda i: (i, 0), **promise)

    def kernel(x, o):
        def body(indices, x_smem):
            o[pl.ds(indices[0] * ROWS, ROWS)] = x_smem[...]

        pipelib.emit_pipeline(body, grid=(2,), in_specs=[block])(x)

    x, out = (jax.ShapeDtypeStruct((rows, 128), jnp.float32) for rows in (40, 32))
    with pipelib.target("8.0"):
        assert pallascope.check(pallascope.trace(plgpu.kernel(kernel, out_type=out), x)).ok


@pytest.mark.parametrize(
    ("shape", "block", "dtype", "told"),
    [
        ((32, 128), (16, 64), np.float32, "float32[32, 128]: 64 elements x 32 bits = 256 B"),
        ((32, 256), (16, 128), np.float16, "float16[32, 256]: 128 elements x 16 bits = 256 B"),
        ((24, 16), (12, 16), np.float32, "float32[24, 16]: 192 elements x 32 bits = 768 B"),
    ],
)
def test_runs_that_lanes_cannot_copy(shape, block, dtype, told):
    array, run = told.split(": ")
    found = refused(shape, in_specs=[spec(block, lambda i: (i, 0))], dtype=dtype)
    assert found == (
        ValueError,
        f"in_specs[0]: a block of {array} lies in GMEM in runs of {run}, but before Hopper (no TMA)"
        " each of 128 lanes copies at least 4 B, so a run must be a multiple of 512 B and of 128"
        " elements: take a wider block, or tiles (transforms= of plgpu.BlockSpec).",
    )


@pytest.mark.parametrize(
    ("compute_capability", "limit"), [("8.0", "166,912"), ("8.6", "101,376"), ("8.9", "101,376")]
)
def test_too_much_memory(compute_capability, limit):
    block = spec((128, 128), lambda i: (i, 0))
    options = dict(in_specs=[block] * 3, max_concurrent_steps=2)
    kind, text = refused(
        *[(256, 128)] * 3, dtype=np.float32, compute_capability=compute_capability, **options
    )
    assert kind is ValueError
    assert f"= 393,216 B of shared memory, but a block has {limit} B" in text


def test_gpus_that_have_no_cp_async():
    block = spec((16, 128), lambda i: (i, 0))
    assert refused((32, 128), in_specs=[block], compute_capability="7.5") == (
        NotImplementedError,
        "The kernel is traced for a GPU of compute capability 7.5, which is less than 8.0, the"
        " first with cp.async: nothing there copies while a kernel computes, so no pipeline could"
        " overlap. Take an A100, an L4 or a later GPU.",
    )


def test_warp_specialization_needs_hopper():
    block = spec((16, 128), lambda i: (i, 0))

    def kernel(x, _):
        pipelib.emit_pipeline_warp_specialized(
            lambda *_: None,
            grid=(2,),
            in_specs=[block],
            memory_registers=40,
            wg_axis="wg",
            num_compute_wgs=1,
        )(x)

    x = jax.ShapeDtypeStruct((32, 128), jnp.float32)
    told = (
        "emit_pipeline_warp_specialized is traced for compute capability 8.9, which has no TMA:"
        " before Hopper .9.0. a load completes no barrier, so no other thread would know that it"
        " has landed. Use emit_pipeline, whose one thread loads and computes."
    )
    with pipelib.target("8.9"), pytest.raises(NotImplementedError, match=told):
        jax.eval_shape(plgpu.kernel(kernel, out_type=x, num_threads=2, thread_name="wg"), x)
