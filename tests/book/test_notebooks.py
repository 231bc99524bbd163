"""`tools.notebooks`: pairs, digests, execution, on small made-up chapters."""

import copy
import functools
import re
import types

import nbformat
import pytest

from pallascope.bench import provenance
from pallascope.drawing.paths import relative_paths
from tests.players import packed
from tools import execution, notebooks, rehearsal

CHAPTER = """\
# A title

Text.

```{code-cell} ipython3
x = 1
```

More text.

```{code-cell} ipython3
:tags: [hide-input]

print(x)
```
"""


def fake_rehearsal(notebook, kept, take=0):
    """Scenes by the sources: kernels are words that begin with `kernel_`; `gpu` shows a number."""
    scenes = []
    for cell in notebooks.code_cells(notebook):
        shown = re.sub(r"gpu\w*", str(7 + take), cell.source)
        cell.outputs = [nbformat.v4.new_output("stream", text=shown)] if "print" in shown else []
        kernels = tuple(re.findall(r"kernel_\w+", cell.source))
        scenes.append(rehearsal.Scene(kernels, rehearsal.shown(cell.outputs)))
    return scenes


#: Asking takes a process that imports JAX: the answer is always the same here.
the_machine = functools.cache(notebooks.recording_machine)


@pytest.fixture
def md(tmp_path, monkeypatch):
    """A chapter's .md, its .ipynb in step, with outputs and a record; rehearsals are made up."""
    monkeypatch.setattr(notebooks, "rehearse", fake_rehearsal)
    monkeypatch.setattr(notebooks, "recording_machine", the_machine)
    path = tmp_path / "01_made_up.md"
    path.write_text(CHAPTER)
    give_record(path)
    return path


def give_record(path, *shown):
    """As if the chapter had been recorded on a GPU: each cell that prints has put out this."""
    notebook = notebooks.read_source(path)
    scenes = notebooks.rehearse(copy.deepcopy(notebook), None)
    printing = [cell for cell in notebooks.code_cells(notebook) if "print" in cell.source]
    for cell, text in zip(printing, shown or ["1\n"], strict=True):
        cell.outputs = [nbformat.v4.new_output("stream", text=text)]
    notebook.metadata[notebooks.RECORD] = {
        "gpu": "made up",
        "rehearsal": [scene.to_json() for scene in scenes],
        "outputs_digest": notebooks.outputs_digest(notebook),
    }
    notebooks.write_published(notebook, path.with_suffix(".ipynb"))


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def outputs(md):
    notebook = notebooks.read_published(md.with_suffix(".ipynb"))
    return [cell.outputs for cell in notebooks.code_cells(notebook)]


def test_a_pair_in_step_with_its_record_is_fine(md):
    assert notebooks.problems(md) == []


def test_a_missing_notebook_is_found(md):
    md.with_suffix(".ipynb").unlink()
    (problem,) = notebooks.problems(md)
    assert "01_made_up.ipynb is missing" in problem


def test_edited_text_is_found_and_sync_keeps_the_outputs(md):
    edit(md, "More text.", "Other text.")
    (problem,) = notebooks.problems(md)
    assert "has not the cells of 01_made_up.md: run `make sync`" in problem
    notebooks.sync(md)
    assert notebooks.problems(md) == []
    assert outputs(md)[1][0].text == "1\n"


def test_an_edited_tag_is_found(md):
    edit(md, "hide-input", "hide-output")
    (problem,) = notebooks.problems(md)
    assert "run `make sync`" in problem


def test_what_a_page_folds_is_folded_in_jupyterlab_and_in_colab(md):
    md.write_text(CHAPTER + "\n```{code-cell} ipython3\n:tags: [solution, hide-cell]\n\nx\n```\n")
    plain, shown, solution = notebooks.code_cells(notebooks.read_source(md))
    assert not plain.metadata
    assert shown.metadata["jupyter"] == {"source_hidden": True}
    assert solution.metadata["jupyter"] == {"source_hidden": True, "outputs_hidden": True}
    assert shown.metadata["cellView"] == solution.metadata["cellView"] == "form"


def test_edited_code_is_found_and_sync_drops_outputs_and_record(md):
    edit(md, "print(x)", "print(2 * x)")
    (problem,) = notebooks.problems(md)
    assert "has not the cells" in problem
    notebooks.sync(md)
    assert outputs(md) == [[], []]
    (problem,) = notebooks.problems(md)
    assert "no outputs of a GPU run" in problem


def test_code_that_does_the_same_keeps_the_gpu_s_outputs(md):
    edit(md, "x = 1", "y = 1")
    notebooks.sync(md)
    assert outputs(md)[1][0].text == "1\n"
    assert notebooks.problems(md) == []


@pytest.mark.parametrize(("new", "kept"), [("print(2 * x)", True), ("print(x, gpu_time)", False)])
def test_an_edited_cell_that_needs_no_gpu_is_made_anew(md, new, kept):
    """Two takes tell: what depends on a GPU shows another number in each."""
    give_record(md, "print(x)")  # just what a rehearsal shows
    edit(md, "print(x)", new)
    notebooks.sync(md)
    assert outputs(md)[1] == ([nbformat.v4.new_output("stream", text=new)] if kept else [])
    assert bool(notebooks.problems(md)) is not kept


@pytest.mark.parametrize(("shown", "needed"), [("print(x)", False), ("by a GPU", True)])
def test_other_code_in_pipelib_is_found(md, monkeypatch, shown, needed):
    give_record(md, shown)

    def other(notebook, kept, take=0):
        for cell in notebooks.code_cells(notebook):
            cell.source = cell.source.replace("print(x)", "print(x, x)")
        return fake_rehearsal(notebook, kept, take)

    monkeypatch.setattr(notebooks, "rehearse", other)
    (problem,) = notebooks.problems(md)
    assert "01_made_up.ipynb, code cell 2 ('print(x)')" in problem
    said = "something else of what a GPU gives" if needed else "`make refresh`, which needs no GPU"
    assert said in problem
    notebooks.sync(md, refresh=True)
    assert outputs(md)[1:] == ([[]] if needed else [outputs(md)[1]])
    assert bool(notebooks.problems(md)) is needed


def test_another_kernel_is_found_though_it_shows_the_same(md):
    edit(md, "x = 1", "x = 1; kernel_a = 1")
    give_record(md)
    assert notebooks.problems(md) == []
    edit(md, "kernel_a", "kernel_b")
    edit(md.with_suffix(".ipynb"), "kernel_a = 1", "kernel_b = 1")
    (problem,) = notebooks.problems(md)
    assert "code cell 1 ('x = 1; kernel_b = 1') compiles other kernels" in problem
    assert "than were recorded, kernel_b and not kernel_a: run" in problem
    assert "run `make record` on a Hopper GPU" in problem


def test_what_a_gpu_gives_is_made_into_something_else(md):
    edit(md, "print(x)", "print(gpu_time)")
    give_record(md, "3.5 us")
    edit(md, "gpu_time", "gpu_rate")  # a rehearsal shows the same number
    notebooks.sync(md)
    assert outputs(md)[1][0].text == "3.5 us"
    edit(md, "print(gpu_rate)", "print(gpu_rate, 'us')")
    notebooks.sync(md)
    assert outputs(md) == [[], []]


def test_cells_that_move_keep_their_outputs(md):
    edit(md, "More text.", "```{code-cell} ipython3\ny = 2\n```\n\nMore text.")
    give_record(md)
    before = md.read_text()
    md.write_text(before.replace("```{code-cell} ipython3\ny = 2\n```\n\n", ""))
    notebooks.sync(md)
    assert [shown and shown[0].text for shown in outputs(md)] == [[], "1\n"]


@pytest.mark.parametrize(
    ("new", "kept"), [("print(x, x)", True), ("print(gpu_time)", False), ("kernel_a = 1", False)]
)
def test_a_new_cell_that_needs_no_gpu_is_made(md, new, kept):
    """What shows a GPU's number, or compiles a kernel, nobody knows without a GPU."""
    edit(md, "More text.", f"```{{code-cell}} ipython3\n{new}\n```\n\nMore text.")
    notebooks.sync(md)
    shown = [[], new, "1\n"] if kept else [[], [], []]
    assert [found and found[0].text for found in outputs(md)] == shown
    assert bool(notebooks.problems(md)) is not kept


def test_a_fresh_recording_holds_and_sync_rehearses_it(md, monkeypatch):
    notebook = notebooks.read_published(md.with_suffix(".ipynb"))
    kept = notebook.metadata[notebooks.RECORD]
    del kept["rehearsal"]
    kept["source_digest"] = notebooks.source_digest(notebook)
    notebooks.write_published(notebook, md.with_suffix(".ipynb"))
    assert notebooks.problems(md) == []
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "code_digest", lambda *_: "other")
        (problem,) = notebooks.problems(md)
        assert "recorded with other code" in problem and "not rehearsed since" in problem
    notebooks.sync(md)
    assert notebooks.problems(md) == [] and outputs(md)[1][0].text == "1\n"
    assert "source_digest" not in notebooks.read_record(md)
    assert len(notebooks.read_record(md)["rehearsal"]) == 2


def test_outputs_of_another_run_are_found(md):
    ipynb = md.with_suffix(".ipynb")
    edit(ipynb, '"1\\n"', '"2\\n"')
    (problem,) = notebooks.problems(md)
    assert "other outputs than were recorded" in problem


def test_sync_twice_writes_the_same_file(md):
    ipynb = md.with_suffix(".ipynb")
    notebooks.sync(md)
    before = ipynb.read_text()
    notebooks.sync(md)
    assert ipynb.read_text() == before


def test_a_cell_keeps_its_id_when_others_are_added(md):
    before = [cell.id for cell in notebooks.read_source(md).cells]
    edit(md, "Text.\n", "Text.\n\n+++\n\nAn inserted cell.\n")
    after = [cell.id for cell in notebooks.read_source(md).cells]
    assert len(after) == len(before) + 1
    assert set(before) < set(after)
    assert len(set(after)) == len(after)


def test_without_a_hopper_gpu_nothing_is_recorded(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(SystemExit) as refusal:
        notebooks.recording_machine()
    assert "found no GPU here" in str(refusal.value)
    assert "run this on an H100 or H200" in str(refusal.value)


def recording(*chapters, **options):
    """What `record` does with these chapters."""
    defaults = dict(force=False, interpreted=False, replace=False)
    return notebooks.record_command([*chapters], types.SimpleNamespace(**defaults | options))


@pytest.mark.slow
def test_a_chapter_without_a_record_can_be_interpreted(md, capsys):
    md.with_suffix(".ipynb").unlink()
    assert not notebooks.is_interpreted(md)
    recording(md, interpreted=True)
    assert notebooks.is_interpreted(md)
    assert notebooks.problems(md) == []
    assert [output.text for [output] in outputs(md)[1:]] == ["1\n"]
    capsys.readouterr()
    recording(md, interpreted=True)
    assert capsys.readouterr().out == "1 of 1 were up to date.\n"


@pytest.mark.slow
def test_what_was_interpreted_is_not_up_to_date_on_a_gpu(md, monkeypatch, capsys):
    md.with_suffix(".ipynb").unlink()
    recording(md, interpreted=True)
    monkeypatch.setattr(notebooks, "recording_machine", lambda interpreted: {"gpu": "a GPU"})
    recording(md)
    assert not notebooks.is_interpreted(md)
    capsys.readouterr()
    recording(md)
    assert capsys.readouterr().out == "1 of 1 were up to date.\n"


def test_a_chapter_that_fails_does_not_keep_the_others(md, monkeypatch, capsys):
    monkeypatch.setattr(notebooks, "recording_machine", lambda interpreted: {"gpu": "a GPU"})
    other = md.with_name("02_made_up.md")
    other.write_text(md.read_text())
    edit(md, "x = 1", "x = 1 / 0")
    before = md.with_suffix(".ipynb").read_text()
    assert recording(md, other, force=True) == 1
    said = capsys.readouterr()
    assert "01_made_up.md, cell 2 failed" in said.err
    assert md.with_suffix(".ipynb").read_text() == before
    assert "02_made_up.md: recorded in" in said.out and notebooks.problems(other) == []


def test_recording_says_which_cell_it_runs(capsys):
    notebooks.execute(cells("x = 1", "y = 2"), "01_made_up.md")
    assert capsys.readouterr().out == "01_made_up.md, 2 cells: 1 2\n"


def test_what_is_interpreted_needs_no_rehearsal_to_be_recorded(md, monkeypatch):
    """On a GPU, whose time a rehearsal would take."""
    recorded = []
    monkeypatch.setattr(notebooks, "recording_machine", lambda interpreted: {"gpu": "a GPU"})
    monkeypatch.setattr(notebooks, "record", lambda md, machine: recorded.append(md))
    monkeypatch.setattr(notebooks, "is_interpreted", lambda md: True)
    monkeypatch.setattr(notebooks, "problems", None)
    assert recording(md) == 0 and recorded == [md]


@pytest.mark.slow
def test_new_cells_of_a_recorded_chapter_can_be_interpreted(md):
    """The others keep what a GPU gave, and a second time, too."""
    path = md.with_suffix(".ipynb")
    path.write_text(path.read_text().replace('"1\\n"', '"by a GPU\\n"'))
    for count, more in enumerate(["print(x + 1)", "print(x + 2)"], 1):
        md.write_text(md.read_text() + f"\n```{{code-cell}} ipython3\n{more}\n```\n")
        recording(md, interpreted=True)
        [_, note], *rest = [[], *outputs(md)[0]], *outputs(md)[1:]
        some = "one" if count == 1 else "2"
        assert f"{some} ran after this recording, without a GPU" in note["data"]["text/plain"]
        texts = [output.text for output, *_ in rest]
        assert texts == ["by a GPU\n", "2\n", "3\n"][: 1 + count]
        marks = [[mark["data"]["text/plain"] for mark in marks] for _, *marks in rest]
        assert marks == [[]] + [["(This cell ran after the recording, without a GPU.)"]] * count
        assert notebooks.read_record(md)["interpreted_cells"] == [2, 3][:count]
        assert notebooks.read_record(md)["gpu"] == "made up" and notebooks.is_interpreted(md)
        assert notebooks.problems(md) == []


def test_a_recorded_chapter_with_no_new_cell_keeps_all_that_a_gpu_gave(md):
    path = md.with_suffix(".ipynb")
    path.write_text(path.read_text().replace('"1\\n"', '"by a GPU\\n"'))
    before = outputs(md)
    recording(md, interpreted=True, force=True)
    assert outputs(md) == before and not notebooks.is_interpreted(md)


def test_warnings_are_for_who_records(md, capsys):
    edit(md, "print(x)", "import sys; print(x); print('/a/path: a warning', file=sys.stderr)")
    md.with_suffix(".ipynb").unlink()
    recording(md, interpreted=True)
    assert "/a/path: a warning" in capsys.readouterr().err
    assert [output.text for [output] in outputs(md)[1:]] == ["1\n"]


def test_the_interpreter_does_not_replace_what_a_gpu_gave(md):
    edit(md, "print(x)", "print(2 * x)")
    before = md.with_suffix(".ipynb").read_text()
    with pytest.raises(SystemExit) as refusal:
        recording(md, interpreted=True, force=True)
    assert "01_made_up.md has outputs recorded on made up of cells that have changed," in str(
        refusal.value
    )
    assert md.with_suffix(".ipynb").read_text() == before


def test_the_interpreter_replaces_changed_cells_if_that_is_asked_for(md):
    edit(md, "print(x)", "print(2 * x)")
    recording(md, interpreted=True, force=True, replace=True)
    [printed, mark] = outputs(md)[1]
    assert printed.text == "2\n" and "ran after the recording" in mark["data"]["text/plain"]
    assert notebooks.read_record(md)["interpreted_cells"] == [1]


def test_a_cell_keeps_what_a_gpu_gave_when_the_rest_of_it_is_outdated(md, monkeypatch):
    """Its shown numbers are partly a GPU's: what it shows is not what its rehearsal did."""
    path = md.with_suffix(".ipynb")
    path.write_text(path.read_text().replace('"1\\n"', '"by a GPU\\n"'))
    scenes = fake_rehearsal(notebooks.read_source(md), {})
    changed = [scenes[0], scenes[1].__class__(scenes[1].kernels, "something else")]
    monkeypatch.setattr(notebooks, "rehearse", lambda *_: changed)
    recording(md, interpreted=True, force=True)
    note, (kept, mark) = outputs(md)[0][-1], outputs(md)[1]
    assert kept.text == "by a GPU\n" and "of an earlier model" in mark["data"]["text/plain"]
    assert "One cell shows numbers of an earlier simulator" in note["data"]["text/plain"]
    assert notebooks.read_record(md)["interpreted_cells"] == [1] and notebooks.is_interpreted(md)
    # And it keeps that when another cell is interpreted later.
    md.write_text(md.read_text() + "\n```{code-cell} ipython3\ny = 2\n```\n")
    recording(md, interpreted=True, force=True)
    assert outputs(md)[1] == [kept, mark]
    said = outputs(md)[0][-1]["data"]["text/plain"]
    assert "one ran after this recording" in said and "One cell shows" in said
    assert notebooks.read_record(md)["interpreted_cells"] == [1, 2]


def test_an_outdated_cell_with_nothing_of_a_gpu_is_made_anew(md, monkeypatch):
    published = notebooks.read_published(md.with_suffix(".ipynb"))
    old = notebooks.code_cells(published)
    before = [rehearsal.Scene((), rehearsal.shown(cell.outputs)) for cell in old]
    record = notebooks.read_record(md) | {"rehearsal": [scene.to_json() for scene in before]}
    changed = [before[0], rehearsal.Scene((), "something else")]
    monkeypatch.setattr(notebooks, "rehearse", lambda *_: changed)
    found = notebooks._outdated(notebooks.read_source(md), published, record)
    assert found == notebooks.Outdated(frozenset(), frozenset({1}))


def test_an_unknown_chapter_is_refused_with_the_names():
    with pytest.raises(SystemExit) as refusal:
        notebooks.select(["99_none"])
    assert "There is no chapter '99_none'" in str(refusal.value)
    assert "01_introduction" in str(refusal.value)


def cells(*sources):
    made = [nbformat.v4.new_code_cell(source) for source in sources]
    return nbformat.v4.new_notebook(cells=made)


def test_executing_stores_outputs_without_times():
    notebook = cells("x = 20", "print(x + 1)")
    notebooks.execute(notebook, "made up")
    (output,) = notebook.cells[1].outputs
    assert output.text == "21\n"
    assert "execution" not in notebook.cells[1].metadata


@pytest.mark.parametrize(
    "source, reason",
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(3)", "It ended the process."),
        ("while True: pass", "still running after 1 seconds"),
    ],
)
def test_a_failing_cell_is_named_with_its_reason(monkeypatch, source, reason):
    monkeypatch.setattr(execution, "CELL_SECONDS", 1)
    with pytest.raises(notebooks.ChapterError) as error:
        notebooks.execute(cells("x = 1", source), "01_made_up.md")
    assert "01_made_up.md, cell 2 failed" in str(error.value)
    assert source in str(error.value)
    assert reason in str(error.value)


def test_a_failing_chapter_is_not_overwritten(md):
    edit(md, "x = 1", "x = 1 / 0")
    before = md.with_suffix(".ipynb").read_text()
    with pytest.raises(notebooks.ChapterError):
        notebooks.record(md, {"gpu": "made up"})
    assert md.with_suffix(".ipynb").read_text() == before


def test_recording_writes_outputs_machine_and_digest(md, capsys):
    edit(md, "x = 1", "x = 7")
    notebooks.record(md, {"gpu": "made up"})
    assert notebooks.problems(md) == []
    assert outputs(md)[1][0].text == "7\n"
    notebook = notebooks.read_published(md.with_suffix(".ipynb"))
    assert notebook.metadata.keys() == {*notebooks.METADATA, notebooks.RECORD}
    assert notebook.metadata[notebooks.RECORD]["gpu"] == "made up"
    assert notebook.metadata[notebooks.RECORD]["seconds"] > 0


def test_wrong_answers_are_in_no_notebook_and_the_pair_is_in_step(md):
    wrong = "```{raw-cell}\n:tags: [wrong]\nIt is two.\n- x = 1\n+ x = 2\nsays: wrong\n```\n"
    edit(md, "More text.", f"{wrong}\nMore text.")
    assert notebooks.problems(md) == []
    before = md.with_suffix(".ipynb").read_text()
    notebooks.sync(md)
    assert md.with_suffix(".ipynb").read_text() == before
    assert wrong.count("\n") == 7 and "It is two." in notebooks.read_all(md).cells[2].source


@pytest.mark.parametrize("md", notebooks.chapters(), ids=lambda md: md.stem)
def test_no_chapter_tells_where_it_was_recorded(md):
    published = notebooks.read_published(md.with_suffix(".ipynb"))
    shown = [
        text
        for cell in notebooks.code_cells(published)
        for output in cell.outputs
        for text in (output.get("text"), *output.get("data", {}).values())
        if isinstance(text, str)
    ]
    shown += [inside for text in shown for inside in packed(text)]
    for text in shown:
        assert relative_paths(text) == text
