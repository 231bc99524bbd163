"""What the gallery's faulty kernels did, in words: the records of `benchmarks/hazards.py`."""

import pathlib
from typing import Any, NamedTuple

from pipelib_book.measured import results

_GPU, _JAX = f"{results.GPU}/hazards.json", "interpreter/hazards-jax-*.json"


class Outcomes(NamedTuple):
    """The GPU's record, and the interpreter's for each version of JAX."""

    gpu: dict[str, Any]
    jax: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> "Outcomes":
        """The committed records; FileNotFoundError if the package came without them."""
        for gpu in results.read(_GPU, folders):
            return cls(gpu, tuple(results.read(_JAX, folders)))
        raise FileNotFoundError(
            f"{_GPU} is in none of {', '.join(map(str, folders))}, so there is nothing to say on"
            " what hazards did: use a checkout of the repository, or a wheel built from one."
        )

    @property
    def gpu_name(self) -> str:
        """The GPU that the faulty kernels ran on."""
        return self.gpu["provenance"]["gpu"]

    def on_gpu(self, name: str) -> str:
        """A sentence on what a faulty kernel did on the GPU."""
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

    def in_jax(self, name: str) -> str:
        """A sentence on what JAX's interpreter and race detector said, for each version of JAX."""
        words = {
            record["provenance"]["jax"]: _interpreter_words(record["hazards"][name])
            for record in self.jax
        }
        if len(set(words.values())) == 1:
            return f"{next(iter(words.values()))}."
        return "; ".join(f"{version}: {said}" for version, said in words.items()) + "."

    def row(self, name: str) -> tuple[str, str]:
        """A word or two on each: JAX's detector, the GPU."""
        found, faulty = [r["hazards"][name] for r in self.jax], self.gpu["hazards"][name]["faulty"]
        words = {"hang": "hangs", "raised": "error"}
        said = ["race" if f["race"] is not None else words.get(f["end"], "nothing") for f in found]
        outcome = "nothing seen" if faulty["outcome"] == "nothing" else faulty["outcome"]
        return " / ".join(dict.fromkeys(said)), outcome


def _interpreter_words(found: dict[str, Any]) -> str:
    if found["race"] is not None:
        return f"a race, {found['race']}"
    match found["end"]:
        case "hang":
            return f"no answer: it hangs ({found['text']})"
        case "raised":
            return f"an error, “{found['text'].removesuffix('.')}”"
    return f"nothing, and the result is {found['end']}"
