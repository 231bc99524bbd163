"""`assembled`: a kernel's machine code, and what `ptxas` reports of it.

`Assembled` is read from the text that `ptxas -v` prints. For one kernel, that is

    ptxas info    : (C7519) warpgroup.arrive is injected in around line 631 by compiler ...
    ptxas warning : Registers are spilled to local memory in function 'attention_dkv', ...
    ptxas info    : Function properties for attention_dkv_mosaic_gpu_kernel
        136 bytes stack frame, 224 bytes spill stores, 168 bytes spill loads
    ptxas info    : Used 255 registers, used 16 barriers, 136 bytes cumulative stack size

Source: ptxas of CUDA 12.9, 13.0 and 13.3.
"""

import pathlib
import re
import subprocess
import tempfile
from dataclasses import dataclass

from pallascope.compiling import tools

_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
# A remark has a number, as C7513, or is a warning.
_REMARK = re.compile(r"ptxas (?:info\s*:\s*(?=\(C\d+\))|warning\s*:\s*)(.*)")


@dataclass(frozen=True, slots=True)
class Assembled:
    """What ptxas reports of one kernel; `Compiled` says what each field is."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    warnings: tuple[str, ...]


def assembled(ptx: str, name: str) -> tuple[bytes, Assembled, str]:
    """The machine code of a kernel's PTX, what ptxas reports, and the version of ptxas.

    Args:
      ptx: the text of one kernel.
      name: the kernel's, for errors.

    Raises:
      FileNotFoundError: ptxas is not found.
      ValueError: ptxas does not take the PTX, in its own words.
    """
    ptxas = str(tools.program("ptxas"))
    with tempfile.TemporaryDirectory() as folder:
        source, code = pathlib.Path(folder, "kernel.ptx"), pathlib.Path(folder, "kernel.cubin")
        source.write_text(ptx, "utf-8")
        # The options that JAX gives.
        options = ["-v", "--gpu-name", _gpu(ptx), "-lineinfo", "-o", str(code), str(source)]
        done = subprocess.run([ptxas, *options], capture_output=True, text=True)
        said = done.stdout + done.stderr
        if done.returncode != 0:
            raise ValueError(
                f"ptxas makes no machine code of {name}, so it cannot run: {said.strip()}"
            )
        return code.read_bytes(), report(said), _version(ptxas)


def report(said: str) -> Assembled:
    """What the text of `ptxas -v` says.

    Raises:
      ValueError: it has no numbers of registers and spills, so this ptxas words them in another
        way.
    """
    frames, registers = _FRAME.findall(said), _REGISTERS.findall(said)
    if not frames or not registers:
        raise ValueError(
            "ptxas printed no number of registers or of spilled bytes where others print them, so"
            f" nothing is known of the kernel: use ptxas of CUDA 12.9 to 13.3. It printed: {said}"
        )
    stack, stores, loads = (sum(map(int, column)) for column in zip(*frames))
    return Assembled(max(map(int, registers)), stack, stores, loads, tuple(_REMARK.findall(said)))


def _gpu(ptx: str) -> str:
    """The GPU that PTX is for, as it says itself; Hopper if it is no PTX."""
    found = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    return found[1] if found else "sm_90a"


def _version(ptxas: str) -> str:
    """The version as in 13.0.88."""
    said = subprocess.run([ptxas, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\bV(\d[\d.]*)", said)
    return found[1] if found else "unknown"
