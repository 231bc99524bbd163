"""`pallascope.bench.provenance`: what a record holds, what changes its digest."""

import datetime
import json
import platform

import jax
import pytest

from pallascope.bench import provenance

MODULE = '''\
"""What it is."""

def double(x):
    """Doubles."""
    return 2 * x  # twice
'''


@pytest.fixture
def package(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "module.py").write_text(MODULE)
    return tmp_path


def digest_after(package, old, new):
    module = package / "sub" / "module.py"
    text = module.read_text()
    assert old in text
    module.write_text(text.replace(old, new))
    return provenance.code_digest(package)


@pytest.mark.parametrize(
    "old, new",
    [
        ("What it is.", "What it was."),
        ('    """Doubles."""\n', ""),
        ("  # twice", ""),
        ("2 * x", "(2 *\n            x)"),
    ],
)
def test_words_and_layout_leave_the_digest(package, old, new):
    before = provenance.code_digest(package)
    assert digest_after(package, old, new) == before


@pytest.mark.parametrize(
    "old, new",
    [("2 * x", "3 * x"), ("2 * x", "x * 2"), ("2 * x", "2.0 * x")],
)
def test_code_changes_the_digest(package, old, new):
    before = provenance.code_digest(package)
    assert digest_after(package, old, new) != before


def test_a_moved_file_changes_the_digest(package):
    before = provenance.code_digest(package)
    (package / "sub" / "module.py").rename(package / "module.py")
    assert provenance.code_digest(package) != before


def test_the_digest_is_of_the_package_whose_kernels_run(package, monkeypatch):
    assert provenance.PACKAGE.name == "pipelib"
    monkeypatch.setattr(provenance, "PACKAGE", package)
    before = provenance.code_digest()
    (package / ".cache").mkdir()
    (package / ".cache" / "tag").write_text("")
    assert provenance.code_digest() == before
    (package / "ring.py").write_text("x = 1")
    assert provenance.code_digest() != before


def test_what_is_not_python_counts_byte_by_byte(package):
    before = provenance.code_digest(package)
    (package / "table.json").write_text("[1]")
    first = provenance.code_digest(package)
    (package / "table.json").write_text("[1] ")
    assert len({before, first, provenance.code_digest(package)}) == 3
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "module.pyc").write_text("")
    (package / "table.json").write_text("[1]")
    assert provenance.code_digest(package) == first


def test_the_digest_of_one_file_is_of_its_name_and_code_alone(package):
    module, other = package / "sub" / "module.py", package / "other.py"
    before = provenance.code_digest(module)
    other.write_text("x = 1")
    moved = module.rename(package / "module.py")
    assert provenance.code_digest(moved) == before
    assert provenance.code_digest(moved, other) != before
    moved.write_text("x = 1")
    assert provenance.code_digest(moved) not in (before, provenance.code_digest(other))


def test_provenance_is_plain_data_about_this_process():
    found = provenance.provenance()
    assert json.loads(json.dumps(found)) == found
    assert found["jax"] == jax.__version__
    assert found["python"] == platform.python_version()
    assert found["gpu"] is None
    assert found["code_digest"] == provenance.code_digest()
    utc = datetime.datetime.fromisoformat(found["utc"])
    assert utc.utcoffset() == datetime.timedelta(0)


@pytest.mark.parametrize(
    "text, version",
    [
        ("PJRT C API\ncuda 12090", "12.9"),
        ("PJRT C API\ncuda 13000", "13.0"),
        ("cpu", None),
    ],
)
def test_cuda_version_is_read(text, version):
    assert provenance._cuda_version(text) == version
