"""Counts the ways to solve each challenge of the laboratory with one edit, and with two.

    python -m tools.challenge_answers            all challenges, which takes some minutes
    python -m tools.challenge_answers stuck      one

The model. A challenge whose goal is met in many ways asks for nothing in particular, so readers
meet it by tricks. Each edit is tried, a move by up to `FAR` places, and each pair of edits that
takes both (`solutions`). The exit status is 1 if a challenge has more than `MOST` ways.
"""

import sys

from pipelib_book.challenges import CHALLENGES
from pipelib_book.laboratory import subjects
from pipelib_book.laboratory.goals import solutions

#: The most ways that a challenge may have, and how far a move goes.
MOST, FAR = 10, 6


def ways(name: str) -> list[int]:
    """How many ways a challenge has that take one edit, and two."""
    programs = {subject.name: subject.trace for subject in subjects()}
    (found,) = [each for each in CHALLENGES if each.name == name]
    answers = solutions(programs[found.subject](), found.goal, most=2, far=FAR)
    return [sum(len(answer) == edits for answer in answers) for edits in (1, 2)]


def main(asked: list[str]) -> int:
    """Prints the counts; the exit status says whether some are too many."""
    many = 0
    for name in asked or [challenge.name for challenge in CHALLENGES]:
        one, two = ways(name)
        many += one + two > MOST
        print(f"{name}: {one} of one edit, {two} of two", flush=True)
    return bool(many)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
