"""The kernels that the laboratory page begins with: small, and by hand.

The model. Each has a block of 2 to 8 steps, in tiles of 64 x 64, so that a reader sees all of its
operations. What synchronises stands on lines of its own: there it can be taken away. A page shows
their programs; nobody runs them. `subjects` lists them in the page's order. The kernels are in
modules by what they do: `loads`, `stores`, `products`, `persistent` and `attention`. Those with a
ring take `slots`, of which the page offers several numbers.
"""

from pipelib_book.laboratory.subjects import Subject, subjects

__all__ = ["Subject", "subjects"]
