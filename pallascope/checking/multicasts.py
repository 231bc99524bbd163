"""`MixedTiles`: blocks of a cluster that put parts of different tiles together.

The model. Blocks that share a load each copy a part of one tile, to the same place in the SMEM of
all of them (`whole` of the op says which tile and which place). Nothing on the device compares the
tiles: where a block names another one than its peers do, each of them gets a mixture. A block's
first load to a place belongs with its peers' first loads there, its second with their second, and
so on. JAX's interpreter does not see the fault, for there each block loads its tile alone.

Not covered: a block that loads its part to another place than its peers; a tile whose place depends
on what a tensor holds. Source: `collective_axes` of `copy_gmem_to_smem` in JAX's Mosaic GPU.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, override

from pallascope.checking.detector import Detector
from pallascope.checking.facts.memory import MixedTile
from pallascope.program import Op


class MixedTiles(Detector):
    """Finds loads that have another tile than the peers' loads which they belong with."""

    @override
    def finish(self, is_whole: bool) -> Iterator[MixedTile]:
        if self.program.blocks == 1:
            return
        nth: Counter[tuple[Any, ...]] = Counter()
        first: dict[tuple[Any, ...], Op] = {}
        for op in self.program.ops:
            if not op.whole or not all(region.is_placed for region in op.whole):
                continue
            tile, place = op.whole
            to = tuple(region.buffer for region in op.writes), place.box
            block = self.program.block_of(op.thread)
            together = *to, nth[*to, block]
            nth[*to, block] += 1
            older = first.setdefault(together, op)
            if older.whole[0] != tile:
                yield MixedTile(op, older)
