"""Specs around tiny real artifacts: wheels, and base, interpreter, overlay and source trees of a few files each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from repro_env.environment import assembly
from repro_env.environment.machine.host import host
from repro_env.environment.wheels.layers import DistributionContents, GroupContents
from repro_env.oci import layer, wheel, wheellayers
from repro_env.oci.entry import Entry, Member, file_notes, members, sort_with_parents
from repro_env.oci.paths import SYSTEM_PATH
from repro_env.schema import codec
from repro_env.schema.artifact import TreeBlob, Wheel
from repro_env.schema.environment import Interpretation, Interpreter, Startup, Variable, Variables
from repro_env.schema.frameworks import Frameworks
from repro_env.schema.image import Config, Layer
from repro_env.schema.spec import Defaults, Hints, Identity, Observed, Platform, Rules, Runtime, Source, Spec, WheelHint
from repro_env.store.packages.wheelfile import WheelContents, open_facts
from repro_env.store.specs.blobs import SpecBlobs
from tests.fakes import wheels

TREES: Mapping[str, Mapping[str, bytes]] = {
    "base": {"etc/os-release": b"NAME=tests\n", "usr/bin/env": b"\x7fELF base"},
    "interpreter": {"opt/python/bin/python3.11": b"\x7fELF python", "opt/python/lib/python3.11/os.py": b"sep = '/'\n"},
    "source": {"train.py": b"print('trained')\n"},
}
ARCHITECTURE: Literal["amd64", "arm64"] = "arm64" if os.uname().machine == "aarch64" else "amd64"


def tree(files: Mapping[str, bytes | None]) -> list[Member]:
    """The members of a tree of files; None for a file of a lower layer that is removed."""
    entries = sort_with_parents(
        Entry(path, "gone")
        if data is None
        else Entry(path, "file", "/bin/" in f"/{path}", len(data), hashlib.sha256(data).hexdigest())
        for path, data in files.items()
    )
    return list(members(entries, _Held({path: data for path, data in files.items() if data is not None})))


class _Held:
    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        yield self._files[entry.path]


def make(
    directory: Path,
    made: Mapping[str, Path],
    *,
    prefix: str | Path = "/home/ann/project/.venv",
    urls: Mapping[str, Sequence[str]] | None = None,
    carry: Sequence[str] = (),
    compress: Sequence[str] = (),
    overlay: Mapping[str, bytes | None] | None = None,
    architecture: Literal["amd64", "arm64"] = ARCHITECTURE,
    seed: int = 0,
) -> Spec:
    """A spec of the wheels `made` (normalised name -> file), written to `directory/spec.json` with its blobs next to it.

    `urls`: what the hints say, by name. `carry`: names whose wheel is bundled as a blob; `compress`: those of them kept as gzip.
    """
    directory.mkdir(parents=True, exist_ok=True)
    bundled = SpecBlobs(directory / "blobs")
    artifacts = {name: wheels.artifact(path, name, path.name.split("-")[1]) for name, path in made.items()}
    hints = []
    for name, artifact in artifacts.items():
        if name in carry:
            bundled.add_file(made[name], artifact.sha256, compress=name in compress)
        origin: Literal["bundled", "index"] = "bundled" if name in carry else "index"
        hints.append(WheelHint(sha256=artifact.sha256, origin=origin, urls=tuple((urls or {}).get(name, ())), index=""))
    facts = _facts(prefix)
    variables = Variables(replayed=(), recorded=(), named=())
    identity = Identity(
        rules=Rules(),
        platform=Platform(os="linux", architecture=architecture),
        base=bundled.add_tree(tree(TREES["base"])),
        interpreter=Runtime(
            tree=bundled.add_tree(tree(TREES["interpreter"])),
            executable=facts.interpreter.executable,
            version=facts.interpreter.version,
        ),
        layout=facts.layout,
        command=facts.command,
        distributions=tuple(sorted(artifacts.values(), key=lambda artifact: artifact.key)),
        overlay=bundled.add_tree(tree(overlay)) if overlay else None,
        config=Config(
            env=(
                Variable(name="PATH", value=f"{prefix}/bin:{SYSTEM_PATH}"),
                Variable(name="VIRTUAL_ENV", value=str(prefix)),
            )
        ),
    )
    source = Source(
        path="/home/ann/project",
        tree=bundled.add_tree(tree(TREES["source"])),
        size=17,
        files=file_notes(entry for entry, _ in tree(TREES["source"])),
        git=None,
    )
    spec = Spec(
        schema="repro-env/spec/2",
        identity=identity,
        defaults=Defaults(seed=seed),
        hints=Hints(wheels=tuple(sorted(hints, key=lambda hint: hint.sha256))),
        observed=_observed(facts, variables, source),
        expected=assembly.expected(identity, layers(made, artifacts)),
    )
    (directory / "spec.json").write_bytes(codec.pretty(spec))
    return spec


def layers(made: Mapping[str, Path], artifacts: Mapping[str, Wheel]) -> list[Layer]:
    """The distribution layers of the wheels, as capture would have computed them."""
    installed = {name: wheel.canonical(open_facts(path, path.name), wheels.layout(), name=name) for name, path in made.items()}
    sources = {
        name: DistributionContents(artifact, WheelContents(made[name], artifact), frozenset(), None)
        for name, artifact in installed.items()
    }
    return [
        Layer(
            kind="distributions",
            diff_id=layer.diff_id(members(group.entries, GroupContents(group.owner, sources))),
            holds=tuple(f"{name}=={artifacts[name].version}" for name in group.names),
        )
        for group in wheellayers.layers(installed)
    ]


def _facts(prefix: str | Path) -> Interpretation:
    interpreter = Interpreter(
        version="3.11.7",
        executable="/opt/python/bin/python3.11",
        prefix="/opt/python",
        stdlib="/opt/python/lib/python3.11",
        platstdlib="/opt/python/lib/python3.11",
        libpython=None,
        cache_tag="cpython-311",
    )
    return Interpretation(
        interpreter=interpreter,
        layout=wheels.layout(prefix),
        command=f"{prefix}/bin/python",
        kind="venv",
    )


def _observed(facts: Interpretation, variables: Variables, source: Source) -> Observed:
    return Observed(
        tool="repro-env 0",
        kind="venv",
        interpreter=facts.interpreter,
        startup=Startup(problem="", sys_path=(), locale="C UTF-8"),
        host=host(),  # a run on this machine has nothing to warn of
        frameworks=Frameworks(problem="not installed"),
        variables=variables,
        system_packages=(),
        distributions=(),
        bundled=(),
        edited=(),
        excluded=(),
        remarks=(),
        unknown=(),
        source=source,
        data=(),
    )


def blob(directory: Path, artifact: TreeBlob | Wheel) -> Path:
    """The bundled file of a blob, whatever its form."""
    (found,) = (directory / "blobs").glob(artifact.sha256.removeprefix("sha256:") + "*")
    return found
