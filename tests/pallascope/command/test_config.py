"""The kernels that a project's pyproject.toml lists."""

from argparse import Namespace

import pytest

from pallascope.command.config import configured, tasks


def read(folder, text, command="check"):
    (folder / "pyproject.toml").write_text(text, "utf-8")
    return configured(folder, command)


def test_each_table_has_the_options_of_a_kernel(tmp_path):
    text = """
[[tool.pallascope.check]]
function = "kernels.py:add"
args = ["f32[8,8]", 2]
block = "all"
strict = true

[[tool.pallascope.check]]
function = "package.module:other"
block = "0,3"
call = 1
max-steps = 7
"""
    assert read(tmp_path, text) == [
        dict(function="kernels.py:add", args=["f32[8,8]", "2"], block="all", strict=True),
        dict(function="package.module:other", block=(0, 3), call=1, max_steps=7),
    ]


def test_each_command_has_its_tables(tmp_path, monkeypatch):
    text = TABLE + "function = 'a:b'\n"
    tune = "[[tool.pallascope.tune]]\nfunction = 'a:of'\nrange = ['n=1,2']\ntolerance = 1\n"
    text += tune + "measure = 0\nmachine = 'B200'\n"
    expected = dict(function="a:of", ranges=["n=1,2"], tolerance=1, measure=0, machine="B200")
    assert read(tmp_path, text, "tune") == [expected]
    assert read(tmp_path, text) == [dict(function="a:b")]
    monkeypatch.chdir(tmp_path)
    words = dict(command="tune", function=None, args=[], ranges=[], measure=None, jobs=2)
    for space in (None, "a:SPACE"):  # a space that is said takes the place of the table's
        ((found,), folder) = tasks(Namespace(**words, space=space))
        assert (found.ranges, found.space) == ([] if space else ["n=1,2"], space)
        assert (found.measure, found.jobs, found.function, folder) == (0, 2, "a:of", tmp_path)
    with pytest.raises(ValueError) as caught:
        read(tmp_path, text, "compile")
    remedy = REMEDY.replace("check", "compile")
    assert str(caught.value) == (
        f"pyproject.toml lists no kernel to compile, so nothing would be done: {remedy}"
    )
    for line, said in {
        "machine = 'A100'": "machine = 'A100', which is not one of H100, H200, B200: write it so.",
        "tolerance = '1'": "tolerance = '1', which is not a number: write it so.",
        "range = 'n=1'": "range = 'n=1', which is not a list of texts, as \"slots=2,3,4\": write",
        "block = '0'": "has the key 'block', which would be passed over: use function, args, range",
    }.items():
        with pytest.raises(ValueError) as caught:
            read(tmp_path, f"[[tool.pallascope.tune]]\n{line}", "tune")
        assert said in str(caught.value)


TABLE = "[[tool.pallascope.check]]\n"
REMEDY = (
    "name a kernel (python -m pallascope check file.py:function ...), or list those of the project"
    " as [[tool.pallascope.check]] there."
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", f"pyproject.toml lists no kernel to check, so nothing would be done: {REMEDY}"),
        ("[tool.pallascope.check]\nfunction = 'a:b'",
         f"pyproject.toml lists no kernel to check, so nothing would be done: {REMEDY}"),
        ("[tool.pallascope]\ncheck = ['a:b']", "toml lists no kernel to check, so nothing"),
        ("[tool", "so it says nothing to check: mend it."),
        (TABLE, "[[tool.pallascope.check]] number 1 in pyproject.toml has no function, so it names"
         ' no kernel: add function = "module:function" or "file.py:function".'),
        (TABLE + "function = 'a:b'\n" + TABLE + "functon = 'a:b'",
         "[[tool.pallascope.check]] number 2 in pyproject.toml has the key 'functon', which would"
         " be passed over: use function, args, block, strict, call, max-steps."),
        (TABLE + "args = 'f32[8]'",
         "[[tool.pallascope.check]] number 1 in pyproject.toml has args = 'f32[8]', which is not a"
         " list of texts, dtype[shape], or of numbers: write it so."),
        (TABLE + "call = true", "has call = True, which is not an integer: write it so."),
        (TABLE + "strict = 1", "has strict = 1, which is not true or false: write it so."),
        (TABLE + "function = 'a:b'\nblock = 'x'",
         "'x' is no block: give its index on each axis of the grid, as 0,1."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(tmp_path, text, said):
    with pytest.raises(ValueError) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)


def test_without_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        configured(tmp_path, "check")
    assert str(caught.value) == (
        f"there is no pyproject.toml in this folder, nor above, to say what to check: {REMEDY}"
    )
