"""What the threads of one block do: `Program`, a pure value, and its parts.

The model. A Pallas thread, traced, is straight-line code: a tuple of `Op`s in program order. An op
names memory by `Region`s (a buffer's id and an interval for each of its dimensions) and a barrier
by its id and the flat index in its array. Times, values of tensors and the order between threads
are not in it. This module knows nothing of JAX; a program can be built by hand.

==================  ================================================================================
kind                what it is; what `n` counts
==================  ================================================================================
load, store         asynchronous copies GMEM to SMEM (arrives once on its barrier) and back (note
                    "reduces by ...": adds to what is there)
prefetch            a copy into the L2 cache
commit_group        closes the group of this thread's stores so far
wait_store          returns once at most `n` groups are unfinished (note "read_only": unread)
arrive, wait, test  on a barrier
read, write         ordinary accesses of GMEM and SMEM (note "atomic ...": both at once); wavefronts
                    of up to 128 bytes that banks of SMEM give or take one after another (None: not
                    known)
compute             arithmetic in registers: `flops` operations, of which `n` are transcendental,
                    then `exchanges` of words of 32 bits between lanes
wgmma, wgmma_wait   an asynchronous product; returns once at most `n` are unfinished
acc_init, acc_read  an accumulator's first value; its value, once at most `n` products are
                    unfinished
acc_write           a new value of an accumulator
fence               `commit_smem`: what was written is there for asynchronous readers
registers           the thread's registers from here on: `n`
scope_begin/_end    memory with the scope number `n` begins or ceases to exist (note "shared": for
                    all threads of the block, which meet where it begins)
opaque              code that only the device understands; its regions are whole buffers
==================  ================================================================================

`phase` is a count, not a parity. Of a wait or a test: how many phases of this barrier the thread
has waited for before. Of an arrival (`arrive`, `load`): how many arrivals the thread itself has
made there before. Not covered: how the arrivals of several threads add up to phases, which is the
reader's to find out.

A cluster. The blocks of one cluster are one program: `threads` has those of its first block, then
those of the next. Each block has SMEM and barriers of its own (`block` says whose); GMEM is all's.
An arrival on a barrier with `peers` arrives on each of these (its own is among them), and its
`arrivals` count those of all. A load with `peers` is a multicast: it writes the regions `writes`,
its part in each peer's SMEM, and its bytes count on the barrier of each; its own barrier's phase
is complete when it has arrived and the corresponding loads of all peers have landed there too.
Source: this project's own.
"""

import json
import pathlib
from collections import Counter
from typing import Any, NamedTuple

FORMAT = 3


class Region(NamedTuple):
    """A box in a buffer: (start, stop) for each dimension, in elements of its logical shape.

    It may reach beyond the buffer, as the op says it: `check` tells what is left out there, and
    what is a fault. What is no box (every other row, columns of a reshaped ref) is several regions
    of an ordinary access, or else one around it, which is then not exact.
    """

    buffer: int
    box: tuple[tuple[int, int], ...]
    is_exact: bool = True


class Buffer(NamedTuple):
    """An allocation; `thread` and `scope` are None if it is of all threads, of the whole kernel.

    `block` is that of the cluster whose memory it is, None for GMEM. Memory is numbered `slots` of
    equal size along its first dimension if that is only ever taken one at a time. `role` says of
    GMEM whether the kernel was given it initialised ("in"), is to fill it ("out"), both ("in/out")
    or only has it while it runs ("scratch"); of other memory it is empty.
    """

    id: int
    name: str
    space: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    slots: int | None = None
    thread: int | None = None
    scope: int | None = None
    block: int | None = None
    role: str = ""


class Barrier(NamedTuple):
    """An array of `count` barriers, each of whose phases takes `arrivals` arrivals.

    `cluster` names the axes along which an arrival is spread, `peers` the barriers that get it.
    """

    id: int
    name: str
    arrivals: int
    count: int
    cluster: tuple[str, ...] = ()
    thread: int | None = None
    scope: int | None = None
    block: int | None = None
    peers: tuple[int, ...] = ()


class Op(NamedTuple):
    """One operation of a thread; what does not apply to its kind is None, 0 or empty.

    `step` has the counters of the loops around it, innermost first; `line` is "file:line" of the
    innermost frame that is neither JAX's nor an emitter's; `scope` the names of the named scopes.

    Example:
      >>> x = jax.ShapeDtypeStruct((2, 128), jnp.float32)
      >>> program = pipelib.trace(softmax, x)
      >>> load = next(op for op in program.threads[0] if op.kind == "load")
      >>> load.bytes, load.step, program.barriers[load.barrier].name
      (1024, (0,), 'produced.0')
    """

    kind: str
    thread: int
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    barrier: int | None = None
    index: int | None = None
    phase: int | None = None
    step: tuple[int, ...] = ()
    line: str | None = None
    scope: str = ""
    bytes: int = 0
    flops: int = 0
    n: int | None = None
    note: str = ""
    peers: tuple[int, ...] = ()
    exchanges: int = 0


class Program(NamedTuple):
    """All that one block, or one cluster of blocks, does.

    `threads` has the ops of each Pallas thread of each of the `blocks`. `smem_bytes` is the most
    that a block allocates at once; `registers` what each thread asked for last, if it did.
    `truncated` has the threads whose ops end in the middle of a loop.

    Example:
      >>> x = jax.ShapeDtypeStruct((2, 128), jnp.float32)
      >>> program = pipelib.trace(softmax, x)
      >>> [(buffer.name, buffer.shape) for buffer in program.buffers]
      [('in0', (2, 1, 128)), ('out0', (2, 1, 128)), ('smem.0', (1, 2, 1, 128))]
      >>> Program.from_json(program.to_json()) == program
      True
    """

    name: str
    threads: tuple[tuple[Op, ...], ...]
    buffers: tuple[Buffer, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    grid: tuple[int, ...] = ()
    cluster: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    smem_bytes: int = 0
    registers: tuple[int | None, ...] = ()
    truncated: tuple[int, ...] = ()
    blocks: int = 1

    def __str__(self) -> str:
        cut = ", TRUNCATED: the threads' ends are missing" if self.truncated else ""
        lines = [
            f"{self.name}: block {self.block} of grid {self.grid}"
            + (f" x cluster {self.cluster}" if self.cluster else "")
            + f", {len(self.threads)} threads, {sum(map(len, self.threads))} ops,"
            f" {self.smem_bytes} bytes of SMEM{cut}"
        ]
        for thread, ops in enumerate(self.threads):
            counts = ", ".join(f"{n} {kind}" for kind, n in Counter(op.kind for op in ops).items())
            lines += [f"thread {thread}: {counts or 'nothing'}"]
            lines += [f"  {self.describe(op)}" for op in ops]
        return "\n".join(lines)

    def describe(self, op: Op) -> str:
        """An op of this program on one line, with names for numbers."""
        words = [op.kind]
        if op.n is not None and op.kind not in ("read", "write"):
            words.append(str(op.n))
        for verb, regions in (("reads", op.reads), ("writes", op.writes)):
            if regions:
                more = f" and {len(regions) - 2} more" if len(regions) > 4 else ""
                shown = regions[:2] if more else regions
                words += [verb, ", ".join(map(self.index_of, shown)) + more]
        if op.barrier is not None:
            words.append(f"on {self.barriers[op.barrier].name}[{op.index}] #{op.phase}")
        words += [f"({op.note})"] if op.note else []
        words += [step_name(op.step)] if op.step else []
        words += [f"in {op.scope}"] if op.scope else []
        return " ".join(words) + (f"  [{op.line}]" if op.line else "")

    def index_of(self, region: Region) -> str:
        """A region of this program as an index of its buffer."""
        box = ", ".join(f"{a}:{b}" if b - a != 1 else f"{a}" for a, b in region.box)
        return f"{self.buffers[region.buffer].name}[{box}]"

    def to_json(self) -> str:
        """The program as JSON text, an op as a list of its fields in order."""
        return json.dumps(dict(self._asdict(), format=FORMAT))

    @classmethod
    def from_json(cls, text: str) -> "Program":
        """The program that `to_json` wrote; ValueError if it was another version's, or no one's."""
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"This text is no JSON ({error}), so there is no Program in it: give what to_json"
                " returned or save wrote."
            ) from error
        found = fields.pop("format", None) if isinstance(fields, dict) else None
        if found != FORMAT:
            raise ValueError(
                f"This JSON has format {found}, but a Program is read from format {FORMAT}: trace"
                " the kernel again and save that."
            )
        try:
            return cls(**_parts(fields))
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"This JSON has format {FORMAT}, but not the fields of a Program ({error!r}), so it"
                " was changed since: trace the kernel again and save that."
            ) from error

    def save(self, path: str | pathlib.Path) -> None:
        """Writes `to_json` to a file."""
        pathlib.Path(path).write_text(self.to_json(), "utf-8")

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "Program":
        """Reads what `save` wrote."""
        return cls.from_json(pathlib.Path(path).read_text("utf-8"))


def step_name(step: tuple[int, ...]) -> str:
    """What a step is called: `step 2, 0` is the inner loop's 0 in the outer one's 2."""
    return f"step {', '.join(map(str, reversed(step)))}"


def _parts(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a program from those of its JSON."""
    fields = {name: _tuples(value) for name, value in fields.items()}
    return fields | {
        "threads": tuple(tuple(map(_op, ops)) for ops in fields["threads"]),
        "buffers": tuple(Buffer(*buffer) for buffer in fields["buffers"]),
        "barriers": tuple(Barrier(*barrier) for barrier in fields["barriers"]),
    }


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _op(fields: tuple) -> Op:
    op = Op(*fields)
    regions = lambda found: tuple(Region(*region) for region in found)
    return op._replace(reads=regions(op.reads), writes=regions(op.writes))
