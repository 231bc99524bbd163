"""What probes are made of: a kernel whose threads read the clock, and what their stamps say.

The method. Each thread of a kernel reads its multiprocessor's cycle counter, does N steps, reads it
again, does 2 N steps and reads it once more. The difference of the two differences, over N, is the
cost of one step: what happens once (the launch, a prologue, a drain) cancels. A probe may also add
up, around one operation within each step, how far the counter went (`inner`); reading it costs
cycles too, which the probe `clock` tells. The global timer, read beside the first and the last,
gives the clock's rate.

Threads that do different things are `apart`: the figures of the probe are those of thread 0, and
the other threads work beside it for longer than it measures (`longer`).

Not covered: a loop itself costs some cycles a step, which no figure is freed of.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax.experimental.pallas import mosaic_gpu as plgpu

TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
SMS = 132
STAMPS = ("clock0", "clock1", "clock2", "inner", "ns0", "ns2", "sm")

#: Runs `count` steps from step `first` on; returns what their inner parts took, if they have any.
Run = Callable[[Any, int], Any]
#: A thread of a probe: called with what times a run, the block's number, and the kernel's refs.
Role = Callable[..., None]


class Probe(NamedTuple):
    """A kernel with one function for each thread, and what a step of it does.

    `input` is the shape of its one float16 input in GMEM, or None; `work` what one step of thread 0
    does, by unit; `cold` says that L2 must not hold the input; `params` are the compiler's; `apart`
    says that the figures are of thread 0, and each other thread has its own.
    """

    name: str
    roles: tuple[Role, ...]
    repeats: int
    scratch: tuple[Any, ...] = ()
    input: tuple[int, ...] | None = None
    output: tuple[int, ...] | None = None
    blocks: int = 1
    work: Mapping[str, float] = MappingProxyType({})
    cold: bool = False
    params: Mapping[str, Any] = MappingProxyType({})
    apart: bool = False


def _register(read: Callable[[], Any]) -> jax.Array:
    """A special register as an int32."""
    result = plgpu.ShapeDtypeStruct((), jnp.int32, layout=plgpu.Layout.WG_SPLAT)

    @plgpu.inline_mgpu(return_type=result)
    def value(_):
        return mgpu.FragmentedArray.splat(read(), (), is_signed=True)

    # JAX gives the decorator no types, so pyright takes it for one that changes nothing.
    return value()  # pyright: ignore[reportCallIssue]


def clock() -> jax.Array:
    """The multiprocessor's cycle counter, modulo 2**32."""
    return _register(mgpu_utils.clock)


def nanoseconds() -> jax.Array:
    """The GPU's timer, modulo 2**32."""
    return _register(lambda: mgpu_utils.globaltimer("low"))


def loop(first: Any, count: int, step: Callable[[Any], Any]) -> jax.Array:
    """Runs step(first) ... and adds up what the steps return, if anything."""

    def one(i, total):
        inner = step(first + i)
        return total if inner is None else total + inner

    return lax.fori_loop(jnp.int32(0), jnp.int32(count), one, jnp.int32(0))


def inner(operation: Callable[[], Any]) -> jax.Array:
    """How far the counter goes while a thread does this."""
    start = clock()
    operation()
    return clock() - start


def kernel(probe: Probe) -> Callable[..., Any]:
    """The probe's kernel: of its input, if it has one, to its stamps (block, thread, stamp)."""

    def body(*refs):
        count = (probe.input is not None) + (probe.output is not None)
        operands, stamps, scratch = refs[:count], refs[count], refs[count + 1 :]
        block = lax.axis_index("block")

        def run_role(thread):
            def timed(run):
                first = nanoseconds()
                times = [clock()]
                run(jnp.int32(0), probe.repeats)
                times.append(clock())
                total = run(jnp.int32(probe.repeats), 2 * probe.repeats)
                times.append(clock())
                total = jnp.int32(0) if total is None else total
                sm = _register(mgpu_utils.smid)
                for i, value in enumerate((*times, total, first, nanoseconds(), sm)):
                    stamps[block, thread, i] = value

            probe.roles[thread](timed, block, *operands, *scratch)

        if len(probe.roles) == 1:
            return run_role(0)
        thread = lax.axis_index("thread")
        for i in range(len(probe.roles)):
            pl.when(thread == i)(lambda i=i: run_role(i))

    threads = len(probe.roles)
    shape = (probe.blocks, threads, len(STAMPS))
    out_type = jax.ShapeDtypeStruct(shape, jnp.int32)
    if probe.output is not None:
        out_type = (jax.ShapeDtypeStruct(probe.output, jnp.float16), out_type)
    named = (threads, "thread") if threads > 1 else (None, None)
    return plgpu.kernel(
        body,
        out_type=out_type,
        grid=(probe.blocks,),
        grid_names=("block",),
        scratch_types=probe.scratch,
        num_threads=named[0],
        thread_name=named[1],
        compiler_params=plgpu.CompilerParams(**probe.params),
    )


def inputs(probe: Probe) -> tuple[jax.ShapeDtypeStruct, ...]:
    """What its kernel takes: one array or none."""
    return (jax.ShapeDtypeStruct(probe.input, jnp.float16),) if probe.input else ()


def compiled(probe: Probe) -> Callable[..., Any]:
    """A probe's kernel, compiled."""
    return jax.jit(kernel(probe)).lower(*inputs(probe)).compile()


def stamps_of(result: Any) -> np.ndarray:
    """The stamps among what a probe's kernel gives."""
    return np.asarray(result[-1] if isinstance(result, (tuple, list)) else result)


def traced(probe: Probe) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What JAX traces for a probe of a record."""
    return kernel(probe), inputs(probe)


def slopes(stamps: np.ndarray, repeats: int) -> dict[str, float]:
    """Cycles for one step, and of its inner part, a mean over blocks and threads.

    `second_run` is the second run's time over its steps, start and drain included; `crowd` all
    blocks' time from the first's start to the last's end, over the steps of one: what to divide by
    for a bandwidth that blocks share, since their slopes differ as others start and end.
    """
    fields = dict(zip(STAMPS, np.moveaxis(stamps.astype(np.uint32), -1, 0)))
    gone = lambda a, b: (fields[b] - fields[a]).astype(np.float64)  # modulo 2**32
    slope = (gone("clock1", "clock2") - gone("clock0", "clock1")) / repeats
    inner_cycles = fields["inner"].astype(np.float64) / (2 * repeats)
    second = gone("clock1", "clock2") / (2 * repeats)
    rate = gone("clock0", "clock2").sum() / gone("ns0", "ns2").sum() * 1e9
    found = dict(cycles=slope, second_run=second, inner=inner_cycles)
    first = fields["ns0"].reshape(-1)[0]
    begin, end = ((fields[key] - first).astype(np.int32) for key in ("ns0", "ns2"))
    crowd = (end.max() - begin.min()) * 1e-9 * rate / (3 * repeats)
    means = {name: float(value.mean()) for name, value in found.items()}
    return means | dict(crowd=float(crowd), clock_hz=float(rate))


def shown(probe: Probe, stamps: np.ndarray) -> np.ndarray:
    """The stamps that the probe's figures are made of: thread 0's, if its threads are apart."""
    return stamps[:, :1] if probe.apart else stamps


def steps(step: Callable[[Any], Any]) -> Run:
    """A run of steps that need nothing around them."""
    return lambda first, count: loop(first, count, step)


def once(step: Callable[..., Any]) -> Role:
    """A role of such steps; called as step(i, block, *refs)."""
    return lambda timed, block, *refs: timed(steps(lambda i: step(i, block, *refs)))


def alike(role: Callable[..., None], threads: int) -> tuple[Role, ...]:
    """The roles of threads that do the same; `role` also takes the thread's number, first."""
    return tuple(functools.partial(role, thread) for thread in range(threads))


def longer(times: int, timed: Callable[[Run], None]) -> Callable[[Run], None]:
    """Times runs of so many times the steps: those of a thread that works beside thread 0."""
    return lambda run: timed(lambda first, count: run(first * times, count * times))


def stream(slots: int, start: Callable[[Any], Any], wait: Callable[[Any], Any]) -> Run:
    """A run with `slots` steps in flight: step i + slots starts when step i has been waited for."""

    def run(first, count):
        loop(first, slots, start)

        def step(i):
            wait(i)
            start(i + slots)

        loop(first, count - slots, step)
        loop(first + (count - slots), slots, wait)

    return run


def loading(slots: int, load: Callable[[Any, Any], Any], barriers: Any) -> Run:
    """A run of loads into a ring of slots: `load` takes the step and its slot."""
    slot = lambda i: rem(i, slots)
    return stream(
        slots, lambda i: load(i, slot(i)), lambda i: plgpu.barrier_wait(barriers.at[slot(i)])
    )


def loading_tiles(slots: int, source: Callable[[Any], Any], ring: Any, barriers: Any) -> Run:
    """A run of loads of one tile each, that of step i from `source(i)`."""
    load = lambda i, slot: plgpu.copy_gmem_to_smem(source(i), ring.at[slot], barriers.at[slot])
    return loading(slots, load, barriers)


def carrying(step: Callable[..., Any], begin: Callable[[], Any], end: Callable[[Any], Any]) -> Run:
    """A run whose steps hand each other values in registers.

    Args:
      step: called with the values, the run's first step, and how many steps came before this one.
      begin: makes the first values.
      end: puts the last ones somewhere.
    """

    def run(first, count):
        one = lambda i, values: step(values, first, i)
        end(lax.fori_loop(jnp.int32(0), jnp.int32(count), one, begin()))
        plgpu.commit_smem()

    return run


# Products.


class Right(NamedTuple):
    """A right operand in SMEM, transposed where only K fills a swizzled row."""

    n: int
    k: int = 64
    dtype: Any = jnp.float16

    @property
    def transposed(self) -> bool:
        """Whether memory has it as [n, k]."""
        return jnp.dtype(self.dtype).itemsize == 1 or self.n < 64

    @property
    def scratch(self) -> Any:
        """The memory of the operand."""
        shape = (self.n, self.k) if self.transposed else (self.k, self.n)
        return swizzled(*shape, dtype=self.dtype)

    def of(self, ref: Any) -> Any:
        """What `wgmma` takes."""
        return ref.T if self.transposed else ref


def accumulated(m: int, n: int, work: Callable[[Any], None]) -> jax.Array:
    """Runs `work` with an accumulator, and gives its result, which is to be stored.

    Products whose result nobody needs are not made.
    """

    def scope(acc):
        work(acc)
        return acc[...]

    return pl.run_scoped(scope, plgpu.ACC((m, n), jnp.float32)).astype(jnp.float16)


def for_result(*shape: int) -> Any:
    """Where an accumulator's result goes."""
    return plgpu.SMEM(shape, jnp.float16, transforms=TILED if shape[-1] >= 64 else ())


def multiplying(step: Callable[[Any], Any]) -> Run:
    """A run of steps that may leave products unfinished, and the wait for the last ones."""

    def run(first, count):
        total = loop(first, count, step)
        plgpu.wgmma_wait(0)
        return total

    return run


def queueing(multiply: Callable[[], Any], left: int) -> Callable[[Any], None]:
    """A step that queues products, and waits until `left` are unfinished."""

    def step(i):
        keep_rolled()
        multiply()
        plgpu.wgmma_wait(left)

    return step


def rem(x: Any, n: int) -> Any:
    """The remainder, of numbers that are not negative."""
    return lax.rem(x, np.int32(n))


def swizzled(*shape: int, dtype: Any = jnp.float16) -> Any:
    """SMEM as products take it."""
    columns = 128 // jnp.dtype(dtype).itemsize
    transforms = plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(128)
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def halves(shape: tuple[int, ...], layout: Any, dtype: Any = jnp.float32) -> jax.Array:
    """An array in registers, each of whose elements is a half."""
    return plgpu.layout_cast(jnp.full(shape, 0.5, dtype), layout)


def for_loads(slots: int, rows: int) -> tuple[Any, Any]:
    """A ring of slots for rows of 64 float16, and a barrier for each."""
    return swizzled(slots, rows, 64), plgpu.Barrier(num_barriers=slots)


def keep_rolled() -> None:
    """Asks ptxas not to unroll the loop that this is in; it costs a step nothing.

    Of products unrolled, ptxas needs a time that grows with the square of the accumulator: minutes.
    """
    plgpu.inline_mgpu()(lambda _: mgpu_utils.inline_ptx('.pragma "nounroll";'))()


def delay(count: int) -> None:
    """Passes some 50 cycles so many times: fences."""
    for _ in range(count):
        plgpu.commit_smem()


def tile(ref: Any, rows: int, index: Any) -> Any:
    """So many rows of an array in GMEM."""
    return ref.at[pl.ds(pl.multiple_of(index * rows, 8), rows)]


def select(all_probes: Sequence[Probe], names: Sequence[str]) -> list[Probe]:
    """The probes whose names contain one of these words; all, if there are no words."""
    return [p for p in all_probes if not names or any(word in p.name for word in names)]
