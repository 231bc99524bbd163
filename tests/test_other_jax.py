"""The page on other GPUs and other versions of JAX: its table of names is true of the JAX here."""

import inspect
import pathlib
import re

import jax
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

pytestmark = pytest.mark.both_jax

PAGE = (pathlib.Path(__file__).parents[1] / "book/other_gpus.md").read_text("utf-8")
TABLE = PAGE.rpartition("## Another version of JAX")[2]


def has(name):
    """Whether `plgpu` has a name, and whether that takes the arguments in its brackets."""
    found = re.fullmatch(r"plgpu\.(\w+)(?:\((.*)\))?", name)
    call, arguments = getattr(plgpu, found[1], None), re.findall(r"(\w+)=", found[2] or "")
    return call is not None and {*arguments} <= {*inspect.signature(call).parameters}


def test_the_table_of_names_is_true_of_this_jax():
    head, *rows = re.findall(r"^\| (.*) \|$", TABLE, re.MULTILINE)
    column = head.split(" | ").index(jax.__version__)
    said = {cells[0].strip("`"): cells[column] for cells in (row.split(" | ") for row in rows[1:])}
    assert len(said) > 5
    assert said == {name: "yes" if has(name) else "no" for name in said}
