"""`tasks`: what a command does: what its own words say, or what `pyproject.toml` lists for it.

    [[tool.pallascope.check]]
    function = "kernels.py:matmul"
    args = ["bf16[4096,4096]", "bf16[4096,4096]"]
    block = "diagonal"

    [[tool.pallascope.tune]]
    function = "kernels.py:matmul_of"
    args = ["bf16[4096,4096]", "bf16[4096,4096]"]
    range = ["slots=2,3,4", "tile=64,128"]

The model. A command without a function takes the tables of its name: each is a kernel to check or
to compile, or a search. A table's keys are the words of the command, without their dashes; only
`function` has to be there. A word on the command line holds for all tables. Names of files are
relative to the folder of `pyproject.toml`, which is the nearest one from where the command runs,
upwards.
"""

import pathlib
import tomllib
from argparse import Namespace
from numbers import Real
from typing import Any, cast

from pallascope.command.drawing import MACHINES
from pallascope.command.targets import block_or_choice

FILE = "pyproject.toml"
#: What a key's value is, and its type, or the values that there are.
type _Key = tuple[str, type | tuple[str, ...]]

_CALLED: dict[str, _Key] = {
    "function": ("a text, module:function or file.py:function", str),
    "args": ("a list of texts, dtype[shape], or of numbers", list),
}
_INTEGER: _Key = "an integer", int
_NUMBER: _Key = "a number", Real
_NAME: _Key = "a text, module:name or file.py:name", str
# The keys of each command.
_KEYS: dict[str, dict[str, _Key]] = {
    "check": {
        **_CALLED,
        "block": ('a text, as "0,1" or "diagonal"', str),
        "strict": ("true or false", bool),
        "call": _INTEGER,
        "max-steps": _INTEGER,
    },
    "compile": {**_CALLED, "call": _INTEGER},
    "tune": {
        **_CALLED,
        "range": ('a list of texts, as "slots=2,3,4"', list),
        "space": _NAME,
        "expected": _NAME,
        "tolerance": _NUMBER,
        "measure": _INTEGER,
        "seconds": _NUMBER,
        "jobs": _INTEGER,
        "cache": ("a text, the name of a file", str),
        "machine": (f"one of {', '.join(MACHINES)}", MACHINES),
        "advise": ("true or false", bool),
    },
}
# What the command line calls a key, where that is another name.
_NAMES = {"range": "ranges", "max-steps": "max_steps"}


def tasks(options: Namespace) -> tuple[list[Namespace], pathlib.Path]:
    """The options of each thing to do, at least one; and the folder that their files are named in.

    Raises:
      ValueError, FileNotFoundError: as `configured`.
    """
    if options.function is not None:
        return [options], pathlib.Path()
    folder = project(pathlib.Path())
    tables, words = configured(folder, options.command), vars(options)
    said = {k: word for k, word in words.items() if word is not False and word not in (None, [])}
    if said.keys() & {"ranges", "space"}:  # one space in place of another
        tables = [{k: v for k, v in t.items() if k not in ("ranges", "space")} for t in tables]
    return [Namespace(**words | table | said) for table in tables], folder


def project(folder: pathlib.Path) -> pathlib.Path:
    """The nearest folder, from this one upwards, with a `pyproject.toml`; else this one."""
    folder = folder.absolute()
    return next((at for at in (folder, *folder.parents) if (at / FILE).is_file()), folder)


def configured(folder: pathlib.Path, command: str) -> list[dict[str, Any]]:
    """The tables of a command in a folder's `pyproject.toml`, as its options; at least one.

    Raises:
      ValueError: the file is no TOML, lists no kernel, or has a key that is not known, or a value
        of the wrong type.
      FileNotFoundError: there is no such file.
    """
    path = folder / FILE
    heading = f"[[tool.pallascope.{command}]]"
    remedy = (
        f"name a kernel (python -m pallascope {command} file.py:function ...), or list those of the"
        f" project as {heading} there"
    )
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {FILE} in this folder, nor above, to say what to {command}: {remedy}."
        )
    try:
        found: Any = tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{FILE} is not TOML ({error}), so it says nothing to {command}: mend it."
        ) from error
    tables = found.get("tool", {}).get("pallascope", {}).get(command, [])
    if not tables or not isinstance(tables, list) or not isinstance(tables[0], dict):
        raise ValueError(
            f"{FILE} lists no kernel to {command}, so nothing would be done: {remedy}."
        )
    listed = cast(list[dict[str, Any]], tables)
    return [
        _options(table, _KEYS[command], f"{heading} number {number} in {FILE}")
        for number, table in enumerate(listed, 1)
    ]


def _options(table: dict[str, Any], keys: dict[str, _Key], where: str) -> dict[str, Any]:
    """The options of one table; `where` it is, for errors."""
    for key, value in table.items():
        if key not in keys:
            raise ValueError(
                f"{where} has the key {key!r}, which would be passed over: use {', '.join(keys)}."
            )
        noun, kind = keys[key]
        if not _fits(value, kind):
            raise ValueError(f"{where} has {key} = {value!r}, which is not {noun}: write it so.")
    if "function" not in table:
        raise ValueError(
            f"{where} has no function, so it names no kernel: add"
            ' function = "module:function" or "file.py:function".'
        )
    found = {_NAMES.get(key, key): value for key, value in table.items()}
    for name in found.keys() & {"args", "ranges"}:
        found[name] = [*map(str, found[name])]
    if "block" in found:
        found["block"] = block_or_choice(found["block"])
    return found


def _fits(value: object, kind: type | tuple[str, ...]) -> bool:
    if isinstance(kind, tuple):
        return value in kind
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
