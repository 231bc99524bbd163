"""Pyodide, the Python that the laboratory runs in a browser: brought once, and kept.

`python -m tools.pyodide` brings the pinned version into `.pyodide/`, if it is not there. The book's
build copies it from there into the site, so that the site loads nothing from elsewhere. A build
without it has a laboratory that says so. Pyodide (https://pyodide.org) is under the Mozilla Public
License 2.0.
"""

import base64
import hashlib
import io
import json
import pathlib
import sys
import tarfile
import urllib.request

from tools.execution import ROOT

VERSION = "314.0.7"
ADDRESS = f"https://registry.npmjs.org/pyodide/-/pyodide-{VERSION}.tgz"
#: The archive's digest, as its registry gives it.
INTEGRITY = (
    "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq"
    "+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
)
#: What a page needs of it.
FILES = (
    "pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json",
    "package.json",
)  # fmt: skip
FOLDER = ROOT / ".pyodide"
#: How long a connection may say nothing, in seconds.
TIMEOUT = 60


def is_here(folder: pathlib.Path | None = None) -> bool:
    """Whether this version is in a folder, by default `.pyodide/`, whole."""
    folder = folder or FOLDER
    try:
        package = json.loads((folder / "package.json").read_text("utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    return package["version"] == VERSION and all((folder / name).is_file() for name in FILES)


def unpack(archive: bytes, folder: pathlib.Path) -> None:
    """Writes the files of the archive that a page needs, `package.json` last.

    Raises:
      ValueError: an archive that is not the pinned one.
    """
    digest = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if digest != INTEGRITY:
        raise ValueError(
            f"The archive of Pyodide {VERSION} has the digest {digest}, not {INTEGRITY}, so it is"
            " not what was pinned, and nothing of it is kept: fetch it again."
        )
    folder.mkdir(exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for name in FILES:
            member = packed.extractfile(f"package/{name}")
            assert member is not None, name
            (folder / name).write_bytes(member.read())


def main() -> int:
    """Brings it if it is not here; returns the exit status."""
    if is_here():
        return 0
    try:
        with urllib.request.urlopen(ADDRESS, timeout=TIMEOUT) as response:
            archive = response.read()
        unpack(archive, FOLDER)
    except (OSError, ValueError) as error:
        print(f"Pyodide was not brought ({error}): the laboratory will say so.", file=sys.stderr)
        return 1
    print(f"Pyodide {VERSION} is in {FOLDER.name}/.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
