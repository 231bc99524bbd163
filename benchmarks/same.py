"""Finds what a record of attention holds for beside the code that it was measured with.

    python -m benchmarks.same REVISION

The model. What JAX compiles is a jaxpr. A change of the package that leaves the jaxpr of each of
our contenders as it was leaves their kernels as they were, and their numbers. So this makes the
jaxprs twice, with the package as it is and as it was at a git revision, both with the benchmark as
it is. Where all of a group are equal, and the group is of that revision's code, it gets the digest
of the present code too, under `same_jaxprs`. Everything else is to be measured again.

Jaxprs are those for a Hopper GPU, whatever this machine has. Addresses of functions are not
compared. Not covered: another version of JAX, which can compile the same jaxpr into other code.
"""

import argparse
import functools
import hashlib
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
from typing import Any
from unittest import mock

import jax

from benchmarks import attention
from benchmarks.attentions import Problem
from benchmarks.matmul import RESULTS, read
from pipelib.bench.provenance import PACKAGE, code_digest
from pipelib.kernels.tune import write_lines
from pipelib.measured.attention import OTHERS

#: Made by the process of each tree: digests of the sources and of the jaxprs, by part.
Found = dict[str, dict[str, Any]]
_HOPPER = types.SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="Hopper")


def found(parts: dict[str, Any]) -> Found:
    """Of the package that Python finds: by part, its `sources`, and `jaxprs` by problem."""
    module = importlib.import_module("pipelib.kernels.attention")  # the package names a function so
    with mock.patch.object(module, "default_device", lambda: _HOPPER):
        return {
            part: dict(
                sources=code_digest(*attention.sources(part)),
                jaxprs={str(problem): jaxprs(plan, problem) for problem in plan.problems},
            )
            for part, plan in parts.items()
        }


def jaxprs(plan: Any, problem: Problem) -> str:
    """SHA-256 of those of all our contenders in a group."""
    digest = hashlib.sha256()
    for name, contender in plan.contenders(problem, []).items():
        if name.partition(",")[0] not in OTHERS:
            call, count = contender, 3
            if problem.backward:
                call, count = functools.partial(_gradients, contender), 4
            text = str(jax.make_jaxpr(call)(*(problem.out,) * count))
            digest.update(f"{name}: {re.sub('0x[0-9a-f]+', '', text)}".encode())
    return digest.hexdigest()


def _gradients(contender: Any, q: Any, k: Any, v: Any, d_out: Any) -> Any:
    return jax.vjp(contender, q, k, v)[1](d_out)


def mark(group: dict[str, Any], before: Found, now: Found) -> bool:
    """Gives a group the digest of the present sources, if the above says so, and says whether."""
    part, run, name = group["part"], group["run"], str(Problem(**group["problem"]))
    same = part in now and before[part]["jaxprs"].get(name) == now[part]["jaxprs"].get(name)
    if not same or not attention.is_of(group, before[part]["sources"]):
        return False
    if not attention.is_of(group, now[part]["sources"]):
        run["same_jaxprs"] = [*run.get("same_jaxprs", ()), now[part]["sources"]]
    return True


def _found_at(revision: str) -> Found:
    """Of the package as it was at a revision."""
    root = PACKAGE.parent
    archive = subprocess.run(["git", "archive", revision, "pipelib"], cwd=root, capture_output=True)
    if archive.returncode:
        raise SystemExit(
            f"benchmarks.same: git does not give the package at {revision!r}, so there is nothing"
            f" to compare with: {archive.stderr.decode().strip()}"
        )
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        code = shutil.ignore_patterns("results", "__pycache__")
        shutil.copytree(root / "benchmarks", pathlib.Path(folder) / "benchmarks", ignore=code)
        command = [sys.executable, "-m", "benchmarks.same", "--print"]
        made = subprocess.run(
            command, cwd=folder, env=os.environ | {"PYTHONPATH": folder}, check=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        return json.loads(made.stdout)


def main() -> None:
    """Marks the groups of the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", help="of the code that was measured")
    parser.add_argument("--print", action="store_true", help="only say what this package has")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    if options.print:
        print(json.dumps(found(attention.PARTS)))
        return
    if options.revision is None:
        parser.error("the revision is missing whose code was measured.")
    before, now = _found_at(options.revision), found(attention.PARTS)
    for path in sorted(options.results.glob("*/attention.json")):
        groups = read(path)
        marked = [group for group in groups if mark(group, before, now)]
        write_lines(path, "groups", groups)
        print(f"{path}: {len(marked)} of {len(groups)} groups are of this code too.")


if __name__ == "__main__":
    main()
