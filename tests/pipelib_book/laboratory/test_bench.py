"""The laboratory's bench: its answers are those of `check`, `simulate` and the player."""

import json
import re

import pytest

import pallascope
from pallascope import B200, H200, check, simulate
from pallascope.editing import Expect, Remove, edited
from pallascope.sources import remember, texts
from pipelib_book.laboratory.bench import EDITS, PARAMETERS, Bench
from tests.pallascope import blackwell
from tests.pallascope.strategies import Writer, ring, where

COMPUTE, MEMORY = 0, 1


def ask(bench, *edits, **more):
    return json.loads(bench.answer(json.dumps({"edits": edits, **more})))


@pytest.fixture
def program():
    return ring(2, 6)


@pytest.fixture
def bench(program):
    return Bench(program.to_json())


def test_what_is_shown_is_the_program(bench, program):
    shown = ask(bench)
    names = [thread["name"] for thread in shown["threads"]]
    assert names == ["thread 0: compute thread 0", "thread 1: memory thread"]
    for thread, ops in zip(shown["threads"], program.threads, strict=True):
        assert [op["kind"] for op in thread["ops"]] == [str(op.kind) for op in ops]
        assert [op["line"] for op in thread["ops"]] == [op.line for op in ops]
    assert [b["arrivals"] for b in shown["barriers"]] == [b.arrivals for b in program.barriers]
    assert shown["ok"] and shown["findings"] == []
    assert not any("Lowering" in note for note in shown["notes"])
    assert shown["verdict"] == check(program).verdict
    assert shown["cycles"] == simulate(program, H200).cycles
    assert shown["figure"].startswith("<figure")


def test_an_edit_is_answered_as_the_package_would(bench, program):
    wait, *_ = where(program, COMPUTE, "wait")
    shown = ask(bench, ["remove", COMPUTE, [wait]], ["expect", 1, 1])
    changed = edited(program, [Remove(COMPUTE, (wait,)), Expect(1, 1)])
    report = check(changed)
    assert not shown["ok"] and shown["verdict"] == report.verdict
    assert [finding["cause"] for finding in shown["findings"]] == [f.cause for f in report]
    assert len(shown["threads"][COMPUTE]["ops"]) == len(changed.threads[COMPUTE])
    assert shown["notes"][-1].startswith("Lowering is not checked here: ")
    for told, finding in zip(shown["findings"], report, strict=True):
        there = [changed.threads[thread][index] for thread, index in told["ops"]]
        assert there == [*finding.ops]


def test_the_bench_keeps_nothing_of_its_reader(bench):
    before = ask(bench)
    assert ask(bench, ["remove", COMPUTE, [0]]) != before
    assert ask(bench) == before


def test_a_site_is_named_by_its_first_op():
    writer = Writer(1)
    x = writer.buffer("x")
    for _ in range(3):
        writer.write(x, line="k.py:1").read(x, line="k.py:2")
    (thread,) = ask(Bench(writer.program().to_json()))["threads"]
    assert thread["sites"] == [0, 1, 0, 1, 0, 1]


def test_a_finding_is_played(bench, program):
    edits = [["remove", COMPUTE, [0]]]
    (first, *_) = ask(bench, *edits)["findings"]
    assert first["plays"]
    figure = ask(bench, *edits, play=0)["figure"]
    assert figure == str(pallascope.play(check(edited(program, [Remove(COMPUTE, (0,))])), 0))


def test_the_machine_is_the_reader_s(bench, program):
    slow = ask(bench, ["machine", "wake_cycles", 9000])
    machine = H200.changed(wake_cycles=9000.0)
    assert slow["cycles"] == simulate(program, machine).cycles > ask(bench)["cycles"]
    assert slow["machine"]["wake_cycles"]["value"] == 9000 and {*slow["machine"]} == {*PARAMETERS}
    assert "NVIDIA H200, changed" in slow["figure"]
    again = ask(bench, ["machine", "wake_cycles", 9000], ["machine", "wake_cycles", 5])
    assert again["machine"]["wake_cycles"]["value"] == 5


def test_a_program_for_blackwell_is_simulated_on_a_b200():
    kernel, *args = blackwell.KERNELS["a ring"]()
    program = pallascope.trace(kernel, *args)
    bench = Bench(program.to_json())
    assert ask(bench)["cycles"] == simulate(program, B200).cycles
    goal = {"faster": 100.0, "strict": True}
    (said,) = ask(bench, ["expect", 0, 2], goal=goal)["unmet"]
    assert said == "It is 1.00 times as fast, but should be 100 times as fast."


def test_the_strict_check_is_asked_for(bench, program):
    fences = where(program, COMPUTE, "fence")
    edit = ["remove", COMPUTE, fences]
    assert ask(bench, edit)["ok"]
    strict = ask(bench, edit, strict=True)
    assert {finding["kind"] for finding in strict["findings"]} == {"missing-commit"}


def test_the_last_edit_s_order_is_told(bench, program):
    count = len(program.threads[COMPUTE])
    assert ask(bench)["order"] is None and ask(bench, ["expect", 0, 1])["order"] is None
    assert ask(bench, ["remove", COMPUTE, [1]])["order"] == [0, *range(2, count)]
    assert ask(bench, ["repeat", COMPUTE, [0]])["order"] == [0, *range(count)]
    moved = ask(bench, ["expect", 0, 1], ["move", COMPUTE, [2], 1])["order"]
    assert moved == [0, 1, 3, 2, *range(4, count)]
    assert ask(bench, ["remove", COMPUTE, [1]], ["machine", "wait_cycles", 5])["order"] is None


def test_a_move_that_moves_nothing_says_why():
    writer = Writer(1)
    x = writer.buffer("x", scope_id=0)
    writer.op("scope_begin", scope_id=0).write(x).read(x).fence()
    bench = Bench(writer.program().to_json())
    for index, by, why in (
        (1, -1, "`write x[0:2]` does not pass `scope_begin 0`: it stays where it is."),
        (1, 1, "`write x[0:2]` does not pass `read x[0:2]`: operations that read, compute or"),
        (3, 1, "`fence` does not move: there is nothing beyond it."),
    ):
        assert ask(bench, ["move", 0, [index], by])["error"].startswith(why)


def test_a_goal_is_judged(bench):
    goal = {"found": ["deadlock"], "by": ["expect"]}
    assert ask(bench)["unmet"] is None
    assert ask(bench, goal=goal)["unmet"] == ["The check finds no deadlock."]
    assert ask(bench, ["expect", 1, 2], goal=goal)["unmet"] == []


def test_moves_of_one_operation_count_as_one_edit(bench):
    assert ask(bench)["made"] == 0
    later = ["move", COMPUTE, [2], 1]
    assert ask(bench, later)["made"] == 1
    assert ask(bench, later, ["move", COMPUTE, [3], -1])["made"] == 1
    assert ask(bench, ["expect", 0, 1], later)["made"] == 2


def test_a_scope_that_ends_has_begun():
    writer = Writer(1)
    writer.op("scope_end", scope_id=0)
    with pytest.raises(ValueError, match="op 0 of thread 0 ends scope 0, which never began"):
        Bench(writer.program().to_json())


def test_a_goal_is_judged_on_the_machine_as_it_is(bench):
    goal, slow = {"faster": 1.5}, ["machine", "wake_cycles", 9000]
    unmet = ask(bench, goal=goal)["unmet"]
    assert unmet == ["It is 1.00 times as fast, but should be 1.5 times as fast."]
    assert ask(bench, slow, goal=goal)["unmet"] == unmet


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"edits": [["remove", 9, [0]]]}, "ring has no thread 9, since it has 2 threads"),
        ({"edits": [["burn", 0, [0]]]}, '["burn", 0, [0]] is no edit.'),
        ({"edits": [["move", 0, [3], 0.5]]}, '["move", 0, [3], 0.5] is no edit.'),
        ({"edits": [["remove", 0, "ab"]]}, '["remove", 0, "ab"] is no edit.'),
        ({"edits": [["remove", 0, [0], 1]]}, '["remove", 0, [0], 1] is no edit.'),
        ({"edits": [[]]}, "[] is no edit."),
        ({"edits": [5]}, "5 is no edit."),
        ({"edits": [["expect", 0, 1]] * 501}, "These are 501 edits, and 500 are taken at most."),
        ({"edits": {}}, "No list of edits is given"),
        (
            {"edits": [["machine", "wait_cycles", 0]]},
            "a wait for a phase that is complete already, cycles is 0",
        ),
        ({"edits": [["machine", "speed", 2]]}, '["machine", "speed", 2] is no edit.'),
        ({"edits": [["machine", "wait_cycles", "x"]]}, '["machine", "wait_cycles", "x"] is no'),
        ({"edits": [["expect", 0, 1.5]]}, "1.5 arrivals cannot be counted: give a whole number"),
        ({"edits": [], "play": 3}, "Finding 3 is asked for, but ring has 0 findings"),
        ({}, "No list of edits is given"),
        ({"edits": [], "goal": 5}, "There is no answer to this: AttributeError"),
    ],
)
def test_a_question_without_an_answer_is_told_so(bench, asked, text):
    answer = json.loads(bench.answer(json.dumps(asked)))
    assert [*answer] == ["error"] and answer["error"].startswith(text)
    assert ask(bench)["ok"]


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="not JSON"):
        Bench("kernel")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda saved: saved.pop("barriers"), "op 0 of thread 0, wait, names barrier 0 of 0"),
        (lambda saved: saved.pop("buffers"), "names buffer"),
        (lambda saved: saved.update(threads=[]), "it has 0 threads in 1 blocks"),
        (lambda saved: saved.update(blocks=0), "it has 2 threads in 0 blocks"),
        (lambda saved: saved.update(blocks=4), "it has 2 threads in 4 blocks"),
        (lambda saved: saved.update(name=[]), "`name` of the program is ()"),
        (lambda saved: saved.update(smem_bytes=None), "`smem_bytes` of the program is None"),
        (lambda saved: saved["barriers"][0].update(id=1), "number 0 of its barriers has the id 1"),
        (lambda saved: saved["barriers"][0].update(count=10**9), "is an array of 1000000000"),
        (lambda saved: saved["barriers"][0].update(arrivals=0), "barriers of 0 arrivals"),
        (lambda saved: saved["threads"][0][0].update(barrier=77), "names barrier 77 of 2"),
        (lambda saved: saved["threads"][0][0].update(index=2), "names number 2 of"),
        (lambda saved: saved["threads"][0][0].update(thread=1), "says that it is of thread 1"),
        (lambda saved: saved["threads"][0][0].update(members=[5]), "meets thread 5 of 2"),
        (lambda saved: saved["threads"][0][0].update(step="x"), "`step` of number 0 of number 0"),
        (lambda saved: saved["threads"][0][0].pop("barrier"), "cannot be checked and simulated"),
        (lambda saved: read_of(saved).update(buffer=9), "names buffer 9 of 3"),
        (lambda saved: read_of(saved).update(box=[]), "takes 0 axes of x_smem, which has 1"),
    ],
)
def test_a_program_that_was_changed_is_refused(program, change, said):
    """Before anything is shown of it."""
    saved = json.loads(program.to_json())
    change(saved)
    with pytest.raises(ValueError, match=re.escape(said)):
        Bench(json.dumps(saved))


def read_of(saved):
    """The region that the first read is of."""
    return next(op for op in saved["threads"][COMPUTE] if op["kind"] == "read")["reads"][0]


def test_every_edit_has_a_name():
    made = {
        type(make(0, 1) if name == "expect" else make(0, [0], *[1] * (name == "move"))).__name__
        for name, make in EDITS.items()
    }
    assert made == {"Remove", "Repeat", "Move", "Expect"}


def test_the_source_is_saved_and_remembered(tmp_path):
    """A program is saved where its files are, and loaded where they are not."""
    source = tmp_path / "kernel_that_goes.py"
    source.write_text("wait(barrier)\nread(x)\n", "utf-8")
    writer = Writer(1)
    writer.write(writer.buffer("x"), line=f"{source}:2")
    program = writer.program()
    program.save(tmp_path / "k.json")
    saved = json.loads((tmp_path / "k.json").read_text("utf-8"))
    assert saved["sources"] == {f"{source}:2": "read(x)"}
    assert type(program).load(tmp_path / "k.json") == program

    there = f"{tmp_path}/never_here.py:2"
    moved = Writer(1)
    moved.write(moved.buffer("x"), line=there)
    assert texts([there]) == {}
    remember({there: "read(x)"})
    assert texts([there]) == {there: "read(x)"}
    remember({f"{tmp_path}/never_here.py:5": "of another program"})
    assert texts([there]) == {there: "read(x)"}
    remember({f"{source}:1": "changed"})  # a file that is there keeps its own
    assert texts([f"{source}:2"]) == {f"{source}:2": "read(x)"}
