"""Make everything that a container mounts: a copy of the source, private directories, trees of the image, files of /etc."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from repro_env.io.package import GUEST
from repro_env.oci import paths as layout
from repro_env.sandbox import filesystem, memory
from repro_env.sandbox.docker import container, streams, watcher
from repro_env.sandbox.docker.container import Bind, Resources
from repro_env.sandbox.docker.privatedirectories import cover, find_in_image
from repro_env.sandbox.embedded import rootfs, seccomp, stage
from repro_env.sandbox.runner import Image
from repro_env.sandbox.scratch import Scratch
from repro_env.sandbox.workspace import CopiedWorkspace, MountPoint, make_mount_points
from repro_env.schema.environment import values_of
from repro_env.schema.errors import RunError
from repro_env.schema.run import Launch

INIT = GUEST / "init.py"


def make(
    launch: Launch,
    directory: Path,
    image: Image,
    *,
    own: Scratch,
    disk: Scratch,
    keep_id: bool,
) -> Resources:
    """Make all files and directories that the container mounts.

    `directory` is the run's, `own` its scratch directory, and `disk` the scratch directory for large files. `keep_id` is
    as in `Resources`. Raises `RunError`, `DiskError`, `OSError`.
    """
    files = directory / "files"
    files.mkdir(mode=0o755, exist_ok=True)
    CopiedWorkspace(image.tree(launch.snapshot), files, needed=stage.mount_points(launch)).prepare()
    merged = image.merge(launch)
    binds = [Bind(source=_image_path(merged, shown.root), target=shown.target, read_only=True) for shown in launch.trees]
    links = [shown.target for shown in launch.trees if os.path.islink(f"{merged}{shown.target}")]  # noqa: PTH114
    siblings = stage.copy_siblings(launch, image.tree(launch.siblings), disk.directory("siblings")) if launch.siblings else {}
    targets = [launch.workspace, *siblings, *(shown.target for shown in launch.trees), *(mount.target for mount in launch.mounts)]

    def is_directory(target: str) -> bool:
        sources = {bind.target: bind.source for bind in binds} | {mount.target: mount.source for mount in launch.mounts}
        return target not in sources or os.path.isdir(sources[target])  # noqa: PTH112

    def private(path: str) -> Path:
        is_temporary = path in ("/tmp", "/var/tmp")  # noqa: S108
        return disk.directory(f"root{path.replace('/', '-')}", 0o1777 if is_temporary else 0o755)

    writable = container.writable_directories(launch, links, _missing(launch, merged))
    for bind in list(cover(writable, merged, targets, private)):  # all are covered before mount points are made in them
        binds.append(bind)
        if not bind.read_only:
            below = [target for target in (*targets, *writable) if target.startswith(bind.target + "/")]
            points = [MountPoint(target[len(bind.target) + 1 :], is_directory(target)) for target in below]
            make_mount_points(Path(bind.source), points)
    binds += [Bind(source=str(copy), target=path, read_only=False, is_filled=True) for path, copy in siblings.items()]
    binds += _submounts(launch)
    binds += [_etc_file(own, name, text) for name, text in _etc(launch, merged).items()]
    if image.bytecode is not None:
        binds.append(Bind(source=str(image.bytecode), target=layout.PYCACHE, read_only=True))
    control = own.directory("control")
    control.chmod(0o700)  # launch.json has the values of secret variables
    shutil.copyfile(INIT, control / "init.py")
    _write_launch(control / "launch.json", launch)
    cpus = os.sched_getaffinity(0)
    return Resources(
        scratch=str(own.path),
        origin=watcher.origin(),
        control=str(control),
        interpreter=image.interpreter,
        workspace=str(files),
        binds=tuple(binds),
        groups=tuple(sorted(set(os.getgroups()) - {launch.user.gid})),
        shm_size=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2,
        memory=memory.limit(),
        cpus=",".join(map(str, sorted(cpus))) if len(cpus) < (os.cpu_count() or 0) else "",
        terminal=streams.has_terminal(),
        keep_id=keep_id,
    )


def _missing(launch: Launch, image: Path) -> list[str]:
    """Directories where a user may write on this machine and that the image lacks, such as `/scratch`.

    If they were not covered, an engine would make them for root only.
    """
    top_level = {f"/{item.name}" for item in os.scandir("/") if item.is_dir(follow_symlinks=False)}
    parents = {launch.workspace.rpartition("/")[0], "/" + launch.workspace.split("/")[1]}
    paths = sorted((top_level | parents) - {"", *_SYSTEM})
    return [path for path in paths if path != launch.workspace and _is_missing(image, path)]


_SYSTEM = ("/proc", "/sys", "/dev", "/run", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc", "/var", "/boot", "/lost+found")
"""Directories of the system, without files of users."""


def _is_missing(image: Path, path: str) -> bool:
    file = find_in_image(image, path)
    return file is not None and not file.exists()


def _image_path(image: Path, root: str) -> str:
    """The path on this machine of a tree of the image. Raises `RunError`."""
    path = find_in_image(image, root)
    if path is None or not path.exists():
        raise RunError("this path is not in the image", where=root, hint="capture again")
    return str(path)


def _submounts(launch: Launch) -> Iterator[Bind]:
    """Bind mounts below read-only ones separately, because engines leave them writable."""
    table = filesystem.mounts()
    for mount in launch.mounts:
        if mount.read_only:
            below = mount.source.rstrip("/") + "/"
            for point in dict.fromkeys(entry.point for entry in table if entry.point.startswith(below)):
                yield Bind(source=point, target=f"{mount.target}/{point[len(below) :]}", read_only=True)


def _etc(launch: Launch, image: Path) -> dict[str, bytes]:
    hosts, resolv = stage.resolver_files() if launch.network else (None, b"")

    def read(name: str) -> bytes:
        file = find_in_image(image, f"/etc/{name}")
        return b"" if file is None else rootfs.read(str(file))

    shell = next(
        (path for path in ("/bin/bash", "/usr/bin/bash") if (file := find_in_image(image, path)) and file.exists()), "/bin/sh"
    )
    return rootfs.etc_files(
        launch.user,
        launch.hostname,
        passwd=read("passwd"),
        group=read("group"),
        shell=shell,
        hosts=hosts,
        resolv=resolv,
    )


def _etc_file(own: Scratch, name: str, text: bytes) -> Bind:
    path = own.directory("etc") / name
    path.write_bytes(text)
    path.chmod(0o644)
    return Bind(source=str(path), target=f"/etc/{name}", read_only=True)


def _write_launch(path: Path, launch: Launch) -> None:
    """Write the file from which `init.py` reads the command."""
    umask = os.umask(0o022)
    os.umask(umask)
    env = values_of(launch.env)
    values = {"argv": launch.argv, "env": env, "cwd": launch.cwd, "umask": umask, "fixed_addresses": launch.fixed_addresses}
    values["filter"] = (seccomp.program(os.uname().machine, root=launch.user.uid == 0) or b"").hex()
    # `json` instead of msgspec, because an argument may have bytes that are not UTF-8
    path.write_text(json.dumps(values), encoding="ascii")
