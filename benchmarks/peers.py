"""FlashAttention-3 and DeepGEMM, the strongest public Hopper kernels, as contenders.

The model. The environment variable `PEERS` names a folder of kernels that somebody built, with two
files: `peers.py`, functions of PyTorch's CUDA tensors, and `versions.json`, which says of each peer
by its name in records (`fa3`, `deepgemm`) what it was built from. `docs/peers.md` has the
functions, and how to build. Without `PEERS` there are no such contenders. The folder's module is
imported where it measures and nowhere else.
"""

import importlib
import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

VARIABLE = "PEERS"


class Fa3(NamedTuple):
    """FlashAttention-3, of [batch, seq, heads, head_dim]."""

    causal: bool


class DeepGemm(NamedTuple):
    """DeepGEMM's product of bfloat16, for which b is stored as [n, k]."""


def folder(env: Mapping[str, str] = os.environ) -> pathlib.Path | None:
    """The folder of peers; None if none is given.

    Raises:
      ValueError: it lacks one of its files.
    """
    if not (name := env.get(VARIABLE)):
        return None
    found = pathlib.Path(name).resolve()
    if missing := [x for x in ("peers.py", "versions.json") if not (found / x).is_file()]:
        raise ValueError(
            f"{VARIABLE}={name} has no {' and no '.join(missing)}, so its kernels cannot be"
            " measured, or nobody would know which they were: docs/peers.md says what is in it."
        )
    return found


def versions() -> dict[str, str]:
    """What each peer was built from, by its name in records; none without a folder."""
    found = folder()
    return {} if found is None else json.loads((found / "versions.json").read_text("utf-8"))


def has(name: str) -> bool:
    """Whether there is a folder, and this peer in it."""
    return name in versions()


def load() -> Any:
    """The folder's module.

    Raises:
      ValueError: no folder is given.
    """
    found = folder()
    if found is None:
        raise ValueError(f"{VARIABLE} names no folder, so there are no peers to measure.")
    if str(found) not in sys.path:
        sys.path.insert(0, str(found))
    return importlib.import_module("peers")
