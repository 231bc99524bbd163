"""Kernels that the checker was not written with: each with what must be found in it.

The model. A `Newcomer` is a small kernel as its authors write them, of one class of faults or of
unusual ways to be right. Most are **twins**: one function that makes the kernel with its fault and
without. `finds` is the kind of what must be found, None if nothing may be found; `says` are words
of the report, its notes among them; `refused` are words, a pattern, of the error by which the trace
refuses the kernel. Either will do: a newcomer is followed and judged, or it is refused in these
words, but it is not passed over. Where `finds` is REFUSED only the error will do.

Where a verdict is not obvious, the kernel's docstring gives the rule of PTX or CUDA that it rests
on. Not covered: what kernels compute.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import pipelib
from pallascope.report import FindingKind
from tests.pallascope.kernels import TRANSFORMS, like

FIRST, ALL, WHOLE, REFUSED = "first", "all", "whole", "refused"
HERE = __name__.rpartition(".")[2]


class Newcomer(NamedTuple):
    """A kernel, by `name`; the part of the name before the "/" is its class.

    Args:
      make: gives the function and its arguments.
      finds: the kind that must be found; None if the kernel is right; REFUSED.
      says: what the report must say somewhere.
      refused: what the trace's error says.
      noted: words of a note that will do where a finding is asked for.
      blocks: FIRST is one block; ALL are all, each checked, then compared; WHOLE is one program of
        the whole grid.
      calls: how many kernels the function calls, each of which is looked at.
      jax: the first version of JAX that has what the kernel uses.
    """

    name: str
    make: Callable[[], tuple[Any, ...]]
    finds: str | None = None
    says: str = ""
    refused: str = ""
    noted: str = ""
    blocks: str = FIRST
    calls: int = 1
    jax: tuple[int, ...] = ()


NEWCOMERS: list[Newcomer] = []


def twins(of: str, finds: str, each: tuple[Any, ...] = ((),), **more: Any) -> Any:
    """Adds the kernel that a function makes, with its fault and without, for `each` of some cases.

    The function takes whether the kernel is faulty, and the case, and returns the kernel, or the
    kernel and its arguments.
    """

    def added(function: Callable[..., Any]) -> Callable[..., Any]:
        for case in each:
            options = () if case == () else (case,)
            named = "-".join([f"{of}/{function.__name__}", *map(str, options)])
            others = {key: more[key] for key in more.keys() - {"says", "noted", "refused"}}
            _add(named, function, (True, *options), finds=finds, **more)
            _add(f"{named}, mended", function, (False, *options), **others)
        return function

    return added


def variants(of: str, finds: dict[str, str | None], **more: Any) -> Callable[[Any], Any]:
    """Adds the kernels that a function makes of some words: each says what is wrong, or nothing."""

    def added(function: Callable[..., Any]) -> Callable[..., Any]:
        for words, kind in finds.items():
            name = f"{of}/{function.__name__}" + (f", {words}" if words else "")
            _add(name, function, (words,), finds=kind, **more)
        return function

    return added


def alone(of: str, **fields: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the kernel that a function makes."""

    def added(function: Callable[..., Any]) -> Callable[..., Any]:
        _add(f"{of}/{function.__name__}", function, (), **fields)
        return function

    return added


def _add(name: str, function: Callable[..., Any], options: tuple[Any, ...], **fields: Any) -> None:
    def make() -> tuple[Any, ...]:
        made = function(*options)
        return made if isinstance(made, tuple) else (made, ROW)

    NEWCOMERS.append(Newcomer(name.replace("_", " "), make, **fields))


def line_of(text: str) -> str:
    """ "file:line" of the only line of this module that ends in a comment of this text."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.endswith(f"  # {text}"))
    return f"{HERE}.py:{number}"


F32, I32 = jnp.float32, jnp.int32
RACE, DEADLOCK = FindingKind.RACE, FindingKind.DEADLOCK
MISUSE, COMMIT = FindingKind.BARRIER_MISUSE, FindingKind.MISSING_COMMIT
BARE, RESOURCE = FindingKind.UNINITIALIZED_READ, FindingKind.RESOURCE
LOST, OUTSIDE = FindingKind.LOST_STORE, FindingKind.OUT_OF_BOUNDS
MIXED, UNWRITTEN = FindingKind.MIXED_TILE, FindingKind.UNWRITTEN_OUTPUT
f32 = functools.partial(like, dtype=F32)
ROW = f32(128)
TILE, TABLE = plgpu.SMEM((128,), F32), like(4, dtype=I32)
ROWS, THREE_ROWS, FOUR_ROWS = (plgpu.SMEM((n, 128), F32) for n in (2, 3, 4))
BARRIER = plgpu.Barrier()
TWO = dict(num_threads=2, thread_name="wg")
THREE = dict(num_threads=3, thread_name="wg")
PAIR = dict(cluster=(2,), cluster_names=("x",))


def rows(count: int) -> Any:
    """The type of rows of 128 numbers."""
    return f32(count, 128)


def barriers(count: Any = (), arrivals: int = 1) -> Any:
    """An array of barriers."""
    return plgpu.Barrier(num_barriers=count, num_arrivals=arrivals)


def of(body: Callable[..., None], *scratch: Any, out: Any = ROW, **options: Any) -> Any:
    """A kernel with one output and this scratch memory."""
    return plgpu.kernel(body, out_type=out, scratch_types=scratch, **options)


def made(*scratch: Any, args: tuple[Any, ...] = (ROW,), **options: Any) -> Callable[[Any], Any]:
    """Makes a function that makes the kernel, of the kernel with what it is bound to at its end."""
    return lambda body: _bound(body, lambda bound: (of(bound, *scratch, **options), *args))


def _bound(body: Any, call: Callable[[Any], Any]) -> Any:
    @functools.wraps(body)
    def make(*values: Any) -> Any:
        names = [*inspect.signature(body).parameters]
        last = names[len(names) - len(values) :]
        return call(functools.partial(body, **dict(zip(last, values))))

    return make


def summing(blocks: int, *scratch: Any) -> Callable[[Any], Any]:
    """The same for a kernel of a grid that changes an array of the host's."""

    def call(bound: Any, x: Any) -> Any:
        total = jax.new_ref(jnp.zeros(128))
        plgpu.kernel(bound, out_type=(), scratch_types=scratch, **grid(blocks))(x, total)
        return total[...]

    return lambda body: _bound(body, lambda bound: (functools.partial(call, bound), rows(blocks)))


def grid(*sizes: int) -> dict[str, Any]:
    """A grid whose axes are i, j, k, l."""
    return dict(grid=sizes, grid_names=tuple("ijkl"[: len(sizes)]))


def wg(*roles: Callable[[], None]) -> None:
    """Each thread does its role."""
    lax.switch(lax.axis_index("wg"), [lambda role=role: role() for role in roles])


def strided(value: Any) -> Any:
    """A value as async_store_smem takes it."""
    return plgpu.layout_cast(value, plgpu.Layout.WG_STRIDED(value.shape, vec_size=1))


def constant(value: float = 1.0) -> Any:
    """A row of one number."""
    return strided(jnp.full((128,), value, F32))


def wait(barrier: Any, is_on: bool = True) -> None:
    """A wait for a barrier, or none."""
    if is_on:
        plgpu.barrier_wait(barrier)


def arrive(barrier: Any, is_on: bool = True) -> None:
    """An arrival on a barrier, or none."""
    if is_on:
        plgpu.barrier_arrive(barrier)


def copy(source: Any, target: Any, barrier: Any, **more: Any) -> None:
    """A load."""
    plgpu.copy_gmem_to_smem(source, target, barrier, **more)


def store(source: Any, target: Any) -> None:
    """What a thread wrote to SMEM, to GMEM."""
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(source, target)
    plgpu.wait_smem_to_gmem(0)


def row_kernel(faulty: bool) -> Any:
    """Loads a row and writes it to the output, without the wait if it is faulty."""

    def kernel(x, o, tile, loaded):
        plgpu.copy_gmem_to_smem(x, tile, loaded)
        wait(loaded, not faulty)
        o[...] = tile[...]
        wait(loaded, faulty)

    return of(kernel, TILE, BARRIER)


# Kernels within primitives of the host. Each wrapper takes a function of a row that calls the
# kernel, and gives a function of a row that calls it in some other way.


def _custom(kind: str) -> Callable[..., Any]:
    def wrap(call, within=lambda function: function):
        if kind == "jvp":
            function = jax.custom_jvp(call)
            function.defjvp(lambda primals, tangents: (call(*primals), tangents[0]))
            return function
        function = jax.custom_vjp(call)
        function.defvjp(lambda x: (call(x), x), lambda x, d: (call(d),))
        return function if kind == "vjp" else lambda x: jax.vjp(within(function), x)[1](x)[0]

    return wrap


def _on_mesh(call: Any) -> Any:
    mesh = AbstractMesh((2,), ("d",), axis_types=(AxisType.Auto,))
    return jax.shard_map(call, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)


def _custom_vmap(call: Any) -> Any:
    function = jax.custom_batching.custom_vmap(call)
    function.def_vmap(lambda size, batched, x: (jax.vmap(lambda row: row + 1)(x), True))
    return function


def _called(wrap: Any, *args: Any, **more: Any) -> Callable[[Any], Any]:
    return lambda call: lambda x: wrap(call, x, *args, **more)


def _scanned(call: Any, x: Any) -> Any:
    return lax.scan(lambda carry, _: (call(carry), None), x, None, length=2)[0]


def _solved(call: Any, x: Any) -> Any:
    solve = lambda _, b: call(b)
    return lax.custom_linear_solve(lambda v: 2.0 * v, x, solve, solve)


def _root(call: Any, x: Any) -> Any:
    return lax.custom_root(lambda v: v - x, x, lambda _, v: call(v), lambda g, y: y / g(1.0))


def _converted(call: Any, x: Any) -> Any:
    function, constants = jax.closure_convert(call, x)
    return function(x, *constants)


def _of_platform(call: Any, x: Any) -> Any:
    return lax.platform_dependent(x, cuda=call, default=lambda x: x + 1)


_SAVEABLE = dict(policy=jax.checkpoint_policies.dots_saveable)
HOSTS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "checkpoint with a policy": functools.partial(jax.checkpoint, **_SAVEABLE),
    "checkpoint in scan": lambda call: functools.partial(_scanned, jax.checkpoint(call)),
    "gradient of checkpoint": lambda call: _custom("gradient")(call, jax.checkpoint),
    "platform_dependent": _called(lambda f, x: lax.platform_dependent(x, cuda=f, default=f)),
    "platform_dependent with another default": _called(_of_platform),
    "custom_linear_solve": _called(_solved),
    "custom_root": _called(_root),
    "composite": functools.partial(jax.lax.composite, name="of.rows"),
    "custom_vjp": _custom("vjp"),
    "gradient of custom_vjp": _custom("gradient"),
    "custom_jvp": _custom("jvp"),
    "custom_vmap": _custom_vmap,
    "scan": _called(_scanned),
    "map": _called(lambda call, x: lax.map(call, jnp.stack([x, x]))),
    "fori_loop": _called(lambda call, x: lax.fori_loop(0, 2, lambda _, c: call(c), x)),
    "vmap": _called(lambda call, x: jax.vmap(call)(jnp.stack([x, x]))),
    "a constant's cond": _called(lambda call, x: lax.cond(np.int32(3) > 2, call, jnp.sin, x)),
    "data's cond": _called(lambda call, x: lax.cond(x[0] > 0, call, lambda x: x, x)),
    "data's while": _called(lambda call, x: lax.while_loop(lambda c: c[0] > 0, call, x)),
    "while's condition": _called(
        lambda call, x: lax.while_loop(lambda c: call(c)[0] > 0, lambda c: c, x)
    ),
    "shard_map": _on_mesh,
    "closure_convert": _called(_converted),
}
# The names of primitives, and words for what data decide, by which a kernel may be refused.
_REFUSALS = (
    "remat|platform|custom_linear_solve|custom_root|composite|calls the kernel|end of a loop"
)


def _hosted() -> Iterator[Newcomer]:
    """In each wrapper a faulty kernel after a right one, and a right kernel.

    The right one before makes a kernel that is passed over in silence visible: "no finding".
    """
    in_a_loop = {"scan", "map", "fori_loop", "checkpoint in scan"}
    calls = {name: 2 for name in in_a_loop} | {"gradient of custom_vjp": 2}
    calls |= {"gradient of checkpoint": 2}  # nothing needs the first kernel's result again
    for name, wrap in HOSTS.items():

        def make(faulty: bool, wrap: Any = wrap) -> tuple[Any, ...]:
            called = wrap(row_kernel(faulty))
            return lambda x: called(row_kernel(faulty=False)(x)), ROW

        options = dict(refused=_REFUSALS, calls=1 + calls.get(name, 1))
        yield Newcomer(f"host/{name}", functools.partial(make, True), RACE, **options)
        right = functools.partial(make, False)
        yield Newcomer(f"host/{name}, mended", right, None, **options)


NEWCOMERS.extend(_hosted())


# What blocks of a cluster do to each other's shared memory.


def at(block: Any, function: Callable[[], None]) -> None:
    """One block of a pair does this."""
    pl.when(lax.axis_index("x") == block)(function)


def met(barrier: Any, is_on: bool = True) -> None:
    """The blocks of a cluster meet, or the threads of a block."""
    arrive(barrier, is_on)
    wait(barrier, is_on)


MET = plgpu.ClusterBarrier(collective_axes=("x",))
FREE = plgpu.ClusterBarrier(collective_axes=("x",), num_barriers=2)
RECYCLED = plgpu.ClusterBarrier(collective_axes=("x",), num_barriers=2, num_arrivals=2)
PLACES = dict(out=rows(2), **PAIR)


def send(value: Any, target: Any, barrier: Any, to: int, **more: Any) -> None:
    """A row of registers to a block of the pair."""
    plgpu.async_store_smem(
        value, target, barrier, cluster_idx=jnp.int32(to), cluster_dim="x", **more
    )


@twins("peers", RACE, each=(0, 1))
@made(BARRIER, **PLACES)
def lands_after_its_scope(x, o, landed, faulty, sender):
    """The receiver's scope ends with the store in flight, and the next scope has its memory.

    st.async is a weak write of the target's memory that only the mbarrier's phase orders.
    """

    receiver = 1 - sender

    def first(tile):
        at(sender, lambda: send(constant(), tile, landed, receiver))
        if not faulty:
            at(receiver, lambda: wait(landed))

    def second(tile):
        tile[...] = x[...]
        o[lax.axis_index("x")] = tile[...]

    pl.run_scoped(first, TILE)
    pl.run_scoped(second, TILE)
    if faulty:
        at(receiver, lambda: wait(landed))


@twins("peers", RACE, each=(0, 1))
@made(BARRIER, MET, **PLACES)
def stored_before_the_peer_left_its_scope(x, o, landed, gone, faulty, sender):
    """The sender is in the second scope already, whose memory the receiver has as its first's."""
    me, receiver = lax.axis_index("x"), 1 - sender

    def first(tile):
        tile[...] = x[...]
        o[me] = tile[...]
        met(gone, not faulty)

    def second(tile):
        at(sender, lambda: send(constant(), tile, landed, receiver))

        @pl.when(me == receiver)
        def _():
            wait(landed)
            o[me] = tile[...]

    pl.run_scoped(first, TILE)
    pl.run_scoped(second, TILE)


@twins("peers", MISUSE, each=(0, 1))
@made(TILE, BARRIER, **PLACES)
def stored_to_a_peer_that_ends(x, o, tile, landed, faulty, sender):
    """A block may end when its threads do, and its memory goes to another block of the grid."""
    receiver = 1 - sender
    at(sender, lambda: send(constant(), tile, landed, receiver))
    if not faulty:
        at(receiver, lambda: wait(landed))
    o[lax.axis_index("x")] = x[...]


@twins("peers", MISUSE, each=(0, 1))
@made(BARRIER, **PLACES)
def arrives_at_a_peer_that_ends(x, o, told, faulty, sender):
    """PTX leaves a remote arrival undefined where the barrier's block has ended."""
    receiver = 1 - sender
    at(sender, lambda: arrive(plgpu.cluster_ref(told, {"x": receiver})))
    if not faulty:
        at(receiver, lambda: wait(told))
    o[lax.axis_index("x")] = x[...]


@twins("peers", RACE, each=(0, 1))
@made(TILE, MET, MET, **PAIR)
def read_from_a_peer_that_ends(x, o, tile, written, read, faulty, reader):
    """Distributed shared memory exists as long as its block: CUDA asks for a sync before exit."""
    at(1 - reader, lambda: tile.__setitem__(..., x[...]))
    met(written)
    at(reader, lambda: o.__setitem__(..., plgpu.cluster_ref(tile, {"x": 1 - reader})[...]))
    met(read, not faulty)


@twins("peers", RACE, each=(0, 1))
@made(MET, MET, out=rows(3), **PAIR)
def read_from_a_peer_that_left_its_scope(x, o, written, read, faulty, reader):
    """The peer's next scope writes the same bytes while they are read."""

    def first(tile):
        at(1 - reader, lambda: tile.__setitem__(..., x[...]))
        met(written)
        at(reader, lambda: o.__setitem__(0, plgpu.cluster_ref(tile, {"x": 1 - reader})[...]))
        met(read, not faulty)

    def second(other):
        other[...] = x[...] * 2.0
        at(1 - reader, lambda: o.__setitem__(1, other[...]))
        at(reader, lambda: o.__setitem__(2, other[...]))

    pl.run_scoped(first, TILE)
    pl.run_scoped(second, TILE)
    met(read)


@twins("peers", RACE, each=(0, 1))
@made(TILE, MET, MET, **PAIR)
def read_from_a_peer_that_writes(x, o, tile, written, read, faulty, reader):
    """Nothing but the cluster's barrier puts the peer's write before the read."""
    at(1 - reader, lambda: tile.__setitem__(..., x[...]))
    met(written, not faulty)
    at(reader, lambda: o.__setitem__(..., plgpu.cluster_ref(tile, {"x": 1 - reader})[...]))
    met(read)


@twins("peers", RACE, each=(0, 1))
@made(TILE, BARRIER, BARRIER, **PLACES)
def a_second_round_without_credit(x, o, tile, landed, free, faulty, receiver):
    """The sender's second row lands while the receiver may still read the first."""
    sender = 1 - receiver
    for round in range(2):

        @pl.when(lax.axis_index("x") == sender)
        def _(round=round):
            wait(free, round and not faulty)
            send(constant(round), tile, landed, receiver)

        @pl.when(lax.axis_index("x") == receiver)
        def _(round=round):
            wait(landed)
            o[round] = tile[...]
            arrive(plgpu.cluster_ref(free, {"x": sender}), round == 0 and not faulty)

    if faulty:
        back = plgpu.cluster_ref(free, {"x": sender})
        at(receiver, lambda: arrive(back))
        at(sender, lambda: wait(free))


@twins("peers", RACE, each=(0, 1))
@made(TILE, MET, barriers((), 2), **PLACES)
def summed_by_one_block(x, o, total, ready, landed, faulty, owner):
    """Both blocks add to one block's row; it reads the sum once both have landed."""

    @pl.when(lax.axis_index("x") == owner)
    def _():
        total[...] = jnp.zeros(128, F32)
        plgpu.commit_smem()

    met(ready)
    send(constant(), total, landed, owner, atomic="add")

    @pl.when(lax.axis_index("x") == owner)
    def _():
        wait(landed, not faulty)
        o[0] = total[...]
        wait(landed, faulty)


@variants("peers", {"": None, "each block frees its own": RACE, "freed before it is read": RACE})
@made(ROWS, barriers(2), barriers(2), FREE, out=f32(2, 4, 128), **PAIR, **TWO, args=(rows(4),))
def multicast(x, o, tiles, loaded, own, free, faulty):
    """Two blocks share a tile in two slots; each block's consumer frees its own slot.

    A slot may be refilled once both blocks have let go of it, since each half comes from the other.
    """
    is_own, is_early = "own" in faulty, "before" in faulty
    me = lax.axis_index("x")
    for step in range(4):
        slot = step % 2

        def load(step=step, slot=slot):
            wait((own if is_own else free).at[slot], step >= 2)
            copy(x.at[step], tiles.at[slot], loaded.at[slot], collective_axes="x")

        def use(step=step, slot=slot):
            wait(loaded.at[slot])
            arrive(free.at[slot], is_early)
            o[me, step] = tiles[slot]
            arrive((own if is_own else free).at[slot], not is_early)

        wg(load, use)
    for slot in range(2 if not is_own else 0):
        pl.when(lax.axis_index("wg") == 0)(lambda slot=slot: wait(free.at[slot]))


@twins("peers", RACE)
@made(BARRIER, MET, out=f32(2, 2, 128), **PAIR, args=(rows(2),))
def shared_load_of_the_next_scope(x, o, loaded, read, faulty):
    """A block shares its next scope's load, which lands where its peer still reads the last."""
    for step in range(2):

        def scope(tile, step=step):
            copy(x.at[step], tile, loaded, collective_axes="x")
            wait(loaded)
            o[lax.axis_index("x"), step] = tile[...]
            met(read, not faulty)

        pl.run_scoped(scope, TILE)


@twins("peers", DEADLOCK, each=((1, 3), (3, 1)))
def groups_of_two_lengths(faulty: bool, lengths: tuple[int, int]):
    """A cluster's pair straddles two groups of a ragged product (DeepGEMM's pull request 429).

    Each block loads half of what both multiply; the block of the longer group waits for halves
    that the other one does not load. Mended, the shorter one loads on.
    """

    def kernel(counts, x, o, tiles, loaded, free):
        mine = counts[lax.axis_index("x")]
        steps = jnp.maximum(counts[0], counts[1]) if not faulty else mine

        @pl.loop(0, steps)
        def _(step):
            copy(x.at[step], tiles, loaded, collective_axes="x")
            wait(loaded)

            @pl.when(step < mine)
            def _():
                o[lax.axis_index("x"), step] = tiles[...]

            met(free)

    out = f32(2, 4, 128)
    call = of(kernel, TILE, BARRIER, MET, out=out, **PAIR)
    return call, np.array(lengths, np.int32), rows(4)


@twins("peers", DEADLOCK)
@made(ROWS, barriers(6), RECYCLED, out=f32(2, 6, 128), **PAIR, **TWO, args=(rows(6),))
def transport_that_lags(x, o, slots, computed, recycled, faulty):
    """A slot is recycled once its transport is done, which starts three steps later (marin 8311).

    The ring has two slots: compute waits for the transport of step 0 before step 2, and transport
    for compute's step 3 (mended: step 1) before it starts on step 0.
    """
    lag = 3 if faulty else 1

    def compute():
        for step in range(6):
            wait(recycled.at[step % 2], step >= 2)
            slots[step % 2] = x[step]
            plgpu.commit_smem()
            arrive(computed.at[step])
            arrive(recycled.at[step % 2])
        for slot in range(2):
            wait(recycled.at[slot])

    def transport():
        for step in range(6):
            for seen in [step + lag] if step else range(lag + 1):
                wait(computed.at[seen], seen < 6)
            plgpu.copy_smem_to_gmem(slots.at[step % 2], o.at[lax.axis_index("x"), step])
            plgpu.wait_smem_to_gmem(0)
            arrive(recycled.at[step % 2])

    wg(compute, transport)


_AXES = {"": (("x", "y"),), "axis by axis": ("x", "y"), "along one axis": ("x",)}


@variants("peers", {"": None, "axis by axis": RACE, "along one axis": RACE})
def square_cluster(how: str):
    """All four blocks share a tile; a barrier of two axes apart leaves out the block across."""

    def kernel(x, o, tile, loaded, free):
        for step in range(2):
            copy(x.at[step], tile, loaded, collective_axes=("x", "y"))
            wait(loaded)
            o[lax.axis_index("x"), lax.axis_index("y"), step] = tile[...]
            met(free)

    free = plgpu.ClusterBarrier(collective_axes=_AXES[how])
    mesh = dict(out=f32(2, 2, 2, 128), cluster=(2, 2), cluster_names=("x", "y"))
    return of(kernel, TILE, BARRIER, free, **mesh), rows(2)


# Limits of a launch.


def idle(**mesh: Any) -> Any:
    """A kernel that does nothing but read a row."""
    return of(lambda x: (x[...], None)[1], out=(), **mesh)


@twins("limits", RESOURCE, each=(9, 12))
def lanes_of_a_block(faulty: bool, threads: int):
    """CUDA launches at most 1,024 lanes a block, 8 Pallas threads of 128."""
    return idle(num_threads=threads if faulty else 8, thread_name="wg")


@twins("limits", RESOURCE, each=((32,), (17,), (3, 6), (2, 3, 3)))
def blocks_of_a_cluster(faulty: bool, shape: tuple[int, ...]):
    """Hopper has 16 at most, if a launch asks for more than 8, as JAX's does."""
    shape = shape if faulty else (4, 4)
    return idle(cluster=shape, cluster_names=("x", "y", "z")[: len(shape)])


@twins("limits", RESOURCE, each=((65_536, 1), (65_536, 1, 1), (256, 257, 1, 1), (2**31,)))
def blocks_of_a_grid(faulty: bool, sizes: tuple[int, ...]):
    """CUDA's x, here the last axis, takes 2^31 - 1 blocks, y and z 65,535.

    Mosaic GPU makes one axis of all but the last two.
    """
    return idle(**grid(*sizes if faulty else (4, 65_535, 2**20)))


@twins("limits", RESOURCE)
def clusters_along_an_axis(faulty: bool):
    """An axis of CUDA's grid counts blocks, so 40,000 clusters of 2 are 80,000 along y."""
    return idle(**grid(40_000 if faulty else 32_000, 1), cluster=(2, 1), cluster_names=("x", "y"))


def shared(words: int, wait: bool, blocks: int, last_signals: bool = True) -> Any:
    """All blocks wait for a signal of the last one, holding this much shared memory."""

    def kernel(x, o, tile):
        semaphore, block = pl.get_global(plgpu.SemaphoreType.REGULAR), lax.axis_index("i")
        pl.when(block == (blocks - 1 if last_signals else 0))(
            lambda: pl.semaphore_signal(semaphore, 1)
        )
        if wait:
            pl.semaphore_wait(semaphore, 1, decrement=False)
        tile[0:128] = x[...]
        o[block] = tile[0:128]

    return of(kernel, plgpu.SMEM((words,), F32), out=rows(blocks), **grid(blocks))


@twins("resident", DEADLOCK, blocks=WHOLE, noted="at once")
def all_wait_for_the_last(faulty: bool):
    """A block of 200 KiB has an SM to itself: 132 run, and wait for one that never starts.

    CUDA promises no order of blocks; mended, each SM holds several blocks, so all are resident.
    """
    return shared(51_200 if faulty else 2_048, wait=True, blocks=140)


@alone("resident", blocks=WHOLE)
def all_wait_for_the_first():
    """Blocks start in the order of their numbers on today's GPUs, and block 0 waits for none."""
    return shared(51_200, wait=True, blocks=140, last_signals=False)


# Accesses whose index data decide.


@twins("opaque index", RACE, each=("write", "read"))
@made(TILE, BARRIER, BARRIER, **TWO, args=(TABLE, ROW))
def somewhere_in_what_another_covers(table, x, o, tile, loaded, done, faulty, which):
    """Whichever element the index names, the other thread accesses it."""

    def write_one():
        tile[pl.ds(table[0], 1)] = x[0:1]

    def read_one():
        o[0:1] = tile[pl.ds(table[0], 1)]

    def first():
        copy(x, tile, loaded)
        wait(loaded)
        write_one() if which == "write" else tile.__setitem__(..., x[...])
        arrive(done, not faulty)

    def second():
        wait(loaded)
        wait(done, not faulty)
        o.__setitem__(..., tile[...]) if which == "write" else read_one()

    wg(first, second)


@twins("opaque index", RACE)
@made(TILE, BARRIER, args=(TABLE, ROW))
def somewhere_in_a_load(table, x, o, tile, loaded, faulty):
    """The load in flight writes all of the tile."""
    copy(x, tile, loaded)
    wait(loaded, not faulty)
    o[0:1] = tile[pl.ds(table[0], 1)]
    wait(loaded, faulty)


@twins("opaque index", RACE, blocks=ALL)
def scattered_into_what_a_block_reads(faulty: bool):
    """Block 0 scatters a row somewhere into the array that block 1 reads as a whole."""

    def kernel(table, x, workspace, o):
        block = lax.axis_index("i")

        @pl.when(block == 0)
        def _():
            workspace[table[0]] = x[...]

        @pl.when(block == (1 if faulty else 0))
        def _():
            o[...] = workspace[...]

    def call(table, x):
        workspace, o = jax.new_ref(jnp.zeros((4, 128))), jax.new_ref(jnp.zeros((4, 128)))
        plgpu.kernel(kernel, out_type=(), **grid(2))(table, x, workspace, o)
        return o[...]

    return call, TABLE, ROW


@alone("opaque index", blocks=ALL)
@made(TILE, out=rows(4), **grid(4), args=(TABLE, rows(8)))
def gathered_by_a_table_of_data(table, x, o, tile):
    """Each block reads rows that a tensor names, and writes its own: a gather of embeddings."""
    block = lax.axis_index("i")
    tile[...] = x[table[block]]
    store(tile, o.at[block])


@twins("opaque index", RACE, blocks=ALL)
def scattered_by_a_known_table(faulty: bool):
    """Two entries of the table are equal, so two blocks write one row."""

    def kernel(table, x, o):
        o[table[lax.axis_index("i")]] = x[...]

    table = np.array([2, 0, 2, 1] if faulty else [2, 0, 3, 1], np.int32)
    return of(kernel, out=rows(4), **grid(4)), table, ROW


@twins("opaque index", OUTSIDE)
def a_known_table_beyond_its_array(faulty: bool):
    def kernel(table, x, o):
        for entry in range(2):
            o[entry] = x[table[entry]]

    table = np.array([3, 4 if faulty else 0], np.int32)
    return of(kernel, out=rows(2)), table, rows(4)


# What is right, and was called wrong; what is wrong, and was passed.


@variants(
    "stream-K",
    {
        "": None,
        "by bulk copies": None,
        "no wait": RACE,
        "no signal": DEADLOCK,
        "nothing left": BARE,
        "bulk copies that are not written yet": RACE,
    },
    blocks=WHOLE,
)
@made(TILE, out=(rows(2), rows(3)), **grid(3), args=(rows(6),))
def stream_k(x, o, workspace, tile, faulty):
    """Three blocks share two tiles of three units: block 1 ends tile 0 and begins tile 1.

    A block that does not finish its tile leaves a partial sum in the workspace, and signals.
    `wait_read_only` returns once the bulk copy has read SMEM; GMEM may be written later.
    """
    ready, block = pl.get_global(plgpu.SemaphoreType.REGULAR((3,))), lax.axis_index("i")

    def leave(total):
        if "bulk" in faulty:
            tile[...] = total
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(tile, workspace.at[block])
            plgpu.wait_smem_to_gmem(0, wait_read_only="not" in faulty)
        else:
            workspace[block] = total
        if faulty != "no signal":
            pl.semaphore_signal(ready.at[block])

    def add(of, total, to):
        if faulty != "no wait":
            pl.semaphore_wait(ready.at[of])
        o[to] = total + workspace[of]

    @pl.when(block == 0)
    def _():
        leave(x[0] + x[1])

    @pl.when(block == 1)
    def _():
        add(0, x[2], 0)
        if faulty != "nothing left":
            leave(x[3] + 1.0)
        else:
            pl.semaphore_signal(ready.at[1])

    @pl.when(block == 2)
    def _():
        add(1, x[4] + x[5], 1)


@alone("stream-K", blocks=ALL, says="semaphore")
def block_by_block():
    """Where semaphores are not followed, a block cannot know that the other one writes: a note."""
    return stream_k("")


@twins("false alarms", BARE)
@made(FOUR_ROWS, BARRIER, out=rows(4), args=(rows(3),))
def rows_that_where_masks(x, o, tiles, loaded, faulty):
    """The rows beyond the loaded ones are read into registers, and `where` drops them."""
    copy(x, tiles.at[pl.ds(0, 3)], loaded)
    wait(loaded)
    layout = plgpu.Layout.WG_STRIDED((4, 128), vec_size=1)
    held = plgpu.layout_cast(tiles[...], layout)
    row = plgpu.broadcasted_iota(I32, (4, 128), 0, layout=layout)
    o[...] = jnp.where(row < (4 if faulty else 3), held, 0.0)


def _shifted(body: Callable[..., Any]) -> Any:
    """A kernel that loads rows 1 to 3, and writes what a body makes of rows from 0 on.

    The body gets a function that reads rows 0 to 3, or those before by a number, and row numbers.
    """
    layout = plgpu.Layout.WG_STRIDED((4, 128), vec_size=1)

    def kernel(x, o, tiles, loaded):
        copy(x, tiles.at[pl.ds(3, 4)], loaded)
        wait(loaded)
        held = lambda back: plgpu.layout_cast(tiles[pl.ds(3 - back, 4)], layout)
        o[...] = body(held, plgpu.broadcasted_iota(I32, (4, 128), 0, layout=layout))

    tiles = plgpu.SMEM((7, 128), F32)
    return of(kernel, tiles, BARRIER, out=rows(4)), rows(4)


_SUMS = {
    "": lambda row, value: jnp.where(row >= 1, value * 2.0 + 1.0, 0.0),
    "in the other case": lambda row, value: jnp.where(row < 1, 0.0, -value),
    "of every other row": lambda row, value: jnp.where((row % 2) == 0, 0.0, value),
    "by select": lambda row, value: lax.select(row > 0, jnp.exp(value), jnp.zeros_like(value)),
    "twice": lambda row, value: jnp.where(row > 0, value, 0.0) + jnp.where(row > 1, value, 0.0),
    "one row too few": lambda row, value: jnp.where(row >= 0, value, 0.0),
    "once of two": lambda row, value: jnp.where(row > 0, value, 0.0) + value,
    "of its sum": lambda row, value: jnp.where(row > 0, jnp.sum(value), 0.0),
    "by a product": lambda row, value: value * jnp.where(row > 0, 1.0, 0.0),
    "by what it holds": lambda row, value: jnp.where(value > 0, value, 0.0),
}
_STILL = {"one row too few", "once of two", "of its sum", "by a product", "by what it holds"}


@variants("masked rows", {words: BARE if words in _STILL else None for words in _SUMS})
def a_row_that_a_mask_leaves_out(words: str):
    """Row 0 of what is read was not loaded, and a select drops what is made of it: or it does not.

    NaN times 0 is NaN, so a product with a mask drops nothing.
    """
    return _shifted(lambda held, row: _SUMS[words](row, held(1)))


@twins("masked rows", BARE)
def rows_that_a_mask_leaves_out_in_a_loop(faulty: bool):
    """Each step reads a row further back, and drops a row more; one too few if it is faulty."""

    def body(held, row):
        step = lambda d, total: total + jnp.where(row >= d - int(faulty), held(d) * total, 0.0)
        return lax.fori_loop(1, 4, step, held(0))

    return _shifted(body)


@alone("masked rows", finds=BARE)
def a_product_that_a_loop_carries_on():
    """What a step drops goes on to the next one, and nobody looks what that drops: a finding."""

    def body(held, row):
        def step(d, carry):
            product = carry[0] * held(d)
            return product, carry[1] + jnp.where(row >= d, product, 0.0)

        return lax.fori_loop(1, 4, step, (held(0), held(0)))[1]

    return _shifted(body)


@twins("masked rows", BARE)
@made(plgpu.SMEM((128,), F32), BARRIER, out=rows(128), args=(f32(120),))
def numbers_that_become_rows(x, o, numbers, loaded, faulty):
    """A number each for rows, of which the last are masked; or for columns, which nothing masks."""
    copy(x, numbers.at[pl.ds(0, 120)], loaded)
    wait(loaded)
    held = numbers[...]
    wide = lax.broadcast_in_dim(held, (128, 128), (0,))
    if faulty:
        wide += lax.broadcast_in_dim(held, (128, 128), (1,))
    row = lax.broadcasted_iota(I32, (128, 128), 0)
    o[...] = jnp.where(row < 120, wide, 0.0)


@alone("false alarms", says="does no harm")
@made(ROWS, out=rows(3), args=(rows(3),))
def filled_for_a_step_that_does_not_come(x, o, slots):
    """A loop fills the slot of the next step, also in its last step."""
    slots[0] = x[0]
    for step in range(3):
        slots[(step + 1) % 2] = x[(step + 1) % 3]
        o[step] = slots[step % 2]


@twins("views", OUTSIDE, each=("written", "stored", "read"), says="of which the view has indices")
@made(ROWS, out=rows(8), args=(rows(8),))
def an_index_beyond_its_view(x, o, slots, faulty, access):
    """JAX adds up the indices of views, and looks at none of them: row 2 of two is the next one."""
    slots[...] = x[pl.ds(0, 2)]
    for i in range(4):

        def step(n, _, i=i):
            rows = x if access == "read" else o
            row = rows.at[pl.ds(2 * i, 2)].at[n + int(faulty and i < 3)]
            if access == "read":
                o[2 * i + n] = row[...] + slots[n]
            elif access == "written":
                row[...] = slots[n]
            else:
                store(slots.at[n], row)

        lax.fori_loop(0, 2, step, None)


@alone("views")
@made(ROWS, out=rows(2), args=(rows(7),))
def views_of_views(x, o, slots):
    """Some of every other row of a view; and a view that is all of a view."""
    slots[...] = x.at[pl.ds(1, 6)].at[pl.ds(0, 3, 2)].at[pl.ds(1, 2)][...]
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(slots.at[pl.ds(0, 2)], o.at[pl.ds(0, 2)].at[pl.ds(0, 2)])
    plgpu.wait_smem_to_gmem(0)


@twins("false alarms", LOST)
@made(TILE, args=(rows(1),))
def the_last_step_is_not_stored(x, o, tile, faulty):
    """The same fault as above from the other side: each step's row must be stored."""
    tile[...] = x[0]
    if not faulty:
        store(tile, o)


@twins("registers", RESOURCE, each=(2, 3, 4))
def asks_in_the_wrong_direction(faulty: bool, threads: int):
    """PTX: an increase to less than a lane has is undefined, and no lane has less than 24."""

    def kernel(x, o):
        plgpu.set_max_registers(24, action="increase" if faulty else "decrease")
        o[lax.axis_index("wg")] = x[...]

    return of(kernel, out=rows(threads), num_threads=threads, thread_name="wg")


@twins("registers", RESOURCE, each=(2, 3))
def the_two_directions_swapped(faulty: bool, threads: int):
    """Whatever a lane begins with, it is above 40 or below 232: one of the two is wrong."""

    def kernel(x, o):
        me = lax.axis_index("wg")
        first, second = ("increase", "decrease") if faulty else ("decrease", "increase")
        pl.when(me == 0)(lambda: plgpu.set_max_registers(40, action=first))
        pl.when(me > 0)(lambda: plgpu.set_max_registers(232, action=second))
        o[me] = x[...]

    return of(kernel, out=rows(threads), num_threads=threads, thread_name="wg")


# Semaphores.


@twins("semaphores", RACE, blocks=WHOLE, jax=(0, 12))
def allocated_by_the_host(faulty: bool):
    """A semaphore of `plgpu.alloc_semaphore`, which outlives the kernel."""

    def kernel(ready, x, workspace, o):
        block = lax.axis_index("i")

        @pl.when(block == 0)
        def _():
            workspace[...] = x[...]
            pl.semaphore_signal(ready)

        @pl.when(block == 1)
        def _():
            if not faulty:
                pl.semaphore_wait(ready)
            o[...] = workspace[...]

    def call(x):
        ready, workspace = plgpu.alloc_semaphore(()), jax.new_ref(jnp.zeros(128))
        return plgpu.kernel(kernel, out_type=ROW, **grid(2))(ready, x, workspace)

    return call, ROW


@alone("semaphores", blocks=WHOLE)
@made(out=(ROW, ROW), **grid(2))
def signals_of_0_and_1(x, o, workspace):
    """The amount is a number of the block's, which the trace knows."""
    ready, block = pl.get_global(plgpu.SemaphoreType.REGULAR), lax.axis_index("i")
    pl.when(block == 0)(lambda: workspace.__setitem__(..., x[...]))
    pl.semaphore_signal(ready, 1 - block)
    pl.when(block == 1)(lambda: pl.semaphore_wait(ready))
    pl.when(block == 1)(lambda: o.__setitem__(..., workspace[...]))


_TURNS = {"": None, "a turn early": RACE, "for itself": DEADLOCK, "for 0": None}


@variants("semaphores", _TURNS, blocks=WHOLE)
@summing(4)
def split_k_in_turns(x, total, how):
    """Each block adds its part to the tile once the block before has; the first waits for none."""
    turn, block = pl.get_global(plgpu.SemaphoreType.REGULAR), lax.axis_index("i")
    needed = block + {"a turn early": -1, "for itself": 1}.get(how, 0)
    if how in ("for itself", "for 0"):
        pl.semaphore_wait(turn, needed, decrement=False)
    else:
        pl.when(needed > 0)(lambda: pl.semaphore_wait(turn, needed, decrement=False))
    total[...] = total[...] + x[block]
    pl.semaphore_signal(turn)


@twins("semaphores", RACE, blocks=WHOLE)
@made(out=(rows(3), f32(2, 3, 128)), **grid(3))
def a_barrier_of_the_grid_twice(x, o, parts, faulty):
    """The second round needs twice the signals; with the first count it is open already."""
    everyone, block = pl.get_global(plgpu.SemaphoreType.REGULAR), lax.axis_index("i")
    for round in (1, 2):
        parts[round - 1, block] = x[...]
        pl.semaphore_signal(everyone)
        pl.semaphore_wait(everyone, 3 if faulty else 3 * round, decrement=False)
    o[block] = parts[1, (block + 1) % 3]


# Pipelines as they are written by hand.


@variants(
    "roles",
    {
        "": None,
        "the slot is not waited for": RACE,
        "the slot is waited for one step late": RACE,
        "the row is not committed": COMMIT,
        "freed before the store has read it": RACE,
        "ready before it is written": RACE,
        "the next slot's barrier": RACE,
        "both rings count the same phase": DEADLOCK,
    },
)
@made(ROWS, ROWS, *[barriers(2)] * 4, out=rows(5), **THREE, args=(rows(5),))
def loader_worker_and_storer(x, o, inputs, outputs, loaded, used, ready, stored, faulty):
    """Three roles and two rings: rows are loaded, doubled into another slot, and stored."""
    late = 3 if "late" in faulty else 9 if "not waited" in faulty else 2

    def load(step, slot):
        pl.when(step >= late)(lambda: wait(used.at[slot]))
        copy(x.at[step], inputs.at[slot], loaded.at[1 - slot if "next" in faulty else slot])

    def work(step, slot):
        wait(loaded.at[slot])
        pl.when(step >= late)(lambda: wait(stored.at[slot]))
        arrive(ready.at[slot], "ready before" in faulty)
        outputs[slot] = inputs[slot] * 2.0
        if "committed" not in faulty:
            plgpu.commit_smem()
        wait(stored.at[slot], "same phase" in faulty)
        arrive(used.at[slot])
        arrive(ready.at[slot], "ready before" not in faulty)

    def send(step, slot):
        wait(ready.at[slot])
        plgpu.copy_smem_to_gmem(outputs.at[slot], o.at[step])
        if "freed" not in faulty:
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        arrive(stored.at[slot])

    def looped(role):
        return lambda: lax.fori_loop(0, 5, lambda step, _: role(step, lax.rem(step, 2)), None)

    wg(looped(load), looped(work), looped(send))
    plgpu.wait_smem_to_gmem(0)


def tiles(*shape: int) -> Any:
    """SMEM for the tensor core."""
    return plgpu.SMEM(shape, jnp.float16, transforms=TRANSFORMS)


@variants("products", {"": None, "released with its product in flight": RACE, "never": DEADLOCK})
@made(
    tiles(3, 64, 64),
    tiles(3, 64, 64),
    barriers(3, 2),
    barriers(3),
    out=f32(64, 64),
    **TWO,
    args=(like(5, 64, 64), like(5, 64, 64)),
)
def ring_with_late_release(a, b, o, a_smem, b_smem, loaded, used, faulty):
    """A slot is released one step later, when the product that reads it is over: wait(1)."""

    def load():
        @pl.loop(0, 5)
        def _(step):
            slot = lax.rem(step, 3)
            pl.when(step >= 3)(lambda: wait(used.at[slot]))
            for x, smem in ((a, a_smem), (b, b_smem)):
                copy(x.at[step], smem.at[slot], loaded.at[slot])

    def multiply():
        def body(acc):
            @pl.loop(0, 5)
            def _(step):
                slot = lax.rem(step, 3)
                wait(loaded.at[slot])
                plgpu.wgmma(acc, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(1)
                last = slot if "flight" in faulty else lax.rem(step + 2, 3)
                if faulty != "never":
                    pl.when((step > 0) | ("flight" in faulty))(lambda: arrive(used.at[last]))

            return acc[...]

        o[...] = pl.run_scoped(body, plgpu.ACC((64, 64), F32))

    wg(load, multiply)


@variants("products", {"": None, "the other's tile is refilled": RACE})
@made(tiles(2, 64, 64), barriers(2), out=f32(64, 64), args=(like(4, 64, 64),))
def ping_pong_accumulators(a, o, tile, loaded, faulty):
    """Two accumulators in turn; while one product runs, the tile of the one before is refilled."""

    def load(step, slot):
        copy(a.at[step], tile.at[slot], loaded.at[slot])

    def body(even, odd):
        load(0, 0)
        load(1, 1)
        for step in range(4):
            slot = step % 2
            wait(loaded.at[slot])
            plgpu.wgmma((even, odd)[slot], tile.at[slot], tile.at[slot])
            plgpu.wgmma_wait(0 if step == 3 and not faulty else 1)
            if 0 < step < 3:
                load(step + 1, slot if faulty else 1 - slot)
        return even[...] + odd[...]

    o[...] = pl.run_scoped(body, plgpu.ACC((64, 64), F32), plgpu.ACC((64, 64), F32))


@variants(
    "products", {"": None, "halves that overlap": RACE, "no barrier": RACE, "no commit": COMMIT}
)
@made(FOUR_ROWS, barriers((), 2), out=rows(4), **TWO, args=(rows(4),))
def cooperative_epilogue(x, o, tile, written, faulty):
    """Two threads write half of a tile each, and one stores it whole."""
    me = lax.axis_index("wg")
    first = me * (1 if "overlap" in faulty else 2)
    tile[pl.ds(first, 2)] = x[pl.ds(first, 2)]
    if "commit" not in faulty:
        plgpu.commit_smem()
    arrive(written)

    @pl.when(me == 0)
    def _():
        wait(written, faulty != "no barrier")
        plgpu.copy_smem_to_gmem(tile, o)
        plgpu.wait_smem_to_gmem(0)


@variants(
    "phases",
    {"": None, "one load for two": DEADLOCK, "waited for one too few": RACE, "lapped": MISUSE},
)
@made(ROWS, barriers((), 2), barriers((), 2), out=f32(4, 2, 128), **TWO, args=(f32(2, 2, 128),))
def one_barrier_for_all(x, o, tile, barrier, turn, faulty):
    """A barrier serves a pair of loads, then an arrival of each thread, then the pair again."""

    def load(half):
        for part in range(1 if "one load" in faulty else 2):
            copy(x.at[half, part], tile.at[part], barrier)

    def first():
        for half in range(2):
            load(half)
            wait(barrier)
            o[half] = tile[...]
            met(turn, faulty != "lapped")

    def second():
        for half in range(2):
            wait(barrier, half == 0 or "too few" not in faulty)
            o[half + 2] = tile[...]
            met(turn, faulty != "lapped")

    wg(first, second)


@twins("phases", RACE, each=(3, 5))
def trip_counts_of_an_argument(faulty: bool, length: int):
    """A sequence's length says how many rows there are; an odd one leaves the ring midway."""

    def kernel(lengths, x, o, slots, loaded):
        for sequence in range(2):
            count = lengths[sequence]

            @pl.loop(0, count)
            def _(step, sequence=sequence):
                slot = lax.rem(step, 2)
                copy(x.at[step], slots.at[slot], loaded.at[slot])
                wait(loaded.at[slot], not faulty)
                o[sequence, step] = slots[slot]
                wait(loaded.at[slot], faulty)

    call = of(
        kernel,
        ROWS,
        barriers(2),
        out=f32(2, 5, 128),
    )
    return call, np.array([length, 2], np.int32), rows(5)


@alone("phases", finds=REFUSED, refused="depends on what a tensor holds")
def trip_counts_of_data():
    return trip_counts_of_an_argument(False, 3)[0], like(2, dtype=I32), rows(5)


@variants("memory", {"": None, "stored while it lands": RACE, "refilled while it is stored": RACE})
@made(
    plgpu.RefUnion(plgpu.SMEM((128,), jnp.bfloat16), TILE),
    BARRIER,
    out=rows(2),
    args=(like(2, 128, dtype=jnp.bfloat16),),
)
def one_memory_for_two(x, o, union, loaded, faulty):
    """The tile that a load fills becomes the tile that a store drains (`RefUnion`)."""
    coming, going = union
    for half in range(2):
        copy(x.at[half], coming, loaded)
        wait(loaded, "lands" not in faulty)
        going[...] = coming[...].astype(F32) if "lands" not in faulty else jnp.zeros(128, F32)
        wait(loaded, "lands" in faulty)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(going, o.at[half])
        if not faulty or half or "lands" in faulty:
            plgpu.wait_smem_to_gmem(0)


@twins("memory", RACE, blocks=ALL)
@summing(4)
def in_place(x, total, faulty):
    """Each block changes its row of an array in place; a stencil reads its neighbour's."""
    block = lax.axis_index("i")
    total[pl.ds(block * 32, 32)] = total[pl.ds((block + int(faulty)) % 4 * 32, 32)] * 2.0


@variants(
    "memory", {"": None, "plain": RACE, "read at once": RACE, "zeroed by each": RACE}, blocks=ALL
)
def histogram(faulty: str):
    """Blocks add to one array: atomic additions commute, and nothing else does."""

    def kernel(x, total, o):
        block = lax.axis_index("i")
        if "zeroed" in faulty:
            total[...] = jnp.zeros(128, F32)
        if faulty == "plain":
            total[...] = total[...] + x[block]
        else:
            plgpu.atomic_add(total, x[block])
        o[block] = total[...] if "read" in faulty else x[block]

    def call(x):
        total = jax.new_ref(jnp.zeros(128))
        return plgpu.kernel(kernel, out_type=rows(4), **grid(4))(x, total), total[...]

    return call, rows(4)


@variants("memory", {"": None, "zeroed by one": RACE, "plain": RACE}, blocks=ALL)
@summing(4, TILE)
def split_k_by_bulk_additions(x, total, tile, faulty):
    """Stores that add into GMEM commute too; the host zeroes the sum, not a block."""
    block = lax.axis_index("i")
    tile[...] = x[block]
    plgpu.commit_smem()
    if "zeroed" in faulty:
        pl.when(block == 0)(lambda: total.__setitem__(..., jnp.zeros(128, F32)))
    how = {} if faulty == "plain" else dict(reduction_op="add")
    plgpu.copy_smem_to_gmem(tile, total, **how)
    plgpu.wait_smem_to_gmem(0)


@twins("memory", UNWRITTEN, blocks=ALL)
def rows_that_no_block_writes(faulty: bool):
    """A grid that is rounded down leaves the last rows."""

    def kernel(x, o):
        mine = pl.ds(lax.axis_index("i") * 2, 2)
        o[mine] = x[mine] + 1.0

    return of(kernel, out=rows(7 if faulty else 6), **grid(3)), rows(7)


@twins("persistent", RACE)
def takes_over_clusters(faulty: bool):
    """The answer for the next tile is asked for once both threads have read the last one."""

    def kernel(x, o, answer, told, read):
        me = lax.axis_index("wg")

        def body(carry):
            tile, _ = carry
            plgpu.try_cluster_cancel(answer, told, collective_axes=("wg",))
            o[me, tile] = x[tile]
            wait(told)
            (tile,), more = plgpu.query_cluster_cancel(answer, ("i",))
            met(read, not faulty)
            return tile, more

        lax.while_loop(lambda carry: carry[1], body, (lax.axis_index("i"), jnp.bool_(True)))

    told, read = barriers((), 2), barriers((), 2)
    scratch = plgpu.TryClusterCancelResult(), told, read
    return of(kernel, *scratch, out=f32(2, 4, 128), **grid(4), **TWO), rows(4)


@twins("persistent", RACE)
@made(TILE, out=rows(2), args=(rows(4),))
def a_pipeline_in_a_loop(x, o, total, faulty):
    """Each tile runs a pipeline of its own, whose scratch the store of the tile before reads."""
    for tile in range(2):

        def body(_, row, tile=tile):
            total[...] = row[0]

        block = plgpu.BlockSpec((1, 128), lambda k, tile=tile: (tile * 2 + k, 0))
        pipelib.emit_pipeline(body, grid=(2,), in_specs=(block,), max_concurrent_steps=2)(x)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(total, o.at[tile])
        if not faulty or tile:
            plgpu.wait_smem_to_gmem(0, wait_read_only=not tile)


# Where a finding is.


def helper(source: Any, target: Any, loaded: Any) -> None:
    """Loads, and forgets to wait."""
    plgpu.copy_gmem_to_smem(source, target, loaded)


def helper_of_helpers(*refs: Any) -> None:
    """A frame between."""
    helper(*refs)


@variants("frames", {"helper": RACE, "helper of helpers": RACE}, says=line_of("the call"))
@made(TILE, BARRIER)
def called_by_a_kernel(x, o, tile, loaded, whose):
    """The report names the line of the kernel that called the helper, beside the helper's."""
    calls = helper_of_helpers if "helpers" in whose else helper
    calls(x, tile, loaded)  # the call
    o[...] = tile[...]
    plgpu.barrier_wait(loaded)


def named_by_its_kernel(scale: float, x_gmem: Any, o_gmem: Any, row: Any, loaded: Any) -> None:
    """A kernel that has names for what it is given, and a fault that a report tells with them."""
    plgpu.copy_gmem_to_smem(x_gmem, row, loaded)
    o_gmem[...] = row[...] * scale
    plgpu.barrier_wait(loaded)


@variants("names", {"bound": RACE, "vmap": RACE}, says="reads x_gmem[")
def of_the_kernel_s_arguments(way: str):
    """`functools.partial` binds the first one, or `jax.vmap` wraps it: the names are the same."""
    call = of(functools.partial(named_by_its_kernel, 2.0), TILE, BARRIER)
    if way == "bound":
        return call
    named = lambda x_gmem, o_gmem, *scratch: named_by_its_kernel(2.0, x_gmem, o_gmem, *scratch)
    return jax.vmap(of(named, TILE, BARRIER)), rows(2)
