"""`badge`: one line that says where the outputs of a chapter come from, for the top of its page.

The model. `tools.notebooks` stores a record in each chapter's `.ipynb`: the GPU, the time and the
versions of the run, and the cells that only the interpreter has run. The line says the GPU, the
day and JAX's version, and how many cells no GPU has run.
"""

import datetime
import pathlib

from tools.execution import code_cells
from tools.notebooks import RECORD, read_published


def badge(ipynb: pathlib.Path) -> str:
    """Where the outputs come from, in plain text; empty if the notebook has no record.

    Example:
      >>> badge(BOOK / "03_buffering.ipynb")
      'Outputs: NVIDIA H200, 24 November 2026, JAX 0.11.2'
    """
    notebook = read_published(ipynb)
    kept = notebook and notebook.metadata.get(RECORD)
    if not notebook or not kept:
        return ""
    day = datetime.datetime.fromisoformat(kept["utc"])
    when = f"{day.day} {day:%B %Y}, JAX {kept['jax']}"
    if kept["gpu"] is None:
        return f"Outputs: made without a GPU, {when}"
    line = f"Outputs: {kept['gpu']}, {when}"
    if few := len(kept.get("interpreted_cells", [])):
        line += f"; {few} of {len(code_cells(notebook))} cells: Pallas's interpreter"
    return line
