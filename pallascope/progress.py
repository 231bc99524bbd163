"""`steps`: tells who waits how far something has come, by tqdm's bar or in lines.

The model. What goes on in steps calls a function after each, with a few words. `Progress` says who
is told: True for tqdm's bar, or for printed lines where tqdm is not installed; a function for the
lines; False for nobody.
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
