"""Groups of contenders: what the records of products and of attention have in common.

The model. A `Group` is one problem and what was measured of each *contender* on it, in one run:
samples of times in microseconds, or a reason why there are none. A *kind* of contenders has one
name before a comma, and after it configurations or ways to run. A rate counts operations a second
at the median time. The *baseline* is the contender that shares are of by default. The first half of
a sustained run is left out, in which the clock still falls.
"""

import pathlib
from collections.abc import Iterable, Mapping
from statistics import geometric_mean, median
from typing import Any, NamedTuple, Self

from pallascope.bench.timing import Samples
from pipelib_book.measured import results

#: A share below this is counted.
_BEHIND = 0.95


class Group(NamedTuple):
    """One problem, and what was found of each contender.

    A subclass says what its problem's `shape` and `flops` are, and which contender the `baseline`.
    """

    problem: dict[str, Any]
    contenders: dict[str, dict[str, Any]]
    run: dict[str, Any]

    @property
    def shape(self) -> str:
        """The problem's sizes, in words."""
        raise NotImplementedError

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        raise NotImplementedError

    @property
    def baseline(self) -> str | None:
        """The contender that shares are of by default; None if there is none."""
        raise NotImplementedError

    @classmethod
    def read(cls, record: str, part: str, folders: tuple[pathlib.Path, ...]) -> list[Self]:
        """The groups of a part of a GPU's record; none if it is not there."""
        return [
            cls(group["problem"], group["contenders"], group["run"])
            for found in results.read(f"{results.GPU}/{record}", folders)
            for group in found["groups"]
            if group["part"] == part and group.get("contenders")
        ]

    def found(self, name: str | None) -> dict[str, Any]:
        """What was found of a contender; nothing of None, or of one that was not measured."""
        return self.contenders.get(name, {}) if name is not None else {}

    def of_kinds(self, *kinds: str) -> list[str]:
        """The contenders of these kinds."""
        return [name for name in self.contenders if name.partition(",")[0] in kinds]

    def fastest(self, *kinds: str) -> str | None:
        """The fastest contender of these kinds; None if none has a rate."""
        rates = {name: rate for name in self.of_kinds(*kinds) if (rate := self.rate(name))}
        return max(rates, key=rates.__getitem__, default=None)

    def rate(self, name: str | None, kind: str = "burst") -> float | None:
        """Operations a second of "burst"s or of the "sustained" run; None if there is none."""
        us = self.found(name).get(f"{kind}_microseconds")
        if not us:
            return None
        return Samples(tuple(us if kind == "burst" else _late(us))).rate(self.flops)

    def spread(self, name: str) -> float:
        """Half the distance between the quartiles of bursts, as a fraction of the median."""
        samples = self.bursts(name)
        return samples.spread_us / 2 / samples.median_us

    def bursts(self, name: str) -> Samples:
        """The times of a contender that has some."""
        return Samples(tuple(self.contenders[name]["burst_microseconds"]))

    def share(self, name: str | None, of: str | None = None, kind: str = "burst") -> float | None:
        """A contender's rate over another's, by default the baseline's; None without both."""
        rate, other = self.rate(name, kind), self.rate(of or self.baseline, kind)
        return rate / other if rate and other else None

    def driver(self, name: str) -> tuple[float, float] | None:
        """Hz and W that the driver reports in the late half of a sustained run."""
        lines = [line.split(",") for line in self.found(name).get("driver", ())]
        if not lines:
            return None
        late = _late(lines)
        return median(float(line[0]) for line in late) * 1e6, median(float(x[1]) for x in late)

    # In words.

    def tflops(self, name: str | None, *, kind: str = "burst", without: str = "-") -> str:
        """A rate in TFLOP/s, or `without` if there is none."""
        rate = self.rate(name, kind)
        return f"{rate / 1e12:.0f}" if rate else without

    def cell(self, name: str | None, *, without: str = "-") -> str:
        """TFLOP/s ± spread; without a rate, the reason why, or `without` if that is not known."""
        if name is None or self.rate(name) is None:
            return self.found(name).get("reason", without)
        return f"{self.tflops(name)} ± {self.spread(name):.1%}"

    def times(self, name: str | None, of: str | None = None) -> str:
        """A share, as a factor; a dash if there is none."""
        share = self.share(name, of)
        return f"{share:.2f}x" if share else "-"


def shares_table(what: str, kinds: Mapping[str, Iterable[float | None]]) -> str:
    """A row for each kind of problems: the mean of their shares, and how many are far behind.

    Args:
      what: the problems are.
      kinds: the shares of each kind, None where one was not measured. A kind without has no row.
    """
    rows = []
    for kind, every in kinds.items():
        if shares := [share for share in every if share]:
            mean, behind = geometric_mean(shares), sum(x < _BEHIND for x in shares)
            ends = (f"{end(shares):.2f}x" for end in (min, max))
            rows.append([kind, str(len(shares)), f"{mean:.3f}x", *ends, str(behind)])
    head = what, "how many", "geometric mean", "least", "most", f"below {_BEHIND}"
    return results.table(head, rows) if rows else ""


def where(found: Iterable[Group]) -> str:
    """A sentence on the machine and the times of one group or more."""
    runs = [group.run["provenance"] for group in found]
    names, dates = ({run[key][:30] for run in runs} for key in ("gpu", "utc"))
    versions = sorted({run["jax"] for run in runs})
    days = sorted({date[:10] for date in dates})
    return (
        f"Measured on an {' and an '.join(sorted(names))}, JAX {', '.join(versions)},"
        f" {' to '.join(dict.fromkeys((days[0], days[-1])))}."
    )


def _late(samples: list[Any]) -> list[Any]:
    return samples[len(samples) // 2 :]
