"""Measures `pipelib.kernels.collective_matmul` beside JAX's ways, on two or four GPUs of one host.

    python -m benchmarks.collective          each problem by all contenders
    python -m benchmarks.collective table    prints the record

The model. A *problem* is a layer whose input lies in rows on several devices, and whose weights lie
in columns. Each contender takes the rows, the columns, and the rows gathered before. Contenders are
ours, by default and in a few configurations; JAX's `collective_matmul_mgpu`, in a few of its own;
the gather and then the product; the product alone, of what was gathered before; and the gather
alone. The longer of the two last is what a kernel that hides all of the shorter would take.

Samples. A kernel's own time says little where kernels wait for other devices: what waits is longer,
whoever is late. So a sample is the time of a burst by the host's clock, from a moment when all
devices are idle to one when they are again, over the calls of the burst. The calls are queued one
behind the other, and each takes longer than its launch. It has all that a call has: JAX's barrier
of the devices before a kernel that uses others' memory, and the launches. Before a burst the GPUs
rest, since they would begin with the clock that the last burst has left them.

Errors are relative, by norms, of some columns of the first and the last rows, against float64.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import collective_matmul_mgpu, hopper_matmul_mgpu
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import suite
from benchmarks.suite import SEED
from benchmarks.turns import Arrays, Contender, InTurns, float64, normal, off, suite_in_turns
from pallascope.bench import timing
from pipelib.kernels import CollectiveConfig, collective_matmul, matmul
from pipelib_book.measured import collective as recorded

OURS, UPSTREAM, SEQUENCE = recorded.OURS, recorded.UPSTREAM, recorded.SEQUENCE
PRODUCT, TRANSFER = recorded.PRODUCT, recorded.TRANSFER
#: Of a relative error; a result that is wrong has a larger one.
TOLERANCE, SAMPLED = 2e-2, 64
AXIS = "x"
#: Where the rows, the columns, and the gathered rows lie, and where the result does.
_SPECS, _OUT = (P(AXIS, None), P(None, AXIS), P(None, None)), P(None, AXIS)


class Problem(NamedTuple):
    """A product [M, K] x [K, N], whose rows and columns lie on so many devices."""

    m: int
    n: int
    k: int
    devices: int = 2
    dtype: str = "bfloat16"

    @property
    def flops(self) -> int:
        """Multiplications and additions of one device."""
        return 2 * self.m * self.n * self.k // self.devices

    @property
    def sent(self) -> int:
        """Bytes that a device sends."""
        rows = self.m // self.devices * (self.devices - 1)
        return rows * self.k * jnp.dtype(self.dtype).itemsize

    @property
    def args(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The types of the rows, the columns, and the gathered rows."""
        like = functools.partial(jax.ShapeDtypeStruct, dtype=self.dtype)
        return like((self.m, self.k)), like((self.k, self.n)), like((self.m, self.k))

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k} on {self.devices} GPUs, {self.dtype}"


#: Layers of models of 8 and 70 billion parameters, on two GPUs; then less to multiply for what is
#: sent: about as long as the transfer, and shorter. Then the same on four GPUs.
PROBLEMS = (
    *(Problem(m, n, k) for k, n in ((4096, 14336), (8192, 28672)) for m in (4096, 8192)),
    Problem(4096, 28672, 4096), Problem(8192, 28672, 4096), Problem(4096, 14336, 8192),
    Problem(8192, 14336, 8192), Problem(8192, 2048, 8192), Problem(8192, 1024, 8192),
    Problem(8192, 14336, 4096, 4), Problem(8192, 28672, 8192, 4), Problem(16384, 28672, 8192, 4),
    Problem(8192, 4096, 8192, 4),
)  # fmt: skip


# Contenders.

#: Ours beside the default: fewer and more blocks that send, and shorter tiles.
_OURS = {
    recorded.TWO: CollectiveConfig(senders=2),
    recorded.EIGHT: CollectiveConfig(senders=8),
    recorded.SHORT_TILES: CollectiveConfig(tile_n=128, slots=6, width=4, senders=29),
}
_AXES = hopper_matmul_mgpu.MatmulDimension
#: Of upstream's: the axis that its two compute threads divide, the grid's minor axis, its width.
#: Threads that divide the rows were slower for each of the first six problems.
_THEIRS = (_AXES.N, _AXES.M, 8), (_AXES.N, _AXES.N, 8)


def contenders(problem: Problem) -> dict[str, Contender]:
    """All of a problem, each a function of whole arrays."""
    found: dict[str, Contender] = {OURS: functools.partial(_collective, config=None)} | {
        name: functools.partial(_collective, config=config) for name, config in _OURS.items()
    }
    found |= dict(_upstream(problem.dtype))
    found[f"{SEQUENCE}, XLA's"] = lambda a, b, _: jnp.matmul(_gather(a), b)
    found[f"{SEQUENCE}, matmul"] = lambda a, b, _: matmul(_gather(a), b)
    found[f"{PRODUCT}, XLA's"] = lambda a, b, whole: jnp.matmul(whole, b)
    found[f"{PRODUCT}, matmul"] = lambda a, b, whole: matmul(whole, b)
    found[TRANSFER] = lambda a, b, _: _gather(a)
    return {name: _on_devices(problem, each, name == TRANSFER) for name, each in found.items()}


def _collective(
    a: jax.Array, b: jax.Array, _: jax.Array, *, config: CollectiveConfig | None
) -> jax.Array:
    return collective_matmul(a, b, axis_name=AXIS, config=config)


def _gather(a: jax.Array) -> jax.Array:
    return jax.lax.all_gather(a, AXIS, tiled=True)


def _upstream(dtype: str) -> Iterator[tuple[str, Contender]]:
    """JAX's kernel, with each configuration."""
    for threads, minor, width in _THEIRS:
        config = hopper_matmul_mgpu.TuningConfig(
            tile_m=128,
            tile_n=128,
            tile_k=64,
            max_concurrent_steps=4,
            wg_dimension=threads,
            grid_minor_dim=minor,
            grid_tile_width=width,
        )
        name = f"{UPSTREAM}, threads along {threads.name}, minor {minor.name}, width {width}"
        yield name, functools.partial(_theirs, config=config, dtype=jnp.dtype(dtype))


def _theirs(a: jax.Array, b: jax.Array, _: jax.Array, **options: Any) -> jax.Array:
    return collective_matmul_mgpu.all_gather_lhs_matmul(a, b, AXIS, **options)


def _on_devices(problem: Problem, function: Contender, gathers: bool) -> Contender:
    """A function of each device's part, as a function of whole arrays."""
    mesh, out = devices_mesh(problem.devices), _SPECS[2] if gathers else _OUT
    return jax.shard_map(function, mesh=mesh, in_specs=_SPECS, out_specs=out, check_vma=False)


def devices_mesh(devices: int, axis: str = AXIS) -> Mesh | AbstractMesh:
    """The first GPUs; where there are too few, as many that need not exist."""
    kind = (AxisType.Auto,)
    if len(jax.devices()) < devices:
        return AbstractMesh((devices,), (axis,), axis_types=kind)
    return jax.make_mesh((devices,), (axis,), axis_types=kind, devices=jax.devices()[:devices])


def gpus_mesh(script: str, problem: object, devices: int, axis: str = AXIS) -> Mesh:
    """The first GPUs, for arrays; ends the script where there are too few."""
    mesh = devices_mesh(devices, axis)
    if not isinstance(mesh, Mesh):
        raise SystemExit(
            f"benchmarks.{script}: {problem} needs {devices} GPUs of one host, and JAX has"
            f" {len(jax.devices())}: there is nobody to send to."
        )
    return mesh


# Arrays, times and errors.


def operands(problem: Problem) -> Arrays:
    """Normal random rows and columns, each device's on it, and the rows on all."""
    mesh = gpus_mesh("collective", problem, problem.devices)
    where = [NamedSharding(mesh, spec) for spec in _SPECS]
    keys = jax.random.split(jax.random.key(SEED))
    rows, columns = (
        jax.jit(normal, static_argnums=0, out_shardings=there)(like, key)
        for like, key, there in zip(problem.args, keys, where)
    )
    return rows, columns, jax.device_put(rows, where[2])


def bursts(
    functions: Mapping[str, Callable[..., Any]], args: Sequence[Any], *, rounds: int, burst: int
) -> dict[str, timing.Samples]:
    """Times functions in turns: a sample is a burst's time over its calls, by the host's clock."""
    compiled = {name: jax.jit(each).lower(*args).compile() for name, each in functions.items()}
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for function in compiled.values():
        jax.block_until_ready(function(*args))
    for _ in range(rounds):
        for name, function in compiled.items():
            time.sleep(timing.REST_S)
            begin, out = time.perf_counter(), None
            for _ in range(burst):
                out = function(*args)
            jax.block_until_ready(out)
            times[name].append((time.perf_counter() - begin) / burst * 1e6)
    return {name: timing.Samples(tuple(us)) for name, us in times.items()}


def error(problem: Problem, args: Arrays, name: str, contender: Contender) -> float | None:
    """The relative error of some rows and columns; None of the transfer, which has no product."""
    out = jax.jit(contender)(*args)
    if name == TRANSFER:
        return None if bool(jnp.array_equal(out, args[2])) else 1.0
    rows = np.r_[:SAMPLED, problem.m - SAMPLED : problem.m]
    columns = np.arange(0, problem.n, max(1, problem.n // 256))
    exact = float64(args[2][rows]) @ float64(args[1][:, columns])
    return off(float64(out[rows])[:, columns], exact)


def _sending(found: suite.Measured) -> str:
    """The bytes that a device sends in a second."""
    return f"{found.problem.sent / found.own.median_us / 1e3:6.1f} GB/s"


def _bound(found: suite.Measured) -> str | None:
    """The share of the longer of the product and the transfer, each alone."""
    bound = recorded.longest({name: each.median_us for name, each in found.times.items()})
    return f"{bound / found.own.median_us:6.3f} of the longer alone" if bound else None


SUITE = suite_in_turns(
    "collective",
    PROBLEMS,
    contenders,
    InTurns(operands, error, TOLERANCE, bursts),
    (suite.tflops, _sending, _bound),
    (UPSTREAM,),
)

if __name__ == "__main__":
    suite.main("collective")
