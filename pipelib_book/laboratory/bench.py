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
import math
from collections.abc import Callable
from typing import Any, cast

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
from pipelib_book.laboratory.goals import Goal, card, made_of
from pipelib_book.laboratory.whole import expect_whole

Json = dict[str, Any]

#: The edits by the names that a page calls them, each with what takes the rest of its list.
EDITS: dict[str, Callable[..., Edit]] = {
    "remove": lambda thread, indices: Remove(thread, tuple(indices)),
    "repeat": lambda thread, indices: Repeat(thread, tuple(indices)),
    "move": lambda thread, indices, by: Move(thread, tuple(indices), by),
    "expect": Expect,
}
#: The most edits of a question: each is made anew for each answer.
MOST = 500
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
#: Whether what stands behind an edit's name, filled up with None, are its parameters.
FORMS: dict[object, Callable[[object, object, object], bool]] = {
    "remove": lambda thread, indices, more: _are_of_thread(thread, indices, more),
    "repeat": lambda thread, indices, more: _are_of_thread(thread, indices, more),
    "move": lambda thread, indices, by: _are_of_thread(thread, indices, None) and _is_whole(by),
    "expect": lambda barrier, arrivals, _: _is_whole(barrier) and _is_whole(arrivals),
    MACHINE: lambda name, value, _: name in PARAMETERS and _is_number(value),
}


class Bench:
    """One saved program, and answers about it.

    Raises:
      ValueError: a text that is not what `Program.save` or `Program.to_json` wrote, or a program
        that cannot be shown.

    Example:
      >>> x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
      >>> bench = Bench(pallascope.trace(softmax, x).to_json())
      >>> answer = json.loads(bench.answer('{"edits": []}'))
      >>> answer["ok"], [thread["name"] for thread in answer["threads"]]
      (True, ['thread 0'])
    """

    def __init__(self, text: str):
        self.program = Program.from_json(text)
        expect_whole(self.program)
        if fault := json.loads(self.answer('{"edits": []}')).get("error"):
            raise ValueError(
                f"{self.program.name} cannot be checked and simulated, so it is not shown: {fault}"
            )
        remember(json.loads(text).get("sources", {}))

    def answer(self, question: str) -> str:
        """What the page shows after its edits.

        Args:
          question: JSON of `edits`, a list of lists, and of `strict`, whether the strict check is
            asked. With `play`, the number of a finding, the answer is that finding's figure alone.
            With `goal`, the fields of a `Goal`, the check is the goal's, and the answer says what
            is `unmet`, and as how many edits they count (`made`).

        Returns:
          JSON; with `error` alone if the question has no answer.
        """
        try:
            return json.dumps(self._answer(json.loads(question)))
        except ValueError as error:
            return json.dumps({"error": str(error)})
        except Exception as error:  # a program that no kernel gives, which nothing else found out
            words = str(error).rstrip(".")
            said = f"There is no answer to this: {type(error).__name__}: {words}."
            return json.dumps({"error": said})

    def _answer(self, asked: Json) -> Json:
        _expect_question(asked)
        edits = [EDITS[name](*rest) for name, *rest in asked["edits"] if name != MACHINE]
        before = edited(self.program, edits[:-1])
        program = edited(before, edits[-1:])
        made = None if not edits or isinstance(edits[-1], Expect) else order(before, edits[-1])
        _refuse_nothing(before, edits, made)
        goal = _goal(asked)
        report = goal.check(program) if goal else check(program, strict=bool(asked.get("strict")))
        if "play" in asked:
            return {"figure": _film(report, asked["play"])}
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
            "made": made_of(self.program, edits),
        }


def _film(report: Report, number: object) -> str:
    """A finding's figure; ValueError for a number that there is not."""
    try:
        return str(pallascope.play(report, cast(int, number)))
    except (IndexError, TypeError) as error:
        raise ValueError(str(error)) from error


def _goal(asked: Json) -> Goal | None:
    """A challenge's goal; None where there is no challenge."""
    if (fields := asked.get("goal")) is None:
        return None
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Goal(**fields | lists)


def _expect_question(asked: object) -> None:
    """Expects that a question has the form of one; a link may hold anything.

    Raises:
      ValueError: it has another.
    """
    edits = asked.get("edits") if isinstance(asked, dict) else None
    if not isinstance(edits, list):
        raise ValueError("No list of edits is given, so there is nothing to answer.")
    if len(edits) > MOST:
        raise ValueError(f"These are {len(edits):,} edits, and {MOST} are taken at most.")
    for edit in edits:
        name, *rest = edit if isinstance(edit, list) and edit else [None]
        if name == "expect" and len(rest) == 2 and not _is_whole(rest[1]):
            raise ValueError(f"{rest[1]} arrivals cannot be counted: give a whole number.")
        if name not in FORMS or not FORMS[name](*rest[:3], *[None] * (3 - len(rest))):
            raise ValueError(f"{json.dumps(edit)[:80]} is no edit.")


def _is_whole(number: object) -> bool:
    return type(number) is int


def _is_number(number: object) -> bool:
    return type(number) in (int, float) and math.isfinite(cast(float, number))


def _are_of_thread(thread: object, indices: object, more: object) -> bool:
    whole = isinstance(indices, list) and all(map(_is_whole, indices))
    return whole and _is_whole(thread) and more is None


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
