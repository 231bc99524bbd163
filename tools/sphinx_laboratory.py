"""The laboratory's files in the built site: Sphinx's extension for its page.

The model. The directive `laboratory` writes the element that a page's script fills, with the
kernels of `pipelib_book.laboratory` and the challenges of `pipelib_book.challenges`. With a
kernel's name it is small: it has this kernel only, and opens in place of the player beside it. At
the end of a build a folder of the site gets the laboratory's files and the kernels' programs, and
Pyodide, if `make book` could bring it. Nothing of it is loaded until a reader opens the laboratory.
A chapter's link to the challenges leads to the chapter's own: the page opens with the first.
"""

import dataclasses
import functools
import html
import json
import pathlib
import shutil

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from pipelib_book.challenges import CHALLENGES
from pipelib_book.laboratory import Subject, page, pyodide, subjects
from pipelib_book.laboratory.goals import solutions
from tools import door, notebooks
from tools.execution import ROOT

#: The folder within the site, and where Pyodide is kept.
FOLDER = "_static/laboratory"
PYODIDE = ROOT / ".pyodide"
ABSENT = (
    "<strong>The laboratory is closed in this copy of the book</strong>, which was built without"
    " Pyodide, the Python that runs in a page. What follows says what an open one does. (Whoever"
    " builds the book: run <code>make book</code> again where Pyodide's registry can be reached.)"
)
#: What stands there until the script has run, which it does not in a page opened as a file.
UNSERVED = (
    "The laboratory needs JavaScript and a page that comes from a server. If you opened this page"
    " as a file, run <code>python -m http.server</code> in its folder, and open the address that"
    " it prints."
)


class Laboratory(SphinxDirective):
    """The place of a laboratory on a page."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """An element that the script fills; without Pyodide, a sentence that says so."""
        page = "" if self.env.docname == self.config.root_doc else self.env.docname
        made = element("../" * page.count("/") + FOLDER, pyodide.is_in(PYODIDE), *self.arguments)
        return [nodes.raw("", made, format="html")]


def element(there: str, is_here: bool, name: str = "") -> str:
    """The element, with the addresses of its styles and its script.

    Args:
      there: the way to the laboratory's folder.
      is_here: whether Pyodide is.
      name: the kernel of a small laboratory, which says nothing where it is closed.
    """
    chosen = [kernels()[name]] if name else subjects()
    data = {"subjects": [shown(subject) for subject in chosen]}
    data |= {} if name else {"challenges": challenges()}
    held = "".join(f' data-{key}="{html.escape(json.dumps(data[key]))}"' for key in data)
    script = f'<script type="module" src="{there}/laboratory.js"></script>' if is_here else ""
    chapters = dict.fromkeys(each.chapter for each in (() if name else CHALLENGES))
    places = "".join(f'<span id="chapter-{chapter}"></span>' for chapter in chapters)
    return (
        f'<link rel="stylesheet" href="{there}/laboratory.css">{places}'
        f'<div class="pipelib-laboratory"{held}{" data-small" if name else ""}>'
        f"{'' if name else inside(is_here)}</div>{script}"
    )


def kernels() -> dict[str, Subject]:
    """All kernels by their names: the page's, and the front page's."""
    return {subject.name: subject for subject in (*subjects(), door.subject())}


def shown(subject: Subject) -> dict[str, object]:
    """A kernel as the page has it."""
    return {
        "name": subject.name,
        "title": subject.title,
        "summary": subject.summary,
        "file": file(subject),
        "slots": {slots: file(subject, slots) for slots in sorted(subject.slots)},
    }


@functools.cache
def challenges() -> list[dict[str, object]]:
    """The challenges as the page has them, each with how many single edits solve it."""
    programs = {subject.name: subject.trace() for subject in subjects()}
    pages = {int(md.stem[:2]): md.stem for md in notebooks.chapters()}
    return [
        c._asdict()
        | {
            "goal": dataclasses.asdict(c.goal),
            "page": f"{pages[c.chapter]}.html",
            "singles": len(solutions(programs[c.subject], c.goal)),
        }
        for c in CHALLENGES
    ]


def file(subject: Subject, slots: int | None = None) -> str:
    """The file of a kernel's program; of a number of slots that it does not begin with, its own."""
    is_first = slots is None or slots == subject.slots[0]
    return f"{subject.name}.json" if is_first else f"{subject.name}-{slots}.json"


def inside(is_here: bool) -> str:
    """What the element has before its script runs: why it is closed."""
    return f"<p>{UNSERVED if is_here else ABSENT}</p>"


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry."""
    app.add_directive("laboratory", Laboratory)
    app.connect("doctree-resolved", lead_to_own)
    app.connect("build-finished", finish, priority=950)  # after the styles that no page uses went
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def lead_to_own(_app: Sphinx, document: nodes.document, page: str) -> None:
    """Has a chapter's link to the challenges lead to the chapter's own."""
    number = pathlib.PurePath(page).name.partition("_")[0]
    if not any(str(each.chapter) == number.lstrip("0") for each in CHALLENGES):
        return
    for link in document.findall(nodes.reference):
        if link.get("refuri", "").endswith("laboratory.html#challenges"):
            link["refuri"] = link["refuri"].replace("#challenges", f"#chapter-{int(number)}")


def finish(app: Sphinx, error: Exception | None) -> None:
    """Writes the folder, once the pages are written."""
    if error is None and app.builder.format == "html":
        write(pathlib.Path(app.outdir, FOLDER))


def write(folder: pathlib.Path) -> None:
    """The laboratory's folder: its files, and the sizes of those that a worker loads."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (page.SCRIPT, page.WORKER, page.STYLE):
        (folder / name).write_text(page.text(name), "utf-8")
    for subject in kernels().values():
        for slots in subject.slots or (None,):
            program = subject.trace(slots) if slots else subject.trace()
            program.renamed(subject.title).save(folder / file(subject, slots))
    if not pyodide.is_in(PYODIDE):
        return
    (folder / page.PACKAGE).write_bytes(page.package())
    for name in pyodide.FILES:
        shutil.copyfile(PYODIDE / name, folder / name)
    loaded = (*pyodide.FILES, page.PACKAGE)
    sizes = {name: (folder / name).stat().st_size for name in loaded}
    (folder / "sizes.json").write_text(json.dumps(sizes), "utf-8")
