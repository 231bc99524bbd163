"""The kernels of the chapter "Across GPUs" in JAX's interpreter, on four CPU devices.

    python -m tests.book.across_on_cpus

The chapter itself runs none of them: it needs no devices. So this executes its code, with a mesh of
CPU devices in place of the abstract one, and compares each kernel's results with NumPy's. What the
interpreter lacks is in `tests.kernels.collective.across`; `test_across_gpus` runs this in a process
of its own.

Race detection is for kernels that write each part of an inbox once. It takes a store into GMEM to
come after a load from there only with a proxy fence between, also where the load has arrived at a
barrier and its thread has signalled; so it reports each slot of a ring that is used again. The
checker finds the order of these.
"""

import contextlib
import io

import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import pipelib_book
from tests.emitters.contract import interpreted
from tests.kernels.collective import across
from tools import exercises, notebooks

CHAPTER = "22_across_gpus.md"


def definitions():
    """What the chapter's cells define, but for the first one; exercises are solved."""
    (md,) = (md for md in notebooks.chapters() if md.name == CHAPTER)
    notebook = exercises.without_wrong_answers(notebooks.read_source(md))
    names = {"book": pipelib_book}
    for cell in notebook.cells:
        is_skeleton = "exercise" in cell.metadata.get("tags", [])
        if cell.cell_type == "code" and not is_skeleton and "book.setup()" not in cell.source:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(cell.source, names)
    return names


def on_cpus(kernel, gpus, x, detect_races=True):
    """The results of a kernel that is called on each of some devices."""
    mesh = jax.make_mesh(
        (gpus,), ("gpu",), axis_types=(AxisType.Auto,), devices=jax.devices()[:gpus]
    )
    call = jax.shard_map(kernel, mesh=mesh, in_specs=P("gpu"), out_specs=P("gpu"), check_vma=False)
    placed = jax.device_put(x, jax.NamedSharding(mesh, P("gpu")))
    with interpreted(detect_races), across.devices() as semaphores:
        out, _ = jax.block_until_ready(jax.jit(call)(placed))
    assert semaphores.held
    return np.asarray(out)


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def main():
    names = definitions()
    exchanged, stream = names["exchanged"], names["stream"]
    x = draw(2, 64, 128)
    out = on_cpus(exchanged(), 2, x.reshape(-1, 128)).reshape(x.shape)
    np.testing.assert_allclose(out, np.stack([x.sum(0)] * 2), rtol=1e-6)
    print("exchange", flush=True)

    x = draw(3, names["STEPS"], 64, 128)
    for name, kernel in {"ring": stream(slots=4, steps=8), "in_twos": names["in_twos"]}.items():
        out = on_cpus(kernel, 3, x.reshape(-1, 64, 128), detect_races=False).reshape(x.shape)
        np.testing.assert_array_equal(out, np.roll(x, 1, axis=0))
        print(name, flush=True)

    for name, gpus in (("add_up", 4), ("mended", 3)):
        x = draw(gpus, 64, 128)
        kernel = names["all_for_all"](names[name], gpus)
        out = on_cpus(kernel, gpus, x.reshape(-1, 128)).reshape(x.shape)
        np.testing.assert_allclose(out, np.stack([x.sum(0)] * gpus), rtol=1e-5, atol=1e-5)
        print(name, flush=True)


if __name__ == "__main__":
    main()
