"""A `Compiled` as text and as JSON's fields."""

import json

from tests.pallascope.compiling.results import SERIALIZED, made


def test_the_text():
    assert str(made()).splitlines() == [
        "product: 58 registers a lane, no spill, no product serialized (ptxas 13.0.88)",
        "instructions   kernel   loop 0   loop 1",
        "HGMMA               4        4        .",
        "UTMALDG             .        .        2",
        "all             1,275       84       20",
        "loop 0: at 0x08e0, most of it from forms.py:219",
        "loop 1: at 0x0b10, its source is not known",
    ]
    assert made().ok and made().faults == () and "PTX" not in repr(made())


def test_serialized_products():
    found = made(warnings=("(C7519) warpgroup.arrive is injected", SERIALIZED))
    assert found.serialized == (SERIALIZED,) and not found.ok
    assert found.faults == (
        "ptxas serializes products of product, so it waits for each before the next starts: change"
        f" what it names, and compile again. {SERIALIZED}",
    )
    lines = str(found).splitlines()
    assert lines[0].endswith("no spill, products serialized (ptxas 13.0.88)")
    assert lines[-1] == f"ptxas: {SERIALIZED}"


def test_spills():
    found = made(spill_stores=1224, spill_loads=168, stack=136)
    assert found.faults == (
        "product spills: a lane stores 1,224 bytes of registers to local memory and loads 168: hold"
        " less at once, or give its thread more registers.",
    )
    assert "58 registers a lane, 1,224 bytes spilled, no product" in str(found)


def test_json():
    fields = json.loads(json.dumps(made(spill_loads=8).fields()))
    assert not fields["ok"] and len(fields["faults"]) == 1
    assert fields["loops"][0]["instructions"]["HGMMA"] == 4
    assert "ptx" not in fields and "sass" not in fields
