"""JAX's versions: too old is refused in a sentence, too new is told once."""

import re
import warnings

import pytest

from pipelib import versions


@pytest.mark.parametrize("version", [(0, 11, 1), (0, 10, 2), (0, 4, 38)])
def test_an_older_jax_is_refused(version):
    words = ".".join(map(str, version))
    with pytest.raises(ImportError) as error:
        versions.check_jax(version)
    assert str(error.value) == (
        f"JAX {words} is installed, which is older than 0.11.2 and lacks names that pipelib and"
        " pallascope use, so nothing of them can run: pip install 'jax>=0.11.2,<0.13'."
    )


@pytest.mark.parametrize("version", [(0, 12, 0, 2), (0, 12, 1), (0, 13, 0)])
def test_a_newer_jax_is_told(version):
    words = re.escape(".".join(map(str, version)))
    with pytest.warns(UserWarning, match=f"JAX {words} is newer than 0.12.0.1, the last that"):
        versions.check_jax(version)


@pytest.mark.parametrize("version", [versions.OLDEST, (0, 11, 3), (0, 12, 0), versions.NEWEST])
def test_the_tested_ones_pass(version):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.check_jax(version)
