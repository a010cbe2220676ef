#!/bin/sh
# Writes every lock file anew from the .in files: one set for Python 3.11 and newer, one for 3.10 (some packages have
# left 3.10 behind). uv resolves for the first release of each, so that every patch release can install what it names, and
# takes the hashes from the index: nothing is downloaded. It asks the public index, or where UV_DEFAULT_INDEX says.
# No index, find-links folder or path of this machine gets into them. The wide environment of the benchmarks and the one of
# the trainers are locked for 3.11 only, and without torch (see ml185.in) and what only its GPU builds need.
set -eu
cd "$(dirname -- "$0")/.."
compile() {
    version=$1 to=$2 from=$3
    shift 3
    echo "$to" >&2
    build/venv/bin/uv pip compile --quiet --no-config --upgrade --generate-hashes --custom-compile-command "make relock" \
        --no-emit-index-url --no-emit-find-links --no-emit-index-annotation --only-binary :all: --no-binary antlr4-python3-runtime \
        --python-version "$version" --output-file "$to" "$@" "$from"
}
without_torch() {
    # Torch is resolved as the index has it, since what depends on it is needed; then all that only its GPU builds want goes.
    compile "$@"
    gpu=$(sed -nE 's/^((nvidia|cuda|triton)[a-z0-9-]*)==.*/--no-emit-package=\1/p' "$2")
    compile "$@" --no-emit-package=torch $gpu # a word for each
}
for name in tool test example; do
    compile 3.11 "lockfiles/$name.txt" "lockfiles/$name.in"
    compile 3.10 "lockfiles/py310/$name.txt" "lockfiles/$name.in"
done
# The release that the Makefile installs, whichever build: a local version has no entry in the index.
constraint=$(mktemp)
trap 'rm -f "$constraint"' EXIT
echo "${TORCH%%+*}" >"$constraint"
without_torch 3.11 lockfiles/trainers.txt lockfiles/trainers.in --constraint "$constraint"
without_torch 3.11 lockfiles/ml185.txt lockfiles/ml185.in
sed -i "s|$constraint|the Makefile|" lockfiles/trainers.txt
