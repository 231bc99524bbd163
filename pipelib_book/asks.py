"""What a task asks of a right answer beside its result; `grade` gets it as `asks`.

The model. An **ask** is a function of an `Answer`, which holds a traced program and its simulated
timeline; it returns whether the answer does what is asked, in a sentence. So an ask needs neither a
GPU nor a kernel's result. The sentence says how far the answer is from what is asked, and never how
to get there.

What is asked of a block is asked of each; what is asked of a kernel is summed up over the launch.
Both look at the blocks that `verify` looks at: of a large grid at those that are first, middle or
last on each axis, and the sum takes the others to be as these are on average. Schedules are of the
first cluster alone.

====================  ==============================================================================
ask                   a right answer must
====================  ==============================================================================
faster_than           take fewer simulated cycles than another kernel
launches_faster_than  be predicted faster than other kernels at a size, and not above the possible
loads_less_than       load fewer bytes than another kernel, in all blocks
also_with             do what an ask wants when it is called with other arrays, too
loads_sooner_than     start a buffer's loads earlier than another kernel, in simulated cycles
frees_sooner_than     free a buffer's slots earlier than another kernel, in simulated cycles
frees_after_reads     free a buffer's slots when no product and no store may still read them
frees_once_read       free a buffer's slots when it has read them, and other work is in flight
frees_within_block    free a buffer's slots without other blocks of the cluster
sees_all_frees        wait each time that a buffer's slot is freed, to the last time
frees_slot_by_slot    wait for one slot of a buffer before it fills that slot, and never for more
frees_at_once         free each slot of a buffer right after the product that reads it
shares                load a buffer once for several blocks of the cluster
products_in_flight    leave products running when a wait for products returns
products_beneath      have products run beneath the loads of a buffer, when it waits for them
multiplies_in         start products in a number of threads
block_multiplies      make so many operations on the tensor core in a block
multiplies            make so many operations on the tensor core in all blocks
in_turns              queue products in turns, by an array of barriers
turns_only_queue      queue a number of products in each turn, and do nothing else there
goes_through_once     have products that go through a buffer once, and come back to no part of it
stores_in_flight      leave stores reading their SMEM when a wait for stores returns
loads_in_flight       have loads under way at once, in the simulation
stores_from_smem      store what leaves it from SMEM, by the TMA, not from registers
fits_in               allocate no more shared memory for a block than a limit
has_blocks            have a number of blocks, with equal shares of what the kernel stores
has_threads           have a number of threads in a block
takes_its_arguments   have inputs that are its arguments, perhaps reshaped, and no copies of them
makes_all_of          make the results itself, of all arguments
exponentials_beneath  have products run beneath exponentials
stores_beneath        start stores while products run
loads_at_most         load no more than so many bytes, in all blocks
block_loads_at_most   load no more than so many bytes in a block
====================  ==============================================================================

A buffer has the name that a report gives it, as `g_smem`. An answer without such a buffer fails.
"""

import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax

import pallascope
from pallascope.machine import Machine
from pallascope.program import Buffer, Kind, Op, Program, Role, Space
from pallascope.report import count
from pallascope.spans import Span, SpanKind
from pallascope.timeline import Timeline
from pallascope.verifying import BlockChoice
from pipelib_book.beside import Beside
from pipelib_book.in_flight import (
    Moment,
    filled_by,
    frees,
    frees_unread,
    is_load_of,
    may_be_slot,
    moments,
    report_name,
)

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Answer:
    """An answer, as asks see it: its program, what it was called with, and on which machine.

    `program` is of the first cluster of the launch. `beside` says what is left to XLA, before the
    kernel and after it; None if nobody looked. Without its `kernel` all clusters count as alike.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> answer.timeline.lanes[0]
      'thread 0'
    """

    program: Program
    args: tuple[Any, ...]
    machine: Machine
    beside: Beside | None = None
    kernel: Kernel | None = None

    @functools.cached_property
    def programs(self) -> tuple[Program, ...]:
        """The programs of its clusters, of a large grid of some."""
        if self.kernel is None:
            return (self.program,)
        places = BlockChoice.ALL.of(self.program.grid)
        return tuple(pallascope.trace(self.kernel, *self.args, block=place) for place in places)

    def total(self, size: Callable[[Program], int]) -> float:
        """The sum of a size over all clusters and devices of the launch."""
        clusters = _blocks(self.program) / self.program.blocks
        return clusters * statistics.fmean(map(size, self.programs))

    @functools.cached_property
    def timeline(self) -> Timeline:
        """Its simulated timeline."""
        return pallascope.simulate(self.program, self.machine)

    def other(self, kernel: Kernel) -> "Answer":
        """Another kernel, called with the same arrays."""
        program = pallascope.trace(kernel, *self.args)
        return Answer(program, self.args, self.machine, kernel=kernel)


class Said(NamedTuple):
    """Whether an answer does what is asked, in a sentence; what an ask returns.

    Example:
      >>> def has_two_threads(answer):
      ...     number = len(answer.program.threads)
      ...     return book.asks.Said(number == 2, f"Its threads: {number}.")
      >>> x = jnp.ones((4, 128))
      >>> has_two_threads(book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200))
      Said(holds=False, text='Its threads: 1.')
    """

    holds: bool
    text: str


Ask = Callable[[Answer], Said]
#: What takes a thread's time, unlike what it starts for others or tells them.
_WORK = (
    Kind.COMPUTE, Kind.READ, Kind.WRITE, Kind.FENCE, Kind.WAIT, Kind.WGMMA_WAIT, Kind.ACC_READ,
)  # fmt: skip
#: Says of an op of a program whether an ask is about it.
_Find = Callable[[Program], Callable[[Op], bool]]


def faster_than(other: Kernel, by: float = 1.0) -> Ask:
    """Asks for `by` times the speed of another kernel, by simulated cycles.

    Raises:
      ValueError: `by` is not above 0.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.faster_than(softmax, by=2.0)(answer).text
      'It is right, but not fast enough: ... simulated cycles, of ... at most.'
    """
    _check_factor("faster_than", by, "time would be too long")

    def ask(answer: Answer) -> Said:
        cycles, limit = answer.timeline.cycles, answer.other(other).timeline.cycles / by
        said = f"{cycles:,.0f} simulated cycles, of {limit:,.0f} at most."
        return _said(cycles <= limit, f"is fast enough: {said}", f"not fast enough: {said}")

    return ask


def launches_faster_than(
    others: Sequence[Kernel], args: Sequence[Any], by: float, light_us: float
) -> Ask:
    """Asks for `by` times the speed of the fastest of other kernels, by predicted launches.

    All are called with `args`, of the size that the task is about: shapes are enough. `light_us` is
    what the products or the bytes take alone: a launch below it has left out work at that size.

    Raises:
      ValueError: `by` is not above 0.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(
      ...     pallascope.trace(softmax, x), (x,), pallascope.H200, kernel=softmax
      ... )
      >>> book.asks.launches_faster_than([softmax], [x], by=1.0, light_us=0.1)(answer).text
      'Its launch is predicted to take ... µs, of ... at most. The speed of light is 0.1 µs.'
    """
    _check_factor("launches_faster_than", by, "launch would be too long")

    def ask(answer: Answer) -> Said:
        predicted = lambda kernel: pallascope.predict(kernel, *args, machine=answer.machine).us
        us, most = predicted(answer.kernel), min(map(predicted, others)) / by
        said = f"Its launch is predicted to take {us:.1f} µs"
        light = f"The speed of light is {light_us:.1f} µs"
        if us < light_us:
            return Said(
                False, f"{said}. {light}, so at that size it leaves out a part of the work."
            )
        return Said(us <= most, f"{said}, of {most:.1f} at most. {light}.")

    return ask


def loads_less_than(other: Kernel, by: float = 1.0) -> Ask:
    """Asks for `by` times fewer loaded bytes than another kernel's, in all blocks of the launch.

    A multicast's count once. Ordinary reads of GMEM load, too.

    Raises:
      ValueError: `by` is not above 0.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.loads_less_than(softmax)(answer)
      Said(holds=True, text='It loads little enough: 2,048 bytes, of 2,048 at most.')
    """
    _check_factor("loads_less_than", by, "bytes would be too many")

    def ask(answer: Answer) -> Said:
        loaded, limit = answer.total(_loaded), answer.other(other).total(_loaded) / by
        said = f"{loaded:,.0f} bytes, of {limit:,.0f} at most."
        return _said(loaded <= limit, f"loads little enough: {said}", f"loads too much: {said}")

    return ask


def also_with(args: tuple[Any, ...], ask: Ask) -> Ask:
    """Asks the same of the answer when it is called with other arrays.

    Example:
      >>> x, wide = jnp.ones((4, 128)), jnp.ones((4, 256))
      >>> program = pallascope.trace(softmax, x)
      >>> answer = book.asks.Answer(program, (x,), pallascope.H200, kernel=softmax)
      >>> book.asks.also_with((wide,), book.asks.loads_at_most(1024))(answer).text
      'It is right, but loads 4,096 bytes, of 1,024 at most.'
    """

    def ask_again(answer: Answer) -> Said:
        assert answer.kernel is not None, "a grade knows the answer's kernel"
        return ask(replace(answer, args=args, beside=None).other(answer.kernel))

    return ask_again


def loads_sooner_than(other: Kernel, buffer: str, by: float = 0.0) -> Ask:
    """Asks that the loads of a buffer start `by` simulated cycles sooner, on average.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.loads_sooner_than(softmax, "x_smem", by=10.0)(answer).text
      'It is right, but starts a load of `x_smem` at cycle ... on average: ... at the latest is ...'
    """
    find = lambda program: lambda op: is_load_of(program, op, buffer)
    return functools.partial(_sooner, other, by, find, f"starts a load of `{buffer}`")


def frees_sooner_than(other: Kernel, buffer: str, by: float = 0.0) -> Ask:
    """Asks that the slots of a buffer are freed `by` simulated cycles sooner, on average.

    A slot is freed by the arrivals for which a thread waits before it loads or writes it again.

    Example:
      >>> hazard = gallery.GALLERY["one-release-of-two"]
      >>> kernel = functools.partial(hazard.kernel, fixed=True)
      >>> args = hazard.arguments(np.random.default_rng(0), 1)
      >>> answer = book.asks.Answer(hazard.program(fixed=True), args, pallascope.H200)
      >>> book.asks.frees_sooner_than(kernel, "x_smem", by=10.0)(answer).text
      'It is right, but frees a slot of `x_smem` at cycle ... on average: ... at the latest is ...'
    """
    find = functools.partial(_is_release, buffer)
    return functools.partial(_sooner, other, by, find, f"frees a slot of `{buffer}`")


def frees_after_reads(buffer: str) -> Ask:
    """Asks that no product and no store of a thread may still read a slot that the thread frees.

    It is asked of the last releases, too, behind which no load comes.

    Example:
      >>> program = gallery.GALLERY["one-release-of-two"].program(fixed=True)
      >>> book.asks.frees_after_reads("x_smem")(book.asks.Answer(program, (), pallascope.H200)).text
      'It frees each slot of `x_smem` when its reads are over.'
    """

    def ask(answer: Answer) -> Said:
        program, arrivals = answer.program, _releases(buffer, answer.program)
        if not arrivals:
            return _nothing(program, f"frees no slot of `{buffer}`")
        early = sum(moment.reads(program, buffer) for moment in arrivals)
        return _said(
            not early,
            f"frees each slot of `{buffer}` when its reads are over.",
            f"frees a slot of `{buffer}` {count(early, 'time')} while it may still be read.",
        )

    return ask


def frees_once_read(buffer: str) -> Ask:
    """Asks that a thread frees each slot of a buffer when it has read it, and has other work left.

    Not before: the thread has read that slot, and no product and no store of the thread may still
    read it, even if another barrier holds the next load back. And not later: other products of the
    thread, or stores that have not reached GMEM, may be in flight.

    Example:
      >>> program = gallery.GALLERY["one-release-of-two"].program(fixed=True)
      >>> book.asks.frees_once_read("x_smem")(book.asks.Answer(program, (), pallascope.H200)).text
      'It is right, but frees a slot of `x_smem` when nothing that the thread started ...'
    """

    def ask(answer: Answer) -> Said:
        program, arrivals = answer.program, _releases(buffer, answer.program)
        if not arrivals:
            return _nothing(program, f"frees no slot of `{buffer}`")
        if any(moment.reads(program, buffer) for moment in arrivals):
            no = "while it may still be read: only another barrier keeps the next load away."
            return _said(False, "", f"frees a slot of `{buffer}` {no}")
        if frees_unread(program, buffer):
            no = "that the thread has not read since it freed that slot last."
            return _said(False, "", f"frees a slot of `{buffer}` {no}")
        return _said(
            all(moment.products or any(moment.stores) for moment in arrivals),
            f"frees each slot of `{buffer}` while other work is in flight.",
            f"frees a slot of `{buffer}` when nothing that the thread started is in flight any"
            " more: it was done with that slot before.",
        )

    return ask


def frees_within_block(buffer: str) -> Ask:
    """Asks that the slots of a buffer are freed by the threads of their own block alone.

    Nor may a thread wait at a cluster's barrier between its last load and that of the buffer, nor
    before that load as often as for the buffer's own slots: it would wait for the same step.

    Example:
      >>> program = gallery.GALLERY["one-release-of-two"].program(fixed=True)
      >>> book.asks.frees_within_block("x_smem")(book.asks.Answer(program, (), pallascope.H200))
      Said(holds=True, text='It waits for its own block alone before it loads `x_smem` again.')
    """

    def ask(answer: Answer) -> Said:
        here = frees(answer.program, buffer)
        if not here:
            return _nothing(answer.program, f"frees no slot of `{buffer}`")
        of_cluster = any(answer.program.barriers[barrier].cluster for barrier in here)
        return _said(
            not (of_cluster or _waits_for_others(answer.program, buffer, here)),
            f"waits for its own block alone before it loads `{buffer}` again.",
            f"waits for other blocks, too, before it loads `{buffer}` again.",
        )

    return ask


def sees_all_frees(buffer: str) -> Ask:
    """Asks that a thread waits each time that a slot of a buffer is freed, to the last time.

    A barrier that is left before is in no state to be used again.

    Example:
      >>> program = gallery.GALLERY["one-release-of-two"].program(fixed=True)
      >>> book.asks.sees_all_frees("x_smem")(book.asks.Answer(program, (), pallascope.H200))
      Said(holds=True, text='It waits each time that a slot of `x_smem` is freed.')
    """

    def ask(answer: Answer) -> Said:
        here = frees(answer.program, buffer)
        if not here:
            return _nothing(answer.program, f"frees no slot of `{buffer}`")
        missed = sum(_phases_unseen(answer.program, barrier) for barrier in here)
        return _said(
            not missed,
            f"waits each time that a slot of `{buffer}` is freed.",
            f"frees slots of `{buffer}` {count(missed, 'time')} when nobody waits for it: the"
            " barriers are in no state to be used again.",
        )

    return ask


def frees_slot_by_slot(buffer: str) -> Ask:
    """Asks that a thread waits for one slot of a buffer before it fills that slot, never for more.

    It fills a slot by a load or a write. A thread that waits for all slots between two of them lets
    the ring run empty. In a ring with a barrier for each slot the one slot is the one it fills.

    Example:
      >>> program = gallery.GALLERY["one-release-of-two"].program(fixed=True)
      >>> book.asks.frees_slot_by_slot("x_smem")(book.asks.Answer(program, (), pallascope.H200))
      Said(holds=True, text='It waits for one slot of `x_smem` at a time.')
    """

    def ask(answer: Answer) -> Said:
        here, most = frees(answer.program, buffer), 0
        if not here:
            return _nothing(answer.program, f"frees no slot of `{buffer}`")
        for ops in answer.program.threads:
            waits, has_filled = list[Op](), False
            for op in ops:
                if filled := filled_by(answer.program, op, buffer):
                    if len(waits) == 1 and not may_be_slot(answer.program, waits[0], filled):
                        no = f"fills a slot of `{buffer}` when it has waited for another one."
                        return _said(False, "", no)
                    most = max(most, len(waits) * has_filled)
                    waits, has_filled = [], True
                waits += [op] if op.kind is Kind.WAIT and op.barrier in here else []
        said = f"waits for {most} slots of `{buffer}` between two: the ring runs empty."
        return _said(most <= 1, f"waits for one slot of `{buffer}` at a time.", said)

    return ask


def frees_at_once(buffer: str) -> Ask:
    """Asks that a thread frees each slot of a buffer right after the product that reads it.

    When the product is over, the thread does no other work and waits for nothing before it arrives.

    Example:
      >>> program = gallery.GALLERY["one-release-of-two"].program(fixed=True)
      >>> book.asks.frees_at_once("x_smem")(book.asks.Answer(program, (), pallascope.H200)).text
      'It is right, but frees a slot of `x_smem` ... after other work: it was done ... before.'
    """

    def ask(answer: Answer) -> Said:
        program, is_release = answer.program, _is_release(buffer, answer.program)
        late = list[bool]()
        for row in ([*moments(ops)] for ops in program.threads):
            for end, at in enumerate(row):
                if not is_release(at.op):
                    continue
                reads = lambda each: replace(each, op=at.op).reads(program, buffer)
                read = (i for i in range(end - 1, -1, -1) if reads(row[i]))
                start = next(read, -1) + 2  # behind the product's own wait
                late.append(any(each.op.kind in _WORK for each in row[start:end]))
        if not late:
            return _nothing(program, f"frees no slot of `{buffer}`")
        no = f"{count(sum(late), 'time')} after other work: it was done with that slot before."
        yes = f"frees each slot of `{buffer}` as soon as its product is over."
        return _said(not any(late), yes, f"frees a slot of `{buffer}` {no}")

    return ask


def shares(buffer: str) -> Ask:
    """Asks that each load of a buffer is a multicast: for several blocks of the cluster at once.

    That they share one tile is what the check asks: `mixed-tile`.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.shares("x_smem")(answer)
      Said(holds=False, text='It is right, but loads `x_smem` for one block alone, each time.')
    """

    def ask(answer: Answer) -> Said:
        program = answer.program
        loads = [op for op in program.ops if is_load_of(program, op, buffer)]
        if not loads:
            return _nothing(program, f"loads no `{buffer}`")
        alone = sum(not op.collective for op in loads)
        times = "each time" if alone == len(loads) else f"{alone} times of {len(loads)}"
        return _said(
            not alone,
            f"loads `{buffer}` for several blocks at once.",
            f"loads `{buffer}` for one block alone, {times}.",
        )

    return ask


def products_in_flight(least: int, most: int | None = None) -> Ask:
    """Asks that waits for products leave so many of them running, in each thread that has some.

    One wait in three has to: a thread may need a product at once, and waits for all at its end.
    Of waits in a row only the last counts. A wait that ends no product does not count. No wait may
    leave more than `most`: their slots stay full.

    Example:
      >>> program = gallery.GALLERY["undelayed-release"].program(fixed=True)
      >>> book.asks.products_in_flight(2)(book.asks.Answer(program, (), pallascope.H200)).text
      'It is right, but leaves 1 product in flight when it waits for some, and 2 could be.'
    """
    waits = Kind.WGMMA_WAIT, Kind.ACC_READ
    left = functools.partial(_left, waits, lambda at: len(at.products))
    return functools.partial(_leaves, least, most, "product", left)


def products_beneath(buffer: str) -> Ask:
    """Asks that products run beneath each load of a buffer, when a thread that multiplies waits.

    They are in flight, or were started since the thread's own last load of it. The first load does
    not count if another thread makes it.

    Example:
      >>> program = gallery.GALLERY["undelayed-release"].program(fixed=True)
      >>> book.asks.products_beneath("b_smem")(book.asks.Answer(program, (), pallascope.H200)).text
      'It is right, but waits for `b_smem` 1 time with no product beneath the load.'
    """

    def ask(answer: Answer) -> Said:
        program, beneath = answer.program, list[bool]()
        loads = [op for op in program.ops if is_load_of(program, op, buffer)]
        landing, loaders = {op.barrier for op in loads}, {op.thread for op in loads}
        for thread, ops in enumerate(program.threads):
            started, found, is_own = 0, list[bool](), thread in loaders
            for at in moments(ops):
                started = 0 if is_load_of(program, at.op, buffer) else started
                started += at.op.kind is Kind.WGMMA
                if at.op.kind is Kind.WAIT and at.op.barrier in landing:
                    found.append(bool(at.products or (is_own and started)))
            multiplies = any(op.kind is Kind.WGMMA for op in ops)
            beneath += found[not is_own :] if multiplies else []
        if not beneath:
            return _nothing(program, f"waits for no load of `{buffer}` beside products")
        idle = beneath.count(False)
        return _said(
            not idle,
            f"has products beneath the loads of `{buffer}`.",
            f"waits for `{buffer}` {count(idle, 'time')} with no product beneath the load.",
        )

    return ask


def exponentials_beneath() -> Ask:
    """Asks that a product is in flight beneath half of a thread's exponentials at least.

    A thread has none beneath its first ones, nor beneath its last.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.exponentials_beneath()(answer).text
      'It is right, but computes 0% of its exponentials while a product is in flight.'
    """

    return functools.partial(_beneath, "computes", "exponentials", lambda op: op.transcendental)


def stores_beneath() -> Ask:
    """Asks that a product is in flight when half of a thread's stores start at least.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.stores_beneath()(answer).text
      'It is right, but starts 0% of its stores while a product is in flight.'
    """
    return functools.partial(_beneath, "starts", "stores", lambda op: op.kind is Kind.STORE)


def _beneath(verb: str, noun: str, size: Callable[[Op], int], answer: Answer) -> Said:
    """Whether half of some work at least is done while a product of its thread is in flight."""
    found = [(size(at.op), bool(at.products)) for at in _moments(answer.program)]
    beneath = sum(number for number, is_beneath in found if is_beneath)
    share = beneath / (sum(number for number, _ in found) or 1)
    said = f"{verb} {share:.0%} of its {noun} while a product is in flight."
    return _said(share >= 0.5, said, said)


def multiplies_in(threads: int) -> Ask:
    """Asks that so many threads of a block start products.

    Example:
      >>> program = gallery.GALLERY["undelayed-release"].program(fixed=True)
      >>> book.asks.multiplies_in(2)(book.asks.Answer(program, (), pallascope.H200)).text
      'It is right, but starts products in 1 thread of a block, and 2 are asked for.'
    """

    def ask(answer: Answer) -> Said:
        program = answer.program
        found = sum(any(op.kind is Kind.WGMMA for op in ops) for ops in program.threads)
        each = found // program.blocks
        said = f"starts products in {count(each, 'thread')} of a block"
        return _said(each == threads, f"{said}.", f"{said}, and {threads} are asked for.")

    return ask


def block_multiplies(operations: int) -> Ask:
    """Asks for so many operations on the tensor core in a block: no other one does its products.

    A block that does fewer has left them to XLA, or to other blocks.

    Example:
      >>> program = gallery.GALLERY["undelayed-release"].program(fixed=True)
      >>> book.asks.block_multiplies(2**30)(book.asks.Answer(program, (), pallascope.H200)).text
      'It is right, but a block does ... operations on the tensor core, of 1,073,741,824 at least.'
    """

    def ask(answer: Answer) -> Said:
        done = min(map(_multiplied, answer.programs)) // answer.program.blocks
        said = f"{done:,} operations on the tensor core"
        return _said(
            done >= operations,
            f"does {said} in a block.",
            f"a block does {said}, of {operations:,} at least.",
        )

    return ask


def multiplies(flops: float) -> Ask:
    """Asks that the kernel itself makes so many operations in products, in all its blocks.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.multiplies(2 * 64**3)(answer).text
      'It is right, but the kernel makes 0 operations in products, and 524,288 are asked for.'
    """

    def ask(answer: Answer) -> Said:
        made = answer.total(_multiplied)
        enough = made >= flops
        said = f"makes {made:,.0f} operations in products, and {flops:,.0f} are asked for."
        return _said(enough, said, f"the kernel {said}")

    return ask


def in_turns(barrier: str) -> Ask:
    """Asks that threads take turns: each queues the products of its loops in a turn of its own.

    A thread's turn begins when it has waited at its barrier of this array, and ends when it arrives
    at the next thread's, after the last thread's at the first one's.

    Example:
      >>> program = gallery.GALLERY["undelayed-release"].program(fixed=True)
      >>> book.asks.in_turns("turn")(book.asks.Answer(program, (), pallascope.H200)).text
      'It is right, but queues a product of thread 0 outside of its turn.'
    """

    def ask(answer: Answer) -> Said:
        program = answer.program
        for number, ops in enumerate(program.threads):
            has_turn = False
            for op in ops:
                array = None if op.barrier is None else program.barriers[op.barrier]
                if op.kind is Kind.WGMMA and op.step and not has_turn:
                    no = f"queues a product of thread {number} outside of its turn."
                    return _said(False, "", no)
                if array is None or array.name != barrier:
                    continue
                if op.kind not in (Kind.WAIT, Kind.ARRIVE):
                    continue
                has_turn = op.kind is Kind.WAIT
                if not has_turn and op.index != (number + 1) % array.count:
                    no = f"thread {number} gives its turn to thread {op.index}, not to the next."
                    return _said(False, "", no)
        return _said(True, "queues each product in a turn of its thread.", "")

    return ask


def turns_only_queue(barrier: str, products: int) -> Ask:
    """Asks that a thread queues so many products in each turn of its steps, and does nothing else.

    It may wait at a barrier while a product of its own runs. Turns are as in `in_turns`.

    Example:
      >>> program = gallery.GALLERY["undelayed-release"].program(fixed=True)
      >>> book.asks.turns_only_queue("turn", 2)(book.asks.Answer(program, (), pallascope.H200)).text
      'It is right, but queues no product in a turn.'
    """

    def ask(answer: Answer) -> Said:
        program, turns = answer.program, 0
        for ops in program.threads:
            queued: int | None = None  # in the turn that the thread has, if it has one
            for at in moments(ops):
                op, array = at.op, at.op.barrier
                is_turn = array is not None and program.barriers[array].name == barrier
                if is_turn and op.kind in (Kind.WAIT, Kind.ARRIVE):
                    if op.step and queued not in (None, products):
                        no = f"queues {count(queued, 'product')} in a turn, and not {products}."
                        return _said(False, "", no)
                    turns += bool(queued)
                    queued = 0 if op.kind is Kind.WAIT else None
                elif queued is not None and op.step:
                    queued += op.kind is Kind.WGMMA
                    if op.kind in _WORK and not (op.kind is Kind.WAIT and at.products):
                        no = f"keeps its turn for other work than to queue products: `{op.kind}`."
                        return _said(False, "", no)
        yes = f"queues {count(products, 'product')} in each turn, and does nothing else there."
        return _said(bool(turns), yes, "queues no product in a turn.")

    return ask


def goes_through_once(buffer: str) -> Ask:
    """Asks that products read a buffer in one go: a thread comes back to no part of it.

    Only then can a slot be loaded again while the rest of the buffer is still to be read.

    Example:
      >>> program = gallery.GALLERY["undelayed-release"].program(fixed=True)
      >>> book.asks.goes_through_once("x_smem")(book.asks.Answer(program, (), pallascope.H200)).text
      'It is right, but multiplies with no `x_smem`; its shared memory is ...'
    """

    def ask(answer: Answer) -> Said:
        parts = [_parts_multiplied(answer.program, ops, buffer) for ops in answer.program.threads]
        if not any(parts):
            return _nothing(answer.program, f"multiplies with no `{buffer}`")
        again = sum(len(each) - len({*each}) for each in parts)
        return _said(
            not again,
            f"goes through `{buffer}` once.",
            f"comes back {count(again, 'time')} to a part of `{buffer}` after it has read another.",
        )

    return ask


def _blocks(program: Program) -> int:
    """All blocks of a launch; `program.blocks` are those that were traced."""
    return math.prod((*program.devices, *program.grid, *program.cluster))


def _multiplied(program: Program) -> int:
    """The operations of all products that are in a program."""
    products = Kind.WGMMA, Kind.TCGEN05_MMA
    return sum(op.flops for op in program.ops if op.kind in products)


def _parts_multiplied(program: Program, ops: Iterable[Op], buffer: str) -> list[Any]:
    """The parts of a buffer that a thread's products read; of one part in a row, the first."""
    read = [
        region.box
        for op in ops
        if op.kind is Kind.WGMMA
        for region in op.reads
        if report_name(program.buffers[region.buffer]) == buffer
    ]
    return [box for box, _ in itertools.groupby(read)]


def stores_in_flight(least: int) -> Ask:
    """Asks that waits for stores leave so many that may still read their SMEM, in each thread.

    A wait that ends none need not, nor need a thread's waits after its last store. Of waits in a
    row only the last counts. A group without a store counts as none.

    Example:
      >>> program = gallery.GALLERY["staging-used-again"].program(fixed=True)
      >>> book.asks.stores_in_flight(4)(book.asks.Answer(program, (), pallascope.H200)).text
      'It is right, but leaves ... in flight when it waits for some, and 4 could be.'
    """

    def ask(answer: Answer) -> Said:
        by_thread = list[int]()
        for ops in answer.program.threads:
            last = max((i for i, op in enumerate(ops) if op.kind is Kind.STORE), default=0)
            unread = lambda at: sum(map(bool, at.unread))
            found = [*_waits(ops[:last], (Kind.WAIT_STORE,), unread)]
            ending = (left for before, left in found if left < before)
            kept = max((left for _, left in found), default=0)
            by_thread += [min(ending, default=kept)] if last else []
        return _leaving(min(by_thread, default=0), least, "store")

    return ask


def loads_in_flight(least: int, most: int | None = None) -> Ask:
    """Asks that so many loads are under way at once, in the simulation, in each block.

    No block may have more than `most` under way. A block after the first one that loads less often
    has all of its loads under way at once.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.loads_in_flight(9)(answer).text
      'It is right, but has ... in flight at most, and 9 could be.'
    """

    def ask(answer: Answer) -> Said:
        first = [at_once for at_once, _ in _loads_at_once(answer.timeline)] or [0]
        if most is not None and max(first) > most:
            no = f"has {count(max(first), 'load')} in flight at most, and {most} is the limit."
            return _said(False, "", no)
        said = f"has {count(min(first), 'load')} in flight at most"
        if min(first) < least:
            return _said(False, "", f"{said}, and {least} could be.")
        for program in answer.programs[1:]:
            for at_once, loads in _loads_at_once(pallascope.simulate(program, answer.machine)):
                if at_once < min(least, loads):
                    no = f"has {count(at_once, 'load')} in flight at most in block"
                    could = f"{program.grid_index}, and {min(least, loads)} could be."
                    return _said(False, "", f"{no} {could}")
        return _said(True, f"{said}, and {least} are asked for.", "")

    return ask


def stores_from_smem() -> Ask:
    """Asks that all that leaves a block leaves from SMEM, by the TMA: no thread writes GMEM itself.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.stores_from_smem()(answer)
      Said(holds=True, text='It stores from SMEM.')
    """

    def ask(answer: Answer) -> Said:
        buffers = answer.program.buffers
        written = {
            region.buffer: report_name(buffers[region.buffer])
            for op in answer.program.ops
            if op.kind is Kind.WRITE
            for region in op.writes
            if buffers[region.buffer].space is Space.GMEM
        }
        names = ", ".join(f"`{name}`" for name in written.values())
        no = f"a thread writes {names} itself: what it writes comes from registers, not from SMEM."
        return _said(not written, "stores from SMEM.", no)

    return ask


def fits_in(kib: float) -> Ask:
    """Asks that a block allocates at most so many KiB of shared memory, barriers included.

    Example:
      >>> program = gallery.GALLERY["missing-commit"].program(fixed=True)
      >>> book.asks.fits_in(32)(book.asks.Answer(program, (), pallascope.H200))
      Said(holds=False, text='It is right, but allocates 64.0 KiB of shared memory, of 32 at most.')
    """

    def ask(answer: Answer) -> Said:
        used = answer.program.smem_bytes / 1024
        said = f"allocates {used:.1f} KiB of shared memory, of {kib:g} at most."
        return _said(used <= kib, said, said)

    return ask


def has_blocks(number: int) -> Ask:
    """Asks for so many blocks, in all clusters and on all devices together, with equal shares.

    An answer is simulated in one cluster of its grid, so others could do the rest of the work: none
    may store more than another one.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.has_blocks(3)(answer).text
      'It is right, but its kernel has 1 block, and 3 are asked for.'
    """

    def ask(answer: Answer) -> Said:
        program = answer.program
        made = _blocks(program)
        here, verb = count(made, "block"), "is" if number == 1 else "are"
        no = f"its kernel has {here}, and {number} {verb} asked for."
        if made != number:
            return _said(False, "", no)
        stored = sorted(_stored(each) // program.blocks for each in answer.programs)
        no = f"one of its blocks stores {stored[-1]:,} bytes, and another {stored[0]:,}."
        return _said(stored[0] == stored[-1], f"has {here}.", no)

    return ask


def has_threads(number: int) -> Ask:
    """Asks that a block has so many Pallas threads.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.has_threads(3)(answer)
      Said(holds=False, text='It is right, but a block has 1 thread, and 3 are asked for.')
    """

    def ask(answer: Answer) -> Said:
        here, verb = count(answer.program.per_block, "thread"), "is" if number == 1 else "are"
        return _said(
            answer.program.per_block == number,
            f"has {here} in a block.",
            f"a block has {here}, and {number} {verb} asked for.",
        )

    return ask


def takes_its_arguments() -> Ask:
    """Asks that the kernel's inputs are the arguments as they are: not cut, joined or turned first.

    A reshape moves no byte, so an input may be a reshaped argument.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.takes_its_arguments()(answer).text
      'It takes its arguments as they are.'
    """

    def ask(answer: Answer) -> Said:
        odd = _no_arguments(answer)
        names = ", ".join(f"`{b.name}` of shape {b.shape}" for b in odd)
        return _said(
            not odd,
            "takes its arguments as they are.",
            f"its kernel's input {names} is no argument: it was copied before the kernel began.",
        )

    return ask


def makes_all_of(results: Any) -> Ask:
    """Asks that the kernel makes all of the results, of all arguments: nothing is left to XLA.

    Its inputs are the arguments, it reads each of them, and its outputs are the results. Reshapes
    do not count.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.makes_all_of(x)(answer).text
      'It makes its results itself, of all arguments.'
      >>> book.asks.makes_all_of(x[:, 0])(answer).text
      'It is right, but its kernel gives (4, 128) float32, not (4,) float32: XLA does the rest.'
    """
    asked = _arrays(jax.tree.leaves(results))

    def ask(answer: Answer) -> Said:
        taken = takes_its_arguments()(answer)
        if not taken.holds:
            return taken
        if unread := _unread(answer):
            no = f"its kernel reads no argument {_in_words(_arrays(unread))}: XLA does a part."
            return _said(False, "", no)
        outputs = _arrays(
            buffer for buffer in answer.program.buffers if buffer.role in (Role.OUT, Role.IN_OUT)
        )
        given, wanted = _in_words(outputs), _in_words(asked)
        no = f"its kernel gives {given}, not {wanted}: XLA does the rest."
        if answer.beside is None:
            holds = outputs == asked
        else:
            holds = all(made.is_kernel_s for made in answer.beside.results)
            if outputs == asked and answer.beside.after:
                no = f"XLA makes its result, by {answer.beside.after}, after the kernel."
            elif outputs == asked:
                no = "it returns an array that its kernel did not make."
        return _said(holds, "makes its results itself, of all arguments.", no)

    return ask


def loads_at_most(size: int) -> Ask:
    """Asks that the kernel loads at most so many bytes, counted as in `loads_less_than`.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.loads_at_most(1024)(answer)
      Said(holds=False, text='It is right, but loads 2,048 bytes, of 1,024 at most.')
    """
    return functools.partial(_loads_at_most, size, "", lambda answer: answer.total(_loaded))


def block_loads_at_most(size: int) -> Ask:
    """Asks that no block loads more than so many bytes; those of a cluster have equal shares.

    Example:
      >>> x = jnp.ones((4, 128))
      >>> answer = book.asks.Answer(pallascope.trace(softmax, x), (x,), pallascope.H200)
      >>> book.asks.block_loads_at_most(1024)(answer)
      Said(holds=False, text='It is right, but loads 2,048 bytes in a block, of 1,024 at most.')
    """
    most = lambda answer: max(map(_loaded, answer.programs)) / answer.program.blocks
    return functools.partial(_loads_at_most, size, " in a block", most)


def _loads_at_most(size: int, where: str, sum_: Callable[[Answer], float], answer: Answer) -> Said:
    loaded = sum_(answer)
    said = f"loads {loaded:,.0f} bytes{where}, of {size:,} at most."
    return _said(loaded <= size, said, said)


def _inputs(program: Program) -> list[Buffer]:
    """The kernel's inputs."""
    return [
        buffer
        for buffer in program.buffers
        if buffer.space is Space.GMEM and buffer.role in (Role.IN, Role.IN_OUT)
    ]


def _no_arguments(answer: Answer) -> list[Buffer]:
    """The kernel's inputs that are no arguments; by shape, where nobody knows how they came."""
    inputs = _inputs(answer.program)
    if answer.beside is not None and len(answer.beside.inputs) == len(inputs):
        pairs = zip(inputs, answer.beside.inputs, strict=True)
        return [buffer for buffer, made in pairs if not made.is_argument]
    given = _arrays(jax.tree.leaves(answer.args))
    return [buffer for buffer in inputs if not given[_array(buffer.shape, buffer.dtype)]]


def _unread(answer: Answer) -> list[Any]:
    """The arguments that the kernel does not read; those of one size and dtype count as alike."""
    program, size = answer.program, lambda each: (math.prod(each.shape), str(each.dtype))
    ids = {region.buffer for op in program.ops for region in op.reads}
    read = Counter(size(buffer) for buffer in _inputs(program) if buffer.id in ids)
    unread = list[Any]()
    for leaf in jax.tree.leaves(answer.args):
        read[size(leaf)] -= 1
        unread += [leaf] if read[size(leaf)] < 0 else []
    return unread


def _arrays(found: Iterable[Any]) -> Counter[tuple[tuple[int, ...], str]]:
    """How often there is an array of each shape and dtype."""
    return Counter(_array(each.shape, each.dtype) for each in found)


def _in_words(arrays: Counter[tuple[tuple[int, ...], str]]) -> str:
    return " and ".join(f"{shape} {dtype}" for shape, dtype in arrays.elements())


def _array(shape: tuple[int, ...], dtype: Any) -> tuple[tuple[int, ...], str]:
    """What arrays of the same bytes have in common: axes of one element move nothing."""
    return tuple(size for size in shape if size != 1), str(dtype)


def _check_factor(name: str, by: float, consequence: str) -> None:
    if not by > 0:
        raise ValueError(f"{name}: {by=} is not above 0, so no {consequence}.")


def _said(holds: bool, yes: str, no: str) -> Said:
    return Said(holds, f"It {yes}" if holds else f"It is right, but {no}")


def _nothing(program: Program, lacks: str) -> Said:
    """What is said of an answer that does not do what is asked about at all."""
    smem = (report_name(buffer) for buffer in program.buffers if buffer.space is Space.SMEM)
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(smem))
    return Said(False, f"It is right, but {lacks}; its shared memory is {names or 'none'}.")


def _loaded(program: Program) -> int:
    """The bytes that the threads of a program get from GMEM: by copies, and by ordinary reads."""
    return sum(op.bytes for op in program.ops if _is_of_gmem(program, op, Kind.LOAD, Kind.READ))


def _stored(program: Program) -> int:
    """The bytes that the threads of a program put into GMEM: by copies, and by ordinary writes."""
    return sum(op.bytes for op in program.ops if _is_of_gmem(program, op, Kind.STORE, Kind.WRITE))


def _is_of_gmem(program: Program, op: Op, copy: Kind, access: Kind) -> bool:
    """Whether an op is such a copy, or such an access of GMEM."""
    regions = op.reads or op.writes
    return op.kind is copy or (
        op.kind is access and program.buffers[regions[0].buffer].space is Space.GMEM
    )


def _moments(program: Program) -> Iterator[Moment]:
    """The ops of all threads, with what each thread then has in flight."""
    return itertools.chain.from_iterable(map(moments, program.threads))


def _releases(buffer: str, program: Program) -> list[Moment]:
    """The arrivals that free a slot of a buffer."""
    is_release = _is_release(buffer, program)
    return [moment for moment in _moments(program) if is_release(moment.op)]


def _is_release(buffer: str, program: Program) -> Callable[[Op], bool]:
    """Which ops free a slot of a buffer."""
    here = frees(program, buffer)
    return lambda op: op.kind is Kind.ARRIVE and op.barrier in here


def _waits_for_others(program: Program, buffer: str, here: frozenset[int]) -> bool:
    """Whether a thread waits for other blocks before it loads a slot of a buffer again.

    It does so right before the load, or has waited at a cluster's barriers as often as at `here`,
    the barriers that free the buffer: it must have done so once less.
    """
    for ops in program.threads:
        own, others, right_before, has_loaded = 0, 0, False, False
        for op in ops:
            if op.kind is Kind.WAIT and op.barrier is not None and has_loaded:
                is_other = bool(program.barriers[op.barrier].cluster)
                own, others = own + (op.barrier in here), others + is_other
                right_before |= is_other
            elif op.kind is Kind.LOAD:
                is_late = right_before or 0 < own <= others
                if is_late and is_load_of(program, op, buffer):
                    return True
                right_before, has_loaded = False, True
    return False


def _phases_unseen(program: Program, barrier: int) -> int:
    """How many phases of an array of barriers complete that no thread waits for."""
    arrivals = Counter[int | None]()
    waits: dict[int | None, Counter[int]] = {}
    for op in itertools.chain.from_iterable(program.threads):
        if op.barrier == barrier and op.kind is Kind.ARRIVE:
            arrivals[op.index] += 1
        elif op.barrier == barrier and op.kind is Kind.WAIT:
            waits.setdefault(op.index, Counter())[op.thread] += 1
    expected = program.barriers[barrier].arrivals
    seen = {index: max(by_thread.values()) for index, by_thread in waits.items()}
    return sum(max(n // expected - seen.get(index, 0), 0) for index, n in arrivals.items())


def _leaves(
    least: int,
    most: int | None,
    noun: str,
    left: Callable[[Iterable[Op]], list[int]],
    answer: Answer,
) -> Said:
    """Whether each thread that waits leaves so many in flight at one in three of its waits."""
    by_thread = [sorted(found) for ops in answer.program.threads if (found := left(ops))]
    if most is not None and (largest := max((found[-1] for found in by_thread), default=0)) > most:
        no = f"leaves {count(largest, noun)} in flight, whose slots stay full: {most} would do."
        return _said(False, "", no)
    usual = min((found[-1 - len(found) // 3] for found in by_thread), default=0)
    return _leaving(usual, least, noun)


def _leaving(usual: int, least: int, noun: str) -> Said:
    """Whether so many are left in flight."""
    said = f"leaves {count(usual, noun)} in flight when it waits for some"
    return _said(usual >= least, f"{said}.", f"{said}, and {least} could be.")


def _left(waits: tuple[Kind, ...], size: Callable[[Moment], int], ops: Iterable[Op]) -> list[int]:
    """How many a thread leaves in flight at each wait that ends some, in a row at the last."""
    return [left for before, left in _waits(ops, waits, size) if left < before]


def _waits(
    ops: Iterable[Op], kinds: tuple[Kind, ...], size: Callable[[Moment], int]
) -> Iterator[tuple[int, int]]:
    """How many are in flight before each wait of a thread, and after it; waits in a row are one."""
    is_wait = lambda moment: moment.op.kind in kinds and moment.op.pending is not None
    before = 0
    for waited, row in itertools.groupby(moments(ops), is_wait):
        after = size([*row][-1])
        if waited:
            yield before, after
        before = after


def _sooner(other: Kernel, by: float, find: _Find, does: str, answer: Answer) -> Said:
    """Whether an answer does something sooner than another kernel, on average."""
    cycle, others = (_mean_cycle(one, find) for one in (answer, answer.other(other)))
    if cycle is None or others is None:
        return _nothing(answer.program, f"never {does}")
    said = f"{does} at cycle {cycle:,.0f} on average"
    latest = f"{others - by:,.0f} at the latest is asked"
    return _said(cycle <= others - by, f"{said}: {latest}.", f"{said}: {latest}.")


def _mean_cycle(answer: Answer, find: _Find) -> float | None:
    """The simulated cycle at which a thread issues some ops, on average; None if there are none."""
    threads, is_one = answer.program.threads, find(answer.program)
    issued = [
        span.stop
        for span in answer.timeline.spans
        if span.kind is SpanKind.ISSUE and span.thread is not None and span.op is not None
        if is_one(threads[span.thread][span.op])
    ]
    return statistics.fmean(issued) if issued else None


def _loads_at_once(timeline: Timeline) -> list[tuple[int, int]]:
    """Of each block that loads: how many of its loads overlap at most, and how many it has."""
    by_block: dict[int, list[Span]] = {}
    for span in timeline.spans:
        if span.kind is SpanKind.LOAD:
            by_block.setdefault(span.lane, []).append(span)
    return [(_at_once(spans), len(spans)) for spans in by_block.values()]


def _at_once(spans: Iterable[Span]) -> int:
    """How many spans overlap at most."""
    edges = sorted(edge for span in spans for edge in ((span.start, 1), (span.stop, -1)))
    return max(itertools.accumulate(change for _, change in edges), default=0)
