"""A saved program needs neither JAX nor NumPy nor matplotlib to be checked, simulated, drawn."""

import subprocess
import sys

import pytest

import pallascope
from pallascope import H200, Program, check, simulate
from tests.pallascope.strategies import ring

WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib", "numpy", "matplotlib"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())

from pallascope import H200, Program, check, player, simulate

program = Program.from_json(sys.stdin.read())
timeline = simulate(program, H200)
print(check(program, strict=True), timeline.cycles, player(timeline), sep="\\n")
"""


@pytest.mark.parametrize("arrivals", [None, 1])  # without a fault, and with one
def test_a_saved_program_is_checked_simulated_and_drawn_without_jax_numpy_and_matplotlib(arrivals):
    saved = ring(2, 8, compute=2, arrivals=arrivals).to_json()
    program = Program.from_json(saved)
    timeline = simulate(program, H200)
    here = check(program, strict=True), timeline.cycles, pallascope.player(timeline)
    command = [sys.executable, "-c", WITHOUT]
    there = subprocess.run(command, input=saved, text=True, capture_output=True)
    assert (there.stderr, there.stdout) == ("", "\n".join(map(str, here)) + "\n")
