"""The reference's pages hold to the chapters and to the code."""

import json
import re

import pytest

from benchmarks import probes_copies
from pipelib_book.measured import foreign as measured
from pipelib_book.measured import results
from tests.foreign import readings, sources
from tools import execution, foreign, notebooks, plgpu_names, records

BOOK = notebooks.BOOK


def chapter_texts():
    return {md.name: md.read_text("utf-8") for md in notebooks.chapters()}


# Bibliography.


def test_the_bibliography_has_what_pages_cite_and_nothing_else():
    entries = re.findall(r"^@\w+\{([\w-]+),$", (BOOK / "references.bib").read_text(), re.MULTILINE)
    text = "".join(path.read_text("utf-8") for path in BOOK.glob("*.md"))
    cites = re.findall(r"\{cite\}`([\w,-]+)`", text)
    cited = {key for cite in cites for key in cite.split(",")}
    assert cited == {*entries} and len(entries) == len({*entries})


# Glossary.


def terms():
    """The words of the glossary, with what is said of each."""
    text = (BOOK / "glossary.md").read_text("utf-8")
    body = re.search(r"^:::\{glossary\}\n(.*?)^:::", text, re.MULTILINE | re.DOTALL)[1]
    return dict(re.findall(r"^(\S.*)\n((?:  .*\n)+)", body, re.MULTILINE))


def test_the_glossary_is_in_order_and_each_word_leads_to_a_chapter():
    words = [*terms()]
    assert words == sorted(words, key=str.lower) and len(words) > 40
    for word, said in terms().items():
        assert re.search(r"\]\(\d\d_\w+\.ipynb", re.sub(r"\s+", "", said)), word


def test_the_glossary_has_the_book_s_main_words():
    some = {"step", "slot", "phase", "produced barrier", "consumed barrier", "memory thread"}
    some |= {"compute thread", "Pallas thread", "copies in flight", "prologue", "steady state"}
    assert some | {"drain", "bubble"} <= {*terms()}


# Index of plgpu.


def test_every_name_of_plgpu_is_used_by_a_chapter_or_listed_with_a_reason():
    assert plgpu_names.misplaced() == []


def test_a_name_in_the_wrong_place_is_found(monkeypatch):
    lists = {"some": ("wgmma", "no_such_name", "TMEM"), "more": ("TMEM",)}
    monkeypatch.setattr(plgpu_names, "OTHERS", lists)
    wrong = plgpu_names.misplaced()
    assert "wgmma is used by a chapter: take it off the lists." in wrong
    assert "plgpu has no no_such_name: take it off the lists." in wrong
    assert "no chapter uses multicast_ref: explain it in one, or list why none does." in wrong
    assert "TMEM is listed twice." in wrong


def test_the_index_leads_to_where_chapters_use_and_explain_a_name():
    found = plgpu_names.uses()
    assert all(
        name in found for text in chapter_texts().values() for name in CELL_NAMES.findall(text)
    )
    places = [(use.chapter, use.heading) for use in found["barrier_arrive"]]
    assert ("07_warp_specialization", "A memory thread and a compute thread") in places
    assert plgpu_names.explained("set_max_registers").heading == "Registers, moved"
    assert plgpu_names.explained("SMEM").heading == "A copy in the background"
    link = "[A copy in the background](03_buffering.ipynb#a-copy-in-the-background)"
    assert f"\n`SMEM`\n: **Buffering: {link}**\n" in plgpu_names.index()


# What cells of a chapter have, as opposed to its text: an indented or assigned use.
CELL_NAMES = re.compile(r"^ +plgpu\.(\w+)\(", re.MULTILINE)


# Every measurement.


@pytest.mark.slow
def test_every_committed_record_is_on_the_page_with_its_provenance():
    page = records.page()
    paths = [*(execution.ROOT / "benchmarks" / "results").glob("*/*.json")]
    assert len(paths) >= 9
    for path in paths:
        (part,) = re.findall(
            rf"^### `{path.parent.name}/{path.name}`\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL
        )
        record = json.loads(path.read_text("utf-8"))
        found = records.runs(record)
        is_measured = path.name != "predicted.json"
        assert found and all((run.samples > 0) == is_measured for run in found)
        for run in found:
            facts = run.provenance
            for fact in (run.command, facts["jax"], facts["python"], facts["utc"][11:19]):
                assert fact in part, (path.name, fact)
            assert run.digest[:16] in part
            assert (facts["gpu"] or "CPU") in part
    for md in notebooks.chapters():
        kept = notebooks.read_published(md.with_suffix(".ipynb")).metadata.get(notebooks.RECORD)
        if kept is not None:  # one that waits for its first record says so
            assert kept["code_digest"][:16] in page and f"ARGS={md.stem}" in page


def test_a_table_stands_under_its_own_card():
    paths = (execution.ROOT / "benchmarks" / "results").glob("nvidia-*/collective.json")
    for path in paths:
        card = path.parent.name.split("-")[1].upper()
        titles = [title for title, _ in records.tables(path.name, json.loads(path.read_text()))]
        assert titles and all(title.endswith(f" {card}s") for title in titles)


@pytest.mark.slow
def test_each_table_of_a_record_has_a_title_of_its_own():
    for path in (execution.ROOT / "benchmarks" / "results").glob("*/*.json"):
        titles = [title for title, _ in records.tables(path.name, json.loads(path.read_text()))]
        assert len({*titles}) == len(titles), path.name


@pytest.mark.slow
def test_the_page_has_the_clock_after_idleness_and_probes_beside_the_model():
    load = dict(use=0.0, rounds=[dict(ms=[0.0], ghz=[1.5])])
    ((title, table),) = records.tables("idle.json", dict(idle=dict(copies=load)))
    assert title.startswith("The clock after idleness") and "| copies | 1.500 |" in table
    (record,) = results.read("nvidia-h200/machine.json")
    probe = probes_copies.slot_found(4, True)
    record["probes"][probe.name] = dict(inner=[0.0], second_run=[302.0])
    found = dict(records.tables("machine.json", record))
    assert f"| {probe.name} |" in found["Probes that test the model, cycles of a step"]


def test_all_groups_of_a_record_are_in_one_of_its_runs():
    path = execution.ROOT / "benchmarks" / "results" / "nvidia-h200" / "matmul.json"
    record = json.loads(path.read_text("utf-8"))
    found = records.runs(record)
    assert sum(len(run.parts) for run in found) == len(record["groups"])
    assert sum(run.samples for run in found) == records.count_samples(record)


def test_runs_of_attention_say_what_was_measured():
    facts = dict(gpu="NVIDIA H200", utc="2026-11-21T18:00:00+00:00", code_digest="0")
    run = dict(provenance=facts, command="python -m benchmarks.attention", sources_digest="0")
    problem = dict(seq=4096, head_dim=128, causal=True, dtype="float16", backward=False)
    groups = [
        dict(part=part, problem=problem, run=run, contenders=dict(a=dict(us=[1.0, 2.0])))
        for part in ("forward", "ladder")
    ]
    (found,) = records.runs(dict(groups=groups))
    words = "4096 x 128, causal float16"
    assert found.parts == (f"forward {words}", f"ladder {words}") and found.samples == 4
    assert records.what(run["command"]).startswith("Measures `pipelib.kernels.attention`")
    titles = [title for title, _ in records.tables("attention.json", {})]
    assert len(titles) == len({*titles}) == 15


def test_samples_are_counted():
    row = {"burst_us": [1.0, 2.0], "config": [1, "m"], "rows": [[3.0, 4.0, 5.0], [6, 7]]}
    assert records.count_samples(row) == 5
    faulty = {"outcome": "wrong", "wrong": [0, 3], "error": [0.0, 1.0]}
    killed = {"outcome": "killed", "wrong": [], "error": []}
    assert records.count_samples({"some": [{"faulty": faulty, "fixed": killed}]}) == 3
    tools = {
        "memcheck": dict(end="hang", reports=0),
        "synccheck": dict(end="right", reports=0, runs=3),
    }
    assert records.count_samples({"faulty": tools}) == 4


def test_a_record_leads_to_the_headings_that_quote_it():
    assert "14_matmul_ladder.ipynb" in records.quoted("matmul.json")
    place = "12_what_can_go_wrong.ipynb"
    assert place in records.quoted("hazards-jax-0.11.2.json")
    assert records.quoted("schedule.json").startswith("no chapter; it is for the tests, for what")
    for path in (execution.ROOT / "benchmarks" / "results").glob("*/*.json"):
        is_used = path.name in records.USED
        assert records.quoted(path.name).startswith("no chapter") == is_used, path.name


@pytest.mark.slow
def test_the_page_begins_with_attention_and_the_product():
    found = re.findall(r"^### `[\w-]+/(\w+\.json)`", records.page(), re.MULTILINE)
    assert found[:3] == ["attention.json", "matmul.json", "memory_bound.json"]


# Kernels that others wrote.


def test_the_table_of_foreign_kernels_knows_each_verdict():
    assert {*measured.VERDICTS} == {*readings.Verdict}
    assert "<!-- made from the code: foreign -->" in (BOOK / "checker_method.md").read_text("utf-8")


def test_the_table_of_foreign_kernels_is_that_of_the_record(monkeypatch):
    def group(count, kind, verdict, why="Because.", test="a.py::T::test_it12"):
        return {"count": count, "kind": kind, "verdict": verdict, "why": why, "test": test}

    race = group(3, "race", "fault")
    made = {
        "JAX 1, guides": {
            "counts": {"configurations": 9, "lowered": 7, "traced": 6, "refused": 1},
            "findings": [race, group(2, "deadlock", "false alarm", test="docs/guide.md::cells")],
        },
        "tokamax 2": {"counts": {"lowered": 1, "traced": 1}, "findings": [race]},
    }
    monkeypatch.setattr(measured, "read", lambda: made)
    lines = foreign.tables().splitlines()
    assert lines[2:4] == [
        "| tokamax 2 | 1 | 3 | 0 | 0 | 0 | 0 |",
        "| JAX 1 | 6 | 3 | 0 | 0 | 0 | 2 |",
    ]
    first = lines.index(":class: dropdown") + 4
    assert lines[first : first + 2] == [
        "| tokamax 2 | 1 | 1 | 0 | 3 | 0 | 0 | 0 | 0 |",
        "| JAX 1, guides | 7 | 6 | 1 | 3 | 0 | 0 | 0 | 2 |",
    ]
    assert lines[-4:-2] == [
        "| fault | 6 | race | JAX, `test_it`; tokamax, `test_it` | Because. |",
        "| false alarm | 2 | deadlock | JAX, `guide.md` | Because. |",
    ]


def test_each_source_that_is_recorded_has_a_row():
    recorded = measured.read()
    folded = foreign.tables().partition(":::{admonition} Each reading")[0].partition("| source")[2]
    rows = [line.split(" | ")[0] for line in folded.splitlines()[2:] if line.startswith("| ")]
    assert sorted(rows) == sorted(f"| {name}" for name in recorded)
    assert recorded.keys() == sources.SOURCES.keys()
