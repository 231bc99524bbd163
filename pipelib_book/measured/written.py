"""Kernels that a language model wrote, and who saw what: the records of `benchmarks/written.py`."""

import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pipelib_book.measured import results
from pipelib_book.measured.results import table

_GPU, _VERDICTS = f"{results.GPU}/written.json", "cpu/written.json"
_INTERPRETER = "interpreter/written-jax-*.json"
_HEAD = "looked at by", "nothing wrong", "something wrong", "refused", "cannot be run or followed"


def who_saw_what(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """A table of how many kernels each way to look found something wrong with.

    Raises:
      FileNotFoundError: there is no record, since the package came without them.
    """
    rows = [*_rows(folders)]
    if not rows:
        raise FileNotFoundError(
            f"A record of written is in none of {', '.join(map(str, folders))}, so there is nothing"
            " to say on kernels that language models wrote: use a checkout of the repository, or a"
            " wheel built from one."
        )
    return table(_HEAD, rows)


def _rows(folders: tuple[pathlib.Path, ...]) -> Iterator[tuple[str, ...]]:
    for record in results.read(_GPU, folders):
        kernels, facts = record["written"], record["provenance"]
        seen = Counter(found["outcome"] for found in kernels.values())
        wrong = seen["wrong"] + seen["hang"] + seen["killed"]
        words = f"{facts['gpu']}, {record['runs']} runs, results compared"
        yield _row(words, seen["nothing"], wrong, seen["refused"], 0)
    for record in results.read(_INTERPRETER, folders):
        found = record["written"].values()
        wrong = sum(each["race"] is not None or each["end"] in ("wrong", "hang") for each in found)
        raised = sum(each["race"] is None and each["end"] == "raised" for each in found)
        words = f"the interpreter of JAX {record['provenance']['jax']}, races and results"
        yield _row(words, len(found) - wrong - raised, wrong, 0, raised)
    for record in results.read(_VERDICTS, folders):
        seen = Counter(map(_verdict, record["written"].values()))
        order = seen["nothing"], seen["finding"], seen["refused"], seen["not followed"]
        yield _row("`pallascope.verify`", *order)


def _row(words: str, *numbers: int) -> tuple[str, ...]:
    return words, *(str(number) if number else "" for number in numbers)


def _verdict(found: dict[str, Any]) -> str:
    """What kind of verdict it is: that JAX refuses a kernel is one, too."""
    kinds = {each["kind"] for each in found["findings"]}
    if kinds - {"not-lowered"}:
        return "finding"
    if kinds or not found["is_traced"]:
        return "refused"
    return "not followed" if found["refusal"] else "nothing"
