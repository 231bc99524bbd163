"""The operations of a step come in the order that the docstring of each emitter states.

The model. The docstring of an emitter has a line for each part of a step: "wait for the inputs",
"body", "commit", and so on. A kernel is made with the emitter and traced. Each operation of a step
in the middle belongs to one of these parts. The parts in order of their operations must be the
lines of the docstring.
"""

import itertools
import re

import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
from pipelib import pipeline, ring, warp_specialized
from tests.pallascope.kernels import like

STEPS, SLOTS, MIDDLE = 8, 2, 4
ROWS, COLUMNS = 16, 128

#: The part of a step that an operation belongs to; a barrier's name is added to its operations.
PARTS = {
    "wait produced": "wait for the inputs", "wait_store": "wait for free output slots",
    "read": "body", "compute": "body", "write": "body", "fence": "commit",
    "wait consumed": "wait for consumed", "load produced": "load", "arrive consumed": "release",
    "arrive written": "meet", "wait written": "meet", "store": "store", "commit_group": "store",
}  # fmt: skip


def add_one(threads=0):
    """A kernel of the emitter with this many compute threads, 0 for the one without any role."""

    def kernel(x_gmem, o_gmem):
        block = pl.BlockSpec((ROWS, COLUMNS), lambda i: (i, 0))
        options = dict(grid=(STEPS,), max_concurrent_steps=SLOTS)
        emit = pipelib.emit_pipeline
        if threads:
            emit = pipelib.emit_pipeline_warp_specialized
            options |= dict(wg_axis="wg", num_compute_wgs=threads, memory_registers=40)
        emit(body, in_specs=[block], out_specs=[block], **options)(x_gmem, o_gmem)

    def body(_, x_smem, o_smem):
        o_smem[...] = x_smem[...] + 1.0

    out = like(STEPS * ROWS, COLUMNS)
    roles = dict(num_threads=threads + 1, thread_name="wg") if threads else {}
    return plgpu.kernel(kernel, out_type=out, grid=(1,), grid_names=("i",), **roles)


def operations(thread, threads):
    """The parts of the middle step of one thread of a traced kernel, in order."""
    program = pallascope.trace(add_one(threads), like(STEPS * ROWS, COLUMNS))
    found = []
    for op in program.threads[thread]:
        if op.step == (MIDDLE,):
            barrier = "" if op.barrier is None else program.barriers[op.barrier].name
            found.append(PARTS[f"{op.kind} {barrier.partition('.')[0]}".strip()])
    return [part for part, _ in itertools.groupby(found)]


def parts(lines):
    """The part that each line of a docstring begins with."""
    lines = [" ".join(line.split()) for line in lines]
    return [next(part for part in PARTS.values() if line.startswith(part)) for line in lines]


def one_thread():
    """The parts of a step in the docstring of `emit_pipeline`."""
    steps = re.search(r"for each step s:\n(.*?)\n    drain", pipeline.__doc__, re.DOTALL)
    return parts(steps.group(1).splitlines())


def two_roles():
    """The parts of a step of a compute thread, and of the memory thread."""
    table = re.search(r"memory thread  .*?\n(.*?)\n\n", warp_specialized.__doc__, re.DOTALL)
    lines = table.group(1).splitlines()
    middle = lines[0].index("for each step s:")
    of_step = lambda lines, indent: parts(x for x in lines if re.match(rf" {{{indent}}}\S", x))
    return of_step([x[middle:] for x in lines], 2), of_step([x[:middle] for x in lines], 6)


def test_the_docstrings_say_what_is_read_in_them():
    waits = ["wait for the inputs", "wait for free output slots"]
    assert one_thread() == [*waits, "body", "commit", "load", "store"]
    compute, memory = two_roles()
    assert compute == [*waits, "body", "commit", "release", "store"]
    assert memory == ["wait for consumed", "load"]


def test_a_step_of_one_thread():
    assert operations(0, threads=0) == one_thread()


def test_a_step_of_a_compute_thread_and_of_the_memory_thread():
    compute, memory = two_roles()
    assert operations(0, threads=1) == compute
    assert operations(1, threads=1) == memory


def test_compute_threads_that_share_outputs_meet():
    """After the first one's wait for free slots, and before its store."""
    compute, memory = two_roles()
    first = operations(0, threads=2)
    assert [part for part in first if part != "meet"] == compute
    assert [compute[i] for i in (1, 4)] == [first[i - 1] for i in range(8) if first[i] == "meet"]
    others = [part for part in first if part not in ("wait for free output slots", "store")]
    assert operations(1, threads=2) == others
    assert operations(2, threads=2) == memory


# A call of a step that the docstrings name, left out; and the part that is then missing.
@pytest.mark.parametrize(
    ("owner", "name", "threads", "thread", "missing"),
    [
        (ring.Plan, "commit", 0, 0, "commit"),
        (ring.Plan, "commit", 1, 0, "commit"),
        (ring.Channel, "release", 1, 0, "release"),
        (ring.Channel, "wait_until_loaded", 1, 0, "wait for the inputs"),
        (ring.Channel, "wait_until_released", 1, 1, "wait for consumed"),
        (ring.Stores, "wait_for_free_slots", 0, 0, "wait for free output slots"),
    ],
)
def test_an_operation_that_is_left_out_shows(monkeypatch, owner, name, threads, thread, missing):
    stated = two_roles()[thread] if threads else one_thread()
    monkeypatch.setattr(owner, name, lambda *_: None)
    assert operations(thread, threads) == [part for part in stated if part != missing] != stated


@pytest.mark.parametrize("threads", [0, 1])
def test_two_operations_that_change_places_show(monkeypatch, threads):
    waits, held = ring.Channel.wait_until_loaded, []
    wait_for_free_slots = ring.Stores.wait_for_free_slots

    def first_this(stores):
        wait_for_free_slots(stores)
        waits(*held.pop())

    monkeypatch.setattr(ring.Channel, "wait_until_loaded", lambda *args: held.append(args))
    monkeypatch.setattr(ring.Stores, "wait_for_free_slots", first_this)
    inputs, slots, *rest = stated = two_roles()[0] if threads else one_thread()
    assert operations(0, threads) == [slots, inputs, *rest] != stated
