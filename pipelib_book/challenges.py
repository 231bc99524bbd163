"""The laboratory's challenges: what should become of a kernel of the page, by chapter.

The model. Each is about what its chapter has explained, and is judged by the checker and the
simulator (`pipelib.schedule.laboratory.goals`). How many single edits solve it is counted when the
book is built.
"""

from typing import NamedTuple

from pipelib.schedule.laboratory.goals import Goal


class Challenge(NamedTuple):
    """One challenge: its name, its chapter's number, a title, the task, the kernel, the goal."""

    name: str
    chapter: int
    title: str
    task: str
    subject: str
    goal: Goal


CHALLENGES = (
    Challenge(
        "too-early", 3, "Too early",
        "Let the thread read a tile before its copy is sure to have landed: a race, and nothing"
        " else. One edit is enough. (Taking the wait away does more harm. What?)",
        "one-buffer", Goal(found=("race",), edits=1),
    ),
    Challenge(
        "waits-that-can-go", 3, "Waits that can go",
        "Two of the memory thread's waits keep nothing from going wrong. Take them away, so that"
        " the check still finds nothing.",
        "ring", Goal(fewer=2, edits=2, by=("remove",), of=("wait",)),
    ),
    Challenge(
        "stuck", 4, "Stuck, with nothing taken away",
        "Make the kernel hang: a deadlock, and nothing else. Take nothing away, and do nothing"
        " twice.",
        "ring", Goal(found=("deadlock",), by=("move", "expect")),
    ),
    Challenge(
        "one-arrival-too-few", 4, "Counted wrongly",
        "Change one number, and two threads read what a copy is writing over: a race.",
        "two-readers", Goal(found=("race",), only=False, edits=1, by=("expect",)),
    ),
    Challenge(
        "nothing-to-wait-for", 5, "Nothing to wait for",
        "A wait for stores that do not exist costs little, and does nothing. Take one of these"
        " waits away, at one step.",
        "stores", Goal(fewer=1, edits=1, by=("remove",)),
    ),
    Challenge(
        "left-behind", 5, "Left behind",
        "Without taking anything away, write a slot that a store may still be reading: a race, and"
        " nothing else.",
        "stores", Goal(found=("race",), by=("move",)),
    ),
    Challenge(
        "refilled", 6, "Refilled under the tensor core",
        "Move one line by one place, so that a copy overwrites a tile that a product still reads: a"
        " race, and nothing else.",
        "product", Goal(found=("race",), edits=1, by=("move",)),
    ),
    Challenge(
        "waits-of-products", 6, "Three waits too many",
        "Not every wait for a product protects something. Take one away, at one step.",
        "product", Goal(fewer=1, edits=1, by=("remove",)),
    ),
    Challenge(
        "no-release", 7, "The slot that never comes back",
        "Two threads must both release a slot. Let one forget it once: a deadlock, and nothing"
        " else.",
        "two-readers", Goal(found=("deadlock",), edits=1, by=("remove",)),
    ),
    Challenge(
        "fences-that-can-go", 7, "Fences that can go",
        "A fence stands between what a thread has read and the copy that overwrites it. Some steps"
        " have no such copy after them. Take two fences away, and let the strict check find"
        " nothing.",
        "two-readers", Goal(fewer=2, edits=2, by=("remove",), of=("fence",)),
    ),
    Challenge(
        "released-early", 8, "As early as right",
        "A tile is free once it has been read into registers. Release it there, and be 1.015 times"
        " as fast, simulated. The strict check must find nothing.",
        "ring", Goal(faster=1.015, by=("move",)),
    ),
    Challenge(
        "released-early-by-both", 8, "Both must let go",
        "The same with two compute threads.",
        "two-readers", Goal(faster=1.015, by=("move",)),
    ),
)  # fmt: skip
