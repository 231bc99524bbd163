"""`search`: the fastest configuration of a kernel.

The model. All public names are here; `searching` has the model of a search. No module knows a
kernel: what a kernel can try, it says itself as plain data (`pipelib.kernels.matmul_space`).
"""

from pallascope.tuning.results import Outcome, Results, Trial
from pallascope.tuning.searching import search
from pallascope.tuning.spaces import Ranked

__all__ = ["Outcome", "Ranked", "Results", "Trial", "search"]
