"""The record of `decode_attention`: its times beside cuDNN's, and its rate beside a copy's."""

import pathlib
import statistics
from typing import Any

from pipelib_book.measured import results

OURS, CUDNN, COPY = "decode_attention", "cuDNN (XLA)", "copy"
#: Pages of the column that is shown beside sequences that lie in one piece.
PAGE = 64


def table(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """A row for each batch and number of queries: microseconds, and rates beside others'."""
    groups = [
        group
        for record in results.read(f"{results.GPU}/decode.json", folders)
        for group in record["groups"]
    ]
    if not groups:
        return results.missing("part `decode`", "The record of decoding")
    of = {(p["batch"], p["q_seq"], p["page"]): g for g in groups if (p := g["problem"])}
    head = [
        "sequences",
        "queries of each",
        "µs",
        f"in pages of {PAGE}",
        "TB/s",
        "over a copy's",
        "over cuDNN's",
    ]
    rows = [
        _row(group, of.get((batch, q_seq, PAGE)))
        for (batch, q_seq, page), group in of.items()
        if page is None
    ]
    return results.table(head, rows, words=())


def _row(group: dict[str, Any], paged: dict[str, Any] | None) -> list[str]:
    """The cells of a problem without pages, and the time of the same in pages."""
    problem, ours = group["problem"], _microseconds(group, OURS)
    item = 2  # bytes of both dtypes
    size = problem["keys"] * problem["kv_heads"] * problem["head_dim"] * item
    cells = [
        str(problem["batch"]),
        str(problem["q_seq"]),
        f"{ours:,.0f}" if ours else "-",
        f"{us:,.0f}" if paged and (us := _microseconds(paged, OURS)) else "-",
        f"{2 * problem['batch'] * size / ours / 1e6:.2f}" if ours else "-",
    ]
    for other in (COPY, CUDNN):
        theirs = _microseconds(group, other)
        cells.append(f"{theirs / ours:.2f}x" if ours and theirs else "-")
    return cells


def _microseconds(group: dict[str, Any], name: str) -> float | None:
    """The median of a contender's bursts; None if it has none."""
    samples = group["contenders"].get(name, {}).get("burst_microseconds")
    return statistics.median(samples) if samples else None
