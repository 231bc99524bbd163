"""Kernels on several GPUs, on any machine: called on a mesh, checked, lowered, and graded by that.

The model. `on_gpus` calls a kernel on each device of a mesh that need not exist. The program of
such a call has the threads of all devices, so `pallascope.check` looks at all of them together, in
all orders. It is not run: JAX's interpreter has no semaphores and no memory of other devices.

So a grade does not compare values. In their place it looks at the program: the checker finds
nothing, no copy is of a tile behind the end of an array, each signal is waited for,
JAX lowers the kernel for a GPU, and each ask holds:

==================  ===============================================================================
ask                 a right answer must
==================  ===============================================================================
sent_by_each        have part d of a buffer written by device d, on all other devices
reads_what_it_gets  get so many parts of a buffer from others, and read them, on each device
fills               write each part of its own buffer, on each device
begins_after        read a buffer for the first time after waiting for so many signals at most
signals             signal so often, from each device
==================  ===============================================================================

A buffer has the name that a report gives it, without the device: `inbox_gmem`.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import pallascope
from pallascope.program import Kind, Op, Program, Region
from pallascope.verifying import BlockChoice
from pipelib_book.asks import Answer, Ask, Said
from pipelib_book.grading import Fails, Grade, asked, expect_inside, graded, verified
from pipelib_book.progressing import expect_exercise

#: The name of the mesh's axis.
AXIS = "gpu"
#: A semaphore's array, and its index there.
_Place = tuple[int, int]


def on_gpus(kernel: Callable[..., Any], gpus: int) -> Callable[..., Any]:
    """A function of whole arrays that calls a kernel on each of several devices, with its rows."""
    mesh = AbstractMesh((gpus,), (AXIS,), axis_types=(AxisType.Auto,))
    rows = P(AXIS)
    return jax.shard_map(kernel, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)


def unheard(program: Program) -> dict[str, int]:
    """How much of what is signalled to each semaphore no wait of its device asks for, if any.

    Such signals may come when the kernel has ended there, and its memory is another array's.
    """
    signalled, taken, kept = Counter[_Place](), Counter[_Place](), dict[_Place, int]()
    for op in _ops(program):
        if op.kind is Kind.SIGNAL:
            signalled[op.place] += op.amount
        elif op.kind is Kind.AWAIT and op.keeps:
            kept[op.place] = max(op.amount, kept.get(op.place, 0))
        elif op.kind is Kind.AWAIT:
            taken[op.place] += op.amount
    found = dict[str, int]()
    for place, amount in sorted(signalled.items()):
        left = amount - max(taken[place], kept.get(place, 0))
        if left > 0:
            of, index = program.barriers[place[0]], place[1]
            found[f"{of.name}[{index}]" if of.count > 1 else of.name] = left
    return found


def without(program: Program, is_left_out: Callable[[Op], bool]) -> Program:
    """The program without some of its ops."""
    threads = (tuple(op for op in ops if not is_left_out(op)) for ops in program.threads)
    return dataclasses.replace(program, threads=tuple(threads))


def grade(
    answer: Callable[..., Any], *args: Any, asks: Sequence[Ask] = (), exercise: str = ""
) -> Grade:
    """The grade of a kernel on several GPUs: clean, all signals waited for, as asked, lowered.

    Args:
      answer: a function of whole arrays, as `on_gpus` makes it.
      args: the arrays' types.
      asks: what the kernel must do; see the module.
      exercise: the exercise's number, as in `book.grade`.
    """
    expect_exercise(exercise)
    return graded(_look(answer, args, asks), exercise)


def _look(answer: Callable[..., Any], args: Sequence[Any], asks: Iterable[Ask]) -> Iterator[str]:
    """A line for each thing that is well; `Fails` for the first that is not."""
    found = verified(answer, args, strict=True, blocks=BlockChoice.TOGETHER, is_run=False)
    program = found.program
    expect_inside(found)
    yield f"The checker finds nothing on {math.prod(program.devices)} devices."
    for name, amount in unheard(program).items():
        raise Fails(
            f"Of the signals to `{name}`, {amount} are not waited for, so they may come when the"
            " kernel has ended there."
        )
    yield "All signals are waited for."
    seen = Answer(program, tuple(args), pallascope.H200)
    yield from asked(seen, asks)
    yield "JAX lowers it for a GPU."


# ---- Asks ----------------------------------------------------------------------------------------


def sent_by_each(buffer: str) -> Ask:
    """Asks that device d writes part d of a buffer, by its first axis, on all other devices."""

    def ask(answer: Answer) -> Said:
        program = answer.program
        whole, devices = _part_size(program, buffer), math.prod(program.devices)
        written = Counter[tuple[int, int, int]]()  # by whom, which part, where
        for place, size, op in _parts(program, buffer, writes=True):
            written[_device(program, op), *place] += size
        wanted = {(d, d, other) for d in range(devices) for other in range(devices) if d != other}
        if wrong := {*written} - wanted:
            sender, part, device = min(wrong)
            return Said(False, f"Device {sender} writes part {part} of `{buffer}@{device}`.")
        if lacking := {key for key in wanted if written[key] < whole}:
            sender, part, device = min(lacking)
            return Said(False, f"Device {sender} does not fill part {part} of `{buffer}@{device}`.")
        return Said(True, f"Each device writes its part of `{buffer}` on all others.")

    return ask


def reads_what_it_gets(buffer: str, parts: int) -> Ask:
    """Asks that others write so many parts of a device's buffer, and that the device reads each."""

    def ask(answer: Answer) -> Said:
        program = answer.program
        got, read = Counter[int](), Counter[int]()
        unread = set[tuple[int, int]]()
        for place, _, op in _parts(program, buffer, writes=True):
            if _device(program, op) != place[1]:
                got[place[1]] += 1
                unread.add(place)
        for place, _, op in _parts(program, buffer, writes=False):
            if _device(program, op) == place[1]:
                read[place[1]] += 1
                unread.discard(place)
        for device in range(math.prod(program.devices)):
            if got[device] != parts or read[device] < parts:
                said = f"gets {got[device]} parts of `{buffer}` and reads {read[device]}"
                return Said(False, f"Device {device} {said}, of {parts}.")
        for part, device in sorted(unread):
            return Said(False, f"Device {device} never reads part {part} of `{buffer}`.")
        return Said(True, f"Each device gets {parts} parts of `{buffer}`, and reads each.")

    return ask


def fills(buffer: str) -> Ask:
    """Asks that each device writes all parts of its own buffer, as of an output."""

    def ask(answer: Answer) -> Said:
        program = answer.program
        whole, parts = _part_size(program, buffer), _part_count(program, buffer)
        written = Counter[tuple[int, int]]()
        for place, size, op in _parts(program, buffer, writes=True):
            written[place] += size if _device(program, op) == place[1] else 0
        for device in range(math.prod(program.devices)):
            filled = sum(written[part, device] >= whole for part in range(parts))
            if not whole or filled < parts:
                said = f"Device {device} fills {filled} parts of `{buffer}`, of {parts}."
                return Said(False, said)
        return Said(True, f"Each device fills its `{buffer}`.")

    return ask


def begins_after(buffer: str, signals: int) -> Ask:
    """Asks that no thread waits for more signals before it first reads a buffer."""

    def ask(answer: Answer) -> Said:
        most = 0
        for ops in answer.program.threads:
            waited = 0
            for op in ops:
                if op.kind is Kind.AWAIT:
                    waited += op.amount
                if any(_is_of(answer.program, region, buffer) for region in op.reads):
                    most = max(most, waited)
                    break
        said = f"waits for {most} before it first reads `{buffer}`, of {signals} at most."
        return Said(most <= signals, f"A device {said}")

    return ask


def signals(number: int) -> Ask:
    """Asks that each device signals so often, however much a signal adds."""

    def ask(answer: Answer) -> Said:
        program = answer.program
        made = (op for op in _ops(program) if op.kind is Kind.SIGNAL)
        count = Counter(_device(program, op) for op in made)
        for device in range(math.prod(program.devices)):
            if count[device] != number:
                said = f"Device {device} signals {count[device]} times, and {number} are asked for."
                return Said(False, said)
        return Said(True, f"Each device signals {number} times.")

    return ask


# ---- Programs ------------------------------------------------------------------------------------


def _ops(program: Program) -> Iterator[Op]:
    """All ops of all threads."""
    return program.ops


def _device(program: Program, op: Op) -> int:
    """The number of an op's device."""
    return program.device_of(program.block_of(op.thread))


def _is_of(program: Program, region: Region, buffer: str) -> bool:
    """Whether a region is of a buffer, on any device."""
    return program.buffers[region.buffer].name.partition("@")[0] == buffer


def _parts(
    program: Program, buffer: str, *, writes: bool
) -> Iterator[tuple[tuple[int, int], int, Op]]:
    """Each part and device of a buffer that is written or read, how much of it, and by which op."""
    for op in _ops(program):
        for region in op.writes if writes else op.reads:
            if _is_of(program, region, buffer):
                name = program.buffers[region.buffer].name
                (first, last), *rest = region.box
                size = math.prod(stop - start for start, stop in rest)
                for part in range(first, last):
                    yield (part, program.home_of(name)), size, op


def _part_size(program: Program, buffer: str) -> int:
    """How many elements a part of a buffer has."""
    return math.prod(_shape(program, buffer)[1:])


def _part_count(program: Program, buffer: str) -> int:
    """How many parts a buffer has."""
    return _shape(program, buffer)[0]


def _shape(program: Program, buffer: str) -> tuple[int, ...]:
    """A buffer's shape on each device; nothing of a buffer that is not there."""
    shapes = [each.shape for each in program.buffers if each.name.partition("@")[0] == buffer]
    return shapes[0] if shapes else (0, 0)
