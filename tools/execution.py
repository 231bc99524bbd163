"""Executes a chapter's cells in a process of their own, with the checkout's pipelib.

nbclient does it. The process is this very Python, whatever kernels are installed; it works in the
folder book/.
"""

import os
import pathlib
import re
from typing import Any

import traitlets
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import (
    CellExecutionError,
    CellTimeoutError,
    DeadKernelError,
)
from nbformat import NotebookNode

ROOT = pathlib.Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
CELL_SECONDS = 300
#: The environment of a chapter without a GPU. What XLA compiles is kept for the other chapters, and
#: for the next time. (A process that reads what another is just writing compiles it itself.)
ON_CPU = {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax-cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


class ChapterError(Exception):
    """A chapter that did not run to its end; the text says where and why."""


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that are executed."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


class ThisPython(AsyncKernelManager):
    """Starts kernels with this very Python, whatever kernels are installed."""

    @traitlets.default("kernel_spec_manager")
    def _no_installed_kernels(self) -> KernelSpecManager:
        return KernelSpecManager(kernel_dirs=[])


def run(notebook: NotebookNode, env: dict[str, str], **options: Any) -> None:
    """Executes cells in place, in book/, by this very Python with the checkout's pipelib.

    Args:
      notebook: its code cells get their outputs.
      env: more of the process's environment.
      options: nbclient's.
    """
    client = NotebookClient(
        notebook,
        kernel_manager_class=ThisPython,
        timeout=CELL_SECONDS,
        # An output that comes late, on a busy machine, must not be lost without a word.
        iopub_timeout=CELL_SECONDS,
        raise_on_iopub_timeout=True,
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,
        # No output of a chapter shows a widget: figures bring their own controls.
        store_widget_state=False,
        **options,
    )
    client.execute(cwd=str(BOOK), env=environment(**env))


def execute(notebook: NotebookNode, name: str, **env: str) -> None:
    """Executes a chapter in place, top to bottom, and stops at the first error.

    Prints the number of each cell as it begins, on one line: who ends it sees where it was.

    Raises:
      ChapterError: If a cell fails, takes too long or ends the process.
    """
    index = 0

    def note_cell(cell: NotebookNode, cell_index: int) -> None:
        nonlocal index
        index = cell_index
        if cell.cell_type == "code":
            print(f" {index + 1}", end="", flush=True)

    print(f"{name}, {len(notebook.cells)} cells:", end="", flush=True)
    try:
        run(notebook, env, on_cell_start=note_cell)
    except CellTimeoutError:
        reason = f"It was still running after {CELL_SECONDS} seconds."
    except DeadKernelError:
        reason = "It ended the process."
    except CellExecutionError as error:
        text = without_colours(error.traceback)
        reason = text.rpartition("------------------\n\n")[2].strip()
    else:
        return
    finally:
        print()
    raise ChapterError(
        f"{name}, cell {index + 1} failed:\n\n{notebook.cells[index].source}\n\n{reason}"
    )


def environment(**more: str) -> dict[str, str]:
    """This process's environment, with the checkout's pipelib first and JAX as readers have it.

    Who calls may have set JAX's options, as tests do with the promotion of dtypes: a chapter that
    fails with them is right all the same.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "JAX_PLATFORMS" or not name.startswith("JAX_")
    }
    # No exercise that is executed here was passed by a reader.
    kept["PIPELIB_BOOK_DATA"] = os.devnull
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path, **more}


def without_colours(text: str) -> str:
    """Text without a terminal's colour codes."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
