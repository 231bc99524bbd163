"""Device code in a kernel (`plgpu.inline_mgpu`): what of it puts threads in order.

The model. `inline` says what the code does. An instruction on a named barrier is an arrival there,
and a sync waits for the end of that phase too. A named barrier starts over at each phase, so a
thread takes part once in each: it has no parity that could be wrong. Lanes are counted in Pallas
threads (128) if they are whole ones, and else in warps (32): a Pallas thread then makes four
arrivals. Where a thread's lanes meet by themselves, it meets no other thread. Not covered: a warp
on a barrier of whole threads. That is one opaque op, as all is that `inline` does not understand.
"""

from pallascope.machine import THREAD_LANES, WARP_LANES
from pallascope.program import Kind
from pallascope.tracing import calls, inline
from pallascope.tracing.code import Compiler, Step, in_turn
from pallascope.tracing.inline import Does, Instruction, Operand
from pallascope.tracing.jaxprs import Env, Eqn
from pallascope.tracing.source import UNKNOWN
from pallascope.tracing.state import OPAQUE, Thread


def code(compiler: Compiler, eqn: Eqn) -> Step:
    """The ops of device code: of each of its instructions, or one that is opaque."""
    opaque, found = calls.opaque(compiler, eqn), inline.instructions(eqn)
    if found is None:
        return opaque
    return in_turn([_step(compiler, eqn, each, opaque) for each in found])


def _step(compiler: Compiler, eqn: Eqn, instruction: Instruction, opaque: Step) -> Step:
    match instruction.does:
        case Does.FENCE:
            emit = compiler.emitter(Kind.FENCE, eqn)
            return lambda thread, env: emit(thread)
        case Does.MEET:
            return _meet(compiler, eqn, opaque)
        case Does.LANES:
            return _lanes_meet(compiler, eqn)
        case Does.ARRIVE | Does.SYNC:
            return _on_named_barrier(compiler, eqn, instruction, opaque)


def _meet(compiler: Compiler, eqn: Eqn, opaque: Step) -> Step:
    """All threads of the block come together."""
    emit = compiler.emitter(Kind.MEET, eqn)

    def step(thread: Thread, env: Env) -> None:
        if thread.index != thread.own:
            opaque(thread, env)
            return
        first = thread.block * thread.home.threads
        emit(thread, members=tuple(range(first, first + thread.home.threads)))

    return step


def _lanes_meet(compiler: Compiler, eqn: Eqn) -> Step:
    """The lanes of one thread come together: a meeting of this thread alone."""
    emit = compiler.emitter(Kind.MEET, eqn)

    def step(thread: Thread, env: Env) -> None:
        if thread.index == thread.own:
            emit(thread, members=(thread.index,))

    return step


def _on_named_barrier(compiler: Compiler, eqn: Eqn, instruction: Instruction, opaque: Step) -> Step:
    """An arrival on a named barrier, and perhaps a wait for the others."""
    arrive, wait = (compiler.emitter(kind, eqn) for kind in (Kind.ARRIVE, Kind.WAIT))
    slots, line = compiler.inputs(eqn), compiler.line(eqn)

    def step(thread: Thread, env: Env) -> None:
        number, lanes = (
            env[slots[each.number]] if isinstance(each, Operand) else each
            for each in (instruction.barrier, instruction.lanes)
        )
        if number is OPAQUE or lanes is OPAQUE:
            opaque(thread, env)
            return
        unit = WARP_LANES if lanes % THREAD_LANES else THREAD_LANES
        mine = THREAD_LANES if thread.index == thread.own else WARP_LANES
        if lanes % unit or mine % unit:
            opaque(thread, env)
            return
        barrier = thread.home.named_barrier(thread.block, int(number), lanes // unit)
        if barrier.arrivals != lanes // unit:
            raise ValueError(
                f"{line or UNKNOWN}: named barrier {number} takes {lanes // unit} arrivals here and"
                f" {barrier.arrivals} elsewhere, but PTX gives it no meaning unless all agree: give"
                " it the same number of lanes everywhere."
            )
        place = barrier.id, 0
        phase = thread.waits[place]
        thread.waits[place] += 1
        for _ in range(mine // unit):
            arrive(thread, (), (), *place, phase)
        if instruction.does is Does.SYNC:
            wait(thread, (), (), *place, phase)

    return step
