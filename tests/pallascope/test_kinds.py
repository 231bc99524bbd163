"""The one table of kinds, and that each of its readers has an answer for each kind. No JAX here."""

import re
from unittest import mock

import pytest

from pallascope import H200, check, program, simulate
from pallascope.checking import order
from pallascope.drawing import picture
from pallascope.program import (
    Action,
    Buffer,
    Engine,
    Kind,
    Op,
    Program,
    Region,
    Role,
    Space,
)
from pallascope.report import Finding, FindingKind
from pallascope.simulating import operations
from pallascope.spans import ENGINES, Span, SpanKind
from pallascope.timeline import Source, Timeline
from tests.pallascope import build


def test_a_kind_that_does_not_exist_is_refused_where_it_is_written():
    told = (
        "'wgmma_wiat' is not a kind of op, so neither check nor simulate would know what it does:"
        " give one of load, store, prefetch, commit_group, "
    )
    with pytest.raises(ValueError, match=re.escape(told)):
        Op("wgmma_wiat", 0)
    told = "'nap' is not a kind of span, so there is no colour for it: give one of load, store,"
    with pytest.raises(ValueError, match=re.escape(told)):
        Span(0, 0, 1, "nap")


def test_a_name_that_does_not_exist_is_refused_where_it_is_written():
    told = (
        "'vmem' is not a space of memory, so neither check nor simulate would know who shares it:"
    )
    with pytest.raises(ValueError, match=f"{told} give one of gmem, smem, tmem, acc"):
        Buffer(0, "x", "vmem", (8,), "float16", 16)
    told = "so nothing would know what it means: give one of 'in', 'out', 'in/out', 'scratch', ''"
    with pytest.raises(ValueError, match=f"'inn' is not a role of a buffer, {told}"):
        Buffer(0, "x", "gmem", (8,), "float16", 16, role="inn")
    told = "so nothing would know what it means: give one of 'increase', 'decrease', ''"
    with pytest.raises(ValueError, match=f"'up' is not an action of an op, {told}"):
        Op("registers", 0, action="up")
    told = (
        "'rase' is not a kind of finding, so a report would not know how grave it is: give one of"
    )
    with pytest.raises(ValueError, match=f"{told} out-of-bounds, deadlock, race"):
        Finding("rase", (), "", "")
    told = "'guessed' is not where times are from, so scopes could not be told from work: give one"
    with pytest.raises(ValueError, match=f"{told} of simulated, measured"):
        Timeline("x", (), (), 0.0, 1e9, "guessed", "none")


def test_a_name_is_shown_as_its_text():
    buffer = Buffer(0, "x", "gmem", (8,), "float16", 16, role="in")
    assert buffer.space is Space.GMEM and buffer.role is Role.IN
    assert (repr(buffer.space), f"{buffer.role}") == ("'gmem'", "in")
    assert Op("registers", 0, action="decrease").action is Action.DECREASE
    assert Finding("race", (), "", "").kind is FindingKind.RACE
    assert Timeline("x", (), (), 0.0, 1e9, "measured", "none").source is Source.MEASURED


def test_a_kind_is_as_good_as_its_name():
    assert Op("load", 0).kind is Kind.LOAD
    assert Kind.LOAD == "load" and {"load": 1}[Kind.LOAD] == 1
    assert f"{Kind.LOAD} {Kind.LOAD!r}" == "load 'load'"
    assert Span(0, 0, 1, "wait").kind is SpanKind.WAIT


def test_who_works_on_memory():
    engines = {kind: kind.engine for kind in Kind if kind.engine is not None}
    assert engines == {
        Kind.LOAD: Engine.LOADS,
        Kind.PREFETCH: Engine.LOADS,
        Kind.STORE: Engine.STORES,
        Kind.WGMMA: Engine.TENSOR_CORE,
        Kind.TCGEN05_MMA: Engine.TENSOR_CORE,
        Kind.TCGEN05_COPY: Engine.TENSOR_CORE,
        Kind.LOAD_TMEM: Engine.TMEM,
        Kind.STORE_TMEM: Engine.TMEM,
        Kind.CP_ASYNC: Engine.CP_ASYNC,
    }
    assert [kind for kind in Kind if kind.is_copy] == ["load", "store", "prefetch"]
    assert set(ENGINES) == {"load", "store", "wgmma"}


class More:
    """The kinds of an enum, and one more that nobody has heard of."""

    def __init__(self, kinds):
        self._kinds = kinds

    def __getattr__(self, name):
        return getattr(self._kinds, name)

    def __iter__(self):
        return iter([*self._kinds, "new"])


LOADED = build.program([build.load(0, 0), build.wait(build.PRODUCED), build.read(0)])


@pytest.mark.parametrize(
    ("module", "use"),
    [(order, check), (operations, lambda program: simulate(program, H200))],
    ids=["order", "simulation"],
)
def test_a_kind_that_a_reader_does_not_know_is_an_error(module, use):
    """Not only of a type checker: each run asks for all kinds, whatever the program has."""
    use(LOADED)
    with (
        mock.patch.object(module, "Kind", More(Kind)),
        pytest.raises(AssertionError, match="but got: 'new'"),
    ):
        use(LOADED)


def test_every_kind_of_span_has_its_looks():
    assert [*picture.LOOKS] == [*SpanKind]
    with pytest.raises(AssertionError, match="but got: 'new'"):
        picture._look("new")


def test_every_kind_is_in_the_table_of_the_module():
    """And no other; `scope_begin/_end` are two."""
    rows = re.findall(r"^([a-z][\w/, ]*?)  ", program.__doc__.split("=\nkind")[1], re.MULTILINE)
    names = ", ".join(rows).replace("scope_begin/_end", "scope_begin, scope_end").split(", ")
    assert sorted(names) == sorted(Kind)


ROW = Region(0, ((0, 8), (0, 64)))
PROGRAM = Program("words", ((),), (build.BUFFERS[0], build.BUFFERS[1]), build.barriers())


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (Op("load", 0, (ROW,)), "load reads x[0:8, 0:64]"),
        (Op("load", 0, collective=("x", "y")), "load (collective x, y)"),
        (Op("load", 0, from_registers=True), "load (from registers)"),
        (Op("load", 0, from_registers=True, combines="add"), "load (from registers, atomic add)"),
        (Op("prefetch", 0, collective=("x",)), "prefetch (collective x)"),
        (Op("store", 0, combines="add"), "store (reduces by add)"),
        (Op("write", 0, combines="max", wavefronts=4), "write (atomic max)"),
        (Op("wait_store", 0, pending=1, read_only=True), "wait_store 1 (read_only)"),
        (Op("wait_cp_async", 0, pending=2), "wait_cp_async 2"),
        (Op("wgmma_wait", 0, pending=0), "wgmma_wait 0"),
        (Op("acc_read", 0), "acc_read"),
        (Op("compute", 0, flops=9, transcendental=3), "compute 3"),
        (Op("registers", 0, registers=40, action="decrease"), "registers 40 (decrease)"),
        (Op("scope_begin", 0, scope_id=2, shared=True), "scope_begin 2 (shared)"),
        (Op("scope_end", 0, scope_id=2), "scope_end 2"),
        (Op("opaque", 0, function="mma"), "opaque (mma)"),
        (Op("load", 0, claims=True), "load (the answer to try_cluster_cancel)"),
        (Op("tcgen05_mma", 0, collective=("x",)), "tcgen05_mma (collective x)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_op_in_words(op, words):
    assert PROGRAM.describe(op) == words
