"""What faulty kernels did, in words: the records of `benchmarks/hazards.py` and `wild.py`.

And what tokamax itself did, by the record of `benchmarks/tokamax_attention.py`.
"""

import pathlib
from typing import Any, NamedTuple

from pipelib_book.measured import results
from pipelib_book.measured.results import table

#: What is said of a kernel that no record has.
NOT_YET = "not yet run"


class Outcomes(NamedTuple):
    """The GPU's record, None if no GPU ran any yet; the interpreter's for each version of JAX."""

    gpu: dict[str, Any] | None
    jax: tuple[dict[str, Any], ...]

    @classmethod
    def read(
        cls, folders: tuple[pathlib.Path, ...] = results.FOLDERS, suite: str = "hazards"
    ) -> "Outcomes":
        """The committed records of a suite of `benchmarks`.

        Raises:
          FileNotFoundError: there is none, since the package came without them.
        """
        gpu = results.read(f"{results.GPU}/{suite}.json", folders)
        jax = results.read(f"interpreter/{suite}-jax-*.json", folders)
        if gpu or jax:
            return cls(gpu[0] if gpu else None, tuple(jax))
        raise FileNotFoundError(
            f"A record of {suite} is in none of {', '.join(map(str, folders))}, so there is"
            " nothing to say on what hazards did: use a checkout of the repository, or a wheel"
            " built from one."
        )

    @property
    def gpu_name(self) -> str:
        """The GPU that the faulty kernels ran on; "GPU" if they ran on none."""
        return self.gpu["provenance"]["gpu"] if self.gpu else "GPU"

    def runs(self) -> str:
        """A sentence on how the kernels ran on the GPU."""
        if self.gpu is None:
            return "None of these kernels has run on a GPU yet."
        record, facts = self.gpu, self.gpu["provenance"]
        return (
            f"On an {self.gpu_name}: {record['runs']} runs of each version, {record['blocks']}"
            f" copies of the kernel in a run, {record['timeout_s']} seconds to answer; JAX"
            f" {facts['jax']}, {facts['utc'][:10]}. Written by `{record['command']}`."
        )

    def on_gpu(self, name: str) -> str:
        """A sentence on what a faulty kernel did on the GPU."""
        if self.gpu is None:
            return f"{NOT_YET} on a GPU."
        found = self.gpu["hazards"][name]["faulty"]
        runs, wrong = len(found["wrong"]), sum(map(bool, found["wrong"]))
        match found["outcome"]:
            case "nothing":
                return f"nothing seen: right in all of {runs} runs."
            case "wrong":
                errors = found["error"]
                size = "not finite" if None in errors else f"{max(errors):g}"
                return f"wrong in {wrong} of {runs} runs; the largest error was {size}."
            case "hang":
                return f"a hang ({found['text']}), ended from outside."
            case "killed":
                return f"ended by an error: `{found['text']}`."
            case "refused":
                return f"refused by the compiler: `{found['text']}`."
        raise ValueError(f"{found['outcome']!r} is no outcome of a hazard: there are no words.")

    def mended(self, name: str) -> str:
        """A sentence on what the mended kernel did on the GPU; empty if none ran it."""
        if self.gpu is None:
            return ""
        found = self.gpu["hazards"][name]["fixed"]
        runs, wrong = len(found["wrong"]), sum(map(bool, found["wrong"]))
        if found["outcome"] == "nothing":
            return f"Mended, it was right in all of {runs}."
        return f"Mended, it was wrong in {wrong} of {runs}, or ended early ({found['outcome']})."

    def in_jax(self, name: str) -> str:
        """A sentence on what JAX's interpreter and race detector said, for each version of JAX."""
        words = {
            record["provenance"]["jax"]: _interpreter_words(record["hazards"][name])
            for record in self.jax
            if name in record["hazards"]
        }
        if not words:
            return f"{NOT_YET}."
        if len(set(words.values())) == 1:
            return f"{next(iter(words.values()))}."
        return "; ".join(f"{version}: {said}" for version, said in words.items()) + "."

    def row(self, name: str) -> tuple[str, str]:
        """A word or two on each: JAX's detector, the GPU."""
        found = [record["hazards"][name] for record in self.jax if name in record["hazards"]]
        words = {"hang": "hangs", "raised": "error"}
        said = ["race" if f["race"] is not None else words.get(f["end"], "nothing") for f in found]
        return " / ".join(dict.fromkeys(said)) or NOT_YET, self._outcome(name)

    def _outcome(self, name: str) -> str:
        """A word or two on the GPU."""
        if self.gpu is None or name not in self.gpu["hazards"]:
            return NOT_YET
        outcome = self.gpu["hazards"][name]["faulty"]["outcome"]
        return "nothing seen" if outcome == "nothing" else outcome


def _interpreter_words(found: dict[str, Any]) -> str:
    if found["race"] is not None:
        return f"a race, {found['race']}"
    match found["end"]:
        case "hang":
            return f"no answer: it hangs ({found['text']})"
        case "raised":
            return f"an error, “{found['text'].removesuffix('.')}”"
    return f"nothing, and the result is {found['end']}"


def in_tokamax(name: str, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """Sentences on what a fault did in tokamax itself, and what its control did.

    Raises:
      FileNotFoundError: the package came without the record.
    """
    record = of_tokamax(folders)
    facts, found = record["provenance"], record["cases"][name]
    return (
        f"tokamax {facts['tokamax']} itself, on an {facts['gpu']}. With the fault"
        f" ({found['faulty']['what']}): {_said(found['faulty'])}. Without"
        f" ({found['control']['what']}): {_said(found['control'])}."
        f" Written by `{record['command']}`."
    )


def tokamax_table(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """A row for each fault of tokamax: with what brings it out, and without."""
    cases = of_tokamax(folders)["cases"]
    rows = [
        [name, *(_said(found[v]) for v in ("faulty", "control"))] for name, found in cases.items()
    ]
    return table(["fault", "with it", "control"], rows)


def of_tokamax(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> dict[str, Any]:
    """The record of `benchmarks/tokamax_attention.py`.

    Raises:
      FileNotFoundError: the package came without it.
    """
    if found := results.read(f"{results.GPU}/tokamax.json", folders):
        return found[0]
    raise FileNotFoundError(
        f"A record of tokamax is in none of {', '.join(map(str, folders))}, so there is nothing"
        " to say on what it did: use a checkout of the repository, or a wheel built from one."
    )


def _said(found: dict[str, Any]) -> str:
    """What became of all runs of one version; errors are relative to the largest value."""
    errors = found["errors"]
    if found["outcome"] == "hang":
        return f"a hang ({found['text']})"
    if found["outcome"] == "killed":
        return f"ended by an error (`{found['text']}`)"
    size = "the largest error was "
    size += "not finite" if None in errors else f"{max(errors):.1%} of the largest value"
    if found["outcome"] == "nothing":
        return f"right in all of {len(errors):,} runs; {size}"
    return f"wrong in {found['wrong_runs']:,} of {len(errors):,} runs; {size}"
