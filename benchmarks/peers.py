"""The strongest public Hopper kernels, as contenders.

The model. A *build* is such a kernel as somebody built it, by its name in records. The environment
variable `PEERS` names a folder of builds from source (`fa3`, `deepgemm`): `peers.py`, functions of
PyTorch's CUDA tensors, and `versions.json`, what each was built from. `PACKAGES` are a registry's
builds, which `make peers` fetches. `docs/peers.md` says more. What is not there is no contender. A
build is imported only in the process that measures it: what does not load costs its own row.
"""

import contextlib
import functools
import importlib
import itertools
import json
import os
import pathlib
import site
import sys
from collections.abc import Mapping
from importlib import metadata
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

VARIABLE = "PEERS"
#: The registry's builds, and their packages.
PACKAGES = {
    "fa3_jax": "flash-attn3-jax",
    "fa3_wheel": "fa3-fwd",
    "fa4_wheel": "flash-attn-4",
    "deepgemm_wheel": "sgl-deep-gemm",
    "quack": "quack-kernels",
}


class Fa3(NamedTuple):
    """FlashAttention by a build of PyTorch's, of [batch, seq, heads, head_dim].

    Attributes:
      ends: where packed documents begin and end, if they are: numbers of tokens, from 0 on.
    """

    causal: bool
    build: str = "fa3"
    soft_cap: float | None = None
    ends: tuple[int, ...] | None = None


class DeepGemm(NamedTuple):
    """DeepGEMM's product by a build, for which b is stored as [n, k]."""

    build: str = "deepgemm"


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
    """The builds that are there: a package and its version, or what the folder says."""
    found, built = {}, folder()
    for build, package in PACKAGES.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[build] = f"{package} {metadata.distribution(package).version}"
    return found | (json.loads((built / "versions.json").read_text("utf-8")) if built else {})


def has(name: str) -> bool:
    """Whether this build is there."""
    return name in versions()


def module(build: str, name: str) -> Any:
    """A module of a build of `PACKAGES`, or of what it needs.

    Raises:
      ImportError: the package is not there, or does not load.
    """
    if not has(build):
        raise ImportError(
            f"{PACKAGES[build]} is not on Python's path, so {build} cannot be measured: `make"
            " peers` fetches it, and `make peer-site` unpacks it."
        )
    open_folder(PACKAGES[build])
    try:
        return importlib.import_module(name)
    except Exception as error:  # of whatever kind its libraries refuse by
        raise ImportError(f"{versions()[build]} does not load here: {error}") from error


def open_folder(package: str) -> None:
    """Reads the .pth files beside a package: Python reads none in a folder of PYTHONPATH.

    CUTLASS needs its own.

    Raises:
      PackageNotFoundError: the package is not on Python's path.
    """
    site.addsitedir(str(metadata.distribution(package).locate_file("")))


def load(build: str = "fa3") -> Any:
    """The functions of a build of PyTorch's, as a folder has them: a package's, or the folder's.

    Raises:
      ValueError: it is no package, and no folder is given.
      ImportError: as `module`.
    """
    if build == "deepgemm_wheel":
        gemm = module(build, "deep_gemm")
        products = dict(deepgemm_bf16=gemm.bf16_gemm_nt, deepgemm_fp8=gemm.fp8_gemm_nt)
        return SimpleNamespace(deepgemm=lambda: gemm, **products)
    if build in PACKAGES:
        name = {"fa3_wheel": "fa3_fwd_interface", "fa4_wheel": "flash_attn.cute"}[build]
        return SimpleNamespace(fa3_forward=functools.partial(_forward, module(build, name)))
    if (found := folder()) is None:
        raise ValueError(f"{VARIABLE} names no folder, so there is no {build} to measure.")
    if str(found) not in sys.path:
        sys.path.insert(0, str(found))
    return importlib.import_module("peers")


def longest(ends: tuple[int, ...]) -> int:
    """The tokens of the longest of packed documents."""
    return max(after - before for before, after in itertools.pairwise(ends))


def _forward(
    flash: Any,
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    out: Any,
    *,
    lse: None,
    scale: float,
    soft_cap: float | None = None,
    ends: Any = None,
    longest: int = 0,
) -> Any:
    """A folder's `fa3_forward` by a package, whose kernels make the array of their result.

    With `ends`, an array of int32, q, k and v are one sequence of documents; the longest has
    `longest` tokens.
    """
    del out, lse
    options: dict[str, Any] = dict(softmax_scale=scale, causal=causal)
    options |= {} if soft_cap is None else dict(softcap=soft_cap)
    if ends is None:
        found = flash.flash_attn_func(q, k, v, **options)
        return found[0] if isinstance(found, tuple) else found
    options |= dict(cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=longest)
    found = flash.flash_attn_varlen_func(q[0], k[0], v[0], max_seqlen_k=longest, **options)
    return (found[0] if isinstance(found, tuple) else found)[None]


def fa3_jax(
    *qkv: jax.Array, causal: bool, backward: bool, ends: tuple[int, ...] | None = None
) -> jax.Array:
    """FlashAttention-3 with heads of 128, of [batch, seq, heads, head_dim], without a scale.

    Raises:
      ValueError: its gradients would write past an array. Their kernel rounds the rows up to tiles
        of 80 where no mask is causal, and the package makes room for a multiple of 128.
    """
    room, written = (-(-qkv[0].shape[1] // rows) * rows for rows in (128, 80))
    if backward and not causal and written > room:
        raise ValueError(
            f"flash-attn3-jax makes room for {room} rows of the gradients' sums, and its dense"
            f" kernel writes {written}, over what lies behind them: its results are not to be"
            " trusted. A multiple of 640 rows would do."
        )
    flash = module("fa3_jax", "flash_attn3_jax")
    options = dict(softmax_scale=1.0, is_causal=causal)
    if ends is None:
        return flash.flash_mha(*qkv, **options)
    options |= dict(max_seqlen_q=longest(ends), max_seqlen_k=longest(ends))
    packed = (x[0] for x in qkv)
    return flash.flash_mha_varlen(*packed, np.asarray(ends, np.int32), **options)[None]


def fa3_decode(q: jax.Array, *cache: jax.Array, splits: int) -> jax.Array:
    """FlashAttention-3 of a cache, as `decode` calls it; `splits` blocks share a head's keys."""
    k, v, lengths, table = cache
    flash = module("fa3_jax", "flash_attn3_jax").flash_mha_with_kvcache
    options = dict(page_table=table if table.size else None, num_splits=splits)
    return flash(q, k, v, cache_seqlens=lengths, is_causal=q.shape[1] > 1, **options)


def quack_softmax(x: jax.Array) -> jax.Array:
    """quack's softmax of each row; of its kernels for rows, JAX has this one."""
    return module("quack", "quack.softmax_jax").softmax(x)
