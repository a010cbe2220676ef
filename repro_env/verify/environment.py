"""Is a live environment still the one that was captured? Two identities, compared part by part."""

from __future__ import annotations

from repro_env.model.artifact import TreeBlob
from repro_env.model.spec import Identity


def differences(expected: Identity, found: Identity) -> tuple[str, ...]:
    """What is other now, each in a few words; empty when the environment is the captured one.

    Variables and the seed are not part of the environment's files and are not compared.
    """
    names = {wheel.name: wheel for wheel in expected.distributions}
    there = {wheel.name: wheel for wheel in found.distributions}
    said = []
    if expected.platform != found.platform:
        said.append(f"platform: {found.platform.architecture}, {expected.platform.architecture} was captured")
    if expected.rules != found.rules:
        said.append("it was captured by rules of another version")
    if expected.layout != found.layout:
        said.append(f"layout: {found.layout.prefix}, {expected.layout.prefix} was captured")
    for name in sorted(names.keys() | there.keys()):
        old, new = names.get(name), there.get(name)
        if new is None and old is not None:
            said.append(f"{name} {old.version} is gone")
        elif old is None and new is not None:
            said.append(f"{name} {new.version} is new")
        elif old is not None and new is not None and old.version != new.version:
            said.append(f"{name} is {new.version}, {old.version} was captured")
        elif old is not None and new is not None and old.sha256 != new.sha256:
            said.append(f"{name} {new.version} is another build than the captured one")
    was, now = expected.interpreter, found.interpreter
    if was.version != now.version:
        said.append(f"python is {now.version}, {was.version} was captured")
    elif was.tree.sha256 != now.tree.sha256 or was.executable != now.executable:
        said.append("the interpreter's files are others")
    if _digest(expected.overlay) != _digest(found.overlay):
        said.append("files of the environment were added, edited or removed since the capture")
    if expected.base.sha256 != found.base.sha256:
        said.append("the system's libraries are others (packages were upgraded, or another locale is set)")
    return tuple(said)


def _digest(tree: TreeBlob | None) -> str:
    return "" if tree is None else tree.sha256
