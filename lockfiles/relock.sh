#!/bin/sh
# Writes every lock file anew from the .in files, with pip-tools: one set for Python 3.11 and newer, one for 3.10
# (some packages have left 3.10 behind, and pip-tools writes only what the Python it runs on needs).
# No index, find-links folder or path of this machine gets into them. The wide environment of the benchmarks is locked
# for 3.11 only, and without torch (see ml185.in); so is the one of the trainers.
set -eu
cd "$(dirname -- "$0")/.."
for version in 3.11 3.10; do
    command -v "python$version" >/dev/null || { echo "make relock needs python$version on PATH" >&2; exit 1; }
done
compile() {
    echo "$2" >&2
    CUSTOM_COMPILE_COMMAND="make relock" "build/relock/$1/bin/python" -m piptools compile --quiet --upgrade \
        --generate-hashes --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
        --output-file "$2" "$3" "$4" ${5+"$5"} ${6+"$6"}
}
for version in 3.11 3.10; do
    PYTHON=python$version lockfiles/venv.sh "build/relock/$version" test
    to=lockfiles
    [ "$version" = 3.11 ] || to=lockfiles/py310
    for name in tool test example; do
        compile "$version" "$to/$name.txt" "lockfiles/$name.in" --allow-unsafe
    done
done
# Torch as the Makefile installs it: the default build's GPU packages are not wanted.
constraint=$(mktemp)
trap 'rm -f "$constraint"' EXIT
echo "$TORCH" >"$constraint"
compile 3.11 lockfiles/trainers.txt lockfiles/trainers.in --allow-unsafe --unsafe-package=torch --constraint="$constraint"
sed -i "s|$constraint|the Makefile|" lockfiles/trainers.txt
compile 3.11 lockfiles/ml185.txt lockfiles/ml185.in --unsafe-package=torch
