"""The page of every measurement: each committed record, where it came from, and its tables.

The model. A record is a JSON file: one of `benchmarks/results`, the last run of the tests on a GPU,
what a chapter's notebook says of its own run, or what was worked out from a record for the package.
What a benchmark measures says the first line of its script's docstring; where a record is quoted,
the chapters' code (`QUOTES`). A run is what has one provenance, command and source digest; a record
may have several. Samples are the raw numbers that a run took. Every table is made by the code that
chapters and benchmarks print theirs with. Nothing here is a number typed by hand.

Not covered: whether a record is of the code as it now is, which tests say.
"""

import ast
import json
import pathlib
import re
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

import pipelib_book as book
from benchmarks import collective, decode, grouped, idle, modelled, probes
from benchmarks import machine as machine_benchmark
from benchmarks.attention_problems import Problem
from pallascope.machine import Machine
from pipelib.kernels.matmul.tuned import Entry
from pipelib_book.measured import (
    accounts,
    attention,
    bandwidth,
    frameworks,
    ladder,
    model,
    nvlink,
    outcomes,
    results,
    searches,
    tools_seen,
    written,
)
from pipelib_book.measured import (
    collective as of_devices,
)
from pipelib_book.measured import (
    decode as decoding,
)
from pipelib_book.measured import (
    grouped as of_groups,
)
from tools import notebooks
from tools.execution import ROOT
from tools.sections import Section, anchor, links, sections, titles

#: What the code of a chapter that quotes a record has, by the record's name.
QUOTES = {
    "attention.json": r"(?<!\.)\battention\.\w+\(",
    "matmul.json": r"\bladder\.",
    "tune.json": r"\bladder\.search",
    "hazards.*.json": r"show_hazard|hazard_table|\bOutcomes\.read\(\)|\bseen\.",
    "wild.*.json": r"show_fault|fault_table|suite=\"wild\"|\brecords\.jax",
    "written.*.json": r"\bwritten\.who_saw_what\(",
    "tokamax.json": r"\bin_tokamax\(",
    "(model|predicted).json": r"\bmodel\.(rows|scatter|\w+_table)\(",
    "profile.json": r"\bprofile\.",
    "search.json": r"\bsearches\.",
    "machine.json": r"\bH[12]00\b|play_hazard|\b(limits|copies|probes)\.",
    "loads.json": r"\blimits\.clock_table",
    "accounts.json": r"\baccounts\.(launches|steps)\(",
    "decode.json": r"\bdecode\.table\(",
    "grouped.json": r"\bgrouped\.\w+\(",
    "sanitized.json": r"\bsanitized\.sentence\(",
    "collective.json": r"\bcollective\.(tables|rows)\(",
    "nvlink.json": r"\bnvlink\.(table|beside)\(",
}
#: What a record is for that no chapter quotes.
USED = {
    "frameworks.json": "the page [Which framework when](frameworks.md)",
    "idle.json": "the model of the clock",
    "memory_bound.json": "`rms_norm` and `softmax`, and the copies that they are held to",
    "starts.json": "the model of a launch",
    "tools_seen.json": "the page [A gallery of faults](gallery.md)",
    "schedule.json": "the tests, for what a check and a simulation may cost",
}
#: What most readers look for comes first; the other records by their names.
FIRST = "attention.json", "matmul.json", "memory_bound.json"
MOST_LINKS = 6


class Run(NamedTuple):
    """One run: what it measured, its provenance, command, source digest and number of samples."""

    parts: tuple[str, ...]
    provenance: dict[str, Any]
    command: str
    digest: str
    samples: int

    def markdown(self) -> str:
        """An item of a list."""
        facts = self.provenance
        where = f"{facts['gpu'] or 'CPU'}"
        if facts["gpu"]:
            where += f", driver {facts['driver']}, CUDA {facts['cuda']}"
        versions = f"JAX {facts['jax']}, jaxlib {facts['jaxlib']}, Python {facts['python']}"
        commit = f"commit `{facts['git_commit']}`" if facts["git_commit"] else "no commit known"
        lines = [
            f"- **{facts['utc'].replace('T', ' ').replace('+00:00', ' UTC')}**: `{self.command}`",
            f"  - {where}; {versions}; {commit}",
            f"  - {self.samples:,} samples; source digest `{self.digest[:16]}`",
        ]
        if self.parts:
            lines.append(f"  - {'; '.join(self.parts)}")
        return "\n".join(lines)


def count_samples(value: Any) -> int:
    """How many times, cycles or errors a record has: floats, in lists of floats or None.

    A faulty kernel that gave no result counts as one sample, and so do a run under a tool and a
    verdict. An account of cycles says itself how many samples of warps it has.
    """
    if isinstance(value, dict):
        if {"samples", "tensor_percent"} <= {*value}:
            return value["samples"]
        if {"outcome", "wrong"} <= {*value} or {"race", "end"} <= {*value}:
            return len(value.get("wrong", ())) or 1
        if {"reports", "end"} <= {*value}:
            return value.get("runs") or 1
        if {"memcheck", "synccheck"} <= {*value} and isinstance(value["memcheck"], list):
            return 2
        if {"findings", "refusal"} <= {*value}:
            return 1
        return sum(map(count_samples, value.values()))
    if not isinstance(value, list):
        return 0
    if value and all(each is None or isinstance(each, float) for each in value):
        return len(value)
    return sum(map(count_samples, value))


# Runs of records.


def runs(record: dict[str, Any]) -> list[Run]:
    """The runs of a record of `benchmarks`, first to last."""
    found: dict[tuple, Run] = {}
    for group in record.get("groups", [dict(run=record, problem={}, contenders=record)]):
        run = group["run"]
        facts, command = run["provenance"], run["command"]
        digest = run.get("sources_digest", facts["code_digest"])
        words = _words(group["problem"])
        key = command, digest, *(facts[name] for name in facts if name != "utc")
        old = found.get(key, Run((), facts, command, digest, 0))
        samples = len(run.get("traceEvents", ())) or count_samples({**group, "run": {}})
        parts = (f"{_part(group)} {words}".strip(),) if words else ()
        found[key] = old._replace(parts=old.parts + parts, samples=old.samples + samples)
    return sorted(found.values(), key=lambda run: run.provenance["utc"])


def _part(group: dict[str, Any]) -> str:
    """The part of a group, but of a search that was a record of its own."""
    return "" if group["part"] == "tune" and "fields" in group else group["part"]


def _words(problem: dict[str, Any]) -> str:
    """A product, an attention, a kernel, a language; nothing of rows, whose tables say it."""
    if not problem or "length" in problem:
        return ""
    for name in ("kernel", "language"):
        if name in problem:
            return problem[name]
    if "keys" in problem:
        return str(decode.Problem(**problem))
    if "groups" in problem:
        return str(grouped.Problem(**problem))
    if "devices" in problem:
        return str(collective.Problem(**problem))
    if "seq" in problem:
        return f"{attention.Group(problem, {}, {}).shape} {problem['dtype']}"
    if "transpose_a" not in problem:
        raise ValueError(
            f"tools/records.py has no words for a problem with {', '.join(problem)}, so the page"
            " cannot name it: add a branch to _words."
        )
    turned = "".join(f", {x} transposed" for x in "ab" if problem[f"transpose_{x}"])
    return f"{'x'.join(str(problem[axis]) for axis in 'mnk')} {problem['dtype']}{turned}"


# What is said of a record.


def what(command: str) -> str:
    """The first line of the docstring of the script of a command."""
    name, *_ = re.findall(r"benchmarks[./]\w+", command)
    script = ROOT / f"{name.replace('.', '/')}.py"
    said = ast.get_docstring(ast.parse(script.read_text("utf-8"))) or ""
    return said.partition("\n")[0]


def quoted(name: str) -> str:
    """Where chapters quote a record, as links; or what it is for instead."""
    return links(_quoting(name), MOST_LINKS) or f"no chapter; it is for {USED[name]}"


def _quoting(name: str) -> list[Section]:
    """The headings below which chapters quote a record."""
    patterns = [words for record, words in QUOTES.items() if re.fullmatch(record, name)]
    return [s for s in sections() if any(re.search(words, s.code) for words in patterns)]


def tables(name: str, record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The tables of a record, each with a title."""
    record = results.opened(record)
    if name == "matmul.json":
        yield from _products()
    elif name == "attention.json":
        yield from _attention()
    elif name == "accounts.json":
        for group in record["groups"]:
            asked = Problem(**group["problem"])
            yield f"A launch, {asked}", accounts.table(group, columns=accounts.OF_A_LAUNCH)
            yield f"Cycles of a step, {asked}", accounts.table(group, columns=accounts.OF_A_STEP)
    elif name == "decode.json":
        yield "32,768 keys, 32 heads of 8, heads of 128, bfloat16", decoding.table()
    elif name == "frameworks.json":
        yield "One pipeline in four frameworks", frameworks.table()
    elif name == "grouped.json":
        for layer, table in of_groups.tables().items():
            yield str(layer), table
    elif name == "collective.json":
        yield from of_devices.tables_of(of_devices.rows_of(record))
    elif name == "nvlink.json":
        yield "Two GPUs of one host, both sending", nvlink.table()
    elif name == "tune.json":
        for search in ladder.searches():
            yield f"Near the winner for {_words(search.problem)}", ladder.search_table(search)
    elif name == "memory_bound.json":
        record = bandwidth.flat(record)
        yield "All shapes, µs", bandwidth.shapes_table(record)
        for rows, length, dtype in bandwidth.shapes(record):
            if "(" not in (table := bandwidth.table(record, rows, length, dtype))[:1]:
                yield f"{rows} rows of {length} in {dtype}", table
        yield "A copy, over slots and bytes of a step", _curve(record)
    elif name == "hazards.json":
        yield "What each faulty kernel did", book.hazard_table()
    elif name == "tools_seen.json":
        yield "What each faulty kernel did", tools_seen.page("runs")
        yield "Which tool reported it", tools_seen.page("reported")
        yield "Their first reports", tools_seen.page("reports")
    elif name == "wild.json":
        yield "What each faulty kernel did", book.fault_table()
    elif name == "written.json":
        yield "Who saw what in kernels that a language model wrote", written.who_saw_what()
    elif name == "tokamax.json":
        yield "What each fault did in tokamax itself", outcomes.tokamax_table()
    elif name == "search.json":
        yield "The search beside brute force", searches.table(record["groups"])
    elif name == "machine.json":
        yield "Simulated beside measured", machine_benchmark.compared(record)
        if known := [probe for probe in probes.later() if probe.name in record["probes"]]:
            yield "Probes that test the model, cycles of a step", modelled.table(record, known)
    elif name == "predicted.json":
        rows = model.rows()
        yield "How far predicted launches are off, by family", model.families_table(rows)
        yield (
            "How far predicted calls without a configuration are off",
            model.defaults_table(model.defaults()),
        )
        yield (
            "Mean errors where the family had no part in the constants",
            model.left_out_table(model.left_out()),
        )
        yield "How far predicted times of a step are off", model.steps_table(model.steps())
        yield "The held-out pairs that are farthest off", model.worst_table(rows, 20)
        yield "Why held-out pairs are off by more than 5%", model.causes_table(rows)
    elif name == "loads.json":
        yield "The clock while a load runs, and after it", _loads(record)
    elif name == "idle.json":
        yield (
            "The clock after idleness, by the time since the first launch, GHz",
            idle.table(record["idle"]),
        )
    elif name == "starts.json":
        yield "Launches whose blocks only pass time, medians", _starts(record)
    elif name == "schedule.json":
        yield "Milliseconds, medians", _analysis(record)
        yield "Large programs, medians, each in a process of its own", _large(record)


def _products() -> Iterator[tuple[str, str]]:
    rungs = ladder.groups("ladder")
    for dtype in dict.fromkeys(group.problem["dtype"] for group in rungs):
        here = [group for group in rungs if group.problem["dtype"] == dtype]
        yield f"The ladder in {dtype}, TFLOP/s", ladder.ladder_table(here)
        yield f"Slots of rung 1 in {dtype}, TFLOP/s", ladder.slots_table(here)
    yield "What went no further up", ladder.ideas_table(rungs)
    yield "Bursts and sustained runs", ladder.power_table(rungs)
    yield "Products of language models, TFLOP/s", ladder.shapes_table(ladder.groups("shapes"))
    if eight_bits := ladder.groups("fp8"):
        yield "In float8, TFLOP/s", ladder.shapes_table(eight_bits)
    yield "pipelib's emitters beside JAX's", ladder.emitters_table(ladder.groups("emitters"))


def _attention() -> Iterator[tuple[str, str]]:
    rungs = attention.groups("ladder")
    yield "The ladder of attention, TFLOP/s", attention.ladder_table(rungs)
    yield "Without turns and with, TFLOP/s", attention.turns_table(rungs)
    for part, title in (("forward", "Forward"), ("backward", "Gradients")):
        for dtype in ("float16", "bfloat16"):
            here = attention.like(attention.groups(part), dtype=dtype)
            yield f"{title} in {dtype}, TFLOP/s", attention.table(here)
            yield f"{title} in {dtype}, relative errors", attention.errors_table(here)
    yield "Other sizes in bfloat16, TFLOP/s", attention.table(attention.groups("sizes"))
    for backward, words in ((False, "forward"), (True, "gradients")):
        here = attention.like(attention.groups("options"), backward=backward)
        yield f"With options in bfloat16, {words}, TFLOP/s", attention.table(here)
    for causal, words in ((False, "dense"), (True, "causal")):
        float8 = attention.like(attention.groups("narrow"), causal=causal)
        table = attention.variants_table(float8, own="as it picks")
        yield f"Forward in float8, {words}, TFLOP/s", table


def _curve(record: dict[str, Any]) -> str:
    lines = ["| bytes of a step | KiB of slots on a multiprocessor: TB/s |", "|--:|---|"]
    for size, points in bandwidth.curve(record).items():
        pairs = (f"{x / 1024:g}: {rate / 1e12:.2f}" for x, rate in points)
        lines.append(f"| {size:,} | {', '.join(pairs)} |")
    return "\n".join(lines)


def _loads(record: dict[str, Any]) -> str:
    lines = ["| load | MHz | MHz after it | W |", "|---|--:|--:|--:|"]
    for name, load in record["loads"].items():
        clocks = (f"{median(load[key]) / 1e6:,.0f}" for key in ("clock_hz", "clock_after_hz"))
        lines.append(f"| {name} | {' | '.join(clocks)} | {load['watts']:.0f} |")
    return "\n".join(lines)


def _starts(record: dict[str, Any]) -> str:
    lines = ["| launch | µs |", "|---|--:|"]
    lines += [f"| {name} | {median(row['us']):.2f} |" for name, row in record["starts"].items()]
    return "\n".join(lines)


def _analysis(record: dict[str, Any]) -> str:
    keys = "first_seconds", "again_seconds", "check_seconds", "simulate_seconds"
    head = "traced first | traced again | checked | simulated"
    lines = [f"| kernel | ops | {head} |", "|---|" + "--:|" * 5]
    for size in record["sizes"]:
        times = " | ".join(f"{1e3 * median(size[key]):.1f}" for key in keys)
        lines.append(f"| {size['name']} | {size['ops']:,} | {times} |")
    return "\n".join(lines)


def _large(record: dict[str, Any]) -> str:
    head = "traced, s | checked, s | checked, µs an op | most memory, MB"
    lines = [f"| kernel | ops | {head} |", "|---|" + "--:|" * 5]
    for large in record.get("large", ()):
        traced, checked = median(large["trace_seconds"]), median(large["check_seconds"])
        each, most = 1e6 * checked / large["ops"], median(large["checked_bytes"]) / 1e6
        cells = f"{traced:.2f} | {checked:.2f} | {each:.1f} | {most:,.0f}"
        lines.append(f"| {large['name']} | {large['ops']:,} | {cells} |")
    return "\n".join(lines)


# The page.


def page() -> str:
    """All records as Markdown."""
    paths = sorted((ROOT / "benchmarks" / "results").glob("*/*.json"), key=_place)
    parts = ["## By chapter", _by_chapter(paths), "## Benchmarks", *map(_benchmark, paths)]
    parts += ["## Chapters", "", "What each page shows below its cells: `make record` wrote it."]
    parts += map(_chapter, notebooks.chapters())
    parts += ["## Tests on the GPU", _tests(ROOT / "tests" / "gpu_record.json")]
    parts += ["## Made from records"]
    parts += map(_model, sorted((ROOT / "pallascope/machines").glob("*.json")))
    parts += map(_table_of_tuned, sorted((ROOT / "pipelib/kernels/matmul/tuned").glob("*.json")))
    return "\n\n".join(parts) + "\n"


def _place(path: pathlib.Path) -> tuple[int, pathlib.Path]:
    """What records are sorted by."""
    return FIRST.index(path.name) if path.name in FIRST else len(FIRST), path


def _by_chapter(paths: list[pathlib.Path]) -> str:
    """The records that each chapter quotes, with links to both."""
    quotes: dict[str, list[str]] = {}
    for path in paths:
        name = f"{path.parent.name}/{path.name}"
        for chapter in dict.fromkeys(section.chapter for section in _quoting(path.name)):
            quotes.setdefault(chapter, []).append(f"[`{name}`](#{anchor(name)})")
    rows = ["| chapter | benchmarks that it quotes |", "|---|---|"]
    rows += [
        f"| [{int(chapter[:2])} {titles()[chapter]}]({chapter}.ipynb) | {', '.join(found)} |"
        for chapter, found in sorted(quotes.items())
    ]
    return "\n".join(rows)


def _heading(path: pathlib.Path) -> str:
    return f"### `{path.parent.name}/{path.name}`"


def _benchmark(path: pathlib.Path) -> str:
    record = json.loads(path.read_text("utf-8"))
    found = runs(record)
    parts = [_heading(path), what(found[0].command), f"Quoted in: {quoted(path.name)}."]
    parts.append("\n".join(run.markdown() for run in found))
    for title, table in tables(path.name, record):
        parts += [f"**{title}**", table]
    return "\n\n".join(parts)


def _chapter(md: pathlib.Path) -> str:
    notebook = notebooks.read_published(md.with_suffix(".ipynb"))
    title = next(section.title for section in sections() if section.chapter == md.stem)
    kept = notebook.metadata.get(notebooks.RECORD) if notebook else None
    if notebook is None or kept is None:
        return f"### {title}\n\nIt was not recorded yet."
    digest, command = kept["code_digest"], f"make record ARGS={md.stem}"
    outputs = sum(len(cell.outputs) for cell in notebooks.code_cells(notebook))
    run = Run((), dict(kept), command, digest, 0).markdown()
    seconds = f"{outputs} outputs, in {kept['seconds']} seconds"
    shown = f"The outputs of [{title}]({md.stem}.ipynb).\n\n"
    return f"### {title}\n\n{shown}" + run.replace("0 samples", seconds)


def _tests(path: pathlib.Path) -> str:
    kept = json.loads(path.read_text("utf-8"))
    counts = ", ".join(f"{kept[kind]} {kind}" for kind in ("passed", "failed", "skipped"))
    run = Run((), kept, "make test-gpu", kept["code_digest"], 0).markdown()
    return run.replace("0 samples", f"{counts}, in {kept['seconds']} seconds")


def _model(path: pathlib.Path) -> str:
    machine = Machine.from_json(path.read_text("utf-8"))
    rows = ["| parameter | value |", "|---|--:|"]
    for name in json.loads(machine.to_json()):  # which leaves out what this GPU does not have
        value = getattr(machine, name)
        text = ", ".join(f"{d}: {r:,g}" for d, r in value) if isinstance(value, tuple) else value
        rows.append(f"| `{name}` | {text if isinstance(text, str) else f'{text:,.10g}'} |")
    said = (
        "What `pallascope.simulate` knows of this GPU: `python -m benchmarks.machine derive` made"
    )
    said += f" it of `machine.json`. Used in: {quoted('machine.json')}."
    table = "\n".join(rows)
    return f"{_heading(path)}\n\n{said}\n\n{table}"


def _table_of_tuned(path: pathlib.Path) -> str:
    entries = [Entry.from_json(e) for e in json.loads(path.read_text("utf-8"))["entries"]]
    rows = ["| product | µs, median | configurations | found | source digest |"]
    rows.append("|---|--:|--:|---|---|")
    for entry in entries:
        sizes = f"{entry.m}x{entry.n}x{entry.k} {entry.dtype}"
        turned = f"{' a turned' * entry.transpose_a}{' b turned' * entry.transpose_b}"
        utc, digest = entry.run["utc"][:16].replace("T", " "), entry.run["code_digest"][:16]
        cells = f"{entry.microseconds:,.2f} | {entry.measured} | {utc} | `{digest}`"
        rows.append(f"| {sizes}{turned} | {cells} |")
    said = "The configurations that `pipelib.kernels.matmul` takes by default, made of `tune.json`."
    table = "\n".join(rows)
    return f"{_heading(path)}\n\n{said}\n\n{table}"
