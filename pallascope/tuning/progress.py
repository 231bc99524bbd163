"""`steps`: a progress bar for the configurations of a search, or a line for each.

The model. What shows progress is tqdm's bar; where tqdm is not installed, a printed line for each
configuration; or a function of the caller's, which gets that line; or nothing.
"""

import contextlib
import importlib
import itertools
from collections.abc import Callable, Generator
from typing import Any

#: Whether to show progress, or what gets the lines.
Progress = bool | Callable[[str], None]


@contextlib.contextmanager
def steps(progress: Progress, what: str, total: int) -> Generator[Callable[[str], None]]:
    """A function to be called after each step, with a few words on it.

    Args:
      progress: as in the module's docstring.
      what: what the steps do, as "predicting".
      total: how many steps there are at most.
    """
    if progress is True and (tqdm := _tqdm()) is not None:
        with tqdm.tqdm(total=total, desc=what) as bar:
            yield lambda line: _step(bar, line)
        return
    say = print if progress is True else progress or _silent
    numbers = itertools.count(1)
    yield lambda line: say(f"{what} {next(numbers)}/{total}. {line}")


def _tqdm() -> Any:
    """The library, or None where it is not installed."""
    try:
        return importlib.import_module("tqdm")
    except ImportError:
        return None


def _step(bar: Any, line: str) -> None:
    bar.set_postfix_str(line, refresh=False)
    bar.update()


def _silent(line: str) -> None:
    del line
