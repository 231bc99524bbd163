"""`judge`: whether arrays are what is expected of them, in a sentence.

The model. An array's error is its `relative_error`, of several arrays' the largest counts; NaN is
over any tolerance. There is an error only where both have the same shape (nothing is broadcast) and
the reference's dtype holds every value of the result's: the reference may be the more precise of
the two, not the coarser one. Not covered: errors of single elements.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np


def relative_error(actual: Any, expected: Any) -> float:
    """How far an array is off: the norm of its difference over the norm of the expected one.

    The norms are Frobenius norms in float64. If the expected one is zero, that of the difference.

    Raises:
      ValueError: the arrays have different shapes, the expected one's dtype cannot hold every value
        of the other's, or one is a sequence that makes no array.

    Example:
      >>> round(book.relative_error([3.0, 4.1], [3.0, 4.0]), 3)
      0.02
    """
    actual, expected = _array(actual), _array(expected)
    differ = ""
    if actual.shape != expected.shape:
        differ = "nothing is broadcast"
    elif not np.can_cast(actual.dtype, expected.dtype):
        differ = f"not every {actual.dtype} is a {expected.dtype}"
    if differ:
        raise ValueError(
            f"it is {_words(actual)} where {_words(expected)} is expected, and {differ}, so no"
            " error is measured"
        )
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    norm = np.linalg.norm(expected.ravel()) or 1.0
    return float(np.linalg.norm((actual - expected).ravel()) / norm)


def judge(name: str, pairs: Iterable[tuple[Any, Any]], tolerance: float) -> tuple[bool, str]:
    """Whether each array is within the tolerance of its expected one, and a sentence on `name`."""
    pairs = [*pairs]
    try:
        worst = np.max([relative_error(*pair) for pair in pairs], initial=0.0)  # a NaN stays
    except ValueError as error:
        return False, f"{name} is wrong: {error}."
    if worst <= tolerance:
        return True, f"{name}: relative error {worst:.1e}, within {tolerance:.0e}."
    nan = "".join(f" {part} is NaN." for part in map(_nan_part, *zip(*pairs)) if part)
    return False, f"{name} is wrong: relative error {worst:.1e}, over {tolerance:.0e}.{nan}"


def _nan_part(actual: Any, expected: Any) -> str:
    """The least box with all NaN that is not expected; "" without any.

    Example:
      >>> _nan_part([1.0, float("nan"), float("nan")], [1.0, 2.0, 3.0])
      '`[1:3]`'
    """
    actual, expected = _array(actual).astype(np.float64), _array(expected).astype(np.float64)
    places = np.argwhere(np.isnan(actual) & ~np.isnan(expected))
    if not len(places):
        return ""
    box = [slice(*each) for each in zip(places.min(axis=0), places.max(axis=0) + 1, strict=True)]
    part = ", ".join(f"{axis.start}:{axis.stop}" for axis in box)
    some = "" if np.isnan(actual[tuple(box)]).all() else "a part of "
    return f"{some}`[{part}]`" if part else "the number"


def _array(values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"a {type(values).__name__} of {len(values)} whose parts differ in shape is no array,"
            " so no error is measured"
        ) from error


def _words(array: np.ndarray) -> str:
    """An array's type, as in float32[64,128]."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
