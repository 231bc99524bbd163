"""Traffic: an SM's share of the card's bandwidth, and the fraction of loads that L2 has.

GMEM's bandwidth. A byte comes from HBM or, with the probability `l2_hits`, from L2; stored bytes
all go on to HBM, which reads faster than it writes. An SM's share is the lower of L2's for all
bytes and HBM's for the rest: a mean over the kernel, not a cache. The GMEM port (`units.Port`)
keeps to it on average. By default each byte of GMEM is fetched from HBM once for the whole grid and
every further load of it hits: L2 at its best. Only what a block alone loads, and loads again, may
be gone by then: L2 has two halves, each SM's loads go by way of its own, and NVIDIA does not say
how much both keep. So all of it is kept if what all blocks move in between fits in one half, none
if it does not fit in both, and a share in between. (Rows that do not fit in SMEM are so, of which
softmax loads each twice.) A load lands when the last of its lines of 128 bytes does. L2 has each
line with the probability `l2_hits`, so the load's latency is HBM's unless L2 has all of them.

L2 gives more where SMs load the same bytes at about the same time. Measured on an H200, the most
that 132 SMs get depends on who shares: blocks with consecutive numbers gain by it, blocks that are
far apart do not (the probes "shared ring ..."). A program is one block's and does not say who else
loads its bytes. So there are two rates: one for blocks that each load tiles of their own; and, if
two blocks or more load every byte, one for the pattern of a matrix product, in which a block shares
half of what it loads with its row and half with its column. A multicast is no exception: its bytes
count for each SM that gets them. Measured, products whose blocks share tiles by multicast are as
fast as if each block had loaded its own.

Not covered: which SMs share what they load; SMs that load all at once and then none; that a
`prefetch` makes a later load hit.
"""

import math

from pallascope.machine import Machine
from pallascope.program import Kind, Op, Program, Region, Space
from pallascope.simulating.costs import Costs

#: Bytes of the L2 of an H100 or H200, of two halves. Source: NVIDIA H100 whitepaper.
L2_BYTES = 50e6


def best_l2_hits(program: Program) -> float:
    """One minus the least fraction of the grid's loaded bytes that must come from HBM."""
    total = _loaded(program) * _times(program)
    return max(0.0, 1.0 - _array_bytes(program) / total) if total else 0.0


def likely_l2_hits(program: Program, machine: Machine, copies: int) -> float:
    """`best_l2_hits`, less what L2 no longer has when a block loads its own bytes again.

    An SM has `copies` blocks at a time.
    """
    best, (again, between) = best_l2_hits(program), _again(program)
    if not again:
        return best
    blocks = min(machine.sms * copies, _times(program) * program.blocks)
    gone = min(1.0, max(0.0, blocks * between / (L2_BYTES / 2) - 1))
    return max(0.0, best - again * gone)


def _again(program: Program) -> tuple[float, float]:
    """The fraction of a block's loaded bytes that it alone loads and has loaded before; and how
    many bytes it moves until then, on average.
    """
    moved, again, between = 0, 0, 0.0
    before: dict[tuple[Region, ...], int] = {}
    for op in program.ops:
        if op.kind not in (Kind.LOAD, Kind.CP_ASYNC, Kind.STORE):
            continue
        if op.kind is not Kind.STORE:
            if op.reads in before:
                again += op.bytes
                between += op.bytes * (moved - before[op.reads])
            before[op.reads] = moved
        moved += op.bytes
    loaded = _loaded(program)
    is_alone = (loaded - again) * _times(program) <= _array_bytes(program)
    return (again / loaded, between / again) if again and is_alone else (0.0, 0.0)


def share_of_sm(program: Program, costs: Costs, copies: int, l2_hits: float) -> float:
    """The bytes a cycle that an SM with `copies` blocks gets on average while all SMs do the same.

    Grids of fewer blocks than the card has room for leave SMs idle, and the others get more.
    """
    machine = costs.machine
    blocks = _times(program) * program.blocks // program.num_devices
    active = min(machine.sms, -(-blocks // copies))
    fraction, written = _of_hbm(program, l2_hits)
    return machine.gmem_bytes_per_cycle(
        active, fraction, _is_shared(program), written, _spread(program, costs)
    )


def _times(program: Program) -> int:
    """How many times a grid does what the program has: once, if that is all of the grid."""
    return 1 if program.spans_grid else max(1, math.prod(program.grid))


def _of_hbm(program: Program, l2_hits: float) -> tuple[float, float]:
    """The fraction of all bytes moved that HBM moves, and the fraction of these that it writes."""
    stored = sum(op.bytes for op in program.ops if op.kind == Kind.STORE)
    loaded = _loaded(program)
    hbm = (1 - l2_hits) * loaded + stored
    return hbm / (loaded + stored) if loaded + stored else 1 - l2_hits, stored / hbm if hbm else 0.0


def _spread(program: Program, costs: Costs) -> float:
    """How many times as long L2 takes for all copies as if all rows began with a sector."""
    kinds = Kind.LOAD, Kind.CP_ASYNC, Kind.STORE
    copies = [op for op in program.ops if op.kind in kinds]
    moved = sum(op.bytes for op in copies)
    return sum(op.bytes * costs.spread(op) for op in copies) / moved if moved else 1.0


def _is_shared(program: Program) -> bool:
    """Whether at least two blocks of the grid load each byte, on average."""
    mine = {op.reads: op.bytes * max(1, len(op.peers)) for op in _loads(program)}
    return sum(mine.values()) * _times(program) >= 2 * _array_bytes(program) > 0


def _array_bytes(program: Program) -> int:
    """The bytes of the arrays that are loaded from."""
    arrays = {region.buffer for op in _loads(program) for region in op.reads}
    return sum(b.bytes for b in program.buffers if b.id in arrays and b.space is Space.GMEM)


def _loaded(program: Program) -> int:
    """The bytes that SMs get, each as often as one gets it: of a multicast, all that get it."""
    return sum(op.bytes * max(1, len(op.peers)) for op in _loads(program))


def _loads(program: Program) -> list[Op]:
    kinds = Kind.LOAD, Kind.CP_ASYNC
    return [op for op in program.ops if op.kind in kinds]
