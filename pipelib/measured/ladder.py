"""What the records of `benchmarks/matmul.py` say of the ladder, for its chapter.

The model. A `Group` is one product and what was measured of each *contender* on it, in one run. A
rate counts operations a second at the median time. The *baseline* is the fastest of the ways in
which XLA picked cuBLAS's kernel in that run, and a share is of its rate. The first half of a
sustained run is left out, in which the clock still falls.

Records may lack a part: what is asked of it is then empty, and a table says so in a sentence.
"""

import math
import pathlib
from collections.abc import Iterable
from statistics import median, quantiles
from typing import Any, NamedTuple

from pipelib.kernels import tuned
from pipelib.kernels.ladder import IDEAS, RUNGS
from pipelib.measured import results

#: What the benchmark calls ours with tuned configurations, JAX's kernel, and XLA's products.
TUNED, UPSTREAM, CUBLAS = "matmul", "hopper_matmul_mgpu", "cuBLAS"
#: The rungs, and what tuning found beyond them.
NAMES = {f"rung {rung.number}": f"rung {rung.number}, {rung.name}" for rung in RUNGS}
NAMES[TUNED] = f"rung {len(RUNGS)}, tuned"


class Group(NamedTuple):
    """One product, and what was found of each contender: samples in microseconds, or a reason."""

    problem: dict[str, Any]
    contenders: dict[str, dict[str, Any]]
    run: dict[str, Any]

    @property
    def shape(self) -> str:
        """MxNxK."""
        return _shape(self.problem)

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.problem[axis] for axis in "mnk")

    @property
    def baseline(self) -> str | None:
        """The fastest of cuBLAS's."""
        names = [name for name in self.contenders if name.startswith(CUBLAS)]
        rates = {name: rate for name in names if (rate := self.rate(name))}
        return max(rates, key=rates.get, default=None)

    def rate(self, name: str, kind: str = "burst") -> float | None:
        """Operations a second of "burst"s or of the "sustained" run; None if there is none."""
        us = self.contenders.get(name, {}).get(f"{kind}_microseconds")
        if not us:
            return None
        return self.flops / median(us if kind == "burst" else _late(us)) * 1e6

    def spread(self, name: str) -> float:
        """Half the distance between the quartiles of bursts, as a fraction of the median."""
        low, middle, high = quantiles(self.contenders[name]["burst_microseconds"], n=4)
        return (high - low) / 2 / middle

    def share(self, name: str, of: str | None = None, kind: str = "burst") -> float | None:
        """A contender's rate over another's, by default the baseline's; None without both."""
        rates = self.rate(name, kind), self.rate(of or self.baseline or "", kind)
        return rates[0] / rates[1] if all(rates) else None

    def driver(self, name: str) -> tuple[float, float] | None:
        """Hz and W that the driver reports in the late half of a sustained run."""
        lines = [line.split(",") for line in self.contenders.get(name, {}).get("driver", ())]
        if not lines:
            return None
        late = _late(lines)
        return median(float(line[0]) for line in late) * 1e6, median(float(x[1]) for x in late)


class Search(NamedTuple):
    """What a search measured: configurations as fields, with a median in microseconds or None."""

    problem: dict[str, Any]
    rows: list[tuple[dict[str, Any], float | None, str]]
    finals: list[tuple[dict[str, Any], float | None, str]]

    @property
    def shape(self) -> str:
        """MxNxK."""
        return _shape(self.problem)

    def near_misses(self) -> list[tuple[str, float | None, str]]:
        """What differs from the winner in one thing: the fastest of each kind, slowest last.

        One thing is a field, a cluster, or a tile with the threads and slots that go with it.

        Returns:
          (fields with the winner's value in brackets, time over the winner's, reason if it has no
          time), each.
        """
        winner, best_us, _ = self.finals[0]
        for config, us, _ in self.rows:  # the time that was taken along with the others'
            best_us = us or best_us if config == winner else best_us
        found: dict[Any, tuple[str, float | None, str]] = {}
        for config, us, why in sorted(self.rows, key=lambda row: row[1] or math.inf):
            names = frozenset(name for name in winner if config[name] != winner[name])
            is_one = len(names) == 1 or any(names <= together for together in _TOGETHER)
            if names and is_one:
                values = ", ".join(f"{n}={config[n]} ({winner[n]})" for n in winner if n in names)
                found.setdefault((names, why), (values, us and us / best_us, why))
        return list(found.values())


_TOGETHER = {"tile_m", "tile_n", "compute_threads", "slots"}, {"cluster_m", "cluster_n"}


def groups(part: str, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[Group]:
    """The groups of one part of the record; none if it is not there."""
    records = results.read(f"{results.GPU}/matmul.json", folders)
    return [
        Group(group["problem"], group["contenders"], group["run"])
        for record in records for group in record["groups"]
        if group["part"] == part and "contenders" in group
    ]  # fmt: skip


def searches(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[Search]:
    """The searches for configurations of ours; none if there is no record of them."""
    records = results.read(f"{results.GPU}/tune.json", folders)
    return [_search(search) for record in records for search in record["searches"]]


def _search(search: dict[str, Any]) -> Search:
    rows = lambda rows: [
        (dict(zip(search["fields"], values)), median(us) if us and not reason else None, reason)
        for values, us, _, reason in rows
    ]
    return Search(search["problem"], rows(search["rows"]), rows(search["finals"]))


def _shape(problem: dict[str, Any]) -> str:
    return "x".join(str(problem[axis]) for axis in "mnk")


def _late(samples: list[Any]) -> list[Any]:
    return samples[len(samples) // 2 :]


# Words and tables, in Markdown.


def missing(part: str) -> str:
    """What a page says where the record has no such part."""
    return f"(The record has no part `{part}`: `make benchmark` measures it.)"


def where(found: Iterable[Group]) -> str:
    """A sentence on the machine and the times of some groups."""
    runs = [group.run["provenance"] for group in found]
    if not runs:
        return missing("ladder")
    names, dates = ({run[key][:30] for run in runs} for key in ("gpu", "utc"))
    versions = sorted({run["jax"] for run in runs})
    days = sorted({date[:10] for date in dates})
    return (
        f"Measured on an {' and an '.join(sorted(names))}, JAX {', '.join(versions)},"
        f" {' to '.join(dict.fromkeys((days[0], days[-1])))}."
    )


def rung_row(number: int, found: list[Group]) -> str:
    """A rung's row beside that of the rung before: TFLOP/s ± spread (share of cuBLAS's)."""
    return _rungs(range(max(0, number - 1), number + 1), found)


def so_far(number: int, found: list[Group]) -> str:
    """The ladder up to a rung, in bfloat16: a row each, and where they were measured."""
    squares = [group for group in found if group.problem["dtype"] == "bfloat16"]
    if not squares:
        return missing("ladder")
    return f"{_rungs(range(number + 1), squares)}\n\n{where(squares)}"


def _rungs(numbers: Iterable[int], found: list[Group]) -> str:
    """The rows of some rungs."""
    if not found:
        return missing("ladder")
    rows = (f"| {NAMES[name]} | {_cells(name, found)} |" for name in map("rung {}".format, numbers))
    return "\n".join([*_head("kernel", found), *rows])


def ladder_table(found: list[Group]) -> str:
    """All rungs, the tuned kernel, JAX's own and cuBLAS: TFLOP/s ± spread (share of cuBLAS's)."""
    if not found:
        return missing("ladder")
    lines = _head("kernel", found)
    for name, words in (NAMES | {UPSTREAM: "JAX's own"}).items():
        lines.append(f"| {words} | " + _cells(name, found) + " |")
    rates = (group.rate(group.baseline or "") for group in found)
    cells = (f"{rate / 1e12:.0f}" if rate else "not measured" for rate in rates)
    lines.append("| cuBLAS | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _head(first: str, found: list[Group]) -> list[str]:
    """The head of a table with a column for each product."""
    shapes = " | ".join(group.shape for group in found)
    return [f"| {first} | {shapes} |", "|---|" + "--:|" * len(found)]


def _cells(name: str, found: list[Group]) -> str:
    return " | ".join(_cell(name, group) for group in found)


def _cell(name: str, group: Group) -> str:
    rate, share = group.rate(name), group.share(name)
    if rate is None:
        return group.contenders.get(name, {}).get("reason", "not measured")
    words = f"{rate / 1e12:.0f} ± {group.spread(name):.1%}"
    return words if share is None else f"{words} ({share:.1%})"


def ideas_table(found: list[Group]) -> str:
    """What went no further up: each idea's rate beside that of the rung it changes."""
    measured = [g for g in found if any(idea.name in g.contenders for idea in IDEAS)]
    if not measured:
        return missing("ladder, ideas")
    last = f"rung {RUNGS[-1].number}"
    lines = [f"| idea | {measured[0].shape}, time | what speaks for it or against |"]
    lines.append("|---|--:|---|")
    for idea in IDEAS:
        share = measured[0].share(last, idea.name)
        time = measured[0].contenders.get(idea.name, {}).get("reason", "not measured")
        time = time if share is None else _change(share)
        lines.append(f"| {idea.name} | {time} | {idea.reason} |")
    return "\n".join(lines)


def repeatability(found: list[Group]) -> str:
    """How far the last rung and the tuned kernel are apart where they are the same kernel.

    It is the same one where the table of tuned configurations has that of the rung. Nothing is said
    where it has another.
    """
    last, apart = RUNGS[-1], []
    for group in found:
        m, n, k, dtype = (group.problem[name] for name in ("m", "n", "k", "dtype"))
        gpu = group.run["provenance"]["gpu"]
        ratio = group.share(f"rung {last.number}", TUNED)
        if ratio and tuned.nearest_config(m, n, k, dtype, gpu=gpu) == last.config:
            apart.append(f"{ratio - 1:+.1%} for {group.shape} in {dtype}")
    if not apart:
        return ""
    return (
        f"Where tuning found rung {last.number} again, the two are one kernel, measured twice in a"
        f" run. Rung {last.number}'s rate differs from the other's by {', '.join(apart)}. Smaller"
        " differences in the tables say nothing."
    )


def _change(ratio: float) -> str:
    return f"{ratio - 1:+.1%}"


def slots_table(found: list[Group]) -> str:
    """Rung 1 with other numbers of slots; rung 0 has one."""
    if not found:
        return missing("ladder")
    names = {1: "rung 0", 2: "rung 1"} | {n: f"rung 1 with {n} slots" for n in range(3, 33)}
    lines = _head("slots", found)
    for slots, name in names.items():
        if any(name in group.contenders for group in found):
            lines.append(f"| {slots} | " + _cells(name, found) + " |")
    return "\n".join(lines)


def shapes_table(found: list[Group]) -> str:
    """TFLOP/s of products of language models, and ratios to cuBLAS's and to JAX's own."""
    if not found:
        return missing("shapes")
    lines = ["| product | cuBLAS | JAX's own | matmul | of cuBLAS | of JAX's own |"]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for group in found:
        rates = [group.rate(name or "") for name in (group.baseline, UPSTREAM, TUNED)]
        shares = [group.share(TUNED, of) for of in (None, UPSTREAM)]
        cells = [f"{rate / 1e12:.0f}" if rate else "-" for rate in rates]
        cells += [f"{share:.2f}x" if share else "-" for share in shares]
        lines.append(f"| {group.shape} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def geometric_mean(found: list[Group], of: str | None = None) -> float | None:
    """Of the tuned kernel's rates over another's, by default cuBLAS's; None without any."""
    shares = [share for group in found if (share := group.share(TUNED, of))]
    return math.exp(sum(map(math.log, shares)) / len(shares)) if shares else None


def power_table(found: list[Group]) -> str:
    """Rates of bursts and of the sustained runs, with the clock and the power of these."""
    lines = ["| product | kernel | burst | sustained | of cuBLAS | MHz | W |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|")
    for group in found:
        baselines = [n for n in group.contenders if n.startswith(CUBLAS)]
        for name in (TUNED, UPSTREAM, *baselines):
            rates = [group.rate(name, kind) for kind in ("burst", "sustained")]
            driver = group.driver(name)
            if not all(rates) or driver is None:
                continue
            kept = [n for n in baselines if group.rate(n, "sustained")]
            share = group.share(name, kept[0], "sustained") if kept else None
            cells = [f"{rate / 1e12:.0f}" for rate in rates]
            cells += [f"{share:.1%}" if share else "-"]
            cells += [f"{driver[0] / 1e6:.0f}", f"{driver[1]:.0f}"]
            lines.append(f"| {group.shape} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) if len(lines) > 2 else missing("ladder, sustained")


def search_table(search: Search) -> str:
    """What differed from the winner in one thing, and what it cost."""
    lines = ["| changed (the winner's) | time | reason |", "|---|--:|---|"]
    for values, ratio, why in search.near_misses():
        time = "none" if ratio is None else _change(ratio)
        lines.append(f"| {values} | {time} | {why} |")
    return "\n".join(lines)


def emitters_table(found: list[Group]) -> str:
    """Rungs by pipelib's emitters and by JAX's: the ratio of their times."""
    if not found:
        return missing("emitters")
    lines = ["| kernel | µs | ± half spread | of JAX's time |", "|---|--:|--:|--:|"]
    for group in found:
        for name, measured in group.contenders.items():
            share = group.share(f"{name.partition(',')[0]}, upstream", name)
            if share is not None:
                us = median(measured["burst_microseconds"])
                lines.append(f"| {name} | {us:.1f} | {group.spread(name):.1%} | {share:.3f} |")
    return "\n".join(lines)
