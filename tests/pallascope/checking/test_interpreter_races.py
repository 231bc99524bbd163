"""The checker's verdict beside that of JAX's interpreter, on the same kernels.

`plgpu.InterpretGPUParams(detect_races=True)` runs a kernel and tells of races; the checker reads
its trace. Each kernel here is run and read as it is, and with one fault. Where the two differ, the
table says why. It is printed at the end of the run.

Not run: what the checker calls a deadlock, since the interpreter hangs there. What it says of the
gallery's hazards is recorded (`benchmarks/hazards.py`).
"""

import contextlib
import io
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope import check
from tests.pallascope import blackwell

STEPS, SLOTS = 4, 2
ROWS, COLS = 16, 32
TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
X = np.ones((STEPS, ROWS, COLS), np.float32)
A, B = np.ones((64, STEPS * 64), np.float16), np.ones((STEPS * 64, 64), np.float16)
TILES = np.ones((3 * 128, 2 * 64), np.float16), np.ones((2 * 64, 64), np.float16)
THREE = (np.ones((128, 64), np.float16),) * 3


def step_by_step(x, fault):
    """Adds tiles up in GMEM that a memory thread loads into a ring; in `fault`, what is wrong."""

    def kernel(x, o, smem, produced, consumed):
        @pl.when(lax.axis_index("wg") == 1)
        def _():
            for step in range(STEPS):
                slot = step % SLOTS
                if step >= SLOTS and fault != "refills without waiting":
                    plgpu.barrier_wait(consumed.at[slot])
                plgpu.copy_gmem_to_smem(x.at[step], smem.at[slot], produced.at[slot])
            if fault not in ("waits not for the last releases", "refills without waiting"):
                for slot in range(SLOTS):
                    plgpu.barrier_wait(consumed.at[slot])

        @pl.when(lax.axis_index("wg") == 0)
        def _():
            for step in range(STEPS):
                slot = step % SLOTS
                if fault != "reads without waiting":
                    plgpu.barrier_wait(produced.at[slot])
                if fault == "releases before reading":
                    plgpu.barrier_arrive(consumed.at[slot])
                o[step] = smem[slot] + 1
                if fault == "writes where the next load does":
                    smem[slot] = jnp.zeros((ROWS, COLS), jnp.float32)
                if fault not in ("no commit after reading", "writes where the next load does"):
                    plgpu.commit_smem()
                if fault != "releases before reading":
                    plgpu.barrier_arrive(consumed.at[slot])

    scratch = [
        plgpu.SMEM((SLOTS, ROWS, COLS), jnp.float32),
        plgpu.Barrier(num_barriers=SLOTS),
        plgpu.Barrier(num_barriers=SLOTS),
    ]
    return plgpu.kernel(kernel, out_type=x, scratch_types=scratch, num_threads=2, thread_name="wg")(
        x
    )


def staged(x, fault):
    """Adds 1 to tiles and stores them, all from one staging buffer."""

    def kernel(x, o, smem, staging, barrier):
        for step in range(STEPS):
            plgpu.copy_gmem_to_smem(x.at[step], smem, barrier)
            plgpu.barrier_wait(barrier)
            if fault != "stores what was never written":
                staging[...] = smem[...] + 1
            if fault != "no commit before storing":
                plgpu.commit_smem()
            target = o.at[0 if fault == "stores all to one place" else step]
            plgpu.copy_smem_to_gmem(staging, target)
            last = step == STEPS - 1
            if fault != "writes while storing" and not (last and fault == "ends while storing"):
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        if fault != "ends while storing":
            plgpu.wait_smem_to_gmem(0)

    tile = plgpu.SMEM((ROWS, COLS), jnp.float32)
    return plgpu.kernel(kernel, out_type=x, scratch_types=[tile, tile, plgpu.Barrier()])(x)


def product(a, b, fault):
    """A matrix product by one thread over a ring that it refills itself."""

    def kernel(a, b, o, a_smem, b_smem, produced):
        def load(step):
            here, slot = pl.ds(step * 64, 64), step % SLOTS
            plgpu.copy_gmem_to_smem(a.at[:, here], a_smem.at[slot], produced.at[slot])
            plgpu.copy_gmem_to_smem(b.at[here], b_smem.at[slot], produced.at[slot])

        def compute(acc):
            for step in range(SLOTS):
                load(step)
            for step in range(STEPS):
                slot = step % SLOTS
                plgpu.barrier_wait(produced.at[slot])
                plgpu.wgmma(acc, a_smem.at[slot], b_smem.at[slot])
                plgpu.wgmma_wait(1 if fault == "refills while multiplying" else 0)
                if step + SLOTS < STEPS:
                    load(step + SLOTS)
            return acc[...]

        o[...] = pl.run_scoped(compute, plgpu.ACC((64, 64), jnp.float32)).astype(jnp.float16)

    tiles = plgpu.SMEM((SLOTS, 64, 64), jnp.float16, transforms=TILED)
    barrier = plgpu.Barrier(num_arrivals=2, num_barriers=SLOTS)
    out = jnp.zeros((64, 64), jnp.float16)
    return plgpu.kernel(kernel, out_type=out, scratch_types=[tiles, tiles, barrier])(a, b)


def tensor_core(a, b, fault):
    """A matrix product by Blackwell's tensor core, in three threads."""
    call, *_ = blackwell.specialized(fault=fault)
    return call(a, b)


def chained(q, k, v, fault):
    """Two products in a row, the second of what the first became in registers."""
    call, *_ = blackwell.chained(aliased=True, fault=fault)
    return call(q, k, v)


class Case(NamedTuple):
    """A kernel with a fault; what the checker finds; what the interpreter says, and why if not.

    Where it says one of two things, by the threads' speeds, both stand in `said`.
    """

    kernel: Callable
    args: tuple
    fault: str
    found: str
    said: str
    why: str = ""

    @property
    def name(self) -> str:
        return f"{self.kernel.__name__}: {self.fault}"


STRICT = "PTX asks for a fence after reads too: the checker says so only if strict"
# JAX 0.12 no longer asks for it.
UNOBSERVED = (
    ("", "")
    if jax.__version_info__ >= (0, 12)
    else (
        "unobserved",
        "a rule of the interpreter: on the hardware a phase may end with no one waiting",
    )
)
# In JAX 0.11 an arrival may be refused before the race comes up, since nobody waited for the last.
RACE_OR_STOP = "race/unobserved"
OVER = "lost-store missing-commit"
NO_CONTENTS = "the interpreter does not know what has been written"
NO_ORDER = "the interpreter takes any barrier to order the tensor core"
AT_ONCE = "in the interpreter a product is over at once, and wgmma_wait does nothing"

TENSOR_CORE = {
    "none": ("", ""),
    "reads before a product ends": ("barrier-misuse race", RACE_OR_STOP),
    "releases a slot by hand": ("race", "race"),
    "drains before a read ends": ("race", "race"),
    "drains without an order": ("race", "", NO_ORDER),
    "adds to what nobody set": ("uninitialized-read", "", NO_CONTENTS),
}
CHAINED = {
    "none": ("", ""),
    "overwrites what it still reads": ("race", "race"),
    "hands over what it still writes": ("race", "race"),
}
CASES = [
    Case(step_by_step, (X,), "none", "", ""),
    Case(step_by_step, (X,), "reads without waiting", "barrier-misuse race", RACE_OR_STOP),
    Case(step_by_step, (X,), "refills without waiting", "barrier-misuse race", RACE_OR_STOP),
    Case(step_by_step, (X,), "releases before reading", "race", "race"),
    Case(step_by_step, (X,), "no commit after reading", "", "race", STRICT),
    Case(step_by_step, (X,), "writes where the next load does", OVER, "race"),
    Case(step_by_step, (X,), "waits not for the last releases", "", *UNOBSERVED),
    Case(staged, (X,), "none", "", ""),
    Case(staged, (X,), "no commit before storing", "missing-commit", "race"),
    Case(staged, (X,), "writes while storing", "race", "race"),
    Case(staged, (X,), "stores all to one place", "race", "race"),
    Case(staged, (X,), "ends while storing", "lost-store", "unfinished"),
    Case(staged, (X,), "stores what was never written", "uninitialized-read", "", NO_CONTENTS),
    Case(product, (A, B), "none", "", ""),
    Case(product, (A, B), "refills while multiplying", "race", "", AT_ONCE),
    *(
        Case(kernel, args, fault, *verdicts)
        for kernel, args, faults in ((tensor_core, TILES, TENSOR_CORE), (chained, THREE, CHAINED))
        for fault, verdicts in faults.items()
    ),
]
WORDS = {
    "RACE DETECTED": "race",
    "had only observed barrier": "unobserved",
    "but no threads observed phase": "unobserved",
    "Not all copy_smem_to_gmem read-side operations completed": "unfinished",
}


def said_by_interpreter(call, *args):
    """What it complains of first: JAX 0.12 raises at a race, JAX 0.11 prints it and goes on.

    It has a counter for each asynchronous operation: two that share one can look ordered.
    """
    printed, raised = io.StringIO(), ""
    params = plgpu.InterpretGPUParams(detect_races=True, num_tma_threads_per_device=256)
    with plgpu.force_gpu_interpret_mode(params), contextlib.redirect_stdout(printed):
        try:
            np.asarray(call(*args))
        except Exception as error:
            raised = str(error)
    text = printed.getvalue() + raised
    complaints = [name for words, name in WORDS.items() if words in text]
    assert complaints or not raised, raised
    return complaints[0] if complaints else ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_two_verdicts(case, record_property):
    call = lambda *args: case.kernel(*args, case.fault)
    report = check(pallascope.trace(call, *case.args))
    found = " ".join(sorted({finding.kind for finding in report}))
    said = said_by_interpreter(call, *case.args)
    assert found == case.found and said in case.said.split("/")
    assert (bool(found) == bool(said)) == (not case.why)
    line = f"{case.name:48s} {found or 'clean':26s} {case.said or 'clean':16s} {case.why}"
    record_property(f"table: {TITLE}", [line.rstrip()])


def test_strict_agrees_on_reads():
    """The one disagreement that is a choice of this project's."""
    call = lambda x: step_by_step(x, "no commit after reading")
    assert {finding.kind for finding in check(pallascope.trace(call, X), strict=True)} == {
        "missing-commit"
    }
    for kernel in (step_by_step, staged):
        assert check(pallascope.trace(lambda x, k=kernel: k(x, "none"), X), strict=True).ok


TITLE = "the checker's verdict, that of JAX's interpreter, and why they differ"
