"""Made-up records, where their readers look for them."""

import json

import pytest

from pipelib_book.measured import results


@pytest.fixture
def recorded(tmp_path):
    """Writes records of a GPU, each under its name; gives the folders to read them from."""

    def write(gpu=results.GPU, **records):
        (tmp_path / gpu).mkdir(exist_ok=True)
        for name, record in records.items():
            (tmp_path / gpu / f"{name}.json").write_text(json.dumps(record), "utf-8")
        return (tmp_path,)

    return write
