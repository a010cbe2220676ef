"""The image of the first container of a Kubernetes job: the spec's image, repro-env, and the code and the record of the job.

This container fills the directory of the job, which the second one uses. The second one is started from the spec's own image,
so nothing that is in this image only can change the environment of the command. A node that has pulled the spec's image has
most layers of this one, and so has the registry. repro-env runs in both containers with the image's Python.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from repro_env.delivery.builder.remote import Copy
from repro_env.io import package
from repro_env.io.files import atomic_write, chunks_of
from repro_env.oci import paths, tar
from repro_env.oci.entry import Entry, Members, sort_with_parents
from repro_env.oci.layer import Measured
from repro_env.oci.manifest import Image, Manifest
from repro_env.registry import reference
from repro_env.registry.client import Registry
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, PlatformError
from repro_env.schema.image import CONFIG, MANIFEST, Blob
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.store.store import Store

_TAR = "application/vnd.oci.image.layer.v1.tar"
_TOOL, _TREES = "tool", "trees"
_UNUSED = {"hyperscan", "jinja2", "pip", "pyyaml", "zstandard"}
"""Dependencies that a run does not need. They are half of the size."""
DIRECTORIES = ("workspace", "home", "tmp", "vartmp")
"""Directories below `paths.JOB` that the pod mounts elsewhere."""
_PATH = "import sys; sys.path.insert(0, {0!r}); "
UNPACK = f"{_PATH.format(f'{paths.JOB_IMAGE}/{_TOOL}')}from repro_env.delivery.targets.jobimage import unpack; unpack()"
"""Python code that fills the directory of the job."""
MAIN = f"{_PATH.format(f'{paths.JOB}/{_TOOL}')}from repro_env.__main__ import main; main()"
"""Python code that is the command `repro-env` after that."""

_Content = tuple[int, Callable[[], Iterator[bytes]]]
"""The size of a file, and its bytes."""
_Part = tuple[Blob, Callable[[], Iterator[bytes]]]


class JobImage(msgspec.Struct, frozen=True):
    repository: str
    """`host[:port]/name`."""
    image: Image
    parts: tuple[_Part, ...]
    """The layers that the spec's image does not have."""

    @property
    def name(self) -> str:
        return f"{self.repository}@{self.image.manifest_blob.digest}"


def make(spec: Spec, copy: Copy, files: Mapping[str, bytes], trees: Sequence[str], store: Store) -> JobImage:
    """Make the image of a job. Nothing is sent.

    `copy`: the pushed image of the spec. `files`: of the job's directory, by their paths in it. `trees`: diff IDs of trees of the
    store. Raises `ArtifactError` if the registry has another image, `NetworkError`, and `PlatformError` if the image has another Python
    than this process.
    """
    _check_python(spec)
    ref = reference.parse(copy.repository)
    with Registry(ref.host) as registry:
        manifest = registry.parsed(ref.repository, copy.image)[0]
        where = f"{copy.repository}@{copy.image}"
        if not isinstance(manifest, Manifest) or manifest.config.digest != spec.expected.image_id:
            hint = f"push it again with `repro-env push {copy.repository}:TAG`"
            raise ArtifactError("this is not the image of the spec", where=where, hint=hint)
        config = codec.decode(registry.small(ref.repository, manifest.config), dict, where=where)
    tool = {f"{_TOOL}/{path}": file for path, file in _tool_files().items()}
    parts = [_part(partial(_from_files, tool)), _part(partial(_job_members, files, trees, store))]
    config["rootfs"]["diff_ids"] += [blob.digest for blob, _ in parts]  # the layers are not compressed
    layers = [Blob(media_type=layer.media_type, digest=layer.digest, size=layer.size) for layer in manifest.layers]
    return JobImage(copy.repository, Image(codec.canonical(config), (*layers, *(blob for blob, _ in parts))), tuple(parts))


def push(job: JobImage, tag: str, tell: Tell) -> None:
    """Send the image to the repository of the spec's image. Raises `NetworkError`, `ArtifactError`."""
    ref = reference.parse(job.repository)
    with Registry(ref.host) as registry:
        missing = [part for part in job.parts if not registry.has(ref.repository, part[0].digest, part[0].size)]
        with tell.progress(sum(blob.size for blob, _ in missing), "pushing the code"):
            for blob, chunks in missing:
                registry.upload(ref.repository, chunks, blob)
        registry.ensure(ref.repository, job.image.config, CONFIG)
        registry.put_manifest(ref.repository, tag, job.image.manifest, MANIFEST)


def unpack() -> None:
    """Fill the directory of the job, in the first container. Raises `OSError`, `StoreError`."""
    source, target = Path(paths.JOB_IMAGE), Path(paths.JOB)
    for name in DIRECTORIES:
        (target / name).mkdir()
        (target / name).chmod(0o1777 if "tmp" in name else 0o755)
    shutil.copytree(source / _TOOL, target / _TOOL)
    for file in (source / "runs").rglob("*"):  # the pods of several nodes do this at the same time
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(copy, file.read_bytes())
    if shared := os.environ.get("REPRO_ENV_SHARED"):
        for name in ("workspace", f"home-{os.environ['RANK']}"):
            Path(shared, name).mkdir(parents=True, exist_ok=True)
    store = Store.open()
    for file in (source / _TREES).iterdir():
        members = tar.read(chunks_of(file), where=str(file))
        store.layers.unpack(f"sha256:{file.stem}", members, size=file.stat().st_size)


def _check_python(spec: Spec) -> None:
    """repro-env has dependencies that are compiled for one minor version of Python."""
    here, there = ".".join(map(str, sys.version_info[:2])), ".".join(spec.identity.interpreter.version.split(".")[:2])
    if here != there:
        raise PlatformError(
            f"repro-env runs with Python {here} here, but the image has Python {there}, with which it runs in the pod",
            where="--on kubernetes",
            hint=f"install repro-env for Python {there}, for example in the environment that was captured",
        )


def _tool_files() -> dict[str, Path]:
    """The files of repro-env and of its dependencies, by their paths below a directory of packages."""
    found = {f"{package.ROOT.name}/{path.relative_to(package.ROOT)}": path for path in package.ROOT.rglob("*.*")}
    names, seen = ["repro-env"], {*_UNUSED}
    for name in names:  # grows
        distribution = importlib.metadata.distribution(name)
        for requirement in map(Requirement, distribution.requires or ()):
            key = requirement.name.lower()
            if key not in seen and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                seen.add(key)
                names.append(requirement.name)
        if name != "repro-env":
            found |= {str(file): Path(str(distribution.locate_file(file))) for file in distribution.files or ()}
    return {
        path: file
        for path, file in found.items()
        if not path.startswith(("..", "/")) and file.suffix != ".pyc" and file.is_file()
    }


def _part(members: Callable[[], Members]) -> _Part:
    """A layer as an uncompressed tar."""

    def chunks() -> Iterator[bytes]:
        return tar.write(members())

    measured = Measured(chunks()).read()
    return Blob(media_type=_TAR, digest=measured.digest, size=measured.size), chunks


def _from_files(files: Mapping[str, Path]) -> Members:
    return _members({path: (file.stat().st_size, partial(chunks_of, file)) for path, file in files.items()})


def _job_members(files: Mapping[str, bytes], trees: Sequence[str], store: Store) -> Members:
    contents: dict[str, _Content] = {path: (len(data), partial(iter, (data,))) for path, data in files.items()}
    for diff_id in trees:
        chunks = partial(_tar_of, diff_id, store)
        contents[f"{_TREES}/{diff_id.removeprefix('sha256:')}.tar"] = (Measured(chunks()).read().size, chunks)
    return _members(contents)


def _tar_of(diff_id: str, store: Store) -> Iterator[bytes]:
    return tar.write(store.layers.members(diff_id))


def _members(contents: Mapping[str, _Content]) -> Members:
    root = paths.inside(paths.JOB_IMAGE)
    for entry in sort_with_parents(Entry(f"{root}/{path}", "file", size=size) for path, (size, _) in contents.items()):
        yield entry, contents[entry.path[len(root) + 1 :]][1]() if entry.kind == "file" else ()
