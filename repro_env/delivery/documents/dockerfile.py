"""Dockerfile: build the same environment with a container engine alone.

The base is `scratch` with the trees that the capture bundled. `install.py` installs the distributions with the image's
own Python. Every path is compared with the capture, `image-files.txt.gz`, before the last step adds the marker.

A Dockerfile mixes several grammars: parser directives, line continuations, heredocs, JSON forms that silently become
shell forms if they are not valid JSON, and words in which `$`, quotes and backslashes are special. So each instruction is
one line of printable text, and every value of a spec is written by `quoted`, `json_words` or `plain_path`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from repro_env.delivery.documents import templates
from repro_env.io.package import GUEST
from repro_env.oci import config, wheellayers
from repro_env.oci.entry import Entry, merge
from repro_env.oci.wheel import FormOf
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import SpecError
from repro_env.schema.spec import Source, Spec
from repro_env.store.specs.blobs import SpecBlobs, compress_chunks
from repro_env.store.specs.files import update
from repro_env.store.store import Store
from repro_env.version import __version__

NAME = "Dockerfile"
INSTALLER = "install.py"
LISTING = "image-files.txt.gz"
BUILD = "/.repro-env/build"
"""Where the build stages keep files that are not part of the image."""
_KIND = "image-files"
"""Kind of the facts of written lists, by version and spec digest: the sha256 of the file."""
_RULE_IMPORT = re.compile(r"^from repro_env\.guest\.wheelrule import .*\n", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PATH = re.compile(r"/(?:[A-Za-z0-9_./@+,:=~ -]*[A-Za-z0-9_./@+,:=~-])?")


def write(output: Path, spec: Spec, store: Store, form_of: FormOf) -> str:
    """Write the Dockerfile and the files that it needs to the spec directory `output`, unless they are up to date.

    Returns an empty string, or the reason why this spec cannot have a Dockerfile; then existing files are removed.
    """
    problem = ""
    for source in (spec.observed.source, None):  # without the code if a Dockerfile cannot express its path
        try:
            text = render(spec, source)
        except SpecError as error:
            problem = error.what
            continue
        update(output, {NAME: text, INSTALLER: installer()})
        _write_listing(output, spec, store, form_of)
        return ""
    for name in (NAME, INSTALLER, LISTING):
        (output / name).unlink(missing_ok=True)
    return problem


def _write_listing(output: Path, spec: Spec, store: Store, form_of: FormOf) -> None:
    """Write the list of all paths. It depends on the identity only, and takes a second, so it is not made again."""
    key, path = f"{__version__} {spec.digest}", output / LISTING
    written = store.facts.get(_KIND, key)
    if written is None or not path.is_file() or written != hashlib.sha256(path.read_bytes()).digest():
        data = listing(image_entries(spec, SpecBlobs(output / "blobs"), store, form_of))
        update(output, {LISTING: data})
        store.facts.put(_KIND, key, hashlib.sha256(data).digest())


def image_entries(spec: Spec, blobs: SpecBlobs, store: Store, form_of: FormOf) -> list[Entry]:
    """Return all paths of an image without conda packages, sorted, with all parents and the sha256 of every file.

    Raises `ArtifactError` if a bundled tree is missing or damaged.
    """
    identity = spec.identity
    *lower, overlay = (blobs.entries(tree, store.facts) if tree is not None else [] for tree in identity.trees.values())
    groups = [group.entries for group in wheellayers.layers({wheel.key: form_of(wheel) for wheel in identity.distributions})]
    return merge([*lower, *groups, overlay, [entry for entry, _ in config.marker(identity)]])


@lru_cache(maxsize=1)
def installer() -> bytes:
    """Return `install.py` as a single file: the text of the wheel rule replaces its import."""
    text = (GUEST / "install.py").read_text()
    return _RULE_IMPORT.sub(lambda _: (GUEST / "wheelrule.py").read_text(), text, count=1).encode()


def listing(entries: Iterable[Entry]) -> bytes:
    """Return one line of JSON for each path (path, kind, sha256 or target), compressed like bundled trees."""
    rows = (json.dumps([entry.path, *_describe(entry)], ensure_ascii=False, separators=(",", ":")) + "\n" for entry in entries)
    return b"".join(compress_chunks(["".join(rows).encode()]))


def _describe(entry: Entry) -> tuple[str, str]:
    if entry.kind == "file":
        return "program" if entry.executable else "file", entry.sha256
    return entry.kind, entry.target


def render(spec: Spec, source: Source | None) -> bytes:
    """Return the Dockerfile. `source`: the code, if the image includes it. The same spec gives the same bytes.

    Raises `SpecError` if the spec cannot have a Dockerfile.
    """
    if spec.identity.packages:
        raise _refused("its conda packages include the Python that would install them")
    return templates.render(
        "Dockerfile.j2",
        steps=[{"why": why, "lines": lines} for why, lines in _steps(spec, source)],
        digest=spec.digest,
        python=spec.identity.interpreter.version,
        platform=f"{spec.identity.platform.os}/{spec.identity.platform.architecture}",
        distributions=len(spec.identity.distributions),
        image=spec.expected.image_id,
        linked=any(hint.urls for hint in spec.hints.wheels),
    )


def _steps(spec: Spec, source: Source | None) -> list[tuple[list[str], list[str]]]:
    """Return the steps of the build in order: the lines of a comment, which never contain a value of the spec, and instructions."""
    identity, settings = spec.identity, config.settings(spec.identity, source)
    trees = [tree for name, tree in identity.trees.items() if tree is not None and name != "overlay"]
    env = [setting("ENV", *text.split("=", 1)) for text in settings.env]
    # No site, no bytecode, no variables: only the interpreter and its standard library are used.
    python = (identity.interpreter.executable, "-I", "-S", "-B", f"{BUILD}/{INSTALLER}")
    copy_build_files = f"COPY {json_words([INSTALLER, 'spec.json', LISTING, f'{BUILD}/'])}"
    code_why, code = ["The working directory of a container."], ["WORKDIR /"]
    if source is not None:
        code_why = ["The captured code at its captured path: editable installs import it from there."]
        path = plain_path(source.path)
        code = [f"ADD {json_words([_blob(source.tree), path.rstrip('/') + '/'])}", f"WORKDIR {path}"]
    return [
        (
            [
                "The operating system, libraries that none of its packages owns, and the interpreter, as captured.",
                "ADD unpacks a tar. The file names are the sha256 of the uncompressed tars.",
            ],
            [
                "FROM scratch AS base",
                *(f"ADD {json_words([_blob(tree), '/'])}" for tree in trees),
                *(line for line in env if line.startswith("ENV LD_LIBRARY_PATH=")),
            ],
        ),
        (
            [
                "The distributions. Wheels without a URL are in blobs/. The others are downloaded. All of them are checked",
                "by sha256. A wheel in blobs/ is not downloaded: with all wheels there, --network none works.",
                "They are installed into a directory of this stage, so that nothing else gets into the image.",
            ],
            [
                "FROM base AS distributions",
                copy_build_files,
                f"COPY {json_words(['blobs/', f'{BUILD}/blobs/'])}",
                f"RUN {json_words([*python, 'install', BUILD, spec.digest, f'{BUILD}/tree'])}",
            ],
        ),
        (
            ["All files of the image except its marker."],
            ["FROM base AS image", f"COPY --from=distributions {json_words([f'{BUILD}/tree/', '/'])}"],
        ),
        (
            [
                "Every path is compared with the list of the capture. Any difference is reported and ends the build.",
                "Only a tree that passes gets the marker, and the symlink at the captured prefix.",
            ],
            [
                "FROM image AS checked",
                copy_build_files,
                f"RUN {json_words([*python, 'check', BUILD, spec.digest, '/', f'{BUILD}/marker'])}",
            ],
        ),
        (
            [
                "Settings of the image: the captured variables that affect results, and what a container of any user needs:",
                "the environment first on PATH, and a writable HOME.",
            ],
            [
                "FROM image",
                f"COPY --from=checked {json_words([f'{BUILD}/marker/', '/'])}",
                *env,
                *(setting("LABEL", name, settings.labels[name]) for name in sorted(settings.labels)),
                f"CMD {json_words(settings.cmd)}",
            ],
        ),
        (code_why, code),
    ]


def _blob(tree: TreeBlob) -> str:
    return f"blobs/{tree.sha256.removeprefix('sha256:')}.gz"


def setting(word: str, name: str, value: str) -> str:
    """Return the instruction `ENV` or `LABEL`."""
    if not _NAME.fullmatch(name):
        raise _inexpressible(name)
    return f"{word} {name}={quoted(value)}"


def quoted(text: str) -> str:
    """Return a value in double quotes with `\\`, `"` and `$` escaped, so that a builder expands nothing.

    Raises `SpecError` for a control character or line separator, which may end the line for some parsers.
    """
    return '"' + re.sub(r'[\\"$]', r"\\\g<0>", _checked(text)) + '"'


def json_words(words: Sequence[str]) -> str:
    """Return a JSON array in ASCII. `<` is escaped, so that no parser sees a heredoc."""
    return json.dumps([_checked(word) for word in words]).replace("<", "\\u003c")


def plain_path(path: str) -> str:
    """Return an absolute path in which a builder expands nothing, not even in the JSON form of ADD."""
    if not _PATH.fullmatch(path):
        raise _inexpressible(path)
    return path


def _checked(text: str) -> str:
    """Return a printable text. Half a character (of a name that is not UTF-8) is not printable either."""
    if not all(character == " " or character.isprintable() for character in text):
        raise _inexpressible(text)
    return text


def _inexpressible(what: str) -> SpecError:
    return _refused(f"a Dockerfile cannot express {what!a}")


def _refused(why: str) -> SpecError:
    return SpecError(why, where=NAME, hint="build the image with `repro-env rebuild`")
