#!/bin/sh
# Prints the path of a Python that can build the project's environment:
# 3.12 or later, with venv and ensurepip. 3.12 before 3.13 before the rest,
# since 3.12 is what the book's outputs are recorded with.
#
# A name on PATH proves nothing: pyenv's shim `python3.12` is there even when
# no such version is switched on, and only fails when it is run. So each
# candidate is run, and prints its version and its own executable.
# PYTHON, where it is set, is the only candidate.

probe='import sys, venv, ensurepip
assert sys.version_info >= (3, 12)
print("%d %s" % (sys.version_info[1], sys.executable))'

candidates() {
    if [ -n "$PYTHON" ]; then
        echo "$PYTHON"
        return
    fi
    for name in python3.12 python3.13 python3.14 python3 python; do
        echo "$name"
    done
    for found in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python; do
        echo "$found"
    done
    if command -v uv >/dev/null 2>&1; then
        uv python find --no-python-downloads '>=3.12' 2>/dev/null
    fi
}

best=$(candidates | while read -r candidate; do
    "$candidate" -c "$probe" 2>/dev/null
done | sort -n | head -n 1)

if [ -z "$best" ]; then
    if [ -n "$PYTHON" ]; then
        echo "PYTHON=$PYTHON is not a Python of 3.12 or later with venv:" \
            "give another, or leave PYTHON unset." >&2
    else
        echo "No Python of 3.12 or later with venv was found: install one" \
            "(Ubuntu 24.04, Debian 13: apt install python3-venv; macOS: brew" \
            "install python@3.12; anywhere: uv python install 3.12)." >&2
    fi
    exit 1
fi
echo "${best#* }"
