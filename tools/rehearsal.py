"""Rehearses a chapter: finds, without a GPU, whether its recording still holds.

The model. A chapter is executed on a CPU as if it ran on the GPU of its recording, with stand-ins
for what only a GPU can do (`tools.stand_ins`). What comes of a code cell is a `Scene`: the digests
of the kernels that it compiles, and of what it shows. Both follow from the chapter's code and from
all that it imports, and from nothing else; so a chapter whose scenes are those of its recording
runs the same kernels, and makes the same words and figures of what the GPU gives. How its code is
written does not matter.

A cell whose published output is what the rehearsal shows has nothing of the GPU in it. Where such
a cell changes, a rehearsal can give its new output, and no GPU is needed.
"""

import dataclasses
import hashlib
import itertools
import json
import re
from typing import Any

import nbformat
from nbformat import NotebookNode

from tools.execution import ON_CPU, ChapterError, code_cells, run
from tools.stand_ins import KERNELS

#: What differs between two runs of the same code.
_CHANGING = re.compile(r"0x[0-9a-f]{6,}|/tmp/\w+|tmp\w{8}")


@dataclasses.dataclass(frozen=True)
class Scene:
    """What a code cell does in a rehearsal: digests of its kernels and of its outputs."""

    kernels: tuple[str, ...]
    shown: str

    def to_json(self) -> list[Any]:
        """As a notebook's metadata hold it."""
        return [self.shown, *self.kernels]

    @classmethod
    def from_json(cls, values: list[Any]) -> "Scene":
        """What `to_json` gave."""
        shown, *kernels = values
        return cls(tuple(kernels), shown)


def rehearse(
    notebook: NotebookNode, gpu: str, compute_capability: str, take: int = 0
) -> list[Scene]:
    """Executes a chapter in place, with stand-ins for this GPU, and returns its scenes.

    In another `take` the stand-ins have other numbers: what shows the same in two takes does not
    depend on what a GPU gives.

    The notebook's code cells have the outputs of the rehearsal afterwards. A cell that fails, since
    a stand-in is not the GPU, shows its error, and the chapter goes on.
    """
    begin = f"from tools import stand_ins; stand_ins.begin{gpu, compute_capability, take}"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(begin))
    try:
        run(notebook, ON_CPU, allow_errors=True)
    finally:
        first = notebook.cells.pop(0)
    for output in first.outputs:
        if output.output_type == "error":
            raise ChapterError(f"The rehearsal could not begin: {output.evalue}")
    return [_scene(cell) for cell in code_cells(notebook)]


def _scene(cell: NotebookNode) -> Scene:
    """A cell's scene; the output that has its kernels is taken out."""
    kernels = [
        digest for output in cell.outputs for digest in output.get("data", {}).get(KERNELS, ())
    ]
    cell.outputs = [output for output in cell.outputs if KERNELS not in output.get("data", {})]
    return Scene(tuple(dict.fromkeys(kernels)), shown(cell.outputs))


def shown(outputs: list[NotebookNode]) -> str:
    """The digests of what a reader sees of a cell's outputs: of each of its `parts`, with dots."""
    return ".".join(map(_digest, parts(outputs)))


def parts(outputs: list[NotebookNode]) -> list[list[NotebookNode]]:
    """The outputs that a reader sees, those that are one text together.

    What is printed comes in as many pieces as the machine is busy: pieces in a row are one text.
    """
    visible = (output for output in outputs if output.get("name") != "stderr")
    numbered = itertools.groupby(
        enumerate(visible), key=lambda each: None if each[1].output_type == "stream" else each[0]
    )
    return [[output for _, output in group] for _, group in numbered]


def merged(
    published: list[NotebookNode], before: str, rehearsed: list[NotebookNode], now: str
) -> list[NotebookNode] | None:
    """A cell's outputs of which each part is as published, or else as rehearsed now.

    A part that the rehearsal shows as `before` keeps what was published. One that was published as
    it was rehearsed has nothing of the GPU in it, and is taken from the rehearsal.

    Returns:
      None where a part is neither, or where there are not as many.
    """
    columns = parts(published), before.split("."), parts(rehearsed), now.split(".")
    if len({len(column) for column in columns}) > 1:
        return None
    found: list[NotebookNode] = []
    for old, was, new, is_now in zip(*columns, strict=True):
        if was != is_now and _digest(old) != was:
            return None
        found += old if was == is_now else new
    return found


def _digest(part: list[NotebookNode]) -> str:
    """The digest of one part: a text, an error, or a display."""
    seen: Any = "".join(output.get("text", "") for output in part)
    match part[0].output_type:
        case "error":
            seen = f"{part[0].ename}: {part[0].evalue}"
        case "display_data" | "execute_result":
            seen = dict(part[0].data)
    text = _CHANGING.sub("", json.dumps([seen], sort_keys=True))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
