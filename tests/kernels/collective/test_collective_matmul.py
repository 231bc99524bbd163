"""`collective_matmul`: interpreted on several devices, checked, compiled, refused; on two GPUs."""

import dataclasses
import functools
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

import pipelib
from pipelib.kernels import CollectiveConfig, collective_matmul, matmul
from pipelib.kernels.collective.config import default_config
from pipelib.kernels.collective.kernel import Units
from pipelib.kernels.hopper import Gpu, assumed
from tests.kernels.collective.on_cpus import environment, multiplier, operands
from tests.kernels.matmul.test_matmul import check_close
from tests.kernels.test_hopper import NO_FORWARD_MODE
from tests.schedule.strategies import with_thread

HALF, BRAIN, FLOAT = jnp.float16, jnp.bfloat16, jnp.float32
ROOT = pathlib.Path(__file__).parents[3]

SMALL = CollectiveConfig(64, 64, 64, slots=2, compute_threads=1, width=2, blocks=2)
TWO = CollectiveConfig(
    128, 128, staging=2, slots=3, send_slots=3, send_rows=32, width=1, blocks=3, delay_release=2
)
FEW = CollectiveConfig(
    64, 128, slots=3, compute_threads=1, delay_release=0, order="n", senders=1, blocks=3
)


def on_devices(devices, config=None, axes=("x",), **options):
    """The function on a mesh that need not exist, and types for it by the sizes of a device."""
    sizes = devices if isinstance(devices, tuple) else (devices,)
    mesh = AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes))
    axis, check_vma = axes[-1], options.pop("check_vma", False)
    call = functools.partial(collective_matmul, axis_name=axis, config=config, **options)
    specs = dict(in_specs=(P(axis, None), P(None, axis)), out_specs=P(None, axis))
    function = jax.shard_map(call, mesh=mesh, check_vma=check_vma, **specs)

    def types(m, n, k, dtype=BRAIN):
        like = functools.partial(jax.ShapeDtypeStruct, dtype=dtype)
        return like((sizes[-1] * m, k)), like((k, sizes[-1] * n))

    return function, types


def traced(devices, config, m, n, k, dtype=BRAIN, **options):
    function, types = on_devices(devices, config, **options)
    return pipelib.trace(function, *types(m, n, k, dtype), whole_grid=True)


def kinds(program):
    return {str(finding.kind) for finding in pipelib.check(program)}


# Interpreted, with race detection.


@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.one_jax), 4])
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

PROGRAMS = {
    "two devices": (2, SMALL, 128, 128, 256, {}),
    "three devices, edges": (3, SMALL, 136, 128, 192, dict(out_dtype=FLOAT)),
    "four devices": (4, SMALL, 64, 64, 256, dict(dtype=HALF)),
    "two compute threads": (2, TWO, 264, 192, 576, {}),
    "eight devices": (8, TWO, 128, 256, 512, {}),
    "one sender": (2, FEW, 200, 256, 256, {}),
    "two axes": ((2, 2), SMALL, 128, 64, 128, dict(axes=("data", "model"))),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("strict", [False, True])
def test_check_finds_nothing(name, strict):
    devices, config, m, n, k, options = PROGRAMS[name]
    program = traced(devices, config, m, n, k, **options)
    report = pipelib.check(program, strict=strict)
    assert report.ok, report
    assert not any("semaphores order nothing" in note for note in report.notes)


def test_default_configuration():
    """As many blocks as a GPU has SMs would be too many to check together."""
    config = CollectiveConfig(blocks=4)
    program = traced(2, config, 512, 512, 1024)
    assert pipelib.check(program, strict=True).ok
    assert program.smem_bytes == config.smem_bytes(BRAIN, BRAIN)


@pytest.mark.parametrize("name", PROGRAMS)
def test_semaphores_are_zero_at_the_end(name):
    devices, config, m, n, k, options = PROGRAMS[name]
    program = traced(devices, config, m, n, k, **options)
    held = {}
    for op in (op for ops in program.threads for op in ops):
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
    "ends of stores": (lambda op: op.kind == "wait_store" and op.pending == 0, {"race"}),
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


@pytest.mark.one_jax
def test_each_synchronisation_that_is_taken_away_is_found():
    """Each alone, of the threads of one block, which differ from others' in names only."""
    program, missed = pair(), []
    for thread, ops in enumerate(program.threads):
        for index, op in enumerate(ops if program.block_of(thread) == 0 else ()):
            if str(op.kind) in SYNCHRONISES:
                edited = with_thread(program, thread, ops[:index] + ops[index + 1 :])
                missed += [] if pipelib.check(edited) else [op]
    assert {str(op.kind) for op in missed} <= HARMLESS.keys(), missed
    waits = [op for op in missed if op.kind == "await"]  # those that take off at the end
    assert [(op.keeps, op.amount) for op in waits] == [(False, 4)] * 2
    # Of four pieces, the first is stored when none is in flight; after the last, none is loaded.
    sent = [op for op in missed if op.kind == "wait_store" and "collective" in op.line]
    last = max(op.step[-1] for op in sent)
    assert {op.step[-1] % 4 for op in sent if op.step[-1] < last - 3} <= {0, 3}


# Lowered and compiled.


@pytest.mark.parametrize("devices", [2, 8])
def test_lowers(devices):
    function, types = on_devices(devices)
    args = types(1024, 7168, 4096)
    for call in (function, jax.grad(lambda a, b: function(a, b).astype(FLOAT).sum(), (0, 1))):
        lowered = jax.jit(call).trace(*args).lower(lowering_platforms=("cuda",))
        assert "mosaic_gpu" in lowered.as_text()


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("devices", "axes"), [(2, ("x",)), (8, ("x",)), ((2, 4), ("data", "model"))]
)
def test_compiles_with_the_loops_of_matmul(devices, axes):
    """Sending takes nothing from products: no spill, and a step has matmul's instructions."""
    function, types = on_devices(devices, axes=axes)
    with assumed(Gpu("NVIDIA H200", "9.0")):
        found = pipelib.compiled(function, *types(2048, 7168, 4096))
        a, b = on_devices(1)[1](2048, 7168, 4096)
        plain = pipelib.compiled(functools.partial(matmul, config=CollectiveConfig()), a, b)
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

A, B = jnp.ones((8, 64), BRAIN), jnp.ones((64, 64), BRAIN)


@pytest.mark.parametrize(
    ("args", "options", "kind", "text"),
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
def test_refusals(args, options, kind, text):
    with pytest.raises(kind, match=text):
        collective_matmul(*args, **dict(axis_name="x") | options)


def test_a_result_that_cannot_be_stored():
    function, types = on_devices(2, out_dtype=jnp.int8)
    with pytest.raises(TypeError, match="collective_matmul: out_dtype=int8 is none of float16"):
        jax.eval_shape(function, *types(64, 64, 64))


def test_check_vma_is_refused_where_it_cannot_work():
    function, types = on_devices(2, check_vma=True)
    with pytest.raises(ValueError) as error:
        jax.eval_shape(function, *types(64, 64, 64))
    assert str(error.value) == (
        "collective_matmul: jax.shard_map keeps track of what varies along the mesh (check_vma"
        "=True, its default), but the kernel's warps have roles of their own, and JAX lets no warp"
        " use memory that is known to vary, so the kernel cannot be traced: call jax.shard_map with"
        " check_vma=False."
    )
    alone, types = on_devices(1, check_vma=True)
    assert jax.eval_shape(alone, *types(64, 64, 64)).shape == (64, 64)


def test_more_blocks_than_can_run_at_once():
    function, types = on_devices(2, CollectiveConfig(blocks=133))
    with pytest.raises(ValueError) as error:
        jax.eval_shape(function, *types(2048, 7168, 64))
    assert str(error.value) == (
        "collective_matmul: blocks=133 is more than the GPU's 132 SMs, which run one each, so 133 -"
        " 132 = 1 would not have begun to send when others wait for what they send: ask for at most"
        " 132."
    )


def test_a_configuration_that_does_not_fit():
    function, types = on_devices(2, CollectiveConfig(staging=2))
    with pytest.raises(ValueError, match=r"sent pieces 2 x 8,192 B \+ barriers 10 x 8 B = 245,840"):
        jax.eval_shape(function, *types(128, 256, 64))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (dict(form="persistent"), "are not 'chained', 1 x 1, 1 and False, the only form that"),
        (dict(cluster_m=2), "cluster_m=2 x cluster_n=1"),
        (dict(splits=2), "splits=2 and swapped=False"),
        (dict(swapped=True), "swapped=True are not"),
        (dict(staging=3), "staging=3 is not 1, or 2 with an even number of parts"),
        (dict(staging=2, tile_n=192), "staging=2 is not 1, or 2 with an even number of parts"),
        (dict(send_slots=1), "send_slots=1 is under 2, so no piece would be loaded while"),
        (dict(send_rows=24), "send_rows=24 is not a multiple of 8 that divides tile_m=128"),
        (dict(send_rows=4), "send_rows=4 is not a multiple of 8"),
        (dict(senders=0), "senders=0 is not at least 1, so no block would send"),
        (dict(tile_n=320), "tile_n=320 is not a multiple of 64 up to 256"),
    ],
)
def test_refused_configurations(fields, text):
    with pytest.raises(ValueError, match=f"CollectiveConfig: .*{text}"):
        CollectiveConfig(**fields)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("out_dtype", [HALF, BRAIN, FLOAT])
def test_the_default_fits_for_all_dtypes(dtype, out_dtype):
    config = default_config(4096, 2, out_dtype)
    config.check(dtype, out_dtype)
    with pytest.raises(ValueError, match=r"CollectiveConfig: .* of shared memory, but a block has"):
        dataclasses.replace(config, slots=6).check(dtype, out_dtype)


def test_all_blocks_send_where_the_transfer_is_longer():
    """Sends grow with the other devices, products with all: 4/3 operations a byte, not 2."""
    few, many = default_config(1920, 2, BRAIN), default_config(2000, 2, BRAIN)
    assert few.senders is None and many.senders == CollectiveConfig().senders == 48
    assert default_config(2880, 4, BRAIN).senders is None
    assert default_config(3000, 4, BRAIN).senders == 48


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
        (CollectiveConfig(slots=3, staging=2, send_slots=4), (2048, 2048, 2048), BRAIN, None),
        (CollectiveConfig(senders=16), (2048, 2048, 2048), HALF, None),
        (CollectiveConfig(order="n", send_rows=8), (512, 1024, 1024), BRAIN, None),
    ],
)
def test_products_on_gpus(gpus, config, shape, dtype, out_dtype):
    function, mesh, specs = multiplier(gpus, config, out_dtype=out_dtype)
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
def test_gradients_on_gpus(gpus):
    function, mesh, specs = multiplier(gpus, None)
    a, b = operands(mesh, specs, 512, 768, 1024, BRAIN)
    total = lambda call: jax.jit(jax.grad(lambda a, b: call(a, b).astype(FLOAT).sum(), (0, 1)))
    found, wanted = total(function)(a, b), total(gathered)(a, b)
    for one, other in zip(found, wanted):
        check_close(one, np.asarray(other).astype(np.float64), BRAIN)
