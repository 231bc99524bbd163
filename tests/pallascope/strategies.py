"""Programs made by hand, without JAX: a writer of small programs, and hypothesis strategies.

The model. `Writer` has a method for each kind of op; `program()` gives what was written, with the
phases counted as `program.py` says. `ring` writes the schedules of pipelib's emitters: a ring of
slots that a memory thread, or the only thread, fills, and 1 or 2 compute threads that read them
ordinarily or multiply them, with or without an output ring that they store. The strategies draw a
ring and spoil one synchronisation of it at most, or place accesses, barriers and waits anywhere.
All is so small that the explorer ends within a second.
"""

from dataclasses import replace

from hypothesis import strategies as st

from pallascope.editing import counted
from pallascope.program import Barrier, Buffer, Op, Program, Region, Warp
from tests.pallascope import build

ROWS = 2
SYNCHRONISATION = (
    "wait", "arrive", "fence", "commit_group", "wait_store", "wgmma_wait", "load", "store",
)  # fmt: skip


class Writer:
    """Writes ops of threads; a region is (buffer, first row, rows), the whole buffer by default.

    Each op has a line of its own, unless it is given one.
    """

    def __init__(self, threads: int, name: str = "k"):
        self.name, self.threads = name, [[] for _ in range(threads)]
        self.buffers: list[Buffer] = []
        self.barriers: list[Barrier] = []

    def buffer(self, name: str, space: str = "smem", rows: int = ROWS, **options) -> int:
        number = len(self.buffers)
        self.buffers.append(Buffer(number, name, space, (rows,), "float32", 4 * rows, **options))
        return number

    def accumulator(self, thread: int = 0) -> int:
        """Zeros of a scope of the thread's own."""
        return self.buffer(f"acc{thread}", "acc", 1, thread=thread, scope_id=thread)

    def barrier(self, arrivals: int = 1, count: int = 1, **options) -> int:
        number = len(self.barriers)
        self.barriers.append(Barrier(number, f"b{number}", arrivals, count, **options))
        return number

    def region(self, where) -> Region:
        buffer, start, rows = where if isinstance(where, tuple) else (where, 0, None)
        rows = self.buffers[buffer].shape[0] - start if rows is None else rows
        return Region(buffer, ((start, start + rows),))

    def op(self, kind: str, thread: int = 0, reads=(), writes=(), **fields) -> "Writer":
        reads, writes = (tuple(map(self.region, found)) for found in (reads, writes))
        fields.setdefault("line", f"k.py:{1 + sum(map(len, self.threads))}")
        self.threads[thread].append(Op(kind, thread, reads, writes, **fields))
        return self

    def load(self, source, target, barrier, index=0, thread=0, **fields) -> "Writer":
        return self.op("load", thread, [source], [target], barrier=barrier, index=index, **fields)

    def store(self, source, target, thread=0, commit=True, **fields) -> "Writer":
        self.op("store", thread, [source], [target], **fields)
        return self.op("commit_group", thread, **fields) if commit else self

    def wait(self, barrier, index=0, thread=0, **fields) -> "Writer":
        return self.op("wait", thread, barrier=barrier, index=index, **fields)

    def arrive(self, barrier, index=0, thread=0, **fields) -> "Writer":
        return self.op("arrive", thread, barrier=barrier, index=index, **fields)

    def read(self, source, thread=0, **fields) -> "Writer":
        return self.op("read", thread, [source], **fields)

    def write(self, target, thread=0, **fields) -> "Writer":
        return self.op("write", thread, (), [target], **fields)

    def atomic(self, target, thread=0, **fields) -> "Writer":
        return self.op("write", thread, [target], [target], combines="add", **fields)

    def fence(self, thread=0) -> "Writer":
        return self.op("fence", thread)

    def wait_store(self, n=0, thread=0, read_only=False) -> "Writer":
        return self.op("wait_store", thread, pending=n, read_only=read_only)

    def wgmma(self, acc, *operands, thread=0) -> "Writer":
        return self.op("wgmma", thread, [*operands, acc], [acc])

    def wgmma_wait(self, n=0, thread=0) -> "Writer":
        return self.op("wgmma_wait", thread, pending=n)

    def acc_read(self, acc, n=0, thread=0) -> "Writer":
        return self.op("acc_read", thread, [acc], pending=n)

    def program(self) -> Program:
        memory = dict(buffers=tuple(self.buffers), barriers=tuple(self.barriers))
        return build.program(*self.threads, name=self.name, **memory)


def ring(
    slots: int,
    steps: int,
    compute: int = 1,
    specialized: bool = True,
    delay: int = 0,
    products: bool = False,
    stores: bool = False,
    arrivals: int | None = None,
) -> Program:
    """A pipeline over one input, as pipelib's emitters schedule it.

    Args:
      slots, steps, delay: of the input's ring; `delay` is less than `slots`.
      compute, specialized: the compute threads of the specialised kind. The plain kind has one
        thread, which loads too.
      products: the input is multiplied, with `delay` products unfinished; else read ordinarily.
      stores: each compute thread writes its rows of an output ring of two slots, and stores them.
      arrivals: what a consumed barrier takes, if not one for each compute thread.
    """
    compute = compute if specialized else 1
    writer = Writer(compute + specialized, "ring")
    x = writer.buffer("in0", "gmem", steps, role="in")
    out = writer.buffer("out0", "gmem", steps * compute, role="out")
    smem = writer.buffer("x_smem", rows=slots)
    produced = writer.barrier(1, slots)
    consumed = writer.barrier(arrivals or compute, slots) if specialized else None
    memory = compute if specialized else 0
    load = lambda k: writer.load((x, k, 1), (smem, k % slots, 1), produced, k % slots, memory)
    for k in range(steps if specialized else min(slots - delay, steps)):
        if k >= slots:
            writer.wait(consumed, k % slots, memory)
        load(k)
    for thread in range(compute):
        acc = writer.accumulator(thread) if products else None
        o_smem = writer.buffer(f"o_smem{thread}", rows=2) if stores else None
        for k in range(steps):
            writer.wait(produced, k % slots, thread)
            slot = smem, k % slots, 1
            if products:
                writer.wgmma(acc, slot, thread=thread).wgmma_wait(delay, thread)
            else:
                writer.read(slot, thread)
            if stores:
                o_slot = o_smem, k % 2, 1
                if k >= 2:
                    writer.wait_store(1, thread, read_only=True)
                writer.write(o_slot, thread).fence(thread)
                writer.store(o_slot, (out, k * compute + thread, 1), thread)
            elif not products:
                writer.fence(thread)
            if specialized and k >= delay:
                writer.arrive(consumed, (k - delay) % slots, thread)
            if not specialized and slots - delay <= k + slots - delay < steps:
                load(k + slots - delay)
        if products:
            writer.acc_read(acc, 0, thread)
        if stores:
            writer.wait_store(0, thread)
    return writer.program()


@st.composite
def rings(draw) -> Program:
    """A ring, right or with a wrong count of arrivals, small enough to explore."""
    specialized = draw(st.booleans())
    compute = draw(st.integers(1, 2)) if specialized else 1
    slots = draw(st.integers(1, 3))
    steps = draw(st.integers(1, 5 if compute == 1 else 3))
    right = st.none() | st.none() | st.integers(1, 3)
    return ring(
        slots,
        steps,
        compute,
        specialized,
        draw(st.integers(0, min(1, slots - 1))),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(right) if specialized else None,
    )


@st.composite
def spoiled_rings(draw) -> Program:
    """A ring with one synchronising op removed, done twice or moved, or one count changed."""
    program = draw(rings())
    places = [
        (t, i)
        for t, ops in enumerate(program.threads)
        for i, op in enumerate(ops)
        if op.kind in SYNCHRONISATION
    ]
    thread, index = draw(st.sampled_from(places))
    ops = list(program.threads[thread])
    change = draw(st.sampled_from(["remove", "twice", "move", "count"]))
    op = ops.pop(index)
    if change == "twice":
        ops[index:index] = [op, replace(op)]
    elif change == "move":
        ops.insert(draw(st.integers(0, len(ops))), op)
    elif change == "count" and op.pending is not None:
        ops.insert(index, replace(op, pending=draw(st.integers(0, 2))))
    elif change == "count":
        ops.insert(index, op)
    return with_thread(program, thread, ops)


def where(program: Program, thread: int, kind: str) -> tuple[int, ...]:
    """The indices of a thread's ops of a kind."""
    return tuple(i for i, op in enumerate(program.threads[thread]) if op.kind == kind)


def with_thread(program: Program, thread: int, ops) -> Program:
    """The program with other ops of one thread."""
    threads = [*program.threads[:thread], tuple(ops), *program.threads[thread + 1 :]]
    return counted(replace(program, threads=tuple(threads)))


@st.composite
def small_programs(draw) -> Program:
    """Accesses anywhere, and barriers from any thread to any other, used a few times each."""
    threads = draw(st.integers(1, 3))
    writer = Writer(threads, "small")
    x, out = writer.buffer("in0", "gmem", role="in"), writer.buffer("out0", "gmem", role="out")
    smem = [writer.buffer("s0"), writer.buffer("s1")]
    accs = [writer.accumulator(thread) for thread in range(threads)]
    of = st.integers(0, threads - 1)
    halves = st.sampled_from([(0, 2), (0, 1), (1, 1)])
    place = lambda: (draw(st.sampled_from(smem)), *draw(halves))

    def load(barrier: int, thread: int) -> None:
        where = place()
        writer.load((x, *where[1:]), where, barrier, 0, thread)

    for _ in range(draw(st.integers(0, 4))):
        _link(draw, writer, draw(of), draw(of), load)
    for _ in range(draw(st.integers(1, 5))):
        thread = draw(of)
        kind = draw(st.sampled_from(["read", "write", "atomic", "fence", "store", "wait_store",
                                     "wgmma", "wgmma_wait", "flush", "out"]))  # fmt: skip
        before = len(writer.threads[thread])
        if kind in ("read", "write"):
            getattr(writer, kind)(place(), thread)
        elif kind == "fence":
            writer.fence(thread)
        elif kind == "atomic":
            writer.atomic(place(), thread)
        elif kind == "store":
            where = place()
            writer.store(where, (out, *where[1:]), thread)
        elif kind == "wait_store":
            writer.wait_store(draw(st.integers(0, 1)), thread, draw(st.booleans()))
        elif kind == "wgmma":
            writer.wgmma(accs[thread], place(), thread=thread)
        elif kind == "wgmma_wait":
            writer.wgmma_wait(draw(st.integers(0, 1)), thread)
        elif kind == "flush":
            writer.write(smem[0], thread).fence(thread).store(smem[0], out, thread)
            writer.wait_store(0, thread)
        else:
            draw(st.sampled_from([writer.read, writer.write]))((out, *draw(halves)), thread)
        _scatter(draw, writer.threads[thread], before)
    _scopes(draw, writer, smem[1])
    return writer.program()


@st.composite
def sums(draw) -> Program:
    """Threads that add to one place, atomically or by stores, and access it ordinarily."""
    threads = draw(st.integers(2, 3))
    writer, of = Writer(threads, "sums"), st.integers(0, threads - 1)
    total = writer.buffer("total", "gmem", role="in/out")
    parts = [writer.buffer(f"s{thread}") for thread in range(threads)]
    for thread, part in enumerate(parts):
        writer.write(part, thread).fence(thread)
    for _ in range(draw(st.integers(2, 5))):
        thread, where = draw(of), (total, *draw(st.sampled_from([(0, 2), (0, 1)])))
        kind = draw(st.sampled_from(["atomic", "atomic", "add", "add", "read", "write"]))
        if kind == "add":
            writer.store(parts[thread], total, thread, combines="add")
            if draw(st.booleans()):
                writer.wait_store(0, thread)
        else:
            getattr(writer, kind)(where, thread)
    for thread, part in enumerate(parts):
        writer.wait_store(0, thread).read(part, thread)
    for _ in range(draw(st.integers(0, 2))):
        _link(draw, writer, draw(of), draw(of))
    return writer.program()


@st.composite
def warped(draw) -> Program:
    """One or two threads, two warps of the first apart from each other once or twice.

    Warps load and store, threads read and write; barriers and waits for stores are anywhere.
    """
    threads, warps = draw(st.integers(1, 2)), 2
    all_threads = range(threads + warps)
    mine = (0, *all_threads[threads:])
    writer = Writer(threads + warps, "warped")
    x, out = writer.buffer("in0", "gmem", role="in"), writer.buffer("out0", "gmem", role="out")
    smem = [writer.buffer("s0"), writer.buffer("s1")]
    halves = st.sampled_from([(0, 2), (0, 1), (1, 1)])
    place = lambda: (draw(st.sampled_from(smem)), *draw(halves))

    def load(barrier: int, thread: int) -> None:
        where = place()
        writer.load((x, *where[1:]), where, barrier, 0, thread)

    of = st.sampled_from(all_threads)
    for _ in range(draw(st.integers(0, 3))):
        _link(draw, writer, draw(of), draw(of), load)
    for _ in range(draw(st.integers(1, 5))):
        thread = draw(of)
        kind = draw(st.sampled_from(["read", "write", "fence", "store", "commit", "wait_store"]))
        before = len(writer.threads[thread])
        if kind == "store":
            where = place()
            writer.store(where, (out, *where[1:]), thread, commit=draw(st.booleans()))
        elif kind == "fence":
            writer.fence(thread)
        elif kind == "commit":
            writer.op("commit_group", thread)
        elif kind == "wait_store":
            writer.wait_store(draw(st.integers(0, 1)), thread, draw(st.booleans()))
        else:
            getattr(writer, kind)(place(), thread)
        _scatter(draw, writer.threads[thread], before)
    writer.wait_store(0)
    times = draw(st.integers(1, 2))
    for thread in mine:
        ops, writer.threads[thread] = writer.threads[thread], []
        cuts = sorted(draw(st.lists(st.integers(0, len(ops)), min_size=times, max_size=times)))
        if thread:  # a warp has ops within its parts only, and its thread only outside
            cuts[-1] = len(ops)
        for before, cut in zip([0, *cuts], cuts):
            mapped = ops[before:cut]
            writer.threads[thread] += () if thread else mapped
            writer.op("meet", thread, members=mine, line="begin")
            writer.threads[thread] += mapped if thread else ()
            writer.op("meet", thread, members=mine, line="end")
        writer.threads[thread] += ops[cuts[-1] :]
    apart = tuple(Warp(0, number) for number in range(warps))
    return replace(writer.program(), warps=apart)


@st.composite
def signalled(draw, mixed=False) -> Program:
    """Threads that let each other go on by semaphores, which hold more than one signal at times.

    Each semaphore has one waiter that takes off, or some that leave it as it is; or, if `mixed`,
    some of both.
    """
    threads = draw(st.integers(2, 4))
    writer = Writer(threads, "signalled")
    out, smem = writer.buffer("out0", "gmem", role="in/out"), writer.buffer("s0")
    of = st.integers(0, threads - 1)
    halves = st.sampled_from([(0, 2), (0, 1), (1, 1)])
    for _ in range(draw(st.integers(1, 2))):
        semaphore = writer.barrier(0, type="semaphore")
        keeps, waiter = draw(st.booleans()), draw(of)
        for _ in range(draw(st.integers(1, 4))):
            thread, before = (t := draw(of)), len(writer.threads[t])
            amount = draw(st.sampled_from([1, 1, 1, 2]))
            writer.op("signal", thread, barrier=semaphore, amount=amount)
            _scatter(draw, writer.threads[thread], before)
        for _ in range(draw(st.integers(1, 2))):
            keeps = draw(st.booleans()) if mixed else keeps
            thread = draw(of) if keeps or mixed else waiter
            before, amount = len(writer.threads[thread]), draw(st.integers(1, 3))
            writer.op("await", thread, barrier=semaphore, amount=amount, keeps=keeps)
            _scatter(draw, writer.threads[thread], before)
    for _ in range(draw(st.integers(2, 4))):
        thread = draw(of)
        before = len(writer.threads[thread])
        kind, where = draw(st.sampled_from(["read", "write", "store"])), draw(halves)
        if kind == "store":
            writer.store((smem, *where), (out, *where), thread).wait_store(0, thread)
        else:
            getattr(writer, kind)((draw(st.sampled_from([smem, out])), *where), thread)
        _scatter(draw, writer.threads[thread], before)
    return replace(writer.program(), grid=())


@st.composite
def early(draw) -> Program:
    """A program that may start before the kernel before it has ended, with waits for its end.

    Each thread may have one, at its begin or anywhere.
    """
    program = draw(rings() | small_programs())
    threads = []
    for thread, ops in enumerate(program.threads):
        wait = Op("grid_wait", thread, line=f"w.py:{thread}")
        at = draw(st.sampled_from([None, 0, 0, draw(st.integers(0, len(ops)))]))
        threads.append(ops if at is None else (*ops[:at], wait, *ops[at:]))
    return replace(program, threads=tuple(threads), starts_early=True)


def _scopes(draw, writer: Writer, buffer: int) -> None:
    """Perhaps all threads meet; perhaps a buffer is the first's, and its scope ends before all."""
    if draw(st.booleans()):
        for thread, ops in enumerate(writer.threads):
            before = len(ops)
            writer.op("scope_begin", thread, scope_id=10, shared=True)
            _scatter(draw, ops, before)
    if draw(st.booleans()):
        writer.buffers[buffer] = replace(writer.buffers[buffer], scope_id=11)
        writer.buffer("s2", scope_id=12)
        inside = {
            i
            for i, op in enumerate(writer.threads[0])
            if buffer in [region.buffer for region in op.reads + op.writes]
        }
        before = len(writer.threads[0])
        writer.op("scope_end", scope_id=11).op("scope_begin", scope_id=12)
        _scatter(draw, writer.threads[0], before, max(inside, default=0) + 1)


def _link(draw, writer: Writer, first: int, second: int, load=None) -> None:
    """A barrier by which one thread, or a load of its, lets another go on; perhaps a few times."""
    barrier = writer.barrier(draw(st.sampled_from([1, 1, 1, 2])))
    loads = load is not None and draw(st.booleans())
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        before = len(writer.threads[first])
        if loads:
            load(barrier, first)
        else:
            writer.arrive(barrier, 0, first)
        _scatter(draw, writer.threads[first], before)
        before = len(writer.threads[second])
        writer.wait(barrier, 0, second)
        _scatter(draw, writer.threads[second], before)


def _scatter(draw, ops: list, before: int, first: int = 0) -> None:
    """Moves the ops from `before` on to any place from `first` on that is not after."""
    new = ops[before:]
    del ops[before:]
    at = draw(st.integers(min(first, before), before))
    ops[at:at] = new
