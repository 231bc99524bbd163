"""`collective_matmul` in JAX's interpreter on several CPU devices, with race detection.

    python -m tests.kernels.collective.on_cpus DEVICES

prints a line for each case that is right, and ends with an error at the first that is not. JAX must
be told before it begins how many devices a CPU is to be, so `test_collective_matmul` runs this in a
process of its own, with the environment of `environment`. What the interpreter lacks is in
`across`.
"""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pipelib.kernels import CollectiveConfig, collective_matmul
from tests.emitters.contract import interpreted
from tests.kernels.collective import across

COUNT = int(sys.argv[1]) if __name__ == "__main__" else 1
HALF, BRAIN, FLOAT = jnp.float16, jnp.bfloat16, jnp.float32
ONE = CollectiveConfig(
    64, 64, 64, slots=2, compute_threads=1, width=2, senders=1, send_rows=16, blocks=1
)
TWO = CollectiveConfig(128, 128, slots=3, width=1, senders=1, send_rows=32, blocks=1)
COLUMNS = dataclasses.replace(ONE, order="n", width=1)


def environment(devices):
    """What the process has to have for so many devices.

    Each thread of an interpreted kernel holds one of XLA's, and so does each of its warps.
    """
    flag = f"--xla_force_host_platform_device_count={devices}"
    return dict(XLA_FLAGS=flag, NPROC=str(16 * devices), JAX_PLATFORMS="cpu")


def multiplier(devices, config, axes=("x",), sizes=None, check_vma=False, **options):
    """The function on a mesh, whose last axis has the shards, and its operands' sharding.

    JAX's interpreter does not keep track of what varies along a mesh (`check_vma=True`).
    """
    sizes = sizes or (devices,)
    mesh = jax.make_mesh(sizes, axes, axis_types=(jax.sharding.AxisType.Auto,) * len(axes))
    specs = P(axes[-1], None), P(None, axes[-1])
    call = functools.partial(collective_matmul, axis_name=axes[-1], config=config, **options)
    made = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=specs[1], check_vma=check_vma)
    return made, mesh, specs


def operands(mesh, specs, m, n, k, dtype):
    """Normal random factors, each device's part on it."""
    draw = np.random.default_rng(m + n + k).standard_normal
    devices = mesh.shape[mesh.axis_names[-1]]
    factors = draw((devices * m, k)), draw((k, devices * n))
    return [
        jax.device_put(jnp.asarray(x, dtype), jax.NamedSharding(mesh, spec))
        for x, spec in zip(factors, specs)
    ]


def close(out, wanted, tolerance=4e-3):
    out = np.asarray(out).astype(np.float64)
    error = np.linalg.norm(out - wanted) / np.linalg.norm(wanted)
    assert out.shape == wanted.shape and error < tolerance, error


def exact(*arrays):
    return [np.asarray(x).astype(np.float64) for x in arrays]


def run(call, *args):
    """The result of an interpreted call, whose semaphores must be zero again."""
    with interpreted(), across.devices() as semaphores:
        out = jax.block_until_ready(jax.jit(call)(*args))
    assert semaphores.held and not any(each.value for each in semaphores.held.values())
    return out


def product(config, m, n, k, dtype=BRAIN, **options):
    call, mesh, specs = multiplier(COUNT, config, **options)
    a, b = operands(mesh, specs, m, n, k, dtype)
    out = run(call, a, b)
    assert out.dtype == options.get("out_dtype", dtype)
    close(out, np.matmul(*exact(a, b)))


def twice():
    """A call whose memory the next one may get."""
    call, mesh, specs = multiplier(COUNT, ONE)
    a, b = operands(mesh, specs, 64, 64, 128, BRAIN)
    first, second = run(lambda a, b: (call(a, b), call(a * 2.0, b)), a, b)
    wanted = np.matmul(*exact(a, b))
    close(first, wanted)
    close(second, 2.0 * wanted)


def gradients():
    call, mesh, specs = multiplier(COUNT, ONE, out_dtype=FLOAT)
    a, b = operands(mesh, specs, 64, 64, 128, BRAIN)
    g = jnp.asarray(np.random.default_rng(1).standard_normal((COUNT * 64, COUNT * 64)), FLOAT)
    d_a, d_b = run(jax.grad(lambda a, b: jnp.sum(call(a, b) * g), (0, 1)), a, b)
    (a, b), g = exact(a, b), np.asarray(g.astype(BRAIN)).astype(np.float64)
    close(d_a, g @ b.T)
    close(d_b, a.T @ g)


def one_axis_of_two():
    """Each row of devices gathers for itself."""
    call, mesh, specs = multiplier(COUNT, ONE, ("data", "model"), (COUNT // 2, 2))
    a, b = operands(mesh, specs, 64, 64, 128, BRAIN)
    close(run(call, a, b), np.matmul(*exact(a, b)))


def a_race():
    """Without what a wait tells of the signals, the interpreter finds the loads too early."""
    call, mesh, specs = multiplier(COUNT, ONE)
    a, b = operands(mesh, specs, 64, 64, 128, BRAIN)
    lets_go = lambda self, *args, token, **options: token
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises((AssertionError, jax.errors.JaxRuntimeError), match=r"(?i)race"),
    ):
        patch.setattr(across.Semaphores, "wait", lets_go)
        with interpreted(), across.devices():
            jax.block_until_ready(jax.jit(call)(a, b))


CASES = {
    "a CPU without the interpreter": lambda: a_cpu_without_the_interpreter(),
    "one compute thread": lambda: product(ONE, 128, 64, 128),
    "twice": twice,
}
# What is the same for any number of devices: many interpreted ones take minutes.
if COUNT == 2:
    CASES |= {
        "two compute threads, two columns of tiles": lambda: product(TWO, 128, 192, 576, HALF),
        "edges": lambda: product(ONE, 136, 64, 192, out_dtype=FLOAT),
        "within a tile": lambda: product(ONE, 8, 128, 64, HALF),
        "columns first": lambda: product(COLUMNS, 128, 128, 64),
        "gradients": gradients,
    }
if COUNT == 4:
    CASES["one axis of two"] = one_axis_of_two
CASES["a race"] = a_race


def a_cpu_without_the_interpreter():
    call, mesh, specs = multiplier(COUNT, None)
    with pytest.raises(ValueError) as error:
        call(*operands(mesh, specs, 64, 64, 64, BRAIN))
    assert str(error.value) == (
        "collective_matmul: there is no Hopper GPU here (JAX's backend is cpu), so nothing can run"
        " the kernel: call jax.lax.all_gather and jnp.matmul."
    )


if __name__ == "__main__":
    assert jax.device_count() == COUNT
    for name, case in CASES.items():
        case()
        print(name, flush=True)
