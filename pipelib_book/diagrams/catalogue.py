"""`diagram`: the diagrams of the book by name, in the order in which the chapters show them.

The model. `CATALOGUE` is one list, chapter by chapter. A diagram's number is its chapter and its
place among that chapter's: "3.2". To move a diagram is to move its line here. A test holds the
chapters to this order.
"""

import difflib

from pallascope.arguments import expect
from pipelib_book.diagrams import (
    barriers,
    blocks,
    checking,
    devices,
    limits,
    machine,
    rings,
    tensor_core,
)
from pipelib_book.diagrams.figure import Diagram, Sketch

CATALOGUE: tuple[Sketch, ...] = (
    limits.overlap,
    tensor_core.tiles,
    machine.who_runs,
    limits.roofline,
    limits.latency,
    rings.ring,
    rings.slots,
    machine.lanes,
    barriers.counts,
    barriers.phases,
    barriers.lapping,
    barriers.proxies,
    rings.stores,
    tensor_core.operands,
    tensor_core.swizzle,
    tensor_core.delay_release,
    barriers.two_programs,
    rings.slot_life,
    machine.registers,
    rings.carries,
    blocks.persistent,
    blocks.tile_order,
    blocks.chain,
    blocks.multicast,
    barriers.cluster_barrier,
    checking.checker,
    limits.bounds,
    limits.rungs,
    tensor_core.attention_step,
    tensor_core.ping_pong,
    tensor_core.block_order,
    blocks.two_grids,
    machine.tensor_memory,
    checking.hiding_places,
    devices.slot_across,
    devices.hidden_gather,
)


def diagram(name: str) -> Diagram:
    """A diagram of the book, with its number and its caption.

    Args:
      name: its name in the catalogue.

    Raises:
      TypeError: the name is not a string.
      ValueError: no diagram has this name.

    Example:
      >>> book.diagram("ring")
      Figure 3.1. ...
    """
    expect("diagram", name, str, "the name of a diagram", "give a string, such as 'ring'")
    for position, found in enumerate(CATALOGUE):
        if found.name == name:
            before = [each for each in CATALOGUE[:position] if each.chapter == found.chapter]
            return found.numbered(f"{found.chapter}.{len(before) + 1}")
    raise ValueError(_unknown(name))


def _unknown(name: str) -> str:
    """What to say of a name that no diagram has."""
    names = [each.name for each in CATALOGUE]
    near = difflib.get_close_matches(name, names)
    listed = ", ".join(map(repr, near or names))
    return (
        f"None of the book's {len(names)} diagrams is called {name!r}, so there is nothing to"
        f" draw: take {listed if near else f'one of {listed}'}."
    )
