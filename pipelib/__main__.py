"""`python -m pipelib`: check a kernel, or draw it, from the command line; needs no GPU.

    python -m pipelib check module:function bfloat16[4096,4096] bfloat16[4096,4096]
    python -m pipelib check file.py:function float32[1024] --block all
    python -m pipelib draw module:function float32[1024] -o timeline.svg

The function is what `pipelib.trace` takes: one that calls a Mosaic GPU kernel, or several, of which
`--call` picks one. Its arguments follow as dtype[shape], or as numbers; a function that makes its
own arrays has none. `module` is a module's name or a file's, whose folder is searched for what it
imports, as if Python ran it.

Which block. A program is that of one block of the grid (or one cluster), by default the first, and
so is what is found: a fault at an edge may be in the last alone. `--block 3,0` checks another.
`--block all` checks each in a grid of up to 32; in a larger one, the first, the middle one and the
last of each axis, with each of the other axes'. The last line then says how many those were.

Exit status of `check`: 0 if nothing was found in any block that was checked, 1 if something was. Of
both commands: 2 if the kernel could not be traced, or the command was wrong.
"""

import argparse
import contextlib
import importlib
import importlib.util
import itertools
import math
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

import pipelib
from pipelib.schedule import Program, Report
from pipelib.schedule.report import count

_SHORT = {"f": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint"}
_MACHINES, _DRAWN = ("H100", "H200"), (".svg", ".png")
_FIGURES = *_DRAWN, ".html", ".json"
_ALL, _MOST_BLOCKS = "all", 32
_VERSION = f"pipelib {pipelib.__version__}, JAX {jax.__version__}"
#: What says in its own words what the caller can mend.
_REFUSALS = (ValueError, ImportError, OSError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except _REFUSALS as error:
        print(f"pipelib {options.command}: {error}", file=sys.stderr)
    except Exception:  # not the caller's, and the status must not be that of a finding
        traceback.print_exc()
        print(
            f"pipelib {options.command}: pipelib itself failed, see above, after"
            f" {options.function} had been traced: please report it.",
            file=sys.stderr,
        )
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m pipelib", description="Check or draw a kernel.")
    parser.add_argument("--version", action="version", version=_VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, run, text in (
        ("check", _check, "find races, deadlocks and misused barriers; exit with 1 if there are"),
        ("draw", _draw, "draw the simulated timeline"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument("function", help="module:function or file.py:function")
        command.add_argument("args", nargs="*", help="its arguments: dtype[shape] or a number")
        which = "which block of the grid, as 0,1 (the first)"
        if name == "check":
            which += f"; or {_ALL}: each of {_MOST_BLOCKS}, or the first, middle and last of axes"
            command.add_argument("--strict", action="store_true", help="see pipelib.check")
        else:
            command.add_argument("-o", "--output", required=True, help=".svg, .png, .html or .json")
            command.add_argument("--machine", choices=_MACHINES, default="H100")
        command.add_argument("--block", type=_blocks if name == "check" else _block, help=which)
        command.add_argument("--call", type=int, help="which kernel, from 0, if it calls several")
        command.add_argument("--max-steps", type=int, help="no loop runs for more steps")
    return parser


def _check(options: argparse.Namespace) -> int:
    seen: set[tuple] = set()
    reports = []
    for program in _programs(options):
        report = pipelib.check(program, strict=options.strict)
        faults = tuple((f.cause, *(op.line for op in f.ops)) for f in report)
        print(f"{report.verdict}, as above" if faults in seen else report)
        seen |= {faults} - {()}
        reports.append(report)
    if options.block == _ALL:
        print(_summary(reports))
    return 0 if all(report.ok for report in reports) else 1


def _summary(reports: Sequence[Report]) -> str:
    """How many blocks of the grid the reports are of, and how many have findings."""
    program, faulty = reports[0].program, sum(not report.ok for report in reports)
    noun, total = "cluster" if program.blocks > 1 else "block", math.prod(program.grid)
    which = "every one" if len(reports) == total else "the first, middle and last of each axis"
    return (
        f"{program.name}: {len(reports):,} of {count(total, noun)} checked, {which};"
        f" {faulty or 'none'} with findings"
    )


def _draw(options: argparse.Namespace) -> int:
    path = pathlib.Path(options.output)
    kind = path.suffix.lower()
    if kind not in _FIGURES:
        raise ValueError(
            f"{path.name} ends with {path.suffix!r}, which no figure of pipelib's is: name it"
            " .svg, .png, .html (a page that plays) or .json (for Perfetto)."
        )
    if kind in _DRAWN and importlib.util.find_spec("matplotlib") is None:
        raise ImportError(
            f"{path.name} is drawn by matplotlib, which is not installed here: install it with `pip"
            " install 'pallas-pipelib[draw]'`, or name the file .html or .json, which need none."
        )
    (program,) = _programs(options)
    timeline = pipelib.simulate(program, getattr(pipelib, options.machine))
    if kind == ".json":
        timeline.to_perfetto(path)
    elif kind == ".html":
        timeline.player().save(path)
    else:
        timeline.plot().savefig(path, bbox_inches="tight")
    print(f"{path}: {timeline.summary()}")
    return 0


def _programs(options: argparse.Namespace) -> Iterator[Program]:
    """Those of the blocks that are asked for, one at a time."""
    args = list(map(_argument, options.args))
    with _callers(options.function):
        function = _function(options.function)

    def traced(block: tuple[int, ...] | None) -> Program:
        steps, call = options.max_steps, options.call
        with _callers(options.function):
            return pipelib.trace(function, *args, block=block, max_steps=steps, call=call)

    if options.block != _ALL:
        yield traced(options.block)
        return
    yield (first := traced(None))
    yield from map(traced, _spread(first.grid)[1:])


@contextlib.contextmanager
def _callers(name: str) -> Iterator[None]:
    """Around the caller's code and its trace: what they raise becomes a refusal."""
    try:
        yield
    except _REFUSALS:
        raise
    except (AttributeError, TypeError, NotImplementedError) as error:
        raise ValueError(str(error)) from error
    except Exception as error:
        traceback.print_exc()
        raise ValueError(f"{name} failed, see above.") from error


def _spread(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All blocks of a small grid; of a large one, those first, middle or last on every axis."""
    axes = [range(size) for size in grid]
    if math.prod(grid) > _MOST_BLOCKS:
        axes = [sorted({0, size // 2, size - 1}) for size in grid]
    return list(itertools.product(*axes))


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
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # as for `python file`, whose imports are found beside it
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "files that end with .py have a loader"
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


def _blocks(text: str) -> tuple[int, ...] | str:
    return text if text == _ALL else _block(text)


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
