"""`simulate`: from a `Program` to a `Timeline`, on the model of one multiprocessor.

The model. Each Pallas thread does its ops in order; an asynchronous op goes on without it. Events
are taken in the order of their times (a heap of threads, ties by number), so a program has one
timeline. Each block of a cluster has a multiprocessor of its own, with four servers. A **server**
does one thing at a time, in the order of the requests; a later request waits.

=========  =========================================================================================
server     how long it is taken
=========  =========================================================================================
GMEM port  bytes of loads, stores and ordinary accesses, as fast as an SM alone moves them. Average
           throughput since the first use never exceeds the SM's share of the card's bandwidth. A
           load lands a latency later, during which the port is free
tensor     wgmma: the longer of flops / rate and operand bytes / SMEM bandwidth; a thread that waits
core       for the product goes on `wgmma_latency` later
SMEM       ordinary reads and writes: their wavefronts, each 128 bytes / SMEM bandwidth, however few
           bytes it moves; then a fixed time of the thread. Bytes, where wavefronts are not known
ALU        arithmetic in registers; transcendental functions, and words that lanes pass each other
           in reductions, at rates of their own
=========  =========================================================================================

A barrier's phase is complete when its arrivals have been made and all bytes that they announced
have landed. A waiting thread goes on `wake` later, and no wait is shorter than `wait`. Threads that
begin a shared scope meet. Issuing, arriving and `commit_smem` take the thread a fixed time each.
Other scopes' beginnings and ends, `commit_group` and `registers` take no time.

Banks of SMEM. An access takes several wavefronts where lanes want different words of one bank. How
the array's elements lie in memory and in registers decides that. The trace counts the wavefronts
(`tracing.layouts`); here they only take time.

GMEM's bandwidth. A byte comes from HBM or, with the probability `l2_hits`, from L2; stored bytes
all go on to HBM. An SM's share is the lower of L2's for all bytes and HBM's for the rest: a mean
over the kernel, not a cache. It bounds the mean and not each copy, since other SMs do not load all
the time either: what an SM did not use since its first copy, it may use later. By default each byte
of GMEM is fetched from HBM once for the whole grid and every further load of it hits: L2 at its
best. A load lands when the last of its lines of 128 bytes does, each of which L2 has with the
probability `l2_hits`: its latency is HBM's unless L2 has all of them.

L2 gives more where SMs load the same at about the same time. Measured on an H200, the most that
132 SMs get depends on who shares: blocks with consecutive numbers do gain by it, those that are far
apart do not (the probes "shared ring ..."). A program is that of one block, which does not say who
loads the same, so there are two rates: that of tiles of one's own, and, where every byte is loaded
by two blocks or more, that of the pattern of a matrix product, in which half of what a block loads
is its row's and half its column's.

Several resident blocks. With `blocks_per_sm=n` there are n copies of the program, which share the
servers; the timeline shows the first. They start together, as real blocks do in the first wave. How
many blocks fit is not computed: that depends on SMEM and on registers, which a program does not
have.

Arithmetic. An op's operations, functions and exchanges take their time one after the other, at the
rates of an SM that always has more of them to do. Each operation costs the same as an addition of
float32s, whatever its dtype, conversions and integers among them. Not covered: units that work side
by side; addresses, loop counters and casts of layouts; latencies of instructions, since here no
instruction waits for the result of another, no round of exchanges for the round before, and no warp
for another where they exchange through SMEM.

Not covered: launch, waves and the tail of a grid; that operands of wgmma and ordinary accesses
share the banks; which SMs share what they load, and what multicast spares L2; SMs that load all at
once and then none; that a `prefetch` makes a later load hit; distributed shared memory's cost (an
arrival on a peer's barrier costs as one's own); `opaque` ops, which take no time (a note says so);
clocks that fall under load. Whether barriers are used rightly is `check`'s to say: here the k-th
phase takes the arrivals in the order made.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Integral, Real
from typing import NamedTuple, assert_never

from pipelib.schedule.arguments import MACHINE, PROGRAM, expect
from pipelib.schedule.frozen import maker
from pipelib.schedule.machine import WAVEFRONT_BYTES, Machine
from pipelib.schedule.program import Engine, Kind, Op, Program, Region
from pipelib.schedule.report import truncation
from pipelib.schedule.timeline import ENGINES, Span, SpanKind, Timeline


def simulate(
    program: Program,
    machine: Machine,
    *,
    blocks_per_sm: int = 1,
    l2_hits: float | None = None,
) -> Timeline:
    """When each thread of a block or cluster does what, on a machine.

    Args:
      program: what `trace` gave, or one built by hand.
      machine: `pipelib.H100`, or another.
      blocks_per_sm: how many copies of the block an SM runs at once; the first is shown.
      l2_hits: the fraction of loaded bytes that L2 has, 0 to 1. By default the most it can be:
        1 - (bytes of the arrays that are loaded) / (bytes that the whole grid loads).

    Returns:
      A timeline in cycles at `machine.clock_hz`, source "simulated". Where threads wait for ever it
      is `stuck`, and ends when nothing goes on; `notes` say who waits for what.

    Raises:
      TypeError: `program` or `machine` is something else, or an option is not a number.
      ValueError: an option out of its range, a wgmma on a dtype that the machine has no rate for.

    Example:
      >>> x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
      >>> timeline = pipelib.simulate(pipelib.trace(softmax, x), pipelib.H200)
      >>> timeline.lanes
      ('thread 0', 'TMA loads', 'TMA stores', 'tensor core')
      >>> print(timeline.bound())
      memory latency: ...% of the whole thread 0 waits on produced.0
      (load smem.0, TMA loads)
    """
    expect("simulate", program, *PROGRAM)
    expect("simulate", machine, *MACHINE)
    expect("simulate", blocks_per_sm, Integral, "an integer for blocks_per_sm=", "1 is one block")
    if l2_hits is not None:
        expect("simulate", l2_hits, Real, "a number for l2_hits=", "0 is none of the bytes, 1 all")
    if blocks_per_sm < 1:
        raise ValueError(f"{blocks_per_sm=} is less than 1: no block would run, so ask for one.")
    if l2_hits is not None and not 0 <= l2_hits <= 1:
        raise ValueError(f"{l2_hits=} is not a fraction from 0 to 1 of the bytes loaded.")
    hits = _best_l2_hits(program) if l2_hits is None else l2_hits
    run = _Run(program, machine, blocks_per_sm, hits)
    run.go()
    return run.timeline()


def _loads(program: Program) -> list[Op]:
    return [op for ops in program.threads for op in ops if op.kind == Kind.LOAD]


def _loaded(program: Program) -> int:
    return sum(op.bytes for op in _loads(program))


def _array_bytes(program: Program) -> int:
    """The bytes of the arrays that are loaded from."""
    arrays = {region.buffer for op in _loads(program) for region in op.reads}
    return sum(b.bytes for b in program.buffers if b.id in arrays and b.space == "gmem")


def _best_l2_hits(program: Program) -> float:
    """One minus the least part of the grid's loads that must come from HBM."""
    total = _loaded(program) * max(1, math.prod(program.grid))
    return max(0.0, 1.0 - _array_bytes(program) / total) if total else 0.0


def _is_shared(program: Program) -> bool:
    """Whether at least two blocks of the grid load each byte, on average."""
    mine = {op.reads: op.bytes for op in _loads(program)}
    return sum(mine.values()) * math.prod(program.grid) >= 2 * _array_bytes(program) > 0


class _Done(NamedTuple):
    """When something ends, and the span that says so."""

    time: float
    span: int | None


class _Server:
    """Does one thing at a time, in the order asked."""

    __slots__ = ("free",)

    def __init__(self) -> None:
        self.free = 0.0

    def take(self, now: float, cycles: float) -> tuple[float, float]:
        """When a request of now starts and ends."""
        start = max(now, self.free)
        self.free = start + cycles
        return start, self.free


class _Port(_Server):
    """An SM's way to GMEM: its average rate since the first request is bounded."""

    __slots__ = ("begun", "bytes", "share", "uses")

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share, self.bytes, self.begun = share, 0, None
        self.uses: list[tuple[float, float]] = []  # `Timeline.gmem` says what they are

    def move(self, now: float, size: int, rate: float) -> tuple[float, float]:
        """When bytes that are requested now start and stop moving."""
        self.begun = now if self.begun is None else self.begun
        self.bytes += size
        due = self.begun + self.bytes / self.share
        start, stop = self.take(max(now, due - size / rate), size / rate)
        self.uses.append((stop - size / min(rate, self.share), stop))
        return start, stop


class _Phase:
    """A phase of a barrier: what it has had so far, and who waits for it."""

    __slots__ = ("announced", "arrivals", "landed", "last", "waiters")

    def __init__(self) -> None:
        self.arrivals = self.announced = self.landed = 0
        self.last = _Done(0.0, None)
        self.waiters: list[_Thread] = []


class _Barrier:
    """One barrier of an array: its phases, and how many arrivals there were."""

    __slots__ = ("arrived", "needed", "phases")

    def __init__(self, needed: int) -> None:
        self.needed, self.arrived = needed, 0
        self.phases: defaultdict[int, _Phase] = defaultdict(_Phase)

    def complete(self, phase: int) -> bool:
        state = self.phases[phase]
        return state.arrivals >= self.needed and state.landed >= state.announced


class _Thread:
    """A thread of a block on an SM, and what it started that is not finished."""

    __slots__ = (
        "at", "block", "copy", "groups", "index", "number", "open", "ops", "products", "since",
        "sm",
    )  # fmt: skip

    def __init__(self, number: int, per_block: int, threads: tuple, sms: "list[_Sm]") -> None:
        self.number = number
        self.copy, self.index = divmod(number, len(threads))
        self.block = self.index // per_block
        self.ops: tuple[Op, ...] = threads[self.index]
        self.sm = sms[self.block]
        self.at, self.since = 0, 0.0
        self.products: list[_Done] = []
        self.open: list[tuple[_Done, _Done]] = []  # stores in no group: read, and written
        self.groups: list[tuple[_Done, _Done]] = []  # the latest ends of all groups until here


class _Sm:
    """The servers of one multiprocessor."""

    def __init__(self, share: float) -> None:
        self.port = _Port(share)
        self.tensor_core, self.smem, self.alu = (_Server() for _ in range(3))


# Takes the thread, the op and the time; gives when the thread goes on, None if that is not known.
_Handler = Callable[[_Thread, Op, float], float | None]
_make_span = maker(Span)
_ENGINE_NUMBER = {engine: number for number, engine in enumerate(Engine)}


class _Run:
    """One simulation: the state, the events, and what each kind of op does."""

    def __init__(self, program: Program, machine: Machine, copies: int, l2_hits: float) -> None:
        self.program, self.machine, self.copies, self.l2_hits = program, machine, copies, l2_hits
        self.per_block = len(program.threads) // program.blocks
        self.spans: list[Span] = []
        blocks = max(1, math.prod(program.grid)) * program.blocks
        active = min(machine.sms, -(-blocks // copies))
        share = machine.gmem_bytes_per_cycle(active, self._hbm_fraction(), _is_shared(program))
        self.sms = [_Sm(share) for _ in range(program.blocks)]
        self.threads = [
            _Thread(number, self.per_block, program.threads, self.sms)
            for number in range(copies * len(program.threads))
        ]
        self.barriers: dict[tuple[int, int, int], _Barrier] = {}
        self.meets: defaultdict[tuple, list[_Thread]] = defaultdict(list)
        self.events: list[tuple[float, int]] = []
        self.lanes = self._lanes()
        self.handlers = {kind: self._handler(kind) for kind in Kind}
        self.opaque = 0
        self.stuck: set[int] = set()
        self.element = {b.id: _bits(b.dtype) / 8 for b in program.buffers}

    def _hbm_fraction(self) -> float:
        """The part of all bytes moved that HBM moves."""
        ops = (op for ops in self.program.threads for op in ops)
        stored = sum(op.bytes for op in ops if op.kind == Kind.STORE)
        loaded = _loaded(self.program)
        moved = loaded + stored
        return ((1 - self.l2_hits) * loaded + stored) / moved if moved else 1 - self.l2_hits

    def _lanes(self) -> list[str]:
        names = []
        for block in range(self.program.blocks):
            prefix = f"block {block} " if self.program.blocks > 1 else ""
            names += [f"{prefix}thread {i}" for i in range(self.per_block)]
            names += [prefix + engine for engine in Engine]
        return names

    def _lane(self, thread: _Thread, engine: Engine | None) -> int:
        """The number of the thread's own lane, or of the lane of its block's engine."""
        lane = thread.index + thread.block * len(Engine)
        if engine is None:
            return lane
        last = (thread.block + 1) * (self.per_block + len(Engine))
        return last - len(Engine) + _ENGINE_NUMBER[engine]

    def _handler(self, kind: Kind) -> "_Handler":
        """What an op of this kind does, and when its thread goes on."""
        match kind:
            case Kind.LOAD:
                return self.load
            case Kind.STORE:
                return self.store
            case Kind.PREFETCH:
                return self.prefetch
            case Kind.COMMIT_GROUP:
                return self.commit_group
            case Kind.WAIT_STORE:
                return self.wait_store
            case Kind.ARRIVE:
                return self.arrive
            case Kind.WAIT:
                return self.wait
            case Kind.TEST:
                return self.test
            case Kind.READ | Kind.WRITE:
                return self.access
            case Kind.COMPUTE:
                return self.compute
            case Kind.WGMMA:
                return self.wgmma
            case Kind.WGMMA_WAIT | Kind.ACC_READ:
                return self.wgmma_wait
            case Kind.FENCE:
                return self.fence
            case Kind.SCOPE_BEGIN:
                return self.scope_begin
            case Kind.ACC_INIT | Kind.ACC_WRITE | Kind.REGISTERS | Kind.SCOPE_END | Kind.OPAQUE:
                return self.nothing
            case _:
                assert_never(kind)

    # Events.

    def go(self) -> None:
        """Runs all threads until none can go on."""
        for number in range(len(self.threads)):
            heapq.heappush(self.events, (0.0, number))
        while self.events:
            now, number = heapq.heappop(self.events)
            self._advance(self.threads[number], now)
        self._end_stuck_waits()

    def _advance(self, thread: _Thread, now: float) -> None:
        """Does the thread's ops for as long as no other thread is earlier."""
        events, ops, handlers = self.events, thread.ops, self.handlers
        while thread.at < len(ops):
            if events and (now, thread.number) > events[0]:
                return heapq.heappush(events, (now, thread.number))
            op = ops[thread.at]
            thread.since = now
            end = handlers[op.kind](thread, op, now)
            if end is None:
                return self.stuck.add(thread.number)
            now, thread.at = end, thread.at + 1

    def _resume(self, thread: _Thread, end: float, span: int | None, text: str) -> None:
        """Ends a thread's wait, which the span released."""
        self.stuck.discard(thread.number)
        op = thread.ops[thread.at]
        self._span(thread, op, SpanKind.WAIT, thread.since, end, text, cause=span)
        thread.at += 1
        heapq.heappush(self.events, (end, thread.number))

    # Spans.

    def _span(
        self, thread: _Thread, op: Op, kind: SpanKind, start: float, stop: float, text: str = "",
        cause: int | None = None,
    ) -> int | None:  # fmt: skip
        """A new span's number; None for copies of the block, which no figure shows."""
        if thread.copy:
            return None
        lane = self._lane(thread, op.kind.engine if kind in ENGINES else None)
        self.spans.append(
            _make_span(
                lane, start, stop, kind, text or self.program.label(op),
                self._slot(op), op.step, op.line, thread.index, thread.at, cause, op.scope,
            )
        )  # fmt: skip
        return len(self.spans) - 1

    def _slot(self, op: Op) -> int | None:
        """The slot of the ring that an op touches, or whose barrier it is on."""
        for region in op.writes + op.reads:
            if self.program.buffers[region.buffer].slots:
                return region.box[0][0]
        if op.barrier is not None and self.program.barriers[op.barrier].count > 1:
            return op.index
        return None

    # What each kind does from now on.

    def issue(self, thread: _Thread, op: Op, now: float, cycles: float) -> float:
        self._span(thread, op, SpanKind.ISSUE, now, now + cycles)
        return now + cycles

    def nothing(self, thread: _Thread, op: Op, now: float) -> float:
        self.opaque += op.kind == Kind.OPAQUE
        return now

    def fence(self, thread: _Thread, op: Op, now: float) -> float:
        return self.issue(thread, op, now, self.machine.fence_cycles)

    def load(self, thread: _Thread, op: Op, now: float) -> float:
        machine = self.machine
        end = self.issue(thread, op, now, machine.load_issue_cycles)
        start, moved = thread.sm.port.move(end, op.bytes, machine.sm_bytes_per_cycle)
        landed = moved + machine.load_latency_cycles(self.l2_hits, op.bytes)
        landing = _Done(landed, self._span(thread, op, SpanKind.LOAD, start, landed))
        if op.barrier is None:
            return end
        own = self._barrier(thread, *op.place)
        phase = own.arrived // own.needed
        self._arrival(thread, *op.place, _Done(end, landing.span), len(op.peers) or 1)
        for barrier in op.peers or (op.barrier,):
            self._landing(thread, barrier, op.index, phase, landing)
        return end

    def prefetch(self, thread: _Thread, op: Op, now: float) -> float:
        end = self.issue(thread, op, now, self.machine.load_issue_cycles)
        start, moved = thread.sm.port.move(end, op.bytes, self.machine.sm_bytes_per_cycle)
        self._span(thread, op, SpanKind.LOAD, start, moved)
        return end

    def store(self, thread: _Thread, op: Op, now: float) -> float:
        end = self.issue(thread, op, now, self.machine.store_issue_cycles)
        start, moved = thread.sm.port.move(end, op.bytes, self.machine.store_bytes_per_cycle)
        written = moved + self.machine.store_latency_cycles
        span = self._span(thread, op, SpanKind.STORE, start, written)
        thread.open.append((_Done(moved, span), _Done(written, span)))
        return end

    def commit_group(self, thread: _Thread, op: Op, now: float) -> float:
        ends = thread.groups[-1:] + thread.open or [(_Done(now, None),) * 2]
        thread.groups.append(tuple(max(each, key=lambda done: done.time) for each in zip(*ends)))
        thread.open = []
        return now

    def wait_store(self, thread: _Thread, op: Op, now: float) -> float:
        last = -1 if op.pending is None else len(thread.groups) - op.pending - 1
        if last < 0:
            return now
        read, written = thread.groups[last]
        done = read if op.read_only else written
        end = max(now, done.time)
        self._span(thread, op, SpanKind.WAIT, now, end, "waits for its stores", cause=done.span)
        return end

    def wgmma(self, thread: _Thread, op: Op, now: float) -> float:
        end = self.issue(thread, op, now, self.machine.wgmma_issue_cycles)
        start, stop = thread.sm.tensor_core.take(end, self._product_cycles(op))
        span = self._span(thread, op, SpanKind.WGMMA, start, stop)
        thread.products.append(_Done(stop, span))
        return end

    def wgmma_wait(self, thread: _Thread, op: Op, now: float) -> float:
        last = -1 if op.pending is None else len(thread.products) - op.pending - 1
        if last < 0:
            return now
        done = thread.products[last]
        end = max(now, done.time + self.machine.wgmma_latency_cycles)
        self._span(thread, op, SpanKind.WAIT, now, end, "waits for its products", cause=done.span)
        return end

    def access(self, thread: _Thread, op: Op, now: float) -> float:
        """An ordinary read or write, of GMEM through the port, of SMEM through its server."""
        machine, regions = self.machine, op.reads + op.writes
        spaces = {self.program.buffers[region.buffer].space for region in regions}
        is_read = op.kind == Kind.READ
        if "gmem" in spaces:
            _, done = thread.sm.port.move(now, op.bytes, machine.sm_bytes_per_cycle)
            latency = machine.load_latency_cycles(self.l2_hits, op.bytes) if is_read else 0.0
        else:
            taken = op.bytes if op.wavefronts is None else op.wavefronts * WAVEFRONT_BYTES
            _, done = thread.sm.smem.take(now, taken / machine.smem_bytes_per_cycle)
            latency = machine.smem_latency_cycles if is_read else machine.smem_write_cycles
        self._span(thread, op, SpanKind.ACCESS, now, done + latency)
        return done + latency

    def compute(self, thread: _Thread, op: Op, now: float) -> float:
        hard = op.transcendental
        cycles = max(0, op.flops - hard) / self.machine.alu_ops_per_cycle
        cycles += hard / self.machine.transcendental_ops_per_cycle
        cycles += op.exchanges / self.machine.exchanges_per_cycle
        _, done = thread.sm.alu.take(now, cycles)
        self._span(thread, op, SpanKind.COMPUTE, now, done)
        return done

    def arrive(self, thread: _Thread, op: Op, now: float) -> float:
        end = now + self.machine.arrive_cycles
        span = self._span(thread, op, SpanKind.ISSUE, now, end)
        own, index = op.place
        for peer in self.program.barriers[own].peers or (own,):
            self._arrival(thread, peer, index, _Done(end, span), 0)
        return end

    def wait(self, thread: _Thread, op: Op, now: float) -> float | None:
        barrier = self._barrier(thread, *op.place)
        if barrier.complete(op.phase):
            return self._pass(thread, op, barrier.phases[op.phase].last)
        barrier.phases[op.phase].waiters.append(thread)
        return None

    def test(self, thread: _Thread, op: Op, now: float) -> float:
        return self.issue(thread, op, now, self.machine.wait_cycles)

    def scope_begin(self, thread: _Thread, op: Op, now: float) -> float | None:
        if not op.shared or self.per_block == 1:
            return now
        here = self.meets[thread.copy, thread.block, op.scope_id]
        here.append(thread)
        if len(here) < self.per_block:
            return None
        del self.meets[thread.copy, thread.block, op.scope_id]
        end = now + self.machine.meet_cycles
        # The last to come waits for nobody: it releases the others.
        text = "meets the other threads of the block"
        last = self._span(thread, op, SpanKind.ISSUE, now, end, text)
        for other in here[:-1]:
            self._resume(other, end, last, "waits for the other threads of the block")
        return end

    # Barriers.

    def _barrier(self, thread: _Thread, barrier: int, index: int) -> _Barrier:
        key = thread.copy, barrier, index
        if key not in self.barriers:
            self.barriers[key] = _Barrier(self.program.barriers[barrier].arrivals)
        return self.barriers[key]

    def _arrival(self, thread, barrier: int, index: int, done: _Done, parts: int) -> None:
        """An arrival, and how many parts must land before the phase completes."""
        state = self._barrier(thread, barrier, index)
        number = state.arrived // state.needed
        state.arrived += 1
        phase = state.phases[number]
        phase.arrivals += 1
        phase.announced += parts
        self._update(state, number, done)

    def _landing(self, thread, barrier: int, index: int, number: int, done: _Done) -> None:
        state = self._barrier(thread, barrier, index)
        state.phases[number].landed += 1
        self._update(state, number, done)

    def _update(self, barrier: _Barrier, number: int, done: _Done) -> None:
        """Something happened to a phase; if it is now known when it completes, waiters go on."""
        phase = barrier.phases[number]
        if done.time >= phase.last.time:
            phase.last = done
        if barrier.complete(number):
            for thread in phase.waiters:
                end, text = self._passed(thread, phase.last), self._on(thread.ops[thread.at])
                self._resume(thread, end, phase.last.span, text)
            phase.waiters = []

    def _passed(self, thread: _Thread, done: _Done) -> float:
        """When a thread goes on that waits since `thread.since`."""
        machine = self.machine
        return max(thread.since + machine.wait_cycles, done.time + machine.wake_cycles)

    def _pass(self, thread: _Thread, op: Op, done: _Done) -> float:
        end = self._passed(thread, done)
        self._span(thread, op, SpanKind.WAIT, thread.since, end, self._on(op), cause=done.span)
        return end

    def _on(self, op: Op) -> str:
        barrier, index = op.place
        return f"waits on {self.program.barriers[barrier].name}[{index}], phase {op.phase}"

    def _missing(self, thread: _Thread) -> str:
        """What a thread waits for in vain."""
        op = thread.ops[thread.at]
        if op.kind == Kind.SCOPE_BEGIN:
            return f"for the other threads to begin the shared scope {op.scope_id}"
        array, index = op.place
        barrier, name = self._barrier(thread, array, index), self.program.barriers[array].name
        phase = barrier.phases[op.phase]
        return (
            f"on {name}[{index}], phase {op.phase}, which got {phase.arrivals} of"
            f" {barrier.needed} arrivals"
        )

    # What a product takes.

    def _product_cycles(self, op: Op) -> float:
        """The longer of arithmetic and of the operands' way from SMEM.

        The tensor core takes 64 rows at a time, and reads the right operand for each 64 again.
        """
        operands = [r for r in op.reads if self.program.buffers[r.buffer].space == "smem"]
        dtype = self.program.buffers[operands[-1].buffer].dtype if operands else "float16"
        rate = self.machine.wgmma_rate(dtype, op.line)
        moved = 0.0
        if operands:
            right = self._bytes(operands[-1])
            left = sum(map(self._bytes, operands[:-1]))
            rows = self._rows(op)
            moved = left + right * -(-rows // 64)
        return max(op.flops / rate, moved / self.machine.smem_bytes_per_cycle)

    def _rows(self, op: Op) -> int:
        """The rows of the accumulator that a product writes."""
        box = op.writes[0].box if op.writes else ((0, 64),)
        return box[-2][1] - box[-2][0] if len(box) > 1 else 64

    def _bytes(self, region: Region) -> float:
        elements = math.prod(stop - start for start, stop in region.box)
        return elements * self.element[region.buffer]

    # The end.

    def _end_stuck_waits(self) -> None:
        """The waits that never end run to the end of everything."""
        self.cycles = max((span.stop for span in self.spans), default=0.0)
        stuck = [self.threads[number] for number in sorted(self.stuck)]
        self.cycles = max([self.cycles, *(thread.since for thread in stuck)])
        for thread in stuck:
            text = f"waits {self._missing(thread)}, for ever"
            op = thread.ops[thread.at]
            self._span(thread, op, SpanKind.WAIT, thread.since, self.cycles, text)

    def _notes(self) -> Iterator[str]:
        program = self.program
        if program.truncated:
            yield truncation(program)
        shown = [
            f"thread {thread.index} waits {self._missing(thread)}"
            for thread in map(self.threads.__getitem__, sorted(self.stuck))
            if not thread.copy
        ]
        if shown:
            word = "cut off" if program.truncated else "deadlock"
            yield f"{word} at {self.cycles:,.0f} cycles: " + "; ".join(shown)
        if self.opaque:
            yield f"{self.opaque} opaque ops are taken to need no time"
        if self.copies > 1:
            yield f"one of {self.copies} blocks that share the multiprocessor"

    def timeline(self) -> Timeline:
        """What happened."""
        return Timeline(
            self.program.name, tuple(self.lanes), (*self.spans, *_scopes(self.spans)), self.cycles,
            self.machine.clock_hz, "simulated", self.machine.name, bool(self.program.truncated),
            tuple(self._notes()), bool(self.stuck) and not self.program.truncated,
            tuple(tuple(sm.port.uses) for sm in self.sms),
        )  # fmt: skip


def _scopes(spans: list[Span]) -> list[Span]:
    """A span for each run of a thread's spans in one named scope and one step, outer ones first."""
    found: list[Span] = []
    current: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for span in spans:
        if span.kind in ENGINES:
            continue
        names = span.scope.split("/") if span.scope else []
        paths = ["/".join(names[: i + 1]) for i in range(len(names))]
        before = current[span.lane]
        current[span.lane] = now = {}
        for path in paths:
            number = before.get(path)
            if number is not None and found[number].step == span.step:
                found[number] = replace(found[number], stop=span.stop)
            else:
                number = len(found)
                found.append(
                    Span(
                        span.lane, span.start, span.stop, SpanKind.SCOPE, path, step=span.step,
                        thread=span.thread, scope=path,
                    )
                )  # fmt: skip
            now[path] = number
    return found


def _bits(dtype: str) -> int:
    """Bits of an element: `float8_e4m3fn` has 8, and so has `bool`."""
    digits = "".join(c if c.isdigit() else " " for c in dtype).split()
    return int(digits[0]) if digits else 8
