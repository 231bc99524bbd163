"""`Trial`: what a search found of one configuration; `Outcome`: how far the configuration came.

The model. A configuration goes through these outcomes in this order, and stops at the first that
ends it::

    does not fit, not traced, finding      ends it: it is never run
    predicted                              it waits to be measured, or was not among the best
    does not run, wrong                    ends it: it has no time that counts
    measured                               it has one
"""

import enum
import math
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from pallascope.tuning.rows import Row


class Outcome(enum.StrEnum):
    """How far a configuration came; equal to its words.

    Example:
      >>> [outcome.value for outcome in Outcome]
      ['does not fit', 'not traced', 'finding', 'predicted', 'does not run',
       'wrong', 'measured']
    """

    REFUSED = "does not fit"
    UNTRACED = "not traced"
    FINDING = "finding"
    PREDICTED = "predicted"
    FAILED = "does not run"
    WRONG = "wrong"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Trial:
    """What a search found of one configuration.

    Attributes:
      config: the configuration: a dict, or what the space had.
      outcome: how far it came.
      reason: a sentence, if it ended early: the builder's refusal with its sum, the checker's
        finding with its remedy, the error.
      predicted_us: the time of the launch by the simulator, in microseconds; None if unknown.
      bound: what bounds the kernel in the simulation.
      us: the times of single launches, in microseconds, in the order taken.
      error: the largest error of an element, in root mean squares of the expected result.
      digest: the digest of what JAX traced for it (`pallascope.bench.jaxprs`).

    Example:
      >>> trial = Trial({"slots": 2}, Outcome.MEASURED, predicted_us=9.0, us=(10.0, 12.0, 11.0))
      >>> trial.measured_us, trial.outcome == "measured"
      (11.0, True)
    """

    config: Any
    outcome: Outcome
    reason: str = ""
    predicted_us: float | None = None
    bound: str = ""
    us: tuple[float, ...] = ()
    error: float | None = None
    digest: str = ""

    @property
    def measured_us(self) -> float | None:
        """The median of its times; None if none counts."""
        return median(self.us) if self.outcome is Outcome.MEASURED else None

    @property
    def rank(self) -> tuple[int, float]:
        """What trials are sorted by: the measured first, then the predicted, then the rest."""
        if self.measured_us is not None:
            return 0, self.measured_us
        is_next = self.outcome is Outcome.PREDICTED
        predicted = math.inf if self.predicted_us is None else self.predicted_us
        return (1 if is_next else 2), predicted

    def measured(self, row: Row[Any]) -> "Trial":
        """This trial with what measuring gave."""
        outcome = Outcome.MEASURED
        if row.reason:
            outcome = Outcome.FAILED if row.error is None else Outcome.WRONG
        return replace(self, outcome=outcome, reason=row.reason, us=row.us, error=row.error)
