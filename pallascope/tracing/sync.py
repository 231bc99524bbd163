"""Barriers, fences, waits and registers: ops that put others in order and touch no memory.

Each function takes the compiler and an equation of one kind of primitive, and returns its step.
"""

from pallascope.program import Action, Kind
from pallascope.tracing.code import Compiler, Handler, Step, in_turn, split
from pallascope.tracing.jaxprs import Env, Eqn
from pallascope.tracing.state import Thread


def barrier(kind: Kind) -> Handler:
    """An op of this kind on one barrier."""

    def handler(compiler: Compiler, eqn: Eqn) -> Step:
        ref, *rest = eqn.invars
        tree = eqn.params["transforms_treedef"]
        leaves, predicate = split(rest, tree)
        view, emit = compiler.view(eqn, ref, leaves, tree), compiler.emitter(kind, eqn)
        holds = compiler.predicate(eqn, predicate[0] if predicate else None)

        def step(thread: Thread, env: Env) -> None:
            if not holds(env):
                return
            place = view.barrier(thread, env)
            if kind == Kind.ARRIVE:
                emit(thread, (), (), *place, thread.next_arrival(place))
            elif kind == Kind.TEST:
                emit(thread, (), (), *place, thread.waits[place])
            else:
                for phase in thread.next_phases(place):
                    emit(thread, (), (), *place, phase)

        return step

    return handler


def arrive_and_wait(compiler: Compiler, eqn: Eqn) -> Step:
    """An arrival on a barrier, then a wait on it."""
    arrive, wait = (barrier(kind)(compiler, eqn) for kind in (Kind.ARRIVE, Kind.WAIT))
    assert callable(arrive) and callable(wait), "ops on barriers are steps"
    return in_turn((arrive, wait))


def simple(kind: Kind, **params: str) -> Handler:
    """An op without memory; `params` names the parameters of the equation that fields come from."""

    def handler(compiler: Compiler, eqn: Eqn) -> Step:
        fixed = {field: eqn.params[name] for field, name in params.items()}
        emit = compiler.emitter(kind, eqn, **fixed)
        return lambda thread, env: emit(thread)

    return handler


def registers(compiler: Compiler, eqn: Eqn) -> Step:
    """A thread's request for a number of registers a lane."""
    count, action = eqn.params["n"], Action(str(eqn.params["action"]))
    emit = compiler.emitter(Kind.REGISTERS, eqn, registers=count, action=action)

    def step(thread: Thread, env: Env) -> None:
        thread.registers = count
        emit(thread)

    return step
