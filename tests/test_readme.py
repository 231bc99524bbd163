"""The README's kernel does what it says, here and on a GPU."""

import pathlib
import re

import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

README = pathlib.Path(__file__).parents[1] / "README.md"


def run():
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = {}
    exec(program, names)
    np.testing.assert_array_equal(names["y"], np.asarray(names["x"]) + 1)


def test_the_kernel_in_the_interpreter():
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
        run()


@pytest.mark.gpu
def test_the_kernel_on_the_gpu():
    run()
