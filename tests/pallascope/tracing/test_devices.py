"""Several devices, or all blocks of a grid, in one program: traced, and checked together."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas.ops.gpu import collective_matmul_mgpu, hopper_matmul_mgpu
from jax.sharding import PartitionSpec as P

from pallascope import H100, check, simulate, trace
from tests.pallascope.constructs.devices import (
    ROW,
    exchanged,
    in_turns,
    on_devices,
    summed_up,
    taken_off,
    turns,
)
from tests.pallascope.strategies import with_thread


def kinds(program):
    return {str(finding.kind) for finding in check(program)}


def test_two_devices_in_one_program():
    program = exchanged()
    assert (program.devices, program.blocks, program.is_whole) == ((2,), 2, True)
    assert [b.name for b in program.buffers if b.space == "gmem"] == ["x@0", "x@1", "o@0", "o@1"]
    of = lambda kind: [op for op in program.ops if op.kind == kind]
    assert [program.index_of(op.writes[0]) for op in of("store")] == [
        "o@1[0, 0:128]",
        "o@0[0, 0:128]",
    ]
    assert [program.barriers[op.barrier].name for op in of("signal")] == [
        "semaphore.0@1",
        "semaphore.0@0",
    ]
    assert [program.barriers[op.barrier].name for op in of("await")] == [
        "semaphore.0@0",
        "semaphore.0@1",
    ]
    assert [op.keeps for op in of("await")] == [False, False]


@pytest.mark.parametrize("keeps", [False, True])
def test_an_exchange_is_clean_and_each_synchronisation_that_is_taken_away_is_found(keeps):
    assert not check(exchanged(keeps=keeps))
    assert kinds(exchanged(keeps=keeps, waits=False)) == {"race"}
    assert kinds(exchanged(keeps=keeps, signals=False)) == {"deadlock"}
    assert "race" in kinds(exchanged(keeps=keeps, finishes=False))


def test_what_is_said_of_devices():
    report = check(exchanged(signals=False))
    (deadlock,) = report
    assert (
        "device 0, thread 0 waits until signals of `semaphore.0@0` add up to 1, and they come"
        in (deadlock.cause)
    )
    assert "come to 0; no thread makes another" in deadlock.cause
    assert report.verdict.startswith("exchange: 1 finding in all of grid () on 2 devices (")
    race = next(f for f in check(exchanged(finishes=False)) if f.kind == "race")
    assert "the store of device 0, thread 0" in race.cause
    assert race.interleaving is not None


def test_a_device_by_its_index_on_each_axis():
    def kernel(x, o, smem, device):
        smem[...] = x[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, plgpu.remote_ref(o, device()))
        plgpu.wait_smem_to_gmem(0)

    x, y = functools.partial(lax.axis_index, "x"), functools.partial(lax.axis_index, "y")
    for device in (
        lambda: {"x": x(), "y": 1 - y()},
        lambda: {"y": 1 - y()},
        lambda: (x(), 1 - y()),
    ):
        call = plgpu.kernel(
            functools.partial(kernel, device=device),
            out_type=ROW,
            scratch_types=[plgpu.SMEM((128,), jnp.float32)],
        )
        arg = jax.ShapeDtypeStruct((512,), jnp.float32)
        program = trace(on_devices(call, 2, 2, specs=P(("x", "y"))), arg, whole_grid=True)
        stores = [op for op in program.ops if op.kind == "store"]
        names = [program.buffers[op.writes[0].buffer].name for op in stores]
        assert names == ["o@1", "o@0", "o@3", "o@2"]


def test_all_devices_at_once():
    program = summed_up()
    store = next(op for op in program.threads[1] if len(op.writes) == 2)
    assert [program.index_of(region) for region in store.writes] == [
        "out0@0[64:128]",
        "out0@1[64:128]",
    ]
    load = next(op for op in program.threads[1] if len(op.reads) == 2)
    assert [program.index_of(region) for region in load.reads] == [
        "out1@0[64:128]",
        "out1@1[64:128]",
    ]
    assert not check(program)
    assert "race" in kinds(summed_up(waits=False))
    assert "race" in kinds(summed_up(gathers=False))


def test_a_device_that_does_not_exist():
    def kernel(x, o):
        pl.semaphore_signal(pl.get_global(plgpu.SemaphoreType.REGULAR), device_id=2)

    call = on_devices(plgpu.kernel(kernel, out_type=ROW), 2)
    with pytest.raises(
        ValueError, match=r"for the block \(2,\), but the axes x have the sizes \(2,"
    ):
        trace(call, jax.ShapeDtypeStruct((256,), jnp.float32), whole_grid=True)


def test_one_device_of_several():
    """Others may signal, so a wait orders nothing, and nobody waits for ever."""

    def waits(x, o):
        semaphore = pl.get_global(plgpu.SemaphoreType.REGULAR)
        pl.semaphore_signal(semaphore, device_id=1 - lax.axis_index("x"))
        pl.semaphore_wait(semaphore)
        o[...] = x[...]

    def writes(x, o):
        plgpu.remote_ref(o, 1)[...] = x[...]

    arg = jax.ShapeDtypeStruct((256,), jnp.float32)
    program = trace(on_devices(plgpu.kernel(waits, out_type=ROW), 2), arg)
    assert (program.devices, program.blocks, program.is_whole) == ((2,), 1, False)
    report = check(program)
    assert report.ok and report.notes[0].startswith("semaphores order nothing here")
    with pytest.raises(NotImplementedError, match=r"another device, .*: pass whole_grid=True to t"):
        trace(on_devices(plgpu.kernel(writes, out_type=ROW), 2), arg)


def test_blocks_of_a_grid_that_wait_for_each_other():
    program = in_turns()
    assert (program.blocks, program.devices) == (4, ())
    assert not check(program)
    assert "turns: no finding in all of grid (4,) (" in str(check(program))
    assert kinds(in_turns(waits=False)) == {"race"}
    assert kinds(in_turns(amount=2)) == {"deadlock"}
    one = trace(
        lambda x: plgpu.kernel(
            lambda x, o: turns(x, o), out_type=ROW, grid=(4,), grid_names=("i",)
        )(x),
        ROW,
    )
    assert any("semaphores order nothing here" in note for note in check(one).notes)


def test_a_semaphore_that_one_takes_off_when_all_others_have_waited():
    assert not check(taken_off()) and not check(taken_off()).notes
    assert kinds(taken_off(tells=False)) == {"deadlock"}
    report = check(taken_off(waits=False))
    assert {finding.kind for finding in report} == {"race"}
    assert "several wait and take off what they hold: semaphore.0" in report.notes[0]


def test_a_semaphore_that_several_take_from_orders_nothing():
    def kernel(x, o):
        semaphore = pl.get_global(plgpu.SemaphoreType.REGULAR)
        o[lax.axis_index("i")] = x[...]
        pl.semaphore_signal(semaphore, 2)
        pl.semaphore_wait(semaphore)

    out = jax.ShapeDtypeStruct((2, 128), jnp.float32)
    call = plgpu.kernel(kernel, out_type=out, grid=(2,), grid_names=("i",))
    (note,) = check(trace(call, ROW, whole_grid=True)).notes
    assert note == (
        "semaphores order nothing here, since others may signal them, or several wait and take off"
        " what they hold: semaphore.0."
    )


def test_what_does_not_go_together():
    with pytest.raises(ValueError, match="whole_grid=True traces all blocks, and block=1 asks for"):
        call = plgpu.kernel(turns, out_type=ROW, grid=(4,), grid_names=("i",))
        trace(call, ROW, whole_grid=True, block=1)


def test_a_traced_exchange_is_simulated_on_both_devices():
    timeline = simulate(exchanged(), H100)
    ends = {
        name: max(s.stop for s in timeline.spans if s.lane == lane)
        for lane, name in enumerate(timeline.lanes)
        if "thread" in name
    }
    assert ends == {f"device {device} thread 0": timeline.cycles for device in (0, 1)}
    assert simulate(exchanged(signals=False), H100).stuck
    late = H100.changed(nvlink_store_latency_cycles=1e4)
    assert simulate(exchanged(), late).cycles > timeline.cycles + 5e3


# JAX's all-gather and matmul.


def gathered(devices, blocks=2, rows=128):
    """JAX's kernel: each device has `rows` rows of the first operand, and sends them around."""
    config = hopper_matmul_mgpu.TuningConfig(
        tile_m=64, tile_n=64, tile_k=64, max_concurrent_steps=2
    )
    kernel = functools.partial(
        collective_matmul_mgpu.all_gather_lhs_matmul,
        axis_name="x",
        config=config,
        dtype=jnp.float16,
    )
    lhs = jax.ShapeDtypeStruct((devices * rows, 128), jnp.float16)
    rhs = jax.ShapeDtypeStruct((128, devices * 128), jnp.float16)
    call = on_devices(kernel, devices, specs=(P("x", None), P(None, "x")))
    with (
        mock.patch.object(jax, "device_count", lambda: devices),
        mock.patch.object(jax, "local_device_count", lambda: devices),
        mock.patch.object(jax, "devices", lambda: [mock.Mock(core_count=blocks)]),
    ):
        return trace(call, lhs, rhs, whole_grid=True)


@functools.cache
def pair():
    return gathered(2)


def without(program, kind, holds):
    """The program without the ops of a kind for which something holds."""
    for thread, ops in enumerate(program.threads):
        kept = [op for op in ops if op.kind != kind or not holds(op)]
        program = with_thread(program, thread, kept)
    return program


def test_jax_s_collective_matmul_is_clean_on_two_devices():
    assert (pair().devices, pair().blocks) == ((2,), 4)
    report = check(pair())
    assert report.ok and not report.notes, report


@pytest.mark.parametrize(
    ("kind", "holds", "found"),
    [
        ("signal", lambda op: True, {"deadlock"}),
        ("signal", lambda op: op.thread == 0, {"deadlock"}),
        ("await", lambda op: True, {"race", "uninitialized-read"}),
        ("wait_store", lambda op: not op.read_only, {"race"}),
    ],
)
def test_each_synchronisation_of_it_that_is_taken_away_is_found(kind, holds, found):
    """Each of those between devices; those within a block are the product's, which has its own."""
    assert kinds(without(pair(), kind, holds)) & found


def test_on_three_devices_a_fast_block_may_signal_for_a_slow_one():
    """The semaphore counts signals of all steps: a block's second may stand for another's first.

    So a device reads rows that a slow block of its neighbour has not sent yet.
    """
    assert not check(gathered(3, blocks=1, rows=64))
    report = check(gathered(3))
    assert {finding.where for finding in report} == {f"scratch_ref@{device}" for device in range(3)}
    assert all(finding.kind == "race" for finding in report)
    order = report[0].interleaving
    last = [report.program.threads[turn.thread][turn.stop - 1] for turn in order.turns]
    signals = [op for op in last if op.kind == "signal"]
    blocks = [report.program.block_of(op.thread) for op in signals]
    assert max(map(blocks.count, blocks)) == 2  # one block has signalled twice, another not yet


def test_with_several_tiles_a_block_refills_the_last_slot_before_it_was_read():
    """Nobody arrives for a tile's last step: the next tile's load may meet its product or store."""
    report = check(gathered(2, rows=256))
    assert {finding.kind for finding in report} == {"race"}
    readers = {finding.ops[1].kind for finding in report}
    assert readers == {"wgmma", "store"}, report
