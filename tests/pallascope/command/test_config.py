"""The kernels that a project's pyproject.toml lists."""

import pytest

from pallascope.command.config import configured
from pallascope.command.targets import Target


def read(folder, text):
    (folder / "pyproject.toml").write_text(text, "utf-8")
    return configured(folder)


def test_each_table_is_a_target(tmp_path):
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
        Target("kernels.py:add", ("f32[8,8]", "2"), "all", strict=True),
        Target("package.module:other", (), (0, 3), call=1, max_steps=7),
    ]


TABLE = "[[tool.pallascope.check]]\n"
REMEDY = (
    "name a kernel (python -m pallascope check file.py:function ...), or list those of the project"
    " as [[tool.pallascope.check]] there."
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", f"pyproject.toml lists no kernel, so nothing would be checked: {REMEDY}"),
        ("[tool.pallascope.check]\nfunction = 'a:b'",
         f"pyproject.toml lists no kernel, so nothing would be checked: {REMEDY}"),
        ("[tool", "so nothing is checked: mend it."),
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
        configured(tmp_path)
    assert str(caught.value) == (
        f"there is no pyproject.toml in this folder, nor above, to say what to check: {REMEDY}"
    )
