"""`faults`: what is wrong with where a drawing's marks are, in words.

The model. A text is a rectangle: as wide as `width_of` says, which is no less than it is in the
widest usual font, and as high as its capitals. It must lie within the sheet and within its room; it
must not touch another text, nor a line or an edge; and nothing may be painted over it later.
"""

import itertools

from pipelib_book.diagrams.shapes import TEXT, Path, Rect, Words

# Half of a capital's height, and what a broad line is wider than a line.
HALF, BROAD = 0.36 * TEXT, 2.0


def faults(drawing):
    """Sentences on the faults of a drawing; none if it is as it should be."""
    marks = drawing.marks
    texts = [(i, mark, area(mark)) for i, mark in enumerate(marks) if isinstance(mark, Words)]
    found = []
    for i, words, place in texts:
        found += _outside(words, place, (0, 0, drawing.width, drawing.height), "the sheet")
        if (room := words.room) is not None:
            box = room.x, room.y, room.x + room.width, room.y + room.height
            found += _outside(words, place, box, "its box")
        for j, mark in enumerate(marks):
            is_hidden = any(covers(other, place) for other in marks[j + 1 : i])
            meets = any(crosses(*ends, grown(place, margin)) for ends, margin in strokes(mark))
            if meets and not is_hidden:
                found.append(f"{words.words!r} is crossed by {mark}")
        found += [
            f"{words.words!r} is painted over by {mark}"
            for mark in marks[i + 1 :]
            if isinstance(mark, Rect) and mark.shade != "p" and overlap(place, edges(mark))
        ]
    for (_, one, place), (_, other, its) in itertools.combinations(texts, 2):
        if overlap(place, its):
            found.append(f"{one.words!r} and {other.words!r} overlap")
    return found


def area(words):
    """Left, top, right and bottom of a text."""
    return words.left, words.y - HALF, words.left + words.width, words.y + HALF


def edges(rect):
    return rect.x, rect.y, rect.x + rect.width, rect.y + rect.height


def covers(mark, place):
    """Whether a mark hides all that lies below a text."""
    return isinstance(mark, Rect) and mark.shade == "s" and _lies_in(place, edges(mark))


def grown(place, margin):
    return place[0] - margin, place[1] - margin, place[2] + margin, place[3] + margin


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def strokes(mark):
    """The straight lines of a mark, each with how far it is wider than a line."""
    if isinstance(mark, Rect) and mark.shade != "n":
        x0, y0, x1, y1 = edges(mark)
        corners = (x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)
        return [(pair, 0) for pair in itertools.pairwise(corners)]
    if isinstance(mark, Path):
        margin = BROAD if "m" in mark.look.split() else 0
        return [(pair, margin) for points in mark.lines for pair in itertools.pairwise(points)]
    return []


def crosses(start, stop, place):
    """Whether a line enters a rectangle (Liang and Barsky's clipping)."""
    (x, y), (dx, dy) = start, (stop[0] - start[0], stop[1] - start[1])
    left, top, right, bottom = place
    first, last = 0.0, 1.0
    for step, room in ((-dx, x - left), (dx, right - x), (-dy, y - top), (dy, bottom - y)):
        if step == 0:
            if room <= 0:
                return False
        elif step < 0:
            first = max(first, room / step)
        else:
            last = min(last, room / step)
    return first < last


def _lies_in(place, box):
    return box[0] <= place[0] and place[2] <= box[2] and box[1] <= place[1] and place[3] <= box[3]


def _outside(words, place, box, name):
    if _lies_in(place, box):
        return []
    return [f"{words.words!r} does not fit into {name}: {place} in {box}"]
