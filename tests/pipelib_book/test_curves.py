"""`pipelib_book.curves`: the plots of chapter 3."""

import pytest

from pallascope.bench.timing import Samples

plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib draws these figures")

from pipelib_book import curves  # noqa: E402


@pytest.fixture
def shown(monkeypatch):
    """The axes that were shown."""
    plt.switch_backend("agg")
    found = []
    monkeypatch.setattr(plt, "show", lambda: found.append(plt.gcf().axes[0]))
    yield found
    plt.close("all")


def show(times):
    series = {"alone": {1: "a", 2: "b"}, "shared": {2: "b"}}
    curves.show_rates(
        times, series, work=2e12, unit="TB/s", across="slots", beside="XLA"
    )  # fmt: skip


def test_each_series_is_a_line_of_rates_and_another_is_a_level(shown):
    show({"a": Samples((2e6,) * 3), "b": Samples((1e6,) * 3), "XLA": Samples((5e5,) * 3)})
    alone, shared, level = shown[0].lines
    assert list(alone.get_xdata()) == [1, 2] and list(alone.get_ydata()) == [1.0, 2.0]
    assert list(shared.get_ydata()) == [2.0] and set(level.get_ydata()) == {4.0}
    assert [text.get_text() for text in shown[0].get_legend().texts] == ["alone", "shared", "XLA"]


def test_without_times_nothing_is_shown(shown):
    show(None)
    assert shown == []
