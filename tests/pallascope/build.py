"""Programs by hand: ops without thread and phase, which `program` fills in.

Here are ops on a ring of two slots, for the checker's tests; `toy` has them with sizes and steps,
for the simulator's, and `strategies.Writer` with any memory, for programs that are drawn.
"""

from dataclasses import replace

from pallascope.editing import counted
from pallascope.program import Barrier, Buffer, Op, Program, Region

WIDTH = 8
GMEM, SMEM, OUT, ACC = range(4)
BUFFERS = (
    Buffer(GMEM, "x", "gmem", (64, WIDTH), "float16", 1024, role="in"),
    Buffer(SMEM, "ring", "smem", (2, WIDTH), "float16", 32, 2, scope_id=0),
    Buffer(OUT, "out", "gmem", (64, WIDTH), "float16", 1024, role="out"),
    Buffer(ACC, "acc", "acc", (64, WIDTH), "float32", 2048, thread=0, scope_id=1),
)
PRODUCED, CONSUMED = range(2)


def at(buffer, row, rows=1, columns=(0, WIDTH)):
    """Some rows of a buffer."""
    return Region(buffer, ((row, row + rows), columns))


def load(row, slot, barrier=PRODUCED, line=None):
    return Op("load", 0, (at(GMEM, row),), (at(SMEM, slot),), barrier, slot, line=line, bytes=16)


def store(slot, row, combines="", line=None):
    reads, writes = (at(SMEM, slot),), (at(OUT, row),)
    return Op("store", 0, reads, writes, line=line, combines=combines, bytes=16)


def read(slot, line=None):
    return Op("read", 0, (at(SMEM, slot),), line=line)


def write(slot, line=None):
    return Op("write", 0, (), (at(SMEM, slot),), line=line)


def wgmma(slot, line=None):
    acc = at(ACC, 0, 64)
    return Op("wgmma", 0, (at(SMEM, slot), acc), (acc,), line=line, flops=1024)


def wait(barrier, index=0, line=None):
    return Op("wait", 0, barrier=barrier, index=index, line=line)


def arrive(barrier, index=0, line=None):
    return Op("arrive", 0, barrier=barrier, index=index, line=line)


def just(kind, pending=None, **fields):
    """An op without memory; `pending` is what a wait leaves."""
    return Op(kind, 0, pending=pending, **fields)


def barriers(produced=1, consumed=1, count=2):
    """The two barriers of a ring, by their arrivals."""
    return (
        Barrier(PRODUCED, "produced", produced, count),
        Barrier(CONSUMED, "consumed", consumed, count),
    )


RING = barriers()


def program(*threads, buffers=BUFFERS, barriers=RING, name="hand-made", grid=(2,), **fields):
    """The program of these threads' ops, of one block of two: the other may write the same output.

    So it need not be written here.
    """
    mine = tuple(
        tuple(replace(op, thread=thread) for op in ops) for thread, ops in enumerate(threads)
    )
    return counted(Program(name, mine, buffers, barriers, grid, **fields))
