"""What commands on one kernel have in common: their options, and how they tell of errors."""

import argparse
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Generator
from typing import Any

import jax

import pallascope
from pallascope.command.targets import REFUSALS, Target

# The status of a program that the signal for a broken pipe ended.
_PIPE = 141
#: What `--block` says of itself.
WHICH_BLOCK = "which block of the grid, as 0,1"


def told(options: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """The exit status of a command; what it refuses is said on stderr, and has the status 2."""
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # who read the output, as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE
    except REFUSALS as error:
        print(f"pallascope {options.command}: {error}", file=sys.stderr)
    except Exception:  # not the caller's, and the status must not be that of a finding
        traceback.print_exc()
        print(
            f"pallascope {options.command}: pallascope itself failed, see above, after"
            f" {options.function or 'a kernel'} had been traced: please report it.",
            file=sys.stderr,
        )
    return 2


@contextlib.contextmanager
def refusing(command: str) -> Generator[list[str]]:
    """Around one task of several: what it refuses is said on stderr, and kept in the list."""
    errors: list[str] = []
    try:
        yield errors
    except REFUSALS as error:
        errors.append(str(error))
        print(f"pallascope {command}: {error}", file=sys.stderr)


def print_document(number: int, **fields: object) -> None:
    """Prints what `--json` does: the fields, and before them the format's number and versions."""
    head = {"format": number, "pallascope": pallascope.__version__, "jax": jax.__version__}
    print(json.dumps(head | fields, indent=1, default=str))  # a configuration may hold any value


def add_rest(command: argparse.ArgumentParser, block: Callable[[str], Any], which: str) -> None:
    """Adds the arguments of commands on one block, besides the function."""
    add_call(command)
    command.add_argument("--block", type=said(block), help=which)
    command.add_argument("--max-steps", type=int, help="no loop runs for more steps")


def add_call(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of every command, besides the function."""
    command.add_argument("args", nargs="*", help="its arguments: dtype[shape] or a number")
    command.add_argument("--call", type=int, help="which kernel, from 0, if it calls several")


def said(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type of argparse that parses so, and tells of an error in the error's own words."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def target(options: argparse.Namespace) -> Target:
    """The kernel that options name, and what they say to do with it."""
    names = "block", "strict", "call", "max_steps"
    said = {name: getattr(options, name) for name in names if hasattr(options, name)}
    return Target(options.function, tuple(options.args), **said)
