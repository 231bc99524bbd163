"""A judge of schedules that knows no theory: it runs every interleaving of a small program.

The model. A state is each thread's program counter, the asynchronous operations in flight, what was
written ordinarily since the last fence, and each barrier's completed phases, arrivals and copies
still to land. From the first state all states are visited, each once. A move is one op of one
thread, or one load that lands. What is bad is told of a state, never derived from an order of
events: there is no happens-before here, no clock, and nothing shared with
`pallascope.checking`.

==================  ================================================================================
kind                the state, or the move, that is told
==================  ================================================================================
race                two accesses are in progress at once that overlap, and one writes. In progress
                    are: what is in flight, and each access that is a thread's next op. Exempt: two
                    products of one thread's queue, or copies to TMEM among them, that PTX orders
                    (`_is_pipelined`); the writes of two
                    reductions into GMEM; two copies that add registers to SMEM; two atomic
                    accesses. Also a scope with SMEM begins whose thread has a product or a
                    `cp_async` in flight, the scope of whose memory has ended; and a thread ends
                    that has a `cp_async` in flight
deadlock            no move is left, and a thread is not at its end: it may wait for a barrier, for
                    a semaphore, for others to meet, or for registers
barrier-misuse      an arrival where the phase has its arrivals and is not complete; two threads
                    about to arrive where the phase takes one more (chance decides whose arrival
                    counts in which phase); a wait whose phase is complete and the next one too
                    (the parity reads as not complete; not of a named barrier); a load in flight or
                    a phase of an mbarrier partly arrived where the program ends; an arrival on a
                    barrier of a block of the cluster whose threads have ended; a load that
                    another block's barrier tracks and that lands in an earlier phase there
uninitialized-read  a read of SMEM, or of GMEM that is no input, which no write has reached
missing-commit      an asynchronous op begins on SMEM that has been written ordinarily, by anyone,
                    since the last fence, by anyone; or on GMEM so written: a fence is of SMEM only.
                    Exempt: `cp_async`
lost-store          a store has not read its SMEM where its thread ends or, that memory's scope
                    having ended, begins a scope with SMEM; or an ordinary write of SMEM of which
                    nothing is ever read, nor written over ordinarily by the same thread, unless it
                    is the first there and one load overwrites all of it
resource            a request for more registers than the thread has which is a decrease, or for
                    less which is an increase
==================  ================================================================================

Why "by anyone" is right for fences. Let A be the asynchronous op and W the write, ordered before A.
If a fence is ordered after W and before A, it lies between them in each interleaving. If none is,
run first all that comes before the fences that must precede A (W is not among it), then W and the
rest of what precedes A, then A: in this interleaving no fence lies between, and it is visited.

What is left out, since the rest covers it:

- a store, a product or a `cp_async` ends when its thread waits for it, not sooner: sooner only ends
  an access sooner, and no barrier hears of it;
- where a thread's next op concerns no one else (a commit_group; an access that conflicts with no op
  of another thread and no asynchronous op), it is the only move: it commutes with all others;
- a product of Blackwell ends when a commit after it does, not sooner: nobody hears of it sooner;
- whether a barrier `orders_tensor_core`: it is a matter of two fences, and no state has them;
- an unread ordinary write is looked for in one run only: without a race, every run has the same
  flow of data; with a race it is not told.

A `compute` with a `scratch` writes that memory, which is a block's.

Where a program `starts_early`, the kernel before is one more thread: it reads and writes all GMEM
until it ends, in one move, and a `grid_wait` is enabled then.

A thread that waits for its stores, or commits them, does so for each of its warps too; a warp's
stores are looked for where its thread ends. Where a path has a misused barrier it ends there. Not
covered: that who waits for registers need not see what others wrote before they gave them up; what
`opaque`, `test`, `prefetch`, other `compute`, `skip` and `grid_signal` do (nothing), semaphores of
a program that lacks blocks of its grid, products in flight when a thread ends, memory that scopes
of different threads have in turn.
Source: the semantics in `program.py`, PTX's mbarrier.
"""

import bisect
import functools
import itertools
import math
import operator
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pallascope.program import Buffer, Op, Program, Region

LIMIT = 200_000
NOTHING = ("opaque", "test", "prefetch", "compute", "skip", "grid_signal")
COUNTED = ("signal", "await")  # of a program that lacks blocks, others may signal
LOCAL = ("commit_group", "scope_begin")
ORDINARY = ("read", "write", "acc_init", "acc_write", "compute")
QUEUE = ("tcgen05_mma", "tcgen05_copy")  # of Blackwell's tensor core, in the order of one thread
TMEM = ("load_tmem", "store_tmem")
FLYING = ("load", "store", "wgmma", "cp_async", *QUEUE, *TMEM)
LANDING = ("load", "tcgen05_commit")
LOADS = ("load", "cp_async")
READERS = ("read", "acc_read", *FLYING)


class Bad(NamedTuple):
    """Something bad that can happen, and the places (thread, index of the op) concerned."""

    kind: str
    places: tuple[tuple[int, int], ...]


class Outcome(NamedTuple):
    """All that can go wrong in a program, and how many states it has."""

    bad: frozenset[Bad]
    states: int

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(bad.kind for bad in self.bad)


class TooLarge(Exception):
    """The program has more states than the limit."""


class State(NamedTuple):
    """`flying` and `writing` (stores that have read), `pending` writes: bits by op.

    `barriers` has for each barrier its completed phases, the arrivals in this one and the copies
    that this one still expects; `held` has what each semaphore holds.
    """

    counters: tuple[int, ...]
    flying: int
    writing: int
    pending: int
    barriers: tuple[tuple[int, int, int], ...]
    held: tuple[int, ...] = ()


def explore(program: Program, limit: int = LIMIT) -> Outcome:
    """What can go wrong in any interleaving; TooLarge if there are more than `limit` states."""
    return _Explorer(program, limit).outcome()


def wander(program: Program, walks: int, seed: int = 0) -> frozenset[str]:
    """The kinds of what goes wrong in some interleavings, drawn by chance; none proves nothing."""
    explorer, rng = _Explorer(program, 0), random.Random(seed)
    for _ in range(walks):
        explorer.walk(rng)
    return frozenset(bad.kind for bad in explorer.bad)


class _Cells:
    """Cuts buffers into boxes that each region has wholly or not at all; a bit for each box."""

    def __init__(self, program: Program):
        cuts: dict[tuple[int, int], set[int]] = {}
        for op in itertools.chain(*program.threads):
            for region in op.reads + op.writes:
                for axis, (start, stop) in enumerate(region.box):
                    cuts.setdefault((region.buffer, axis), set()).update((start, stop))
        self.cuts = {key: sorted(found) for key, found in cuts.items()}
        self.first, self.count, self.buffer_masks = {}, 0, {}
        for buffer in program.buffers:
            sizes = self._sizes(buffer.id, len(buffer.shape))
            self.first[buffer.id] = self.count
            self.buffer_masks[buffer.id] = ((1 << math.prod(sizes)) - 1) << self.count
            self.count += math.prod(sizes)

    def _sizes(self, buffer: int, rank: int) -> list[int]:
        return [max(len(self.cuts.get((buffer, axis), ())) - 1, 1) for axis in range(rank)]

    def mask(self, regions: tuple[Region, ...]) -> int:
        found = 0
        for region in regions:
            buffer = region.buffer
            sizes = self._sizes(buffer, len(region.box))
            spans = []
            for axis, (start, stop) in enumerate(region.box):
                cuts = self.cuts[buffer, axis]
                spans.append(range(bisect.bisect(cuts, start) - 1, bisect.bisect(cuts, stop) - 1))
            for cell in itertools.product(*spans):
                flat = 0
                for index, size in zip(cell, sizes):
                    flat = flat * size + index
                found |= 1 << (self.first[buffer] + flat)
        return found


class _Explorer:
    """The program in bits, and the visit of its states."""

    def __init__(self, program: Program, limit: int):
        self.program, self.limit, self.bad = program, limit, set()
        self.as_bad: dict[tuple[str, tuple[int, ...]], Bad] = {}
        self.ops: list[Op] = []
        self.places: list[tuple[int, int]] = []
        self.threads: list[list[int]] = []
        for thread, ops in enumerate(program.threads):
            found = []
            for index, op in enumerate(ops):
                is_counted = program.is_whole or op.kind not in COUNTED
                if (op.kind not in NOTHING and is_counted) or _reduces_across_warps(op):
                    found.append(len(self.ops))
                    self.ops.append(op)
                    self.places.append((thread, index))
            self.threads.append(found)
        self.first_registers = 65_536 // 128 // program.per_block // 8 * 8
        self.own = [program.pallas_thread(thread) for thread in range(len(program.threads))]
        self.before = len(program.threads) if program.starts_early else None
        if self.before is not None:
            self._begin_before()
        self._memory()
        self._conflicts()
        self._synchronisation()

    def _begin_before(self) -> None:
        """The kernel before, as the last thread: it uses all GMEM, and ends in one move.

        It is the only opaque op here, since the program's own are left out.
        """
        self.threads.append([len(self.ops)])
        self.own.append(self.before)
        self.ops.append(Op("opaque", self.before))
        self.places.append(None)

    # The program in bits.

    def _memory(self) -> None:
        cells = _Cells(self.program)
        gmem = sum(cells.buffer_masks[b.id] for b in self.program.buffers if b.space == "gmem")
        self.reads = [cells.mask(op.reads) for op in self.ops]
        self.writes = [cells.mask(op.writes) for op in self.ops]
        places: dict[tuple[int, int], int] = {}
        for i, op in enumerate(self.ops):
            if _reduces_across_warps(op):
                place = self.program.block_of(op.thread), op.scratch
                self.writes[i] |= 1 << (cells.count + places.setdefault(place, len(places)))
        if self.before is not None:
            self.reads[-1] = self.writes[-1] = gmem
        self.given = self.shared_memory = 0
        self.of_scope: dict[int, int] = {}
        for buffer in self.program.buffers:
            mask = cells.buffer_masks[buffer.id]
            if buffer.space == "smem":
                self.shared_memory |= mask
            elif buffer.role.startswith("in") or _is_of_zeros(buffer):
                self.given |= mask
            if buffer.scope_id is not None:
                self.of_scope[buffer.scope_id] = self.of_scope.get(buffer.scope_id, 0) | mask

    def _conflicts(self) -> None:
        """For each op the others that conflict with it; and those whose write to GMEM does."""
        readers, writers = self._by_cell(self.reads), self._by_cell(self.writes)
        of = lambda holds: sum(1 << i for i, op in enumerate(self.ops) if holds(op))
        stores, reductions = of(lambda op: op.kind == "store"), of(_reduces)
        atomics, additions = of(_is_atomic), of(_adds_registers)
        flying, products = of(lambda op: op.kind in FLYING), of(lambda op: op.kind == "wgmma")
        own = [sum(1 << i for i in ops) for ops in self.threads]
        self.conflicts, self.late_conflicts, self.is_local = [], [], []
        self.is_ordinary = [op.kind in (*ORDINARY, "opaque") for op in self.ops]
        for i, op in enumerate(self.ops):
            exempt = 1 << i | (products & own[op.thread] if op.kind == "wgmma" else 0)
            exempt |= _union(1 << j for j in self.threads[op.thread] if self._is_pipelined(i, j))
            exempt |= atomics if _is_atomic(op) else 0
            exempt |= additions if _adds_registers(op) else 0
            to_writes = _union(writers[cell] for cell in _bits(self.reads[i]))
            to_writes |= _union(writers[cell] for cell in _bits(self.writes[i])) & ~(
                reductions if _reduces(op) else 0
            )
            to_reads = _union(readers[cell] for cell in _bits(self.writes[i]))
            self.conflicts.append((to_reads | to_writes) & ~exempt)
            self.late_conflicts.append(to_writes & stores & ~exempt)
            alone = not self.conflicts[i] & (flying | ~own[op.thread])
            harmless = op.kind in LOCAL and not (op.kind == "scope_begin" and op.shared)
            # What an atomic access reads depends on the others', so its order with them matters.
            is_alone = op.kind in ORDINARY and alone and not _is_atomic(op)
            self.is_local.append(harmless or is_alone)
        self.to_gmem = sum(1 << i for i, w in enumerate(self.writes) if not w & self.shared_memory)
        if self.before is not None:  # what it wrote is no concern of this kernel but for races
            self.reads[-1] = self.writes[-1] = 0

    def _is_pipelined(self, i: int, j: int) -> bool:
        """Whether Blackwell's tensor core makes two ops of one thread in the order of issue."""
        i, j = sorted((i, j))
        kinds = self.ops[i].kind, self.ops[j].kind
        if not {*kinds} <= {*QUEUE}:
            return False
        if not self.writes[i] & (self.reads[j] | self.writes[j]):
            return True  # the older one only reads what the newer one writes
        if kinds == ("tcgen05_copy", "tcgen05_mma"):
            return True
        return kinds == ("tcgen05_mma", "tcgen05_mma") and self.writes[i] == self.writes[j]

    def _by_cell(self, masks: list[int]) -> dict[int, int]:
        """For each cell, the ops whose mask has it."""
        found: dict[int, int] = defaultdict(int)
        for i, mask in enumerate(masks):
            for cell in _bits(mask):
                found[cell] |= 1 << i
        return found

    def _synchronisation(self) -> None:
        """Barriers' numbers, what a wait for copies or products ends, where scopes end."""
        self.place, self.arrivals, self.homes, self.is_memory = {}, [], [], []
        self.semaphores: dict[tuple[int, int], int] = {}
        for barrier in self.program.barriers:
            for index in range(barrier.count):
                if barrier.type == "semaphore":
                    self.semaphores[barrier.id, index] = len(self.semaphores)
                    continue
                self.place[barrier.id, index] = len(self.arrivals)
                self.arrivals.append(barrier.arrivals)
                self.is_memory.append(barrier.type == "mbarrier")
                self.homes.append(barrier.block if self.program.blocks > 1 else None)
        self.arrives_at = [tuple(self._arrives_at(op)) for op in self.ops]
        self.ends = [0] * len(self.ops)
        self.commits_before = self._of_thread_before("tcgen05_commit")
        self.queued_before = self._of_thread_before(*QUEUE)
        self.meetings: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
        for thread, ops in enumerate(self.threads):
            for counter, i in enumerate(ops):
                if members := self._members(self.ops[i]):
                    self.meetings[thread, members].append(counter)
            self._ends(thread)

    def _of_thread_before(self, *kinds: str) -> list[int]:
        """For each op, those of these kinds that its thread makes before."""
        found = [0] * len(self.ops)
        for ops in self.threads:
            before = 0
            for i in ops:
                found[i] = before
                before |= 1 << i if self.ops[i].kind in kinds else 0
        return found

    def _ends(self, thread: int) -> None:
        """What each wait for copies or products of a thread ends."""
        groups, open_group, products, copies = [], 0, [], []
        for i in self._with_thread(thread):
            op = self.ops[i]
            if op.kind == "store" and op.thread == thread:
                open_group |= 1 << i
            elif op.kind == "commit_group":
                groups.append(open_group)
                open_group = 0
            elif op.kind == "wait_store":
                self.ends[i] |= sum(groups[: max(len(groups) - op.pending, 0)])
            elif op.kind == "wgmma":
                products.append(1 << i)
            elif op.kind == "cp_async":
                copies.append(1 << i)
            elif op.kind == "wait_cp_async":
                self.ends[i] = sum(copies[: max(len(copies) - op.pending, 0)])
            elif op.kind in ("wgmma_wait", "acc_read"):
                self.ends[i] = sum(products[: max(len(products) - op.pending, 0)])
            elif op.kind in ("wait_load_tmem", "wait_store_tmem") and op.thread == thread:
                waited = op.kind.removeprefix("wait_")
                before = self.threads[thread][: self.threads[thread].index(i)]
                self.ends[i] = sum(1 << j for j in before if self.ops[j].kind == waited)

    def _with_thread(self, thread: int) -> Iterator[int]:
        """A thread's ops; of a warp, its own and its thread's, in the order in which they come."""
        if self.own[thread] == thread:
            yield from self.threads[thread]
            return
        parts = [[], []]
        for part, ops in zip(parts, (self.threads[self.own[thread]], self.threads[thread])):
            part.append([])
            for i in ops:
                part[-1].append(i)
                if self.ops[i].kind == "meet" and thread in self.ops[i].members:
                    part.append([])
        for mine, warp in itertools.zip_longest(*parts, fillvalue=[]):
            yield from itertools.chain(mine, (i for i in warp if self.ops[i].kind != "meet"))

    def _arrives_at(self, op: Op) -> Iterator[int]:
        """The barriers that an op arrives on."""
        if op.kind in ("arrive", *LANDING) and op.barrier is not None:
            if op.kind == "load" and op.parts == 0:
                return  # another block's load arrives for it
            peers = self.program.barriers[op.barrier].peers if op.kind == "arrive" else ()
            peers = op.peers if op.kind == "tcgen05_commit" else peers
            for peer in peers or (op.barrier,):
                yield self.place[peer, op.index]

    # The visit.

    def outcome(self) -> Outcome:
        first = self._first()
        seen, stack = {first}, [first]
        while stack:
            state = stack.pop()
            self._tell_races(state)
            self._tell_exchanged_arrivals(state)
            following = list(self._following(state))
            for new in following:
                if new is not None and new not in seen:
                    seen.add(new)
                    stack.append(new)
            if not following:
                self._tell_end(state)
            if len(seen) > self.limit:
                raise TooLarge(
                    f"{self.program.name} has more than {self.limit} states: explore a smaller one."
                )
        kinds = {bad.kind for bad in self.bad}
        if not kinds & {"race", "deadlock", "barrier-misuse"}:
            self._tell_unread(first)
        return Outcome(frozenset(self.bad), len(seen))

    def walk(self, rng: random.Random) -> None:
        """One interleaving, to its end or to a misused barrier."""
        state = self._first()
        while state is not None:
            self._tell_races(state)
            self._tell_exchanged_arrivals(state)
            following = list(self._following(state))
            if not following:
                return self._tell_end(state)
            state = rng.choice(following)
        return None

    def _first(self) -> State:
        barriers = ((0, 0, 0),) * len(self.arrivals)
        return State((0,) * len(self.threads), 0, 0, 0, barriers, (0,) * len(self.semaphores))

    def _tell(self, kind: str, *ops: int) -> None:
        if (told := (kind, ops)) not in self.as_bad:
            places = (self.places[i] for i in ops)
            self.as_bad[told] = Bad(kind, tuple(sorted(filter(None, places))))
        self.bad.add(self.as_bad[told])

    def _next(self, state: State, thread: int) -> int | None:
        ops, counter = self.threads[thread], state.counters[thread]
        return ops[counter] if counter < len(ops) else None

    def _tell_races(self, state: State) -> None:
        mask = state.flying
        for ops, counter in zip(self.threads, state.counters):
            if counter < len(ops) and self.is_ordinary[ops[counter]]:
                mask |= 1 << ops[counter]
        for i in _bits(mask):
            hits = self.conflicts[i] & mask | self.late_conflicts[i] & state.writing
            for other in _bits(hits):
                self._tell("race", i, other)
        for i in _bits(state.writing):
            for other in _bits(self.late_conflicts[i] & state.writing):
                self._tell("race", i, other)

    def _tell_exchanged_arrivals(self, state: State) -> None:
        arriving: dict[int, list[int]] = {}
        for thread in range(len(self.threads)):
            i = self._next(state, thread)
            if i is not None:
                for place in self.arrives_at[i]:
                    arriving.setdefault(place, []).append(i)
        for place, ops in arriving.items():
            if len(ops) > 1 and state.barriers[place][1] == self.arrivals[place] - 1:
                self._tell("barrier-misuse", *ops)

    def _tell_end(self, state: State) -> None:
        stuck = [i for t in range(len(self.threads)) if (i := self._next(state, t)) is not None]
        if stuck:
            self._tell("deadlock", *stuck)

    def _following(self, state: State) -> Iterator[State | None]:
        """The states one move away; None for a move that misuses a barrier."""
        counters = enumerate(zip(self.threads, state.counters))
        moves = [(t, ops[counter]) for t, (ops, counter) in counters if counter < len(ops)]
        for thread, i in moves:
            if self.is_local[i]:
                yield self._moved(state, thread, i)
                return
        for thread, i in moves:
            if self._is_enabled(state, i):
                yield self._moved(state, thread, i)
        for i in _bits(state.flying):
            if self.ops[i].kind == "load" or self._may_end(state, i):
                yield self._landed(state, i)

    def _may_end(self, state: State, i: int) -> bool:
        """Whether this is a commit and the next of its thread to arrive."""
        return self.ops[i].kind == "tcgen05_commit" and not state.flying & self.commits_before[i]

    def _is_enabled(self, state: State, i: int) -> bool:
        op = self.ops[i]
        if op.kind == "wait":
            return state.barriers[self.place[op.barrier, op.index]][0] > op.phase
        if op.kind == "await":
            return state.held[self.semaphores[op.place]] >= op.amount
        if op.kind == "grid_wait":
            return self.before is None or self._next(state, self.before) is None
        if op.kind == "registers":
            return self._has_registers(state, op)
        if members := self._members(op):
            which = self.meetings[op.thread, members].index(state.counters[op.thread])
            return all(self._has_come(state, t, members, which) for t in members)
        return True

    def _has_registers(self, state: State, op: Op) -> bool:
        """Whether a thread's block has the registers that the thread asks for.

        With one or two threads a block it is not known what they begin with.
        """
        block = self.program.threads_of(self.program.block_of(op.thread))
        if self.first_registers > 254:
            return True
        others = sum(self._registers(state, thread) for thread in block if thread != op.thread)
        return others + op.registers <= self.first_registers * len(block)

    def _registers(self, state: State, thread: int) -> int:
        """The registers a lane that a thread has asked for last, or began with."""
        done = (self.ops[i] for i in self.threads[thread][: state.counters[thread]])
        asked = [op.registers for op in done if op.kind == "registers"]
        return asked[-1] if asked else self.first_registers

    def _tell_wrong_way(self, state: State, i: int) -> None:
        """A request for more registers that is a decrease, or for less that is an increase."""
        op = self.ops[i]
        is_first = not any(
            self.ops[before].kind == "registers"
            for before in self.threads[op.thread][: state.counters[op.thread]]
        )
        more = op.registers - self._registers(state, op.thread)
        is_known = self.first_registers <= 254 or not is_first
        if is_known and (more > 0 if op.action == "decrease" else more < 0):
            self._tell("resource", i)

    def _members(self, op: Op) -> tuple[int, ...]:
        """Who meets at an op: a scope that all share begins with a barrier of the whole block."""
        if op.kind == "scope_begin" and op.shared:
            return tuple(self.program.threads_of(self.program.block_of(op.thread)))
        return op.members

    def _has_come(self, state: State, thread: int, members: tuple[int, ...], which: int) -> bool:
        """Whether a thread is at the meeting of this number, or past it."""
        counters = self.meetings[thread, members]
        return which < len(counters) and state.counters[thread] >= counters[which]

    def _moved(self, state: State, thread: int, i: int) -> State | None:
        """The state after an op of a thread."""
        op, bit = self.ops[i], 1 << i
        counters, flying, writing, pending, barriers, held = state
        if op.kind == "wait" and self._is_lapped(barriers, op):
            self._tell("barrier-misuse", i)
            return None
        barriers = self._arrived(counters, barriers, i)
        if barriers is None:
            return None
        ended = self.ends[i]
        writing = writing & ~ended if not op.read_only else writing | flying & ended
        flying &= ~ended
        if op.kind == "acc_read":
            for other in _bits(self.conflicts[i] & flying):
                self._tell("race", i, other)
        if op.kind == "registers":
            self._tell_wrong_way(state, i)
        if op.kind in READERS or op.reads:
            self._tell_uninitialized(state, i)
        if op.kind in FLYING:
            if op.kind != "cp_async":  # which is no other proxy
                self._tell_uncommitted(pending, i)
            flying |= bit
        elif op.kind == "tcgen05_commit":
            flying |= bit
        elif op.kind == "fence":
            pending &= self.to_gmem
        elif op.kind == "write":
            pending |= bit
        counters = (*counters[:thread], counters[thread] + 1, *counters[thread + 1 :])
        if op.kind == "signal" or (op.kind == "await" and not op.keeps):
            amount, at = op.amount if op.kind == "signal" else -op.amount, self.semaphores[op.place]
            held = (*held[:at], held[at] + amount, *held[at + 1 :])
        new = State(counters, flying, writing, pending, barriers, held)
        if op.kind == "scope_begin" and self.of_scope.get(op.scope_id, 0) & self.shared_memory:
            self._tell_taken(new, i)
        if counters[thread] == len(self.threads[thread]):
            self._tell_thread_end(new, thread)
        return new

    def _is_lapped(self, barriers, op: Op) -> bool:
        """Whether the phase after the one that a wait waits for is over too."""
        is_named = self.program.barriers[op.barrier].type == "named"
        return not is_named and barriers[self.place[op.place]][0] > op.phase + 1

    def _has_ended(self, counters: tuple[int, ...], place: int) -> bool:
        """Whether all threads of a barrier's block are at their ends."""
        block = self.homes[place]
        of_block = self.program.threads_of(block) if block is not None else ()
        return bool(of_block) and all(counters[t] == len(self.threads[t]) for t in of_block)

    def _arrived(self, counters, barriers, i: int):
        """The barriers after what an op arrives on; None if it may not."""
        op = self.ops[i]
        for place in self.arrives_at[i]:
            done, arrived, copies = barriers[place]
            if self._has_ended(counters, place):
                self._tell("barrier-misuse", i)
            if arrived == self.arrivals[place]:
                self._tell("barrier-misuse", i)
                return None
            copies += self._announced(op)
            barriers = self._counted(barriers, place, done, arrived + 1, copies)
        return barriers

    def _lands_early(self, state: State, i: int) -> bool:
        """Whether a load that another block's barrier tracks lands in an earlier phase there."""
        op = self.ops[i]
        before = (self.ops[other] for other in self.threads[op.thread] if other < i)
        like = [other for other in before if other.parts == 0 and other.place == op.place]
        meant = len(like) // self.program.barriers[op.peers[0]].arrivals
        return state.barriers[self.place[op.peers[0], op.index]][0] < meant

    def _announced(self, op: Op) -> int:
        """How many parts of copies, or ends of products, an arrival says are still to come."""
        if op.parts is not None:
            return op.parts
        if op.kind == "tcgen05_commit":
            return 1
        return max(len(op.peers), 1) if op.kind == "load" else 0

    def _counted(self, barriers, place: int, done: int, arrived: int, copies: int):
        """The barriers with these counts of one, which may complete its phase."""
        if arrived == self.arrivals[place] and copies == 0:
            done, arrived = done + 1, 0
        return (*barriers[:place], (done, arrived, copies), *barriers[place + 1 :])

    def _landed(self, state: State, i: int) -> State:
        op, barriers = self.ops[i], state.barriers
        if op.barrier is not None:
            if op.parts == 0 and self._lands_early(state, i):
                self._tell("barrier-misuse", i)
            for peer in op.peers or (op.barrier,):
                place = self.place[peer, op.index]
                done, arrived, copies = barriers[place]
                barriers = self._counted(barriers, place, done, arrived, copies - 1)
        ended = 1 << i
        if op.kind == "tcgen05_commit":  # so are the products that its thread started before
            ended |= self.queued_before[i]
        return state._replace(flying=state.flying & ~ended, barriers=barriers)

    # What is told of moves.

    def _tell_uninitialized(self, state: State, i: int) -> None:
        """All writes that are done have reached the memory."""
        missing = self.reads[i] & ~self.given
        if not missing:
            return
        for ops, counter in zip(self.threads, state.counters):
            for done in ops[:counter]:
                is_queued = self.ops[i].kind in QUEUE and self.ops[done].kind in QUEUE
                is_before = is_queued and self.ops[done].thread == self.ops[i].thread
                if is_before or not (state.flying | state.writing) >> done & 1:
                    missing &= ~self.writes[done]
        if missing:
            self._tell("uninitialized-read", i)

    def _tell_uncommitted(self, pending: int, i: int) -> None:
        touched = self.reads[i] | self.writes[i]
        for write in _bits(pending):
            if self.writes[write] & touched:
                self._tell("missing-commit", write, i)

    def _tell_taken(self, state: State, begin: int) -> None:
        """Where a thread's scope may take the memory of those that it has ended."""
        thread = self.ops[begin].thread
        done = self.threads[thread][: state.counters[thread]]
        ended = {self.ops[i].scope_id for i in done if self.ops[i].kind == "scope_end"}
        memory = sum(self.of_scope.get(n, 0) for n in ended) & self.shared_memory
        reading = (
            ("lost-store", "store"),
            *(("race", kind) for kind in ("wgmma", "cp_async", *QUEUE)),
        )
        for kind, what in reading:
            for late in self._unfinished(state, thread, what):
                if (self.reads[late] | self.writes[late]) & memory:
                    self._tell(kind, begin, late)
        for load in _bits(state.flying):
            if self.ops[load].kind == "load" and self.writes[load] & memory:
                self._tell("race", begin, load)

    def _unfinished(self, state: State, thread: int, kind: str) -> list[int]:
        """A thread's ops of a kind that may still use SMEM."""
        own = (i for i in _bits(state.flying) if self.own[self.ops[i].thread] == thread)
        return [i for i in own if self.ops[i].kind == kind]

    def _tell_thread_end(self, state: State, thread: int) -> None:
        for copy in self._unfinished(state, thread, "cp_async"):
            self._tell("race", copy)
        for store in self._unfinished(state, thread, "store"):
            self._tell("lost-store", store)
        if all(self._next(state, t) is None for t in range(len(self.threads))):
            self._tell_left_over(state)

    def _tell_left_over(self, state: State) -> None:
        """Where all ends: loads in flight, and phases partly arrived."""
        for i in _bits(state.flying):
            if self.ops[i].kind in LANDING and self.ops[i].barrier is not None:
                self._tell("barrier-misuse", i)
        for place, (_, arrived, _) in enumerate(state.barriers):
            if arrived and self.is_memory[place]:
                on = [i for i, places in enumerate(self.arrives_at) if place in places]
                self._tell("barrier-misuse", *on[-1:])

    def _tell_unread(self, state: State) -> None:
        """Runs the program once, and looks whose writes are read."""
        owner: dict[int, int] = {}
        useful, written, fills = set(), set(), set()
        while new := next((new for new in self._following(state) if new is not None), None):
            for thread, (before, after) in enumerate(zip(state.counters, new.counters)):
                if before == after:
                    continue
                i = self._next(state, thread)
                useful |= {owner.get(cell) for cell in _bits(self.reads[i])}
                mine = self.writes[i] & self.shared_memory
                if self.ops[i].kind in LOADS:
                    useful |= {old for old in fills if not self.writes[old] & ~mine}
                elif not any(cell in owner for cell in _bits(mine)):
                    fills.add(i)
                for cell in _bits(mine):
                    old, owner[cell] = owner.get(cell), i
                    if old is not None and self._is_meant(old, i):
                        useful.add(old)
                    written.add(i)
            state = new
        for i in written - useful:
            if self.ops[i].kind == "write":
                self._tell("lost-store", i)

    def _is_meant(self, old: int, new: int) -> bool:
        """Whether a thread writes over what it wrote itself."""
        return self.ops[new].kind == "write" and self.ops[new].thread == self.ops[old].thread


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


def _reduces(op: Op) -> bool:
    return op.kind == "store" and bool(op.combines)


def _adds_registers(op: Op) -> bool:
    return op.kind == "load" and bool(op.combines)


def _reduces_across_warps(op: Op) -> bool:
    """Whether it uses the scratch of its block that begins at `op.scratch`, a cell of its own."""
    return op.scratch is not None and op.is_sure


def _is_atomic(op: Op) -> bool:
    return op.kind == "write" and bool(op.combines)


def _is_of_zeros(buffer: Buffer) -> bool:
    return buffer.space == "acc" and buffer.scope_id is not None


def _bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
