"""`tune`: searches the fastest configuration of a kernel, on the GPU at hand."""

from pipelib.tuning.search import tune

__all__ = ["tune"]
