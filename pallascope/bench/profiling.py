"""`write_profile`: runs a kernel under JAX's in-kernel profiler.

`pallascope.profile.read_profile` reads the file that this leaves.
"""

# Parts of the signatures of JAX's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import pathlib
from collections.abc import Callable
from typing import Any

import jax


def write_profile(
    make: Callable[..., Callable[..., Any]],
    *args: Any,
    profile_space: int,
    profile_dir: str | pathlib.Path,
) -> pathlib.Path:
    """Runs a kernel twice on this GPU, and returns the profiler's file of the second run.

    The second run finds its code and its data in caches. JAX overwrites no file, so the file of the
    first run is deleted before.

    Args:
      make: makes the kernel. It must hand its keyword arguments on to `plgpu.CompilerParams`.
      args: the kernel's arrays.
      profile_space: how many scopes a thread can note in one run.
      profile_dir: a folder that exists; files in it are deleted.

    Raises:
      RuntimeError: the kernel wrote no file, because `make` did not hand on its arguments.
    """
    folder = pathlib.Path(profile_dir)
    kernel = jax.jit(make(profile_space=profile_space, profile_dir=str(folder)))
    for _ in range(2):
        for before in folder.iterdir():
            before.unlink()
        jax.block_until_ready(kernel(*args))
        jax.effects_barrier()
    for path in folder.iterdir():
        return path
    raise RuntimeError(
        f"The kernel wrote no profile into {folder.name}: {profile_space=} and profile_dir must"
        " reach its plgpu.CompilerParams."
    )
