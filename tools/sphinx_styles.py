"""Leaves in the site's styles and icon fonts what its pages use: the theme has several times that.

The model. A rule of a style sheet stays if, for one of its selectors, every class and id in it is a
word of the site: of a `class` or an `id` in some page, or of a script, which may set it. What
stands in brackets, as in `:not(.a)`, is not looked at: it narrows, or names alternatives. Rules
within `@media` and its like are treated alike, other at-rules (fonts, animations) stay. Of the icon
fonts stay the glyphs that the rest names, in their TrueType form.

Not covered: names that a script puts together from parts, but for those of `BUILT`.
"""

import pathlib
import re
from collections.abc import Iterator

from fontTools import subset
from fontTools.ttLib import TTFont
from sphinx.application import Sphinx

#: What begins names that bootstrap's script puts together, of tooltips.
BUILT = ("bs-tooltip",)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry."""
    app.connect("build-finished", lighten, priority=900)  # pages are corrected first
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def lighten(app: Sphinx, error: Exception | None) -> None:
    """Rewrites the site's style sheets and fonts, at the end of a build."""
    if error or app.builder.format != "html":
        return
    site = pathlib.Path(app.outdir)
    used = words(site)
    for path in sorted((site / "_static").rglob("*.css")):
        path.write_text(kept(path.read_text("utf-8"), used), "utf-8")
    (theme,) = site.glob("_static/styles/pydata-sphinx-theme.css")
    keep_icons(site / "_static", theme)


# ---- Rules ---------------------------------------------------------------------------------------


def words(site: pathlib.Path) -> set[str]:
    """The classes and ids of the site's pages, and all words of its scripts."""
    found: set[str] = set()
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        for value in re.findall(r'\b(?:class|id)="([^"]*)"', text):
            found.update(value.split())
        for script in re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL):
            found.update(re.findall(r"[\w-]+", script))
    for path in (site / "_static").rglob("*.js"):
        if path.name != "fontawesome.js":  # no page loads it, and it names every icon
            found.update(re.findall(r"[\w-]+", path.read_text("utf-8")))
    return found


def kept(css: str, used: set[str]) -> str:
    """A style sheet without the rules, and the selectors, that nothing in the site has."""
    return "".join(_rules(re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL), used))


def _rules(css: str, used: set[str]) -> Iterator[str]:
    for head, body in _blocks(css):
        if body is None:
            yield head
        elif head.lstrip().startswith(("@media", "@supports")):
            if inner := kept(body, used).strip():
                yield f"{head}{{{inner}}}"
        elif head.lstrip().startswith("@"):
            yield f"{head}{{{body}}}"
        elif selectors := [each for each in _selectors(head) if _is_used(each, used)]:
            yield f"{','.join(selectors)}{{{body}}}"


def _blocks(css: str) -> Iterator[tuple[str, str | None]]:
    """What stands before a pair of braces, and in it; without braces, as `@import`, and None."""
    start = depth = begin = 0
    for mark in re.finditer(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[{};]', css):
        if mark[0] == "{":
            depth += 1
            begin = mark.end() if depth == 1 else begin
        elif mark[0] == "}":
            depth -= 1
            if not depth:
                yield css[start : begin - 1], css[begin : mark.start()]
                start = mark.end()
        elif mark[0] == ";" and not depth:
            yield css[start : mark.end()], None
            start = mark.end()


def _selectors(head: str) -> list[str]:
    """The selectors of a rule, which commas outside of brackets part."""
    return re.findall(r"(?:[^,\[(]|\[[^]]*\]|\((?:[^()]|\([^()]*\))*\))+", head)


def _is_used(selector: str, used: set[str]) -> bool:
    bare = re.sub(r"\[[^]]*\]|\((?:[^()]|\([^()]*\))*\)", "", selector)
    names = (name.replace("\\", "") for name in re.findall(r"[.#]((?:[\w-]|\\.)+)", bare))
    return all(name in used or name.startswith(BUILT) for name in names)


# ---- Icons ---------------------------------------------------------------------------------------


def keep_icons(static: pathlib.Path, theme: pathlib.Path) -> None:
    """Leaves in the theme's icon fonts what its style shows, and their TrueType form only."""
    css = re.sub(r'url\([^)]*\.woff2\) format\("woff2"\),', "", theme.read_text("utf-8"))
    theme.write_text(css, "utf-8")
    shown = {int(code, 16) for code in re.findall(r'"\\(f\w{3})"', css)}
    shown |= {ord(icon) for icon in re.findall(r'--pst-icon-[\w-]+:"(.)"', css)}  # of boxes' titles
    for path in static.glob("vendor/fontawesome/webfonts/*.ttf"):
        font = TTFont(path)
        subsetter = subset.Subsetter()
        subsetter.populate(unicodes=shown)
        subsetter.subset(font)
        font.save(path)
    for path in static.glob("vendor/fontawesome/webfonts/*.woff2"):
        path.unlink()
