"""What the record of `benchmarks/attention.py` says, for the chapter on attention.

The model. As in `pipelib.measured.ladder`, of which this takes rates, spreads and shares: a `Group`
is one problem and what was measured of each contender on it, in one run. The *baseline* of a group
is the fastest contender that is not pipelib's. JAX's kernels were given several configurations
each, of which the fastest counts. A contender that was refused, or whose result was wrong, has no
rate but a reason.

Operations are those of two products for each score that is seen (five in the backward pass), and of
causal scores half are seen; exponentials are not counted.

The record may lack a part, or be missing: what is asked of it is then empty, and a table says so in
a sentence.
"""

import pathlib
from collections.abc import Iterable

from pipelib.kernels.attention_ladder import RUNGS
from pipelib.measured import ladder, results

#: What the benchmark calls ours; with a comma and more, ours with a configuration of another kind.
OURS = "attention"
#: The kinds of contenders that are not ours, and what a table calls them.
OTHERS = {
    "attention_mgpu": "JAX",
    "emitter": "JAX, emitter",
    "cuDNN (XLA)": "cuDNN",
    "PyTorch CUDNN_ATTENTION": "PyTorch, cuDNN",
    "PyTorch FLASH_ATTENTION": "PyTorch, flash",
}
#: The rungs.
NAMES = {f"rung {rung.number}": f"rung {rung.number}, {rung.name}" for rung in RUNGS}
_WITH_TURNS = {"plain": "pingpong", "overlap": "both"}
#: Rungs of two threads, without turns and with.
_PAIRS = [
    (f"rung {off.number}", f"rung {on.number}")
    for off in RUNGS for on in RUNGS
    if on.head_dim == off.head_dim
    and on.config.schedule == _WITH_TURNS.get(off.config.schedule)
]  # fmt: skip


class Group(ladder.Group):
    """One problem, and what was found of each contender: samples in microseconds, or a reason."""

    @property
    def shape(self) -> str:
        """The sequence, the size of a head, and whether causal."""
        kind = ("dense", "causal")[self.problem["causal"]]
        return f"{self.problem['seq']} x {self.problem['head_dim']}, {kind}"

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        p, products = self.problem, 5 if self.problem["backward"] else 2
        every = 2 * products * p["batch"] * p["heads"] * p["seq"] ** 2 * p["head_dim"]
        return every // 2 if p["causal"] else every

    @property
    def baseline(self) -> str | None:
        """The fastest that is not ours."""
        return self.fastest(*OTHERS)

    def fastest(self, *kinds: str) -> str | None:
        """The fastest contender of these kinds, as names have it before a comma; None if none."""
        names = (name for name in self.contenders if name.partition(",")[0] in kinds)
        rates = {name: rate for name in names if (rate := self.rate(name))}
        return max(rates, key=rates.get, default=None)

    def rate(self, name: str, kind: str = "burst") -> float | None:
        """Operations a second of "burst"s; None for what has none, or a wrong result."""
        if "reason" in self.contenders.get(name, {}):
            return None
        return super().rate(name, kind)

    def error(self, name: str) -> float | None:
        """The relative error against float64, of sampled rows; None if it was not taken."""
        return self.contenders.get(name, {}).get("float64", {}).get("relative")


def groups(part: str, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[Group]:
    """The groups of a part, "forward", "ladder" or "backward"; none if it is not there."""
    records = results.read(f"{results.GPU}/attention.json", folders)
    return [
        Group(group["problem"], group["contenders"], group["run"])
        for record in records for group in record["groups"]
        if group["part"] == part and "contenders" in group
    ]  # fmt: skip


def like(found: Iterable[Group], **problem: object) -> list[Group]:
    """The groups whose problems have these values."""
    return [group for group in found if problem.items() <= group.problem.items()]


# Words and tables, in Markdown.

NONE = "(The record of attention has none of these yet: `make benchmark` measures them.)"


def missing(part: str) -> str:
    """What a page says where the record has no such part, or is not there."""
    return f"(The record of attention has no part `{part}`: `make benchmark` measures it.)"


def where(found: list[Group]) -> str:
    """A sentence on the machine and the times of some groups."""
    return ladder.where(found) if found else missing("forward")


def table(found: list[Group]) -> str:
    """A row for each problem: TFLOP/s of all, of JAX's the fastest, and ours over the best other.

    Of ours the fastest counts: the configuration that it picks, or another one.
    """
    if not found:
        return NONE
    kinds = [kind for kind in OTHERS if any(g.fastest(kind) for g in found)]
    lines = ["| sequence x head | ours | " + " | ".join(OTHERS[k] for k in kinds) + " | speed |"]
    lines.append("|---|--:|" + "--:|" * len(kinds) + "--:|")
    for group in found:
        best = group.fastest(OURS)
        cells = [group.shape, _rate(group, best, group.spread(best) if best else None)]
        cells += [_rate(group, group.fastest(kind)) for kind in kinds]
        share = group.share(best) if best else None
        lines.append("| " + " | ".join([*cells, f"{share:.2f}x" if share else "-"]) + " |")
    return "\n".join(lines)


def ladder_table(found: list[Group]) -> str:
    """A row for each rung: TFLOP/s ± half the distance between quartiles, for each problem."""
    if not found:
        return missing("ladder")
    lines = ["| rung | " + " | ".join(group.shape for group in found) + " |"]
    lines.append("|---|" + "--:|" * len(found))
    for name, words in NAMES.items():
        cells = (_cell(group, name) for group in found)
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    cells = (_rate(group, group.baseline) for group in found)
    lines.append("| cuDNN | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def turns_table(found: list[Group]) -> str:
    """The worth of turns: each rung that takes them beside that which it has them added to."""
    measured = [group for group in found if any(group.share(on, off) for off, on in _PAIRS)]
    if not measured:
        return missing("ladder")
    lines = ["| sequence x head | rungs | without | with | speed |", "|---|---|--:|--:|--:|"]
    for group in measured:
        for off, on in _PAIRS:
            if share := group.share(on, off):
                numbers = f"{off.removeprefix('rung ')} and {on.removeprefix('rung ')}"
                cells = f"{_cell(group, off)} | {_cell(group, on)} | {share:.3f}x"
                lines.append(f"| {group.shape} | {numbers} | {cells} |")
    return "\n".join(lines)


def errors_table(found: list[Group]) -> str:
    """A row for each problem: relative errors against float64, of sampled rows."""
    measured = [group for group in found if group.error(OURS) is not None]
    if not measured:
        return NONE
    kinds = [kind for kind in OTHERS if any(g.fastest(kind) for g in measured)]
    lines = ["| sequence x head | ours | " + " | ".join(OTHERS[k] for k in kinds) + " |"]
    lines.append("|---|--:|" + "--:|" * len(kinds))
    for group in measured:
        names = [OURS, *(group.fastest(kind) for kind in kinds)]
        errors = (name and group.error(name) for name in names)
        cells = (f"{error:.1e}" if error is not None else "-" for error in errors)
        lines.append(f"| {group.shape} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _rate(group: Group, name: str | None, spread: float | None = None) -> str:
    rate = group.rate(name or "")
    words = f"{rate / 1e12:.0f}" if rate else "-"
    return words if spread is None else f"{words} ± {spread:.1%}"


def _cell(group: Group, name: str) -> str:
    """A rung's rate; the reason why there is none; or that it is not for such heads."""
    if group.rate(name) is None:
        return group.contenders.get(name, {}).get("reason", "-")
    return _rate(group, name, group.spread(name))
