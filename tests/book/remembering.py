"""The results of kernels that a chapter has run, for the next time that it runs the same ones.

The model. `begin` runs in the chapter's process, before its first cell. A grade computes what it
compares with by a kernel that is right, for each answer anew: for the skeleton, for each wrong
answer, and for the solution. Pallas's interpreter takes seconds for each. From then on a kernel
that is called with arrays is traced, and if the digest of its jaxpr and its arrays' bytes are those
of an earlier call, that call's results are its own. A kernel that raised an error, or that said
anything, such as a race, runs again.

Not covered: a kernel within `jax.jit` runs each time.
"""

import contextlib
import functools
import hashlib
import io
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallascope.bench.jaxprs import digest_of


def begin() -> None:
    """Remembers results, for as long as the process lasts."""
    kernel, kept = plgpu.kernel, {}

    def remembering(*args: Any, **options: Any) -> Callable[..., Any]:
        made = kernel(*args, **options)
        return functools.wraps(made)(functools.partial(_remembered, made, kept))

    plgpu.kernel = remembering


def _remembered(made: Callable[..., Any], kept: dict[tuple[str, ...], Any], *operands: Any) -> Any:
    """A kernel's results, remembered or computed."""
    leaves = jax.tree.leaves(operands)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return made(*operands)
    closed = jax.make_jaxpr(made)(*operands)
    key = (digest_of(closed), *(_bytes(leaf) for leaf in (*leaves, *closed.consts)))
    if key not in kept:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            found = jax.block_until_ready(made(*operands))
        sys.stdout.write(said.getvalue())
        if said.getvalue():
            return found
        kept[key] = found
    return kept[key]


def _bytes(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(np.asarray(array)).tobytes()).hexdigest()
