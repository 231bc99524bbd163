"""Whether `pipelib` is this project: on PyPI, another one has the name."""

import importlib.util

#: A module that only this project's `pipelib` has.
MARK = "pipelib.warp_specialized"
INSTALL = 'pip install "pallas-pipelib @ git+https://github.com/pallas-pipelib/pipelib"'


def require_this_pipelib() -> None:
    """Raises an error if `pipelib` is missing or is another project's.

    Raises:
      ImportError: says which, what follows, and how to install this one.
    """
    found = importlib.util.find_spec("pipelib")
    if found is None:
        raise ImportError(
            "The book's chapters need `pipelib`, and it is not installed here. On PyPI another"
            f" project has that name, so install this one by its address: {INSTALL}"
        )
    if importlib.util.find_spec(MARK) is None:
        raise ImportError(
            f"`pipelib` here is another project that has the name on PyPI ({found.origin}): it has"
            " no pipelines for GPUs, so no chapter can run. Remove it, install this one, and"
            f" restart Python: pip uninstall --yes pipelib; {INSTALL}"
        )
