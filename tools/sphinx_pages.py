"""What the book's build adds to Sphinx: docstrings that read well, and pages made from the code.

Docstrings here are plain text with names in single backticks and some reStructuredText (tables,
doctests). Before Sphinx reads one, each `name` becomes a link if it is a public name of pipelib,
and literal text if not; indented code becomes a literal block; the fields of named tuples, which
Python documents with their numbers only, are left out.

A page that has the line `<!-- made from the code: NAME WORD WORD -->` gets in its place the
Markdown that `MADE[NAME]` returns for these words; most take none.

`sphinx_site` sees to what is wrong with the HTML that comes of it.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

from sphinx.application import Sphinx

from pipelib_book import gallery, showing
from pipelib_book.measured import attention, frameworks, outcomes, tools_seen
from tools import calls, door, exercise_list, foreign, mutants, plgpu_names, records
from tools.public_names import public_names, text_of

MADE: dict[str, Callable[..., str]] = {
    "calls": calls.page,
    "claim": door.claim,
    "exercises": exercise_list.page,
    "fault": showing.fault_text,
    "foreign": foreign.tables,
    "frameworks": frameworks.table,
    "gallery": lambda *names: showing.code_of(*(getattr(gallery, name) for name in names)),
    "hazard": showing.hazard_text,
    "hazard_runs": lambda: outcomes.Outcomes.read().runs(),
    "hazards": showing.hazard_table,
    "in_tokamax": outcomes.in_tokamax,
    "map": door.map_of_parts,
    "mutants": mutants.tables,
    "numbers": door.numbers,
    "options": lambda: attention.options_table(attention.groups("options")),
    "picture": door.picture,
    "plgpu_names": plgpu_names.index,
    "records": records.page,
    "tools_seen": tools_seen.page,
    "untuned": lambda: attention.untuned_table(attention.groups("untuned")),
}
_PLACE = re.compile(r"^<!-- made from the code: (\w+)((?: [\w-]+)*) -->$", re.MULTILINE)
_NAME = re.compile(r"(?<![`:\w])`([^`]+)`(?![`_])")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry."""
    app.connect("autodoc-process-docstring", read_well, priority=400)  # before napoleon's 500
    app.connect("autodoc-skip-member", skip)
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True}


def read_well(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrites a docstring's lines in place."""
    text = "\n".join(lines)
    if what == "data":  # Sphinx took that of the value's class
        text = text_of(name.rpartition(".")[2], obj)
    blocks = [_as_rst(block, name) for block in text.split("\n\n")]
    lines[:] = "\n\n".join(blocks).splitlines()


def _as_rst(block: str, inside: str) -> str:
    """A paragraph, or a piece of code, of the docstring of the object `inside`."""
    if block.startswith("    "):
        return f"::\n\n{block}"
    if block.endswith("::"):  # the code that follows brings its own
        block = block.removesuffix(":")
    text, prompt, example = block.partition(">>>")
    return _NAME.sub(functools.partial(_linked, inside=inside), text) + prompt + example


@functools.cache
def _targets() -> dict[str, str]:
    """Full names by the short forms in which docstrings have them."""
    names = [public.name for public in public_names()]
    forms = {}
    for name in reversed(names):  # of two with one short form the first is meant
        parts = name.split(".")
        forms |= {".".join(parts[i:]): name for i in range(len(parts))}
    return forms


def _linked(match: re.Match[str], inside: str) -> str:
    text = match[1]
    bare = text.removesuffix("()")
    module = inside.rpartition(".")[0]
    target = _targets().get(f"{module}.{bare}") or _targets().get(bare)
    is_own = target is None or target == inside
    marked = f"``{text}``" if is_own else f":py:obj:`{text} <{target}>`"
    goes_on = match.string[match.end() : match.end() + 1].isalnum()
    return marked + ("\\ " if goes_on else "")


def skip(app: Sphinx, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Leaves out the fields of named tuples; of the rest Sphinx decides."""
    return True if (getattr(obj, "__doc__", None) or "").startswith("Alias for field") else None


def fill_in(app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts into a page what is made from the code."""
    source[0] = _PLACE.sub(lambda place: MADE[place[1]](*place[2].split()), source[0])
