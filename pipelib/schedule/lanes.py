"""`Lanes`: the lanes that a program's figures have, and which of them an op is drawn on.

The model. Each block has a lane for each of its threads, with its warps after it, then one for each
engine. What an engine does is on its lane, all else on the lane of the thread. Source: this
project's own.
"""

from collections.abc import Iterator

from pipelib.schedule.program import Engine, Op, Program


class Lanes:
    """The `names` of a program's lanes, in the order in which they are drawn."""

    def __init__(self, program: Program) -> None:
        self.names: list[str] = []
        self._program = program
        # Of each block; the lane of None, which no op of an engine has, is not there.
        self._engines: list[dict[Engine | None, int]] = []
        self._threads = [0] * len(program.threads)
        for block in range(program.blocks):
            prefix = f"block {block} " if program.blocks > 1 else ""
            for thread, name in _named_threads(program, block):
                self._threads[thread] = len(self.names)
                self.names.append(prefix + name)
            self._engines.append({e: len(self.names) + i for i, e in enumerate(Engine)})
            self.names += [prefix + engine for engine in Engine]

    def of_thread(self, thread: int) -> int:
        """The lane of a thread, or of a warp."""
        return self._threads[thread]

    def of_engine(self, block: int, op: Op) -> int:
        """The lane of the engine that works for an op."""
        return self._engines[block][op.kind.engine]

    def slot(self, op: Op) -> int | None:
        """The slot of the ring that an op touches, or whose barrier it is on."""
        for region in op.writes + op.reads:
            if self._program.buffers[region.buffer].slots:
                return region.box[0][0]
        if op.barrier is not None and self._program.barriers[op.barrier].count > 1:
            return op.index
        return None


def _named_threads(program: Program, block: int) -> Iterator[tuple[int, str]]:
    """A block's threads, each before its warps, and the names of their lanes."""
    warps = list(enumerate(program.warps, len(program.threads) - len(program.warps)))
    for local, thread in enumerate(program.threads_of(block)):
        yield thread, f"thread {local}"
        for number, warp in warps:
            if warp.thread == thread:
                yield number, f"thread {local} warp {warp.number}"
