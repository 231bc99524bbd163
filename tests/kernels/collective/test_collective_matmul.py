"""`collective_matmul`: interpreted on several devices, checked, compiled, refused; on two GPUs."""

import dataclasses
import functools
import math
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import pallascope
from pipelib.kernels import CollectiveConfig, collective_matmul, matmul
from pipelib.kernels.collective.choosing import default_config
from pipelib.kernels.collective.kernel import Units
from pipelib.kernels.hopper import Gpu, assumed
from tests.kernels.collective.cases import PROGRAMS, SMALL, on_devices
from tests.kernels.collective.on_cpus import environment, multiplier, operands
from tests.kernels.devices import NO_FORWARD_MODE
from tests.kernels.matmul.products import check_close
from tests.pallascope.strategies import with_thread

HALF, BRAIN, FLOAT = jnp.float16, jnp.bfloat16, jnp.float32
ROOT = pathlib.Path(__file__).parents[3]


def traced(devices, config, m, n, k, dtype=BRAIN, **options):
    function, types = on_devices(devices, config, **options)
    return pallascope.trace(function, *types(m, n, k, dtype), whole_grid=True)


def kinds(program):
    return {str(finding.kind) for finding in pallascope.check(program)}


# Interpreted, with race detection.


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_on_several_cpu_devices(devices):
    command = [sys.executable, "-m", "tests.kernels.collective.on_cpus", str(devices)]
    options = dict(cwd=ROOT, env=os.environ | environment(devices), timeout=600)
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "a race"


def test_one_device_is_matmul():
    function, types = on_devices(1)
    args = types(1024, 768, 512)
    collective = str(jax.make_jaxpr(function)(*args))
    assert "mpmd_map" in collective and "semaphore" not in collective
    assert "semaphore" in str(jax.make_jaxpr(on_devices(2)[0])(*on_devices(2)[1](1024, 768, 512)))


# Traced and checked.


@pytest.mark.parametrize("name", PROGRAMS)
def test_semaphores_are_zero_at_the_end(name):
    devices, config, m, n, k, options = PROGRAMS[name]
    program = traced(devices, config, m, n, k, **options)
    held = {}
    for op in program.ops:
        if op.kind == "signal":
            held[op.place] = held.get(op.place, 0) + op.amount
        elif op.kind == "await" and not op.keeps:
            held[op.place] = held.get(op.place, 0) - op.amount
    assert held and set(held.values()) == {0}


def test_units_have_all_of_a_shard_once():
    for m, k, rows in ((264, 576, 32), (128, 2048, 16), (8, 64, 8), (1000, 4096, 64)):
        config = CollectiveConfig(send_rows=rows)
        units = Units.of(config, m, k)
        assert units.rows * units.strips >= m > units.rows * (units.strips - 1)
        assert units.parts * units.pieces * units.columns == k
        rows_of_tiles = -(-m // config.tile_m)
        assert sum(int(units.of_row(row)) for row in range(rows_of_tiles)) == units.total


# Without each of the synchronisations.

#: The ops that are taken away, all of them at once, and what is found then.
WITHOUT = {
    "arrivals that are awaited": (lambda op: op.kind == "await" and op.keeps, {"race"}),
    "signals of arrivals": (lambda op: op.kind == "signal" and op.amount == 1, {"deadlock"}),
    "ends of stores": (lambda op: op.kind == "wait_store" and not op.read_only, {"race"}),
    "reads of stores": (lambda op: op.kind == "wait_store" and op.read_only, {"race"}),
    "loads that are awaited": (lambda op: op.kind == "wait", {"race"}),
    "releases": (lambda op: op.kind == "arrive", {"deadlock"}),
    "commits": (lambda op: op.kind == "fence", {"missing-commit"}),
    "products that are awaited": (lambda op: op.kind == "wgmma_wait", {"race"}),
}


@functools.cache
def pair():
    return traced(2, SMALL, 128, 64, 1024)


@pytest.mark.parametrize("name", WITHOUT)
def test_without_a_kind_of_synchronisation(name):
    taken, found = WITHOUT[name]
    program = pair()
    for thread, ops in enumerate(program.threads):
        program = with_thread(program, thread, [op for op in ops if not taken(op)])
    assert program != pair() and found <= kinds(program)


#: Ops of which one may be missing: what they wait for, or say, comes with another one, or at the
#: end of the kernel, or is not of this call.
HARMLESS = {
    "await": "takes off what the next call must not find",
    "wait": "waits for the last releases",
    "scope_begin": "of an accumulator",
    "wgmma_wait": "is followed by the read of the accumulator",
    "wait_store": "is followed by one that waits for more",
    "commit_group": "is followed by another one of its unit",
}
SYNCHRONISES = {*HARMLESS, "arrive", "signal", "fence", "meet"}


def missed_without_one(program, block):
    """The ops of a block without which, each taken away alone, nothing is found."""
    for thread, ops in enumerate(program.threads):
        for index, op in enumerate(ops if program.block_of(thread) == block else ()):
            if str(op.kind) in SYNCHRONISES:
                edited = with_thread(program, thread, ops[:index] + ops[index + 1 :])
                if not pallascope.check(edited):
                    yield op


def test_each_synchronisation_of_a_sender_that_is_taken_away_is_found():
    """It sends four units of four pieces. A row of tiles has two of them."""
    missed = list(missed_without_one(pair(), 0))
    assert {str(op.kind) for op in missed} == {"wait_store", "commit_group"}
    reads, ends = (
        [op.step for op in missed if op.kind == "wait_store" and op.read_only is read]
        for read in (True, False)
    )
    # Nothing is in flight at first, nothing is loaded at the end.
    assert reads == [(0,), (1,), (14,), (15,)]
    # There is no unit before the first one, and the other unit of its row waits for more.
    assert ends == [(3,), (7,), (15,)]


@pytest.mark.slow
def test_each_synchronisation_of_a_multiplier_that_is_taken_away_is_found():
    missed = list(missed_without_one(pair(), 3))
    assert {str(op.kind) for op in missed} <= HARMLESS.keys(), missed
    waits = [op for op in missed if op.kind == "await"]  # those that take off at the end
    assert [(op.keeps, op.amount) for op in waits] == [(False, 4)] * 2


# Lowered and compiled.


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("devices", "axes"), [(2, ("x",)), (8, ("x",)), ((2, 4), ("data", "model"))]
)
def test_compiles_with_the_loops_of_matmul(devices, axes):
    """Sending takes nothing from products: no spill, and a step has matmul's instructions."""
    function, types = on_devices(devices, axes=axes)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        found = pallascope.compiled(function, *types(2048, 7168, 4096))
        a, b = on_devices(1)[1](2048, 7168, 4096)
        plain = pallascope.compiled(functools.partial(matmul, config=CollectiveConfig()), a, b)
    assert found.kernel == "collective_matmul" and found.ok
    assert found.spill_stores == found.spill_loads == 0 and found.serialized == ()
    product, own = (
        next(loop.instructions for loop in each.loops if loop.instructions["HGMMA"])
        for each in (found, plain)
    )
    assert product["HGMMA"] == own["HGMMA"] == 4 and product["all"] <= own["all"] + 4
    (sending,) = (loop for loop in found.loops if loop.instructions["UTMASTG"])
    assert sending.instructions["UTMALDG"] == 1


# What is refused.


def test_a_result_that_cannot_be_stored():
    function, types = on_devices(2, out_dtype=jnp.int8)
    with pytest.raises(TypeError, match="collective_matmul: out_dtype=int8 is none of float16"):
        jax.eval_shape(function, *types(64, 64, 64))


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_the_result_varies_along_the_axis(devices, check_vma):
    mesh = AbstractMesh((devices,), ("x",), axis_types=(AxisType.Auto,))
    found = []

    def varying(a, b):
        found.append(jax.typeof(out := collective_matmul(a, b, axis_name="x")))
        return out

    specs = dict(in_specs=(P("x", None), P(None, "x")), out_specs=P(None, "x"))
    call = jax.shard_map(varying, mesh=mesh, check_vma=check_vma, **specs)
    jax.eval_shape(call, *on_devices(devices)[1](64, 64, 64))
    assert found[0].manual_axis_type.varying == ({"x"} if check_vma else set())


def test_more_blocks_than_can_run_at_once():
    function, types = on_devices(2, CollectiveConfig(senders=5, blocks=128))
    with pytest.raises(ValueError) as error:
        jax.eval_shape(function, *types(2048, 7168, 64))
    assert str(error.value) == (
        "collective_matmul: senders=5 and blocks=128 are 133, more than the GPU's 132 SMs, which"
        " run one each, so 133 - 132 = 1 would not have begun when others wait for what they send"
        " or multiply: ask for at most 132 together."
    )
    function, types = on_devices(2, CollectiveConfig(senders=132))
    with pytest.raises(ValueError, match="senders=132 and blocks=1 are 133, more than the GPU's"):
        jax.eval_shape(function, *types(2048, 7168, 64))


def test_a_configuration_that_does_not_fit():
    function, types = on_devices(2, CollectiveConfig(slots=5))
    with pytest.raises(ValueError, match=r"staging 2 x 16,384 B \+ barriers 16 x 8 B = 278,656 B"):
        jax.eval_shape(function, *types(128, 256, 64))


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("out_dtype", [HALF, BRAIN, FLOAT])
def test_the_defaults_fit_for_all_dtypes(dtype, out_dtype):
    for columns in (512, 4096):
        config = default_config(4096, columns, 8192, 2, dtype, out_dtype, 132)
        config.check(dtype, out_dtype)
    with pytest.raises(ValueError, match=r"CollectiveConfig: .* of shared memory, but a block has"):
        dataclasses.replace(config, slots=6).check(dtype, out_dtype)


def test_as_many_blocks_send_as_the_transfer_needs():
    """128 of 132 SMs make 896 tiles in as few rounds as all; a longer transfer takes more SMs."""
    layer = default_config(2048, 7168, 4096, 2, BRAIN, BRAIN, 132)
    assert (layer.senders, layer.multipliers(2048, 7168, 2, 132), layer.width) == (4, 128, 8)
    short = default_config(4096, 1024, 8192, 2, BRAIN, BRAIN, 132)
    assert (short.senders, short.tile_n, short.width) == (29, 128, 4)
    alone = default_config(8, 64, 64, 2, BRAIN, BRAIN, 132)
    assert alone.senders >= 1 and alone.multipliers(8, 64, 2, 132) == 2


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_configuration_for_any_shape(devices):
    """It fits, and leaves an SM for each block."""
    random = np.random.default_rng(devices)
    for m, n, k in np.exp2(random.uniform(3, 14, (300, 3))).astype(int):
        m, n, k = int(m), 64 * math.ceil(n / 64), 64 * math.ceil(k / 64)
        config = default_config(m, n, k, devices, BRAIN, BRAIN, 132)
        config.check(BRAIN, BRAIN)
        assert 1 <= config.senders <= 132 - config.multipliers(m, n, devices, 132)


def test_no_forward_mode():
    function, types = on_devices(2)
    traced = jax.jit(lambda *args: jax.jvp(function, args, args)).trace(*types(64, 64, 64))
    with pytest.raises(TypeError, match=re.escape(NO_FORWARD_MODE)):
        traced.lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize(("m", "n", "k"), [(9, 64, 64), (64, 72, 64), (64, 64, 96)])
def test_sizes_that_no_copy_can_address_are_plain_jax_s(m, n, k):
    function, types = on_devices(2)
    shown = str(jax.make_jaxpr(function)(*types(m, n, k)))
    assert "all_gather" in shown and "mpmd_map" not in shown


# On two GPUs or more of one host.


@pytest.fixture
def gpus():
    count = len(jax.devices())
    if count < 2:
        pytest.skip(f"needs two GPUs of one host, and there is {count}")
    return count


def gathered(a, b):
    """The rows of a on every device, times b."""
    return jnp.matmul(a, b, preferred_element_type=FLOAT)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("config", "shape", "dtype", "out_dtype"),
    [
        (None, (1024, 1792, 4096), BRAIN, None),
        (None, (1000, 1088, 576), HALF, FLOAT),
        (None, (8, 256, 8192), BRAIN, BRAIN),
        (CollectiveConfig(slots=3, senders=1, send_rows=32), (2048, 2048, 2048), BRAIN, None),
        (CollectiveConfig(senders=46), (2048, 2048, 2048), HALF, None),
        (CollectiveConfig(order="n", send_rows=8), (512, 1024, 1024), BRAIN, None),
    ],
)
def test_products_on_gpus(gpus, config, shape, dtype, out_dtype):
    function, mesh, specs = multiplier(gpus, config, check_vma=True, out_dtype=out_dtype)
    a, b = operands(mesh, specs, *shape, dtype)
    out = jax.jit(function)(a, b)
    assert out.sharding.spec == specs[1]
    wanted = jax.jit(gathered, out_shardings=out.sharding)(a, b)
    check_close(out, np.asarray(wanted).astype(np.float64), out_dtype or dtype)


@pytest.mark.gpu
def test_many_calls_agree_on_gpus(gpus):
    """Calls behind each other in one program, which may get the same memory, and many launches."""
    function, mesh, specs = multiplier(gpus, None)
    a, b = operands(mesh, specs, 1024, 1792, 1024, BRAIN)
    chained = jax.jit(lambda a, b: [function(a * scale, b) for scale in (1.0, 2.0, 1.0)])
    first = jax.jit(function)(a, b)
    for _ in range(50):
        one, two, again = chained(a, b)
        assert bool(jnp.array_equal(one, first)) and bool(jnp.array_equal(again, first))
        assert bool(jnp.array_equal(two, first * jnp.bfloat16(2.0)))


@pytest.mark.gpu
@pytest.mark.parametrize("check_vma", [False, True])
def test_gradients_on_gpus(gpus, check_vma):
    function, mesh, specs = multiplier(gpus, None, check_vma=check_vma)
    a, b = operands(mesh, specs, 512, 768, 1024, BRAIN)
    total = lambda call: jax.jit(jax.grad(lambda a, b: call(a, b).astype(FLOAT).sum(), (0, 1)))
    found, wanted = total(function)(a, b), total(gathered)(a, b)
    for one, other in zip(found, wanted):
        check_close(one, np.asarray(other).astype(np.float64), BRAIN)
