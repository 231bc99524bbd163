"""`python -m pipelib`: check a kernel, or draw it, from the command line; needs no GPU.

    python -m pipelib check module:function bfloat16[4096,4096] bfloat16[4096,4096]
    python -m pipelib draw module:function float32[1024] -o timeline.svg

The function is what `pipelib.trace` takes: one that calls a Mosaic GPU kernel. Its arguments follow
as dtype[shape], or as numbers; a function that makes its own arrays has none. `module` is a
module's name or a file's.

Exit status of `check`: 0 if nothing was found, 1 if something was. Of both: 2 if the kernel could
not be traced, or the command was wrong.
"""

import argparse
import importlib
import importlib.util
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax

import pipelib
from pipelib.schedule import Program

_SHORT = {"f": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint"}
_MACHINES, _FIGURES = ("H100", "H200"), (".svg", ".png", ".html", ".json")
_REFUSALS = (ImportError, AttributeError, TypeError, ValueError, NotImplementedError, OSError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except _REFUSALS as error:
        print(f"pipelib {options.command}: {error}", file=sys.stderr)
    except Exception:  # the caller's own; the status must not be that of a finding
        traceback.print_exc()
        print(f"pipelib {options.command}: {options.function} failed, see above.", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m pipelib", description="Check or draw a kernel.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, text in (
        ("check", _check, "find races, deadlocks and misused barriers; exit with 1 if there are"),
        ("draw", _draw, "draw the simulated timeline"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("function", help="module:function or file.py:function")
        command.add_argument("args", nargs="*", help="its arguments: dtype[shape] or a number")
        command.add_argument("--block", type=_block, help="which block, as 0,1 (the first)")
        command.add_argument("--max-steps", type=int, help="no loop runs for more steps")
        if name == "check":
            command.add_argument("--strict", action="store_true", help="see pipelib.check")
        else:
            command.add_argument("-o", "--output", required=True, help=".svg, .png, .html or .json")
            command.add_argument("--machine", choices=_MACHINES, default="H100")
    return parser


def _check(options: argparse.Namespace) -> int:
    report = pipelib.check(_program(options), strict=options.strict)
    print(report)
    return 0 if report.ok else 1


def _draw(options: argparse.Namespace) -> int:
    path = pathlib.Path(options.output)
    if path.suffix not in _FIGURES:
        raise ValueError(
            f"{path.name} ends with {path.suffix!r}, which no figure of pipelib's is: name it"
            " .svg, .png, .html (a page that plays) or .json (for Perfetto)."
        )
    timeline = pipelib.simulate(_program(options), getattr(pipelib, options.machine))
    if path.suffix == ".json":
        timeline.to_perfetto(path)
    elif path.suffix == ".html":
        timeline.player().save(path)
    else:
        timeline.plot().savefig(path, bbox_inches="tight")
    print(f"{path}: {timeline.summary()}")
    return 0


def _program(options: argparse.Namespace) -> Program:
    args = list(map(_argument, options.args))
    function = _function(options.function)
    return pipelib.trace(function, *args, block=options.block, max_steps=options.max_steps)


def _function(name: str) -> Callable[..., Any]:
    """The function that `module:function` or `file.py:function` names."""
    module_name, colon, path = name.rpartition(":")
    if not colon or not path or not module_name.strip("."):
        raise ValueError(f"{name!r} names no function: write module:function, or file.py:function.")
    found: Any = _module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise AttributeError(f"{module_name} has no {path!r}: it is not defined there.")
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}: name a function that calls a kernel.")
    return found


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = pathlib.Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {name}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _argument(text: str) -> Any:
    """An argument without contents from dtype[shape], or a number."""
    match = re.fullmatch(r"(\w+)\[((?:\d+(?:,\d+)*)?)\]", text.replace(" ", ""))
    if not match:
        try:
            return float(text) if re.search(r"[.e]", text) else int(text)
        except ValueError:
            raise ValueError(
                f"the argument {text!r} is neither dtype[shape], as bfloat16[4096,4096], nor a"
                " number."
            ) from None
    dtype, shape = match.groups()
    short = re.fullmatch(r"(bf|[fisu])(\d+)", dtype)
    name = _SHORT[short[1]] + short[2] if short else dtype
    try:
        return jax.ShapeDtypeStruct(_integers(shape), jax.numpy.dtype(name))
    except TypeError:
        raise ValueError(
            f"the argument {text!r} is of {name!r}, which is no dtype: write it as"
            " bfloat16[4096,4096]."
        ) from None


def _block(text: str) -> tuple[int, ...]:
    try:
        return _integers(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no block: give its index on each axis of the grid, as 0,1."
        ) from None


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


if __name__ == "__main__":
    sys.exit(main())
