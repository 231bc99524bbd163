"""`configured`: the kernels that a project lists in its `pyproject.toml`.

    [[tool.pallascope.check]]
    function = "kernels.py:matmul"
    args = ["bf16[4096,4096]", "bf16[4096,4096]"]
    block = "diagonal"

Each table is a `Target`. Its keys are the words of the command: `function`, `args`, `block`,
`strict`, `call` and `max-steps`; only the first has to be there. Names of files are relative to the
folder of `pyproject.toml`, which is the nearest one from where the command runs, upwards.
"""

import pathlib
import tomllib
from typing import Any, cast

from pallascope.command.targets import Target, block_or_choice

FILE = "pyproject.toml"
_TABLE = "[[tool.pallascope.check]]"
# Each key, what its value is, and the types of that.
_KEYS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "function": ("a text, module:function or file.py:function", str),
    "args": ("a list of texts, dtype[shape], or of numbers", list),
    "block": ('a text, as "0,1" or "diagonal"', str),
    "strict": ("true or false", bool),
    "call": ("an integer", int),
    "max-steps": ("an integer", int),
}


def project(folder: pathlib.Path) -> pathlib.Path:
    """The nearest folder, from this one upwards, with a `pyproject.toml`; else this one."""
    folder = folder.absolute()
    return next((at for at in (folder, *folder.parents) if (at / FILE).is_file()), folder)


def configured(folder: pathlib.Path) -> list[Target]:
    """The targets of a folder's `pyproject.toml`, in order; at least one.

    Raises:
      ValueError: the file is no TOML, lists no kernel, or has a key that is not known, or a value
        of the wrong type.
      FileNotFoundError: there is no such file.
    """
    path = folder / FILE
    remedy = (
        "name a kernel (python -m pallascope check file.py:function ...), or list those of the"
        f" project as {_TABLE} there"
    )
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {FILE} in this folder, nor above, to say what to check: {remedy}."
        )
    try:
        found: Any = tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{FILE} is not TOML ({error}), so nothing is checked: mend it."
        ) from error
    tables = found.get("tool", {}).get("pallascope", {}).get("check", [])
    if not tables or not isinstance(tables, list):
        raise ValueError(f"{FILE} lists no kernel, so nothing would be checked: {remedy}.")
    listed = cast(list[dict[str, Any]], tables)
    return [_target(table, number) for number, table in enumerate(listed, 1)]


def _target(table: dict[str, Any], number: int) -> Target:
    """The target of one table, by its number for errors."""
    for key, value in table.items():
        if key not in _KEYS:
            raise ValueError(
                f"{_TABLE} number {number} in {FILE} has the key {key!r}, which would be passed"
                f" over: use {', '.join(_KEYS)}."
            )
        noun, kind = _KEYS[key]
        is_flag = isinstance(value, bool)
        if not isinstance(value, kind) or is_flag != (kind is bool):
            raise ValueError(
                f"{_TABLE} number {number} in {FILE} has {key} = {value!r}, which is not {noun}:"
                " write it so."
            )
    if "function" not in table:
        raise ValueError(
            f"{_TABLE} number {number} in {FILE} has no function, so it names no kernel: add"
            ' function = "module:function" or "file.py:function".'
        )
    block = table.get("block")
    return Target(
        table["function"],
        tuple(map(str, table.get("args", ()))),
        None if block is None else block_or_choice(block),
        table.get("strict", False),
        table.get("call"),
        table.get("max-steps"),
    )
