"""How the site is found: its front page, the addresses of its pages, and what others show of them.

The model. The root document is the site's `index.html`. Each page says its address (`html_baseurl`
of `_config.yml`), its language, what it is in a sentence or two (those that it begins with), and
the picture that others show beside a link to it, which is made at the end of a build.
`sitemap.xml` lists the pages. `404.html` answers for those that are not there: a page of its own,
which needs no other file, since it is shown at any depth. The JSON Schemas of `pallascope` lie at
the addresses that they give as their own. A chapter's page says its part, how long
it takes to read and where its outputs come from, and has its short title for a phone's header.

Not covered: search, which `sphinx_search` does.
"""

import html
import pathlib
import re
import shutil
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

from tools import door, parts
from tools.badge import badge

#: The picture to share, in the site's folder.
PICTURE = "_static/share.png"
#: A description has so many characters at most, unless its first sentence has more.
CHARACTERS = 160


class BookBuilder(StandaloneHTMLBuilder):
    """Sphinx's HTML, but that the root document is the index, and search is another's work."""

    name = "html"
    search = False

    def get_target_uri(self, docname: str, typ: str | None = None) -> str:
        """The page's address in the site."""
        return super().get_target_uri(self._page(docname), typ)

    def get_outfilename(self, pagename: str) -> str:
        """The page's file."""
        return super().get_outfilename(self._page(pagename))

    def _page(self, name: str) -> str:
        return "index" if name == self.config.root_doc else name


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry."""
    app.add_builder(BookBuilder, override=True)
    app.config.html_additional_pages |= {"404": "404.html", "search": "search.html"}
    app.connect("html-page-context", introduce, priority=900)  # the theme first
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


# ---- Each page -----------------------------------------------------------------------------------


def introduce(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Gives a page's template what it says of itself."""
    book, is_root = app.config.html_title, pagename == app.config.root_doc
    context |= {"book": book, "home": app.config.html_baseurl, "pageurl": address(app, pagename)}
    said = description(doctree) if doctree else ""
    title = book if is_root else f"{plain(context.get('title', ''))} — {book}"
    picture = app.config.html_baseurl + PICTURE
    told = tags(title, said, context["pageurl"], picture, book)
    context["metatags"] = context.get("metatags", "") + told
    if found := parts.chapter(pagename):
        outputs = badge(pathlib.Path(app.srcdir, f"{pagename}.ipynb"))
        context |= of_chapter(*found, context["pagetitle"], context["body"], outputs)


def of_chapter(
    part: parts.Part, chapter: parts.Chapter, title: str, body: str, outputs: str
) -> dict[str, str]:
    """A chapter's number, and below its title its part, its reading time and its badge."""
    time = html.escape(f"{part.caption} · {parts.duration(chapter.minutes)} to read")
    origin = f'\n<p class="badge-outputs">{html.escape(outputs)}</p>' if outputs else ""
    heading, end, rest = body.partition("</h1>")
    return {
        "short_title": f"{chapter.number} {chapter.title}",
        "pagetitle": f"{chapter.number} {title}",  # on paper
        "body": f'{heading}{end}\n<p class="reading-time">{time}</p>{origin}{rest}',
    }


def address(app: Sphinx, pagename: str) -> str:
    """The page's address in the world; of the front page, the site's."""
    page = app.builder.get_target_uri(pagename)
    return app.config.html_baseurl + ("" if page == "index.html" else page)


def plain(markup: str) -> str:
    """HTML without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", markup)).strip()


def description(doctree: nodes.document) -> str:
    """The sentences that a page begins with: of a chapter, what is new in it."""
    for paragraph in doctree.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section | nodes.list_item):
            said = beginning(" ".join(paragraph.astext().split())).removeprefix("New: ")
            return said[:1].upper() + said[1:]
    return ""


def beginning(text: str) -> str:
    """The first sentence of a text, and the next ones that there is room for."""
    sentences = re.split(r"(?<=[.?!]) (?=[A-Z])", text)
    said = sentences[0]
    for sentence in sentences[1:]:
        if len(said) + 1 + len(sentence) > CHARACTERS:
            break
        said += f" {sentence}"
    return said


def tags(title: str, said: str, url: str, picture: str, book: str) -> str:
    """What search engines read, and those that show a link as a card (Open Graph)."""
    width, height = door.SHARED
    properties = {
        "og:type": "website",
        "og:site_name": book,
        "og:title": title,
        "og:description": said,
        "og:url": url,
        "og:image": picture,
        "og:image:width": width,
        "og:image:height": height,
        "og:image:alt": "One tile of a matrix product, with one slot and with several.",
    }
    names = {"description": said, "twitter:card": "summary_large_image"}
    lines = [_tag("name", *pair) for pair in names.items()]
    lines += [_tag("property", *pair) for pair in properties.items()]
    return "\n".join(filter(None, lines))


def _tag(kind: str, name: str, content: object) -> str:
    return f'<meta {kind}="{name}" content="{html.escape(str(content))}" />' if content else ""


# ---- The site ------------------------------------------------------------------------------------


def finish(app: Sphinx, error: Exception | None) -> None:
    """Writes the picture, the schemas and the sitemap, at the end of a build."""
    if error or app.builder.format != "html":
        return
    site = pathlib.Path(app.outdir)
    door.share(site / PICTURE, app.config.html_title)
    serve_schemas(site)
    urls = "\n".join(f"<url><loc>{address(app, name)}</loc></url>" for name in pages(app))
    (site / "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{urls}\n</urlset>\n',
        "utf-8",
    )


def serve_schemas(site: pathlib.Path) -> None:
    """Copies the schemas of what `python -m pallascope` prints as JSON."""
    for schema in (pathlib.Path(__file__).parents[1] / "pallascope").rglob("*.schema.json"):
        shutil.copy(schema, site)


def pages(app: Sphinx) -> list[str]:
    """All documents, the front page first."""
    root = app.config.root_doc
    return [root, *sorted(app.env.found_docs - {root})]
