"""Names of functions as errors print them, and what they stand for."""

import functools
import re

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

import pipelib.kernels

#: What a dotted name may begin with, as in the examples of docstrings.
ROOTS = dict(pipelib=pipelib, jax=jax, jnp=jnp, plgpu=plgpu)
_DOTTED = re.compile(rf"(?<![\w.])(?:{'|'.join(ROOTS)})(?:\.[A-Za-z_]\w*)+")


def dotted(text):
    """The dotted names in a text."""
    return _DOTTED.findall(text)


def meaning(name):
    """What a dotted name stands for, attribute by attribute, as a reader would type it."""
    root, *rest = name.split(".")
    return functools.reduce(getattr, rest, ROOTS[root])
