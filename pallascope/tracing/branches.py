"""Branches that data choose: the trace follows all of them, if none puts threads in order.

The model. A run takes one branch, and the trace cannot know which. So it follows each in turn, from
the same values, and the thread's program has the ops of all. Whatever a run does is then among
these ops. What they must not do is vouch for something that another branch leaves out:

- **Order.** No branch may arrive, wait, copy, commit SMEM or meet other threads (`FOLLOWED` has the
  kinds of ops that may be there). So a thread knows the same of others after each branch, and
  `check` puts no two accesses in order because of a branch that is not taken.
- **Writes.** A branch writes only memory that it allocated itself. A write elsewhere would count
  as made: a later read would find the memory initialised, and older accesses would be forgotten.
  Reads are free. One that is not made puts nothing in order and initialises nothing.
- **Products.** A wait for a product also waits for all products before it. So if a branch starts or
  waits for products, none may be in flight where it begins, nor where it ends. Then the thread's
  products in flight after it are the same, whichever branch is taken.
- **Values.** A scalar that comes out equal from all branches is known, and so is a scalar that they
  leave in a ref. All else is OPAQUE. JAX lets no branch return a ref.
- **Lanes.** Without automatic barriers a branch has no op at which its thread's lanes meet.
- **The host.** No branch calls a kernel: it is unknown how often the kernel would run.

Not covered: that all lanes of a thread take the same branch, as a product and a reduction across
warps need; code that only the device understands, which is trusted everywhere. How often each way
is taken is `simulating.ways`' to say. Source: this project's own.
"""

import math
from collections.abc import Sequence

from pallascope.program import Kind, Op
from pallascope.report import count
from pallascope.tracing.code import Code
from pallascope.tracing.jaxprs import Value
from pallascope.tracing.source import UNKNOWN
from pallascope.tracing.state import OPAQUE, Ended, Ref, Thread
from pallascope.tracing.views import KNOWN

#: The kinds of ops that may put threads in order: what a branch then does, and the name of it.
ORDERS = {
    Kind.LOAD: ("starts a load", "the load"),
    Kind.STORE: ("starts a store", "the store"),
    Kind.PREFETCH: ("starts a prefetch", "the prefetch"),
    Kind.CP_ASYNC: ("starts a load", "the load"),
    Kind.WAIT_CP_ASYNC: ("waits for loads", "the wait"),
    Kind.SKIP: ("has a store whose predicate is off", "the store"),
    Kind.TCGEN05_MMA: ("starts a product", "the product"),
    Kind.TCGEN05_COPY: ("starts a copy to TMEM", "the copy"),
    Kind.TCGEN05_COMMIT: ("arrives at a barrier", "the arrival"),
    Kind.LOAD_TMEM: ("reads TMEM", "the read"),
    Kind.STORE_TMEM: ("writes TMEM", "the write"),
    Kind.WAIT_LOAD_TMEM: ("waits for its reads of TMEM", "the wait"),
    Kind.WAIT_STORE_TMEM: ("waits for its writes of TMEM", "the wait"),
    Kind.COMMIT_GROUP: ("closes a group of stores", "the stores"),
    Kind.WAIT_STORE: ("waits for stores", "the wait"),
    Kind.ARRIVE: ("arrives at a barrier", "the arrival"),
    Kind.WAIT: ("waits for a barrier", "the wait"),
    Kind.TEST: ("tests a barrier", "the test"),
    Kind.FENCE: ("commits SMEM", "the commit_smem"),
    Kind.REGISTERS: ("asks for registers", "the request"),
    Kind.MEET: ("lets lanes or threads meet", "the meeting"),
    Kind.SIGNAL: ("signals a semaphore", "the signal"),
    Kind.AWAIT: ("waits for a semaphore", "the wait"),
    Kind.GRID_WAIT: ("waits for the kernel before", "the wait"),
    Kind.GRID_SIGNAL: ("lets the next kernel start", "the signal"),
}
#: All other kinds, which put no threads in order if no other thread has part in the op.
FOLLOWED = frozenset(Kind) - {*ORDERS}


def follow(
    codes: Sequence[Code], thread: Thread, values: list[Value], line: str | None
) -> list[Value]:
    """The results of a branch, whichever of these is taken.

    Raises:
      ValueError: a branch does what may not depend on data.
    """
    refs = [value for value in values if type(value) is Ref]
    before = [ref.value for ref in refs]
    ends: list[list[Value]] = []
    outer, branch = thread.ways, thread.branches
    thread.branches += 1
    for way, code in enumerate(codes):
        for ref, held in zip(refs, before):
            ref.value = held
        thread.ways = *outer, (branch, way)
        results = _one(code, thread, values, line)
        ends.append([*results, *(ref.value for ref in refs)])
    thread.ways = outer
    merged = [_merged(each) for each in zip(*ends, strict=True)]
    first_held = len(merged) - len(refs)
    for ref, held in zip(refs, merged[first_held:]):
        ref.value = held
    return merged[:first_held]


def _one(code: Code, thread: Thread, values: list[Value], line: str | None) -> list[Value]:
    """The results of one branch; ValueError if it does what may not depend on data."""
    first, calls = len(thread.ops), len(thread.kernels)
    try:
        results = code.run(thread, values)
    except Ended:  # the program ends here, and has the branch's ops all the same
        _expect_followed(thread, first, line)
        raise
    _expect_followed(thread, first, line)
    works = list(filter(_is_on_products, thread.ops[first:]))
    if works and (left := _in_flight(thread.ops, len(thread.ops))):
        does = f"leaves {count(left, 'product')} in flight"
        raise _refused(line, does, works[-1], _PRODUCTS, "wait for them in the branch")
    for call in thread.kernels[calls:]:
        does = f"calls the kernel {call.eqn.params['name']!r}"
        raise _refused(line, does, None, "whether it runs", "call it before or after the branch")
    return results


def _expect_followed(thread: Thread, first: int, line: str | None) -> None:
    """Refuses a branch, whose ops are the thread's from `first` on, if one of them may not be."""
    ops = thread.ops[first:]
    for op in ops:
        if op.kind in ORDERS or op.shared:
            does, it = ORDERS.get(op.kind, ("begins a scope of all threads", "the scope"))
            remedy = f"put {it} before or after the branch"
            raise _refused(line, does, op, "threads' order", remedy)
        _expect_lanes_apart(thread, op, line)
    _expect_own_writes(thread, ops, line)
    works = list(filter(_is_on_products, ops))
    if works and (older := _in_flight(thread.ops, first)):
        does = "starts a product" if works[0].kind is Kind.WGMMA else "waits for products"
        does += f" with {count(older, 'older product')} in flight"
        raise _refused(line, does, works[0], _PRODUCTS, "wait for these before the branch")


def _expect_lanes_apart(thread: Thread, op: Op, line: str | None) -> None:
    """Refuses an op at which lanes meet, as `check` takes it, if nothing else orders lanes."""
    meets = op.kind is Kind.OPAQUE or op.scratch is not None
    if meets and not thread.home.auto_barriers:
        remedy = "move this out of the branch, or compile with automatic barriers"
        raise _refused(line, "lets the lanes of a thread meet", op, "lanes' order", remedy)


def _expect_own_writes(thread: Thread, ops: Sequence[Op], line: str | None) -> None:
    """Refuses a write of memory that these ops, of one branch, did not allocate."""
    scopes = {op.scope_id for op in ops if op.kind is Kind.SCOPE_BEGIN}
    begun = {region.buffer for op in ops if op.kind is Kind.ACC_INIT for region in op.writes}
    written = [(op, region) for op in ops for region in op.writes]
    for by, region in written:
        buffer = thread.home.buffers[region.buffer]
        if buffer.scope_id in scopes or buffer.id in begun:
            continue
        does, remedy = f"writes {buffer.name!r}", "return the value, and write it after the branch"
        if by.kind is Kind.OPAQUE:
            does = f"gives {buffer.name!r} to device code, which may write it"
            remedy = "run that code before or after the branch"
        raise _refused(line, does, by, "what the memory holds", remedy)


_PRODUCTS = "which products are over after it"


def _is_on_products(op: Op) -> bool:
    """Whether an op starts a product or waits for products."""
    waits = op.kind is Kind.WGMMA_WAIT or op.kind is Kind.ACC_READ
    return op.kind is Kind.WGMMA or (waits and op.pending is not None)


def _in_flight(ops: Sequence[Op], end: int) -> int:
    """How many products may be in flight after the first `end` ops of a thread.

    A wait leaves `pending` products, and each product since adds one. Of all waits the least such
    sum counts, so the latest waits decide.
    """
    started, least = 0, math.inf
    for index in range(end - 1, -1, -1):
        op = ops[index]
        if not _is_on_products(op):
            continue
        if op.kind is Kind.WGMMA:
            started += 1
        else:
            least = min(least, started + (op.pending or 0))
        if started >= least:
            break
    return int(min(started, least))


def _merged(values: Sequence[Value]) -> Value:
    """The result of all branches if their results are equal; else OPAQUE."""
    first, *others = values
    is_same = (
        first is other or (type(first) in (bool, int, float) and repr(first) == repr(other))
        for other in others
    )
    return first if all(is_same) else OPAQUE


def _refused(line: str | None, does: str, op: Op | None, so: str, remedy: str) -> ValueError:
    """The error for branches of which one does what may not depend on data."""
    at = f" ({op.line or UNKNOWN})" if op else ""
    return ValueError(
        f"{line or UNKNOWN}: The branch that is taken depends on what a tensor holds or a barrier"
        f" answers, and one of its branches {does}{at}, so {so} would depend on data: {remedy}, or"
        f" let the branch depend on {KNOWN}."
    )
