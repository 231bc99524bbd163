"""Whether `pipelib` is this project: on PyPI, another one has the name."""

import importlib
import importlib.util

#: A name that only this project's `pipelib` lists. Its modules prove nothing: they stay where
#: another project's package has been installed over this one.
MARK = "emit_pipeline_warp_specialized"
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
    if MARK not in getattr(importlib.import_module("pipelib"), "__all__", ()):
        raise ImportError(
            f"`pipelib` here is another project that has the name on PyPI ({found.origin}): it has"
            " no pipelines for GPUs, so no chapter can run. Remove it, install this one, and"
            f" restart Python: pip uninstall --yes pipelib pallas-pipelib; {INSTALL}"
        )
