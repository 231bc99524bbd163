"""Program and Op: plain values, saved and read again. No JAX here."""

import pytest

from pallascope.program import Barrier, Buffer, Op, Program, Region

HALF = Region(0, ((64, 128),))
SLOT = Region(1, ((1, 2), (0, 64)))
PROGRAM = Program(
    "kernel",
    (
        (
            Op("load", 0, (HALF,), (SLOT,), 0, 1, 3, (2, 1), "k.py:7", "s", 128),
            Op("wait_store", 0, pending=0, read_only=True),
        ),
        (
            Op("wait", 1, barrier=0, index=1, phase=3),
            Op("wgmma", 1, (SLOT,), flops=1024),
            Op("compute", 1, flops=512, transcendental=0, exchanges=16),
        ),
        (),
    ),
    (
        Buffer(0, "x", "gmem", (128,), "float16", 256),
        Buffer(1, "x_smem", "smem", (2, 64), "float16", 256, 2, None, 0),
    ),
    (Barrier(0, "full", 1, 2, ("cluster",), None, 0),),
    (2, 3),
    (2,),
    (0, 1, 0),
    1040,
    (40, 232, None),
    (1,),
)


def test_json_gives_the_same_program_back():
    again = Program.from_json(PROGRAM.to_json())
    assert again == PROGRAM
    assert isinstance(again.threads[0][0].writes[0], Region)
    assert isinstance(again.threads[0][0], Op)
    assert isinstance(again.buffers[1], Buffer)
    assert isinstance(again.barriers[0], Barrier)
    assert hash(again) == hash(PROGRAM)


def test_a_file_gives_the_same_program_back(tmp_path):
    PROGRAM.save(tmp_path / "program.json")
    assert Program.load(tmp_path / "program.json") == PROGRAM


def test_another_format_is_refused():
    text = PROGRAM.to_json().replace('"format": 7', '"format": 8')
    with pytest.raises(ValueError, match="has format 8, but a Program is read from format 7"):
        Program.from_json(text)


def test_values_are_frozen():
    for value, field in ((PROGRAM, "name"), (PROGRAM.threads[0][0], "kind"), (SLOT, "box")):
        with pytest.raises(AttributeError):
            setattr(value, field, None)


def test_str_reads_well():
    assert str(PROGRAM).splitlines() == [
        "kernel: block (0, 1, 0) of grid (2, 3) x cluster (2,), 3 threads, 5 ops, 1040 bytes of"
        " SMEM, TRUNCATED: the threads' ends are missing",
        "thread 0: 1 load, 1 wait_store",
        "  load reads x[64:128] writes x_smem[1, 0:64] on full[1] #3 step 1, 2 in s  [k.py:7]",
        "  wait_store 0 (read_only)",
        "thread 1: 1 wait, 1 wgmma, 1 compute",
        "  wait on full[1] #3",
        "  wgmma reads x_smem[1, 0:64]",
        "  compute 0",
        "thread 2: nothing",
    ]
