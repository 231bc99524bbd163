"""The list of the laboratory's kernels: what the page calls them, and how they are traced.

The model. A subject is a kernel of this package and small arguments for it. The first five are as
they should be. Later ones are right but slower than need be, or more careful: challenges ask for
what is left to gain. The last two have faults of other people's code, to be mended.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import pallascope
from pallascope import Program
from pipelib_book.laboratory.attention import gradients, queries, turns
from pipelib_book.laboratory.loads import one_buffer, pair, ring, two_readers
from pipelib_book.laboratory.parts import SIZE, STEPS
from pipelib_book.laboratory.persistent import second_wave, stored_apart, two_tiles
from pipelib_book.laboratory.products import gated, product, product_and_sum, squares
from pipelib_book.laboratory.stores import link, stores, through
from pipelib_book.wild import WILD


class Subject(NamedTuple):
    """A kernel of the page.

    Attributes:
      name: as links have it.
      title, summary: what it is called, and what it is about.
      trace: traces it; where there are `slots`, with another number of slots, too.
      slots: the numbers of slots that the page offers; it begins with the first.
      is_right: whether it has no fault to begin with.
    """

    name: str
    title: str
    summary: str
    trace: Callable[..., Program]
    slots: tuple[int, ...] = ()
    is_right: bool = True


def subjects() -> list[Subject]:
    """The kernels of the page, in its order."""
    return [*_first(), *_with_room(), *_of_attention(), *_of_the_end(), *_of_others()]


def _first() -> list[Subject]:
    """Kernels with one thing each to look at."""
    tiles = _array(STEPS, dtype=jnp.float32)
    a, b = _operands(STEPS)
    return [
        Subject(
            "one-buffer", "One buffer",
            "One thread loads a tile, waits for it and adds it up, six times, through one slot.",
            lambda: pallascope.trace(one_buffer, tiles),
        ),
        _in_slots(
            "ring", "A ring of two slots",
            "A memory thread loads tiles into two slots, a compute thread adds them up. Two"
            " barriers for each slot say when it is full and when it is free.",
            ring, tiles, offered=(2, 1, 3, 4),
        ),
        _in_slots(
            "two-readers", "Two compute threads",
            "The same ring, with two threads that both read each tile: a slot is free when both"
            " have said so.",
            two_readers, tiles, offered=(2, 1, 3, 4),
        ),
        _in_slots(
            "product", "A product in flight",
            "One thread multiplies tile by tile on the tensor core. While a product runs, the next"
            " tile is loaded, into a slot whose product is over.",
            product, a, b, offered=(3, 2, 4),
        ),
        _in_slots(
            "stores", "Tiles on their way out",
            "One thread writes tiles into two slots, and TMA stores them. A slot is written again"
            " once its store has read it.",
            stores, tiles, offered=(2, 1, 3),
        ),
    ]  # fmt: skip


def _with_room() -> list[Subject]:
    """Kernels that can be faster, or wait less."""
    tiles = _array(STEPS, dtype=jnp.float32)
    return [
        _in_slots(
            "squares", "A carry beside a product",
            "A compute thread multiplies each tile on the tensor core, and adds up the squares of"
            " the tile's rows in registers. At the end it divides by them, and stores the result.",
            squares, *_operands(4), offered=(2, 1, 3),
        ),
        _in_slots(
            "two-tiles", "Two tiles in one block",
            "A block makes one tile of the output after the other. Slots and barriers outlive the"
            " first, but the memory thread waits for its last releases before it loads for the"
            " second.",
            two_tiles, *_operands(4, rows=2), offered=(2, 1, 3, 4),
        ),
        _in_slots(
            "pair", "A cluster of two blocks",
            "Two blocks load each tile together, half of it each, into the memory of both. A slot"
            " is free when both blocks have said so.",
            pair, tiles, offered=(2, 1, 3, 4),
        ),
        _in_slots(
            "through", "In and out",
            "A memory thread loads tiles, a compute thread doubles them, and TMA stores them. The"
            " compute thread waits for each store at once.",
            through, tiles, offered=(2, 1, 3),
        ),
        _in_slots(
            "sum", "A product and what is added to it",
            "A memory thread loads, a compute thread multiplies. At the end it adds a tile that is"
            " loaded last.",
            product_and_sum, *_operands(5), tiles, offered=(3, 2, 4),
        ),
    ]  # fmt: skip


def _of_attention() -> list[Subject]:
    """Kernels of attention, forward and backward."""
    one, two, three = _array(), _array(2), _array(3)
    return [
        Subject(
            "turns",
            "Two threads that take turns",
            "Attention without the softmax's sums. A memory thread loads keys and values. Two"
            " compute threads, each with queries of its own, take turns at the product with the"
            " keys.",
            lambda: pallascope.trace(turns, two, two, two),
        ),
        Subject(
            "queries",
            "From queries to queries",
            "Attention in a persistent block: it has two tiles of queries, one after the other. A"
            " memory thread loads queries, keys and values.",
            lambda: pallascope.trace(queries, two, two, two),
        ),
        Subject(
            "gradients",
            "Gradients of keys and values",
            "A step loads queries and the result's gradient, makes the probabilities and their"
            " gradient anew, and adds to the gradients of a tile of values (`dv`) and of keys"
            " (`dk`).",
            lambda: pallascope.trace(gradients, three, three, one, one),
        ),
    ]


def _of_the_end() -> list[Subject]:
    """Kernels about how a tile, or a launch, ends."""
    tile, tiles = _array(dtype=jnp.float32), _array(STEPS, dtype=jnp.float32)
    return [
        _in_slots(
            "gated", "A product and its gate",
            "A product is multiplied by a gate, element by element. The gate comes early, in"
            " halves, and the result leaves in halves, from the same memory.",
            gated, *_operands(4), tile, offered=(2, 1, 3, 4),
        ),
        _in_slots(
            "link", "One launch after another",
            "A kernel of a chain: it waits for the kernel before it (`grid_wait`), lets the next"
            " one start (`grid_signal`), and doubles tiles.",
            link, tiles, offered=(2, 1, 3),
        ),
        _in_slots(
            "stored-apart", "A thread that stores",
            "One thread loads, one multiplies, one stores, as on Blackwell. This is a kernel for"
            " Hopper all the same. `finished` and `drained` are barriers between the last two.",
            stored_apart, *_operands(2, rows=3), offered=(2, 1, 3),
        ),
    ]  # fmt: skip


def _of_others() -> list[Subject]:
    """Small kernels with faults of public ones."""
    return [
        _in_slots(
            "second-wave",
            "With a fault: the second wave",
            "After a pass of the tilelang compiler. A persistent block adds up two rows of tiles,"
            " one after the other, in a ring.",
            second_wave,
            _array(STEPS, dtype=jnp.float32),
            offered=(2, 1, 3),
            is_right=False,
        ),
        Subject(
            "last-slot",
            "With a fault: a tile's last slot",
            "By JAX's warp-specialized emitter, two tiles through the same slots. A step releases"
            " the slot of the step before.",
            lambda: WILD["next-tile"].program(fixed=False),
            is_right=False,
        ),
    ]


def _in_slots(
    name: str,
    title: str,
    summary: str,
    kernel: Callable[..., jax.Array],
    *args: jax.ShapeDtypeStruct,
    offered: tuple[int, ...],
    is_right: bool = True,
) -> Subject:
    """A kernel that takes a number of slots; it begins with the first that is offered."""

    def trace(slots: int = offered[0]) -> Program:
        return pallascope.trace(functools.partial(kernel, slots=slots), *args)

    return Subject(name, title, summary, trace, offered, is_right)


def _operands(steps: int, rows: int = 1) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """The two matrices of a product of so many steps, and of so many tiles below each other."""
    return _array(rows, steps), _array(steps)


def _array(rows: int = 1, columns: int = 1, dtype: Any = jnp.float16) -> jax.ShapeDtypeStruct:
    """An array of so many tiles below and beside each other."""
    return jax.ShapeDtypeStruct((rows * SIZE, columns * SIZE), dtype)
