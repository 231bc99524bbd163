"""The kernels of the chapter "Across GPUs" give the right results, in the interpreter."""

import os
import subprocess
import sys

import pytest

from tests.kernels.collective.on_cpus import environment
from tools.execution import ROOT

DEVICES = 4


@pytest.mark.slow
def test_the_chapter_s_kernels_on_four_cpu_devices():
    command = [sys.executable, "-m", "tests.book.across_on_cpus"]
    options = dict(cwd=ROOT, env=os.environ | environment(DEVICES), timeout=300)
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.split() == ["exchange", "ring", "in_twos", "add_up", "mended"]
