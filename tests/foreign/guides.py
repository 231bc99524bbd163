"""pytest's items for guides: a Markdown file's Python cells, one after another."""

import re

import pytest

from tests.foreign import stand_in

_CELL = re.compile(r"^```\{?(?:code-cell|python)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Guide(pytest.File):
    """A guide: one item."""

    def collect(self):
        yield Cells.from_parent(self, name="cells")


class Cells(pytest.Item):
    """Runs each cell that can be run: many are parts of a kernel, shown to be read."""

    def runtest(self):
        text = self.path.read_text("utf-8")
        names = {"__name__": "guide", **stand_in.names_of_guides()}
        failures = []
        with stand_in.old_names():
            for cell in _CELL.finditer(text):
                above = text[: cell.start(1)].count("\n")  # so that lines are the guide's
                try:
                    exec(compile("\n" * above + cell[1], str(self.path), "exec"), names)
                except Exception as error:
                    failures.append(f"line {above + 1}: {type(error).__name__}: {error}")
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)
