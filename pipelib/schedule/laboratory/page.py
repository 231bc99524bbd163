"""The laboratory's files, for a site, and a page that holds all of them.

The model. A page needs its script, its styles, the worker's script, Pyodide, and pipelib itself as
an archive (`package`). A site has them beside its page, and a browser loads them when the
laboratory is opened. `page` puts them into one HTML file, compressed and in base64, 9 MB. That file
needs nothing else, and works when it is opened from disk.
"""

import base64
import html
import io
import json
import pathlib
import zipfile
import zlib
from importlib import resources

import pipelib
from pipelib.schedule.drawing.document import document
from pipelib.schedule.laboratory.pyodide import FILES
from pipelib.schedule.program import Program

#: Scripts and styles, by the name that a site has them under.
SCRIPT, WORKER, STYLE = "laboratory.js", "worker.js", "laboratory.css"
PACKAGE = "pipelib.zip"


def text(name: str) -> str:
    """The text of one of the files beside this module."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def package() -> bytes:
    """The modules of pipelib that check, simulate and draw a saved program, as an archive.

    `tracing` needs JAX and is left out.
    """
    folder, packed = pathlib.Path(pipelib.__file__).parent, io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "__init__.py", "pipelib/__init__.py")
        for file in sorted((folder / "schedule").rglob("*")):
            place = file.relative_to(folder)
            if file.is_file() and not {"__pycache__", "tracing"} & {*place.parts}:
                archive.write(file, f"pipelib/{place.as_posix()}")
    return packed.getvalue()


def page(saved: str, pyodide: pathlib.Path) -> str:
    """A page of one program, whole.

    Args:
      saved: what `Program.save` wrote.
      pyodide: a folder that `pyodide.bring` has filled.

    Raises:
      ValueError: a text that no `Program` is read from.
    """
    name = Program.from_json(saved).name
    files = {each: (pyodide / each).read_bytes() for each in FILES} | {PACKAGE: package()}
    files[WORKER] = text(WORKER).encode()
    packed = {each: base64.b64encode(zlib.compress(files[each], 9)).decode() for each in files}
    subjects = html.escape(json.dumps([{"name": "", "title": name, "summary": "", "text": saved}]))
    main = (
        f"<h1>{html.escape(name)}</h1>\n"
        f'<div class="pipelib-laboratory" data-subjects="{subjects}">\n'
        "<p>The laboratory needs JavaScript.</p>\n</div>\n"
    )
    scripts = (
        f'<script type="application/json" id="pipelib-laboratory-files">{json.dumps(packed)}'
        f'</script>\n<script type="module">\n{text(SCRIPT)}</script>\n'
    )
    return document(f"{name}: laboratory", main, style=text(STYLE), after=scripts)
