"""Semaphores: counters in GMEM by which blocks and devices wait for each other.

The model. A signal adds to a semaphore, and a wait returns once it holds as much as is waited for.
`pl` and `plgpu` have these primitives under the same names, with the same operands. The amount of
an op is 0 if it depends on what tensors hold, or if the signal goes to a device that is not traced.
A signal of 0 or a wait for 0 does nothing, and so it has no op.
A semaphore that the kernel finds by its type (`pl.get_global`) is one for each place in the code.
Each device has semaphores of its own. All begin at 0. Not covered: what an earlier kernel left in a
semaphore of the host's (`plgpu.alloc_semaphore`).
"""

import jax

from pallascope.program import Kind
from pallascope.tracing.code import Compiler, Step, in_turn
from pallascope.tracing.jaxprs import Atom, Env, Eqn, Tree, Value
from pallascope.tracing.state import OPAQUE, Thread
from pallascope.tracing.views import View, data_dependent


def _emitting(
    compiler: Compiler,
    eqn: Eqn,
    kind: Kind,
    ref: Atom,
    transforms: Tree,
    amount: Atom,
    device: Tree = None,
    keeps: bool = False,
) -> Step:
    """The step that appends an op of this kind on one semaphore, of this device or of another."""
    leaves, tree = jax.tree.flatten(transforms)
    view, held = compiler.view(eqn, ref, leaves, tree), compiler.slot(amount)
    ids, tree = jax.tree.flatten(device)
    devices = list(map(compiler.slot, ids))
    emit = compiler.emitter(kind, eqn, keeps=keeps)

    def step(thread: Thread, env: Env) -> None:
        value = env[held]
        amount = 0 if value is OPAQUE else value
        id, index = view.barrier(thread, env)
        if amount == 0 and value is not OPAQUE:
            return  # an op of 0 is one whose amount is unknown
        if devices and not thread.home.devices:
            amount = 0  # the other device is not here
        elif devices:
            there = jax.tree.unflatten(tree, [_known(env[slot], view) for slot in devices])
            id = view.ref(env).ids[thread.home.on_device(thread.block, there)]
        emit(thread, (), (), id, index, amount=amount)

    return step


def _known(value: Value, view: View) -> int:
    """A device's index, which must not depend on what tensors hold."""
    if value is OPAQUE:
        raise data_dependent("The device that is signalled", view.line)
    return int(value)


def signal(compiler: Compiler, eqn: Eqn) -> Step:
    """Adds to a semaphore, of this device or of another."""
    ref, transforms, amount, *more = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    return _emitting(compiler, eqn, Kind.SIGNAL, ref, transforms, amount, *more[:1])


def signals(compiler: Compiler, eqn: Eqn) -> Step:
    """Adds to several semaphores."""
    several = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    each_one = zip(*several, strict=True)
    return in_turn([_emitting(compiler, eqn, Kind.SIGNAL, *each) for each in each_one])


def wait(compiler: Compiler, eqn: Eqn) -> Step:
    """Waits until a semaphore holds an amount, and takes that off unless it is told not to."""
    args = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    ref, transforms, amount, decrements = args
    keeps = not getattr(decrements, "val", decrements)
    return _emitting(compiler, eqn, Kind.AWAIT, ref, transforms, amount, keeps=keeps)


def get_global(compiler: Compiler, eqn: Eqn) -> Step:
    """The semaphores that a kernel has under this type; JAX allows no other memory here."""
    (out,), what = map(compiler.slot, eqn.outvars), eqn.params["what"]

    def step(thread: Thread, env: Env) -> None:
        env[out] = thread.home.global_semaphores(eqn, tuple(what.shape))[thread.block]

    return step
