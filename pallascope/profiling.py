"""`write_profile` runs a kernel under JAX's in-kernel profiler; `read_profile` draws what it saw.

What it saw is a measured `Timeline`.

The format is a Chrome trace, as JAX's profiler writes it (`plgpu.CompilerParams(profile_space=,
profile_dir=)`). One B and one E event for each `jax.named_scope`; `pid` is one more than the
multiprocessor's number, `tid` numbers the Pallas threads of all blocks from 1. `ts` claims to be
microseconds and is not: a thread's first event has the GPU's timer in it, in nanoseconds over 1000,
and each further event adds to that the multiprocessor's *cycles* since the first, also over 1000.

So within a lane times are exact cycles (less what the profiler takes its own events to cost), but
lanes are only as well aligned as the timer ticks: their first events, of the scope `Init` that JAX
puts around a kernel's start, are taken to be when the timer said.

Not covered: the SM's clock, which the file does not have; a wait looks like any other scope, unless
its name begins with "wait": such a scope is a span of kind "wait". Which block of the grid a thread
belongs to is taken from `tid`, so threads without events must not be in between.
Source: `jax.experimental.mosaic.gpu.profiler` of JAX 0.11.2 and 0.12.0.1.
"""

import json
import pathlib
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import jax

from pallascope.lanes import thread_names
from pallascope.program import Program
from pallascope.spans import Span, SpanKind
from pallascope.timeline import Source, Timeline


def write_profile(
    make: Callable[..., Callable[..., object]],
    *args: object,
    profile_space: int,
    profile_dir: str | pathlib.Path,
) -> pathlib.Path:
    """Runs a kernel twice on this GPU, and returns the profiler's file of the second run.

    The second run finds its code and its data in caches. JAX overwrites no file, so the file of the
    first run is deleted before.

    Args:
      make: makes the kernel. It must hand its keyword arguments on to `plgpu.CompilerParams`.
      args: the kernel's arrays.
      profile_space: how many scopes a thread can note in one run.
      profile_dir: a folder that exists; files in it are deleted.

    Raises:
      RuntimeError: the kernel wrote no file, because `make` did not hand on its arguments.
    """
    folder = pathlib.Path(profile_dir)
    kernel = jax.jit(make(profile_space=profile_space, profile_dir=str(folder)))
    for _ in range(2):
        for before in folder.iterdir():
            before.unlink()
        jax.block_until_ready(kernel(*args))  # pyright: ignore[reportUnknownArgumentType]
        jax.effects_barrier()  # pyright: ignore[reportUnknownMemberType]
    for path in folder.iterdir():
        return path
    raise RuntimeError(
        f"The kernel wrote no profile into {folder.name}: {profile_space=} and profile_dir must"
        " reach its plgpu.CompilerParams."
    )


def read_profile(
    path: str | pathlib.Path,
    *,
    clock_hz: float,
    threads: int = 1,
    block: int | None = None,
    name: str = "",
    machine: str = "",
    program: Program | None = None,
) -> Timeline:
    """What the in-kernel profiler saw, with one lane for each Pallas thread.

    Args:
      path: the JSON file, one of those in the kernel's `profile_dir`.
      clock_hz: the SM's clock while the kernel ran, to align the threads.
      threads: Pallas threads of a block.
      block: only this one, by its number in the grid; by default all that are in the file.
      name: the kernel's, by default the file's.
      machine: what it ran on.
      program: the kernel's, which says what its threads do: lanes are then called by their roles,
        as in a simulated timeline. By default they have their numbers.

    Returns:
      A timeline in cycles, source "measured". The spans of a name in a thread are its steps in
      order: `step` is (0,), (1,), ...

    Raises:
      ValueError: the file is no such trace, an end has no beginning, a block is not in it, or the
        program has another number of threads.
    """
    path = pathlib.Path(path)
    events = _events(path)
    by_tid: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        by_tid[event["tid"]].append(event)
    numbers = sorted(by_tid)
    if block is not None:
        numbers = [tid for tid in numbers if (tid - 1) // threads == block]
        if not numbers:
            found = sorted({(tid - 1) // threads for tid in by_tid})
            raise ValueError(f"{path.name} has no event of {block=}, only of the blocks {found}.")
    first = min((by_tid[tid][0]["ts"] for tid in numbers), default=0.0)
    called = [f"thread {thread}" for thread in range(threads)]
    if program is not None:
        if program.per_block != threads:
            raise ValueError(
                f"{program.name} has {program.per_block} threads in a block, but {threads=}: the"
                " lanes would have other threads' names. Pass the program of the kernel that was"
                " profiled."
            )
        called = [*thread_names(program)[:threads]]
    spans: list[Span] = []
    lanes: list[str] = []
    for lane, tid in enumerate(numbers):
        origin = by_tid[tid][0]["ts"]
        offset = (origin - first) * 1e3 * clock_hz * 1e-9  # the timer's nanoseconds
        spans += _spans(path, lane, by_tid[tid], origin, offset)
        lanes.append(_lane(tid, called, len(numbers) > threads))
    cycles = max((span.stop for span in spans), default=0.0)
    notes = ("threads are aligned at their first event, by the GPU's timer",)
    return Timeline(
        name=name or path.stem,
        lanes=tuple(lanes),
        spans=tuple(spans),
        cycles=cycles,
        clock_hz=clock_hz,
        source=Source.MEASURED,
        machine=machine,
        notes=notes,
    )


def _events(path: pathlib.Path) -> list[dict[str, Any]]:
    try:
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
        return [dict(event, ts=float(event["ts"]), tid=int(event["tid"])) for event in events]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path.name} is not a Chrome trace of the in-kernel profiler: it needs 'traceEvents'"
            f" with 'ts' and 'tid' ({type(error).__name__}: {error})."
        ) from error


def _lane(tid: int, called: list[str], many: bool) -> str:
    """The lane of a thread, whose block has threads that are called so."""
    block, thread = divmod(tid - 1, len(called))
    return f"block {block} {called[thread]}" if many else called[thread]


def _spans(
    path: pathlib.Path, lane: int, events: list[dict[str, Any]], origin: float, offset: float
) -> list[Span]:
    """One thread's spans, outer ones before those within."""
    spans: list[Span | None] = []
    opened: list[tuple[int, str, float]] = []
    seen: Counter[str] = Counter()
    for event in events:
        cycle = offset + round((event["ts"] - origin) * 1e3)
        if event["ph"] == "B":
            opened.append((len(spans), event["name"], cycle))
            spans.append(None)
            continue
        if not opened or opened[-1][1] != event["name"]:
            raise ValueError(
                f"{path.name}: {event['name']!r} ends in thread {event['tid']} at {event['ts']} but"
                " is not the scope that began last, so events were lost: enlarge profile_space."
            )
        place, text, start = opened.pop()
        scope = "/".join([*(outer for _, outer, _ in opened), text])
        kind = SpanKind.WAIT if text.startswith("wait") else SpanKind.SCOPE
        step = (seen[scope],)
        seen[scope] += 1
        spans[place] = Span(lane, start, cycle, kind, text, step=step, scope=scope)
    return [span for span in spans if span is not None]
