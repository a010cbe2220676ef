"""What a container is shown of this machine: the source's copy, private folders, trees of the image, files of /etc."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from repro_env.image import layout
from repro_env.model.errors import RunError
from repro_env.model.run import Launch
from repro_env.run import attached, container, filesystem, memory, merged, rootfs, seccomp, stage, watch
from repro_env.run.container import Bind, Place
from repro_env.run.cover import cover, within
from repro_env.run.pycache import Pycache
from repro_env.run.scratch import Scratch
from repro_env.run.workspace import CopiedWorkspace, Point, make_points

INIT = Path(__file__).resolve().parents[1] / "inside" / "init.py"


def make(
    launch: Launch,
    folder: Path,
    *,
    tree: Callable[[str], Path],
    merged_trees: Path,
    interpreter: str,
    own: Scratch,
    disk: Scratch,
    pycache: Pycache,
    keep_id: bool,
) -> Place:
    """Make everything on this machine that the container will be shown.

    `folder` is the run's, `own` its scratch folder, `disk` the one for what is large. `tree` gives an unpacked layer.
    Raises `RunError`, `DiskError`, `OSError`.
    """
    files = folder / "files"
    files.mkdir(mode=0o755, exist_ok=True)
    CopiedWorkspace(tree(launch.snapshot), files, needed=stage.inside(launch)).prepare()
    trees = [tree(diff_id) for diff_id in launch.layers]
    image = merged.tree(trees, merged_trees / launch.image.removeprefix("sha256:"))
    binds = [Bind(source=_shown(image, one.root), target=one.target, read_only=True) for one in launch.trees]
    links = [one.target for one in launch.trees if os.path.islink(f"{image}{one.target}")]  # noqa: PTH114
    siblings = stage.copy_siblings(launch, tree(launch.siblings), disk.folder("siblings")) if launch.siblings else {}
    targets = [launch.workspace, *siblings, *(one.target for one in launch.trees), *(one.target for one in launch.mounts)]

    def is_folder(target: str) -> bool:
        mounts = (mount.source for mount in launch.mounts if mount.target == target)
        shown = (bind.source for bind in binds if bind.target == target)
        return next((os.path.isdir(source) for source in (*mounts, *shown)), True)  # noqa: PTH112

    def private(path: str) -> Path:
        open_to_all = path in ("/tmp", "/var/tmp")  # noqa: S108
        return disk.folder(f"root{path.replace('/', '-')}", 0o1777 if open_to_all else 0o755)

    writable = container.covered(launch, links, _missing(launch, image))
    for bind in list(cover(writable, image, targets, private)):  # before there are points in it
        binds.append(bind)
        if not bind.read_only:
            below = [target for target in (*targets, *writable) if target.startswith(bind.target + "/")]
            points = [Point(target[len(bind.target) + 1 :], is_folder(target)) for target in below]
            make_points(Path(bind.source), points)
    binds += [Bind(source=str(copy), target=path, read_only=False, is_filled=True) for path, copy in siblings.items()]
    binds += _submounts(launch)
    binds += [_file(own, name, text) for name, text in _etc(launch, image).items()]
    kept = pycache.linked()
    binds.append(Bind(source=str(pycache.own), target=layout.PYCACHE, read_only=False))
    if kept is not None:
        binds.append(Bind(source=str(kept), target=layout.KEPT, read_only=True))
    control = own.folder("control")
    control.chmod(0o700)  # the values of secret variables are in it
    shutil.copyfile(INIT, control / "init.py")
    _tell(control / "launch.json", launch)
    cpus = os.sched_getaffinity(0)
    return Place(
        scratch=str(own.path),
        origin=watch.origin(),
        control=str(control),
        interpreter=interpreter,
        workspace=str(files),
        binds=tuple(binds),
        groups=tuple(sorted(set(os.getgroups()) - {launch.user.gid})),
        shared=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2,
        memory=memory.limit(),
        cpus=container.ranges(sorted(cpus)) if len(cpus) < (os.cpu_count() or 0) else "",
        terminal=attached.has_terminal(),
        keep_id=keep_id,
    )


def _missing(launch: Launch, image: Path) -> list[str]:
    """Directories that a user may be able to write on this machine, and that the image lacks: `../out`, `/scratch/me`.

    An engine would make them for root alone.
    """
    tops = {f"/{item.name}" for item in os.scandir("/") if item.is_dir(follow_symlinks=False)}
    wanted = sorted({*tops, launch.workspace.rpartition("/")[0], "/" + launch.workspace.split("/")[1]} - {"", *_OWN})
    return [path for path in wanted if path != launch.workspace and _is_missing(image, path)]


_OWN = ("/proc", "/sys", "/dev", "/run", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc", "/var", "/boot", "/lost+found")
"""The system's own: no user's files are there."""


def _is_missing(image: Path, path: str) -> bool:
    there = within(image, path)
    return there is not None and not there.exists()


def _shown(image: Path, root: str) -> str:
    found = within(image, root)
    if found is None or not found.exists():
        raise RunError("is not in the image", where=root, hint="capture again")
    return str(found)


def _submounts(launch: Launch) -> Iterator[Bind]:
    """Mounts inside read-only ones: engines leave those writable."""
    table = filesystem.mounts()
    for mount in launch.mounts:
        if mount.read_only:
            below = mount.source.rstrip("/") + "/"
            for point in dict.fromkeys(one.point for one in table if one.point.startswith(below)):
                yield Bind(source=point, target=f"{mount.target}/{point[len(below) :]}", read_only=True)


def _etc(launch: Launch, image: Path) -> dict[str, bytes]:
    hosts, resolv = stage.names() if launch.network else (None, b"")

    def of_image(name: str) -> bytes:
        found = within(image, f"/etc/{name}")
        return b"" if found is None else rootfs.read(str(found))

    shell = next(
        (path for path in ("/bin/bash", "/usr/bin/bash") if (found := within(image, path)) and found.exists()), "/bin/sh"
    )
    return rootfs.files_of_etc(
        launch.user,
        launch.hostname,
        passwd=of_image("passwd"),
        group=of_image("group"),
        shell=shell,
        hosts=hosts,
        resolv=resolv,
    )


def _file(own: Scratch, name: str, text: bytes) -> Bind:
    path = own.folder("etc") / name
    path.write_bytes(text)
    path.chmod(0o644)
    return Bind(source=str(path), target=f"/etc/{name}", read_only=True)


def _tell(path: Path, launch: Launch) -> None:
    umask = os.umask(0o022)
    os.umask(umask)
    env = {variable.name: variable.value for variable in launch.env}
    # json, since a word of a command line may hold bytes that are not UTF-8
    told = {"argv": launch.argv, "env": env, "cwd": launch.cwd, "umask": umask, "fixed_addresses": launch.fixed_addresses}
    told["filter"] = (seccomp.program(os.uname().machine, root=launch.user.uid == 0) or b"").hex()
    path.write_text(json.dumps(told), encoding="ascii")
