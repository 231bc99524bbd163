"""The record of which tool sees which fault, as tables."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pipelib_book.gallery import GALLERY
from pipelib_book.measured import results

PALLAS, CUDA, GLUON = LANGUAGES = "Pallas", "CUDA C++", "Gluon"
NONE, CONSAN = "none", "ConSan"
MEMCHECK, RACECHECK, SYNCCHECK = SANITIZER = "memcheck", "racecheck", "synccheck"


class Seen(NamedTuple):
    """What was recorded: by language and fault the versions, and of each the tools."""

    run: dict[str, Any]
    versions: dict[str, str]
    found: dict[str, dict[str, dict[str, Any]]]

    @classmethod
    def read(cls, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> "Seen | None":
        """The record of the book's GPU; None if there is none."""
        records = results.read(f"{results.GPU}/tools_seen.json", folders)
        if not records:
            return None
        groups = records[0]["groups"]
        found = {group["problem"]["language"]: group["contenders"] for group in groups}
        return cls(groups[0]["run"], groups[0]["versions"], found)

    def names(self) -> list[str]:
        """All faults, the gallery's first."""
        others = (name for language in LANGUAGES for name in self.found.get(language, ()))
        return [*dict.fromkeys((*GALLERY, *others))]

    def runs(self) -> str:
        """What the faulty kernels did without a tool."""
        rows = (
            [_title(name), *(self._cell(name, language, _ran) for language in LANGUAGES)]
            for name in self.names()
        )
        return results.table(["fault", *LANGUAGES], rows, words=range(4))

    def reported(self) -> str:
        """Which tools reported the faulty kernels."""
        head = [f"compute-sanitizer, {language}" for language in (PALLAS, CUDA)]
        rows = (
            [
                _title(name),
                str(GALLERY[name].kind) if name in GALLERY else "not in Pallas",
                *(self._cell(name, language, _reported) for language in LANGUAGES),
            ]
            for name in self.names()
        )
        return results.table(["fault", "`pallascope.check`", *head, CONSAN], rows, words=range(5))

    def _cell(self, name: str, language: str, say: Callable[[str, str, Any], str]) -> str:
        if versions := self.found.get(language, {}).get(name):
            return say(name, language, versions)
        return "not yet run" if name in GALLERY else "no such kernel"

    def counts(self) -> str:
        """Sentences: how many of the faults a tool reported, and how many of the mended kernels."""
        said = []
        for language in LANGUAGES:
            cases = self.found.get(language, {}).values()
            faulty, fixed = (
                sum(any(seen["reports"] for seen in case[version].values()) for case in cases)
                for version in ("faulty", "fixed")
            )
            who = CONSAN if language == GLUON else "compute-sanitizer"
            said.append(
                f"{who} reported {faulty} of {len(cases)} faulty kernels in {language}, and"
                f" {fixed or 'none'} of the mended ones."
            )
        return " ".join(said)

    def words(self) -> str:
        """A sentence on how all was run."""
        facts, run = self.run["provenance"], self.run
        built = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"On an {facts['gpu']}, with {built}: {run['runs']:,} runs of each version"
            f" ({run['runs_under_a_tool']} under a tool), {run['blocks']} blocks each."
        )

    def reports(self) -> str:
        """The first report of each tool on each faulty kernel."""
        rows = (
            [_target(name, language, tool), language, tool, f"`{seen['says']}`"]
            for name in self.names()
            for language in LANGUAGES
            for tool, seen in self.found.get(language, {}).get(name, _NONE)["faulty"].items()
            if seen["reports"]
        )
        return results.table(["fault", "language", "tool", "first report"], rows, words=range(4))


#: The versions of a kernel that there is not.
_NONE: dict[str, dict[str, Any]] = {"faulty": {}}


def page(part: str) -> str:
    """A method of `Seen` by its name; a sentence if there is no record."""
    seen = Seen.read()
    return getattr(seen, part)() if seen else results.missing("fault under a tool")


def _title(name: str) -> str:
    return GALLERY[name].title if name in GALLERY else name.replace("-", " ").capitalize()


def _anchor(name: str, language: str, tool: str) -> str:
    return f"reported-{name}-{language.partition(' ')[0]}-{tool}".lower()


def _target(name: str, language: str, tool: str) -> str:
    """A fault's title, to which a cell can link."""
    return f'<span id="{_anchor(name, language, tool)}"></span>{_title(name)}'


def _ran(name: str, language: str, versions: Mapping[str, Any]) -> str:
    """What a plain run did, in a word or two."""
    del name, language
    seen = versions["faulty"][NONE]
    if seen["end"] == "wrong":
        return f"wrong in {seen['wrong'] / seen['runs']:.1%}"
    return {"right": "right", "hang": "hang", "error": "an error"}[seen["end"]]


def _reported(name: str, language: str, versions: Mapping[str, Any]) -> str:
    """The tools that reported a faulty kernel, and whether the mended one, too."""
    said = []
    for tool, seen in versions["faulty"].items():
        if seen["reports"]:
            alarm = "; the mended one, too" * (versions["fixed"][tool]["reports"] > 0)
            said.append(f'<a href="#{_anchor(name, language, tool)}">{tool}</a>{alarm}')
    return ", ".join(said) or "nothing"
