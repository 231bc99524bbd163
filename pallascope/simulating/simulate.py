"""`simulate`: from a `Program` to a `Timeline`, on the model of one multiprocessor.

The model. Each Pallas thread does its ops in order; an asynchronous op goes on without it. Events
are taken in the order of their times (a heap of threads, ties by number), so a program has one
timeline. Each block of a cluster, or of a whole grid, has a multiprocessor of its own, with five
servers. A **server** does one thing at a time, in the order of the requests; a later request waits.

=========  =========================================================================================
server     how long it is taken
=========  =========================================================================================
GMEM port  bytes of loads, stores and ordinary accesses, as fast as an SM alone moves them. Average
           throughput since the first use never exceeds the SM's share of the card's bandwidth. A
           load lands a latency later, during which the port is free. A multicast takes the port of
           each SM that gets it
tensor     wgmma: the longer of flops / rate and operand bytes / SMEM bandwidth; a thread that waits
core       for the product goes on `wgmma_latency` and `wgmma_restart` later. tcgen05: the same, and
           what a commit announces is over `wgmma_latency` later
TMEM       reads and writes of threads, which go on when they are over
SMEM       ordinary reads and writes: their wavefronts, each 128 bytes / SMEM bandwidth, however few
           bytes it moves; then a fixed time of the thread. Bytes, where wavefronts are not known
ALU        arithmetic in registers; transcendental functions, and words that lanes pass each other
           in reductions, at rates of their own
=========  =========================================================================================

A barrier's phase is complete when its arrivals have been made and all bytes that they announced
have landed. A waiting thread goes on `wake` later, and no wait is shorter than `wait`. Threads that
begin a shared scope meet. Issuing, arriving and `commit_smem` take the thread a fixed time each.
Other scopes' beginnings and ends, `commit_group` and `registers` take no time.

Several devices. A program with all blocks of a grid may be of several devices, which all begin at
cycle 0. Each has one more server, NVLink: `links` says what goes through it. `semaphores` says when
a thread that waits for another device's signal goes on.

Several resident blocks. With `blocks_per_sm=n` there are n copies of the program, which share the
servers; the timeline shows the first. They start `block_gap` apart, as blocks do in the first wave.
How many blocks fit is not computed here; `launch` does that.

The modules. An arrow points from who imports to what is imported::

    simulate, launch -> ways -> costs
    simulate, launch -> run -> operations -> barriers, semaphores, events, recorder -> threads
                        run -> traffic       costs, links
    threads, links -> units

`ways` decides which way is taken where data choose. `operations` says what an op of each kind does,
`costs` how long it keeps a unit busy, `traffic` what an SM gets of the card's bandwidth; `units`
are the servers; `launch` goes from blocks to a whole launch, which `pallascope.predict` gives.

Not covered: launch, waves and the tail of a grid (`launch` has them); blocks of a whole grid that
begin later than others; that operands of wgmma and ordinary accesses share the banks; what
`operations`, `traffic` and `ways` leave out; clocks that fall under load (`Machine.loaded` has
them). Whether barriers are used rightly is `check`'s to say (`barriers`).
"""

from dataclasses import replace
from numbers import Integral

from pallascope.arguments import (
    MACHINE,
    PROGRAM,
    expect,
    expect_fraction,
    expect_l2_hits,
    expect_range,
)
from pallascope.machine import BLOCKS, H200, Machine
from pallascope.program import Program
from pallascope.simulating.run import Run
from pallascope.simulating.traffic import likely_l2_hits
from pallascope.simulating.ways import SLOW_WAYS, branches, decided
from pallascope.timeline import Timeline


def simulate(
    program: Program,
    machine: Machine = H200,
    *,
    blocks_per_sm: int = 1,
    l2_hits: float | None = None,
    slow_ways: float = SLOW_WAYS,
) -> Timeline:
    """When each thread of a block or cluster does what, on a machine.

    Args:
      program: what `trace` gave, or one built by hand.
      machine: by default `pallascope.H200`, which the book's numbers are of.
      blocks_per_sm: how many copies of the block an SM runs at once; the first is shown.
      l2_hits: the fraction of loaded bytes that L2 has, 0 to 1. By default the most it can be:
        1 - (bytes of the arrays that are loaded) / (bytes that the whole grid loads).
      slow_ways: where data choose a branch's way, the fraction of branches, 0 to 1, that take the
        way that takes longest. The others take the shortest way that does something.

    Returns:
      A timeline in cycles at `machine.clock_hz`, source "simulated". Where threads wait for ever it
      is `stuck`, and ends when nothing goes on; `notes` say who waits for what.

    Raises:
      TypeError: `program` or `machine` is something else, or an option is not a number.
      ValueError: an option out of its range, a product on a dtype that the machine has no rate for,
        a program with all blocks of a grid that has more of them than the machine has SMs, an
        access of another device's memory on a machine without NVLink.

    Example:
      >>> x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
      >>> timeline = pallascope.simulate(pallascope.trace(softmax, x))
      >>> timeline.lanes
      ('thread 0', 'TMA loads', 'TMA stores', 'tensor core')
      >>> print(timeline.bound())
      memory latency: ...% of the whole thread 0 waits on produced
      (load x_smem, TMA loads)
    """
    expect("simulate", program, *PROGRAM)
    expect("simulate", machine, *MACHINE)
    expect("simulate", blocks_per_sm, Integral, "an integer for blocks_per_sm=", "1 is one block")
    expect_l2_hits("simulate", l2_hits)
    if blocks_per_sm < 1:
        raise ValueError(f"{blocks_per_sm=} is less than 1: no block would run, so ask for one.")
    expect_range("simulate", 1, BLOCKS, "the most that an SM holds", blocks_per_sm=blocks_per_sm)
    _expect_room(program, machine, blocks_per_sm)
    expect_fraction("simulate", "branches", slow_ways=slow_ways)
    hits = likely_l2_hits(program, machine, blocks_per_sm) if l2_hits is None else l2_hits
    one_way = decided(program, machine, slow_ways)
    timeline = Run(one_way, machine, blocks_per_sm, hits).timeline()
    if not (count := branches(program)):
        return timeline
    note = f"{slow_ways:.0%} of {count} branches that data choose take their slow way"
    return replace(timeline, notes=(*timeline.notes, note))


def _expect_room(program: Program, machine: Machine, blocks_per_sm: int) -> None:
    """Raises a ValueError if not all blocks of a whole grid have SMs of their own."""
    if not program.spans_grid:
        return
    if blocks_per_sm > 1:
        raise ValueError(
            f"{blocks_per_sm=}, but {program.name} has all {program.blocks} blocks of its grid, and"
            " each runs once, on an SM of its own: leave blocks_per_sm= out."
        )
    each = program.blocks // program.num_devices
    if each > machine.sms:
        on = " of a device" if program.devices else ""
        raise ValueError(
            f"{program.name} has all blocks of its grid, {each}{on}, but {machine.name} has"
            f" {machine.sms} SMs, so {each - machine.sms} blocks would begin later: give it a"
            " persistent grid, or trace one block without whole_grid=True and use"
            " pallascope.predict."
        )
