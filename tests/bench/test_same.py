"""`benchmarks/same.py`: which groups of a record hold for later code."""

import copy
import functools
import importlib
import json

import pytest

from benchmarks import attention, same
from benchmarks.attentions import Problem
from pipelib.kernels import attention as kernel

PROBLEM = Problem(256, 64, False, "float16", heads=2)
PLAN = attention.PARTS["forward"]._replace(problems=(PROBLEM,))


def plan(**contenders):
    return PLAN._replace(contenders=lambda problem, groups: contenders)


def ours(scale):
    return functools.partial(kernel, causal=False, scale=scale, config=None)


def hopper(**contenders):
    """The jaxprs as they are found, for a Hopper GPU."""
    part = same.found({"forward": plan(**contenders)})["forward"]
    assert part["sources"] == attention.code_digest(*attention.sources("forward"))
    return part["jaxprs"][str(PROBLEM)]


def test_jaxprs_tell_kernels_apart():
    made = hopper(attention=ours(1.0))
    assert made == hopper(attention=ours(1.0))
    assert made != hopper(attention=ours(0.5))
    assert made != hopper(**{"attention, other": ours(1.0)})
    assert made == hopper(attention=ours(1.0), emitter=ours(0.5))  # JAX's do not count


def test_jaxprs_of_gradients_are_of_the_backward_pass_too():
    backward = PROBLEM._replace(backward=True)
    made = [same.jaxprs(plan(attention=ours(1.0)), p) for p in (PROBLEM, backward)]
    assert made[0] != made[1]


def test_jaxprs_are_those_for_a_gpu(monkeypatch):
    module = importlib.import_module("pipelib.kernels.attention")
    picked, pick = [], module.default_config
    monkeypatch.setattr(
        module, "default_config", lambda head_dim: picked.append(pick(head_dim)) or picked[-1]
    )
    hopper(attention=ours(0.25))
    assert [config.probabilities for config in picked] == ["registers"]


def group(**run):
    return dict(part="forward", problem=PROBLEM._asdict(), run=dict(sources_digest="a") | run)


def side(sources, made):
    return {"forward": dict(sources=sources, jaxprs={str(PROBLEM): made})}


@pytest.mark.parametrize(
    ("run", "before", "now", "digests"),
    [
        ({}, side("a", "x"), side("b", "x"), ["b"]),
        ({"same_jaxprs": ["b"]}, side("b", "x"), side("c", "x"), ["b", "c"]),
        ({"same_jaxprs": ["b"]}, side("a", "x"), side("b", "x"), ["b"]),
        ({}, side("a", "x"), side("b", "y"), None),
        ({}, side("z", "x"), side("b", "x"), None),
        ({}, side("a", "x"), {}, None),
    ],
    ids=["the same", "twice", "known", "others", "of other code", "no such part"],
)
def test_mark(run, before, now, digests):
    found = group(**run)
    assert same.mark(found, before, now) == (digests is not None)
    assert found["run"].get("same_jaxprs") == digests
    if digests:
        assert attention.is_of(found, now["forward"]["sources"])


def test_a_record_is_marked(tmp_path, monkeypatch, capsys):
    path, other = tmp_path / "some" / "attention.json", Problem(64, 64)
    path.parent.mkdir()
    groups = [group(), group() | dict(problem=other._asdict())]
    path.write_text(json.dumps(dict(groups=copy.deepcopy(groups))))
    before, now = side("a", "x"), side("b", "x")
    before["forward"]["jaxprs"][str(other)], now["forward"]["jaxprs"][str(other)] = "y", "z"
    monkeypatch.setattr(same, "_found_at", {"HEAD~1": before}.get)
    monkeypatch.setattr(same, "found", lambda parts: now)
    monkeypatch.setattr("sys.argv", ["same", "HEAD~1", "--results", str(tmp_path)])
    same.main()
    assert "1 of 2 groups are of this code too." in capsys.readouterr().out
    marked = {Problem(**g["problem"]): g["run"] for g in attention.read(path)}
    assert marked == {PROBLEM: dict(sources_digest="a", same_jaxprs=["b"]), other: groups[1]["run"]}


def test_a_revision_is_asked_for(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["same"])
    with pytest.raises(SystemExit):
        same.main()
    assert "the revision is missing whose code was measured." in capsys.readouterr().err


def test_a_revision_that_git_does_not_have(monkeypatch):
    monkeypatch.setattr("sys.argv", ["same", "no-such-revision"])
    with pytest.raises(SystemExit, match="git does not give the package at 'no-such-revision', so"):
        same.main()
