"""The page of all calls: each where it belongs, with a signature and a sentence."""

import re

import pytest

from tools import calls


def test_every_call_of_pallas_that_a_chapter_uses_has_its_sentence():
    assert calls.unexplained() == []


def test_what_is_explained_is_used():
    used = {name for names in calls.calls().values() for name in names}
    assert {*calls.DOES} - used == set()


def test_a_call_is_in_one_chapter():
    names = [name for names in calls.calls().values() for name in names]
    assert len(names) == len({*names}) > 80


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("plgpu.wgmma", "plgpu.wgmma(acc, a, b)"),
        ("plgpu.wgmma_wait", "plgpu.wgmma_wait(n)"),
        (
            "pallascope.sweep",
            "pallascope.sweep(kernel_factory, machine=..., *, max_steps=None, whole_grid=False,"
            " **ranges)",
        ),
    ],
)
def test_a_signature_has_names_and_short_defaults(name, written):
    assert calls.signature(name) == written


def test_a_kind_of_memory_is_called_with_a_shape():
    assert calls.signature("plgpu.SMEM").startswith("plgpu.SMEM(shape, dtype, *, transforms=()")


def test_a_call_of_ours_says_what_its_docstring_begins_with():
    assert calls.does("pipelib.emit_pipeline") == (
        "Makes a pipeline of `body` over `grid`, inside a Pallas kernel."
    )


def test_the_page_has_them_all():
    page = calls.page()
    for names in calls.calls().values():
        for name in names:
            assert f"\n`{name}`\n: {calls.does(name)}" in page
            assert calls.signature(name) == name or f"\n  `{calls.signature(name)}`\n" in page


def test_a_call_has_a_link_to_where_it_is_explained():
    found = re.findall(r"^: .* See \[[^]]+\]\(([^#]+)\.ipynb#[^)]+\)\.$", calls.page(), re.M)
    assert len(found) > 80
    assert {*found} <= {*calls.calls()}


def test_a_call_belongs_to_the_chapter_that_announces_it():
    by_name = {name: chapter for chapter, names in calls.calls().items() for name in names}
    assert by_name["pallascope.check"].startswith("12_") and by_name[
        "pallascope.predict"
    ].startswith("13_")
    assert by_name["plgpu.ClusterBarrier"].startswith("11_")
    assert by_name["pallascope.tuning.search"].startswith("14_")


def test_an_enum_is_not_called():
    assert calls.signature("plgpu.Layout") == "plgpu.Layout"
