"""`python -m pallascope`: check, draw, edit, advise on, compile or tune a kernel; needs no GPU.

    python -m pallascope check module:function bfloat16[4096,4096] bfloat16[4096,4096]
    python -m pallascope check file.py:function float32[1024] --block 3,0
    python -m pallascope check --sarif found.sarif
    python -m pallascope draw module:function float32[1024] -o timeline.svg
    python -m pallascope lab module:function float32[1024] -o kernel.html
    python -m pallascope advise module:function float32[1024]
    python -m pallascope compile module:function float32[1024]
    python -m pallascope tune module:kernel_of float32[1024] --range slots=2,3,4 --range tile=64,128

The function is what `pallascope.trace` takes: one that calls a Mosaic GPU kernel, or several, of
which `--call` picks one. Its arguments follow as dtype[shape], or as numbers; a function that makes
its own arrays has none. `module` is a module's name or a file's, whose folder is searched for what
it imports, as if Python ran it.

Which kernels. `check`, `compile` and `tune` without a function take what `pyproject.toml`, in this
folder or the nearest one above, lists for them: `[[tool.pallascope.check]]`, with the keys
`function`, `args`, `block`, `strict`, `call` and `max-steps`; `[[tool.pallascope.compile]]`, with
`function`, `args` and `call`; and `[[tool.pallascope.tune]]`, with `function`, `args`, and the long
options of `tune` but `json`. A word on the command line holds for all of them. A kernel that a
function calls twice has two names, as `store` and `store (2)`.

What is checked. `pallascope.verify` says it: whether JAX lowers the kernel, each block for itself,
and the blocks together, since two that access one place of GMEM race, and what no block writes of
an output is a fault. It takes each block of a grid of up to 32; of a larger one, the first, the
middle one and the last of each axis, with each of the other axes'. The last line says how many
blocks those were. After 30 seconds no further block is begun; `--seconds` says another number.
`--block 3,0` checks one block alone. `--block together` takes all blocks into one program, and all
devices if the function calls the kernel within `jax.shard_map`: for kernels whose blocks or devices
wait for each other by semaphores. Where ptxas is at hand, what it says that costs time is told,
too, of kernels in which nothing was found.

How strictly. `--strict` also reports asynchronous copies that overwrite what a thread has read with
ordinary loads, with no `commit_smem` between: PTX asks for one, though no GPU has been seen to need
it, and JAX's own emitters leave it out. Use it for kernels that are to hold by PTX's letter, and
for those that promise `ordinary_reads=False` to pipelib's emitters, which then leave it out too.
Without it, a note says so if there is something that it would report.

What is told. Text, on stdout, in colours where that is a terminal (`pallascope.command.colour`).
`--json` prints one JSON document instead, and nothing else is on stdout. Schemas describe these
documents: `pallascope/report.schema.json`, and in `pallascope/command` `compile.schema.json` and
`tune.schema.json`. `--sarif FILE` writes what was found for code review beside the one or the
other, so that one run gives a log to read and a file to upload.

What is edited. `lab` writes a page with the operations of one block, where a reader takes them away
or moves them, and `check` and `simulate` answer. It is a command of the book's kit, and says what
to install where that is missing.

What is advised. `advise` tries edits of one block's schedule, each at one line of the source, and
tells which make it faster by simulation and are still right: `pallascope.advise` says which. After
60 seconds no further edit is tried; `--seconds` says another number.

What is compiled. `compile` prints what ptxas and the machine code say of each kernel that the
function calls, or of the one that `--call` picks: registers, spills, ptxas's warnings, instructions
by class. `--sass` also prints the machine code, and `--json` prints one JSON document instead. It
needs JAX's CUDA plugin, ptxas and nvdisasm; what is missing, it says.

What is tuned. The function of `tune` takes a configuration and returns the kernel. Each `--range`
names one of its parameters, and every combination of their values is looked at; or `--space` names
a dict of ranges, or a list of configurations, in a module. A configuration that does not fit, or in
which the checker finds a fault, is never run. The others are ranked by simulation. On a Hopper GPU
the best few are measured (`--measure N`: how many), and their results compared with what the
function of `--expected` computes. `--cache FILE` keeps what is found: after an interruption the
same command goes on from there. `--jobs N` compiles and runs in N processes, which also ends
kernels that hang. `pallascope.tuning` has the rest.

Exit status of `check`: 0 if nothing was found in any block that was checked, nor between them; 1 if
something was. Of `compile`: 1 if ptxas serializes products, or a kernel spills registers; else 0.
Of `tune`: 1 if no configuration can be run; 130 if it was interrupted; else 0.
Of all commands: 2 if a kernel could not be traced, or the command was wrong.

Where the package is installed, `pallascope` is the same as `python -m pallascope`.
`PALLASCOPE_CUDA` names a folder with what compiles kernels (`pallascope.compiling`).
"""

import argparse
import contextlib
import importlib.util
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

import pallascope
from pallascope.advising import SECONDS as ADVICE_SECONDS
from pallascope.command import advising, checking, compiling, config, drawing, tuning
from pallascope.command.options import WHICH_BLOCK, add_call, add_rest, said, target, told
from pallascope.command.targets import block_of, block_or_choice
from pallascope.verifying import MOST_BLOCKS, SECONDS, BlockChoice

_KIT = "pipelib_book"
_FUNCTION = "module:function or file.py:function"
_CONFIGURED = f"without it, those that {config.FILE} lists for this command"
_JSON = "print one JSON document, no text"
_Run = Callable[[argparse.Namespace], int]
_REFUSED = "2: a kernel could not be traced, or the command was wrong"
_CUDA = "environment: PALLASCOPE_CUDA, a folder with JAX's CUDA plugin, ptxas and nvdisasm"
_EPILOGS = {
    "check": f"""examples:
  pallascope check kernel.py:softmax 'f32[4096,512]'
  pallascope check module:matmul 'bf16[4096,4096]' 'bf16[4096,4096]' --block 3,0
  pallascope check --sarif found.sarif   # the kernels of pyproject.toml
exit status: 0: nothing was found; 1: something was; {_REFUSED}
{_CUDA} (then ptxas is asked, too)
  NO_COLOR: no colours; FORCE_COLOR: colours also where stdout is no terminal; NO_COLOR wins
  TERM: no colours if it is dumb""",
    "draw": f"""example:
  pallascope draw kernel.py:softmax 'f32[4096,512]' -o timeline.html
exit status: 0; {_REFUSED}""",
    "advise": f"""example:
  pallascope advise kernel.py:softmax 'f32[4096,512]'
exit status: 0; {_REFUSED}""",
    "compile": f"""example:
  pallascope compile kernel.py:matmul 'bf16[4096,4096]' 'bf16[4096,4096]' --sass
exit status: 0; 1: spilled registers or serialized products; {_REFUSED}
{_CUDA}""",
    "tune": f"""example:
  pallascope tune kernel.py:kernel_of 'f32[4096,512]' --range slots=2,3,4 --range rows=1,2
exit status: 0; 1: no configuration can be run; 130: interrupted; {_REFUSED}
{_CUDA} (then what ptxas makes slow comes last)""",
}
_VERSION = f"pallascope {pallascope.__version__}, JAX {jax.__version__}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if options.command != "lab" and rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    return told(options, options.run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m pallascope", description="Check, draw, advise on, compile or tune a kernel."
    )
    parser.add_argument("--version", action="version", version=_VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_check(commands)
    _add_draw(commands)
    _add_lab(commands)
    _add_advise(commands)
    _add_compile(commands)
    _add_tune(commands)
    return parser


def _command(commands: Any, name: str, text: str, run: _Run) -> argparse.ArgumentParser:
    """A command that `text` describes, and the function that runs it."""
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=_EPILOGS[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _add_check(commands: Any) -> None:
    """The command that checks; without a function, it checks those of the configuration."""
    text = "find races, deadlocks and misused barriers; exit with 1 if there are"
    command = _command(commands, "check", text, _check)
    command.add_argument("function", nargs="?", help=f"{_FUNCTION}; {_CONFIGURED}")
    which = (
        f"{WHICH_BLOCK}; or {BlockChoice.ALL} (the default): each of {MOST_BLOCKS}, or the first,"
        f" middle and last of axes; or {BlockChoice.FIRST}; or {BlockChoice.DIAGONAL}; or"
        f" {BlockChoice.TOGETHER}: all in one program, with all devices of a shard_map, as they"
        " wait for each other"
    )
    add_rest(command, block_or_choice, which)
    strict = (
        "also report copies that overwrite what a thread read, with no commit_smem between:"
        " for kernels that are to hold by PTX's letter, or that promise ordinary_reads=False"
    )
    command.add_argument("--strict", action="store_true", help=strict)
    seconds = f"begin no further block of a function later ({SECONDS:g})"
    command.add_argument("--seconds", type=_seconds, default=SECONDS, help=seconds)
    command.add_argument("--json", action="store_true", help=_JSON)
    sarif = "also write SARIF, for code review"
    command.add_argument("--sarif", type=pathlib.Path, metavar="FILE", help=sarif)


def _add_draw(commands: Any) -> None:
    """The command that draws one block."""
    command = _command(commands, "draw", "draw the simulated timeline", _draw)
    command.add_argument("function", help=_FUNCTION)
    add_rest(command, block_of, f"{WHICH_BLOCK} (the first)")
    command.add_argument("-o", "--output", required=True, help=".svg, .png, .html or .json")
    command.add_argument("--machine", choices=drawing.MACHINES, default="H200")


def _add_lab(commands: Any) -> None:
    """The command of the book's kit, which knows its own options."""
    text = "write a page on which the kernel's operations are edited, checked and simulated"
    command = commands.add_parser("lab", help=text, add_help=False)
    command.set_defaults(run=_lab, function=None)


def _add_advise(commands: Any) -> None:
    """The command that looks for edits of one block."""
    text = "tell which edits of the schedule make it faster, by simulation, and are still right"
    command = _command(commands, "advise", text, _advise)
    command.add_argument("function", help=_FUNCTION)
    add_rest(command, block_of, f"{WHICH_BLOCK} (the first)")
    command.add_argument("--machine", choices=drawing.MACHINES, default="H200", help="simulated")
    seconds = f"try no further edit later ({ADVICE_SECONDS:g})"
    command.add_argument("--seconds", type=_seconds, default=ADVICE_SECONDS, help=seconds)
    command.add_argument("--json", action="store_true", help=_JSON)


def _add_compile(commands: Any) -> None:
    """The command that compiles; a kernel is compiled whole, so no option names a block."""
    text = "print registers, spills, warnings and instructions; exit with 1 for spilled registers"
    text += " and serialized products"
    command = _command(commands, "compile", text, _compile)
    command.add_argument("function", nargs="?", help=f"{_FUNCTION}; {_CONFIGURED}")
    add_call(command)
    command.add_argument("--sass", action="store_true", help="also print the machine code")
    command.add_argument("--json", action="store_true", help=_JSON)


def _add_tune(commands: Any) -> None:
    """The command that searches a space of configurations."""
    text = "rank a kernel's configurations by simulation, and measure the best where a GPU is"
    command = _command(commands, "tune", text, _tune)
    function = f"{_FUNCTION}, a kernel_of; {_CONFIGURED}"
    command.add_argument("function", nargs="?", help=function)
    command.add_argument("args", nargs="*", help="the kernel's arguments: dtype[shape] or a number")
    ranges = "values of a parameter, as slots=2,3,4; one for each parameter"
    many: Any = {"action": "append", "default": [], "metavar": "NAME=VALUES"}
    command.add_argument("--range", dest="ranges", help=ranges, **many)
    command.add_argument("--space", help="module:name of a dict of ranges, or of configurations")
    command.add_argument("--expected", help="module:function that computes what is right")
    command.add_argument("--tolerance", type=float, help="the largest error, in root mean squares")
    command.add_argument("--measure", type=int, help="how many of the best to measure, 0 for none")
    command.add_argument("--seconds", type=float, help="begin nothing later")
    command.add_argument("--jobs", type=_number, help="processes that compile (this one)")
    command.add_argument("--cache", type=os.path.abspath, help="a file that keeps what is found")
    command.add_argument("--machine", choices=drawing.MACHINES, help="simulated (H200)")
    advised = "also tell which edits of the best one's schedule would gain"
    command.add_argument("--advise", action="store_true", help=advised)
    command.add_argument("--json", action="store_true", help=_JSON)


@said
def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise ValueError(f"{text!r} is no number of seconds above 0, so it says no limit: give one.")


@said
def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is no number of processes: give 1 or more.")
    return int(text)


def _check(options: argparse.Namespace) -> int:
    sarif = options.sarif and options.sarif.absolute()
    tasks, folder = config.tasks(options)
    with contextlib.chdir(folder):
        return checking.check([*map(target, tasks)], options.seconds, options.json, sarif)


def _draw(options: argparse.Namespace) -> int:
    return drawing.draw(target(options), options.output, options.machine)


def _lab(options: argparse.Namespace) -> int:
    """Runs the kit's own command, as a shell would: nothing here knows the kit."""
    if importlib.util.find_spec(_KIT) is None:
        raise ImportError(
            f"The laboratory is in the book's kit, the package {_KIT}, which is not installed here,"
            " so there is no page to write: install it with `pip install pallas-pipelib-book`."
        )
    return subprocess.call([sys.executable, "-m", f"{_KIT}.laboratory", *options.rest])


def _advise(options: argparse.Namespace) -> int:
    return advising.advise(target(options), options.machine, options.seconds, options.json)


def _compile(options: argparse.Namespace) -> int:
    tasks, folder = config.tasks(options)
    with contextlib.chdir(folder):
        return compiling.compile_([*map(target, tasks)], options.json, options.sass)


def _tune(options: argparse.Namespace) -> int:
    tasks, folder = config.tasks(options)
    with contextlib.chdir(folder):
        return tuning.tune([*map(_search, tasks)], options.json)


def _search(options: argparse.Namespace) -> tuning.Task:
    """The search that options name."""
    names = "tolerance", "measure", "seconds", "jobs", "cache"
    said = {name: getattr(options, name) for name in names}
    given = {name: value for name, value in said.items() if value is not None}
    machine = options.machine or tuning.MACHINE
    named = options.ranges, options.space, options.expected, machine, options.advise
    return tuning.Task(options.function, options.args, *named, given)


if __name__ == "__main__":
    sys.exit(main())
