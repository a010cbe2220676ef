#!/bin/sh
# Writes every lock file from its .in file with pip-tools: one set with Python 3.11, which newer ones use too, and one with
# 3.10 (some packages have left 3.10 behind). Pins that still fit stay; `make relock ARGS=--upgrade` takes the newest.
# PYTHON311 and PYTHON310 name the interpreters. pip's configuration says which index is asked; no index, find-links directory or path
# of this machine gets into the files. The wide environment of the benchmarks, that of the trainers and those of notebooks are locked for
# 3.11 only, and the first two without torch (see ml185.in) and what only its GPU builds need.
set -eu
cd "$(dirname -- "$0")/.."
upgrade=${1-}

compile() { # VERSION LOCK, from the .in file of the same name
    echo "$2" >&2
    # shellcheck disable=SC2086 # not a word if nothing is to be upgraded
    CUSTOM_COMPILE_COMMAND="make relock" "build/relock/$1/bin/pip-compile" --quiet --no-config --generate-hashes --allow-unsafe \
        --strip-extras --no-emit-options --pip-args="--only-binary :all: --no-binary antlr4-python3-runtime" $upgrade \
        --output-file "$2" "lockfiles/$(basename "$2" .txt).in"
}

check() { # VERSION LOCK: the first release of this Python can install it too. uv asks the public index, or UV_DEFAULT_INDEX
    build/venv/bin/uv pip compile --quiet --no-config --no-deps --python-version "$1" --only-binary :all: \
        --no-binary antlr4-python3-runtime "$2" >/dev/null
}

PYTHON=${PYTHON311:-python3.11} lockfiles/venv.sh build/relock/3.11 relock
PYTHON=${PYTHON310:-python3.10} lockfiles/venv.sh build/relock/3.10 relock
for name in relock tool test example; do
    compile 3.11 "lockfiles/$name.txt"
    check 3.11 "lockfiles/$name.txt"
    compile 3.10 "lockfiles/py310/$name.txt"
    check 3.10 "lockfiles/py310/$name.txt"
done
for name in trainers ml185 notebook jupyterlab; do
    compile 3.11 "lockfiles/$name.txt"
    awk '/^[^ ]/ { drop = /^(torch|triton|nvidia-.*|cuda-.*)==/ } !drop' "lockfiles/$name.txt" >"build/relock/$name.txt"
    mv "build/relock/$name.txt" "lockfiles/$name.txt"
    check 3.11 "lockfiles/$name.txt"
done
