"""Cluster launch control: a cluster takes over another one of the grid, instead of its launch.

The model. Which clusters a run claims, and how many, is decided as it runs. A program is that of a
run in which the traced cluster claims those that follow it in the grid, one with each attempt, as
many as `trace` was told and the grid has; the attempt after that fails. All threads of the cluster
get the same answers: each thread counts the answers that it has looked at.

Of the threads and blocks that attempt together one asks, the first along each of the
`collective_axes`. The answer, 16 bytes, lands in the SMEM of each block of the cluster, on whose
barrier they count: the first thread of each block announces them with its arrival, and the others
arrive only. Source: `try_cluster_cancel_lowering`, JAX's `mosaic_gpu/primitives.py`; PTX ISA,
`clusterlaunchcontrol.try_cancel`, whose `multicast::cluster::all` is always used.

Not covered: claims of a program that has all blocks of the grid: there every attempt fails, since
each cluster is launched.

Each function takes the compiler and an equation of one kind of primitive, and returns its step.
"""

from pallascope.program import Kind, Region
from pallascope.tracing.code import Compiler, Step, split
from pallascope.tracing.jaxprs import Env, Eqn
from pallascope.tracing.state import Thread

_BYTES = 16  # of an answer


def attempt(compiler: Compiler, eqn: Eqn) -> Step:
    """The request for another cluster, or an arrival for an answer that another thread asks for."""
    params, (result, barrier, *rest) = eqn.params, eqn.invars
    trees = params["result_transforms_tree"], params["barrier_transforms_tree"]
    of_result, of_barrier, _ = split(rest, *trees)
    target = compiler.view(eqn, result, of_result, trees[0])
    on = compiler.view(eqn, barrier, of_barrier, trees[1])
    axes = params["collective_axes"]
    load = compiler.emitter(Kind.LOAD, eqn, claims=True)
    arrive = compiler.emitter(Kind.ARRIVE, eqn)

    def step(thread: Thread, env: Env) -> None:
        home, place = thread.home, on.barrier(thread, env)
        phase = thread.next_arrival(place)
        is_first = home.thread_name not in axes or thread.axes[home.thread_name] == 0
        along = [name for name in home.names if name in axes]
        if not is_first:
            arrive(thread, (), (), *place, phase)
        elif any(thread.axes[name] for name in along):
            arrive(thread, (), (), *place, phase, parts=1)
        else:
            blocks = home.cluster_of(thread.block)
            ids, mine = target.ref(env).ids, target.region(thread, env)
            writes = tuple(Region(ids[block], mine.box) for block in blocks)
            peers = tuple(on.ref(env).ids[block] for block in blocks)
            load(thread, (), writes, *place, phase, _BYTES, peers, parts=1)

    return step


def answer(compiler: Compiler, eqn: Eqn) -> Step:
    """A read of an answer: the indices of the cluster that was claimed, and whether one was."""
    ref, *leaves = eqn.invars
    view = compiler.view(eqn, ref, leaves, eqn.params["transforms_tree"])
    names, emit = eqn.params["grid_names"], compiler.emitter(Kind.READ, eqn)
    *indices, success = map(compiler.slot, eqn.outvars)

    def step(thread: Thread, env: Env) -> None:
        emit(thread, (view.region(thread, env),), size=_BYTES)
        home = thread.home
        thread.claims += 1
        claimed = home.claimed(thread.claims)
        env[success] = claimed is not None
        place = dict(zip(home.grid_names, claimed or home.block))
        for slot, name in zip(indices, names, strict=True):
            env[slot] = place[name]

    return step
