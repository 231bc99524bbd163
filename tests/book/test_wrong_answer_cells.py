"""`tools.wrong_answers`: what a cell says, applied to a solution, and each of its errors."""

import pytest

from tools.wrong_answers import Change, parse

SOLUTION = """\
def kernel(x):
    wait(0)
    for k in range(4):
        wait(1)  # the last but one
        for barrier in (a, b):
            arrive(barrier)
    wait(0)
"""


def applied(*lines):
    return parse("\n".join(["It is wrong.", *lines, "says: race"])).applied(SOLUTION)


def test_a_cell_has_words_changes_and_what_the_grade_says():
    wrong = parse(
        "It waits for one\ntoo many - at once.\n- wait(1)\n+ wait(0)\n- for b in c:\n"
        "-     arrive(b)\nsays: no product: none\n"
    )
    assert wrong.why == "It waits for one too many - at once."
    assert wrong.changes == (
        Change(("wait(1)",), ("wait(0)",)),
        Change(("for b in c:", "    arrive(b)"), ()),
    )
    assert wrong.says == "no product: none"


def test_a_new_line_is_indented_as_the_old_one():
    assert applied("- wait(1)", "+ wait(0)") == SOLUTION.rstrip().replace(
        "wait(1)  # the last but one", "wait(0)"
    )


def test_a_block_keeps_its_own_indentation():
    got = applied("- wait(1)", "+ if k:", "+     wait(1)", "- arrive(barrier)", "+ pass")
    assert "        if k:\n            wait(1)\n        for" in got
    assert got.endswith("            pass\n    wait(0)")


def test_several_old_lines_are_one_place():
    got = applied("- for barrier in (a, b):", "-     arrive(barrier)", "+ wait(2)")
    assert got.endswith("wait(1)  # the last but one\n        wait(2)\n    wait(0)")


def test_lines_can_be_taken_out_and_changes_come_in_any_order():
    got = applied(
        "- arrive(barrier)", "+ arrive(a)", "- def kernel(x):", "-     wait(0)", "+ def f(x):"
    )
    assert got.startswith("def f(x):\n    for k") and "arrive(a)" in got


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["- wait(2)", "+ wait(1)"], r"'wait\(2\)' is not in the solution: copy its lines"),
        (["- wait(1)", "- wait(0)"], r"not in the solution before 'wait\(0\)': copy"),
        (["- arrive(barrier)", "- wait(0)"], r"before 'wait\(0\)': copy"),  # as far as in a block
        (["- for barrier in (a, b):", "- arrive(barrier)"], r"before 'arrive\(barrier\)': copy"),
        (["- wait(0)"], r"'wait\(0\)' is 2 times in the solution, so it is not clear which one"),
        (["- wait(1)", "+ a", "- wait(1)"], r"'wait\(1\)' stands in two changes, so it is not"),
        (["+ wait(1)"], "takes the place of no old line, so it means nothing there: write what"),
        (["- wait(1)", "wait(0)"], r"'wait\(0\)' is neither old nor new, so it means nothing"),
        (["says: deadlock"], "'says: deadlock' is not the last line"),
    ],
)
def test_changes_that_do_not_fit_are_errors(lines, said):
    with pytest.raises(ValueError, match=said):
        applied(*lines)


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("- a\n+ b\nsays: race", "words on what is wrong"),
        ("It is wrong.\nsays: race", "change of the solution"),
        ("It is wrong.\n- a\n+ b", "line `says: `"),
        ("It is wrong.\n- a\n+ b\nsays:", "line `says: `"),
        ("It is wrong.", "change of the solution"),
        ("", "words on what is wrong"),
    ],
)
def test_a_cell_without_a_part_is_an_error(text, lacks):
    with pytest.raises(ValueError, match=f"has no {lacks}: write what is wrong in words, then"):
        parse(text)
