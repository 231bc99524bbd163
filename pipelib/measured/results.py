"""Finds the committed records of `benchmarks/`, for whoever quotes them.

They are in the repository under `benchmarks/results`, and in an installed package beside this
module's folder under `results`.
"""

import json
import pathlib
from typing import Any

from pipelib.bench.provenance import PACKAGE

FOLDERS = PACKAGE.parent / "benchmarks" / "results", PACKAGE / "results"
#: The GPU that records of a GPU are of.
GPU = "nvidia-h200"


def find(pattern: str, folders: tuple[pathlib.Path, ...] = FOLDERS) -> list[pathlib.Path]:
    """The records of a pattern, by name, in the first folder that has any; none if none has."""
    for folder in folders:
        if found := sorted(folder.glob(pattern)):
            return found
    return []


def read(pattern: str, folders: tuple[pathlib.Path, ...] = FOLDERS) -> list[dict[str, Any]]:
    """What the records of a pattern hold."""
    return [json.loads(path.read_text("utf-8")) for path in find(pattern, folders)]
