"""Accesses of all devices at once: `multimem` instructions, by which NVLink's switch multicasts.

The model. A store writes, and a load that reduces reads, the same region in the memory of each
device; a signal adds to the same semaphore of each. JAX lets them name all axes of the mesh only.
One op has the regions of all devices; a signal is an op for each. Source: `multimem_store`,
`multimem_load_reduce` and `semaphore_signal_multicast` of JAX 0.11.2 and 0.12.0.1.
"""

from dataclasses import replace

import jax

from pallascope.program import Kind, Region
from pallascope.tracing.code import Compiler, Step
from pallascope.tracing.jaxprs import Env, Eqn
from pallascope.tracing.state import OPAQUE, Ref, Thread
from pallascope.tracing.views import View, other_devices


def _everywhere(thread: Thread, env: Env, view: View) -> tuple[Region, ...]:
    """The view's regions in the memory of each device."""
    numbers = _of_devices(thread, view.ref(env), view)
    regions = view.regions(thread, env)
    return tuple(replace(region, buffer=number) for number in numbers for region in regions)


def _of_devices(thread: Thread, ref: Ref, view: View) -> list[int]:
    """The numbers that a ref has on the devices."""
    if not thread.home.devices:
        raise other_devices("all devices", view.line)
    return [*dict.fromkeys(ref.ids)]


def store(compiler: Compiler, eqn: Eqn) -> Step:
    """Writes a value to each device."""
    _, ref, *leaves = eqn.invars
    view = compiler.view(eqn, ref, leaves, eqn.params["transforms_tree"])
    emit = compiler.emitter(Kind.WRITE, eqn)

    def step(thread: Thread, env: Env) -> None:
        regions = _everywhere(thread, env, view)
        emit(thread, (), regions, size=view.bytes(regions[0]))

    return step


def load_reduce(compiler: Compiler, eqn: Eqn) -> Step:
    """Reads from each device, and combines what it reads."""
    ref, *leaves = eqn.invars
    view = compiler.view(eqn, ref, leaves, eqn.params["tree"])
    emit, (out,) = compiler.emitter(Kind.READ, eqn), map(compiler.slot, eqn.outvars)

    def step(thread: Thread, env: Env) -> None:
        env[out] = OPAQUE
        regions = _everywhere(thread, env, view)
        emit(thread, regions, size=view.bytes(regions[0]))

    return step


def signal(compiler: Compiler, eqn: Eqn) -> Step:
    """Adds to a semaphore of each device."""
    ref, transforms, held = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    leaves, tree = jax.tree.flatten(transforms)
    view, amount = compiler.view(eqn, ref, leaves, tree), compiler.slot(held)
    emit = compiler.emitter(Kind.SIGNAL, eqn)

    def step(thread: Thread, env: Env) -> None:
        value = 0 if env[amount] is OPAQUE else env[amount]
        id, index = view.barrier(thread, env)
        if not thread.home.devices:  # the other devices are not here
            emit(thread, (), (), id, index, amount=0)
            return
        for number in _of_devices(thread, view.ref(env), view):
            emit(thread, (), (), number, index, amount=value)

    return step
