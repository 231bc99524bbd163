"""`search`: the fastest configuration of one's own kernel; `tune`: of `pipelib.kernels.matmul`.

The model. All public names are here; `searching` has the model of a search.
"""

from pipelib.tuning.library import attention_space, row_space
from pipelib.tuning.matmul import tune
from pipelib.tuning.results import Results
from pipelib.tuning.searching import search
from pipelib.tuning.trials import Outcome, Trial

__all__ = ["Outcome", "Results", "Trial", "attention_space", "row_space", "search", "tune"]
