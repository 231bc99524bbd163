"""The chapters' notebooks: kept in step, executed, recorded, checked.

A chapter is a pair. `book/NN_name.md` (MyST Markdown) is what a person edits;
`book/NN_name.ipynb` has the same cells with the outputs of the last run on a
Hopper GPU, and is what the site publishes. Jupytext reads and writes the pair,
nbclient executes it; this tool adds the promise that what is published is what
the code does. (The `.md` also has wrong answers to exercises, for tests alone: no
notebook has these. See `tools.exercises`.)

| command       | what it does                                                 |
| ------------- | ------------------------------------------------------------ |
| `sync`        | .md -> .ipynb; keeps the outputs that still hold             |
| `refresh`     | the same, and makes anew, on a CPU, what needs no GPU        |
| `record`      | executes on a Hopper GPU, stores the outputs and a record    |
|               | (`--interpreted`: on any machine, in the interpreter, what   |
|               | no GPU has run yet: a chapter, or the new cells of one)      |
| `check`       | one sentence for each pair or record that no longer holds    |
| `run --cpu`   | executes in the interpreter, writes nothing                  |

The record stands in the notebook's metadata under `pipelib_record`: the
provenance (machine, versions, time), the seconds the chapter took,
`outputs_digest`, the hash of what its cells put out, and `rehearsal`: for each
code cell the digests of the kernels that it compiled, and of what it shows when
it is rehearsed on a CPU (`tools.rehearsal`). An output holds as long as the
rehearsal is what it was, however the code is written. A chapter that was just
recorded has a `source_digest` instead, of its code and all of pipelib's, until
`sync` rehearses it: that need not be done while a GPU waits.

A new cell needs no GPU if it compiles no kernel and shows the same whatever a
GPU gives. Of a chapter that has grown otherwise, the interpreter can run what is
new. The other cells keep the GPU's outputs, and the record its provenance and the
numbers of the cells that were interpreted; the chapter's first cell says so. A cell
that shows measured and simulated numbers keeps what the GPU gave, and says so, when
the simulator has changed.
"""

import argparse
import copy
import difflib
import hashlib
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

import jupytext
import nbformat
from nbformat import NotebookNode

from pallascope.bench import provenance
from tools import rehearsal
from tools.execution import BOOK, ON_CPU, ROOT, ChapterError, code_cells, environment, execute
from tools.exercises import without_wrong_answers

RECORD = "pipelib_record"
PACKAGES = (ROOT / "pipelib", ROOT / "pallascope")
# What every chapter's notebook says of its language; no more, so that the same
# chapter gives the same file wherever it was executed.
METADATA = {
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}

# What a tag folds away on a page, JupyterLab and Colab fold by a cell's metadata.
FOLDS = {
    "hide-input": {"jupyter": {"source_hidden": True}, "cellView": "form"},
    "hide-cell": {"jupyter": {"source_hidden": True, "outputs_hidden": True}, "cellView": "form"},
}


# ---- Pairs ------------------------------------------------------------------


def chapters(book: pathlib.Path = BOOK) -> list[pathlib.Path]:
    """The chapters' .md files, in the book's order."""
    return sorted(book.glob("[0-9]*_*.md"))


def read_all(md: pathlib.Path) -> NotebookNode:
    """All cells of a chapter's .md, with the wrong answers to its exercises."""
    return jupytext.read(md, fmt="md:myst")


def read_source(md: pathlib.Path) -> NotebookNode:
    """A chapter as its .md has it for readers: no wrong answers, no outputs, stable cell ids.

    What its page folds away is folded in JupyterLab and in Colab, too.
    """
    notebook = without_wrong_answers(read_all(md))
    notebook.metadata = nbformat.from_dict(METADATA)
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        text = f"{cell.cell_type}\n{cell.source}"
        name = hashlib.sha256(text.encode()).hexdigest()[:8]
        seen[name] = seen.get(name, 0) + 1
        cell.id = f"{name}-{seen[name]}"
        for tag in FOLDS.keys() & {*cell.metadata.get("tags", [])}:
            cell.metadata |= nbformat.from_dict(FOLDS[tag])
    return notebook


def read_published(ipynb: pathlib.Path) -> NotebookNode | None:
    """A chapter as its .ipynb has it; None if there is no such file."""
    if not ipynb.exists():
        return None
    return nbformat.read(ipynb, as_version=4)


def write_published(notebook: NotebookNode, ipynb: pathlib.Path) -> None:
    """Writes the .ipynb, unless that would change nothing."""
    text = nbformat.writes(notebook) + "\n"
    if not ipynb.exists() or ipynb.read_text("utf-8") != text:
        ipynb.write_text(text, "utf-8")


def code(notebook: NotebookNode) -> list[str]:
    """The sources of the cells that are executed."""
    return [cell.source for cell in code_cells(notebook)]


def sync(md: pathlib.Path, refresh: bool = False) -> None:
    """Writes the .ipynb from the .md, with the outputs and the record that still hold.

    Where code has changed, or to `refresh`, the chapter is rehearsed. A cell whose
    rehearsal is as recorded keeps its output. A cell that has nothing of a GPU in
    it gets a new output. If any other changed, no outputs are left, and no record.
    """
    ipynb = md.with_suffix(".ipynb")
    notebook, published = read_source(md), read_published(ipynb)
    if published is not None:
        _take_what_holds(notebook, published, refresh)
    write_published(notebook, ipynb)


def _take_what_holds(notebook: NotebookNode, published: NotebookNode, refresh: bool) -> None:
    """Gives a chapter the published outputs and record that still hold, as `sync` says."""
    kept = published.metadata.get(RECORD)
    if kept is not None and "rehearsal" not in kept and is_fresh(notebook, kept):
        _complete(notebook, published, kept)
    elif code(published) == code(notebook) and not refresh:
        _take_outputs(notebook, published)
        if kept is not None:
            notebook.metadata[RECORD] = kept
    elif kept is not None and "rehearsal" in kept:
        _carry_over(notebook, published, kept)


def _take_outputs(notebook: NotebookNode, published: NotebookNode) -> None:
    pairs = zip(code_cells(notebook), code_cells(published), strict=True)
    for cell, old in pairs:
        cell.outputs, cell.execution_count = old.outputs, old.execution_count


def _complete(notebook: NotebookNode, published: NotebookNode, kept: NotebookNode) -> None:
    """Rehearses a chapter that was just recorded, and keeps its outputs."""
    scenes = rehearse(copy.deepcopy(notebook), kept)
    _take_outputs(notebook, published)
    complete = {name: kept[name] for name in kept if name != "source_digest"}
    complete["rehearsal"] = [scene.to_json() for scene in scenes]
    notebook.metadata[RECORD] = nbformat.from_dict(complete)


def _carry_over(notebook: NotebookNode, published: NotebookNode, kept: NotebookNode) -> None:
    """Gives a chapter the outputs that still hold and new ones where no GPU is needed.

    Does nothing if a GPU is needed.
    """
    rehearsed = copy.deepcopy(notebook)
    now, before = rehearse(rehearsed, kept), scenes_of(kept)
    outputs, old = [], code_cells(published)
    sources, again = code(notebook), None
    for i, j in enumerate(_counterparts(code(published), sources)):
        cell = code_cells(rehearsed)[i]
        if j is None or (now[i] != before[j] and sources[i] != old[j].source):
            # A new or edited cell may show a stand-in's number.
            again = again or rehearse(copy.deepcopy(notebook), kept, take=1)
            if again[i] != now[i]:
                return
        if j is None and not now[i].kernels and "interpreted_cells" not in kept:
            outputs.append((cell.outputs, cell.execution_count))
        elif j is not None and now[i] == before[j]:
            outputs.append((old[j].outputs, old[j].execution_count))
        elif j is not None and (each := _merged(old[j], before[j], cell, now[i])) is not None:
            outputs.append((each, cell.execution_count))
        else:
            return
    for cell, (shown, count) in zip(code_cells(notebook), outputs, strict=True):
        cell.outputs, cell.execution_count = shown, count
    record = {**kept, "rehearsal": [scene.to_json() for scene in now]}
    record["outputs_digest"] = outputs_digest(notebook)
    notebook.metadata[RECORD] = nbformat.from_dict(record)


def _needs_no_gpu(old: NotebookNode, before: rehearsal.Scene, now: rehearsal.Scene) -> bool:
    """Whether a cell showed just what its rehearsal did, and compiles the same kernels."""
    return rehearsal.shown(old.outputs) == before.shown and now.kernels == before.kernels


def _merged(
    old: NotebookNode, before: rehearsal.Scene, new: NotebookNode, now: rehearsal.Scene
) -> list[NotebookNode] | None:
    """A cell's outputs without a GPU, if it compiles the same kernels; None if it needs one."""
    if now.kernels != before.kernels:
        return None
    return rehearsal.merged(old.outputs, before.shown, new.outputs, now.shown)


def _counterparts(before: list[str], now: list[str]) -> list[int | None]:
    """For each cell, the number of the cell that it was, if it is not new."""
    if len(before) == len(now):
        return [*range(len(now))]
    found: list[int | None] = [None] * len(now)
    matcher = difflib.SequenceMatcher(a=before, b=now, autojunk=False)
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        if kind == "equal" or (kind == "replace" and a_end - a == b_end - b):
            found[b:b_end] = range(a, a_end)
    return found


# ---- Records ----------------------------------------------------------------


def source_digest(notebook: NotebookNode) -> str:
    """SHA-256 of the chapter's code cells and of all code of the packages."""
    parts = [provenance.code_digest(*PACKAGES), *code(notebook)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def is_fresh(notebook: NotebookNode, kept: NotebookNode) -> bool:
    """Whether a chapter was recorded with the very code that is here."""
    return kept.get("source_digest") == source_digest(notebook)


def rehearse(notebook: NotebookNode, kept: NotebookNode, take: int = 0) -> list[rehearsal.Scene]:
    """The scenes of a chapter, as on the GPU of its record."""
    gpu = kept["gpu"] or "NVIDIA H200"  # of what was interpreted so far
    capability = kept.get("compute_capability") or "9.0"
    return rehearsal.rehearse(notebook, gpu, capability, take)


def scenes_of(kept: NotebookNode) -> list[rehearsal.Scene]:
    """The scenes of a recorded chapter."""
    return [rehearsal.Scene.from_json(values) for values in kept["rehearsal"]]


def outputs_digest(notebook: NotebookNode) -> str:
    """SHA-256 of the outputs, as they read once they have been written."""
    stored = nbformat.reads(nbformat.writes(notebook), as_version=4)
    outputs = [cell.outputs for cell in code_cells(stored)]
    text = json.dumps(outputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def record(md: pathlib.Path, machine: dict, **env: str) -> None:
    """Executes a chapter and writes its .ipynb with outputs and record.

    Nothing is written if a cell fails.
    """
    notebook, ipynb = read_source(md), md.with_suffix(".ipynb")
    start = time.monotonic()
    execute(notebook, md.name, **env)
    seconds = round(time.monotonic() - start, 1)
    kept = {**machine, "seconds": seconds}
    published, before = read_published(ipynb), read_record(md)
    if machine["gpu"] is None and published and before and before["gpu"]:
        kept = {**before}
        for name in ("interpreted_cells", "rehearsal"):
            kept.pop(name, None)
        outdated = _outdated(read_source(md), published, before)
        if new := keep_outputs(notebook, published, before, outdated):
            kept["interpreted_cells"] = new
    for text in take_warnings(notebook):
        print(f"{md.name}: {text}", file=sys.stderr)
    kept["source_digest"] = source_digest(notebook)
    kept["outputs_digest"] = outputs_digest(notebook)
    notebook.metadata = nbformat.from_dict({**METADATA, RECORD: kept})
    write_published(notebook, ipynb)
    print(f"{md.name}: recorded in {seconds} s.")


# What is said below a cell that has not, or not all, what a GPU gave.
_AFTER = "(This cell ran after the recording, without a GPU.)"
_EARLIER = "(The simulated numbers of this cell are of an earlier model.)"


class Outdated(NamedTuple):
    """The numbers of cells that are as they were, but show something else now.

    `partly` are those with numbers of a GPU, which still hold, beside others; `whole` have none.
    """

    partly: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()


def _outdated(notebook: NotebookNode, published: NotebookNode, record: NotebookNode) -> Outdated:
    """Those of a recorded chapter; none where it was not rehearsed."""
    if "rehearsal" not in record:
        return Outdated()
    old, sources = code_cells(published), code(notebook)
    now, before = rehearse(notebook, record), scenes_of(record)
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for number, place in enumerate(_counterparts(code(published), sources)):
        if place is None or old[place].source != sources[number] or now[number] == before[place]:
            continue
        found[_needs_no_gpu(old[place], before[place], now[number])].add(number)
    return Outdated(frozenset(found[False]), frozenset(found[True]))


def keep_outputs(
    notebook: NotebookNode,
    recorded: NotebookNode,
    record: dict,
    outdated: Outdated = Outdated(),  # noqa: B008 - it is a value
) -> list[int]:
    """Puts what a GPU gave in place of what the interpreter did.

    Of the code cells that are as they were, and of the first, which sets up. Of cells that are
    `outdated` a part holds, or nothing. A cell of which a part holds, by an earlier recording,
    keeps that part. Says below the first cell how many others there are, if any, and marks these;
    returns their numbers.
    """
    before, parts = _of_a_gpu(recorded, record.get("interpreted_cells", []))
    before |= parts
    first, *cells = code_cells(notebook)
    ran, partly = [], []
    for number, cell in enumerate(cells, 1):
        if cell.source not in before:
            ran.append(number)
            mark = _note(_AFTER)
            cell.outputs = [*cell.outputs, mark]
        elif number in outdated.partly or cell.source in parts:
            partly.append(number)
            mark = _note(_EARLIER)
            cell.outputs = [*before[cell.source], mark]
        elif number not in outdated.whole:
            cell.outputs = before[cell.source]
    own = code_cells(recorded)[0].outputs
    own = own[:-1] if "interpreted_cells" in record else own
    said = _said_of(len(ran), len(partly), record["gpu"])
    first.outputs = [*own, _note(said)] if said else own
    return sorted(ran + partly)


def _of_a_gpu(
    recorded: NotebookNode, interpreted: list[int]
) -> tuple[dict[str, list[NotebookNode]], dict[str, list[NotebookNode]]]:
    """What a GPU gave, by the cells' sources: all that a cell shows, or a part that still holds."""
    whole, parts = {}, {}
    for number, cell in enumerate(code_cells(recorded)):
        if number not in interpreted:
            whole[cell.source] = cell.outputs
        elif cell.outputs and cell.outputs[-1].get("data", {}).get("text/plain") == _EARLIER:
            parts[cell.source] = cell.outputs[:-1]
    return whole, parts


def _said_of(ran: int, partly: int, gpu: str) -> str:
    """What the first cell says of those that are not of the recording as a whole."""
    sentences = []
    if ran:
        some = f"{ran} ran" if ran > 1 else "one ran"
        sentences.append(
            f"Of the cells below, {some} after this recording, without a GPU: there it says so."
        )
    if partly:
        some = f"{partly} cells show" if partly > 1 else "One cell shows"
        sentences.append(
            f"{some} numbers of an earlier simulator beside those of the GPU: there it says so."
        )
    return " ".join([*sentences, f"The others show what the {gpu} gave."]) if sentences else ""


def _note(text: str) -> NotebookNode:
    """An output that says this."""
    data = {"text/markdown": text, "text/plain": text}
    return nbformat.v4.new_output("display_data", data=data)


def take_warnings(notebook: NotebookNode) -> list[str]:
    """Removes what cells wrote to stderr, and returns it.

    These are libraries' warnings, with paths of the machine that records: they
    are for who records.
    """
    taken = []
    for cell in code_cells(notebook):
        is_warning = lambda output: output.get("name") == "stderr"
        taken += [output.text for output in cell.outputs if is_warning(output)]
        cell.outputs = [o for o in cell.outputs if not is_warning(o)]
    return taken


def recording_machine(interpreted: bool = False) -> dict:
    """The provenance of a process like the chapters' own.

    Asked in a process of its own: this one must leave the GPU's memory alone.
    """
    command = [sys.executable, "-m", "pallascope.bench.provenance"]
    env = environment(**(ON_CPU if interpreted else {}))
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("JAX does not start here (see above): mend that first.")
    machine = json.loads(done.stdout)
    if interpreted:
        return machine
    if not (machine["compute_capability"] or "").startswith("9."):
        found = machine["gpu"] or "no GPU"
        sys.exit(
            f"The chapters' outputs are recorded on a Hopper GPU, and JAX"
            f" found {found} here: run this on an H100 or H200, with JAX for"
            " CUDA installed."
        )
    return machine


def problems(md: pathlib.Path) -> list[str]:
    """What is wrong with a chapter's pair and record, a sentence each."""
    ipynb = md.with_suffix(".ipynb")
    source, published = read_source(md), read_published(ipynb)
    if published is None:
        return [f"{ipynb.name} is missing: run `make sync`."]
    found = []
    if not alike(source.cells, published.cells):
        found.append(f"{ipynb.name} has not the cells of {md.name}: run `make sync`.")
    kept = published.metadata.get(RECORD)
    if kept is None:
        found.append(
            f"{ipynb.name} has no outputs of a GPU run: run `make record` on a Hopper GPU, or,"
            f" without one, `python -m tools.notebooks record --interpreted {md.stem}`."
        )
    elif found or is_fresh(source, kept):
        pass  # the cells come first; what was just recorded holds
    elif "rehearsal" not in kept:
        found.append(
            f"{ipynb.name} was recorded with other code than the chapter and"
            " pipelib now have, and not rehearsed since: run `make record` on a"
            " Hopper GPU."
        )
    else:
        found += _stale_cells(ipynb.name, source, published, kept)
    if kept is None:
        return found
    if kept["outputs_digest"] != outputs_digest(published):
        found.append(
            f"{ipynb.name} shows other outputs than were recorded (were they"
            " saved by JupyterLab?): restore the file, or run `make record` on"
            " a Hopper GPU."
        )
    return found


def _stale_cells(
    name: str, source: NotebookNode, published: NotebookNode, kept: NotebookNode
) -> list[str]:
    """A sentence for each cell whose rehearsal is not what was recorded."""
    found = []
    cells, now, before = code_cells(published), rehearse(source, kept), scenes_of(kept)
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        cell, first = cells[number], cells[number].source.splitlines()[0]
        where = f"{name}, code cell {number + 1} ({first!r})"
        if new.kernels != old.kernels:
            found.append(
                f"{where} compiles other kernels than were recorded,"
                f" {_listed(new.kernels)} and not {_listed(old.kernels)}: run `make record` on a"
                " Hopper GPU."
            )
        elif new != old and _needs_no_gpu(cell, old, new):
            found.append(
                f"{where} shows what its code no longer gives: run `make refresh`,"
                " which needs no GPU."
            )
        elif new != old:
            found.append(
                f"{where} makes something else of what a GPU gives than when it was"
                " recorded: run `make record` on a Hopper GPU."
            )
    return found


def _listed(kernels: tuple[str, ...]) -> str:
    """The digests of some kernels, in words."""
    return ", ".join(kernels) or "none"


def read_record(md: pathlib.Path) -> NotebookNode | None:
    """What a chapter's .ipynb says of its last run; None if there was none."""
    published = read_published(md.with_suffix(".ipynb"))
    return published.metadata.get(RECORD) if published else None


def is_interpreted(md: pathlib.Path) -> bool:
    """Whether a chapter's outputs, or some of them, are the interpreter's."""
    kept = read_record(md)
    if kept is None:
        return False
    return kept["gpu"] is None or "interpreted_cells" in kept


def alike(left: Iterable[NotebookNode], right: Iterable[NotebookNode]) -> bool:
    """Whether two lists of cells have the same kinds, texts and tags."""
    return [*map(_cell_key, left)] == [*map(_cell_key, right)]


def _cell_key(cell: NotebookNode) -> tuple:
    return cell.cell_type, cell.source, dict(cell.metadata)


# ---- Command line -----------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; the exit code is 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in COMMANDS:
        command = commands.add_parser(name)
        command.add_argument("chapters", nargs="*", help="names, or parts of them (all)")
        if name == "record":
            command.add_argument("--force", action="store_true", help="also what is up to date")
            command.add_argument(
                "--replace",
                action="store_true",
                help="with --interpreted: changed cells lose a GPU's outputs",
            )
            command.add_argument(
                "--interpreted",
                action="store_true",
                help="without a GPU, what none has run yet",
            )
        if name == "run":
            command.add_argument("--cpu", action="store_true", help="in the interpreter")
    options = parser.parse_args(arguments)
    wanted = select(options.chapters)
    try:
        return COMMANDS[options.command](wanted, options)
    except ChapterError as error:
        print(error, file=sys.stderr)
        return 1


def select(parts: list[str]) -> list[pathlib.Path]:
    """The chapters whose names contain one of `parts`; all for none."""
    every = chapters()
    unknown = [p for p in parts if not any(p in md.name for md in every)]
    if unknown:
        names = ", ".join(md.stem for md in every)
        sys.exit(f"There is no chapter {unknown[0]!r}: choose from {names}.")
    return [md for md in every if not parts or any(p in md.name for p in parts)]


def sync_command(wanted: list[pathlib.Path], options) -> int:
    """`sync`."""
    for md in wanted:
        sync(md)
    return 0


def refuse_to_lose(wanted: list[pathlib.Path]) -> None:
    """Ends the process if outputs of a GPU would be replaced."""
    for md in wanted:
        published, kept = read_published(md.with_suffix(".ipynb")), read_record(md)
        if published is None or kept is None or kept["gpu"] is None:
            continue
        now, new = code(read_source(md)), kept.get("interpreted_cells", [])
        before = code_cells(published)
        if any(
            cell.outputs and cell.source not in now and number not in [0, *new]
            for number, cell in enumerate(before)
        ):
            sys.exit(
                f"{md.name} has outputs recorded on {kept['gpu']} of cells that"
                " have changed, and the interpreter's would replace them:"
                " record it on a Hopper GPU, name other chapters, or give --replace."
            )


def refresh_command(wanted: list[pathlib.Path], options) -> int:
    """`refresh`."""
    for md in wanted:
        sync(md, refresh=True)
    return 0


def record_command(wanted: list[pathlib.Path], options) -> int:
    """`record`: the chapters that are not up to date, or with --force all.

    Interpreted outputs are never up to date on a GPU.
    """
    interpreted = options.interpreted
    stale = [
        md
        for md in wanted
        if options.force or (is_interpreted(md) and not interpreted) or problems(md)
    ]
    if interpreted and not options.replace:
        refuse_to_lose(stale)
    machine = recording_machine(interpreted)
    failed = False
    for md in stale:
        try:
            record(md, machine, **(ON_CPU if interpreted else {}))
        except ChapterError as error:  # the others' recordings are worth having
            print(error, file=sys.stderr)
            failed = True
    print(f"{len(wanted) - len(stale)} of {len(wanted)} were up to date.")
    return 1 if failed else 0


def check_command(wanted: list[pathlib.Path], options) -> int:
    """`check`."""
    found = [line for md in wanted for line in problems(md)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


def run_command(wanted: list[pathlib.Path], options) -> int:
    """`run`."""
    env = ON_CPU if options.cpu else {}
    for md in wanted:
        execute(read_source(md), md.name, **env)
        print(f"{md.name}: ran to its end.")
    return 0


COMMANDS = {
    "sync": sync_command,
    "refresh": refresh_command,
    "record": record_command,
    "check": check_command,
    "run": run_command,
}

if __name__ == "__main__":
    sys.exit(main())
