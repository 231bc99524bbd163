"""`write_profile`, on a sham kernel that writes a file as JAX does."""

import pathlib

import jax
import pytest

from pallascope.bench.profiling import write_profile


def test_a_profile_of_the_second_run(tmp_path):
    """JAX writes a file for each run, but none over another."""
    runs = []

    def make(profile_space, profile_dir):
        def write_once(x):
            runs.append(x)
            with pathlib.Path(profile_dir, "kernel.json").open("x") as file:
                file.write(f"run {len(runs)}")
            return x

        return lambda x: jax.pure_callback(write_once, x, x)

    path = write_profile(make, 1.0, profile_space=8, profile_dir=tmp_path)
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("run 2", [path])
    with pytest.raises(RuntimeError, match=r"no profile into .*: profile_space=8 and profil"):
        write_profile(lambda **ignored: lambda x: x, 1.0, profile_space=8, profile_dir=tmp_path)
