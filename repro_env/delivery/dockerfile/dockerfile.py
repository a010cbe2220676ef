"""Dockerfile: build the same environment with a container engine alone.

The base is `scratch` with the trees that the capture bundled. `install.py` installs the distributions with the image's
own Python. Every path is compared with the capture before the last step adds the marker.
"""

from __future__ import annotations

import msgspec

from repro_env.delivery.dockerfile import instruction
from repro_env.delivery.dockerfile.instruction import Command, Copy, From, Instruction, Run, Set, Workdir
from repro_env.delivery.documents import templates
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import SpecError
from repro_env.schema.image import Settings
from repro_env.schema.spec import Source, Spec

INSTALLER = "install.py"
LISTING = "image-files.txt.gz"
BUILD = "/.repro-env/build"
"""Where the build stages keep files that are not part of the image."""


class Step(msgspec.Struct, frozen=True):
    """Instructions that belong together, and why they are there."""

    why: tuple[str, ...]
    """The lines of a comment: fixed text, never a value of the spec."""
    instructions: tuple[Instruction, ...]


def refusal(spec: Spec) -> str:
    """Return why a spec cannot have a Dockerfile, or an empty string if it can."""
    if spec.identity.packages:
        return "its conda packages include the Python that would install them"
    return ""


def render(spec: Spec, settings: Settings, source: Source | None) -> bytes:
    """Return the Dockerfile. `source`: the code, if the image includes it. The same spec gives the same bytes.

    Raises `SpecError` if the spec cannot have a Dockerfile.
    """
    if why := refusal(spec):
        raise SpecError(
            f"a Dockerfile cannot be written: {why}", where="Dockerfile", hint="build the image with `repro-env rebuild`"
        )
    dockerfile_steps = steps(spec, settings, source)
    instructions = [item for step in dockerfile_steps for item in step.instructions]
    text = templates.render(
        "Dockerfile.j2",
        steps=[{"why": step.why, "lines": [instruction.line(item) for item in step.instructions]} for step in dockerfile_steps],
        digest=spec.digest,
        python=spec.identity.interpreter.version,
        platform=f"{spec.identity.platform.os}/{spec.identity.platform.architecture}",
        distributions=len(spec.identity.distributions),
        image=spec.expected.image_id,
        linked=any(hint.urls for hint in spec.hints.wheels),
    )
    if instruction.parse(text.decode()) != instructions:
        raise SpecError(
            "the written Dockerfile does not parse to the same instructions", where="Dockerfile", hint="report this bug"
        )
    return text


def steps(spec: Spec, settings: Settings, source: Source | None) -> list[Step]:
    """Return the steps of the build, in order."""
    identity = spec.identity
    trees = [tree for tree in (identity.base, identity.unowned, identity.interpreter.tree) if tree is not None]
    # No site, no bytecode, no variables: only the interpreter and its standard library are used.
    python = (identity.interpreter.executable, "-I", "-S", "-B", f"{BUILD}/{INSTALLER}")
    directory = f"{BUILD}/"
    copy_build_files = Copy((INSTALLER, "spec.json", LISTING), directory)
    return [
        Step(
            (
                "The operating system, libraries that none of its packages owns, and the interpreter, as captured.",
                "ADD unpacks a tar. The file names are the sha256 of the uncompressed tars.",
            ),
            (
                From("scratch", "base"),
                *(Copy((_blob(tree),), "/", unpack=True) for tree in trees),
                *(Set("ENV", *text.split("=", 1)) for text in settings.env if text.startswith("LD_LIBRARY_PATH=")),
            ),
        ),
        Step(
            (
                "The distributions. Wheels without a URL are in blobs/. The others are downloaded. All of them are checked",
                "by sha256. A wheel in blobs/ is not downloaded: with all wheels there, --network none works.",
                "They are installed into a directory of this stage, so that nothing else gets into the image.",
            ),
            (
                From("base", "distributions"),
                copy_build_files,
                Copy(("blobs/",), f"{BUILD}/blobs/"),
                Run((*python, "install", BUILD, spec.digest, f"{BUILD}/tree")),
            ),
        ),
        Step(
            ("All files of the image except its marker.",),
            (From("base", "image"), Copy((f"{BUILD}/tree/",), "/", "distributions")),
        ),
        Step(
            (
                "Every path is compared with the list of the capture. Any difference is reported and ends the build.",
                "Only a tree that passes gets the marker, and the symlink at the captured prefix.",
            ),
            (
                From("image", "checked"),
                copy_build_files,
                Run((*python, "check", BUILD, spec.digest, "/", f"{BUILD}/marker")),
            ),
        ),
        Step(
            (
                "Settings of the image: the captured variables that affect results, and what a container of any user needs:",
                "the environment first on PATH, and a writable HOME.",
            ),
            (
                From("image"),
                Copy((f"{BUILD}/marker/",), "/", "checked"),
                *(Set("ENV", *text.split("=", 1)) for text in settings.env),
                *(Set("LABEL", name, settings.labels[name]) for name in sorted(settings.labels)),
                Command(tuple(settings.cmd)),
            ),
        ),
        *([_code(source)] if source is not None else [Step(("The working directory of a container.",), (Workdir("/"),))]),
    ]


def _code(source: Source) -> Step:
    return Step(
        ("The captured code at its captured path: editable installs import it from there.",),
        (Copy((_blob(source.tree),), f"{source.path.rstrip('/')}/", unpack=True), Workdir(source.path)),
    )


def _blob(tree: TreeBlob) -> str:
    return f"blobs/{tree.sha256.removeprefix('sha256:')}.gz"
