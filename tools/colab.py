"""The cell that sets a chapter up: one text for all chapters, with the versions of one release.

    python -m tools.colab

writes it into every chapter's .md; `make sync` brings it into the notebooks. In Colab the cell
installs JAX, at the version that the outputs were recorded with, and the three wheels of a release:
all of them or, where pip fails, none. Elsewhere these are there already. `pipelib_book` itself says
if `pipelib` is another project's.
"""

import pathlib
import re
import tomllib
from typing import Any

from tools.execution import ROOT
from tools.notebooks import chapters

# IPython fills in the names in braces behind %pip.
TEMPLATE = """\
import shutil
import sys

if "google.colab" in sys.modules:
    cuda = "[cuda12]" if shutil.which("nvidia-smi") else ""
    repository = "REPOSITORY"
    release = f"{repository}/releases/download/vVERSION"
    names = "pallas_pipelib", "pallascope", "pallas_pipelib_book"
    wheels = [f"{release}/{name}-VERSION-py3-none-any.whl" for name in names]
    %pip install --quiet --retries 1 "jax{cuda}==JAX" {" ".join(wheels)}

try:
    import pipelib_book as book
except ModuleNotFoundError as missing:
    raise ImportError(
        f"{missing}. In Colab, pip has said above why it could not install it: "
        "run this cell again. On your own machine, run `make lab` in the clone."
    ) from None

device = book.setup()"""

# A chapter's first code cell: the fence with its tags, and the code.
_FIRST = re.compile(r"(```\{code-cell\} ipython3\n(?::.*\n+)*)(?s:.*?)(?=\n```\n)")


def cell() -> str:
    """The cell, with the version of `pyproject.toml` and the JAX of `requirements.txt`."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lock = (ROOT / "requirements.txt").read_text("utf-8")
    values = {
        "REPOSITORY": project["urls"]["Repository"],
        "VERSION": project["version"],
        "JAX": re.findall(r"^jax==(\S+)", lock, re.MULTILINE)[0],
    }
    return re.sub("|".join(values), lambda found: values[found[0]], TEMPLATE)


def with_cell(text: str) -> str:
    """The text of a chapter's .md with this cell in place of its first; tags stay."""
    return _FIRST.sub(lambda found: found[1] + cell(), text, count=1)


def write(md: pathlib.Path) -> bool:
    """Writes the cell into a chapter; returns whether that changed anything."""
    before = md.read_text("utf-8")
    after = with_cell(before)
    if after != before:
        md.write_text(after, "utf-8")
    return after != before


if __name__ == "__main__":
    changed = [md.name for md in chapters() if write(md)]
    print(f"{len(changed)} chapters changed: run `make sync`." if changed else "Nothing to change.")
