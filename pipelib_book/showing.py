"""Shows source code, reports, and hazards in a chapter: the gallery's, and public kernels'."""

import difflib
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pallascope
from pallascope.drawing.player import Player, Setting
from pallascope.report import FindingKind, Report
from pipelib_book.gallery import GALLERY, Gpu, Hazard
from pipelib_book.measured import outcomes
from pipelib_book.notebook import say
from pipelib_book.page import first_findings, report_text
from pipelib_book.wild import WILD


def show_code(*objects: Any) -> None:
    """Shows the source of functions or classes of the package.

    Example:
      >>> book.show_code(gallery.zeros)
      ````python
      def zeros() -> jax.Array:
      ...
      ````
    """
    say(code_of(*objects))


def code_of(*objects: Any) -> str:
    """The same as text, for a page that is made from the code."""
    sources = (inspect.getsource(each).replace("  # fmt: skip", "") for each in objects)
    return "````python\n" + "\n\n".join(sources) + "````"


def show_change(old: Any, new: Any) -> None:
    """Shows which lines of a function's source are others in a second function, with those around.

    Example:
      >>> book.show_change(gallery.tiles, gallery.factors)
      ````diff
      -def tiles(rng: np.random.Generator, blocks: int) -> tuple[np.ndarray, ...]:
      ...
      +def factors(rng: np.random.Generator, blocks: int) -> tuple[np.ndarray, ...]:
      ...
      ````
    """
    before, after = (inspect.getsource(each).splitlines() for each in (old, new))
    _, _, _, *lines = difflib.unified_diff(before, after, n=1, lineterm="")
    say("````diff\n" + "\n".join(" ..." if line[0] == "@" else line for line in lines) + "\n````")


def show_report(report: Report, most: int = sys.maxsize) -> None:
    """Shows a report as lines of text: its first findings, `most` of them, then the rest.

    Example:
      >>> program = gallery.GALLERY["missing-commit"].program(fixed=True)
      >>> book.show_report(pallascope.check(program))
      ````text
      missing_commit: no finding (9 ops of 1 thread checked)
      ````
    """
    say(f"````text\n{report_text(report, most)}\n````")


def show_hazard(name: str) -> None:
    """Shows a hazard of the gallery: code, what is said of it and what it did, the remedy.

    Of the checker's report, the first two findings.

    Example:
      >>> book.show_hazard("missing-commit")
      TMA is sent for a tile that not all lanes have finished writing.
      ...
      **`pallascope.check`:**
      ...
      - **Remedy:** ...
    """
    say(hazard_text(name))


def hazard_text(name: str) -> str:
    """The same as text, for a page that is made from the code."""
    return _told(GALLERY[name], outcomes.Outcomes.read())


def show_fault(name: str) -> None:
    """Shows a fault of a public kernel, in the small kernel of `pipelib_book.wild`, likewise.

    Example:
      >>> book.show_fault("causal-ring")
      The memory thread fills every slot, and the first block has fewer
      steps than slots.
      ...
    """
    say(fault_text(name))


def fault_text(name: str) -> str:
    """The same as text, for a page that is made from the code."""
    return _told(WILD[name], outcomes.Outcomes.read(suite="wild"))


def _told(hazard: Hazard, seen: outcomes.Outcomes) -> str:
    source = hazard.source().replace("  # fmt: skip", "")
    report = report_text(pallascope.check(hazard.program(fixed=False)), most=2)
    return (
        f"{hazard.summary}\n\n````python\n{source}````\n\n"
        f"**`pallascope.check`:**\n\n````text\n{report}\n````\n\n{_done(hazard, seen)}\n"
        f"- **Remedy:** {hazard.remedy}"
    )


def _done(hazard: Hazard, seen: outcomes.Outcomes) -> str:
    """What a faulty kernel did where it ran."""
    if hazard.gpu is Gpu.BLACKWELL:
        return (
            "- **Blackwell:** not run: no such GPU was at hand, and JAX's interpreter has not all"
            " that it takes. Both versions compile."
        )
    return (
        f"- **JAX's race detector:** {seen.in_jax(hazard.name)}\n"
        f"- **{seen.gpu_name}:** {seen.on_gpu(hazard.name)}"
    )


def play_hazard(name: str, **window: Any) -> Player:
    """A figure to step through: a hazard's faulty and its mended version, simulated.

    `window` is what `pallascope.player` takes to show a part of it.

    Example:
      >>> book.play_hazard("release-too-early")
      <Player of ..., ... bytes>
    """
    settings, hazard = [], GALLERY[name]
    for version in ("faulty", "mended"):
        program = hazard.program(fixed=version == "mended").renamed(hazard.title)
        findings = [*pallascope.check(program)]
        kinds = ", ".join({finding.kind: None for finding in findings}) or "no finding"
        causes = " ".join(first_findings(finding.cause for finding in findings))
        timeline = pallascope.simulate(program, pallascope.H200)
        settings.append(Setting({"version": version}, timeline, kinds, not findings, causes))
    return pallascope.player(settings, **window)


def hazard_table() -> str:
    """A row for each hazard of the gallery: what the checker, JAX's detector and the GPU said.

    Example:
      >>> print(book.hazard_table())
      | fault | `pallascope.check` | JAX's race detector | NVIDIA H200 |
      |---|---|---|---|
      | Read before the wait | race | ...
    """
    return _table(GALLERY, outcomes.Outcomes.read())


def kind_table() -> str:
    """A row for each kind of finding: what is wrong, and who noticed the gallery's faults of it.

    Example:
      >>> print(book.kind_table())
      | kind | what is wrong | the interpreter | NVIDIA H200 |
      |---|---|---|---|
      | `out-of-bounds` | ...
    """
    seen = outcomes.Outcomes.read()
    rows = [f"| kind | what is wrong | the interpreter | {seen.gpu_name} |", "|---|---|---|---|"]
    for kind in FindingKind:
        meaning = f"{kind.fault[0].lower()}{kind.fault[1:]}".removesuffix(".")
        found = [seen.row(name) for name, hazard in GALLERY.items() if hazard.kind == kind]
        cells = map(_counted, zip(*found)) if found else ["not in the gallery"] * 2
        rows.append(f"| `{kind}` | {meaning} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _counted(words: Iterable[str]) -> str:
    """Words with how often each occurs."""
    return ", ".join(f"{word}: {number}" for word, number in Counter(words).most_common())


def fault_table() -> str:
    """The same for the faults of public kernels.

    Example:
      >>> print(book.fault_table())
      | fault | `pallascope.check` | JAX's race detector | ... |
      |---|---|---|---|
      | A wrong head | out-of-bounds | ...
    """
    return _table(WILD, outcomes.Outcomes.read(suite="wild"))


def _table(hazards: Mapping[str, Hazard], seen: outcomes.Outcomes) -> str:
    rows = [f"| fault | `pallascope.check` | JAX's race detector | {seen.gpu_name} |"]
    rows.append("|---|---|---|---|")
    for name, hazard in hazards.items():
        kinds = {f.kind: None for f in pallascope.check(hazard.program(fixed=False))}
        ran = ("not run", "for Blackwell") if hazard.gpu is Gpu.BLACKWELL else seen.row(name)
        rows.append(f"| {hazard.title} | {', '.join(kinds)} | {' | '.join(ran)} |")
    return "\n".join(rows)
