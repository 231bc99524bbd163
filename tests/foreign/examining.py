"""What JAX and pipelib say of one launch: lowered for its GPU? traced? found?

A row has `lowered`, None or JAX's refusal. For a kernel that JAX lowers, and that uses nothing
which its GPU lacks (`beyond`), it has `first` and, where the grid has several blocks, `last`:
`refused` or `findings`, those of the plain check and, under `strict`, those that the strict one
adds; and the seconds.
"""

import contextlib
import hashlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

import pallascope
import pipelib
from pallascope import Finding
from pallascope.launches import Called

# What a trace or a check may take. The largest kernels of JAX's tests take longer on a slow core.
SECONDS = int(os.environ.get("FOREIGN_CHECK_SECONDS", "30"))
_BLACKWELL = re.compile(r"tcgen05|tmem|cluster_cancel")
_OTHERS = re.compile(r"semaphore|multimem|get_global")


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises a TimeoutError after so long."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def digest(launch: Called) -> str:
    """What tells a configuration from others: the kernel, its operands' types and integers."""
    values = (None if value is None else value.tobytes() for value in launch.values)
    return hashlib.sha256(repr((launch.kernel, *values)).encode()).hexdigest()[:16]


def examine(launch: Called, compute_capability: str) -> dict[str, Any]:
    """One row of results, for a GPU of this compute capability."""
    with pipelib.target(compute_capability):
        return _examined(launch, is_blackwell=compute_capability == "10.0")


def _examined(launch: Called, *, is_blackwell: bool) -> dict[str, Any]:
    (jaxpr,) = launch.params["jaxprs"]
    used = primitives(jaxpr)
    name, path, line = _place(jaxpr)
    lower = lambda: jax.jit(launch.call).trace(*launch.args).lower(lowering_platforms=("cuda",))
    row: dict[str, Any] = {
        "kernel": name,
        "file": path,
        "line": line,
        "operands": [str(aval) for aval in launch.avals],
        "beyond": [] if is_blackwell else sorted(filter(_BLACKWELL.search, used)),
        "others": sorted(filter(_OTHERS.search, used)),
        "lowered": _attempt(lower)[1],
    }
    if row["lowered"] is None and not row["beyond"]:
        row["first"], grid = _judged(launch, None)
        last = tuple(size - 1 for size in grid)
        if any(last):
            row["last"], _ = _judged(launch, last)
    return row


def _judged(
    launch: Called, block: tuple[int, ...] | None
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """What is said of one block, and the grid; the grid is empty if the kernel is refused."""
    program, refusal, trace_s = _attempt(
        lambda: pallascope.trace(launch.call, *launch.args, block=block)
    )
    if program is None:
        return {"refused": refusal, "trace_s": trace_s}, ()
    plain, error, check_s = _attempt(lambda: pallascope.check(program))
    strict, _, strict_s = _attempt(lambda: pallascope.check(program, strict=True))
    row: dict[str, Any] = {"trace_s": trace_s, "check_s": check_s, "strict_s": strict_s}
    row["ops"] = sum(map(len, program.threads))
    if plain is None:
        return row | {"unchecked": error}, program.grid
    row["findings"] = list(map(_finding, plain))
    added = [] if strict is None else [finding for finding in strict if finding not in {*plain}]
    row["strict"] = list(map(_finding, added))
    return row, program.grid


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": str(finding.kind),
        "where": finding.where,
        "cause": finding.cause,
        "count": finding.count,
        "lines": [op.line for op in finding.ops],
    }


def _place(jaxpr: Any) -> tuple[str, str, int]:
    """The name of the kernel's function, its file and line."""
    inner = [eqn.params["jaxpr"] for eqn in jaxpr.eqns[:1] if eqn.primitive.name == "run_scoped"]
    said = [*inner, jaxpr][0].debug_info.func_src_info or ""
    match = re.fullmatch(r"(\S+) at (.*):(\d+)", said)
    return (match[1], match[2], int(match[3])) if match else (said, "", 0)


def primitives(jaxpr: Any) -> set[str]:
    """The names of all primitives within."""
    found: set[str] = set()
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        found.add(eqn.primitive.name)
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                found |= primitives(inner)
    return found


def _is_jaxpr(value: Any) -> bool:
    return hasattr(value, "eqns")


def _attempt(function: Callable[[], Any]) -> tuple[Any, str | None, float]:
    """A function's result, or what it raised, and the seconds."""
    start, result, error = time.perf_counter(), None, None
    try:
        with limited(SECONDS):
            result = function()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return result, error, round(time.perf_counter() - start, 3)
