"""The laboratory's files, for a site, and a page that holds all of them.

The model. A page needs its script, its styles, the worker's script, Pyodide, and pallascope as an
archive (`package`). A site has them beside its page, and a browser loads them when the
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

import pallascope
from pallascope.drawing.document import document
from pallascope.program import Program
from pipelib_book.laboratory.pyodide import FILES

#: Scripts and styles, by the name that a site has them under.
SCRIPT, WORKER, STYLE = "laboratory.js", "worker.js", "laboratory.css"
PACKAGE = "pallascope.zip"
# What of pallascope no browser needs.
_OF_JAX = {"__pycache__", "bench", "command", "compiling", "testing.py", "tracing", "tuning"}


def text(name: str) -> str:
    """The text of one of the files beside this module."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def package() -> bytes:
    """An archive of the modules that check, simulate, draw and edit a saved program.

    What needs JAX is left out. So is all else of this kit, whose packages are empty there.
    """
    here, packed = pathlib.Path(__file__).parent, io.BytesIO()
    folder = pathlib.Path(pallascope.__file__).parent
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            place = file.relative_to(folder)
            if file.is_file() and not _OF_JAX & {*place.parts}:
                archive.write(file, f"pallascope/{place.as_posix()}")
        for empty in "pipelib_book", "pipelib_book/laboratory":
            archive.writestr(f"{empty}/__init__.py", "")
        for name in "bench.py", "goals.py", "whole.py":
            archive.write(here / name, f"pipelib_book/laboratory/{name}")
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
