"""`check_jax`: refuses a JAX that is too old, and warns of one that is newer than the tested ones.

The model. This project builds on names of JAX's Mosaic GPU, which come, go and change from version
to version. With an older JAX than `OLDEST` some are missing, and what then fails says nothing. Of a
newer one than `NEWEST` nothing is known.
"""

import warnings

import jax

#: The versions of JAX between which the tests run.
OLDEST, NEWEST = (0, 11, 2), (0, 12, 0, 1)


def check_jax(version: tuple[int, ...] = jax.__version_info__) -> None:
    """Looks at a version of JAX, by default the installed one.

    Raises:
      ImportError: it is older than `OLDEST`.
    """
    oldest, newest, here = (".".join(map(str, each)) for each in (OLDEST, NEWEST, version))
    if version < OLDEST:
        raise ImportError(
            f"JAX {here} is installed, which is older than {oldest} and lacks names that pipelib"
            f" and pallascope use, so nothing of them can run: pip install 'jax>={oldest},<0.13'."
        )
    if version > NEWEST:
        warnings.warn(
            f"JAX {here} is newer than {newest}, the last that pipelib and pallascope are tested"
            " with, so that a kernel may be traced otherwise than they expect: install"
            f" 'jax>={oldest},<0.13' if something fails.",
            stacklevel=2,
        )
