"""What the book's chapters call, and kernel authors do without.

`setup` finds the device and makes kernels run on it, natively or in the interpreter, and `natively`
has an earlier GPU than Hopper run what it can; `check`,
`compare` and `grade` say what a kernel's result, its time and an exercise's answer are worth, and
`asks` has what an exercise may ask of one, and `progress` shows which were passed; `rubric` judges
a kernel of the reader's own; `show_*` show code, reports and hazards, and `diagram` a drawn figure.
`gallery` has the faulty kernels of `book/gallery.md`, `wild` those of chapter 20, `measured` reads
the records of the benchmarks, `timelines` makes tables of timelines, `files` runs the command line,
the two ladders have the configurations of chapters 14 to 16, `climbs` shows a rung, `blackwell`
interprets the kernels of chapter 19, `blackwell_ladder` has those of chapter 21, and `across`
checks and grades those of several GPUs.
"""

# ruff: noqa: E402 - whose `pipelib` there is comes before what needs it
from pipelib_book.whose import require_this_pipelib

require_this_pipelib()

from pipelib_book import asks
from pipelib_book.comparing import check, compare, fastest
from pipelib_book.diagrams.catalogue import diagram
from pipelib_book.diagrams.figure import Diagram
from pipelib_book.grading import Grade, grade
from pipelib_book.judging import relative_error
from pipelib_book.notebook import Device, natively, pick, say, setup
from pipelib_book.progressing import Progress, progress
from pipelib_book.rubrics import Rubric, rubric
from pipelib_book.showing import (
    fault_table,
    hazard_table,
    kind_table,
    play_hazard,
    show_change,
    show_code,
    show_fault,
    show_hazard,
    show_report,
)

__all__ = [
    "Device",
    "Diagram",
    "Grade",
    "Progress",
    "Rubric",
    "asks",
    "check",
    "compare",
    "diagram",
    "fastest",
    "fault_table",
    "grade",
    "hazard_table",
    "kind_table",
    "natively",
    "pick",
    "play_hazard",
    "progress",
    "relative_error",
    "rubric",
    "say",
    "setup",
    "show_change",
    "show_code",
    "show_fault",
    "show_hazard",
    "show_report",
]
