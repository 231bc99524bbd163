"""How right the simulator is: what `pallascope.predict` says of launches, beside what a GPU took.

The model. A row is a pair of kernel and configuration. An **error** is the predicted time over the
measured one, less one. Measured is the median of the launches' times by CUPTI, of Mosaic GPU's
kernels alone. Errors **at the clock** compare cycles: the prediction is made at the clock that the
GPU had in the same calls. Errors **of the time** have the error of the clock that the model expects
in them too. Constants of the model were chosen by calibration pairs; errors are of the others, the
**held-out** pairs, unless a table says otherwise. Which they are, the hash of their names decides.
One rule of the model was changed after errors of held-out pairs had been seen: that a last round of
blocks that share an SM, if it is not full, takes its share of a round (`simulating.launch`).

A step's time comes from two pairs: a kernel, and the same one on arrays with twice the steps. Of
both, the difference in cycles is compared. The longer pairs are in no other table.

The pairs are of the families that the constants were chosen by. **Defaults** are calls without a
configuration (`CALLS`); none is a pair, though attentions have sizes of pairs. Their errors are of
the time. Rules of the model (two units of arithmetic, the slowdown beside products, HBM's faster
reads, rows that begin inside a sector) were made after the errors of products and of attentions
whose sizes nobody drew had been seen; the other calls were predicted after that.

A record that is not there gives no rows and a sentence in place of a table.
"""

import hashlib
import itertools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scipy.stats import spearmanr

from pipelib_book.measured import results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What Mosaic GPU's kernels have in their names, and XLA's have not.
_MOSAIC = "mosaic"
#: An error that wants a cause; how many of the worst rows a table has.
MOST, WORST = 0.05, 10
#: An error that a user can live with; the microseconds of a short launch.
NEAR, SHORT_US = 0.15, 10


_MARKERS = "os^Dv<>p*hX"


class Row(NamedTuple):
    """A pair that was measured and predicted.

    Attributes:
      family, work, config: the kernels to choose among, what is computed, and how.
      held_out: whether no constant was chosen by it.
      us, mhz: the medians of what was measured.
      us_at_clock: predicted at that clock.
      us_predicted, mhz_predicted: predicted with the model's own clock.
    """

    family: str
    work: str
    config: str
    held_out: bool
    us: float
    mhz: float
    us_at_clock: float
    us_predicted: float
    mhz_predicted: float

    @property
    def name(self) -> str:
        """That of the pair, as records have it."""
        return f"{self.family}: {self.work}: {self.config}"

    @property
    def error(self) -> float:
        """At the clock."""
        return self.us_at_clock / self.us - 1

    @property
    def error_of_time(self) -> float:
        """With the clock's error."""
        return self.us_predicted / self.us - 1

    @property
    def cause(self) -> str:
        """Why it is off, most likely."""
        text = f"{self.work}: {self.config}"
        for cause in CAUSES:
            if cause.family in self.family and all(word in text for word in cause.words):
                return cause.why
        return "not known"


class Step(NamedTuple):
    """A kernel with some steps, and with twice as many."""

    family: str
    short: Row
    long: Row

    @property
    def error(self) -> float:
        """Of the cycles that the further steps take."""
        short, long = self.short, self.long
        measured = long.us * long.mhz - short.us * short.mhz
        return (long.us_at_clock * long.mhz - short.us_at_clock * short.mhz) / measured - 1


class Cause(NamedTuple):
    """Why rows of a family, with these words in their work or configuration, are off."""

    family: str
    words: tuple[str, ...]
    why: str


#: Likely causes, the first that fits; none of them is in the model.
CAUSES = (
    Cause("gradients", ("one kernel",), "blocks wait for each other to add to rows of dQ"),
    Cause(
        "gradients",
        ("attention_mgpu", "1 thread"),
        "one growth of code for all kernels: this one's is smaller",
    ),
    Cause(
        "attention",
        ("shared",),
        "a thread's softmax beside its own products: probabilities go through SMEM, with fences",
    ),
    Cause("attention", (), "one slowdown of all arithmetic beside products; spills"),
    Cause("softmax", ("pieces=128",), "the second pass misses L2 more often than at best"),
    Cause("rms_norm", ("pieces=128",), "the second pass misses L2 more often than at best"),
    Cause("matmul", ("tile_n=192", "slots=3"), "three slots: late loads hold products up"),
    Cause("matmul", ("64x8192x8192",), "few rows: HBM's share of each SM is a mean over all SMs"),
    Cause("kernels of chapters", ("ring",), "its operands stay in L2 from launch to launch"),
    Cause("kernels of chapters", ("sum",), "HBM's reach is one number for all kernels"),
)


def is_held_out(name: str) -> bool:
    """Whether no constant may be chosen by the pair of this name: two thirds of them."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6]) % 3 > 0


def rows(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[Row]:
    """All pairs but longer ones, in the record's order; none if a record is missing."""
    return [row for row, longer_than in _every(folders).values() if longer_than is None]


def steps(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[Step]:
    """The pairs that there is a longer one of, with it."""
    every = _every(folders)
    longer = [(every[name][0], row) for row, name in every.values() if name in every]
    return [Step(short.family, short, long) for short, long in longer]


def _every(folders: tuple[pathlib.Path, ...]) -> dict[str, tuple[Row, str | None]]:
    """All pairs by name, in the record's order; of a longer one, the name of the other one."""
    measured = results.read(f"{results.GPU}/model.json", folders)
    predicted = results.read(f"{results.GPU}/predicted.json", folders)
    if not measured or not predicted:
        return {}
    found = predicted[0]["pairs"]
    return {
        name: (_row(name, kept, found[name]), kept.get("longer_than"))
        for name, kept in measured[0]["pairs"].items()
        if name in found
    }


def _row(name: str, kept: dict[str, Any], predicted: dict[str, Any]) -> Row:
    family, *work, config = name.split(": ")
    kernels = [kernel for each, kernel in kept["kernels"].items() if _MOSAIC in each]
    runs = [[kernel["runs"] * us for us in kernel["us"]] for kernel in kernels]
    return Row(
        family, ": ".join(work), config, is_held_out(name), median(map(sum, zip(*runs))),
        median(kept["mhz"]), predicted["us_at_clock"], predicted["us"], predicted["mhz"],
    )  # fmt: skip


class Default(NamedTuple):
    """A call without a configuration: its kernel and its problem, measured and predicted.

    `us_predicted` is None where no kernel of ours computes it, or nobody has predicted it.
    """

    family: str
    problem: dict[str, Any]
    us: float
    us_predicted: float | None = None

    @property
    def name(self) -> str:
        """Family and problem, as the record of the predictions names them."""
        return f"{self.family}: " + ", ".join(f"{k}={v}" for k, v in self.problem.items())

    @property
    def error(self) -> float:
        """Of the time; that of a call that is not predicted is not asked for."""
        assert self.us_predicted is not None
        return self.us_predicted / self.us - 1


class Calls(NamedTuple):
    """Where a family of calls is recorded: file, parts and contender; of attentions, whether it is
    their gradients."""

    family: str
    record: str
    parts: tuple[str, ...]
    contender: str
    backward: bool = False


#: All calls without a configuration. Sizes of parts named "untuned" were drawn by chance.
CALLS = (
    Calls("matmul", "matmul", ("untuned",), "matmul"),
    Calls("attention", "attention", ("forward", "sizes", "untuned"), "attention"),
    Calls("attention's gradients", "attention", ("untuned",), "attention", backward=True),
    Calls("decode_attention", "decode", ("decode",), "decode_attention"),
    Calls("rms_norm", "memory_bound", ("shapes",), "rms_norm, pipelib"),
    Calls("softmax", "memory_bound", ("shapes",), "softmax, pipelib"),
)


def measured_defaults(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[Default]:
    """Calls without a configuration, as measured."""
    found: list[Default] = []
    for calls in CALLS:
        for record in results.read(f"{results.GPU}/{calls.record}.json", folders):
            for group in record["groups"]:
                problem, kept = group["problem"], group["contenders"].get(calls.contender, {})
                is_asked = problem.get("backward", False) == calls.backward
                if group["part"] in calls.parts and is_asked and (us := _own_us(kept)):
                    found.append(Default(calls.family, problem, us))
    return found


def _own_us(kept: dict[str, Any]) -> float | None:
    """The time of our kernels; of a call whose kernels are not told apart, of all of them."""
    found: object = kept.get("kernels")  # with their times, or their names alone
    if isinstance(found, dict):
        each = cast("dict[str, float]", found)
        if own := [us for name, us in each.items() if _MOSAIC in name]:
            return sum(own)
    return median(us) if (us := kept.get("burst_microseconds")) else None


def defaults(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[Default]:
    """Calls without a configuration that were measured and predicted; none without a record."""
    predicted = results.read(f"{results.GPU}/predicted.json", folders)
    known = predicted[0].get("defaults", {}) if predicted else {}
    every = (
        each._replace(us_predicted=_us(known, each.name)) for each in measured_defaults(folders)
    )
    return [each for each in every if each.us_predicted is not None]


def _us(known: dict[str, Any], name: str) -> float | None:
    return known.get(name, {}).get("us")


def defaults_table(found: Sequence[Default]) -> str:
    """Errors of calls without a configuration, short ones apart."""
    if not found:
        return results.missing("call without a configuration", "A record of the model")
    of = lambda family, is_in: [e for e in found if e.family == family and is_in(e.us)]
    lines = [
        _default_line(f"{family}, {what}", some)
        for family in dict.fromkeys(each.family for each in found)
        for what, is_in in _LENGTHS.items()
        if (some := of(family, is_in))
    ]
    head = "call", "problems", "mean error", "largest", f"within {NEAR:.0%}"
    return results.table(head, [*lines, _default_line("all", found)])


def _default_line(name: str, found: Sequence[Default]) -> list[str]:
    errors = [abs(each.error) for each in found]
    return [*_errors(name, errors), f"{sum(error <= NEAR for error in errors)} of {len(errors)}"]


#: Launches of microseconds, which mostly begin and end, and others.
_LENGTHS: dict[str, Callable[[float], bool]] = {
    "up to 10 µs": lambda us: us <= SHORT_US,
    "longer": lambda us: us > SHORT_US,
}


class LeftOut(NamedTuple):
    """Errors of a held-out pair or of a call: with the model's constants, with those that a fit
    chooses by all families, and with those that it chooses by the others alone."""

    family: str
    chosen: float
    anew: float
    without: float


def left_out(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[LeftOut]:
    """All that was predicted with constants of other families; none without a record."""
    predicted = results.read(f"{results.GPU}/predicted.json", folders)
    known = predicted[0].get("left_out", {}) if predicted else {}
    pairs = [(row.family, row.name, row.us, row.us_at_clock) for row in held_out(rows(folders))]
    calls = [
        (f"{each.family}, no configuration", each.name, each.us, each.us_predicted or 0.0)
        for each in defaults(folders)
    ]
    return [
        LeftOut(
            family,
            chosen / us - 1,
            known[name]["us_anew"] / us - 1,
            known[name]["us_without"] / us - 1,
        )
        for family, name, us, chosen in (*pairs, *calls)
        if "us_anew" in known.get(name, {})
    ]


def left_out_table(found: Sequence[LeftOut]) -> str:
    """Mean errors by family, with constants that it had a part in and with others."""
    if not found:
        return results.missing("prediction of a family by the others", "A record of the model")
    named = dict.fromkeys(each.family for each in found)
    lines = [_left_out_line(name, [e for e in found if e.family == name]) for name in named]
    head = "family", "held out", "as chosen", "a fit by all", "a fit by the others"
    return results.table(head, [*lines, _left_out_line("all", found)])


def _left_out_line(name: str, found: Sequence[LeftOut]) -> list[str]:
    ways = zip(*((each.chosen, each.anew, each.without) for each in found))
    means = [fmean(map(abs, errors)) for errors in ways]
    return [name, str(len(found)), *(f"{mean:.1%}" for mean in means)]


def held_out(found: Iterable[Row]) -> list[Row]:
    """Those that no constant was chosen by."""
    return [row for row in found if row.held_out]


def mean_error(found: Sequence[Row]) -> float:
    """The mean of the errors' absolute values, at the clock."""
    return fmean(abs(row.error) for row in found)


def families_table(found: Sequence[Row]) -> str:
    """Errors of the held-out pairs by family; and for tasks of more than three configurations the
    order of the predictions, and what it costs to take the first."""
    if not found:
        return results.missing("pair", "A record of the model")
    named = sorted({row.family for row in found})
    lines = [_line(name, [row for row in found if row.family == name]) for name in named]
    return results.table(
        ("family", "pairs", "held out", "mean error", "largest", "mean, own clock",
         "tasks", "rank correlation", "the first costs", "at most"),
        [*lines, _line("all", found)],
    )  # fmt: skip


def _line(name: str, found: Sequence[Row]) -> list[str]:
    kept = held_out(found)
    errors = [abs(row.error) for row in kept]
    works = [each for each in by_work(found) if len(each) > 3]
    costs = [cost_of_first(each) for each in works]
    return [
        name,
        str(len(found)),
        str(len(kept)),
        f"{fmean(errors):.1%}",
        f"{max(errors):.1%}",
        f"{fmean(abs(row.error_of_time) for row in kept):.1%}",
        str(len(works)),
        f"{fmean(map(rank_correlation, works)):.2f}" if works else "",
        f"{fmean(costs):.1%}" if works else "",
        f"{max(costs):.1%}" if works else "",
    ]


def steps_table(found: Sequence[Step]) -> str:
    """Errors of held-out pairs' times of a step, by family."""
    if not found:
        return results.missing("pair with a longer one", "A record of the model")
    kept = [step for step in found if step.short.held_out]
    named = sorted({step.family for step in kept})
    lines = [_errors(name, [s.error for s in kept if s.family == name]) for name in named]
    head = "family", "held out", "mean error", "largest"
    return results.table(head, [*lines, _errors("all", [step.error for step in kept])])


def _errors(name: str, errors: Sequence[float]) -> list[str]:
    sizes = [abs(error) for error in errors]
    return [name, str(len(sizes)), f"{fmean(sizes):.1%}", f"{max(sizes):.1%}"]


def by_work(found: Iterable[Row]) -> list[list[Row]]:
    """Rows that compute the same, together: what a person chooses among."""
    key = lambda row: (row.family, row.work)
    return [list(group) for _, group in itertools.groupby(sorted(found, key=key), key=key)]


def rank_correlation(found: Sequence[Row]) -> float:
    """Spearman's, of predicted and measured times: 1 if the predictions have the right order."""
    measured, predicted = [row.us for row in found], [row.us_predicted for row in found]
    return float(cast(Any, spearmanr(measured, predicted)).statistic)


def cost_of_first(found: Sequence[Row]) -> float:
    """How much longer what is predicted to be fastest takes than the fastest: 0.1 is 10%."""
    return min(found, key=lambda row: row.us_predicted).us / min(row.us for row in found) - 1


def worst_table(found: Sequence[Row], count: int = WORST) -> str:
    """The held-out pairs whose predictions are farthest off, with the cause."""
    if not found:
        return results.missing("pair", "A record of the model")
    worst = sorted(held_out(found), key=lambda row: -abs(row.error))[:count]
    return results.table(
        ("kernel", "configuration", "µs", "error", "likely cause"),
        [
            [
                f"{row.family}: {row.work}",
                row.config,
                f"{row.us:,.1f}",
                f"{row.error:+.1%}",
                row.cause,
            ]
            for row in worst
        ],
        words=(0, 1, 4),
    )


def causes_table(found: Sequence[Row], most: float = MOST) -> str:
    """Why held-out pairs are off by more than `most`: how many have each cause, and how far."""
    off: dict[str, list[float]] = {}
    for row in held_out(found):
        if abs(row.error) > most:
            off.setdefault(row.cause, []).append(row.error)
    if not off:
        return results.missing("pair that is far off", "The record of the model")
    return results.table(
        ("likely cause", "pairs", "errors"),
        [
            [cause, str(len(errors)), f"{min(errors):+.1%} to {max(errors):+.1%}"]
            for cause, errors in sorted(off.items(), key=lambda item: -len(item[1]))
        ],
    )


def scatter(found: Sequence[Row]) -> "Figure":
    """Predicted against measured times of the held-out pairs, both at the measured clock."""
    import matplotlib

    from pallascope.drawing.plot import COLOURS, TimelineFigure

    kept = held_out(found)
    figure = TimelineFigure(figsize=(6.5, 5), layout="constrained")
    figure.description = f"predicted against measured times of {len(kept)} launches"
    with matplotlib.rc_context(COLOURS):
        axes = figure.add_subplot()
        axes.set_facecolor("none")
        for number, family in enumerate(sorted({row.family for row in kept})):
            points = [(row.us, row.us_at_clock) for row in kept if row.family == family]
            marker = _MARKERS[number % len(_MARKERS)]
            axes.scatter(*zip(*points), s=16, marker=marker, label=family, alpha=0.7)
        ends = min(row.us for row in kept) / 1.3, max(row.us for row in kept) * 1.3
        low, high = ([end * share for end in ends] for share in (1 - MOST, 1 + MOST))
        axes.plot(ends, ends, color="#888888", linewidth=1)
        axes.fill_between(ends, low, high, color="#888888", alpha=0.3, label=f"within {MOST:.0%}")
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        axes.set(xlabel="measured, µs", ylabel="predicted, µs")
        axes.legend(fontsize="x-small", loc="upper left", framealpha=0)
    return figure
