"""`Cache`: two searches at once, interruptions, and files that are no caches."""

import json
import signal
import sqlite3
import subprocess
import sys

import pytest

from pallascope.tuning.cache import FORMAT, Cache, Kind

# Puts a result under a key of its own, and one that all put, and says which is done; for ever.
_PUTS = """
import itertools, sys
from pallascope.tuning.cache import Cache, Kind

path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Cache(path) as cache:
    for i in range(count) if count else itertools.count():
        cache.put(Kind.LOOKED, f"{name} {i}", [name, i])
        cache.put(Kind.MEASURED, str(i), [i])
        print(i, flush=True)
"""


def puts(path, name, count=0):
    """A process that puts so many results, or goes on for ever."""
    words = [sys.executable, "-c", _PUTS, str(path), name, str(count)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def refused(path):
    """What is said of a file that is no cache."""
    with pytest.raises(ValueError) as error:
        Cache(path)
    text = str(error.value)
    assert text.startswith(f"search: cache={str(path)!r} ")
    assert text.endswith(", so nothing can be added to it: name another file, or delete this one.")
    return text


def test_a_result_is_kept_until_another_takes_its_place(tmp_path):
    for path in (None, tmp_path / "folder" / "tuned.json"):
        with Cache(path) as cache:
            assert cache.get(Kind.LOOKED, "a") is None
            cache.put(Kind.LOOKED, "a", ["measured", 1.5, None, float("inf")])
            assert cache.get(Kind.MEASURED, "a") is None, "kinds have keys of their own"
            assert cache.get(Kind.LOOKED, "a") == ["measured", 1.5, None, float("inf")]
            cache.put(Kind.LOOKED, "a", {"b": 1})
            assert cache.get(Kind.LOOKED, "a") == {"b": 1}
    with Cache(path) as cache:
        assert cache.get(Kind.LOOKED, "a") == {"b": 1}
    assert [*path.parent.iterdir()] == [path]


def test_two_processes_that_search_at_once_lose_nothing(tmp_path):
    path = tmp_path / "tuned.db"
    both = [puts(path, name, 200) for name in "ab"]
    for process in both:
        assert process.communicate()[0].split() == [*map(str, range(200))]
        assert process.returncode == 0
    with Cache(path) as cache:
        for i in range(200):
            assert [cache.get(Kind.LOOKED, f"{name} {i}") for name in "ab"] == [["a", i], ["b", i]]
            assert cache.get(Kind.MEASURED, str(i)) == [i]


def test_a_process_that_is_killed_leaves_all_that_it_had_put(tmp_path):
    path = tmp_path / "tuned.db"
    with puts(path, "a") as process:
        done = [int(process.stdout.readline()) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        done += map(int, process.stdout.read().split())
    with Cache(path) as cache:
        assert [cache.get(Kind.LOOKED, f"a {i}") for i in done] == [["a", i] for i in done]
        cache.put(Kind.LOOKED, "a 0", "goes on")
        assert cache.get(Kind.LOOKED, "a 0") == "goes on"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is not a SQLite database, so"),
        ("x", "is not a SQLite database, so"),
        ("{", "is JSON, as earlier versions kept it, and not SQLite, so"),
        (
            json.dumps({"format": 1, "looked": {}, "measured": {"key": [[1.0], 0.0, ""]}}),
            "is JSON, as earlier versions kept it, and not SQLite, so",
        ),
    ],
)
def test_a_file_of_another_kind_is_left_as_it_is(tmp_path, text, said):
    (path := tmp_path / "tuned.json").write_text(text, "utf-8")
    assert said in refused(path)
    assert path.read_text("utf-8") == text
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("CREATE TABLE results (kind TEXT)", "is a database of another program's, so"),
        ("PRAGMA user_version = 1", f"has format 1, and this pallascope reads {FORMAT}, so"),
    ],
)
def test_a_database_of_another_kind_is_left_as_it_is(tmp_path, command, said):
    path = tmp_path / "other.db"
    if "CREATE" not in command:
        Cache(path).__exit__()
    rows = sqlite3.connect(path, isolation_level=None)
    rows.execute(command)
    rows.close()
    before = path.read_bytes()
    assert said in refused(path)
    assert path.read_bytes() == before


def test_a_damaged_file_and_one_that_cannot_be_written_are_refused(tmp_path):
    path = tmp_path / "tuned.db"
    with Cache(path) as cache:
        for i in range(100):
            cache.put(Kind.LOOKED, str(i), "x" * 100)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * 4096 + whole[8192:])
    assert "is damaged (" in (text := refused(path)) or "(database disk image is mal" in text
    path.write_bytes(whole[: len(whole) // 2])
    assert "is damaged (" in (text := refused(path)) or "(database disk image is mal" in text
    # SQLite reads files whose "write version" it does not know, and writes none: so it does for
    # users that may not write, which a test that root runs cannot show.
    path.write_bytes(whole[:18] + b"\x03" + whole[19:])
    assert "cannot be read or written (attempt to write a readonly database)" in refused(path)
    assert "cannot be read or written (" in refused(tmp_path)
    (tmp_path / "file").write_text("x")
    assert "cannot be read or written (" in refused(tmp_path / "file" / "tuned.db")


def test_another_process_that_writes_for_long_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr("pallascope.tuning.cache._WAIT_S", 0.0)
    with Cache(path := tmp_path / "tuned.db") as cache:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ValueError, match=r"cannot be read or written \(database is locked\)"):
            cache.put(Kind.LOOKED, "a", 1)
        other.execute("COMMIT")
        other.close()
        other.close()
        cache.put(Kind.LOOKED, "a", 1)
