"""Leaves in the site's styles and icon fonts what its pages use: the theme has several times that.

The model. A rule of a style sheet stays if, for one of its selectors, every class and id in it is a
word of the site: of a `class` or an `id` in some page, or of a script, which may set it. What
stands in brackets, as in `:not(.a)`, is not looked at: it narrows, or names alternatives. Rules
within `@media` and its like are treated alike, other at-rules (fonts, animations) stay. Of the icon
fonts stay the glyphs that the rest names, in their TrueType form.

Not covered: names that a script puts together from parts, but for those of `BUILT`; rules in
rules.
"""

import itertools
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import tinycss2
from fontTools import subset
from fontTools.ttLib import TTFont
from sphinx.application import Sphinx
from tinycss2.ast import Node

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
    return "".join(_kept(tinycss2.parse_component_value_list(css, skip_comments=True), used))


def _kept(css: list[Node], used: set[str]) -> Iterator[str]:
    for rule in tinycss2.parse_rule_list(css, skip_whitespace=True):
        if rule.type == "at-rule" and rule.lower_at_keyword in ("media", "supports"):
            if inner := "".join(_kept(rule.content or [], used)):
                yield f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{inner}}}"
        elif rule.type != "qualified-rule":
            yield rule.serialize()
        elif selectors := [each for each in _selectors(rule.prelude) if _is_used(each, used)]:
            head = ",".join(map(tinycss2.serialize, selectors))
            yield f"{head}{{{tinycss2.serialize(rule.content)}}}"


def _selectors(head: list[Node]) -> Iterator[list[Node]]:
    """The selectors of a rule; what stands in brackets is one node, with its commas."""
    for is_comma, nodes in itertools.groupby(head, key=lambda node: node == ","):
        if not is_comma:
            yield [*nodes]


def _is_used(selector: list[Any], used: set[str]) -> bool:
    names = [
        node.value
        for before, node in zip([None, *selector], selector)
        if node.type == "hash" or (node.type == "ident" and before == ".")
    ]
    return all(name in used or name.startswith(BUILT) for name in names)


# ---- Icons ---------------------------------------------------------------------------------------


def keep_icons(static: pathlib.Path, theme: pathlib.Path) -> None:
    """Leaves in the theme's icon fonts what its style shows, and their TrueType form only."""
    css = re.sub(r'url\([^)]*\.woff2\) format\("woff2"\),', "", theme.read_text("utf-8"))
    theme.write_text(css, "utf-8")
    shown = {ord(icon) for icon in css if "\ue000" <= icon <= "\uf8ff"}
    for path in static.glob("vendor/fontawesome/webfonts/*.ttf"):
        font = TTFont(path)
        subsetter = subset.Subsetter()
        subsetter.populate(unicodes=shown)
        subsetter.subset(font)
        font.save(path)
    for path in static.glob("vendor/fontawesome/webfonts/*.woff2"):
        path.unlink()
