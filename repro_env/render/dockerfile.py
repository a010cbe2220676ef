"""Dockerfile: the same environment for whoever has a container engine and nothing else.

The base is `scratch` and the trees that the capture carries; the distributions are put in place by `install.py`, in
the image's own Python; each path is compared with the capture before the marker, the last thing, is there.
"""

from __future__ import annotations

import msgspec

from repro_env.model.artifact import TreeBlob
from repro_env.model.errors import SpecError
from repro_env.model.image import Settings
from repro_env.model.spec import Source, Spec
from repro_env.render import instruction, templates
from repro_env.render.instruction import Command, Copy, From, Instruction, Run, Set, Workdir

INSTALLER = "install.py"
LISTING = "image-files.txt.gz"
BUILD = "/.repro-env/build"
"""Where the stages keep what is no part of the image."""


class Step(msgspec.Struct, frozen=True):
    """Instructions that belong together, and why they are there."""

    why: tuple[str, ...]
    """Lines of a comment: fixed text, never a value of the spec."""
    instructions: tuple[Instruction, ...]


def refusal(spec: Spec, *, alone: bool = True) -> str:
    """Why there is no Dockerfile for a spec; empty when there is one. `alone`: what is not carried cannot be had."""
    if spec.identity.packages:
        return "conda packages hold the Python that would have to install them"
    if alone and spec.identity.base.sha256 not in spec.carried:
        return "its base is not carried beside the spec (--keep-base)"
    return ""


def render(spec: Spec, settings: Settings, source: Source | None) -> bytes:
    """The same spec gives the same bytes. `source`: the code, if the image is to hold it too. Raises `SpecError`."""
    if why := refusal(spec, alone=False):
        raise SpecError(f"has no Dockerfile: {why}", where="Dockerfile", hint="repro-env rebuild makes the image")
    found = steps(spec, settings, source)
    wanted = [one for step in found for one in step.instructions]
    text = templates.render(
        "Dockerfile.j2",
        steps=[{"why": step.why, "lines": [instruction.line(one) for one in step.instructions]} for step in found],
        digest=spec.digest,
        python=spec.identity.interpreter.version,
        platform=f"{spec.identity.platform.os}/{spec.identity.platform.architecture}",
        distributions=len(spec.identity.distributions),
        image=spec.expected.image_id,
        linked=any(hint.urls for hint in spec.hints.wheels),
    )
    if instruction.parse(text.decode()) != wanted:
        raise SpecError("does not read back as what was written", where="Dockerfile", hint="capture again; this is a bug")
    return text


def steps(spec: Spec, settings: Settings, source: Source | None) -> list[Step]:
    """What is done, in order."""
    identity = spec.identity
    trees = [one for one in (identity.base, identity.unowned, identity.interpreter.tree) if one is not None]
    # No site, no bytecode, no variables: nothing but the interpreter and its standard library takes part.
    python = (identity.interpreter.executable, "-I", "-S", "-B", f"{BUILD}/{INSTALLER}")
    folder = f"{BUILD}/"
    brought = Copy((INSTALLER, "spec.json", LISTING), folder)
    return [
        Step(
            (
                "The operating system, libraries that no package of it owns, and the interpreter, each as it was captured.",
                "ADD unpacks a tar; the names are the sha256 of what they unpack to.",
            ),
            (From("scratch", "base"), *(Copy((_blob(one),), "/", unpack=True) for one in trees)),
        ),
        Step(
            (
                "The distributions. What has no address is in blobs/; the rest is fetched by URL, and all of it is checked",
                "by sha256. A wheel that lies in blobs/ under its sha256 is not fetched: with all there, --network none works.",
                "They are put below a folder of this stage, so that nothing else of it gets into the image.",
            ),
            (
                From("base", "distributions"),
                brought,
                Copy(("blobs/",), f"{BUILD}/blobs/"),
                Run((*python, "install", BUILD, spec.digest, f"{BUILD}/tree")),
            ),
        ),
        Step(
            ("All files of the image but its marker.",),
            (From("base", "image"), Copy((f"{BUILD}/tree/",), "/", "distributions")),
        ),
        Step(
            (
                "Every path is compared with the list that the capture made; a difference ends the build and is named.",
                "Only a tree that passes gets the marker, and the symlink where the environment was.",
            ),
            (
                From("image", "checked"),
                brought,
                Run((*python, "check", BUILD, spec.digest, "/", f"{BUILD}/marker")),
            ),
        ),
        Step(
            (
                "What the image sets: the captured variables that change numbers, and what a container of any user needs:",
                "the environment first on PATH, a HOME that can be written to.",
            ),
            (
                From("image"),
                Copy((f"{BUILD}/marker/",), "/", "checked"),
                *(Set("ENV", *text.split("=", 1)) for text in settings.env),
                *(Set("LABEL", name, settings.labels[name]) for name in sorted(settings.labels)),
                Command(tuple(settings.cmd)),
            ),
        ),
        *([_code(source)] if source is not None else [Step(("Where a container starts.",), (Workdir("/"),))]),
    ]


def _code(source: Source) -> Step:
    return Step(
        ("The code as it was captured, where it was captured: editable installs import it from there.",),
        (Copy((_blob(source.tree),), f"{source.path.rstrip('/')}/", unpack=True), Workdir(source.path)),
    )


def _blob(tree: TreeBlob) -> str:
    return f"blobs/{tree.sha256.removeprefix('sha256:')}.gz"
