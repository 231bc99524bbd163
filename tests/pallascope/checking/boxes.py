"""The elements of boxes, one by one."""

import itertools


def elements(box):
    return set(itertools.product(*(range(a, b) for a, b in box)))
