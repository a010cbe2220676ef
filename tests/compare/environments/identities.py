"""A captured identity, and changes to it."""

from __future__ import annotations

import msgspec

from repro_env.schema.artifact import TreeBlob, Wheel
from repro_env.schema.environment import Layout
from repro_env.schema.image import Config
from repro_env.schema.spec import Identity, Platform, Rules, Runtime


def tree(number: int) -> TreeBlob:
    return TreeBlob(sha256=f"sha256:{number:064x}", size=1, files=1)


def wheel(name: str, version: str, number: int) -> Wheel:
    return Wheel(
        name=name, version=version, filename=f"{name}-{version}-py3-none-any.whl", sha256=f"sha256:{number:064x}", size=1
    )


CAPTURED = Identity(
    rules=Rules(),
    platform=Platform(os="linux", architecture="amd64"),
    base=tree(1),
    interpreter=Runtime(tree=tree(2), executable="/opt/python/bin/python3.11", version="3.11.7"),
    layout=Layout(prefix="/venv", purelib="lib/p", platlib="lib/p", scripts="bin", headers="include"),
    command="/venv/bin/python",
    distributions=(wheel("numpy", "2.1", 3), wheel("torch", "2.9", 4)),
    overlay=None,
    config=Config(env=()),
)


def changed(**parts: object) -> Identity:
    return msgspec.structs.replace(CAPTURED, **parts)
