"""What the record of `benchmarks/attention.py` says, for the chapter on attention.

The model. A `Group` is one problem and what was measured of its contenders, as `contenders` has it.
The baseline is the fastest contender that is not pipelib's. JAX's kernels were given several
configurations each, of which the fastest counts. A contender that was refused, or whose result was
wrong, has no rate but a reason. Operations are those of two products for each score that is seen
(five in the backward pass), and of causal scores half are seen; exponentials are not counted. The
record may lack a part, or be missing: what is asked of it is then empty, and a table says so in a
sentence.
"""

import itertools
import math
import pathlib
from collections.abc import Iterable
from typing import Any

from pipelib_book.attention_ladder import RUNGS
from pipelib_book.measured import contenders, results

#: What the benchmark calls ours. With a comma and more, it is ours with a configuration of another
#: kind.
OURS = "attention"
#: What it calls the builds of FlashAttention: the strongest, then those of a package registry.
FA3, FA3_WHEEL, FA3_JAX, FA4_WHEEL = "fa3", "fa3_wheel", "fa3_jax", "fa4_wheel"
BUILDS = {
    FA3: "FlashAttention-3",
    FA3_WHEEL: "FlashAttention-3, fa3-fwd",
    FA3_JAX: "FlashAttention-3, flash-attn3-jax",
    FA4_WHEEL: "FlashAttention-4",
}
#: The kinds of contenders that are not ours, and what a table calls them; the strongest first.
OTHERS = {
    **BUILDS,
    "cuDNN (XLA)": "cuDNN",
    "attention_mgpu": "JAX",
    "emitter": "JAX, emitter",
    "PyTorch CUDNN_ATTENTION": "PyTorch, cuDNN",
    "PyTorch FLASH_ATTENTION": "PyTorch, flash",
}
#: Who else is measured beside every rung, by the words of a row.
_BESIDE = {"cuDNN": ("cuDNN (XLA)", "PyTorch CUDNN_ATTENTION")}
_BESIDE |= {words: (name,) for name, words in BUILDS.items()}
#: The rungs, and those that send probabilities through SMEM with these in registers instead.
NAMES = {f"rung {rung.number}": f"rung {rung.number}, {rung.name}" for rung in RUNGS}
NAMES |= {
    f"rung {rung.number} with p in registers": f"rung {rung.number}, `p` in registers"
    for rung in RUNGS
    if rung.config.through_smem
}
_WITH_TURNS = {"plain": "pingpong", "overlap": "both"}
#: Rungs of two threads, without turns and with.
_PAIRS = [
    (f"rung {off.number}", f"rung {on.number}")
    for off in RUNGS
    for on in RUNGS
    if on.head_dim == off.head_dim and on.config.schedule == _WITH_TURNS.get(off.config.schedule)
]
#: What an attention may be asked for besides, in words.
_OPTIONS = dict(soft_cap="soft cap", sinks="sinks", documents="{documents} documents")


class Group(contenders.Group):
    """One problem, and what was found of each contender: samples in microseconds, or a reason."""

    @property
    def shape(self) -> str:
        """The sequence, the size of a head (of v, if it differs), and whether causal."""
        p, kind = self.problem, ("dense", "causal")[self.problem["causal"]]
        kind += self.asked and f", {self.asked}"
        head = f"{p['head_dim']} and {p['v_head_dim']}" if "v_head_dim" in p else p["head_dim"]
        return f"{p['seq']} x {head}, {kind}"

    @property
    def asked(self) -> str:
        """A soft cap, sinks or packed documents; nothing if the attention has none of these."""
        found = [words for name, words in _OPTIONS.items() if self.problem.get(name)]
        return ", ".join(found).format(**self.problem)

    @property
    def plain(self) -> dict[str, Any]:
        """The same problem without these; its documents are a batch."""
        p = {name: value for name, value in self.problem.items() if name not in _OPTIONS}
        count = self.problem.get("documents", 1)
        return p | dict(seq=p["seq"] // count, batch=p["batch"] * count)

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        p = self.problem
        of_v = p.get("v_head_dim", p["head_dim"])
        columns = 3 * p["head_dim"] + 2 * of_v if p["backward"] else p["head_dim"] + of_v
        every = 2 * p["batch"] * p["heads"] * p["seq"] ** 2 // p.get("documents", 1) * columns
        return every // 2 if p["causal"] else every

    @property
    def baseline(self) -> str | None:
        """The fastest that is not ours."""
        return self.fastest(*OTHERS)

    def rate(self, name: str | None, kind: str = "burst") -> float | None:
        """Operations a second of "burst"s; None for what has none, or a wrong result."""
        if "reason" in self.found(name):
            return None
        return super().rate(name, kind)

    def error(self, name: str | None) -> float | None:
        """The relative error against float64, of sampled rows; None if it was not taken."""
        return self.found(name).get("float64", {}).get("relative")


def groups(part: str, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> list[Group]:
    """The groups of a part, "forward", "ladder" or "backward"; none if it is not there."""
    return Group.read("attention.json", part, folders)


def like(found: Iterable[Group], **problem: object) -> list[Group]:
    """The groups whose problems have these values."""
    return [group for group in found if problem.items() <= group.problem.items()]


# Words and tables, in Markdown.

NONE = "(The record of attention has none of these yet: `make benchmark` measures them.)"


def missing(part: str) -> str:
    """What a page says where the record has no such part, or is not there."""
    return results.missing(f"part `{part}`", "The record of attention")


def where(found: list[Group]) -> str:
    """A sentence on the machine and the times of some groups."""
    return contenders.where(found) if found else missing("forward")


def table(found: list[Group]) -> str:
    """A row for each problem: TFLOP/s of ours, this over the best other's, and TFLOP/s of others.

    Of ours the fastest counts: the configuration that it picks, or another one, in brackets.
    """
    if not found:
        return NONE
    kinds, rows = _kinds(found), []
    for group in found:
        best = group.fastest(OURS)
        others = (group.tflops(group.fastest(kind)) for kind in kinds)
        rows.append([group.shape, _ours(group, best), group.times(best), *others])
    head = "sequence x head", "ours", "speed", *(OTHERS[kind] for kind in kinds)
    return results.table(head, rows)


def _ours(group: Group, best: str | None) -> str:
    """The cell of the fastest of ours, with its name where that is not what `attention` picks."""
    name = (best or OURS).removeprefix(OURS).removeprefix(", ")
    return f"{group.cell(best)} ({name})" if name else group.cell(best)


def variants_table(found: list[Group], own: str = "in a fixed order") -> str:
    """A row for each of our configurations: TFLOP/s ± half the distance between quartiles.

    Args:
      found: some groups of one part.
      own: the words of the first row.
    """
    if not found:
        return NONE
    every = dict.fromkeys(name for group in found for name in group.contenders)
    ours = [name for name in every if name == OURS or name.startswith(f"{OURS}, ")]
    words = lambda name: name.removeprefix(OURS).removeprefix(", ") or own
    rows = [[words(name), *(group.cell(name) for group in found)] for name in ours]
    return results.table(["ours", *(group.shape for group in found)], rows + _beside(found))


def lengths_table(found: list[Group]) -> str:
    """A row for each length that is no multiple of 128, beside the next one that is: our times."""
    timed, rows = [group for group in found if group.rate(OURS)], []
    for group, other in itertools.permutations(timed, 2):
        longer = math.ceil(group.problem["seq"] / 128) * 128
        if other.problem == group.problem | dict(seq=longer):
            us, us_of_other = (each.bursts(OURS).median_us for each in (group, other))
            words = f"{group.problem['batch']} x {group.shape}", str(longer)
            rows.append([*words, f"{us:.1f}", f"{us_of_other:.1f}", f"{us / us_of_other:.2f}"])
    head = "batch, sequence x head", "the next", "µs", "µs of the next", "times"
    return results.table(head, rows) if rows else missing("sizes")


def options_table(found: list[Group]) -> str:
    """A row for each problem with an option: our time, over that without, and FlashAttention's."""

    def times(group: Group, *kinds: str) -> tuple[str, str]:
        """The microseconds of the fastest, and how many times those without the option."""
        if (name := group.fastest(*kinds)) is None:
            return "-", "-"
        us = group.bursts(name).median_us
        for other in found:
            if other.problem == group.plain and other.rate(name):
                return f"{us:.1f}", f"{us / other.bursts(name).median_us:.2f}"
        return f"{us:.1f}", "-"

    rows = []
    for group in found:
        if group.asked:
            backward = ", gradients" * group.problem["backward"]
            rows.append([group.shape + backward, *times(group, OURS), *times(group, *BUILDS)])
    head = "sequence x head", "µs", "times without", "FlashAttention-3, µs", "times"
    return results.table(head, rows) if rows else missing("options")


def untuned_table(found: list[Group]) -> str:
    """Speeds beside the best of cuDNN and FlashAttention, of sizes drawn by chance, by kind."""
    sizes = sorted({group.problem["head_dim"] for group in found})
    kinds = {f"heads of {size}": dict(head_dim=size) for size in sizes} | {"all": {}}
    shares = {
        f"{words}, {kind}": [group.share(OURS) for group in like(found, backward=backward, **asked)]
        for kind, asked in kinds.items()
        for words, backward in (("forward", False), ("gradients", True))
    }
    return contenders.shares_table("attention", shares) or missing("untuned")


def ladder_table(found: list[Group]) -> str:
    """A row for each rung: TFLOP/s ± half the distance between quartiles, for each problem."""
    if not found:
        return missing("ladder")
    rows = [[words, *(group.cell(name) for group in found)] for name, words in NAMES.items()]
    return results.table(["rung", *(group.shape for group in found)], rows + _beside(found))


def _beside(found: list[Group]) -> list[list[str]]:
    """The rows of those who are not ours and were measured."""
    every = [
        [words, *(group.tflops(group.fastest(*kinds), without="") for group in found)]
        for words, kinds in _BESIDE.items()
    ]
    return [row for row in every if any(row[1:])]


def turns_table(found: list[Group]) -> str:
    """The worth of turns: each rung that takes them beside that which it has them added to."""
    rows = []
    for group in found:
        for off, on in _PAIRS:
            if share := group.share(on, off):
                numbers = f"{off.removeprefix('rung ')} and {on.removeprefix('rung ')}"
                cells = group.cell(off), group.cell(on), f"{share:.3f}x"
                rows.append([group.shape, numbers, *cells])
    head = "sequence x head", "rungs", "without", "with", "speed"
    return results.table(head, rows, words=(0, 1)) if rows else missing("ladder")


def errors_table(found: list[Group]) -> str:
    """A row for each problem: relative errors against float64, of sampled rows."""
    measured = [group for group in found if group.error(OURS) is not None]
    if not measured:
        return NONE
    kinds, rows = _kinds(measured), []
    for group in measured:
        errors = (group.error(name) for name in (OURS, *map(group.fastest, kinds)))
        cells = (f"{error:.1e}" if error is not None else "-" for error in errors)
        rows.append([group.shape, group.problem["dtype"], *cells])
    head = ["sequence x head", "dtype", "ours", *(OTHERS[kind] for kind in kinds)]
    return results.table(head, rows, words=(0, 1))


def _kinds(found: list[Group]) -> list[str]:
    """The kinds of others of which one was measured."""
    return [kind for kind in OTHERS if any(group.fastest(kind) for group in found)]
