"""`search`: the fastest configuration of one's own kernel; `tune`: of `pipelib.kernels.matmul`.

The model. All public names are here; `searching` has the model of a search.
"""

from pallascope.tuning.library import attention_space, row_space
from pallascope.tuning.matmul import tune
from pallascope.tuning.results import Results
from pallascope.tuning.searching import search
from pallascope.tuning.trials import Outcome, Trial

__all__ = ["Outcome", "Results", "Trial", "attention_space", "row_space", "search", "tune"]
