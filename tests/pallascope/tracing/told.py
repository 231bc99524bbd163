"""What tests say of a trace: its ops in words, and the error where there is none."""

from dataclasses import replace

import pytest

import pallascope
from tests.pallascope import kernels


def words(program, thread=0):
    """The ops of a thread on one line each, without source lines and scopes' ends."""
    lines = (program.describe(replace(op, line=None)) for op in program.threads[thread])
    return [line for line in lines if not line.startswith("scope_")]


def refused(kernel, *args, **options):
    """The error of tracing this kernel."""
    with pytest.raises((ValueError, NotImplementedError)) as error:
        pallascope.trace(kernels.of(kernel, **options), *(args or (kernels.like(256, 64),)))
    return str(error.value)
