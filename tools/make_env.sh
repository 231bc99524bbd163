#!/bin/sh
# usage: tools/make_env.sh FOLDER REQUIREMENTS [OPTION OF pip install ...]
#
# Makes FOLDER a virtual environment that holds exactly REQUIREMENTS. The copy
# of REQUIREMENTS that is kept in FOLDER is the stamp: as long as the two are
# alike and the environment's Python runs, there is nothing to do.

folder=$1
requirements=$2
shift 2

if cmp -s "$requirements" "$folder/installed.txt" &&
    "$folder/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

python=$("$(dirname "$0")/find_python.sh") || exit 1
echo "Making $folder with $python from $requirements ..."
rm -rf "$folder" && mkdir "$folder" || {
    echo "$folder could not be made in $PWD, as no file can be written there:" \
        "copy this folder to one of your own, and run the same command in it." >&2
    exit 1
}
"$python" -m venv "$folder" || {
    echo "$python could not make a virtual environment: install its venv" \
        "module (Debian, Ubuntu: apt install python3-venv)." >&2
    exit 1
}
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
    -r "$requirements" "$@" || {
    echo "pip could not install $requirements: connect to the network (or" \
        "set PIP_INDEX_URL to a mirror), and run the same command again." >&2
    exit 1
}
cp "$requirements" "$folder/installed.txt"
