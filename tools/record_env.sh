#!/bin/sh
# usage: tools/record_env.sh PYTHON SITE WHEELS
#
# Makes sure that PYTHON, with the folder SITE on its path, can execute
# notebooks, and tests in several processes. A GPU machine has JAX but perhaps
# no Jupyter, no pytest-xdist and no network: then the wheels that
# `make wheels` has put into WHEELS are unpacked into SITE.

python=$1
site=$2
wheels=$3

PYTHONPATH="$PWD/$site" "$python" -c 'import jupytext, nbclient, ipykernel, xdist' \
    2>/dev/null && exit 0

if ! ls "$wheels"/*.whl >/dev/null 2>&1; then
    echo "$python lacks Jupyter or pytest-xdist, to execute the chapters and" \
        "the tests with: run 'make" \
        "wheels' where there is a network, and bring the folder $wheels." >&2
    exit 1
fi
rm -rf "$site"
"$python" -m pip install --quiet --no-index --no-deps --no-compile \
    --disable-pip-version-check --target "$site" "$wheels"/*.whl || {
    echo "The wheels in $wheels do not fit $python: it must be Python 3.12" \
        "on x86-64 Linux." >&2
    exit 1
}
