"""`Bench`: answers a page's questions about a program and a reader's edits of it, as JSON.

The model. A bench has one program, as it was saved. Each question gives the whole history of
edits, and the answer says all that the page shows: the ops of each thread, the barriers, the
verdict, the findings and the timeline's figure. So the bench keeps nothing of its reader: a link to
a state is the question. Edits come as lists, as in ["remove", 0, [3]]; `EDITS` has their names. A
change of the machine is one of them: ["machine", "wait_cycles", 50].

A page asks in the words of JSON and is told of its mistakes in them: an answer to what cannot be
answered has only an `error`, a sentence. Not covered: programs of several blocks are shown as they
are, one column for each thread. Source: this project's own.
"""

import html
import json
from collections.abc import Callable
from typing import Any

import pallascope
from pallascope.checking.check import check
from pallascope.drawing.player import Setting, player
from pallascope.editing import (
    FIXED,
    Edit,
    Expect,
    Move,
    Remove,
    Repeat,
    edited,
    order,
    site,
)
from pallascope.judging import judged
from pallascope.lanes import Lanes
from pallascope.machine import Machine
from pallascope.playing import bare
from pallascope.program import Op, Program, step_name
from pallascope.report import Report, thread_name
from pallascope.sources import remember, text_of
from pipelib_book.laboratory.goals import Goal, card

Json = dict[str, Any]

#: The edits by the names that a page calls them, each with what takes the rest of its list.
EDITS: dict[str, Callable[..., Edit]] = {
    "remove": lambda thread, indices: Remove(thread, tuple(indices)),
    "repeat": lambda thread, indices: Repeat(thread, tuple(indices)),
    "move": lambda thread, indices, by: Move(thread, tuple(indices), by),
    "expect": lambda barrier, arrivals: Expect(barrier, _whole(arrivals)),
}
#: What is told of a program with edits.
UNLOWERED = (
    "Lowering is not checked here: JAX lowers kernels, and this is a saved program with your edits."
    " Nor are other blocks of the launch."
)
#: The name of an edit that changes a parameter of the machine.
MACHINE = "machine"
#: The parameters of a machine that a page can change, and what they are in words.
PARAMETERS = {
    "hbm_latency_cycles": "latency of a load, cycles",
    "sm_bytes_per_cycle": "loads of one multiprocessor, bytes a cycle",
    "wait_cycles": "a wait for a phase that is complete already, cycles",
    "wake_cycles": "from the end of a phase until its waiter goes on, cycles",
    "arrive_cycles": "an arrival, cycles",
}


class Bench:
    """One saved program, and answers about it.

    Raises:
      ValueError: a text that is not what `Program.save` or `Program.to_json` wrote.

    Example:
      >>> x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
      >>> bench = Bench(pallascope.trace(softmax, x).to_json())
      >>> answer = json.loads(bench.answer('{"edits": []}'))
      >>> answer["ok"], [thread["name"] for thread in answer["threads"]]
      (True, ['thread 0'])
    """

    def __init__(self, text: str):
        self.program = Program.from_json(text)
        remember(json.loads(text).get("sources", {}))

    def answer(self, question: str) -> str:
        """What the page shows after its edits.

        Args:
          question: JSON of `edits`, a list of lists, and of `strict`, whether the strict check is
            asked. With `play`, the number of a finding, the answer is that finding's figure alone.
            With `goal`, the fields of a `Goal`, the check is the goal's, and the answer says what
            is `unmet`.

        Returns:
          JSON; with `error` alone if the question has no answer.
        """
        try:
            return json.dumps(self._answer(json.loads(question)))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            said = f"no {error}" if isinstance(error, KeyError) else str(error)
            return json.dumps({"error": said})

    def _answer(self, asked: Json) -> Json:
        edits = [EDITS[name](*rest) for name, *rest in asked["edits"] if name != MACHINE]
        before = edited(self.program, edits[:-1])
        program = edited(before, edits[-1:])
        made = None if not edits or isinstance(edits[-1], Expect) else order(before, edits[-1])
        _refuse_nothing(before, edits, made)
        goal = _goal(asked)
        report = goal.check(program) if goal else check(program, strict=bool(asked.get("strict")))
        if "play" in asked:
            return {"figure": str(pallascope.play(report, asked["play"]))}
        machine = _machine(card(self.program), asked["edits"])
        setting = judged(program, machine, {}, report=report)
        return {
            "threads": _threads(program),
            "barriers": _barriers(program),
            "machine": {
                name: {"value": getattr(machine, name), "words": words}
                for name, words in PARAMETERS.items()
            },
            "ok": report.ok,
            "outcome": setting.outcome,
            "details": "" if report.findings else setting.details,
            "verdict": report.verdict,
            "findings": _findings(report),
            "notes": [*report.notes, *([UNLOWERED] if edits else [])],
            "cycles": setting.timeline.cycles if setting.timeline else None,
            "figure": _figure(setting),
            # What the last edit made of its thread, as `editing.order`.
            "order": made if asked["edits"] and asked["edits"][-1][0] != MACHINE else None,
            "unmet": goal.unmet(self.program, report, edits) if goal else None,
        }


def _goal(asked: Json) -> Goal | None:
    """A challenge's goal; None where there is no challenge."""
    if (fields := asked.get("goal")) is None:
        return None
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Goal(**fields | lists)


def _whole(number: object) -> int:
    """A whole number; ValueError for others, of which there are no arrivals."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise ValueError(f"{number} arrivals cannot be counted: give a whole number.")
    return number


def _refuse_nothing(before: Program, edits: list[Edit], made: list[int] | None) -> None:
    """Refuses a last move that leaves the order `made` as it was, and says why."""
    if not edits or not isinstance(edit := edits[-1], Move) or made != sorted(made or ()):
        return
    thread, index = edit.thread, edit.indices[-1 if edit.by > 0 else 0]
    ops, beside = before.threads[thread], index + (1 if edit.by > 0 else -1)
    words = _words(before, ops[index])
    if not 0 <= beside < len(ops):
        raise ValueError(f"`{words}` does not move: there is nothing beyond it.")
    other = _words(before, ops[beside])
    why = (
        "it stays where it is"
        if ops[beside].kind in FIXED
        else (
            "operations that read, compute or write keep their order, and so do a product and what"
            " reads its sums, since their values are in registers"
        )
    )
    raise ValueError(f"`{words}` does not pass `{other}`: {why}.")


def _machine(machine: Machine, asked: list[Any]) -> Machine:
    """A machine, as the reader changed it."""
    changes = {
        name: float(value) for kind, *rest in asked if kind == MACHINE for name, value in [rest]
    }
    for name, value in changes.items():
        if not value > 0:
            raise ValueError(
                f"{PARAMETERS.get(name, name)} is {value:g}, but nothing takes no time at all or"
                " less: give a number above 0."
            )
    name = f"{machine.name}, changed" if changes else machine.name
    return machine.changed(**changes, name=name)


def _figure(setting: Setting) -> str:
    """The timeline's figure, without the verdict; where there is too much to draw, what it says."""
    try:
        return str(player([Setting({}, setting.timeline)]))
    except ValueError as error:
        return f"<p>{html.escape(str(error))}</p>"


def _threads(program: Program) -> list[Json]:
    """The columns: each thread by the names that reports and figures have for it, and its ops."""
    lanes, found = Lanes(program), list[Json]()
    for number, ops in enumerate(program.threads):
        name, role = thread_name(program, number), lanes.names[lanes.of_thread(number)]
        found.append(
            {
                "name": name if name == role else f"{name}: {role}",
                "ops": [_op(program, op) for op in ops],
                "sites": _sites(program, number),
            }
        )
    return found


def _op(program: Program, op: Op) -> Json:
    """An op as a column has it."""
    return {
        "kind": str(op.kind),
        "text": _words(program, op),
        "line": op.line or "",
        "source": text_of(op.line) if op.line else "",
        "step": step_name(op.step) if op.step else "",
        "fixed": op.kind in FIXED,
    }


def _words(program: Program, op: Op) -> str:
    """What an op does, as a column has it: what reads need not say that it reads."""
    words = program.describe(bare(op))
    for kind, verb in (("read", "reads"), ("write", "writes")):
        words = words.replace(f"{kind} {verb} ", f"{kind} ", 1) if op.kind == kind else words
    return "compute" if words == "compute 0" else words


def _sites(program: Program, thread: int) -> list[int]:
    """For each op of a thread, the first op of its site."""
    first: dict[int, int] = {}
    for index in range(len(program.threads[thread])):
        if index not in first:
            first |= dict.fromkeys(site(program, thread, index), index)
    return [first[index] for index in range(len(program.threads[thread]))]


def _barriers(program: Program) -> list[Json]:
    return [
        {"id": b.id, "name": b.name, "count": b.count, "arrivals": b.arrivals}
        for b in program.barriers
    ]


def _findings(report: Report) -> list[Json]:
    """The findings: their words, their ops as (thread, index), and whether they can be played."""
    threads = report.program.threads
    return [
        {
            "kind": str(finding.kind),
            "cause": finding.cause,
            "remedy": finding.remedy,
            "count": finding.count,
            "ops": [[op.thread, threads[op.thread].index(op)] for op in finding.ops],
            "plays": finding.interleaving is not None,
        }
        for finding in report
    ]
