"""Pyodide, the Python that the laboratory runs in a browser: brought once, and kept.

The model. The pinned version is one archive of its registry, known by its digest. `bring` takes
from it what a page needs, into a folder; where it is there already, nothing is asked for. The
book's build keeps it in the repository's `.pyodide/`, and `python -m pallascope lab` in the user's
cache.
Pyodide (https://pyodide.org) is under the Mozilla Public License 2.0.
"""

import base64
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile
import urllib.request

VERSION = "314.0.7"
ADDRESS = f"https://registry.npmjs.org/pyodide/-/pyodide-{VERSION}.tgz"
#: The archive's digest, as its registry gives it.
INTEGRITY = (
    "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq"
    "+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
)
#: What a page loads of it.
FILES = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
#: The file that says which version it is, written last.
PACKAGE = "package.json"
#: How long a connection may say nothing, in seconds.
TIMEOUT = 60


def cache() -> pathlib.Path:
    """The user's folder for it; `XDG_CACHE_HOME` says where caches are, as elsewhere."""
    caches = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(caches, "pipelib", "pyodide")


def is_in(folder: pathlib.Path) -> bool:
    """Whether this version is in a folder, whole."""
    try:
        package = json.loads((folder / PACKAGE).read_text("utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    return package["version"] == VERSION and all((folder / name).is_file() for name in FILES)


def bring(folder: pathlib.Path) -> None:
    """Has this version in a folder.

    Raises:
      OSError: its registry cannot be reached, or the folder cannot be written.
      ValueError: the registry gave something else.
    """
    if is_in(folder):
        return
    try:
        with urllib.request.urlopen(ADDRESS, timeout=TIMEOUT) as response:
            archive = response.read()
    except OSError as error:
        raise OSError(
            f"Pyodide {VERSION}, which runs Python in the page, could not be brought from {ADDRESS}"
            f" ({error}): try again where that can be reached; it is kept in {folder}."
        ) from error
    unpack(archive, folder)


def unpack(archive: bytes, folder: pathlib.Path) -> None:
    """Writes the files of the archive that a page needs.

    Raises:
      ValueError: an archive that is not the pinned one.
    """
    digest = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if digest != INTEGRITY:
        raise ValueError(
            f"The archive of Pyodide {VERSION} has the digest {digest}, not {INTEGRITY}, so it is"
            " not what was pinned, and nothing of it is kept: fetch it again."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for name in (*FILES, PACKAGE):
            member = packed.extractfile(f"package/{name}")
            assert member is not None, name
            (folder / name).write_bytes(member.read())


if __name__ == "__main__":
    try:
        bring(pathlib.Path(sys.argv[1]))
    except (OSError, ValueError) as error:
        print(f"{error} The laboratory will be closed.", file=sys.stderr)
        sys.exit(1)
