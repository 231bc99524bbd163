"""Which tool sees which fault: small faulty kernels, and the same ones mended, on a Hopper GPU.

    python -m benchmarks.tools_seen                                writes the record
    python -m benchmarks.tools_seen in_pallas NAME VERSION RUNS    runs a kernel of the gallery

The model. A fault has one name in three languages: in Pallas it is a kernel of the book's gallery,
in CUDA C++ one of `faulty/faults.cu`, in Triton's Gluon one of `faulty/in_gluon.py`. A program runs
one version (fixed or faulty) a number of times, compares each result with the right one, exactly,
and prints a line of JSON. Each version has a process of its own for each tool, which is killed if
it hangs:

==========  ====================================================================================
none        a thousand runs
memcheck    of compute-sanitizer, and so are the next two: addresses
racecheck   accesses to SMEM that no barrier keeps apart
synccheck   barriers that are used wrongly
ConSan      of Triton, in Gluon: what TMA, the tensor core and threads do to SMEM and barriers
==========  ====================================================================================

compute-sanitizer looks at machine code, so it is not run on Gluon's, too. A version that hangs by
itself is not run under memcheck and racecheck, which report when a kernel ends.

In the record, `end` of a version is `right` or `wrong` (results, in `wrong` of `runs`), `error` or
`hang`; `text` is the error's. `reports` counts what the tool reported, `says` is its first report.
Under a tool there are few runs, so `end` says little there: the reports count.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import frameworks, sanitized, suite
from benchmarks.faults import first_line
from benchmarks.records import ROOT, Group
from benchmarks.suite import SEED, Call, Fields, Part, Suite, Traced
from pallascope.bench.provenance import code_digest
from pipelib_book.gallery import GALLERY
from pipelib_book.measured.tools_seen import (
    CONSAN,
    CUDA,
    GLUON,
    LANGUAGES,
    MEMCHECK,
    NONE,
    PALLAS,
    RACECHECK,
    SANITIZER,
)

FOLDER = ROOT / "benchmarks" / "faulty"
RUNS, RUNS_UNDER_A_TOOL, BLOCKS = 1000, 3, 8
#: Seconds for a process: those of Pallas and Gluon compile first.
SECONDS = {CUDA: 20, PALLAS: 60, GLUON: 40}
_REPORT = re.compile(
    r"^========= ((?:Invalid|Misaligned|Barrier|Out-of-range|Divergent|Error: |Warning: ).*)"
    r"|^.*(?:Assertion `(.*)` failed)"
)


class Language(NamedTuple):
    """A language, as a problem of the suite."""

    language: str

    def __str__(self) -> str:
        return self.language


class Case(NamedTuple):
    """A fault in a language."""

    language: str
    name: str

    def command(self, version: str, runs: int, folder: pathlib.Path) -> list[str]:
        """What runs a version; the folder has CUDA C++'s program."""
        words = [self.name, version, str(runs)]
        if self.language == CUDA:
            return [str(folder / "faults"), *words]
        module = {PALLAS: ["tools_seen", "in_pallas"], GLUON: ["faulty.in_gluon"]}[self.language]
        return [sys.executable, "-m", f"benchmarks.{module[0]}", *module[1:], *words]

    @property
    def tools(self) -> tuple[str, ...]:
        """The tools of the language."""
        return (NONE, *((CONSAN,) if self.language == GLUON else SANITIZER))


def in_pallas(name: str, version: str, runs: str) -> None:
    """Runs a version of the gallery's kernel, as the programs in other languages do."""
    hazard, done, wrong = GALLERY[name], 0, 0
    kernel = jax.jit(lambda *args: hazard.kernel(*args, fixed=version == "fixed"))
    drawn = [hazard.arguments(np.random.default_rng([SEED, n]), BLOCKS) for n in range(4)]
    right = [hazard.reference(*args) for args in drawn]
    try:
        for run in range(int(runs)):
            found = np.asarray(kernel(*map(jnp.asarray, drawn[run % 4])))
            wrong += not np.array_equal(found, right[run % 4])
            done += 1
    except Exception as error:
        print(json.dumps(dict(error=first_line(str(error)), runs=done)), flush=True)
        return
    print(json.dumps(dict(runs=done, wrong=wrong)), flush=True)


# One process.


def seen(case: Case, version: str, tool: str, folder: pathlib.Path) -> dict[str, Any]:
    """What becomes of a version under a tool: as the record has it."""
    command = case.command(version, RUNS if tool == NONE else RUNS_UNDER_A_TOOL, folder)
    env = dict(PYTHONUNBUFFERED="1", XLA_PYTHON_CLIENT_PREALLOCATE="false")
    if tool in SANITIZER:
        env["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"  # of a large pool it would see the end only
        options = (
            ["--kernel-regex", "kns=mosaic"] if case.language == PALLAS else []
        )  # JAX has more
        command = [sanitized.sanitizer(), "--tool", tool, *options, *command]
    if tool == CONSAN:
        env["TRITON_INSTRUMENTATION_MODE"] = "consan"
    said, code = sanitized.output_of(command, SECONDS[case.language], env)
    return outcome(said, code)


def outcome(said: str, code: int | None) -> dict[str, Any]:
    """An entry of the record, from what a process printed and its exit status (None: killed)."""
    lines = said.splitlines()
    reports = [next(filter(None, found.groups())) for found in map(_REPORT.match, lines) if found]
    kept: dict[str, Any] = dict(reports=len(reports), says=reports[0].strip() if reports else "")
    told = next((json.loads(line) for line in lines if line.startswith("{")), None)
    if code is None:
        return kept | dict(end="hang")
    if told is None:
        return kept | dict(end="error", text=first_line("\n".join(reversed(lines))))
    if "error" in told:
        return kept | dict(end="error", text=told["error"], runs=told["runs"])
    return kept | dict(end="wrong" if told["wrong"] else "right", **told)


def of_version(case: Case, version: str, folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """What becomes of a version, by tool."""
    found: dict[str, dict[str, Any]] = {}
    for tool in case.tools:
        if tool in (MEMCHECK, RACECHECK) and found[NONE]["end"] == "hang":
            found[tool] = dict(end="not run", reports=0, says="")
        else:
            found[tool] = seen(case, version, tool, folder)
    return found


# All.


def names_of(language: str) -> list[str]:
    """The faults that a language has."""
    if language == PALLAS:
        return [*GALLERY]
    source, pattern = _ENTRIES[language]
    return [name.replace("_", "-") for name in pattern.findall((FOLDER / source).read_text())]


#: Where each of the other languages enters its faults.
_ENTRIES = {
    CUDA: ("faults.cu", re.compile(r"^    FAULT\((\w+),", re.MULTILINE)),
    GLUON: ("in_gluon.py", re.compile(r"^@fault\(.*\)\n@gluon.jit\ndef (\w+)", re.MULTILINE)),
}


def contenders(problem: Language, groups: Sequence[Group] = ()) -> dict[str, Case]:
    """A case for each fault of a language."""
    del groups
    return {name: Case(problem.language, name) for name in names_of(problem.language)}


def built(folder: pathlib.Path) -> None:
    """Compiles CUDA C++'s program into a folder.

    Raises:
      FileNotFoundError, CalledProcessError: there is no nvcc, or it refuses the source.
    """
    options = "-std=c++17", "-O2", "-lineinfo", "-arch=sm_90a"
    command = ["nvcc", *options, str(FOLDER / "faults.cu"), "-o", str(folder / "faults")]
    subprocess.run(command, check=True)


def measure(
    call: Call, part: Part, problem: Language, made: Mapping[str, Case]
) -> Iterator[Fields]:
    """What becomes of each version under each tool."""
    del part
    built_by = dict(versions=versions(), sources=sources(problem))
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(call.options.jobs) as pool:
        folder = pathlib.Path(name)
        if problem.language == CUDA and made:
            built(folder)
        asked = {
            name: {
                version: pool.submit(of_version, case, version, folder)
                for version in ("faulty", "fixed")
            }
            for name, case in made.items()
        }
        for name, each in asked.items():
            found = {version: future.result() for version, future in each.items()}
            words = [
                f"{tool} {seen['end']}" + f" ({seen['reports']} reports)" * (seen["reports"] > 0)
                for version in found.values()
                for tool, seen in version.items()
            ]
            call.say(f"{problem}, {name}: {', '.join(words)}")
            yield dict(contenders={name: found}, **built_by)


def versions() -> dict[str, str]:
    """Of what compiles, and of compute-sanitizer."""
    said, _ = sanitized.output_of([sanitized.sanitizer(), "--version"], 60, {})
    found = re.search(r"Version (\S+)", said)
    return frameworks.versions() | {"compute-sanitizer": found[1] if found else "unknown"}


def sources(problem: Language) -> dict[str, str]:
    """A digest of each source that JAX does not trace."""
    files = {CUDA: ("*.cu", "*.cuh"), GLUON: ("in_gluon.py",)}.get(problem.language, ())
    return {x.name: code_digest(x) for each in files for x in sorted(FOLDER.glob(each))}


def traced(problem: Language, name: str, case: Case) -> Traced:
    """What a digest is of: the gallery's faulty kernel; nothing in other languages."""
    if problem.language != PALLAS:
        return None
    hazard = GALLERY[name]
    args = hazard.arguments(np.random.default_rng(SEED), BLOCKS)
    return lambda *args: hazard.kernel(*args, fixed=False), args


SUITE = Suite(
    "tools_seen",
    {
        "faults": Part(
            contenders, measure, traced, tuple(map(Language, LANGUAGES)), Language, apart=True
        )
    },
    facts=dict(seed=SEED, runs=RUNS, runs_under_a_tool=RUNS_UNDER_A_TOOL, blocks=BLOCKS),
    commands={"in_pallas": in_pallas},
    shares=True,
)

if __name__ == "__main__":
    suite.main("tools_seen")
