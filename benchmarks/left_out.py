"""What is predicted of a family of kernels if no constant was chosen by any of that family.

    python -m benchmarks.left_out    on no GPU: half an hour on two cores

The model. Constants that no probe measures (`benchmarks.machine.CALIBRATED`) were chosen by
calibration pairs of all families. Here a fit chooses them anew, once by all families and once
without each: the logarithm of a pair's time changes with that of a constant by a slope, which two
predictions give, and the constants are those for which the errors at the clock of all calibration
pairs are least. Those of a family of n pairs are divided by the root of n, and large ones count by
their size and not by its square (`soft_l1`). A constant that no pair of the others depends on stays
as it was. Then the held-out pairs are predicted at the clock, and the calls without a configuration
at the model's own, with the constants that their family had no part in.

Not left out: the curve of the clock (`clock_at`), rules of the model, what probes have measured.
"""

import argparse
import math
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from benchmarks import records
from benchmarks.machine import CALIBRATED
from benchmarks.model_pairs import Pair, pairs
from benchmarks.predicted import PREDICTED, default_on, traced
from pallascope.bench.provenance import provenance
from pallascope.machine import H200, Machine
from pallascope.predicting import launch
from pipelib_book.measured import model

CONSTANTS = tuple(name for name in CALIBRATED if name != "clock_at")
#: A constant's change for its slope: down, since a fraction of a rate cannot go above 1.
LESS = 0.95
#: How far a constant may go, as the logarithm of a factor; an error from which on its size counts.
FARTHEST, LARGE = math.log(1.5), 0.03
#: Fractions of a rate.
_AT_MOST_1 = tuple(name for name in CONSTANTS if name.endswith("_reach"))


class Slopes(NamedTuple):
    """A calibration pair: the logarithms of predicted over measured time, and of its changes."""

    family: str
    error: float
    by_constant: tuple[float, ...]


def at_clock(pair: Pair, mhz: float, *machines: Machine) -> list[float]:
    """The microseconds of a pair's launches at a clock, on each machine."""
    samples, _ = traced(pair.function, pair.args)
    return [
        sum(launch(each, machine, 1e6 * mhz, l2_hits=pair.l2_hits).us for each in samples)
        for machine in machines
    ]


def slopes(name: str, mhz: float, us: float) -> Slopes:
    """What each constant does to a pair's predicted time."""
    pair = pairs()[name]
    less = [H200.changed(**{each: LESS * getattr(H200, each)}) for each in CONSTANTS]
    now, *changed = at_clock(pair, mhz, H200, *less)
    by_constant = tuple(math.log(each / now) / math.log(LESS) for each in changed)
    return Slopes(pair.family, math.log(now / us), by_constant)


def fitted(found: Sequence[Slopes], without: str | None) -> dict[str, float]:
    """The constants with which pairs of all families but one have the least errors."""
    kept = [each for each in found if each.family != without]
    families = [each.family for each in kept]
    weights = np.array([1 / math.sqrt(families.count(family)) for family in families])
    errors = np.array([each.error for each in kept])
    changes = np.array([each.by_constant for each in kept])
    highest = [
        min(FARTHEST, -math.log(getattr(H200, name))) if name in _AT_MOST_1 else FARTHEST
        for name in CONSTANTS
    ]
    # The last rows hold what nothing else does.
    still = 1e-3 * np.eye(len(CONSTANTS))
    residuals = lambda x: np.concatenate([weights * (errors + changes @ x), still @ x])
    start = np.minimum(0.0, np.array(highest) - 1e-9)
    fit = least_squares(
        residuals, start, bounds=([-FARTHEST] * len(CONSTANTS), highest), loss="soft_l1",
        f_scale=LARGE,
    )  # fmt: skip
    return {
        name: float(f"{getattr(H200, name) * math.exp(change):.4g}")
        for name, change in zip(CONSTANTS, fit.x)
    }


def _pair(name: str, mhz: float, *machines: Machine) -> tuple[str, dict[str, float]]:
    anew, without = at_clock(pairs()[name], mhz, *machines)
    return name, dict(us_anew=round(anew, 3), us_without=round(without, 3))


def _default(name: str, problem: Mapping[str, Any], *machines: Machine) -> tuple[str, Any]:
    found = default_on(name, problem, *machines)
    named = found if isinstance(found, dict) else dict(zip(("us_anew", "us_without"), found))
    return name, named


def main() -> None:
    """Fits the constants anew, and predicts with them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    jobs = parser.parse_args().jobs
    rows = model.rows()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        chosen_by = [(row.name, row.mhz, row.us) for row in rows if not row.held_out]
        found = pool.starmap(slopes, chosen_by, chunksize=2)
        print(f"{len(found)} calibration pairs have their slopes.", flush=True)
        families = dict.fromkeys(each.family for each in found)
        constants = {str(family): fitted(found, family) for family in (None, *families)}
        anew = H200.changed(**constants["None"])
        others = {family: H200.changed(**constants[family]) for family in families}
        held = [(row.name, row.mhz, anew, others[row.family]) for row in model.held_out(rows)]
        predicted = dict(pool.starmap(_pair, held, chunksize=2))
        print(f"{len(predicted)} held-out pairs are predicted.", flush=True)
        asked = [
            (each.name, each.problem, anew, others.get(each.family, anew))
            for each in model.measured_defaults()
        ]
        predicted |= dict(pool.starmap(_default, asked, chunksize=2))
    run = dict(
        command=" ".join(["python -m benchmarks.left_out", *sys.argv[1:]]),
        machine=H200.name, constants=constants, provenance=provenance(),
    )  # fmt: skip
    records.put(PREDICTED, dict(part="left_out", problem={}, run=run, contenders=predicted))
    print(f"{len(predicted)} pairs and calls are predicted with constants of other families.")


if __name__ == "__main__":
    main()
