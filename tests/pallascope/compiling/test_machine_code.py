"""Machine code as nvdisasm prints it: instructions by class, and loops."""

import pytest

from pallascope.compiling import machine_code
from pallascope.compiling.machine_code import CLASSES, counted, reached

# Lines of a kernel of pipelib's, most of them left out: a loop of two products, whose wait has its
# further tries behind the end.
LOOP = """
	.target	sm_90a

.text.kernel_mosaic_gpu_kernel:
	//## File "kernels.py", line 60
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R6, SR_TID.X ;
.L_x_12:
	//## File "ring.py", line 159
        /*0020*/                   ULEA UR50, UR51, UR4, 0x3 ;
.L_x_73:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR12], R4 ;
        /*0040*/              @!P1 BRA `(.L_x_10) ;
.L_x_18:
	//## File "forms.py", line 219
        /*0050*/                   WARPGROUP.ARRIVE ;
        /*0060*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR56], RZ, !UPT ;
        /*0070*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR16], R24, gsb0 ;
        /*0080*/               @P1 BRA `(.L_x_12) ;
        /*0090*/                   EXIT ;
.L_x_10:
	//## File "ring.py", line 159
        /*00a0*/                   IMAD.U32 R9, RZ, RZ, UR6 ;
.L_x_77:
        /*00b0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R9+URZ], R4 ;
        /*00c0*/              @!P1 NANOSLEEP.SYNCS 0x989680 ;
        /*00d0*/              @!P1 SYNCS.PHASECHK.TRANS64 P1, [R9+URZ], R4 ;
        /*00e0*/              @!P1 BRA `(.L_x_10) ;
        /*00f0*/                   BRA `(.L_x_18) ;
.L_x_20:
        /*0100*/                   BRA `(.L_x_20);
        /*0110*/                   NOP;
        /*0120*/                   NOP;
.L_x_87:
"""


def told(counts):
    return {name: count for name, count in counts.items() if count}


def test_instructions_that_can_be_reached_are_counted():
    instructions, _ = reached(LOOP)
    assert told(counted(instructions)) == {
        "HGMMA": 2,
        "SYNCS": 3,
        "uniform": 1,
        "branch": 5,
        "other": 5,
        "all": 16,
    }
    assert [each.at for each in instructions] == [*range(0, 0x100, 0x10)]


def test_a_loop_is_one_iteration_without_further_tries_of_a_wait():
    _, (loop,) = reached(LOOP)
    assert loop.start == 0x20
    assert [each.at for each in loop.instructions] == [*range(0x20, 0x90, 0x10)]
    assert loop.instructions[-1].line == "forms.py:219"


# How a loop may look: what is told of it are the addresses of one iteration.
def code(text):
    """Lines "label:" or "guard opcode rest", numbered."""
    lines, at = [], 0
    for line in filter(None, map(str.strip, text.strip().splitlines())):
        if line.endswith(":"):
            lines.append(line)
        else:
            lines.append(f"        /*{at:04x}*/                   {line} ;")
            at += 16
    return "\n".join(lines)


SHAPES = {
    "the outer of two is left out": (
        """
        .a:
        MOV R0, R1
        .b:
        FADD R0, R0, R1
        @P0 BRA `(.b)
        @P1 BRA `(.a)
        EXIT
        """,
        [[1, 2]],
    ),
    "one that only counts is left out": (
        """
        .a:
        IADD3 R0, R0, R1, RZ
        @P0 BRA `(.a)
        EXIT
        """,
        [],
    ),
    "both ways of a branch count": (
        """
        .a:
        @P2 BRA `(.b)
        FADD R0, R0, R1
        BRA `(.c)
        .b:
        FMUL R0, R0, R1
        .c:
        @P0 BRA `(.a)
        EXIT
        """,
        [[0, 1, 2, 3, 4]],
    ),
    "two ways back are one loop": (
        """
        .a:
        FADD R0, R0, R1
        @P1 BRA `(.a)
        FMUL R0, R0, R1
        @P0 BRA `(.a)
        EXIT
        """,
        [[0, 1, 2, 3]],
    ),
    "a branch by a uniform predicate": (
        """
        .a:
        FADD R0, R0, R1
        BRA.U UP0, `(.a)
        BRA.U !UP1, `(.a)
        FMUL R0, R0, R1
        EXIT
        """,
        [[0, 1, 2]],
    ),
    "a way back into the middle is none": (
        """
        @P0 BRA `(.b)
        .a:
        FADD R0, R0, R1
        EXIT
        .b:
        FMUL R0, R0, R1
        BRA `(.a)
        """,
        [],
    ),
    "all tries of a wait stand in the code": (
        """
        .a:
        UIADD3 UR4, UR4, 0x1
        .b:
        SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR12], R4
        @!P1 BRA `(.b)
        HGMMA.64x64x16.F32.BF16 R24, gdesc[UR56]
        @P0 BRA `(.a)
        EXIT
        """,
        [[0, 1, 2, 3, 4]],
    ),
    "the loop ends in a wait": (
        """
        .a:
        HGMMA.64x64x16.F32.BF16 R24, gdesc[UR56]
        .b:
        SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR12], R4
        @!P1 BRA `(.b)
        BRA `(.a)
        """,
        [[0, 1, 2, 3]],
    ),
    "all tries of a wait stand in one way of a branch": (
        """
        .a:
        @P2 BRA `(.c)
        .b:
        SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR12], R4
        @!P1 BRA `(.b)
        FADD R0, R0, R1
        .c:
        FMUL R0, R0, R1
        @P0 BRA `(.a)
        EXIT
        """,
        [[0, 1, 2, 3, 4, 5]],
    ),
    "two waits with further tries": (
        """
        .a:
        SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR12], R4
        @!P1 BRA `(.w)
        .b:
        FADD R0, R0, R1
        SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR13], R4
        @!P1 BRA `(.v)
        .c:
        @P0 BRA `(.a)
        EXIT
        .w:
        SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR12], R4
        @!P1 BRA `(.w)
        BRA `(.b)
        .v:
        SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR13], R4
        @!P1 BRA `(.v)
        BRA `(.c)
        """,
        [[0, 1, 2, 3, 4, 5]],
    ),
    "no way on": (
        """
        FADD R0, R0, R1
        .a:
        BRA `(.a)
        """,
        [],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_loops(name):
    text, expected = SHAPES[name]
    _, loops = reached(code(text))
    assert [[each.at // 16 for each in loop.instructions] for loop in loops] == expected


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        ("HGMMA.64x64x16.F32", "HGMMA"), ("QGMMA.64x64x32.F32.E4M3.E4M3", "HGMMA"),
        ("MUFU.EX2", "MUFU"), ("FMNMX", "FMNMX"), ("F2FP.BF16.F32.PACK_AB", "F2FP"),
        ("UTMALDG.5D.MULTICAST", "UTMALDG"), ("UBLKCP.S.G", "UTMALDG"),
        ("UTMASTG.3D", "UTMASTG"), ("UBLKCP.G.S", "UTMASTG"), ("ULEA", "uniform"),
        ("S2UR", "uniform"), ("R2UR", "R2UR"), ("BRA.U", "branch"), ("IADD3.X", "other"),
    ],
)  # fmt: skip
def test_classes(opcode, name):
    (instruction,), _ = reached(code(f"{opcode} R0"))
    assert told(counted([instruction])) == {name: 1, "all": 1}
    assert name in CLASSES


def test_what_nvdisasm_refuses_is_an_error_in_its_words(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "nvdisasm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'nvdisasm fatal : unknown' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PALLASCOPE_CUDA", str(tmp_path))
    with pytest.raises(ValueError) as error:
        machine_code.disassembled(b"")
    assert str(error.value) == (
        "nvdisasm does not read the machine code that ptxas made, so its instructions are not"
        " counted: use one that is no older than ptxas. It says: nvdisasm fatal : unknown"
    )
