"""`disassembled`: machine code as text; `counted`: its instructions by class; `loops`: its loops.

The model. nvdisasm prints an instruction a line, with its address, and names the places that
branches go to. A **basic block** is a run of instructions that is entered at its first and left at
its last. A **loop** is a natural loop: a branch goes back to a block that every way from the start
passes through, and the loop's body is all blocks from which that branch is reached without passing
through this block again. ptxas has two ways to wait. Most often the first try stands in the code,
and further tries stand behind its end, with a branch back into the middle. Or all tries are one
loop that stands in the code itself.

What is counted. Each instruction that can be reached counts once, with a predicate or without. One
iteration of a loop is its body, without the further tries of waits: `_is_wait` says what these are.
A loop of all tries, which every iteration comes through, is there once.
Where a body has branches, all of them count.

Not covered: indirect branches, whose targets nvdisasm does not print; calls, whose callee counts
for the kernel, though in no loop.
"""

import pathlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pallascope.compiling import tools
from pallascope.sources import place

#: Classes of instructions, and the opcodes of each. An opcode with suffixes of its own goes before
#: one without; "uniform" takes all others that begin with U, "other" what is left.
CLASSES: Mapping[str, tuple[str, ...]] = {
    "HGMMA": ("HGMMA", "QGMMA", "IGMMA", "BGMMA"),
    "MUFU": ("MUFU",),
    "FFMA": ("FFMA",),
    "FADD": ("FADD",),
    "FMUL": ("FMUL",),
    "FMNMX": ("FMNMX",),
    "F2FP": ("F2FP",),
    "LDS": ("LDS",),
    "STS": ("STS",),
    "LDSM": ("LDSM",),
    "STSM": ("STSM",),
    "LDG": ("LDG", "LD"),
    "STG": ("STG", "ST"),
    "LDL": ("LDL",),
    "STL": ("STL",),
    "UTMALDG": ("UTMALDG", "UBLKCP.S.G"),
    "UTMASTG": ("UTMASTG", "UTMAREDG", "UBLKCP.G.S", "UBLKRED"),
    "SYNCS": ("SYNCS",),
    "BAR": ("BAR",),
    "SHFL": ("SHFL",),
    "R2UR": ("R2UR",),
    "uniform": ("S2UR", "VOTEU"),
    "branch": ("BRA", "BRX", "JMP", "CALL", "RET", "EXIT", "BSSY", "BSYNC", "WARPSYNC"),
    "other": (),
    "all": (),
}
_CLASS_OF = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes}
# Classes of what a loop is for. One that has none of these only waits.
_WORK = {*CLASSES} - {"SYNCS", "LDG", "BAR", "R2UR", "uniform", "branch", "other", "all"}

_INSTRUCTION = re.compile(
    r"\s+/\*(?P<at>[0-9a-f]{4,})\*/\s+(?P<guard>@!?U?P\w+\s+)?(?P<opcode>[A-Z][\w.]*)(?P<rest>.*?);"
)
_LABEL = re.compile(r"(\.?[\w.$]+):\s*$")
_LINE = re.compile(r'\s*//## File "(.*)", line (\d+)(?! inlined)')
_TARGET = re.compile(r"`\(([^)]+)\)")
_JUMPS = {"BRA", "CALL", "JMP"}
_ENDS = {"BRA", "BRX", "EXIT", "JMP", "RET"}


class Instruction(NamedTuple):
    """One instruction: its address, its opcode, the labels that it may branch to, whether the next
    one may come after it, and "file:line" of its source."""

    at: int
    opcode: str
    targets: tuple[str, ...]
    goes_on: bool
    line: str | None


@dataclass(frozen=True, slots=True)
class Body:
    """A loop: the address where it begins, and the instructions of one iteration."""

    start: int
    instructions: tuple[Instruction, ...]


def disassembled(code: bytes) -> str:
    """The text of machine code, with the lines of its source.

    Raises:
      FileNotFoundError: nvdisasm is not found.
      ValueError: nvdisasm does not take the code, in its own words.
    """
    nvdisasm = str(tools.program("nvdisasm"))
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "kernel.cubin")
        file.write_bytes(code)
        command = [nvdisasm, "--no-dataflow", "--print-code", "--print-line-info", str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(
            "nvdisasm does not read the machine code that ptxas made, so its instructions are not"
            f" counted: use one that is no older than ptxas. It says: {done.stderr.strip()}"
        )
    return done.stdout


def counted(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How many instructions of each class there are, in the order of `CLASSES`."""
    found = Counter(_class_of(each.opcode) for each in instructions)
    found["all"] = found.total()
    return {name: found[name] for name in CLASSES}


def _class_of(opcode: str) -> str:
    """The class of an opcode with its suffixes, of which the last may say nothing."""
    parts = opcode.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    rest = "uniform" if opcode.startswith("U") else "other"
    return next((_CLASS_OF[name] for name in names if name in _CLASS_OF), rest)


def reached(sass: str) -> tuple[list[Instruction], list[Body]]:
    """The instructions that a kernel can reach, and its innermost loops, by address."""
    graph = _Graph(sass)
    found = [each for block in sorted(graph.dominators) for each in graph.blocks[block]]
    return found, list(_innermost(graph))


# Blocks.


class _Graph:
    """The basic blocks of a text, numbered by address, and what comes after each.

    `dominators[b]` holds the blocks that every way to block b passes through; blocks that nothing
    reaches are not in it.
    """

    def __init__(self, sass: str) -> None:
        self.blocks: list[list[Instruction]] = [[]]
        labels: dict[str, int] = {}
        for item in _items(sass):
            if isinstance(item, str):
                self._begin()
                labels[item] = len(self.blocks) - 1
            else:
                self.blocks[-1].append(item)
                if item.targets or not item.goes_on:
                    self._begin()
        self.after = [self._after(block, labels) for block in range(len(self.blocks))]
        self.before: list[list[int]] = [[] for _ in self.blocks]
        for block, others in enumerate(self.after):
            for other in others:
                self.before[other].append(block)
        self.dominators = self._dominators()

    def _begin(self) -> None:
        """Begins a block, unless the last one is still empty."""
        if self.blocks[-1]:
            self.blocks.append([])

    def _after(self, block: int, labels: Mapping[str, int]) -> list[int]:
        last = self.blocks[block][-1] if self.blocks[block] else None
        found = [labels[name] for name in last.targets if name in labels] if last else []
        if (last is None or last.goes_on) and block + 1 < len(self.blocks):
            found.append(block + 1)
        return found

    def _dominators(self) -> dict[int, set[int]]:
        """By the textbook's equations: what dominates a block dominates all before it, or is it."""
        order = self._reachable()
        found = {block: {*order} for block in order} | {0: {0}}
        changed = True
        while changed:
            changed = False
            for block in order[1:]:
                known = [found[other] for other in self.before[block] if other in found]
                now = set[int].intersection(*known) | {block}
                changed |= now != found[block]
                found[block] = now
        return found

    def _reachable(self) -> list[int]:
        order, seen = [0], {0}
        for block in order:
            fresh = [other for other in self.after[block] if other not in seen]
            order += fresh
            seen |= {*fresh}
        return order


def _items(sass: str) -> Iterator[str | Instruction]:
    """The labels and instructions of a text, in order."""
    line = None
    for text in sass.splitlines():
        if found := _INSTRUCTION.match(text):
            yield _instruction(found, line)
        elif found := _LABEL.match(text):
            yield found[1]
        elif found := _LINE.match(text):
            line = place(found[1], found[2])


def _instruction(found: re.Match[str], line: str | None) -> Instruction:
    base, rest = found["opcode"].split(".")[0], found["rest"]
    # A branch is taken for sure without a guard, and without a predicate as its first operand.
    is_sure = not found["guard"] and not re.match(r"\s+!?U?P\w", rest)
    return Instruction(
        int(found["at"], 16),
        found["opcode"],
        tuple(_TARGET.findall(rest)) if base in _JUMPS else (),
        goes_on=not (base in _ENDS and is_sure),
        line=line,
    )


# Loops.


def _innermost(graph: _Graph) -> Iterator[Body]:
    """The loops that do some work and hold no other that does."""
    loops = _natural_loops(graph)
    waits = {head for head, body in loops.items() if _is_wait(_instructions(graph, body))}
    for head, body in sorted(loops.items()):
        inner = [other for other in loops if other != head and other in body]
        if head in waits or any(other not in waits for other in inner):
            continue
        kept = set(body)
        for other in inner:
            kept = _without_tries(graph, kept, head, loops[other] - {head})
        yield Body(graph.blocks[head][0].at, tuple(_instructions(graph, kept)))


def _natural_loops(graph: _Graph) -> dict[int, set[int]]:
    """The blocks of each loop, by the block that it begins with."""
    loops: dict[int, set[int]] = {}
    for block in graph.dominators:
        for head in graph.after[block]:
            if head in graph.dominators[block]:
                body = loops.setdefault(head, {head})
                waiting = [block]
                while waiting:
                    if (one := waiting.pop()) not in body:
                        body.add(one)
                        waiting += [b for b in graph.before[one] if b in graph.dominators]
    return loops


def _is_wait(body: Iterable[Instruction]) -> bool:
    """Whether a loop only tries again: to pass a barrier, or to get registers."""
    return not any(_class_of(each.opcode) in _WORK for each in body)


def _without_tries(graph: _Graph, body: set[int], head: int, tries: set[int]) -> set[int]:
    """The body without a wait's further tries, and without the way back from them.

    The body as it is if work comes only after these tries, or no iteration goes without them: then
    they are all tries of the wait.
    """
    left_out = {*tries}
    while more := {
        block
        for block in body - left_out - {head}
        if all(other not in body - left_out for other in graph.before[block])
    }:
        left_out |= more
    kept = body - left_out
    goes_round = any(head in graph.after[block] for block in kept)
    return kept if goes_round and _is_wait(_instructions(graph, left_out)) else body


def _instructions(graph: _Graph, blocks: Iterable[int]) -> Sequence[Instruction]:
    return [each for block in sorted(blocks) for each in graph.blocks[block]]
