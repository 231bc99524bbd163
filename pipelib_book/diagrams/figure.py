"""`Diagram`: a drawing with its number, its caption and its description, as a notebook shows it.

The model. A `Sketch` is a function that draws, with what has to be said of its drawing. The
decorator `sketch` makes one: the name is the function's, and the function's docstring describes the
drawing for who does not see it. The catalogue gives it a number, and that makes a `Diagram`. As
HTML it is a `<figure>`: the SVG, which scrolls within its own box where it has no room, and the
caption. It needs nothing else, and has no ids: a page may show a diagram twice. As text it is the
caption and the description.
"""

import html
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from pipelib_book.diagrams.shapes import Drawing

_WIDTH = 72
# Pages make captions pale, thin or centred: these are sentences to read.
_CAPTION = "margin:.5rem auto 0;text-align:left;font-weight:400;color:inherit"


@dataclass(frozen=True, slots=True)
class Diagram:
    """A diagram of the book: notebooks show it, `str` is its caption and its description.

    Attributes:
      name: what `diagram` calls it.
      number: the chapter's, and which of the chapter's diagrams it is: "3.2".
      caption: one or two sentences on what to see; code stands between backticks.
      alt: what is drawn, for who does not see it.
      html: the figure, with its caption.

    Example:
      >>> ring = book.diagram("ring")
      >>> ring.number, ring.caption
      ('3.1', 'Seven steps in three slots; ...')
    """

    name: str
    number: str
    caption: str
    alt: str
    html: str

    def _repr_html_(self) -> str:
        return self.html

    def __str__(self) -> str:
        """The caption, then the description, in short lines."""
        said = f"Figure {self.number}. {self.caption}", self.alt
        return "\n\n".join(textwrap.fill(part, _WIDTH, break_on_hyphens=False) for part in said)

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Sketch:
    """A drawing and its words, before it has a number.

    Attributes:
      name: the function's, with hyphens.
      chapter: the number of the chapter that shows it.
      title: a few words.
      caption, alt: as in `Diagram`; `alt` is the function's docstring.
      draw: draws it.
    """

    name: str
    chapter: int
    title: str
    caption: str
    alt: str
    draw: Callable[[], Drawing]

    def numbered(self, number: str) -> Diagram:
        """The diagram with this number."""
        drawing = self.draw()
        figure = (
            '<figure class="pipelib-diagram" style="margin:1rem 0;padding:0">'
            f'<div class="scroll" style="overflow-x:auto">{drawing.svg(self.title, self.alt)}</div>'
            f'<figcaption style="max-width:{drawing.most_pixels}px;{_CAPTION}">'
            f"<strong>Figure {number}.</strong> {_with_code(self.caption)}</figcaption></figure>"
        )
        return Diagram(self.name, number, self.caption, self.alt, figure)


def sketch(chapter: int, title: str, *, caption: str) -> Callable[[Callable[[], Drawing]], Sketch]:
    """Makes a `Sketch` of a function that draws; its docstring is the description."""

    def made(draw: Callable[[], Drawing]) -> Sketch:
        name = draw.__name__.replace("_", "-")
        alt = " ".join((inspect.getdoc(draw) or "").split())
        return Sketch(name, chapter, title, caption, alt, draw)

    return made


def _with_code(caption: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(caption, quote=False))
