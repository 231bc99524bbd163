"""What a mutant is expected to do: which fault, or none and why.

The model. `EXPECTED` has for each mutation of each kind of op the kinds of finding that are right,
and what goes wrong. `reason` looks whether the mutant is one of those that do no harm, by what can
be seen in the thread that was altered:

- A wait for products or copies, the end of a group, a fence: `_views` follows one thread and lists,
  for each access, arrival, scope and end, what is then in flight, or written and not committed,
  that matters there. If the mutant has nothing more at any of them, no one can see the difference.
- Two ops that change places: which of them holds whom back, and whether the other is concerned.
- A wait after which the thread does nothing that others could meet.
- Requests for registers: whether each says the right way, and all threads get theirs.

What neither covers has its reason in `BY_HAND`, by kernel. It is looked at last, so an entry that
is not needed is an error of the tests.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from pallascope.program import Op, Program
from tests.pallascope.checking.mutations import PASSED, Mutant

RACE = frozenset({"race", "uninitialized-read"})
LOST, MISUSED, STUCK = (frozenset({kind}) for kind in ("lost-store", "barrier-misuse", "deadlock"))
UNCOMMITTED, REFUSED, NONE = frozenset({"missing-commit"}), frozenset({"resource"}), frozenset()

EXPECTED = {
    ("without", "wait"): (RACE | MISUSED, "nothing holds the thread back"),
    ("once less", "wait"): (RACE | MISUSED, "the thread is a phase ahead from then on"),
    ("twice", "wait"): (STUCK, "a phase too many is waited for"),
    ("elsewhere", "wait"): (STUCK | RACE | MISUSED, "one slot's phases are a wait behind"),
    ("earlier", "wait"): (STUCK, "it waits for what it would cause itself, next"),
    ("later", "wait"): (RACE | STUCK | MISUSED, "what it should hold back is done first"),
    ("without", "arrive"): (STUCK | MISUSED, "a phase is never complete, or in part at the end"),
    ("once less", "arrive"): (STUCK | MISUSED, "a phase is never complete, or in part at the end"),
    ("twice", "arrive"): (MISUSED | RACE, "a phase is complete too early"),
    ("elsewhere", "arrive"): (STUCK | MISUSED, "one slot has an arrival too many, one too few"),
    ("earlier", "arrive"): (RACE | UNCOMMITTED | MISUSED, "others are let at it too early"),
    ("later", "arrive"): (STUCK, "it comes after a wait that needs it"),
    ("twice", "load"): (MISUSED | RACE, "two copies of one slot, an arrival too many"),
    ("elsewhere", "load"): (STUCK | MISUSED, "one slot has an arrival too many, one too few"),
    ("earlier", "load"): (RACE | MISUSED, "the slot is still in use"),
    ("later", "load"): (STUCK, "it comes after a wait that needs it"),
    ("without", "fence"): (UNCOMMITTED, "an engine may see what was there before"),
    ("once less", "fence"): (UNCOMMITTED, "an engine may see what was there before"),
    ("earlier", "fence"): (UNCOMMITTED, "what is written after it is not committed"),
    ("later", "fence"): (UNCOMMITTED, "the copy has begun"),
    ("without", "wait_store"): (RACE | LOST, "the staging memory is in use, to the end"),
    ("once less", "wait_store"): (RACE | LOST, "the staging memory is in use"),
    ("raised", "wait_store"): (RACE | LOST, "the newest copy is not waited for"),
    ("earlier", "wait_store"): (RACE | LOST, "the newest copy is not waited for"),
    ("later", "wait_store"): (RACE | LOST, "the staging memory is in use"),
    ("without", "commit_group"): (RACE | LOST, "a copy of no group is never waited for"),
    ("once less", "commit_group"): (RACE | LOST, "groups are fewer, so a wait leaves one too many"),
    ("earlier", "commit_group"): (RACE | LOST, "the copy is not of its group, so not waited for"),
    ("later", "commit_group"): (RACE | LOST, "the wait does not know the group yet"),
    ("without", "wait_cp_async"): (RACE, "a copy has not landed"),
    ("once less", "wait_cp_async"): (RACE, "a copy has not landed"),
    ("raised", "wait_cp_async"): (RACE, "the oldest copy in flight is one that is read"),
    ("earlier", "wait_cp_async"): (RACE, "a copy begins after it, and is not waited for"),
    ("later", "wait_cp_async"): (RACE, "the memory is read before"),
    ("without", "wgmma_wait"): (RACE, "a product reads its operands still"),
    ("once less", "wgmma_wait"): (RACE, "a product reads its operands still"),
    ("raised", "wgmma_wait"): (RACE, "a product reads its operands still"),
    ("earlier", "wgmma_wait"): (RACE, "the newest product is not waited for"),
    ("later", "wgmma_wait"): (RACE, "the operands are given away before"),
    ("raised", "acc_read"): (RACE, "the last product is not in it"),
    ("earlier", "acc_read"): (RACE, "the last product is not in it"),
    ("later", "acc_read"): (RACE, "a product reads operands that are given away"),
    ("without", "scope_begin"): (RACE | STUCK | MISUSED, "the threads do not meet"),
    ("once less", "scope_begin"): (STUCK, "the others wait for it where they meet"),
    ("earlier", "scope_begin"): (
        RACE | STUCK | MISUSED,
        "what comes before it for others comes after",
    ),
    ("later", "scope_begin"): (
        RACE | STUCK | MISUSED,
        "what comes after it for others comes before",
    ),
    ("without", "meet"): (STUCK, "the others wait for it"),
    ("once less", "meet"): (STUCK, "the others wait for it"),
    ("twice", "meet"): (STUCK, "it waits for others that come once"),
    ("alone", "meet"): (RACE | UNCOMMITTED, "nothing holds it back, nor others for it"),
    ("earlier", "meet"): (RACE | UNCOMMITTED | LOST, "what comes before it comes after"),
    ("later", "meet"): (RACE | UNCOMMITTED | LOST | STUCK, "what comes after it comes before"),
    ("without", "registers"): (REFUSED, "the others ask for more than there are"),
    ("once less", "registers"): (REFUSED, "the others ask for more than there are"),
    ("raised", "registers"): (REFUSED, "the threads ask for more than there are"),
    ("lowered", "registers"): (REFUSED, "it asks the wrong way"),
    ("reversed", "registers"): (REFUSED, "it asks the wrong way"),
    ("earlier", "registers"): (STUCK, "others wait for the registers, and it for them"),
    ("later", "registers"): (STUCK, "others wait for the registers, and it for them"),
    ("last", "registers"): (STUCK, "others wait for the registers, and it for them"),
    ("without", "signal"): (STUCK, "the sum never comes"),
    ("once less", "signal"): (STUCK, "the sum never comes"),
    ("twice", "signal"): (RACE, "the sum comes too early"),
    ("raised", "signal"): (RACE, "the sum comes too early"),
    ("lowered", "signal"): (STUCK, "the sum never comes"),
    ("elsewhere", "signal"): (STUCK, "the sum never comes"),
    ("earlier", "signal"): (RACE, "others are let at it too early"),
    ("later", "signal"): (STUCK | RACE, "it comes after a wait that needs it"),
    ("without", "await"): (RACE, "nothing holds the thread back"),
    ("once less", "await"): (RACE, "nothing holds the thread back"),
    ("twice", "await"): (STUCK, "the first has taken off what the second waits for"),
    ("raised", "await"): (STUCK, "the sum never comes"),
    ("lowered", "await"): (RACE, "a signal is not waited for"),
    ("kept", "await"): (STUCK | RACE, "what is left lets others go on, what is taken does not"),
    ("elsewhere", "await"): (STUCK, "nobody signals there"),
    ("earlier", "await"): (STUCK | RACE, "it waits for what it would cause itself, next"),
    ("later", "await"): (RACE, "what it should hold back is done first"),
    ("without", "grid_wait"): (RACE, "nothing holds the thread back"),
    ("earlier", "grid_wait"): (NONE, "to wait sooner holds back more"),
    ("later", "grid_wait"): (RACE, "what it should hold back is done first"),
    ("without", "grid_signal"): (NONE, "the next kernel comes when this one has ended"),
    ("earlier", "grid_signal"): (NONE, "the next kernel waits for the end of this one"),
    ("later", "grid_signal"): (NONE, "the next kernel waits for the end of this one"),
    ("plain", "write"): (RACE, "additions commute, and this is none"),
    ("plain", "load"): (RACE, "additions commute, and this is none"),
    ("plain", "store"): (RACE, "additions commute, and this is none"),
    ("without", "tcgen05_commit"): (STUCK | MISUSED, "a phase is never complete"),
    ("once less", "tcgen05_commit"): (STUCK | MISUSED, "a phase is never complete"),
    ("twice", "tcgen05_commit"): (MISUSED | RACE, "a phase is complete too early"),
    ("elsewhere", "tcgen05_commit"): (STUCK | MISUSED, "one slot has an arrival too many"),
    ("earlier", "tcgen05_commit"): (RACE | MISUSED, "the last product is not among those it ends"),
    ("later", "tcgen05_commit"): (STUCK | MISUSED, "it comes after a wait that needs it"),
    ("without", "wait_load_tmem"): (RACE, "TMEM is still read"),
    ("once less", "wait_load_tmem"): (RACE, "TMEM is still read"),
    ("earlier", "wait_load_tmem"): (RACE, "the newest read is not waited for"),
    ("later", "wait_load_tmem"): (RACE, "others are let at it while it is read"),
    ("without", "wait_store_tmem"): (RACE, "TMEM is still written"),
    ("once less", "wait_store_tmem"): (RACE, "TMEM is still written"),
    ("earlier", "wait_store_tmem"): (RACE, "the newest write is not waited for"),
    ("later", "wait_store_tmem"): (RACE, "others are let at it while it is written"),
    ("fewer", "barrier"): (RACE | MISUSED, "the phase is complete before the last has arrived"),
    ("more", "barrier"): (STUCK | MISUSED, "the phase is never complete"),
}

NO_MORE = {
    "fence": "what engines touch is committed at each copy, product and arrival as before",
    "commit_group": "no more copies are unfinished at any access, arrival or end",
    "wait_store": "no more copies are unfinished at any access, arrival or end",
    "wgmma_wait": "no more products are unfinished at any access or arrival",
    "acc_read": "no more products are unfinished at any access or arrival",
    "arrive": "what it passes had nothing to finish or commit for those who wait",
    "load": "what it passes had nothing to finish or commit for this copy",
}
TURNS = "this barrier takes turns on the tensor core, and guards no memory"
OTHER_WAITS = "the other compute thread waits for the same copy, and this one for the other"
FINISHED = "only turns are given until the next accumulator that is read finishes it"
SPECIALIZED_2 = "contract/static_grid-grid=(4,)-specialized-2"
ATTENTION = "jax/attention-block_kv=128"
EMITTED = "jax/attention_with_pipeline_emitter"
MULTICAST = "contract/multicast_input-specialized-1"
DELAYED = "emitted/specialized-slots=2-delay=1-threads=1"
BY_HAND = {
    (SPECIALIZED_2, "without wait produced, thread 0"): OTHER_WAITS,
    (SPECIALIZED_2, "without wait produced, thread 1"): OTHER_WAITS,
    (SPECIALIZED_2, "once less wait produced, thread 0"): OTHER_WAITS,
    (SPECIALIZED_2, "once less wait produced, thread 1"): OTHER_WAITS,
    (SPECIALIZED_2, "later wait produced, thread 1"): "who is let go waits for the copy itself",
    (SPECIALIZED_2, "earlier arrive written, thread 1"): "who is let go waits for the copy itself",
    (SPECIALIZED_2, "later fence, thread 1"): "what it commits is stored after `written`, later on",
    (SPECIALIZED_2, "earlier arrive consumed, thread 1"): (
        "the fence that it passes is for what is stored after `written`, later on"
    ),
    (MULTICAST, "later scope_begin, thread 1"): "the second pipeline has memory of its own",
    (MULTICAST, "later scope_begin, thread 3"): "the second pipeline has memory of its own",
    (DELAYED, "once less wait consumed, thread 1"): (
        "the other slot's release comes a step late, when this slot has been read too"
    ),
    (DELAYED, "later wait consumed, thread 1"): (
        "the other slot's release comes a step late, when this slot has been read too"
    ),
    (ATTENTION, "earlier arrive args.3, thread 0"): TURNS,
    (ATTENTION, "earlier arrive args.3, thread 1"): TURNS,
    (ATTENTION, "later wait produced.0, thread 1"): TURNS,
    (ATTENTION, "once less wait args.3, thread 1, site 12"): TURNS,
    (ATTENTION, "without wait produced.0, thread 1"): OTHER_WAITS,
    (ATTENTION, "without wait produced.1, thread 1"): OTHER_WAITS,
    (ATTENTION, "once less wait produced.1, thread 1"): OTHER_WAITS,
    (ATTENTION, "earlier acc_read, thread 0"): "nothing overwrites the operands of the last step",
    (ATTENTION, "fewer arrivals on args.2.0"): "nobody waits for it; turns order the arrivals",
    (ATTENTION, "fewer arrivals on args.2.1"): "nobody waits for it; turns order the arrivals",
    (EMITTED, "earlier arrive schedule_barrier, thread 0"): TURNS,
    (EMITTED, "earlier acc_read, thread 0"): FINISHED,
    (EMITTED, "earlier acc_read, thread 1"): FINISHED,
    (EMITTED, "later wait q_barriers, thread 1"): TURNS,
    (EMITTED, "without wait produced, thread 1"): OTHER_WAITS,
    (EMITTED, "once less wait produced, thread 1"): OTHER_WAITS,
}

UNKNOWN = 0  # registers
ASYNCHRONOUS = ("load", "store", "wgmma")
ARRIVALS = ("arrive", "load")
ACCESSES = ("read", "write", "acc_init", "acc_read", "acc_write", *ASYNCHRONOUS)
SYNCHRONISING = ("fence", "commit_group", "wait_store", "wgmma_wait", "acc_read")


def expected(mutant: Mutant) -> tuple[frozenset[str], str]:
    """The findings that are right of a mutant, and what goes wrong."""
    key = mutant.mutation, mutant.kind
    assert key in EXPECTED, f"EXPECTED in {__file__} does not say what {key} brings: add a row."
    return EXPECTED[key]


def reason(program: Program, mutant: Mutant) -> str:
    """Why this mutant does no harm; empty if it is expected to."""
    if mutant.thread is None:
        return ""
    ops = program.threads[mutant.thread]
    if mutant.kind in SYNCHRONISING:
        return NO_MORE[mutant.kind] if _sees_no_more(program, mutant) else ""
    if mutant.kind == "registers":
        return _of_registers(mutant.program)
    if mutant.mutation in ("earlier", "later"):
        return _of_a_swap(program, mutant, *_swapped(ops, mutant))
    if mutant.mutation in ("without", "once less") and mutant.kind == "wait":
        rest = [op for i, op in enumerate(ops) if i > mutant.places[0] and i not in mutant.places]
        places = [(ops[i].barrier, ops[i].index) for i in mutant.places]
        alone = all((op.barrier, op.index) not in places for op in rest if op.kind == "wait")
        if alone and not any(op.kind in (*ACCESSES, "arrive") for op in rest):
            return "the thread does nothing after it"
        arrives = any((op.barrier, op.index) in places for op in ops if op.kind in ARRIVALS)
        if (
            alone
            and not arrives
            and not any(_hands_over(program, place, op) for place in places for op in rest)
        ):
            return "nothing that comes after it touches what this barrier hands over"
    return ""


def _swapped(ops: tuple[Op, ...], mutant: Mutant) -> tuple[Op, Op]:
    """The two ops that change places, in the order in which they were."""
    at = mutant.places[0]
    if mutant.mutation == "earlier":
        return next(op for op in ops[:at][::-1] if op.kind not in PASSED), ops[at]
    return ops[at], next(op for op in ops[at + 1 :] if op.kind not in PASSED)


def _of_a_swap(program: Program, mutant: Mutant, first: Op, second: Op) -> str:
    """Why it does no harm that the second op now comes before the first."""
    if first.kind == "scope_begin":
        alone = not any(op.kind in ACCESSES for op in _before(program, first.scope_id))
        # A thread may wait for registers that another gives up after they have met.
        asked = _before(mutant.program, first.scope_id)
        alone = alone and not any(op.action == "increase" for op in asked)
        return "nothing is done before the threads meet" * (alone and _runs(mutant.program))
    if second.kind == "wait" and first.kind not in ARRIVALS:
        return "to wait sooner holds back more" if _runs(mutant.program) else ""
    if first.kind in ARRIVALS and second.kind == "wait":
        return "the phase comes without the arrival that is now behind" * _runs(mutant.program)
    if first.kind == "arrive" and second.kind not in ARRIVALS:
        return "to arrive later holds back more"
    if first.kind in ARRIVALS and second.kind in ARRIVALS:
        return "arrivals next to each other, of which neither waits"
    if first.kind == "load":
        return "to begin a copy later, before any wait, lets nothing more happen"
    if second.kind in ARRIVALS and first.kind in SYNCHRONISING:
        return NO_MORE[second.kind] if _sees_no_more(program, mutant) else ""
    if second.kind == "arrive" and first.kind in ACCESSES:
        met = _Others(program, mutant.thread).meet(first)
        harmless = not met and _sees_no_more(program, mutant)
        return "what it passes is in memory of the thread's own" * harmless
    if first.kind == "wait" and second.kind in (*ACCESSES, *SYNCHRONISING):
        touches = _hands_over(program, (first.barrier, first.index), second)
        return "" if touches else "what goes before touches nothing that this barrier hands over"
    return ""


def _of_registers(program: Program) -> str:
    """Why requests for registers do no harm."""
    first = _registers_at_first(program)
    for ops in program.threads:
        held = first
        for op in ops:
            if op.kind == "registers":
                is_wrong = op.registers > held if op.action == "decrease" else op.registers < held
                if is_wrong and held != UNKNOWN:
                    return ""
                held = op.registers
    if first == UNKNOWN:
        return "nobody knows what so few threads begin with, and so whether they wait"
    return "each asks the right way, for no more than there are" * _runs(program)


def _registers_at_first(program: Program) -> int:
    """What each thread of a block begins with, if there are so many that they share all."""
    first = 65_536 // 128 // program.per_block // 8 * 8
    return first if first < 255 else UNKNOWN


def _before(program: Program, scope: int) -> Iterator[Op]:
    """The ops of all threads before the beginning of a scope."""
    for ops in program.threads:
        is_before = lambda op: op.kind != "scope_begin" or op.scope_id != scope
        yield from itertools.takewhile(is_before, ops)


def _hands_over(program: Program, place: tuple, op: Op) -> bool:
    """Whether what comes before the arrivals on a barrier conflicts with this op."""
    for ops in program.threads:
        arrivals = [
            i for i, o in enumerate(ops) if o.kind in ARRIVALS and (o.barrier, o.index) == place
        ]
        for i in arrivals:
            if ops[i].kind == "load" and _conflict(op, ops[i]):
                return True
        others = ops[: arrivals[-1]] if arrivals and ops[0].thread != op.thread else ()
        if any(o.kind in ACCESSES and _conflict(op, o) for o in others if o.kind != "load"):
            return True
    return False


def _runs(program: Program) -> bool:
    """Whether all threads come to their ends, if arrivals and copies are there at once."""
    counters, counts, met = [0] * len(program.threads), Counter(), defaultdict(set)
    first = _registers_at_first(program)
    held = [first] * len(program.threads)
    going = True
    while going:
        going = False
        for thread, ops in enumerate(program.threads):
            while counters[thread] < len(ops):
                op = ops[counters[thread]]
                if op.kind == "wait":
                    takes = program.barriers[op.barrier].arrivals * (op.phase + 1)
                    if counts[op.barrier, op.index] < takes:
                        break
                elif op.kind in ARRIVALS and op.barrier is not None:
                    peers = program.barriers[op.barrier].peers if op.kind == "arrive" else ()
                    counts.update((peer, op.index) for peer in peers or (op.barrier,))
                elif op.kind == "scope_begin" and op.shared:
                    met[op.scope_id].add(thread)
                    if len(met[op.scope_id]) < len(program.threads) // program.blocks:
                        break
                elif op.kind == "registers" and first != UNKNOWN:
                    block = program.threads_of(program.block_of(thread))
                    if sum(held[t] for t in block if t != thread) + op.registers > first * len(
                        block
                    ):
                        break
                    held[thread] = op.registers
                counters[thread] += 1
                going = True
    return all(count == len(ops) for count, ops in zip(counters, program.threads))


# What a thread has in flight.


def _sees_no_more(program: Program, mutant: Mutant) -> bool:
    before = dict(_views(program, mutant.thread))
    after = _views(mutant.program, mutant.thread)
    return all(key in before and seen <= before[key] for key, seen in after)


def _views(program: Program, thread: int) -> list[tuple[tuple, set]]:
    """For each op of a thread at which it matters, what is in flight or not committed there."""
    others = _Others(program, thread)
    takers = {buffer.scope_id for buffer in program.buffers if buffer.space == "smem"}
    products, groups, group, dirty, seen = [], [], [], [], Counter()
    views = []
    for op in program.threads[thread]:
        if op.kind in ("wgmma_wait", "acc_read"):
            products = products[max(len(products) - op.pending, 0) :]
        elif op.kind == "wait_store":
            over = groups[: max(len(groups) - op.pending, 0)]
            for store in (store for stores in over for store in stores):
                store[1] = op.read_only
            groups = [[s for s in stores if s[1]] for stores in over] + groups[len(over) :]
        elif op.kind == "commit_group":
            groups, group = [*groups, group], []
        elif op.kind == "fence":
            dirty = []
        flying = [*((o, k) for o, k in products)]
        flying += [
            (replace(o, reads=()) if read else o, k)
            for o, read, k in [store for g in (*groups, group) for store in g]
        ]
        troubles = set()
        if op.kind in ACCESSES:
            troubles |= {k for o, k in flying if _conflict(o, op)}
        if op.kind in ASYNCHRONOUS:
            troubles |= {k for o, k in dirty if _overlap(o.writes, op.reads + op.writes)}
        is_meeting = op.kind == "scope_begin" and op.shared
        if is_meeting or (op.kind in ARRIVALS and others.wait_for(op)):
            troubles |= {k for o, k in flying if others.meet(o)}
            troubles |= {k for o, k in dirty if _overlap(o.writes, others.engines)}
        if op.kind == "scope_begin" and op.scope_id in takers:
            troubles |= {k for o, k in flying if o.reads}
        name = replace(op, phase=0, pending=None)
        seen[name] += 1
        key = name, seen[name]
        if op.kind in (*ACCESSES, "arrive", "scope_begin"):
            views.append((key, troubles))
        if op.kind == "wgmma":
            products = [*products, (op, key)]
        elif op.kind == "store":
            group = [*group, [op, False, key]]
        elif op.kind == "write":
            dirty = [*dirty, (op, key)]
    unread = {k for g in (*groups, group) for _, read, k in g if not read}
    return [*views, ("end", unread)]


class _Others:
    """The regions that threads other than one touch."""

    def __init__(self, program: Program, thread: int):
        ops = [op for op in program.ops if op.thread != thread]
        ops = [op for op in ops if op.kind in ACCESSES]
        self.reads = {region for op in ops for region in op.reads}
        self.writes = {region for op in ops for region in op.writes}
        engines = [op for op in ops if op.kind in ASYNCHRONOUS]
        self.engines = {region for op in engines for region in op.reads + op.writes}
        self.counts: dict[tuple, Counter] = defaultdict(Counter)
        self.last: dict[tuple, int] = {}
        self.barriers = program.barriers
        for op in program.ops:
            if op.kind in ARRIVALS:
                self.counts[op.barrier, op.index][op.thread] += 1
        for ops in program.threads:
            acts = False
            for op in reversed(ops):
                acts |= op.kind in (*ACCESSES, "arrive")
                if op.kind == "wait" and acts:
                    last = self.last.get((op.barrier, op.index), -1)
                    self.last[op.barrier, op.index] = max(last, op.phase)

    def wait_for(self, arrival: Op) -> bool:
        """Whether anyone waits for the phase of an arrival, and then does anything.

        All threads that arrive are taken to have the same share in each phase.
        """
        place = arrival.barrier, arrival.index
        counts = self.counts[place]
        takes = self.barriers[arrival.barrier].arrivals
        phases = max(sum(counts.values()) // takes, 1)
        return arrival.phase * phases // max(counts[arrival.thread], 1) <= self.last.get(place, -1)

    def meet(self, op: Op) -> bool:
        """Whether anything of theirs conflicts with this op."""
        touched = self.reads | self.writes
        return _overlap(op.writes, touched) or _overlap(op.reads, self.writes)


def _conflict(one: Op, other: Op) -> bool:
    if one.kind == other.kind == "wgmma" and one.thread == other.thread:
        return False
    if one.kind == other.kind == "write" and one.combines and other.combines:
        return False
    if _overlap(one.reads, other.writes) or _overlap(one.writes, other.reads):
        return True
    both_reduce = one.kind == other.kind == "store" and one.combines and other.combines
    return not both_reduce and _overlap(one.writes, other.writes)


def _overlap(some, others) -> bool:
    return any(
        a.buffer == b.buffer and all(p < s and r < q for (p, q), (r, s) in zip(a.box, b.box))
        for a in some
        for b in others
    )
