#!/bin/sh
# venv.sh FOLDER NAME [project]
#
# Makes FOLDER a virtual environment that holds exactly what lockfiles/NAME.txt names, each file checked by its
# sha256; with `project`, this checkout too, editable. Does nothing when it is so already.
# PYTHON names the interpreter (python3). As root it installs Debian's python3-venv where that is missing.
# UV names a uv that installs in a tenth of pip's time. It asks the index that pip is configured with, but no other of pip's places;
# what it cannot install, pip does.
set -eu

folder=$1 name=$2 project=${3-}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
python=${PYTHON:-python3}

stop() {
    echo "$1" >&2
    exit 1
}

command -v "$python" >/dev/null || stop "there is no $python here; install it: sudo apt-get install python3 python3-venv"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || stop "$python does not start"
case $version in
    3.[0-9] | 2.*) stop "$python is Python $version, and repro-env needs 3.10 or newer; name another one: make PYTHON=/path/to/python3" ;;
    3.10) lock=$here/py310/$name.txt ;;
    *) lock=$here/$name.txt ;;
esac
[ -f "$lock" ] || stop "$lock is missing"

stamp=$("$python" -c 'import sys; print(sys.version, sys.executable)' && cat "$lock" "$here/venv.sh")
[ -z "$project" ] || stamp="$stamp $(pwd) $(cat pyproject.toml)"
if [ -f "$folder/stamp" ] && [ "$(cat "$folder/stamp")" = "$stamp" ]; then
    exit 0
fi

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian and Ubuntu keep the part of Python that makes virtual environments in a package of its own.
    package=python3-venv
    [ "$python" = python3 ] || package=python$version-venv
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $package: $python cannot make virtual environments without it" >&2
        apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$package" >/dev/null
    else
        stop "$python cannot make virtual environments yet; run this once: sudo apt-get install $package"
    fi
fi

echo "making $folder from lockfiles/${lock#"$here"/}" >&2
rm -rf -- "$folder"
mkdir -p -- "$(dirname -- "$folder")" || stop "$folder cannot be made here; is the checkout yours?"
# Bytecode is made of what is imported, not of all.
export PIP_NO_COMPILE=1
pip="$folder/bin/python -m pip --disable-pip-version-check -qq"
# Lock files are complete, but for torch in one: nothing is resolved again.
# Hydra needs a release that has no wheel.
files="--no-deps --require-hashes --only-binary :all: --no-binary antlr4-python3-runtime -r"
with_uv() {
    index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}}
    [ -z "$index" ] || export UV_DEFAULT_INDEX="$index" # not an argument: it may contain a password
    # shellcheck disable=SC2086 # several words
    "$python" -m venv --without-pip -- "$folder" &&
        "$UV" pip install -q --no-config --link-mode copy --python "$folder/bin/python" $files "$lock"
}
if [ -z "${UV-}" ] || ! with_uv; then
    [ -z "${UV-}" ] || echo "uv cannot install them, for the reason above; pip does" >&2
    rm -rf -- "$folder"
    "$python" -m venv -- "$folder"
    $pip install $files "$lock"
    grep -q '^setuptools==' "$lock" || $pip uninstall -y setuptools # venv puts one in before Python 3.12
fi
[ -z "$project" ] || $pip install --no-deps --no-build-isolation --editable .
printf '%s\n' "$stamp" >"$folder/stamp"
