"""`draw`: the simulated timeline of one block as a file."""

import importlib.util
import pathlib

import pallascope
from pallascope.command.targets import Target, tracer
from pallascope.verifying import BlockChoice

#: The machines that a timeline is simulated on: names of pallascope.
MACHINES = ("H100", "H200", "B200")
_DRAWN = (".svg", ".png")
_FIGURES = *_DRAWN, ".html", ".json"


def draw(target: Target, output: str, machine: str) -> int:
    """Writes the figure; returns the exit status.

    Raises:
      ValueError: the file's name ends with what no figure's does.
      ImportError: the figure needs matplotlib, which is not installed.
    """
    path = pathlib.Path(output)
    kind = path.suffix.lower()
    if kind not in _FIGURES:
        raise ValueError(
            f"{path.name} ends with {path.suffix!r}, which no figure's name does: name it"
            " .svg, .png, .html (a page that plays) or .json (for Perfetto)."
        )
    if kind in _DRAWN and importlib.util.find_spec("matplotlib") is None:
        raise ImportError(
            f"{path.name} is drawn by matplotlib, which is not installed here: install it with `pip"
            " install 'pallascope[draw]'`, or name the file .html or .json, which need none."
        )
    assert not isinstance(target.block, BlockChoice), "a figure is of one block"
    timeline = pallascope.simulate(tracer(target)(target.block), getattr(pallascope, machine))
    if kind == ".json":
        pallascope.to_perfetto(timeline, path)
    elif kind == ".html":
        pallascope.player(timeline).save(path)
    else:
        pallascope.plot(timeline).savefig(path, bbox_inches="tight")  # pyright: ignore[reportUnknownMemberType]
    print(f"{path}: {timeline.summary()}")
    return 0
