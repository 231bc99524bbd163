"""What the records of `benchmarks/matmul.py` say of the ladder, for its chapter.

The model. A `Group` is one product and what was measured of its contenders, as `contenders` has it.
The baseline is the fastest of the ways in which XLA picked cuBLAS's kernel in that run.

Records may lack a part: what is asked of it is then empty, and a table says so in a sentence.
"""

import math
import pathlib
import statistics
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any, NamedTuple

from pipelib.kernels.matmul import tuned
from pipelib.kernels.matmul.config import MatmulConfig
from pipelib_book.matmul_ladder import IDEAS, RUNGS
from pipelib_book.measured import contenders, results

#: What the benchmark calls ours with tuned configurations, JAX's kernel, XLA's products, DeepGEMM.
TUNED, UPSTREAM, CUBLAS = "matmul", "hopper_matmul_mgpu", "cuBLAS (XLA)"
DEEPGEMM, DEEPGEMM_WHEEL = "deepgemm", "deepgemm_wheel"
#: The builds of DeepGEMM: the strongest, then that of a package registry.
BUILDS = {DEEPGEMM: "DeepGEMM", DEEPGEMM_WHEEL: "DeepGEMM, sgl-deep-gemm"}
#: The rungs, and what tuning found beyond them.
NAMES = {f"rung {rung.number}": f"rung {rung.number}, {rung.name}" for rung in RUNGS}
NAMES[TUNED] = f"rung {len(RUNGS)}, tuned"
_UNMEASURED = "not measured"


class Group(contenders.Group):
    """One product, and what was found of each contender: samples in microseconds, or a reason."""

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
        return self.fastest(CUBLAS)

    @property
    def tuned_config(self) -> MatmulConfig | None:
        """What `TUNED` takes for this product from the package's table, of this group's GPU."""
        m, n, k, dtype = (self.problem[name] for name in ("m", "n", "k", "dtype"))
        turned = {f"transpose_{x}": self.problem.get(f"transpose_{x}", False) for x in "ab"}
        gpu = self.run["provenance"]["gpu"]
        entry = tuned.nearest_entry(
            m, n, k, dtype, **turned, out_dtype=self.problem.get("out_dtype"), gpu=gpu
        )
        return entry and entry.config


class Search(NamedTuple):
    """What a search measured: configurations as fields, with a median in microseconds or None."""

    problem: dict[str, Any]
    rows: list[tuple[dict[str, Any], float | None, str]]
    finals: list[tuple[dict[str, Any], float | None, str]]

    @property
    def shape(self) -> str:
        """MxNxK."""
        return _shape(self.problem)

    @property
    def winner(self) -> dict[str, Any] | None:
        """The fastest configuration of the finals, by its median; None if none of them has a time.

        The finals are the best few of the search, measured once more, side by side. They stand in
        the order of the first time, which the second need not confirm.
        """
        timed = [(us, config) for config, us, _ in self.finals if us is not None]
        return min(timed, key=lambda final: final[0])[1] if timed else None

    def near_misses(self) -> list[tuple[str, float | None, str]]:
        """What differs from the winner in one thing: the fastest of each kind, slowest last.

        Both times are of the search itself, in which the winner need not have been the fastest.

        One thing is a field, a cluster, or a tile with the threads and slots that go with it.

        Returns:
          (fields with the winner's value in brackets, time over the winner's, reason if it has no
          time), each.
        """
        winner = self.winner
        if winner is None:
            return []
        best_us = next(us for config, us, _ in self.rows if config == winner and us is not None)
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
    return Group.read("matmul.json", part, folders)


def searches(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[Search]:
    """The searches for configurations of ours; none if there is no record of them."""
    records = results.read(f"{results.GPU}/tune.json", folders)
    return [_search(search) for record in records for search in record["groups"]]


def _search(search: dict[str, Any]) -> Search:
    rows = lambda rows: [
        (dict(zip(search["fields"], values)), median(us) if us and not reason else None, reason)
        for values, us, _, reason in rows
    ]
    return Search(search["problem"], rows(search["rows"]), rows(search["finals"]))


def _shape(problem: dict[str, Any]) -> str:
    return "x".join(str(problem[axis]) for axis in "mnk")


# Words and tables, in Markdown.


def missing(part: str) -> str:
    """What a page says where the record has no such part."""
    return results.missing(f"part `{part}`")


def where(found: list[Group]) -> str:
    """A sentence on the machine and the times of some groups."""
    return contenders.where(found) if found else missing("ladder")


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
    names = map("rung {}".format, numbers)
    return results.table(_head("kernel", found), (_row(NAMES[name], name, found) for name in names))


def ladder_table(found: list[Group]) -> str:
    """All rungs, the tuned kernel, and what others made: TFLOP/s ± spread (share of cuBLAS's)."""
    if not found:
        return missing("ladder")
    names = NAMES | {UPSTREAM: "JAX's own"}
    names |= {name: words for name, words in BUILDS.items() if _have(name, found)}
    rows = [_row(words, name, found) for name, words in names.items()]
    rows.append(["cuBLAS", *(g.tflops(g.baseline, without=_UNMEASURED) for g in found)])
    return results.table(_head("kernel", found), rows)


def _have(name: str, found: list[Group]) -> bool:
    """Whether a contender was timed in any of some groups."""
    return any(group.rate(name) for group in found)


def _head(first: str, found: list[Group]) -> list[str]:
    """The head of a table with a column for each product."""
    return [first, *(group.shape for group in found)]


def _row(first: str, name: str, found: list[Group]) -> list[str]:
    """A contender's row of such a table."""
    return [first, *(_cell(name, group) for group in found)]


def _cell(name: str, group: Group) -> str:
    cell, share = group.cell(name, without=_UNMEASURED), group.share(name)
    return cell if share is None else f"{cell} ({share:.1%})"


def ideas_table(found: list[Group]) -> str:
    """What went no further up: each idea's rate beside that of the rung it changes."""
    measured = [g for g in found if any(idea.name in g.contenders for idea in IDEAS)]
    if not measured:
        return missing("ladder, ideas")
    last = f"rung {RUNGS[-1].number}"
    rows = []
    for idea in IDEAS:
        share = measured[0].share(last, idea.name)
        time = measured[0].contenders.get(idea.name, {}).get("reason", _UNMEASURED)
        rows.append([idea.name, time if share is None else _change(share), idea.reason])
    head = "idea", f"{measured[0].shape}, time", "what speaks for it or against"
    return results.table(head, rows, words=(0, 2))


def repeatability(found: list[Group]) -> str:
    """How far a rung and the tuned kernel are apart where they are the same kernel.

    It is the same one where the table of tuned configurations has that of the rung. Nothing is said
    where it has that of none.
    """
    apart = []
    for group in found:
        config = group.tuned_config
        for name in (f"rung {rung.number}" for rung in RUNGS if rung.config == config):
            if ratio := group.share(name, TUNED):
                problem = f"{group.shape} in {group.problem['dtype']}"
                apart.append(f"{_change(ratio)} ({name}, {problem})")
    if not apart:
        return ""
    return (
        "Where tuning found a rung again, the two are one kernel, measured twice in a run. The"
        f" rung's rate differs from the tuned kernel's by {', '.join(apart)}. Smaller differences"
        " in the tables say nothing."
    )


def _change(ratio: float) -> str:
    return f"{ratio - 1:+z.1%}"


def slots_table(found: list[Group]) -> str:
    """Rung 1 with other numbers of slots; rung 0 has one."""
    if not found:
        return missing("ladder")
    names = {1: "rung 0", 2: "rung 1"} | {n: f"rung 1 with {n} slots" for n in range(3, 33)}
    rows = [
        _row(str(slots), name, found)
        for slots, name in names.items()
        if any(name in group.contenders for group in found)
    ]
    return results.table(_head("slots", found), rows)


def shapes_table(found: list[Group]) -> str:
    """TFLOP/s of products of language models, by their sizes, and ratios to the rates of others."""
    if not found:
        return missing("shapes")
    others = {None: "cuBLAS", UPSTREAM: "JAX's own", **BUILDS}
    others = {name: words for name, words in others.items() if name is None or _have(name, found)}
    rows = [
        [group.shape, group.tflops(TUNED), *(group.times(TUNED, name) for name in others)]
        for group in sorted(found, key=lambda group: [group.problem[axis] for axis in "mnk"])
    ]
    return results.table(["product", "TFLOP/s", *(f"of {x}" for x in others.values())], rows)


def shapes_sentence(found: list[Group]) -> str:
    """The geometric means of the ratios in `shapes_table`, and the worst; nothing without them."""
    mean, of_jax = (geometric_mean(found, of) for of in (None, UPSTREAM))
    if not mean or not of_jax:
        return ""
    worst = min(group.share(TUNED) or math.inf for group in found)
    means = [f"{mean:.3f} times cuBLAS", f"{of_jax:.3f} times JAX's own kernel"]
    if of_deepgemm := geometric_mean(found, DEEPGEMM):
        means.append(f"{of_deepgemm:.3f} times DeepGEMM")
    said = f"{', '.join(means[:-1])} and {means[-1]}"
    return f"Geometric mean of {len(found)}: {said}; the worst {worst:.2f} times cuBLAS."


def geometric_mean(found: list[Group], of: str | None = None) -> float | None:
    """Of the tuned kernel's rates over another's, by default cuBLAS's; None without any."""
    shares = [share for group in found if (share := group.share(TUNED, of))]
    return statistics.geometric_mean(shares) if shares else None


#: The kinds of products in `untuned_table`, and what is one.
_UNTUNED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "of up to 64 rows": lambda p: p["m"] <= 64,
    "of more rows, N and K multiples of 64": lambda p: p["m"] > 64 and not _is_odd(p),
    "of more rows, other N or K": lambda p: p["m"] > 64 and _is_odd(p),
    "all": lambda p: True,
}


def _is_odd(problem: dict[str, Any]) -> bool:
    """Whether rows of a factor end within a line of L2, of 128 bytes."""
    return any(problem[axis] % 64 for axis in "nk")


def untuned_table(found: list[Group]) -> str:
    """Speeds beside the best of cuBLAS and DeepGEMM, for products that nobody tuned, by kind."""
    shares = {
        kind: [
            group.share(TUNED, group.fastest(CUBLAS, *BUILDS))
            for group in found
            if is_one(group.problem)
        ]
        for kind, is_one in _UNTUNED.items()
    }
    return contenders.shares_table("products", shares) or missing("untuned")


def power_table(found: list[Group]) -> str:
    """Rates of bursts and of the sustained runs, with the clock and the power of these.

    Products are told by their shape; where `found` has several dtypes, by these too.
    """
    rows, dtypes = [], {group.problem["dtype"] for group in found}
    for group in found:
        baselines = group.of_kinds(CUBLAS)
        for name in (TUNED, UPSTREAM, *BUILDS, *baselines):
            driver = group.driver(name)
            if not group.rate(name) or not group.rate(name, "sustained") or driver is None:
                continue
            kept = [n for n in baselines if group.rate(n, "sustained")]
            share = group.share(name, kept[0], "sustained") if kept else None
            rates = [group.tflops(name, kind=kind) for kind in ("burst", "sustained")]
            clock, power = f"{driver[0] / 1e6:.0f}", f"{driver[1]:.0f}"
            cells = *rates, f"{share:.1%}" if share else "-", clock, power
            product = f"{group.shape} {group.problem['dtype']}" if len(dtypes) > 1 else group.shape
            rows.append([product, name, *cells])
    head = "product", "kernel", "burst", "sustained", "of cuBLAS", "MHz", "W"
    return results.table(head, rows, words=(0, 1)) if rows else missing("ladder, sustained")


def searches_of(
    found: list[Group], folders: tuple[pathlib.Path, ...] = results.FOLDERS
) -> list[Search]:
    """The searches for the products of some groups; without those that found nothing."""
    problems = [group.problem for group in found]
    return [s for s in searches(folders) if s.problem in problems and s.winner]


def winners_table(found: list[Search]) -> str:
    """How much each search measured, and in which fields its winner differs from the last rung."""
    last, rows = RUNGS[-1], []
    for search in found:
        best, fields = search.winner or {}, vars(last.config)
        changed = [f"`{name}={best[name]!r}`" for name in best if best[name] != fields[name]]
        rows.append([search.shape, str(len(search.rows)), ", ".join(changed) or "the same"])
    head = "product", "measured", f"the winner, beside rung {last.number}"
    return results.table(head, rows, words=(0, 2)) if rows else missing("tune")


def search_table(search: Search) -> str:
    """What differed from the winner in one thing, and what it cost, or why that is not known."""
    rows = [
        [values, why if ratio is None else _change(ratio)]
        for values, ratio, why in search.near_misses()
    ]
    return results.table(("changed (the winner's)", "time"), rows)


def emitters_table(found: list[Group]) -> str:
    """Rungs by pipelib's emitters and by JAX's: the ratio of their times."""
    if not found:
        return missing("emitters")
    rows = []
    for group in found:
        for name in group.contenders:
            share = group.share(f"{name.partition(',')[0]}, upstream", name)
            if share is not None:
                us, spread = group.bursts(name).median_us, group.spread(name)
                rows.append([name, f"{us:.1f}", f"{spread:.1%}", f"{share:.3f}"])
    return results.table(("kernel", "µs", "± half spread", "of JAX's time"), rows)
