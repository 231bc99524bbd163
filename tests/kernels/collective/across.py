"""Semaphores, and memory of other devices, for JAX's interpreter of GPU kernels, which has neither.

The model. JAX's interpreter runs a kernel on all devices of a mesh at once, in one process, and has
the memory of all in one place, with a vector clock for each thread of each device. So little is
missing, and this module adds it to the interpreter's own class:

- a copy to another device's memory writes the buffer of the same number there;
- a semaphore is a number with a condition variable and a clock. A signal adds its thread's clock to
  the semaphore's clock; a wait adds the semaphore's clock to its thread's. So a race is missed if
  other signals let a wait go than those that it needs: `pallascope.check` finds these.

A device has one block: the interpreter runs the blocks of a device one after the other, and these
would wait for each other. It uses names of JAX's that are not public, in the versions that the
tests run with, and nothing but tests uses it.
"""

import contextlib
import functools
import itertools
import threading
import time
from collections import defaultdict
from unittest import mock

import jax
import jax.numpy as jnp
from jax._src import callback
from jax._src.pallas.mosaic_gpu import primitives as gpu_primitives
from jax._src.pallas.mosaic_gpu.core import PeerMemRef
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, jaxpr_interpret

SECONDS = 60  # after which a thread that waits for a semaphore gives up
#: Where the number of a device is in the key of a buffer: see `HostAllocationKey`.
DEVICE = 1

Interpreter = jaxpr_interpret.JaxprInterpreter


class Semaphore:
    """What a semaphore holds, and what those who have signalled it know."""

    def __init__(self):
        self.value, self.clock, self.changed = 0, None, threading.Condition()


class Semaphores:
    """Those of all devices, by device, number and index."""

    def __init__(self):
        self.held = defaultdict(Semaphore)
        self.numbers = defaultdict(itertools.count().__next__)

    def signal(self, amount, number, index, device, *, token, thread):
        memory = gpu_callbacks._get_shared_memory()
        clock = memory.incr_clock(thread) if memory.detect_races else None
        semaphore = self.held[int(device), int(number), tuple(map(int, index))]
        with semaphore.changed:
            semaphore.value += int(amount)
            if clock is not None and semaphore.clock is not None:
                semaphore.clock.update(clock)
            elif clock is not None:
                semaphore.clock = clock.copy()
            semaphore.changed.notify_all()
        return token

    def wait(self, amount, number, index, *, token, thread, takes):
        place = thread.device_id, int(number), tuple(map(int, index))
        semaphore, memory = self.held[place], gpu_callbacks._get_shared_memory()
        with semaphore.changed:
            for _ in range(SECONDS):
                if semaphore.changed.wait_for(lambda: semaphore.value >= int(amount), 1.0):
                    break
                memory.check_failed()  # elsewhere, and then nobody may signal any more
            else:
                raise TimeoutError(f"{thread} waits for {amount} on {place}: {semaphore.value}")
            semaphore.value -= int(amount) if takes else 0
            if semaphore.clock is not None:
                with memory.lock:
                    memory.clocks[thread].update(semaphore.clock)
        return token


def _interpret(interpret, self, jaxpr, token, *args):
    """Has the interpreter's own method do all but semaphores, which it hands to `_of_semaphore`."""
    names = "semaphore_signal", "semaphore_wait"
    eqns = [
        eqn.replace(primitive=gpu_primitives.commit_smem_p, params=dict(instead=eqn))
        if eqn.primitive.name in names
        else eqn
        for eqn in jaxpr.eqns
    ]
    return interpret(self, jaxpr.replace(eqns=eqns), token, *args)


def _of_semaphore(semaphores, commit, self, eqn, token, get_invals):
    """A signal or a wait; or what it stands in for, a commit of SMEM."""
    if "instead" not in eqn.params:
        return commit(self, eqn, token, get_invals)
    eqn, here = eqn.params["instead"], functools.partial(callback.io_callback)
    number, transforms, amount, *more = jax.tree.unflatten(eqn.params["args_tree"], get_invals())
    index = [each for indexer in transforms for each in indexer.indices]
    types = gpu_callbacks.TOKEN_SHAPE_DTYPE
    if eqn.primitive.name == "semaphore_signal":
        device = _number_of(self.device_info, {} if more[0] is None else more[0])
        call = functools.partial(here, semaphores.signal, types)
        return call(amount, number, index, device, token=token, thread=self.thread), []
    takes = bool(getattr(more[0], "val", more[0]))
    call = functools.partial(here, functools.partial(semaphores.wait, takes=takes), types)
    return call(amount, number, index, token=token, thread=self.thread), []


def _number_of(info, named):
    """The number of the device that has these indices, and this one's on all other axes.

    On a mesh of one axis an index may stand for itself.
    """
    if not isinstance(named, dict):
        named = dict.fromkeys(info.axis_sizes, named)
    number = 0
    for axis, size in info.axis_sizes.items():
        number = number * size + named.get(axis, info.axis_indices[axis])
    return number


def _copy(copy, self, eqn, token, src, dst, *flat, **params):
    """A copy to GMEM, perhaps of another device."""
    own, tree = params["src_transforms_treedef"].num_leaves, params["dst_transforms_treedef"]
    transforms = jax.tree.unflatten(tree, flat[own : own + tree.num_leaves])
    for peer in (each for each in transforms if isinstance(each, PeerMemRef)):
        dst = dst.at[DEVICE].set(_number_of(self.device_info, peer.device_id))
    kept = tuple(each for each in transforms if not isinstance(each, PeerMemRef))
    leaves, params["dst_transforms_treedef"] = jax.tree.flatten(kept)
    flat = [*flat[:own], *leaves, *flat[own + tree.num_leaves :]]
    return copy(self, eqn, token, src, dst, *flat, **params)


def _global(semaphores, arithmetic, self, eqn, get_invals):
    """The number of the semaphores that an equation finds: the same on all devices and threads."""
    if eqn.primitive.name == "get_global":
        return jnp.int32(semaphores.numbers[eqn.outvars[0]])
    return arithmetic(self, eqn, get_invals)


def _once_allocated(copy, *, dst_allocation_key_as_array, **params):
    """A copy to GMEM, once the device it goes to has allocated its memory: kernels begin at once.

    JAX lets devices meet before such a kernel; its interpreter does not.
    """
    memory = gpu_callbacks._get_shared_memory()
    key = gpu_callbacks.HostAllocationKey.from_array(dst_allocation_key_as_array)
    for _ in range(100 * SECONDS):
        with memory.lock:
            if key in memory.mem:
                break
        memory.check_failed()
        time.sleep(0.01)
    return copy(dst_allocation_key_as_array=dst_allocation_key_as_array, **params)


def _finish_together(finish, *, token):
    """What the interpreter does after a block of a device: it forgets the clocks of all devices.

    So all devices come to the end of the block first, and none begins the next one before that.
    """
    memory = gpu_callbacks._get_shared_memory()
    if memory.barrier.wait(SECONDS) == 0:
        finish(token=token)
    memory.barrier.wait(SECONDS)
    return token


@contextlib.contextmanager
def devices():
    """A context in which the interpreter has semaphores, which it gives, and others' memory."""
    semaphores = Semaphores()
    patched = dict(
        interpret=functools.partial(_interpret, Interpreter.interpret),
        _interpret_commit_smem_p=functools.partial(
            _of_semaphore, semaphores, Interpreter._interpret_commit_smem_p
        ),
        _interpret_copy_smem_to_gmem_p=functools.partial(
            _copy, Interpreter._interpret_copy_smem_to_gmem_p
        ),
        _interpret_arithmetic_primitive=functools.partial(
            _global, semaphores, Interpreter._interpret_arithmetic_primitive
        ),
    )
    methods = {name: _method(function) for name, function in patched.items()}
    together = functools.partial(_finish_together, gpu_callbacks.cluster_finished)
    copy = functools.partial(_once_allocated, gpu_callbacks.copy_smem_to_gmem)
    functions = dict(cluster_finished=together, copy_smem_to_gmem=copy)
    of_callbacks = mock.patch.multiple(gpu_callbacks, **functions)
    with mock.patch.multiple(Interpreter, **methods), of_callbacks:
        yield semaphores


def _method(function):
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)
