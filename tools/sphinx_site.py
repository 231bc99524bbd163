"""What the built site needs beyond what the theme writes: Sphinx's extension of this book.

Three parts. Formulas are turned into MathML when the book is built: browsers draw it by themselves,
screen readers read it, and no page waits for a script (MathJax has more than a megabyte). What is
folded away has one form, whichever of three ways it was written in: HTML's own `<details>`, which
needs no script. And the finished pages are corrected as text, by the rows of `CORRECTIONS`: no
script stops the first paint, nothing is loaded that the page does not use, all of it lies in a
landmark, and what Sphinx and its extensions wrote is HTML. A row that finds nothing in the whole
site is an error: the theme has changed, and the row with it.

Not covered: formulas that `latex2mathml` does not know, which are an error; colours and sizes,
which `book/_static/book.css` has; styles that no page uses, which `sphinx_styles` leaves out.
"""

import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple

import jupytext
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

from tools.exercises import without_wrong_answers

log = logging.getLogger(__name__)


#: What begins a cell that is folded away: an exercise's solution, or code beside the matter.
SOLUTION = '<details class="fold"><summary>Solution</summary>'
CODE = '<details class="fold quiet"><summary>Code</summary>'


#: A player's script: a function of the figure and its data, and how it is called.
# A script begins with a line of its own; the state of a widget holds one as a text, on one line.
PLAYER = (
    r"<script>\((async function \(figure, packed\) {\n.*?\n})\s*\)(\(document\.[^\n]*\))</script>"
)


class Correction(NamedTuple):
    """In each page: what the regular expression `wrong` finds becomes `right`, as in `re.sub`."""

    wrong: str
    right: str | Callable[[re.Match[str]], str]


def in_lines(signature: re.Match[str]) -> str:
    """A signature's parameters, one to a line, as spans."""
    line = '<span class="sig-line" style="display: block; padding-left: 2em">'
    return signature[1] + signature[2].replace("<dd>", line).replace("</dd>", "</span>")


CORRECTIONS = [
    # Icons as scripts: the style sheet has them as a font already.
    Correction(r"<script [^>]*/fontawesome\.js[^>]*></script>", ""),
    # Thebe runs cells on a server elsewhere, which this book does not use.
    Correction(r"<script>const THEBE_JS_URL.*?</script>", ""),
    Correction(r"<script [^>]*/sphinx-thebe\.js[^>]*></script>", ""),
    # Sphinx's search, which `sphinx_search` does in its place.
    Correction(r"<script [^>]*/(?:searchtools|language_data)\.js[^>]*></script>", ""),
    Correction(r"<script [^>]*\bsearchindex\.js[^>]*></script>", ""),
    Correction(r"<script [^>]*\bsphinx_highlight\.js[^>]*></script>", ""),
    # Tabs, of which no page has any.
    Correction(r"<script [^>]*\bdesign-tabs\.js[^>]*></script>", ""),
    # A picture in a menu, which few open.
    Correction(r"<img (?=[^>]*\blogo_colab\.png)", '<img loading="lazy" '),
    # Scripts run when the page has been read, in their order; a module does so of itself.
    Correction(r"<script (?=[^>]*\bsrc=)(?![^>]*\b(?:defer|async)\b)", "<script defer "),
    Correction(r"<script>(?=DOCUMENTATION_OPTIONS\.)", '<script type="module">'),
    # The reader's colours before the first paint, not when the theme's script has come.
    Correction(
        r"document\.documentElement\.dataset\.mode = .*?;\s*"
        r"document\.documentElement\.dataset\.theme = .*?;",
        'const { dataset } = document.documentElement, dark = "(prefers-color-scheme: dark)";\n'
        '    dataset.mode = localStorage.getItem("mode") || "auto";\n'
        '    dataset.theme = dataset.mode !== "auto" ? dataset.mode'
        ' : matchMedia(dark).matches ? "dark" : "light";',
    ),
    # The front page is called as the book is: once will do.
    Correction(r"<title>([^<]*) &#8212; \1</title>", r"<title>\1</title>"),
    # A second header, empty but for the first of two menu buttons: the one that the theme's scripts
    # would find, while the reader has the other.
    Correction(r'(<header id="pst-header"[^>]*>).*?(</header>)', r"\1\2"),
    Correction('<div id="pst-primary-sidebar"', r'\g<0> role="navigation" aria-label="Site"'),
    # The contents beside an article come last in the page; its width is to be known before.
    Correction(
        r'<div class="bd-content">(?=.*<div id="pst-secondary-sidebar")',
        '<div class="bd-content has-contents">',
    ),
    # Types that Sphinx meant to shorten.
    Correction(r"~(?:\w+\.)+(?=[A-Z]\w)", ""),
    # Icons are no words.
    Correction(r'<i (?=class="[^"]*\bfa)', '<i aria-hidden="true" '),
    # Cells that are folded away, as all that is. Whole cells are solutions.
    Correction(
        r'<details class="admonition hide [\w-]+">\s*<summary[^>]*>.*?'
        r"Show code cell (content|source).*?</summary>",
        lambda cell: SOLUTION if cell[1] == "content" else CODE,
    ),
    # What would fold them by script.
    Correction(r"<link [^>]*\btogglebutton\.css[^>]*>", ""),
    Correction(r"<script [^>]*\btogglebutton\.js[^>]*></script>", ""),
    Correction(r"<script>(?:let toggle(?:Hint|OpenOn)|var togglebutton)[^<]*</script>", ""),
    # Code's names, punctuation and spaces have the colour of all code: a span each says nothing.
    Correction(r'<span class="[npw]">([^<]*)</span>', r"\1"),
    # A table's empty corner is no header.
    Correction(r'<th class="head[^"]*"><p></p></th>', "<td></td>"),
    # A number with its spread, or its share, is one thing; so is a size.
    Correction(r'<td class="text-right(?=">(?:<p>)[\d.,±%()x +−e-]+</p>)', r"\g<0> number"),
    Correction(r"<td(?=><p>\d[\d,]*(?: x \d[\d,]*)+</p>)", r'\g<0> class="number"'),
    # Signatures of several lines, as lists of definitions without a term.
    Correction(r'(<span class="sig-paren">\(</span>)\s*<dl>(.*?)</dl>', in_lines),
    # What may scroll is reached by keyboard from the first moment; book.js then looks what does.
    Correction(r"<pre(?=[ >])(?![^>]*tabindex)", '<pre tabindex="0"'),
    Correction(r'<div (?=class="(?:[^"]* )?(?:cell_output|math)[ "])', '<div tabindex="0" '),
    Correction(r'<div (?=style="overflow-x: auto">)', '<div tabindex="0" '),
    # Roles of the bibliography that HTML does not allow.
    Correction(r' role="(?:list|doc-biblioentry)"(?=[^>]*citation)| role="doc-biblioentry"', ""),
]


# ---- Formulas ------------------------------------------------------------------------------------


def mathml(formula: str, display: str = "inline") -> str:
    """A TeX formula as MathML; `display` is "inline" or "block".

    Raises:
      ValueError: it has a command or an alignment that the converter does not know.
    """
    # Within a formula the two mean the same, and the converter knows the second only.
    known = re.sub(r"\b(begin|end){aligned}", r"\1{split}", formula)
    found = convert(known, display=display)
    unknown = re.search(r"\\\w+|>&<", found)
    if unknown:
        raise ValueError(
            f"The formula {formula!r} has {unknown[0].strip('<>')!r}, which latex2mathml leaves as"
            " it is: write it with other commands."
        )
    return found


def visit_math(self, node) -> None:
    """An inline formula, for Sphinx."""
    self.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def visit_displaymath(self, node) -> None:
    """A formula on lines of its own, with its number if it has one, for Sphinx."""
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(mathml(node.astext(), "block") + "</div>\n")
    raise nodes.SkipNode


# ---- What is folded away -------------------------------------------------------------------------


class Fold(nodes.General, nodes.Element):
    """A title, and what is shown when it is pressed."""


class Summary(nodes.TextElement):
    """The title of a `Fold`."""


class CellFolds(SphinxPostTransform):
    """Folds the cell that installs the book in Colab, and what an exercise says as it stands.

    The call that draws a diagram is left out.
    """

    default_priority = 180  # before Folds, whose titles are in the page already
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        """Does so in one document."""
        for cell in [*self.document.findall(_is_cell)]:
            for part in [*cell.children]:
                _fold_part(cell, part)


def _is_cell(node: nodes.Node) -> bool:
    return isinstance(node, nodes.container) and "cell" in node["classes"]


def _fold_part(cell: nodes.container, part: nodes.Node) -> None:
    """Folds, or leaves out, a cell's input or output, if it is one of those."""
    if not isinstance(part, nodes.container):
        return
    classes = part["classes"]
    if "cell_output" in classes and "tag_exercise" in cell["classes"]:
        title = "What the grade says before you begin"
        _replace(part, Fold("", Summary("", title), part.deepcopy()))
    elif "cell_input" in classes and '"google.colab" in sys.modules' in part.astext():
        inside = cell.deepcopy().children
        _replace(cell, Fold("", Summary("", "Setup"), *inside, classes=["quiet"]))
    elif "cell_input" in classes and part.astext().startswith("book.diagram("):
        cell["classes"] = ["cell"]
        cell.remove(part)


def _replace(node: nodes.Element, new: nodes.Element) -> None:
    """Puts a node in another's place; `replace_self` would give it the other's classes."""
    assert node.parent is not None
    node.parent.replace(node, new)


class Folds(SphinxPostTransform):
    """Makes a `Fold` of each `:::{dropdown}`, and of each admonition of the class `dropdown`."""

    default_priority = 190  # before sphinx-design's own
    formats = ("html",)

    def run(self, **kwargs: object) -> None:
        """Does so in one document."""
        for node in [*filter(_is_folded, self.document.findall(nodes.Element))]:
            title, *rest = node.children
            _replace(node, Fold("", Summary("", "", *title.children), *rest))


def _is_folded(node: nodes.Element) -> bool:
    if isinstance(node, nodes.container):
        return node.get("design_component") == "dropdown"
    return isinstance(node, nodes.Admonition) and "dropdown" in node["classes"]


def visit_fold(self, node) -> None:
    """Up to its title, for Sphinx."""
    self.body.append(self.starttag(node, "details", CLASS="fold"))


def depart_fold(self, node) -> None:
    """Its end, for Sphinx."""
    self.body.append("</details>\n")


def visit_summary(self, node) -> None:
    """The title's begin, for Sphinx."""
    self.body.append("<summary>")


def depart_summary(self, node) -> None:
    """The title's end, for Sphinx."""
    self.body.append("</summary>\n")


# ---- Buttons -------------------------------------------------------------------------------------


def add_buttons(app, pagename, templatename, context, doctree) -> None:
    """A chapter's links to JupyterLab and to its .md, in the theme's menus; for Sphinx."""
    source = pathlib.Path(app.srcdir, pagename + ".md")
    if context.get("page_source_suffix") != ".ipynb" or not source.exists():
        return
    groups = [each for each in context["header_buttons"] if each["type"] == "group"]
    menus = {each["label"]: each["buttons"] for each in groups}
    lab = "Open in the JupyterLab that `make lab` has started on this machine"
    menus["launch-buttons"].append(
        {
            "type": "link",
            "url": f"http://localhost:8888/lab/tree/{source.stem}.ipynb",
            "text": "JupyterLab",
            "icon": "fas fa-flask",
            "tooltip": lab,
        }
    )
    copy = pathlib.Path(app.outdir, "_sources", pagename + ".md")
    copy.parent.mkdir(parents=True, exist_ok=True)
    readers = without_wrong_answers(jupytext.read(source, fmt="md:myst"))
    jupytext.write(readers, copy, fmt="md:myst")
    menus["download-buttons"].insert(
        1,
        {
            "type": "link",
            "url": context["pathto"](f"_sources/{pagename}.md", 1),
            "text": ".md",
            "icon": "fas fa-file-lines",
            "tooltip": "Download the chapter's text and code without outputs",
        },
    )


# ---- Pages ---------------------------------------------------------------------------------------


def correct_pages(app, error) -> None:
    """Corrects what was written; for Sphinx, at the end of a build."""
    if error or app.builder.format != "html":
        return
    site = pathlib.Path(app.outdir)
    pages = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    counts = [0] * len(CORRECTIONS)
    for path in pages:
        text = path.read_text("utf-8")
        for i, (wrong, right) in enumerate(CORRECTIONS):
            text, count = re.subn(wrong, right, text, flags=re.DOTALL)
            counts[i] += count
        path.write_text(without_twins(text), "utf-8")
    for (wrong, _), count in zip(CORRECTIONS, counts, strict=True):
        if not count:
            log.warning("sphinx_site: no page has %r any longer: look at CORRECTIONS", wrong)


def without_twins(page: str) -> str:
    """The page with each `<style>`, and each script of a player, once: every player brings its own.

    The page names the first player's script, and the others call it by this name.
    """
    seen: dict[str, str] = {}

    def once(found: re.Match[str]) -> str:
        new = found[0] not in seen
        seen[found[0]] = ""
        return found[0] if new else ""

    def called(found: re.Match[str]) -> str:
        script, arguments = found.groups()
        if name := seen.get(script):
            return f"<script>{name}{arguments}</script>"
        name = seen[script] = f"pipelibPlayer{len(seen)}"
        return f"<script>var {name}={script};{name}{arguments}</script>"

    page = re.sub(r"<style>.*?</style>", once, page, flags=re.DOTALL)
    return re.sub(PLAYER, called, page, flags=re.DOTALL)


def setup(app) -> dict[str, bool]:
    """Registers the extension with Sphinx."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    app.config.html_math_renderer = "mathml"
    app.add_node(Fold, html=(visit_fold, depart_fold))
    app.add_node(Summary, html=(visit_summary, depart_summary))
    app.add_post_transform(CellFolds)
    app.add_post_transform(Folds)
    app.add_js_file("book.js", defer="defer")
    app.add_js_file("search.js", defer="defer")
    app.connect("html-page-context", add_buttons, priority=900)  # the theme's buttons come first
    app.connect("build-finished", correct_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
