"""Operations: what an op of each kind does to the machine, and when its thread goes on.

=====================  =============================================================================
kind                   what it does
=====================  =============================================================================
load, prefetch, store  the thread issues it; its bytes then move through the GMEM port. A load lands
                       a latency later, during which the port is free, and arrives on its barrier; a
                       multicast takes the port of each SM that gets it, and lands there. A store
                       ends a latency later; one that adds takes `add_cost` times as long
cp_async               as a load that arrives nowhere, with the times of a load by TMA
wait_cp_async          the thread goes on when the copies have landed
commit_group           closes the group of stores
wait_store             the thread goes on when the group's stores have been read, or written
signal                 the thread takes a fixed time, once its last signal to another device has
                       been answered; the signal then is on its way for as long as NVLink takes to
                       another device, and has arrived at once on its own
await                  the thread goes on a fixed time after the semaphore holds enough
arrive                 the thread takes a fixed time, and its arrival counts when that ends
wait                   the thread goes on `wake` after the phase's end, and no earlier than `wait`
                       after it came
test, fence            a fixed time of the thread
read, write            GMEM: the port, for a read also a load's latency. SMEM: its wavefronts, then
                       a fixed time of the thread
compute                its functions, and all else, each take a unit of arithmetic; it begins when
                       those that it needs are free, and takes longer beside products
wgmma                  the thread issues it; the tensor core works
wgmma_wait, acc_read   the thread goes on `wgmma_latency` and `wgmma_restart` after the product's
                       end
tcgen05_mma, _copy     the thread issues it; the tensor core works, for two blocks that of each
tcgen05_commit         arrives `wgmma_latency` after the last of the thread's products and copies
load_tmem, store_tmem  the thread goes on when the bytes have moved
wait_load_tmem,        nothing that takes time, since the thread has waited already
wait_store_tmem
scope_begin, meet      threads that begin a shared scope, or a thread and its warps, meet: they go
                       on a fixed time after the last of them came
acc_init, acc_write,   nothing that takes time
registers, scope_end,
skip, opaque
=====================  =============================================================================

`Machine` has the fixed times. Not covered: distributed shared memory's cost (an arrival on a peer's
barrier costs as one's own); `opaque` ops, whose number is only counted; how long a wait takes on a
semaphore that blocks or devices may signal which are not in the program: it is taken to hold
enough. A warp's op costs what a thread's does. A store or a load of another device's memory takes a
link as well, and NVLink's latency: `links` has both. That a `prefetch` or a `cp_async` may reach
there is not covered.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import assert_never

from pallascope.program import Kind, Op, Program, Region, Space
from pallascope.simulating.barriers import Barriers, Phase
from pallascope.simulating.costs import Costs
from pallascope.simulating.events import Events, Handler
from pallascope.simulating.links import Links
from pallascope.simulating.recorder import Recorder, Room
from pallascope.simulating.semaphores import Semaphores
from pallascope.simulating.threads import Done, Group, Thread
from pallascope.simulating.units import Port, Server, Sm
from pallascope.spans import SpanKind


class Operations:
    """What ops of each kind do: `handlers` has the function for each.

    `opaque` counts the opaque ops; `barriers` has the barriers' state.
    """

    def __init__(
        self,
        program: Program,
        costs: Costs,
        l2_hits: float,
        events: Events,
        recorder: Recorder,
        sms: Sequence[Sm],
    ) -> None:
        self.program, self.machine, self.l2_hits, self.sms = program, costs.machine, l2_hits, sms
        self.events, self.costs = events, costs
        self.span, self.latest = recorder.span, recorder.latest
        self.barriers = Barriers(program, self._release)
        self.semaphores = Semaphores(program, self._signalled)
        self.links = Links(program, costs.machine)
        self.opaque = 0
        self._meets: defaultdict[tuple[int, tuple[int, ...]], list[Thread]] = defaultdict(list)
        self.handlers: dict[Kind, Handler] = {kind: self._handler(kind) for kind in Kind}

    def _handler(self, kind: Kind) -> Handler:
        """The function for ops of this kind."""
        match kind:
            case Kind.LOAD:
                return self.load
            case Kind.STORE:
                return self.store
            case Kind.PREFETCH:
                return self.prefetch
            case Kind.CP_ASYNC:
                return self.cp_async
            case Kind.WAIT_CP_ASYNC:
                return self.wait_cp_async
            case Kind.COMMIT_GROUP:
                return self.commit_group
            case Kind.WAIT_STORE:
                return self.wait_store
            case Kind.ARRIVE:
                return self.arrive
            case Kind.WAIT:
                return self.wait
            case Kind.SIGNAL:
                return self.signal
            case Kind.AWAIT:
                return self.await_signals
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
            case Kind.TCGEN05_MMA | Kind.TCGEN05_COPY:
                return self.tcgen05
            case Kind.TCGEN05_COMMIT:
                return self.commit_products
            case Kind.LOAD_TMEM | Kind.STORE_TMEM:
                return self.access_tmem
            case Kind.FENCE:
                return self.fence
            case Kind.SCOPE_BEGIN:
                return self.scope_begin
            case Kind.MEET:
                return self.meet
            case Kind.OPAQUE:
                return self.count_opaque
            case (
                Kind.ACC_INIT | Kind.ACC_WRITE | Kind.REGISTERS | Kind.SCOPE_END | Kind.SKIP
                | Kind.GRID_WAIT | Kind.GRID_SIGNAL | Kind.WAIT_LOAD_TMEM | Kind.WAIT_STORE_TMEM
            ):  # fmt: skip
                return self.nothing
            case _:
                assert_never(kind)

    def _by(
        self,
        unit: Server,
        thread: Thread,
        op: Op,
        kind: SpanKind,
        asked: float,
        times: tuple[float, float],
    ) -> int | None:
        """Records what a unit does, for which it was asked at `asked`.

        Args:
          unit: the last thing that it did is what this one was late for, if it was late.
          thread, op, kind: as `span` takes them.
          asked: in cycles.
          times: of the span.
        """
        late, before = unit.ready > asked, self.latest(thread)
        after, other = (unit.last, before) if late else (None, unit.last)
        room = [(other, abs(unit.ready - asked))]
        unit.last = self.span(thread, op, kind, *times, after=after, room=room)
        return unit.last

    # The thread alone.

    def issue(self, thread: Thread, op: Op, now: float, cycles: float) -> float:
        """Takes a fixed time of the thread."""
        self.span(thread, op, SpanKind.ISSUE, now, now + cycles)
        return now + cycles

    def nothing(self, thread: Thread, op: Op, now: float) -> float:
        """Takes no time."""
        return now

    def count_opaque(self, thread: Thread, op: Op, now: float) -> float:
        """Takes no time, since how much it takes is not known."""
        self.opaque += 1
        return now

    def fence(self, thread: Thread, op: Op, now: float) -> float:
        """Takes a fixed time: `commit_smem`."""
        return self.issue(thread, op, now, self.machine.fence_cycles)

    def test(self, thread: Thread, op: Op, now: float) -> float:
        """Takes as long as the shortest wait, and decides nothing."""
        return self.issue(thread, op, now, self.machine.wait_cycles)

    def access(self, thread: Thread, op: Op, now: float) -> float:
        """An ordinary read or write, of GMEM through the port, of SMEM through its server."""
        machine, buffers = self.machine, self.program.buffers
        is_read = op.kind == Kind.READ
        if any(buffers[region.buffer].space is Space.GMEM for region in op.reads + op.writes):
            link, port = self.links.of(thread.block, op), thread.sm.port
            latency = machine.load_latency_cycles(self.l2_hits, op.bytes) if is_read else 0.0
            unit: Server = port
            _, done = self.links.move(link, port, now, op.bytes, self.costs.port(op), op)
            latency += self.links.latency(link, op) if is_read else 0.0
        else:
            unit = thread.sm.smem
            _, done = unit.take(now, self.costs.access(op))
            latency = machine.smem_latency_cycles if is_read else machine.smem_write_cycles
        self._by(unit, thread, op, SpanKind.ACCESS, now, (now, done + latency))
        return done + latency

    def compute(self, thread: Thread, op: Op, now: float) -> float:
        """Arithmetic in registers: one part after the other, each on its unit."""
        sm, cycles = thread.sm, self.costs.arithmetic(op)
        if not cycles.alone:
            self.span(thread, op, SpanKind.COMPUTE, now, now)
            return now
        units = [(sm.functions, cycles.functions), (sm.alu, cycles.others)]
        used = [(unit, taken) for unit, taken in units if taken]
        number = thread.number
        latest = max((unit for unit, _ in used), key=lambda unit: unit.free_for(number))
        latest.ready = latest.free_for(number)
        begun = max(now, latest.ready)
        times = self.costs.stretched(cycles, max(0.0, sm.tensor_core.free - begun))
        done = begun + times * cycles.alone
        span = self._by(latest, thread, op, SpanKind.COMPUTE, now, (now, done))
        for unit, taken in used:
            unit.hold(number, begun, done, times * taken / self.machine.arithmetic_reach)
            unit.last = span
        return done

    # Copies.

    def load(self, thread: Thread, op: Op, now: float) -> float:
        """Arrives on the load's barrier at once; its bytes land there, and at all peers, later."""
        machine = self.machine
        end = self.issue(thread, op, now, machine.load_issue_cycles)
        ports, link = self._ports(thread, op), self.links.of(thread.block, op)
        latency = machine.load_latency_cycles(self.l2_hits, op.bytes) + self.links.latency(link, op)
        moves = [
            self.links.move(link, port, end, op.bytes, self.costs.port(op), op) for port in ports
        ]
        start, last = moves[0][0], max(moved for _, moved in moves) + latency
        span = self._by(ports[0], thread, op, SpanKind.LOAD, end, (start, last))
        if op.barrier is None:
            return end
        barriers, peers = self.barriers, op.peers or (op.barrier,)
        own = barriers.at(thread.copy, op.barrier, op.index)
        parts = len(peers) if op.parts is None else op.parts
        if parts:
            phase = own.arrived // own.needed
            barriers.arrive(own, Done(end, span), parts)
        else:  # another block's load arrives, at the same place among that block's loads
            phase = own.tracked // barriers.at(thread.copy, peers[0], op.index).needed
            own.tracked += 1
        for peer, (_, moved) in zip(peers, moves):
            landing = Done(moved + latency, span)
            barriers.land(barriers.at(thread.copy, peer, op.index), phase, landing)
        return end

    def _ports(self, thread: Thread, op: Op) -> list[Port]:
        """The ports that a load takes: of a multicast, that of each SM that gets it."""
        if len(op.peers) < 2:
            return [thread.sm.port]
        return [self.sms[self.program.barriers[peer].block or 0].port for peer in op.peers]

    def prefetch(self, thread: Thread, op: Op, now: float) -> float:
        """Moves its bytes as a load does; nothing waits for them."""
        end = self.issue(thread, op, now, self.machine.load_issue_cycles)
        port = thread.sm.port
        start, moved = port.move(end, op.bytes, self.costs.port(op))
        self._by(port, thread, op, SpanKind.LOAD, end, (start, moved))
        return end

    def cp_async(self, thread: Thread, op: Op, now: float) -> float:
        """Moves its bytes as a load does, which have landed a latency later."""
        machine = self.machine
        end = self.issue(thread, op, now, machine.load_issue_cycles)
        port = thread.sm.port
        start, moved = port.move(end, op.bytes, self.costs.port(op))
        landed = moved + machine.load_latency_cycles(self.l2_hits, op.bytes)
        span = self._by(port, thread, op, SpanKind.LOAD, end, (start, landed))
        thread.copies.append(Done(landed, span))
        return end

    def wait_cp_async(self, thread: Thread, op: Op, now: float) -> float:
        """Goes on when all copies but the last `pending` have landed."""
        landed = thread.copies[: len(thread.copies) - (op.pending or 0)]
        last = max(landed, key=lambda done: done.time, default=Done(now, None))
        alone = now + self.machine.wait_cycles
        return self._waited(thread, op, alone, last.time, "waits for its copies", last.span)

    def store(self, thread: Thread, op: Op, now: float) -> float:
        """Has read its SMEM once the bytes moved, and has written GMEM a latency later."""
        machine, link = self.machine, self.links.of(thread.block, op)
        end = self.issue(thread, op, now, machine.store_issue_cycles)
        size, rate = (
            op.bytes * (machine.add_cost if op.combines else 1),
            machine.store_bytes_per_cycle / self.costs.spread(op),
        )
        start, moved = self.links.move(link, thread.sm.port, end, size, rate, op)
        written = moved + self.links.latency(link, op, machine.store_latency_cycles)
        span = self._by(thread.sm.port, thread, op, SpanKind.STORE, end, (start, written))
        thread.open.append(Group(Done(moved, span), Done(written, span)))
        return end

    def commit_group(self, thread: Thread, op: Op, now: float) -> float:
        """Makes a group of the thread's stores until here, the earlier groups' too."""
        nothing = Group(Done(now, None), Done(now, None))
        thread.groups.append(Group.of(thread.groups[-1:] + thread.open or [nothing]))
        thread.open = []
        return now

    def wait_store(self, thread: Thread, op: Op, now: float) -> float:
        """Goes on when all groups but the last `pending` have been read, or written."""
        last = -1 if op.pending is None else len(thread.groups) - op.pending - 1
        if last < 0:
            return now
        group = thread.groups[last]
        done = group.read if op.read_only else group.written
        return self._waited(thread, op, now, done.time, "waits for its stores", done.span)

    # The tensor core.

    def wgmma(self, thread: Thread, op: Op, now: float) -> float:
        """Starts a product."""
        end = self.issue(thread, op, now, self.machine.wgmma_issue_cycles)
        start, stop = thread.sm.tensor_core.take(end, self.costs.product(op))
        core = thread.sm.tensor_core
        span = self._by(core, thread, op, SpanKind.WGMMA, end, (start, stop))
        thread.products.append(Done(stop, span))
        return end

    def wgmma_wait(self, thread: Thread, op: Op, now: float) -> float:
        """Goes on when all products but the last `pending` are done."""
        last = -1 if op.pending is None else len(thread.products) - op.pending - 1
        if last < 0:
            return now
        done = thread.products[last]
        machine = self.machine
        delay = machine.wgmma_latency_cycles + machine.wgmma_restart_cycles
        text = "waits for its products"
        return self._waited(thread, op, now, done.time + delay, text, done.span)

    def tcgen05(self, thread: Thread, op: Op, now: float) -> float:
        """Starts a product or a copy to TMEM, on the tensor core of each of its blocks."""
        end = self.issue(thread, op, now, self.machine.wgmma_issue_cycles)
        cycles = self.costs.product(op) if op.kind is Kind.TCGEN05_MMA else self.costs.access(op)
        cores = [self._sm_of(region, thread).tensor_core for region in op.writes]
        latest = max(cores, key=lambda core: core.free)
        begin = max(end, latest.free)
        stop = max(core.take(begin, cycles)[1] for core in cores)
        span = self._by(latest, thread, op, SpanKind.WGMMA, end, (begin, stop))
        for core in cores:
            core.last = span
        thread.products.append(Done(stop, span))
        return end

    def _sm_of(self, region: Region, thread: Thread) -> Sm:
        """The SM whose memory a region is of."""
        block = self.program.buffers[region.buffer].block
        return thread.sm if block == thread.block else self.sms[block or 0]

    def commit_products(self, thread: Thread, op: Op, now: float) -> float:
        """Arrives on its barriers once the thread's products so far are over."""
        end = self.issue(thread, op, now, self.machine.arrive_cycles)
        done = Done(end, None)
        if thread.products:
            last = max(thread.products, key=lambda product: product.time)
            done = Done(max(end, last.time + self.machine.wgmma_latency_cycles), last.span)
        for peer in op.peers:
            barrier = self.barriers.at(thread.copy, peer, op.index)
            phase = barrier.arrived // barrier.needed
            self.barriers.arrive(barrier, Done(end, done.span), 1)
            self.barriers.land(barrier, phase, done)
        return end

    def access_tmem(self, thread: Thread, op: Op, now: float) -> float:
        """A read or a write of TMEM: the thread goes on when it is over."""
        tmem = thread.sm.tmem
        start, stop = tmem.take(now, op.bytes / self.machine.tmem_rate(op.line))
        self._by(tmem, thread, op, SpanKind.ACCESS, now, (start, stop))
        return stop

    # Between threads.

    def arrive(self, thread: Thread, op: Op, now: float) -> float:
        """Arrives on a barrier and its peers."""
        end = now + self.machine.arrive_cycles
        span = self.span(thread, op, SpanKind.ISSUE, now, end)
        own, index = op.place
        for peer in self.program.barriers[own].peers or (own,):
            barrier = self.barriers.at(thread.copy, peer, index)
            self.barriers.arrive(barrier, Done(end, span), op.parts or 0)
        return end

    def wait(self, thread: Thread, op: Op, now: float) -> float | None:
        """Goes on when a phase is over."""
        barrier = self.barriers.at(thread.copy, *op.place)
        phase = barrier.phases[op.phase]
        if barrier.complete(op.phase):
            return self._ended(thread, phase)
        phase.waiters.append(thread)
        return None

    def signal(self, thread: Thread, op: Op, now: float) -> float:
        """Adds to a semaphore, when the signal has arrived there."""
        semaphore = self.semaphores.at(thread.copy, op.place)
        if semaphore is None:
            return self.issue(thread, op, now, self.machine.signal_cycles)
        end = max(now, thread.answered) + self.machine.signal_cycles
        span = self.span(thread, op, SpanKind.ISSUE, now, end)
        latency, answer = self.links.signal(thread.block, op)
        done, thread.answered = Done(end + latency, span), end + answer
        self.events.call(done.time, lambda: self.semaphores.arrive(semaphore, op.amount, done))
        return end

    def await_signals(self, thread: Thread, op: Op, now: float) -> float | None:
        """Goes on when a semaphore holds enough."""
        semaphore = self.semaphores.at(thread.copy, op.place)
        if semaphore is None:
            end = now + self.machine.await_cycles
            self.span(thread, op, SpanKind.WAIT, now, end, self._for(op))
            return end
        if semaphore.passes(op):
            end = now + self.machine.await_cycles
            self.span(thread, op, SpanKind.WAIT, now, end, self._for(op), semaphore.last.span)
            return end
        semaphore.waiters.append(thread)
        return None

    def scope_begin(self, thread: Thread, op: Op, now: float) -> float | None:
        """Goes on when all threads of the block have begun the scope, if it is shared."""
        members = tuple(self.program.threads_of(thread.block))
        if not op.shared or len(members) == 1:
            return now
        return self._gather(thread, op, now, members, "the other threads of the block")

    def meet(self, thread: Thread, op: Op, now: float) -> float | None:
        """Goes on when all members have come."""
        return self._gather(thread, op, now, op.members, "the thread's other warps")

    def _gather(
        self, thread: Thread, op: Op, now: float, members: tuple[int, ...], others: str
    ) -> float | None:
        """Goes on when all these threads have come; `others` says in words who they are."""
        here = self._meets[thread.copy, members]
        here.append(thread)
        if len(here) < len(members):
            return None
        del self._meets[thread.copy, members]
        end = now + self.machine.meet_cycles
        # The last to come waits for nobody: it releases the others.
        room = [(self.latest(other), now - other.since) for other in here[:-1]]
        last = self.span(thread, op, SpanKind.ISSUE, now, end, f"meets {others}", room=room)
        for other in here[:-1]:
            self._resume(other, other.since, end, f"waits for {others}", last)
        return end

    def _release(self, thread: Thread, phase: Phase) -> None:
        """Lets a thread go on that waits for a phase, which is now known to be over."""
        self.events.resume(thread, self._ended(thread, phase))

    def _ended(self, thread: Thread, phase: Phase) -> float:
        """Records a thread's wait for a phase that is over; when the thread goes on."""
        machine, last = self.machine, phase.last
        alone, freed = thread.since + machine.wait_cycles, last.time + machine.wake_cycles
        end = max(alone, freed)
        room = [(d.span, end - freed + last.time - d.time) for d in phase.ends if d is not last]
        return self._waited(thread, thread.op, alone, freed, self._on(thread.op), last.span, room)

    def _signalled(self, thread: Thread, done: Done) -> None:
        """Lets a thread go on that waits for a semaphore, which now holds enough."""
        freed = done.time + self.machine.await_cycles
        self._resume(thread, thread.since, freed, self._for(thread.op), done.span)

    def _resume(
        self, thread: Thread, alone: float, freed: float, text: str, cause: int | None
    ) -> None:
        """Ends a thread's wait."""
        self.events.resume(thread, self._waited(thread, thread.op, alone, freed, text, cause))

    def _waited(
        self,
        thread: Thread,
        op: Op,
        alone: float,
        freed: float,
        text: str,
        cause: int | None,
        room: Room = (),
    ) -> float:
        """Records a wait, which ends when the thread `alone` and what it waits for let it."""
        end = max(alone, freed)
        after, other = (cause, self.latest(thread)) if freed > alone else (None, cause)
        room = (*room, (other, abs(freed - alone)))
        self.span(thread, op, SpanKind.WAIT, thread.since, end, text, cause, after, room)
        return end

    def _for(self, op: Op) -> str:
        barrier, index = op.place
        return f"waits for {op.amount} on {self.program.barriers[barrier].name}[{index}]"

    def _on(self, op: Op) -> str:
        barrier, index = op.place
        return f"waits on {self.program.barriers[barrier].name}[{index}], phase {op.phase}"
