"""The player of layouts in the built site: Sphinx's extension for its page.

The model. The directive `layouts` writes the element that the player's script fills, with what
stands there where no script runs. At the end of a build a folder of the site gets the script, its
styles and the numbers of `pipelib_book.layouts`.
"""

import pathlib
import shutil

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from pipelib_book import layouts

#: The folder within the site, and its files.
FOLDER = "_static/layouts"
SCRIPT, STYLE, DATA = "layouts.js", "layouts.css", "layouts.json"
#: What stands there until the script has run, which it does not in a page opened as a file.
UNSERVED = (
    "The player needs JavaScript and a page that comes from a server. If you opened this page as a"
    " file, run <code>python -m http.server</code> in its folder, and open the address that it"
    " prints."
)
UNSCRIPTED = "Without JavaScript, the table below still says what each layout is for."


class Layouts(SphinxDirective):
    """The place of the player on a page."""

    def run(self) -> list[nodes.Node]:
        """The element."""
        made = element("../" * self.env.docname.count("/") + FOLDER)
        return [nodes.raw("", made, format="html")]


def element(there: str) -> str:
    """The element, with the addresses of its styles and its script in the folder `there`."""
    return (
        f'<link rel="stylesheet" href="{there}/{STYLE}">'
        f'<div class="pipelib-layouts"><p>{UNSERVED}</p></div>'
        f"<noscript><p>{UNSCRIPTED}</p></noscript>"
        f'<script type="module" src="{there}/{SCRIPT}"></script>'
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry."""
    app.add_directive("layouts", Layouts)
    app.connect("build-finished", finish, priority=950)  # after the styles that no page uses went
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def finish(app: Sphinx, error: Exception | None) -> None:
    """Writes the player's script, its styles and its numbers, once the pages are written."""
    if error is None and app.builder.format == "html":
        folder = pathlib.Path(app.outdir, FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        for name in (SCRIPT, STYLE):
            shutil.copyfile(pathlib.Path(layouts.__file__).with_name(name), folder / name)
        (folder / DATA).write_text(layouts.data(), "utf-8")
