"""Every public name has an example in what is said of it, and the example runs.

The names that examples take for granted are those that the page of the API reference imports. `...`
stands for what may differ, and line breaks do not count.
"""

import doctest
import importlib.util
import pathlib
import re
import sys

import pytest

from pallascope.drawing.player import Player
from pipelib_book import notebook
from tools.public_names import Public, public_names, text_of

PAGE = pathlib.Path(__file__).parents[1] / "book" / "api.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NAMES = public_names()
# Besides, a type that nobody needs to import, but everybody gets in hand.
NAMES.append(Public("pallascope.drawing.player.Player", Player, text_of("Player", Player)))


@pytest.fixture
def on_a_fresh_machine(monkeypatch, tmp_path):
    """Before the first `book.setup()`, in an empty folder; JAX stays as it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notebook, "_device", None)
    monkeypatch.setattr(notebook, "_interpret_on_cpu", lambda: None)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)  # as where examples are typed


@pytest.fixture(scope="module")
def granted():
    """What the page says that the examples take for granted."""
    (imports,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(imports, names := {})
    return names


def example(text, names, name):
    return doctest.DocTestParser().get_doctest(text, dict(names), name, None, 0)


def failures(test):
    """What a doctest's runner says; nothing if all is as promised."""
    said = []
    doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=said.append)
    return "".join(said)


def example_of(public):
    """A name to be tried; what compiles belongs to the tests of the compiler."""
    of_compiler = public.value.__module__.startswith("pallascope.compiling")
    return pytest.param(public, id=public.name, marks=[pytest.mark.compiler] * of_compiler)


@pytest.mark.parametrize("public", [*map(example_of, NAMES)])
def test_the_example_does_what_it_says(public, granted, on_a_fresh_machine):
    test = example(public.text, granted, public.name)
    assert test.examples, f"{public.name} has no example."
    if public.name == "pallascope.explore" and not importlib.util.find_spec("ipywidgets"):
        pytest.skip("ipywidgets is not installed with this JAX")
    if said := failures(test):
        pytest.fail(said, pytrace=False)


def test_the_names_are_all_there_and_once():
    names = [public.name for public in NAMES]
    some = {"pallascope.trace", "pallascope.H100", "pipelib.kernels.matmul", "pipelib_book.setup"}
    some |= {"pallascope.Program", "pallascope.bench.timing.measure"}
    assert some <= {*names} and len(names) == len({*names})


def test_an_example_that_is_wrong_is_found(granted):
    assert "Expected:" in failures(example(">>> jnp.ones(2).shape\n(3,)\n", granted, "made up"))
    assert "NameError" in failures(example(">>> pipe\n1\n", granted, "made up"))
    assert failures(example(">>> jnp.ones(2).shape\n(2,)\n", granted, "made up")) == ""


def test_what_is_said_of_a_constant_is_the_comment_above_it():
    said = {public.name: public.text for public in NAMES}
    assert said["pallascope.H200"].startswith("The GPU that the book's numbers")
    assert said["pallascope.H100"].startswith("An H100.")
